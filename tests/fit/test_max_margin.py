"""Max-margin queries compared with quadprog and HiGHS; witnesses in rational arithmetic."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.references import allowed_by

import headfit as hf
from headfit import _core
from headfit._base import arrays
from headfit._target.witnesses import Multiplier

LEAK, DISTORTION = 0.05, 0.1
FORMS = ("tolerance", "equality")


# ---------------------------------------------------------------- what the core returns


def queries(target, keys, form="tolerance", leak=LEAK, distortion=DISTORTION, max_norm=math.inf):
    """Return (q, status, norms, witnesses by row) for tolerances without a reserve for rounding."""
    q, status, norms, found, scans = _core.max_margin_queries(
        target.core,
        np.ascontiguousarray(keys, dtype=np.float64),
        _core.Tolerances(leak, distortion),
        _core.MaxMarginOptions(equality=form == "equality", max_norm=max_norm),
        1,
    )
    assert scans >= 1
    witnesses = {
        row: hf.results.FarkasWitness(
            row=row,
            terms=tuple(Multiplier(*term) for term in terms),
            residual=residual,
            gap=gap,
            norm_bound=bound,
            leak=leak,
            distortion=distortion,
            equality=form == "equality",
        )
        for row, terms, residual, gap, bound in found
    }
    return q, status, norms, witnesses


def test_some_rows_have_the_queries_that_they_have_among_all():
    target, rows = hf.Target(hf.patterns.random_regular(64, 2, rng=0)), np.array([3, 40, 63])
    keys = np.random.default_rng(0).standard_normal((64, 24))
    given = target.core, keys, _core.Tolerances(LEAK, DISTORTION), _core.MaxMarginOptions(), 1
    whole, part = _core.max_margin_queries(*given), _core.max_margin_queries(*given, rows)
    assert np.array_equal(part[0], whole[0][rows])
    assert part[1] == [whole[1][i] for i in rows]
    assert np.array_equal(part[2], whole[2][rows])
    for beyond in (-1, 64):
        with pytest.raises(hf.errors.InputError, match=r"rows must lie in 0 \.\.\. 63"):
            _core.max_margin_queries(*given, np.array([beyond]))


def faces(target, keys, rows):
    """Return (verdict, margin, FaceWitness) of each row."""
    reports = _core.face_reports(
        target.core,
        np.ascontiguousarray(keys, dtype=np.float64),
        np.asarray(rows, dtype=np.int64),
        1,
    )
    return [
        (
            verdict,
            margin,
            hf.results.FaceWitness(int(row), tuple(a), tuple(b), residual, others, bound),
        )
        for row, (verdict, margin, a, b, residual, others, bound) in zip(rows, reports, strict=True)
    ]


def fit(A, keys, **options):
    options = {"dtype": "float64", "scale": 1.0, "num_threads": 1, **options}
    own = {name: options.pop(name) for name in ("form", "max_norm") if name in options}
    return hf.fit(A, method=hf.methods.MaxMargin(keys=keys, **own), **options)


# ---------------------------------------------------------------- references


def row_of(target, row):
    """Return the support, its log-weights, and the columns off it that the mask allows."""
    start, stop = target.matrix.indptr[row : row + 2]
    support = target.matrix.indices[start:stop]
    allowed = allowed_by(target.mask, target.n)[row]
    off = np.setdiff1d(np.flatnonzero(allowed), support)
    return support, np.log(target.matrix.data[start:stop]), off


def reference_norm(keys, support, logs, off, form, leak=LEAK, distortion=DISTORTION):
    """Return the least norm by quadprog, with offsets eliminated by pairs; None if infeasible."""
    quadprog = pytest.importorskip("quadprog")
    level, delta = -math.log(leak), math.log1p(distortion)
    d = keys.shape[1]
    on = keys[support]
    if form == "equality":
        # quadprog accepts linearly independent equalities only.
        u, s, v = np.linalg.svd(on[1:] - on[0])
        rank = int((s > 1e-12 * np.abs(keys).max()).sum())
        ratios = u.T @ (logs[1:] - logs[0])
        if np.abs(ratios[rank:]).max(initial=0.0) > 1e-9:
            return None
        equal = v[:rank] * s[:rank, np.newaxis], ratios[:rank]
        unequal = on[0] - keys[off], np.full(off.size, logs[0] - logs.min() + level + delta)
    else:
        equal = np.zeros((0, d)), np.zeros(0)
        a, b = np.nonzero(~np.eye(support.size, dtype=bool))
        i, j = np.divmod(np.arange(support.size * off.size), max(off.size, 1))
        unequal = (
            np.concatenate([on[a] - on[b], on[i] - keys[off[j]]]),
            np.concatenate([logs[a] - logs[b] - delta, np.full(i.size, level)]),
        )
    rows, rhs = (np.concatenate(x) for x in zip(equal, unequal, strict=True))
    if rhs.size == 0:
        return 0.0
    # Keys are scaled to norm 1 first, since quadprog's tolerances are absolute.
    size = np.abs(keys).max() or 1.0
    try:
        x = quadprog.solve_qp(np.eye(d), np.zeros(d), rows.T / size, rhs, equal[1].size)[0]
    except ValueError:
        return None
    return float(np.linalg.norm(x)) / size


def possible(keys, support, logs, off, form, leak=LEAK, distortion=DISTORTION):
    """Whether HiGHS finds a query, with the offsets c and b as variables."""
    level, delta = -math.log(leak), math.log1p(distortion)
    size = np.abs(keys).max() or 1.0

    def rows(columns, sign, c, b):
        return np.c_[sign * keys[columns] / size, np.tile([c, b], (len(columns), 1))]

    if form == "equality":
        equal, equal_rhs = rows(support, 1, -1, 0), logs
        above, rhs = rows(off, 1, -1, 0), np.full(off.size, logs.min() - level - delta)
    else:
        equal, equal_rhs = None, None
        parts = (
            (rows(support, 1, -1, 0), logs + delta / 2),
            (rows(support, -1, 1, 0), delta / 2 - logs),
            (rows(support, -1, 0, 1), np.full(support.size, -level)),
            (rows(off, 1, 0, -1), np.zeros(off.size)),
        )
        above, rhs = (np.concatenate(x) for x in zip(*parts, strict=True))
    c = np.zeros(keys.shape[1] + 2)
    result = linprog(c, above, rhs, equal, equal_rhs, bounds=(None, None), method="highs")
    assert result.status in (0, 2), result.message
    return result.status == 0


def worst_miss(q, keys, support, logs, off, form, leak=LEAK, distortion=DISTORTION):
    """Return by how much a query violates its constraints, with the best offsets."""
    logits, delta = keys @ q, math.log1p(distortion)
    excess = logits[support] - logs
    spread = np.ptp(excess) - (delta if form == "tolerance" else 0.0)
    if off.size == 0:
        return spread
    if form == "equality":
        need = logs.min() + excess.max() + math.log(leak) - delta
    else:
        need = logits[support].min() + math.log(leak)
    return max(spread, logits[off].max() - need)


# ---------------------------------------------------------------- problems

KINDS = (
    "sphere", "grid", "duplicates", "collinear", "line", "cube",
    "far", "scaled", "one", "full", "tiny n", "wide",
)  # fmt: skip
MASKS = (None, "causal", "dense", "sparse")


def problem(kind, seed, mask_kind=None):
    """Return a target with supports of all sizes, half of them faces, and keys."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    n, d, most = 36, int(rng.integers(2, 11)), 6
    if kind == "wide":
        n, d, most = 200, 40, 8
    if kind == "tiny n":
        n, d = 3, 5
    if kind == "line":
        d = 1
    keys = rng.normal(size=(n, d))
    if kind in ("sphere", "wide", "one"):
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    elif kind == "grid":
        keys = rng.integers(-1, 2, (n, d)).astype(float)
    elif kind == "duplicates":
        keys[rng.integers(0, n, n // 3)] = keys[rng.integers(0, n, n // 3)]
    elif kind == "collinear":
        keys = np.outer(rng.integers(-9, 10, n), rng.integers(-3, 4, d)).astype(float)
    elif kind == "cube":
        keys = np.sign(keys)
    elif kind == "far":
        keys += 100 * rng.normal(size=d)
    elif kind == "scaled":
        keys *= 10.0 ** rng.uniform(-2, 2, d)
    allowed = np.ones((n, n), bool)
    mask = None
    if mask_kind == "causal":
        allowed, mask = np.tri(n, dtype=bool), "causal"
    elif mask_kind is not None:
        allowed = rng.random((n, n)) < 0.6
        np.fill_diagonal(allowed, True)
        mask = sp.csr_array(allowed) if mask_kind == "sparse" else allowed
    A = np.zeros((n, n))
    for i in range(n):
        columns = np.flatnonzero(allowed[i])
        k = {"one": 1, "full": columns.size}.get(kind, int(rng.integers(1, most + 1)))
        if i % 2:  # the extreme keys of some direction
            columns = columns[np.argsort(-(keys[columns] @ rng.normal(size=d)), kind="stable")]
        else:
            columns = rng.permutation(columns)
        weights = rng.uniform(1, 2, min(k, columns.size)) if i % 3 else np.ones(columns[:k].size)
        A[i, columns[:k]] = weights / weights.sum()
    return hf.Target(A, mask=mask), keys


def sphere(rng, n, d):
    keys = rng.normal(size=(n, d))
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def about_threshold(n, k):
    """Return the d with d = 2 k ln(n / d)."""
    d = 2.0 * k
    for _ in range(100):
        d = 0.5 * d + k * math.log(n / d)
    return d


# ---------------------------------------------------------------- the queries


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_against_quadprog_and_highs(kind, form):
    for seed in range(1 if kind == "wide" else 4):
        place = KINDS.index(kind) + seed + FORMS.index(form)
        target, keys = problem(kind, seed, MASKS[place % len(MASKS)])
        q, status, norms, witnesses = queries(target, keys, form)
        for i in range(target.n):
            row = row_of(target, i)
            what = f"{kind} seed {seed} mask {target.mask is not None} row {i}"
            norm = reference_norm(keys, *row, form)
            if status[i] == "optimal":
                assert i not in witnesses
                assert norm == pytest.approx(norms[i], rel=1e-7, abs=1e-12), what
                assert np.linalg.norm(q[i]) == pytest.approx(norms[i], rel=1e-14), what
                size = np.linalg.norm(keys, axis=1).max() * norms[i]
                assert worst_miss(q[i], keys, *row, form) <= 1e-10 * (10 + size), what
            else:
                assert status[i] == "infeasible", what
                assert norm is None, what
                assert not possible(keys, *row, form), what
                proved = witnesses[i].verify(target, keys)
                # The witness proves that no query of moderate norm exists, and claims no more.
                assert proved > 1e5 / np.linalg.norm(keys, axis=1).max(initial=1e-9), what
                assert proved >= 0.9 * min(witnesses[i].norm_bound, 1e300), what
                assert norms[i] == witnesses[i].norm_bound, what


@pytest.mark.parametrize("kind", ["sphere", "grid", "collinear", "cube", "line", "one"])
def test_faces_against_highs(kind):
    for seed in range(2):
        target, keys = problem(kind, seed, MASKS[(seed + KINDS.index(kind)) % 4])
        for i, (verdict, margin, witness) in enumerate(faces(target, keys, range(target.n))):
            support, logs, off = row_of(target, i)
            # The row asks for equal logits on the support and all others 1 lower.
            row = support, np.zeros_like(logs), off
            face = possible(keys, *row, "equality", leak=math.exp(-1), distortion=0)
            assert verdict == ("face" if face else "not a face"), (kind, seed, i)
            if face:
                norm = reference_norm(keys, *row, "equality", leak=math.exp(-1), distortion=0)
                assert 1 / margin == pytest.approx(norm, rel=1e-7) if norm else math.isinf(margin)
            else:
                assert witness.verify(target, keys) > 1e5
                assert witness.residual < 1e-9
                assert {j for j, _ in witness.inside} <= set(support.tolist())
                used = {j for j, _ in witness.with_others}
                assert used - set(support.tolist())
                assert used <= set(support.tolist()) | set(off.tolist())


@pytest.mark.parametrize("form", FORMS)
def test_the_public_fit_is_the_least_norm_up_to_its_share_for_rounding(form):
    rng = np.random.default_rng(5)
    A = hf.patterns.random_regular(96, 3, gamma=2.0, rng=5)
    keys = sphere(rng, 96, 32)
    head = fit(A, keys, form=form)
    assert head.certificate.holds
    assert head.failed_rows.size == 0
    assert head.witnesses == ()
    assert head.method == "max-margin"
    assert head.settings["rows"] == {"optimal": 96}
    assert head.settings["form"] == form
    norms = np.linalg.norm(head.Q, axis=1)
    assert head.settings["largest_query"] == pytest.approx(norms.max())
    target = hf.Target(A)
    for i in range(0, 96, 8):
        row = row_of(target, i)
        loose = reference_norm(keys, *row, form)
        tight = reference_norm(keys, *row, form, leak=0.95 * LEAK, distortion=0.95 * DISTORTION)
        assert loose * (1 - 1e-9) <= norms[i] <= tight * (1 + 1e-9)
        spread = np.ptp(keys[row[0]] @ head.Q[i] - row[1])
        if form == "equality":  # log-ratios are exact up to rounding
            assert spread < 1e-12
        else:  # the tolerance is used if that shortens the query
            assert spread <= math.log1p(DISTORTION)
    assert form == "tolerance" or head.certificate.distortion < 1e-11


def test_equality_is_longer_than_the_tolerance_form():
    A, keys = (
        hf.patterns.random_regular(64, 3, gamma=2.0, rng=1),
        hf.methods.KeyTable.random(64, 24, rng=1),
    )
    tolerance, equality = (np.linalg.norm(fit(A, keys, form=f).Q, axis=1) for f in FORMS)
    assert (equality >= tolerance).all()


def test_known_queries():
    keys = np.array([[0.0], [1.0]])
    for form, norm in (("tolerance", -math.log(LEAK)), ("equality", math.log(1.1 / LEAK))):
        q, status, norms, _ = queries(hf.Target(np.eye(2)), keys, form)
        assert status == ["optimal"] * 2
        np.testing.assert_allclose(q[:, 0], [-norm, norm], rtol=1e-12)
        np.testing.assert_allclose(norms, norm, rtol=1e-12)
    # With full supports only ratios need a query; for equal weights it is zero.
    A = hf.Target([[0.2, 0.8], [0.5, 0.5]])
    for form, saved in (("tolerance", math.log1p(DISTORTION)), ("equality", 0.0)):
        q = queries(A, keys, form)[0]
        np.testing.assert_allclose(q[:, 0], [math.log(4) - saved, 0], rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_the_mask_leaves_empty_asks_for_nothing(form):
    n = 24
    A = hf.patterns.random_regular(n, 2, gamma=2.0, rng=2).toarray()
    mask = np.ones((n, n), bool)
    for i in (0, 7, n - 1):
        A[i], mask[i] = 0.0, False
    for given_mask in (mask, sp.csr_array(mask)):
        target = hf.Target(A, mask=given_mask)
        head = fit(target, hf.methods.KeyTable.random(n, 20, rng=0), form=form)
        assert head.certificate.holds
        assert head.failed_rows.size == 0
        assert not head.Q[[0, 7, n - 1]].any()
        assert head.Q[1].any()


def test_masked_keys_do_not_constrain():
    # Key 1 lies between the others, so row 1 has no query; under a causal mask it sees only key 0.
    keys = np.array([[0.0], [1.0], [2.0]])
    assert fit(np.eye(3), keys, mask="causal").certificate.holds
    head = fit(np.eye(3), keys)
    assert head.failed_rows.tolist() == [1]
    assert head.certificate.failed_rows.tolist() == [1]


def test_the_result_does_not_depend_on_threads():
    n = 420  # more rows than are solved at once
    A = hf.patterns.random_regular(n, 4, gamma=2.0, rng=3)
    table = hf.methods.KeyTable.random(n, 20, rng=3)  # some rows have no query
    for form in FORMS:
        first, *others = (fit(A, table, form=form, num_threads=t) for t in (1, 2, 3))
        assert 0 < first.failed_rows.size < n
        for other in others:
            assert other.Q.tobytes() == first.Q.tobytes()
            assert other.failed_rows.tobytes() == first.failed_rows.tobytes()
            assert other.witnesses == first.witnesses


def test_failed_rows_have_zero_queries_and_the_others_are_certified():
    n = 200
    A = hf.patterns.random_regular(n, 4, gamma=2.0, rng=4)
    head = fit(A, hf.methods.KeyTable.random(n, 20, rng=4), dtype="float32")
    failed = head.failed_rows
    assert 0 < failed.size < n
    assert not head.Q[failed].any()
    assert np.abs(head.Q).sum(axis=1)[np.setdiff1d(np.arange(n), failed)].all()
    assert head.certificate.failed_rows.tolist() == failed.tolist()
    assert head.status == "fails"
    with pytest.raises(hf.errors.CertificateError):
        fit(A, hf.methods.KeyTable.random(n, 20, rng=4), strict=True)
    target, rows = hf.Target(A), set(failed.tolist())
    assert {w.row for w in head.witnesses if w.kind == "farkas"} == rows
    assert {w.row for w in head.witnesses if w.kind == "not a face"} <= rows
    for w in head.witnesses[::5]:
        assert w.verify(target, head.K) > 1e5
    assert head.settings["rows"] == {"infeasible": failed.size, "optimal": n - failed.size}


@pytest.mark.parametrize(("n", "k"), [(256, 3), (512, 3), (256, 4), (512, 4)])
def test_optimal_rows_certify_after_rounding_to_float32(n, k):
    near = about_threshold(n, k)
    every = 0
    for seed in range(2):
        A = hf.patterns.random_regular(n, k, gamma=2.0, rng=seed)
        for factor, form in ((0.8, FORMS[0]), (1.0, FORMS[1]), (1.3, FORMS[seed]), (2, FORMS[0])):
            table = hf.methods.KeyTable.random(n, round(factor * near), rng=seed)
            # Multiplying by a scale that is not a power of two adds a rounding.
            head = fit(A, table, form=form, dtype="float32", scale=None, certificate_mass=False)
            assert head.Q.dtype == np.float32
            assert head.certificate.failed_rows.tolist() == head.failed_rows.tolist()
            assert head.certificate.undecided_rows.size == 0
            assert head.certificate.holds == (head.failed_rows.size == 0)
            every += head.certificate.holds
        assert head.certificate.holds  # at twice the threshold
    assert every >= 2


def test_a_search_over_dim():
    A = hf.patterns.random_regular(128, 3, gamma=2.0, rng=0)
    head = hf.fit(
        A, method=hf.methods.MaxMargin(keys="random"), certificate_mass=False, num_threads=1
    )
    assert head.certificate.holds
    tried = {t.dim: t.holds for t in head.search.trials}
    assert head.dim == head.search.dim == min(d for d, holds in tried.items() if holds)
    assert tried[head.dim - 1] is False
    assert head.Q.shape == (128, head.dim)
    assert 6 <= head.dim < 4 * about_threshold(128, 3)
    again = hf.fit(A, head.dim, method=hf.methods.MaxMargin(keys="random"), num_threads=1)
    assert (again.Q == head.Q).all()
    assert (again.K == head.K).all()


def test_a_module_keeps_its_dim_and_scale():
    rng = np.random.default_rng(0)
    n, d = 32, 20
    module = hf.SelfAttention(rng.normal(size=(2 * d, d)), rng.normal(size=(2 * d, d)), 0.3)
    A = hf.patterns.random_regular(n, 2, gamma=2.0, rng=0)
    head = hf.fit(A, method="max-margin", module=module, dtype="float64")
    assert (head.dim, head.scale) == (d, 0.3)
    assert head.certificate.holds
    assert hf.certify(A, module(head.X), leak=LEAK, distortion=DISTORTION).holds
    with pytest.raises(hf.errors.InputError, match="dim must be that of the keys"):
        hf.fit(
            A, method=hf.methods.MaxMargin(keys=np.ones((n, d + 1))), module=module, dtype="float64"
        )


# ---------------------------------------------------------------- witnesses


def between(form="tolerance"):
    """Return a problem in which key 0 lies between the others, so that row 0 has no query."""
    target, keys = hf.Target(np.eye(3)), np.array([[0.0], [1.0], [-1.0]])
    head = fit(target, keys, form=form)
    farkas, face = head.witnesses
    assert (farkas.kind, face.kind) == ("farkas", "not a face")
    assert (farkas.row, face.row) == (0, 0)
    return target, keys, farkas, face


@pytest.mark.parametrize("form", FORMS)
def test_exact_witnesses_exclude_every_norm(form):
    target, keys, farkas, face = between(form)
    assert isinstance(farkas, hf.results.FarkasWitness)
    assert isinstance(face, hf.results.FaceWitness)
    assert farkas.residual == face.residual == 0
    assert farkas.verify(target, keys) == face.verify(target, keys) == math.inf
    # A witness is about the tolerances that were asked for.
    assert farkas.leak == LEAK
    assert farkas.distortion == DISTORTION
    assert "need ||q|| >=" in repr(farkas)
    assert "not a face" in repr(face)


@pytest.mark.parametrize("form", FORMS)
def test_tampered_farkas_witnesses_are_rejected(form):
    target, keys, farkas, _ = between(form)
    outside = next(t for t in farkas.terms if t.kind == "outside")
    support = next(t for t in farkas.terms if t.kind != "outside")
    rest = tuple(t for t in farkas.terms if t is not outside)
    tampered = [
        replace(farkas, terms=()),
        replace(farkas, terms=rest),
        replace(farkas, terms=(*rest, replace(outside, value=-outside.value))),
        replace(farkas, terms=(*rest, replace(outside, value=2 * outside.value))),
        replace(farkas, terms=(*rest, replace(outside, value=math.nextafter(outside.value, 9)))),
        replace(farkas, terms=(*rest, replace(outside, column=0))),
        replace(farkas, terms=(*rest, replace(outside, kind="margin"))),
        replace(farkas, terms=(outside, replace(support, column=1))),
        replace(farkas, row=1),
        replace(farkas, leak=1.5, distortion=1e-9),
    ]
    for witness in tampered:
        with pytest.raises(hf.HeadfitError):
            witness.verify(target, keys)
    # With other keys the row has a query, and what the witness still proves must be true for it.
    moved = keys + np.array([[1.5], [0.0], [0.0]])
    assert farkas.verify(target, moved) <= reference_norm(moved, *row_of(target, 0), form)


def test_tampered_face_witnesses_are_rejected():
    target, keys, _, face = between()
    tampered = [
        replace(face, inside=()),
        replace(face, with_others=()),
        replace(face, inside=((1, 1.0),)),
        replace(face, with_others=((0, 1.0),)),
        replace(face, with_others=((1, 1.5), (2, -0.5))),
        replace(face, row=1),
    ]
    for witness in tampered:
        with pytest.raises(hf.HeadfitError):
            witness.verify(target, keys)
    assert replace(face, with_others=((1, 1.0),)).verify(target, keys) == 1.0


ONE_MASKED = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1]], bool)


@pytest.mark.parametrize("kind", ["farkas", "not a face"])
@pytest.mark.parametrize(
    ("keys", "mask", "row", "column"),
    [([0.0, 1.0], None, 1, -1), ([0.0, 0.0, 1.0], ONE_MASKED, 0, 1)],
    ids=["negative", "masked"],
)
def test_a_column_that_a_row_does_not_have_is_rejected(kind, keys, mask, row, column):
    target, keys = hf.Target(np.eye(len(keys)), mask=mask), np.array(keys)[:, None]
    assert fit(target, keys).certificate.holds
    terms = (Multiplier("margin", row, 1.0), Multiplier("outside", column, 1.0))
    shares = ((row, 1.0),), ((column, 1.0),)
    forged = {
        "farkas": hf.results.FarkasWitness(row, terms, 0.0, 3.0, math.inf, LEAK, DISTORTION, False),
        "not a face": hf.results.FaceWitness(row, *shares, 0.0, 1.0, math.inf),
    }[kind]
    with pytest.raises(hf.HeadfitError):
        forged.verify(target, keys)


# For three keys on a line, the weights are not log-linear but within a distortion of 3 of that.
BENT = hf.Target(np.array([[0.25, 0.5, 0.25, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))
BENT_KEYS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [1.0, -1.0]])


def test_inconsistent_ratios_are_no_matter_of_faces():
    assert faces(BENT, BENT_KEYS, [0])[0][0] == "face"
    head = fit(BENT, BENT_KEYS, form="equality", distortion=3.0)
    assert [w.kind for w in head.witnesses if w.row == 0] == ["farkas"]
    assert {t.kind for t in head.witnesses[0].terms} == {"ratio equal"}
    assert head.witnesses[0].verify(BENT, BENT_KEYS) == math.inf
    assert 0 not in fit(BENT, BENT_KEYS, distortion=3.0).failed_rows


def test_constraints_of_the_other_form_are_rejected():
    equality = fit(BENT, BENT_KEYS, form="equality", distortion=3.0).witnesses[0]
    with pytest.raises(hf.HeadfitError):  # a query for the tolerance form exists, see above
        replace(equality, equality=False).verify(BENT, BENT_KEYS)


def test_a_margin_in_the_equality_form_is_rejected():
    target, keys = hf.Target(np.eye(2)), np.array([[0.0], [1.0]])
    assert fit(target, keys, form="equality").certificate.holds
    terms = (Multiplier("margin", 1, 1.0), Multiplier("ratio upper", 1, 1.0))
    with pytest.raises(hf.HeadfitError):
        hf.results.FarkasWitness(1, terms, 0.0, 3.0, math.inf, LEAK, DISTORTION, True).verify(
            target, keys
        )


@pytest.mark.parametrize(
    "change",
    [
        {"terms": (Multiplier("margin", 0, 1.0), Multiplier("outside", 9, 1.0))},
        {"terms": (Multiplier("margin", 0, math.nan), Multiplier("outside", 1, 1.0))},
        {"terms": (Multiplier("margin", 0, math.inf), Multiplier("outside", 1, math.inf))},
        {"terms": (Multiplier("none such", 0, 1.0), Multiplier("outside", 1, 1.0))},
        {"row": 9},
        {"row": -1},
        {"leak": 0.0},
    ],
)
def test_nonsense_in_a_witness_is_a_headfit_error(change):
    target, keys, farkas, _ = between()
    with pytest.raises(hf.HeadfitError):
        replace(farkas, **change).verify(target, keys)


def test_a_farkas_witness_says_no_more_than_is_true():
    # Its bound at other tolerances stays below the norm that is needed there.
    target, keys = problem("sphere", 3)
    checked = 0
    for form in FORMS:
        for witness in queries(target, keys, form, leak=1e-3, distortion=0.02)[3].values():
            row = row_of(target, witness.row)
            loose = replace(witness, leak=0.5, distortion=2.0)
            norm = reference_norm(keys, *row, form, leak=0.5, distortion=2.0)
            try:
                proved = loose.verify(target, keys)
            except hf.HeadfitError:
                continue
            assert norm is None or proved <= norm * (1 + 1e-9)
            checked += 1
    assert checked > 5


def test_not_a_face_yet_possible_at_this_tolerance():
    # Key 1 lies between key 2, also in the support of row 1, and key 0: the support is no face.
    # The weights ask for a gap of log 24 between the logits of keys 2 and 1, up to the distortion.
    # The keys are equidistant on a line, so the gap between keys 1 and 0 is the same: a leak of
    # e^-3.08 for the shortest query.
    keys = np.array([[0.0], [1.0], [2.0]])
    target = hf.Target(np.array([[1, 0, 0], [0, 0.04, 0.96], [0, 0, 1]]))
    [(verdict, _, witness)] = faces(target, keys, [1])
    assert verdict == "not a face"
    assert witness.verify(target, keys) == math.inf
    head = fit(target, keys, leak=math.exp(-3.0))
    assert head.certificate.holds
    assert head.witnesses == ()
    head = fit(target, keys, leak=math.exp(-3.5))
    assert head.failed_rows.tolist() == [1]
    assert [w.kind for w in head.witnesses] == ["farkas", "not a face"]
    # A Farkas witness proves nothing for a looser leak; a face witness does not depend on the leak.
    farkas, face = head.witnesses
    assert face.verify(target, keys) == math.inf
    with pytest.raises(hf.HeadfitError):
        replace(farkas, leak=math.exp(-3.0)).verify(target, keys)


@pytest.mark.parametrize("form", FORMS)
def test_a_norm_limit_is_a_proof(form):
    rng = np.random.default_rng(6)
    target = hf.Target(hf.patterns.random_regular(80, 3, gamma=2.0, rng=6))
    keys = sphere(rng, 80, 24)
    free_q, free_status, free_norms, _ = queries(target, keys, form)
    assert set(free_status) == {"optimal"}
    limit = float(np.median(free_norms))
    q, status, norms, witnesses = queries(target, keys, form, max_norm=limit)
    assert set(status) == {"optimal", "norm limit"}
    for i in range(80):
        assert (status[i] == "optimal") == (free_norms[i] <= limit)
        if status[i] == "optimal":
            assert (q[i] == free_q[i]).all()
        else:
            proved = witnesses[i].verify(target, keys)
            assert limit * (1 - 1e-9) <= proved <= free_norms[i] * (1 + 1e-12)
            assert proved == pytest.approx(norms[i], rel=1e-9)


def test_max_norm_bounds_query_times_longest_key():
    A = hf.patterns.random_regular(64, 3, gamma=2.0, rng=7)
    keys = 5 * np.random.default_rng(7).normal(size=(64, 24))
    longest = np.linalg.norm(keys, axis=1).max()
    free = fit(A, keys)
    assert free.failed_rows.size == 0
    needed = np.linalg.norm(free.Q, axis=1) * longest
    limit = float(np.median(needed))
    head = fit(A, keys, max_norm=limit)
    assert head.failed_rows.tolist() == np.flatnonzero(needed > limit).tolist()
    assert (np.linalg.norm(head.Q, axis=1) * longest).max() <= limit * (1 + 1e-12)
    assert not head.Q[head.failed_rows].any()
    assert set(head.settings["rows"]) == {"norm limit", "optimal"}
    # Their supports are faces; only the norm of the queries is too large.
    assert {w.kind for w in head.witnesses} == {"farkas"}
    for w in head.witnesses:
        assert limit * (1 - 1e-9) <= w.verify(A, keys) * longest <= needed[w.row] * (1 + 1e-9)


# ---------------------------------------------------------------- key tables


def test_a_table_is_made_once_and_never_changes():
    table = hf.methods.KeyTable.random(64, 24, rng=5)
    assert (table.keys == hf.methods.KeyTable.random(64, 24, rng=5).keys).all()
    assert (table.keys != hf.methods.KeyTable.random(64, 24, rng=6).keys).all()
    assert (table.n, table.dim, table.kind, table.keys.dtype) == (64, 24, "random", np.float32)
    np.testing.assert_allclose(np.linalg.norm(table.keys, axis=1), 1, rtol=1e-6)
    assert not table.keys.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        table.keys[0, 0] = 1.0
    with pytest.raises(AttributeError):
        table.keys = np.ones((64, 24))
    before = table.keys.tobytes()
    heads = [
        fit(hf.patterns.random_regular(64, k, gamma=2.0, rng=k), table, dtype=dtype)
        for k, dtype in ((2, "float32"), (3, "float64"))
    ]
    assert all(h.certificate.holds for h in heads)
    assert table.keys.tobytes() == before
    assert all(h.K.tobytes() == table.keys.astype(h.K.dtype).tobytes() for h in heads)
    assert "random" in repr(table)


def test_a_table_of_given_keys_is_a_copy():
    keys = np.random.default_rng(0).normal(size=(8, 4))
    table = hf.methods.KeyTable(keys)
    assert (table.kind, table.keys.dtype) == ("given", np.float64)
    kept = keys.copy()
    keys[:] = 0
    assert (table.keys == kept).all()
    fortran = hf.methods.KeyTable(np.asfortranarray(kept))
    head = [fit(np.eye(8), t, dtype="float64") for t in (table, fortran, kept)]
    assert head[0].Q.tobytes() == head[1].Q.tobytes() == head[2].Q.tobytes()


def test_named_random_keys_are_those_of_the_seed():
    A = hf.patterns.random_regular(32, 2, rng=0)
    first, again, other = (
        hf.fit(A, 16, method=hf.methods.MaxMargin(keys="random"), rng=s) for s in (3, 3, 4)
    )
    assert first.K.tobytes() == again.K.tobytes() != other.K.tobytes()
    assert first.Q.tobytes() == again.Q.tobytes()


@pytest.mark.parametrize(("n", "k"), [(9, 2), (8, 3), (13, 3), (12, 4)])
def test_cyclic_keys_serve_every_pattern_at_twice_k(n, k):
    table = hf.methods.KeyTable.cyclic(n, 2 * k)
    assert table.keys.dtype == np.float64
    subsets = np.array([s for s in np.ndindex(*(n,) * k) if all(np.diff(s) > 0)])
    assert len(subsets) == math.comb(n, k)
    rng = np.random.default_rng(0)
    for first in range(0, len(subsets), n):
        A = np.zeros((n, n))
        for i, s in enumerate(subsets[np.arange(first, first + n) % len(subsets)]):
            weights = rng.uniform(1, 2, k)
            A[i, s] = weights / weights.sum()
        head = fit(A, table, form=FORMS[first // n % 2], certificate_mass=False)
        assert head.certificate.holds, (first, head)


def test_cyclic_keys_survive_float64_only_and_the_certificate_says_so():
    A = hf.patterns.random_regular(64, 4, gamma=2.0, rng=0)
    wide = fit(A, hf.methods.KeyTable.cyclic(64, 8))
    assert wide.certificate.holds
    assert np.linalg.norm(wide.Q, axis=1).max() > 1e5
    for keys in ("cyclic", hf.methods.KeyTable.cyclic(64, 8, dtype="float32")):
        narrow = fit(A, keys, dim=8, dtype="float32")
        assert narrow.K.dtype == np.float32
        assert narrow.status == "fails"
        assert narrow.certificate.failed_rows.size > 0


# ---------------------------------------------------------------- properties


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(4, 30),
    k=st.integers(1, 3),
    t=st.floats(0.01, 3),
)
def test_the_face_normal_alone_tightens_the_leak(seed, n, k, t):
    """Adding t times a face normal, which is constant on the support, divides the leak by e^t."""
    rng = np.random.default_rng(seed)
    keys = sphere(rng, n, n + 2)  # every support is a face
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=rng)
    even = sp.csr_array((np.full_like(A.data, 1 / k), A.indices, A.indptr), shape=A.shape)
    normal = fit(even, keys, form="equality", leak=math.exp(-1), distortion=1e-3)
    ratios = fit(A, keys, form="equality", leak=0.5)
    m, r = normal.Q, ratios.Q
    before = hf.certify(A, hf.Attention(r, keys, scale=1.0))
    after = hf.certify(A, hf.Attention(r + t * m, keys, scale=1.0))
    # Every entry off a support falls by the normal's margin, at least 1, times t.
    assert after.leak <= before.leak * math.exp(-t) * (1 + 1e-9)
    assert before.distortion < 1e-9
    assert after.distortion < 1e-9
    # The normal keeps any ratios, those of a random query as well.
    free = rng.normal(size=r.shape)
    before = hf.certify(A, hf.Attention(free, keys, scale=1.0))
    after = hf.certify(A, hf.Attention(free + t * m, keys, scale=1.0))
    assert after.distortion == pytest.approx(before.distortion, rel=1e-9, abs=1e-9)
    assert after.leak < before.leak


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS[:-1]),
    form=st.sampled_from(FORMS),
    mask_kind=st.sampled_from((None, "dense", "sparse")),
)
def test_permuting_tokens_and_keys_permutes_the_queries(seed, kind, form, mask_kind):
    target, keys = problem(kind, seed, mask_kind)
    p = np.random.default_rng(seed).permutation(target.n)
    A, mask = target.matrix.toarray(), target.mask
    if mask is not None:
        mask = allowed_by(mask, target.n)[p][:, p]
        mask = sp.csr_array(mask) if mask_kind == "sparse" else mask
    moved = hf.Target(A[p][:, p], mask=mask)
    q, status, norms, _ = queries(target, keys, form)
    moved_q, moved_status, moved_norms, _ = queries(moved, keys[p], form)
    assert moved_status == [status[i] for i in p]
    good = np.array([s == "optimal" for s in moved_status])
    np.testing.assert_allclose(moved_norms[good], norms[p][good], rtol=1e-8, atol=1e-12)
    size = max(norms[p][good].max(initial=0.0), 1e-300)
    # The point of least norm is unique, but its error is the square root of that of its norm.
    np.testing.assert_allclose(moved_q[good] / size, q[p][good] / size, atol=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), form=st.sampled_from(FORMS), power=st.integers(-60, 60))
def test_scaling_and_moving_keys_and_turning_them(seed, form, power):
    rng = np.random.default_rng(seed)
    n, d = 30, 12
    target = hf.Target(hf.patterns.random_regular(n, 2, gamma=2.0, rng=rng))
    keys = sphere(rng, n, d)
    _, status, norms, _ = queries(target, keys, form)
    good = np.array([s == "optimal" for s in status])
    # The closer a row is to impossible, the longer its query and the more rounding shows.
    rtol = 1e-9 * max(1.0, norms[good].max(initial=0.0))
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    for other, factor in (
        (keys * 2.0**power, 2.0**-power),
        (keys + rng.normal(size=d), 1.0),
        (keys @ turn, 1.0),
    ):
        _, other_status, other_norms, _ = queries(target, other, form)
        assert other_status == status
        np.testing.assert_allclose(other_norms[good], factor * norms[good], rtol=rtol)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_given_keys_are_rounded_before_anything_is_proved(dtype: str) -> None:
    A, table = (
        hf.patterns.random_regular(64, 4, gamma=2.0, rng=0),
        hf.methods.KeyTable.cyclic(64, 8),
    )
    head = hf.fit(A, method=hf.methods.MaxMargin(keys=table), dtype=dtype)
    np.testing.assert_array_equal(head.K, arrays.round_to(table.keys, dtype))
    again = hf.methods.MaxMargin(
        keys=hf.methods.KeyTable(arrays.round_to(table.keys, dtype), kind="cyclic")
    )
    np.testing.assert_array_equal(head.Q, hf.fit(A, method=again, dtype=dtype).Q)
    assert all(proof.verify(A, head.K) > 0 for proof in head.witnesses)


# ---------------------------------------------------------------- arguments

A32 = hf.patterns.random_regular(32, 3, gamma=2.0, rng=0)


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        (np.ones((31, 4)), {}, "one row for each of the 32 rows of A; got 31"),
        (np.ones(32), {}, "keys must have at least 2 axes"),
        (np.ones((32, 4, 1)), {}, "keys must be a matrix"),
        (np.ones((32, 0)), {}, "keys must have at least one column"),
        (np.ones((32, 4), complex), {}, "keys must hold real numbers"),
        (np.full((32, 4), np.nan), {}, "keys must be finite; got nan at row 0, column 0"),
        (None, {}, "keys must hold real numbers"),
        ("halton", {"dim": 8}, '"random", "cyclic", an array or a KeyTable'),
        ("halton", {}, '"random", "cyclic", an array or a KeyTable'),
        ("cyclic", {"dim": 7}, "cyclic keys need an even dim; got 7"),
        ("cyclic", {"dim": 8, "exempt_columns": [3]}, "an even dim + 1 for exempt columns; got 8"),
        (np.ones((32, 4)), {"dim": 5}, "dim must be that of the keys, 4, or not given; got 5"),
        (
            np.ones((32, 4)),
            {"dim": 7, "exempt_columns": [0, 1]},
            "dim must be that of the keys, 4 + 2 for exempt columns, or not given; got 7",
        ),
        (
            np.full((32, 4), 1e300),
            {"dtype": "float32"},
            "keys must fit float32; got numbers up to 1e+300",
        ),
        (
            np.full((32, 4), 7e4),
            {"dtype": "float16"},
            "keys must fit float16; got numbers up to 7e+04",
        ),
        (hf.methods.KeyTable.random(31, 4), {}, "got 31"),
        ("random", {"dim": 8, "form": "soft"}, "form must be one of"),
        ("random", {"dim": 0}, "dim must be an integer of at least 1"),
        ("random", {"dim": 8, "max_norm": 0}, "max_norm must lie strictly between"),
        ("random", {"dim": 8, "max_norm": math.nan}, "max_norm must lie strictly between"),
        ("random", {"dim": 8, "max_norm": "far"}, "max_norm must be a number"),
        ("random", {"dim": 8, "distortion": 0}, "distortion must be above 0"),
        ("random", {"dim": 8, "leak": 1}, "leak must lie strictly between"),
    ],
)
def test_bad_arguments(keys, options, message):
    with pytest.raises(hf.errors.InputError) as error:
        fit(A32, keys, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (hf.methods.KeyTable.random, (0, 3), "n must lie in 1 ..."),
        (hf.methods.KeyTable.random, (3, 2.5), "dim must be an integer of at least 1"),
        (hf.methods.KeyTable.cyclic, (3, -2), "dim must be an integer of at least 1"),
        (hf.methods.KeyTable.cyclic, (3, 3), "cyclic keys need an even dim; got 3"),
        (hf.methods.KeyTable, (np.ones((3, 0)),), "at least one column"),
        (hf.methods.KeyTable, ([[1.0, math.inf]],), "keys must be finite"),
    ],
)
def test_bad_tables(make, arguments, message):
    with pytest.raises(hf.errors.InputError) as error:
        make(*arguments)
    assert message in str(error.value)


def test_equal_keys_fail_every_row_that_needs_a_margin():
    head = fit(A32, np.zeros((32, 4)))
    assert head.failed_rows.size == 32
    assert head.status == "fails"
    assert not head.Q.any()
    for w in head.witnesses:
        assert w.verify(A32, head.K) == math.inf


def test_equal_keys_at_the_origin_with_a_norm_limit():
    assert fit(A32, np.zeros((32, 4)), max_norm=10.0).failed_rows.size == 32


def test_a_search_over_cyclic_keys():
    head = fit(A32, "cyclic")
    assert head.certificate.holds
    assert head.dim % 2 == 0


def test_a_table_has_float_keys():
    with pytest.raises(hf.errors.InputError, match="dtype"):
        hf.methods.KeyTable.random(8, 4, dtype="int32")


def test_witnesses_are_exact_statements():
    """A second, independent check of a witness: sums of Fractions over all constraints."""
    target, keys = problem("sphere", 1)
    level = Fraction(-math.log(LEAK))
    half = Fraction(math.log1p(DISTORTION)) / 2
    for witness in queries(target, keys)[3].values():
        support, logs, _ = row_of(target, witness.row)
        log = dict(zip(support.tolist(), (Fraction(float(x)) for x in logs), strict=True))
        normal = [Fraction(0)] * keys.shape[1]
        c = b = bound = Fraction(0)
        for term in witness.terms:
            value = Fraction(term.value)
            assert value > 0
            assert (term.column in log) == (term.kind != "outside")
            side = 1 if term.kind in ("ratio lower", "margin") else -1  # the sign of q.k
            key = keys[term.column]
            normal = [x + side * value * Fraction(y) for x, y in zip(normal, key, strict=True)]
            if term.kind in ("ratio upper", "ratio lower"):
                c -= side * value
                bound += value * (side * log[term.column] - half)
            else:
                b -= side * value
                bound += value * level if term.kind == "margin" else 0
        assert c == b == 0
        assert bound > 0
        square = sum(x * x for x in normal)
        # |q| >= bound / |normal|, up to the slack that verify leaves for the logarithms.
        proved = Fraction(min(witness.verify(target, keys), 1e300))
        assert proved**2 * square <= bound**2
        assert float(bound) == pytest.approx(witness.gap, rel=1e-9)


def test_the_error_of_a_large_distortion_is_within_the_bound() -> None:
    """Of two keys that are one number each, the gap must be log(1 + distortion) - log(leak)."""
    terms = Multiplier("ratio equal", 0, -1.0), Multiplier("outside", 1, 1.0)
    with localcontext(prec=60):
        for exponent in range(100, 308):
            distortion = float(f"1e{exponent}")
            witness = hf.results.FarkasWitness(0, terms, 0.0, 0.0, 0.0, 0.5, distortion, True)
            least = (1 + Decimal(distortion)).ln() - Decimal("0.5").ln()
            assert Decimal(witness.verify(np.eye(2), [[1.0], [0.0]])) <= least
