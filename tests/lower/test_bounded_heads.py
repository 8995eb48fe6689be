"""Lower bounds for bounded norms and logits, held against heads that are certified."""

import csv
import dataclasses
import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.references import allowed_by

import headfit as hf
from headfit._base.arrays import round_to
from headfit._lower.bounded import Apart, Facts, Groups, Limits, Separated, needed
from headfit._lower.exact import (
    least_dim,
    log_above,
    log_below,
    log_code,
    log_factorial,
    log_most,
    root_above,
)
from headfit._lower.family_search import NAMES, bounded
from headfit._lower.general import counting, every_subset, log_regular_patterns
from headfit._lower.lower import lower
from headfit._lower.problem import Problem
from headfit.errors import InputError

P = hf.patterns
TAU = math.log(20)  # ln(1 / leak) for the default leak


def of_bounded(bound):
    return [c for c in bound.candidates if c.name in NAMES]


def softmax_target(Q, K, allowed, sizes):
    """Return the target that a head meets with distortion 0, and the leak that it has.

    Row i attends to its sizes[i] best visible columns.
    """
    S = np.where(allowed, Q @ K.T, -np.inf)
    A, leak = np.zeros(S.shape), 0.0
    for i, size in enumerate(sizes):
        order = np.argsort(-S[i])
        seen = int(allowed[i].sum())
        size = min(size, seen)
        if size == 0:
            continue
        weights = np.exp(S[i, order[:size]] - S[i, order[0]])
        A[i, order[:size]] = weights / weights.sum()
        if size < seen:
            leak = max(leak, math.exp(S[i, order[size]] - S[i, order[size - 1]]))
    return sp.csr_array(A), leak


# Numbers: logarithms, roots and packings.


@given(st.fractions(min_value=Fraction(1, 1000), max_value=10**6))
def test_logarithms_and_roots_are_enclosed(x):
    assert log_below(x) <= log_above(x)
    assert float(log_above(x) - log_below(x)) <= 1e-35 * max(1.0, abs(math.log(x)))
    assert float(log_below(x)) == pytest.approx(math.log(x), abs=1e-12)
    assert root_above(x) ** 2 >= x
    assert (root_above(x) - Fraction(2, 2**60)) ** 2 <= x or root_above(x) <= Fraction(2, 2**60)
    assert log_below(1) == log_above(1) == 0


def test_factorials_are_enclosed_by_stirling():
    mpmath = pytest.importorskip("mpmath")
    for n in (0, 1, 5, 1000, 1001, 30_000):
        low, high = log_factorial(n)
        with mpmath.workdps(50):
            exact = mpmath.loggamma(n + 1)
            assert mpmath.mpf(low.numerator) / low.denominator <= exact
            assert exact <= mpmath.mpf(high.numerator) / high.denominator
        assert high - low < Fraction(1, 10**6)


@pytest.mark.parametrize(
    ("dim", "cosine", "points"),
    [  # codes that exist, and for which the bound is known to be sharp
        (3, Fraction(0), 6), (4, Fraction(-1, 4), 5), (5, Fraction(1, 5), 16),
        (6, Fraction(1, 4), 27), (7, Fraction(1, 3), 56), (8, Fraction(1, 2), 240),
        (21, Fraction(1, 7), 162), (22, Fraction(1, 6), 275), (22, Fraction(1, 4), 891),
        (23, Fraction(1, 5), 552), (23, Fraction(1, 3), 4600), (24, Fraction(1, 2), 196560),
    ],
)  # fmt: skip
def test_sharp_spherical_codes(dim, cosine, points):
    assert math.exp(log_code(dim, cosine)) == pytest.approx(points, rel=1e-5)


def test_packings_admit_points_that_exist():
    rng = np.random.default_rng(0)
    for _ in range(60):
        d, m = int(rng.integers(1, 7)), int(rng.integers(2, 60))
        x = rng.normal(size=(m, d))
        if rng.random() < 0.5:
            x /= np.linalg.norm(x, axis=1, keepdims=True)
        if rng.random() < 0.3:
            x = np.round(2 * x)
        x = np.unique(np.round(x, 6), axis=0)
        for _ in range(50):  # push the closest pair apart
            gaps = np.linalg.norm(x[:, None] - x, axis=2) + 9 * np.eye(len(x))
            i, j = np.unravel_index(gaps.argmin(), gaps.shape)
            x = x.astype(float)
            x[i] += 0.1 * (x[i] - x[j])
        gaps = np.linalg.norm(x[:, None] - x, axis=2) + 9 * np.eye(len(x))
        square = Fraction((np.linalg.norm(x, axis=1).max() / gaps.min()) ** 2 * (1 + 1e-9))
        assert math.log(len(x)) <= log_most(d, square)[0] + 1e-12


def test_packings_of_simplices_cross_polytopes_and_lattices_are_sharp():
    for m in (2, 3, 8):
        square = Fraction(m - 1, 2 * m)  # of a simplex with m corners
        assert least_dim(lambda d, q=square: log_most(d, q), m, m)[0] == m - 1
        short = square - Fraction(1, 10**9)
        assert least_dim(lambda d, q=short: log_most(d, q), m, m)[0] == m + 1
    for d in (2, 5, 9):  # a cross-polytope has 2 d corners, with q = 1/2
        assert least_dim(lambda d: log_most(d, Fraction(1, 2)), 2 * d, 2 * d)[0] == d
    assert log_most(1, Fraction(25, 4))[0] == log_above(6)  # six points on a segment


# Families and what they prove.


def test_identity_needs_as_much_norm_as_a_simplex_has():
    n = 9
    A = sp.eye_array(n, format="csr")
    least = (n - 1) / n * TAU  # of a simplex
    assert lower(A, max_norm=least * (1 - 1e-9)).impossible
    bound = lower(A, max_norm=least * (1 + 1e-9))
    assert (bound.dim, bound.impossible) == (n - 1, False)
    assert bound.verify(A)
    x = np.eye(n) - 1 / n
    x *= math.sqrt(TAU * (1 + 1e-9))
    certificate = hf.certify(A, x, x, scale=1.0)
    assert certificate.holds
    assert certificate.max_norm == pytest.approx(least, rel=1e-6)


def test_cross_polytope_is_the_smallest_head_of_its_norm():
    d = 6
    corners = np.concatenate([np.eye(d), -np.eye(d)])
    A = sp.eye_array(2 * d, format="csr")
    norm = TAU * (1 + 1e-12)
    assert hf.certify(A, norm * corners, corners, scale=1.0).holds
    assert lower(A, max_norm=norm).dim <= d
    assert lower(A, max_norm=TAU * (1 - 1e-12)).dim > d


def test_range_of_the_logits_is_sharp_for_a_grid():
    # Keys on a grid, and for each step of each coordinate a row that attends to what lies above.
    side, d = 4, 2
    keys = np.array(list(itertools.product(range(side), repeat=d)), float)
    cuts = [(c, t) for c in range(d) for t in range(1, side)]
    cuts += cuts[:1] * (len(keys) - len(cuts))
    A = np.array([[float(k[c] >= t) for k in keys] for c, t in cuts])
    A /= A.sum(axis=1, keepdims=True)
    S = np.array([[(k[c] - (side - 1) / 2) for k in keys] for c, t in cuts])
    B = (side - 1) / 2 * TAU * (1 + 1e-12)
    u, s, vt = np.linalg.svd(S)
    Q, K = B / ((side - 1) / 2) * u[:, :d] * s[:d], vt[:d].T
    head = hf.certify(A, Q, K, scale=1.0, max_logit=B * (1 + 1e-9), distortion=1e4)
    assert head.holds
    bound = lower(A, max_logit=B * (1 + 1e-9), distortion=1e4)
    assert max(c.dim for c in of_bounded(bound)) == d
    tight = lower(A, max_logit=B * (1 - 1e-9), distortion=1e4)
    assert max(c.dim for c in of_bounded(tight)) > d


@given(st.integers(0, 10**6))
def test_no_bound_exceeds_a_head(seed):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 14)), int(rng.integers(1, 5))
    dense = rng.random((n, n)) < 0.7
    dense |= np.eye(n, dtype=bool)
    mask = [None, None, "causal", ("window", 4), dense][rng.integers(5)]
    K = rng.normal(size=(n, d))
    kind = rng.integers(3)
    if kind:
        K /= np.linalg.norm(K, axis=1, keepdims=True)
    Q = K + (0.3 * rng.normal(size=K.shape) if kind == 2 else 0)
    allowed = allowed_by(mask, n)
    sizes = rng.integers(1, 1 + min(n, int(rng.integers(1, 4))), size=n)
    A, leak = softmax_target(Q, K, allowed, sizes)
    if not 1e-9 < leak < 0.999:
        return
    leak = min(0.9999, leak * (1 + 1e-9))
    head = hf.certify(A, Q, K, scale=1.0, mask=mask, leak=leak, distortion=1e-3)
    assert head.holds
    logits = np.abs(Q @ K.T)
    everywhere = float(logits.max()) * (1 + 1e-9)
    for options in (
        {"max_norm": head.max_norm},
        {"max_logit": head.max_logit},
        {"max_logit": everywhere, "masked_logits": True},
        {"max_norm": head.max_norm, "max_logit": everywhere, "masked_logits": True},
    ):
        bound = lower(A, leak=leak, distortion=1e-3, mask=mask, time_limit=1.0, **options)
        assert bound.dim <= d, (bound.candidates, options)
        assert not bound.impossible
        assert bound.verify(A)


@pytest.mark.parametrize("method", ["learned", "max-margin"])
@pytest.mark.parametrize("name", ["permutation", "random_regular", "band", "tree", "block"])
def test_no_bound_exceeds_a_fit_of_bounded_norm(name, method):
    n = 24
    A = {
        "permutation": lambda: P.permutation(n, rng=1),
        "random_regular": lambda: P.random_regular(n, 3, gamma=2.0, rng=1),
        "band": lambda: P.band(n, 1),
        "tree": lambda: P.tree(n),
        "block": lambda: P.block(n, 4),
    }[name]()
    found = 0
    for leak, norm, dim in itertools.product((0.05, 0.5), (1.2, 2.0, 6.0), (4, 8, 20)):
        tau = -math.log(leak)
        how = {
            "learned": hf.methods.Learned(
                max_norm=norm * tau, callback=lambda step, *_: step < 3000
            ),
            "max-margin": hf.methods.MaxMargin(max_norm=norm * tau),
        }[method]
        fit = hf.fit(A, dim, method=how, leak=leak, distortion=1.0, num_threads=1)
        if not fit.certificate.holds:
            continue
        found += 1
        reached, c = fit.certificate.leak, fit.certificate
        options = {"leak": reached, "distortion": 1.0, "time_limit": 0.5}
        assert lower(A, max_norm=c.max_norm, **options).dim <= dim
        assert lower(A, max_logit=c.max_logit, **options).dim <= dim
    assert found


def test_bounds_grow_with_n_and_fall_with_the_norm():
    def dim(n, N):
        problem = Problem.of(hf.Target(P.random_regular(n, 4, rng=0)), hf.Tolerances(), 600.0)
        return max(c.dim for c in bounded(problem, Limits(N)))

    tables = [[dim(n, N) for N in (3.0, 10.0, 100.0)] for n in (64, 192, 600)]
    for low, high in itertools.pairwise(tables):
        assert all(a <= b for a, b in zip(low, high, strict=True))
    for line in tables:
        assert line == sorted(line, reverse=True)
    assert tables[-1][0] > 50
    assert tables[0] != tables[2]


def test_witnesses_are_checked():
    A = P.random_regular(40, 3, rng=0)
    bound = lower(A, max_norm=5.0)
    assert bound.verify(A)
    assert isinstance(bound.witness, Separated)
    better = dataclasses.replace(bound, dim=bound.dim + 1)
    assert not better.verify(A)
    other = P.random_regular(40, 3, rng=1)
    assert not bound.verify(other)
    target = hf.Target(A)
    family = bound.witness.family
    assert isinstance(family, Groups)
    assert family.facts(target).points == len(family.members)
    twice = dataclasses.replace(family, members=family.members[:1] * len(family.members))
    assert twice.facts(target) is None
    cut = dataclasses.replace(family, groups=family.groups[:-1])
    assert cut.facts(target) is None
    outside = dataclasses.replace(family, members=(40, *family.members[1:]))
    assert outside.facts(target) is None
    assert dataclasses.replace(family, kind="other").facts(target) is None
    assert Apart("columns", (0, 1)).facts(target).points == 2
    assert Apart("other", (0, 1)).facts(target) is None
    assert Groups("rows", (), ()).facts(target) is None
    assert Groups("rows", (0, 1), ((), ())).facts(target) is None
    assert "40 columns" in repr(Apart("columns", tuple(range(40))))


def test_equal_columns_are_not_told_apart():
    A = P.block(12, 3)
    target = hf.Target(A)
    assert Apart("columns", (0, 3, 6, 9)).facts(target).points == 4
    assert Apart("columns", (0, 1)).facts(target) is None
    assert Apart("rows", (0, 3)).facts(target).points == 2
    assert Apart("rows", (0, 1)).facts(target) is None
    bound = lower(A, max_norm=4.0)
    members = [c.witness.family.members for c in of_bounded(bound) if c.witness is not None]
    assert members
    assert all(len(m) == 4 for m in members)


@pytest.mark.parametrize("mask", ["causal", ("window", 6), "table"])
def test_columns_told_apart_under_a_mask(mask):
    rng = np.random.default_rng(3)
    n = 14
    dense = rng.random((n, n)) < 0.6
    np.fill_diagonal(dense, True)
    mask = dense if isinstance(mask, str) and mask == "table" else mask
    allowed = allowed_by(mask, n)
    on = (rng.random((n, n)) < 0.3) & allowed
    on |= np.eye(n, dtype=bool) & allowed
    A = on / on.sum(axis=1, keepdims=True)
    target = hf.Target(A, mask=mask)

    def told(j, k):
        return bool(np.any(allowed[:, j] & allowed[:, k] & (on[:, j] != on[:, k])))

    for columns in itertools.combinations(range(n), 2):
        assert (Apart("columns", columns).facts(target) is not None) == told(*columns)
    bound = lower(A, mask=mask, max_norm=5.0)
    first = next(c for c in bound.candidates if c.name == "keys apart")
    if first.witness is not None:
        family = first.witness.family
        assert all(told(j, k) for j, k in itertools.combinations(family.members, 2))
    assert bound.verify(A)


def test_a_bound_on_visible_logits_says_nothing_about_masked_pairs():
    # Under a causal mask a head of size 1 makes the identity at any n, with bounded visible logits.
    n, t = 60, 1.25
    A = sp.eye_array(n, format="csr")
    B = TAU / (1 - 1 / t) * (1 + 1e-9)
    K = t ** np.arange(n, dtype=float)[:, None]
    Q = B / K
    head = hf.certify(A, Q, K, scale=1.0, mask="causal", max_logit=B * (1 + 1e-9))
    assert head.holds
    limit = head.max_logit
    assert limit < 16
    assert lower(A, mask="causal", max_logit=limit).dim == 1
    assert lower(A, mask="causal", max_logit=limit, masked_logits=True).dim > 1
    for masked, words in ((False, ": "), (True, " (masked pairs too): ")):
        bound = lower(A, mask="causal", max_logit=4, masked_logits=masked)
        assert f"|logit| <= 4{words}{bound.reason}" in bound.in_words()
    assert np.abs(Q @ K.T).max() > 1e6
    assert lower(A, mask="causal", max_norm=limit).dim > 1


def test_visible_logits_bound_rows_that_see_the_same_columns():
    n = 64
    rng = np.random.default_rng(0)
    A = np.eye(n)
    A[n // 2 :, : n // 2] = 2 * np.eye(n // 2)[rng.permutation(n // 2)]
    A /= A.sum(axis=1, keepdims=True)
    bound = lower(A, mask="causal", max_logit=1.0 * TAU)
    assert bound.dim > 3
    assert bound.verify(A)


def test_logits_below_half_the_gap_are_impossible():
    A = P.band(16, 1)
    assert lower(A, max_logit=TAU / 2 * (1 - 1e-9)).impossible
    assert not lower(A, max_logit=TAU / 2 * (1 + 1e-9)).impossible
    full = np.full((6, 6), 1 / 6)
    assert lower(full, max_norm=0.1, max_logit=0.1).dim == 1


def test_powers_of_logits_at_their_smallest():
    # With |logits| of half the gap, row i is B on its own column and -B elsewhere: rank n.
    n = 12
    A = sp.eye_array(n, format="csr")
    B = TAU / 2 * (1 + 1e-12)
    bound = lower(A, max_logit=B)
    assert n - 1 <= bound.dim <= n
    assert hf.certify(A, B * (2 * np.eye(n) - 1), np.eye(n), scale=1.0).holds


def test_without_bounds_nothing_changes():
    A = P.random_regular(30, 3, rng=0)
    plain = lower(A)
    assert not of_bounded(plain)
    assert (plain.max_norm, plain.masked_logits, plain.impossible) == (None, False, False)
    assert lower(A, max_norm=1e6).dim >= plain.dim


# Counting, and every subset.

REGULAR = {
    (2, 1): 2, (3, 1): 6, (4, 2): 90, (5, 2): 2040, (6, 2): 67950, (6, 3): 297200,
    (7, 3): 68938800, (8, 2): 187530840, (8, 3): 24046189440,
}  # fmt: skip


def test_regular_patterns_by_enumeration():
    for n, k in ((3, 1), (4, 1), (4, 2), (4, 3), (5, 2)):
        rows = [np.isin(np.arange(n), c) for c in itertools.combinations(range(n), k)]
        ways = {(0,) * n: 1}
        for _ in range(n):
            following: dict = {}
            for sums, count in ways.items():
                for row in rows:
                    total = tuple(int(s + r) for s, r in zip(sums, row, strict=True))
                    if max(total) <= k:
                        following[total] = following.get(total, 0) + count
            ways = following
        exact = ways[(k,) * n]
        assert REGULAR.get((n, k), exact) == exact
        assert float(log_regular_patterns(n, k)) <= math.log(exact) + 1e-12
        if k in (1, n - 1):
            assert float(log_regular_patterns(n, k)) == pytest.approx(math.log(exact))


def test_regular_patterns_are_counted_from_below():
    for (n, k), exact in REGULAR.items():
        assert 0.8 * math.log(exact) <= float(log_regular_patterns(n, k)) <= math.log(exact) + 1e-12
    for n, k in ((4096, 4), (100_000, 16)):
        asymptotic = math.lgamma(n * k + 1) - 2 * n * math.lgamma(k + 1) - (k - 1) ** 2 / 2
        assert 0.95 * asymptotic <= float(log_regular_patterns(n, k)) <= asymptotic
    assert log_regular_patterns(5, 5) == 0


@pytest.mark.parametrize(
    ("n", "k", "norm", "dim"), [(128, 4, 8.0, 20), (64, 4, 10.0, 16), (256, 4, 8.0, 22)]
)
def test_no_certified_head_is_below_the_count(n, k, norm, dim):
    count = counting(n, k, max_norm=norm, leak=0.05)
    assert count.dim >= 3  # what is tested is no trivial bound
    for seed in range(2):
        A = P.random_regular(n, k, gamma=2.0, rng=seed)
        head = hf.fit(A, dim, method=hf.methods.Learned(max_norm=norm), rng=seed)
        proof = head.certificate
        assert proof.holds
        reached = proof.scale * proof.q_norm * proof.k_norm
        assert counting(n, k, max_norm=reached, leak=0.05).dim <= dim


@pytest.mark.parametrize("name", ["small_logits", "growth", "precision", "hardness"])
def test_no_head_of_the_experiments_is_below_the_count(name):
    path = Path(__file__).parents[2] / "experiments" / "results" / f"{name}.csv"
    with path.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["certified"] == "yes" and r["norm"]]
    heads = {
        (int(r["n"]), int(r["k"]), float(r.get("leak") or 0.05), int(r["dim"])): float(r["norm"])
        for r in sorted(rows, key=lambda r: -float(r["norm"]))
        if r["dim"]
    }
    assert len(heads) > 10
    for (n, k, leak, dim), norm in heads.items():
        # Norms are written with four digits.
        assert counting(n, k, max_norm=1.001 * norm, leak=leak).dim <= dim, (n, k, leak, dim)


def test_counting_with_bounds():
    by_norm = [counting(4096, 4, max_norm=N).dim for N in (3.0, 10.0, 100.0)]
    assert by_norm == sorted(by_norm, reverse=True)
    assert by_norm[0] >= 8
    assert counting(4096, 4, max_logit=10.0).dim <= counting(4096, 4, max_norm=10.0).dim
    # Logits up to B give norms up to N = B sqrt(d) (John): this N for the last d that is excluded
    # excludes it, and for the first that is not does not.
    for n, k, B in ((4096, 4, 10.0), (1024, 8, 5.0), (100_000, 16, 30.0)):
        dim = counting(n, k, max_logit=B).dim
        assert counting(n, k, max_norm=B * math.sqrt(dim - 1) * (1 - 1e-6)).dim >= dim
        assert counting(n, k, max_norm=B * math.sqrt(dim) * (1 + 1e-6)).dim <= dim
    assert counting(64, 4, max_norm=1.0).dim == 65  # no row can have its gap
    assert counting(64, 4, max_norm=5.0, exceptions=1e-300).dim <= counting(64, 4, max_norm=5.0).dim
    assert counting(8, 8, max_norm=0.1).dim == 1
    assert "for all but a share of 0.01 of the" in repr(counting(64, 4, max_norm=10.0))
    # Above the volume bound of the rounding argument with equal shares.
    n, k, N = 4096, 4, 10.0
    simple = float(log_regular_patterns(n, k)) / (2 * n * math.log(1 + 8 * N / TAU))
    assert counting(n, k, max_norm=N, leak=0.05).dim >= simple


def test_every_subset_of_cyclic_keys():
    # 2 k dimensions suffice at any norms, and the bound says so.
    for n, k in ((12, 2), (30, 3), (9, 1)):
        assert every_subset(n, k).dim == 2 * k
        assert every_subset(n, n - k).dim == 2 * k
    assert every_subset(5, 5).dim == 1
    assert every_subset(3, 1).dim == 2


def test_every_subset_needs_the_norm_of_a_simplex():
    # Keys on a simplex with the mean key as the query have the least norm of all.
    n, k = 10, 3
    x = np.eye(n) - 1 / n
    x /= np.linalg.norm(x[0])
    mean = x[:k].sum(axis=0)
    logits = x @ (mean / np.linalg.norm(mean))
    least = TAU / (logits[:k].min() - logits[k:].max())
    assert least == pytest.approx(TAU * math.sqrt(k * (n - k) * (n - 1)) / n)
    assert every_subset(n, k, max_norm=least * (1 - 1e-9)).impossible
    assert not every_subset(n, k, max_norm=least * (1 + 1e-9)).impossible


@pytest.mark.parametrize(("n", "k", "d"), [(8, 2, 5), (9, 1, 3), (10, 2, 8), (7, 3, 6)])
def test_every_subset_against_random_keys(n, k, d):
    rng = np.random.default_rng(0)
    K = rng.normal(size=(n, d))
    K /= np.linalg.norm(K, axis=1, keepdims=True)
    worst = 0.0
    for on in itertools.combinations(range(n), k):
        # The shortest query with the gap, by the dual of its quadratic program.
        off = [j for j in range(n) if j not in on]
        differences = (K[list(on)][:, None] - K[off]).reshape(-1, d)
        solution, _ = scipy.optimize.nnls(
            np.vstack([differences.T, np.ones(len(differences))]), np.append(np.zeros(d), 1.0)
        )
        nearest = differences.T @ solution / solution.sum()
        query = nearest / (differences @ nearest).min() * TAU
        assert (differences @ query).min() >= TAU * (1 - 1e-9)
        worst = max(worst, float(np.linalg.norm(query)))
    assert worst > TAU
    assert every_subset(n, k, max_norm=worst * (1 + 1e-6)).dim <= d


@pytest.mark.parametrize(("keys", "d"), [("cyclic", 4), ("cyclic", 6), ("random", 8)])
def test_every_subset_against_certified_heads(keys, d):
    # All 36 pairs of nine keys, as the rows of four targets.
    n, k, leak = 9, 2, 0.3
    turns = 2 * np.pi * np.outer(np.arange(n), np.arange(1, d // 2 + 1)) / n
    K = np.hstack([np.cos(turns), np.sin(turns)])
    if keys == "random":
        K = np.random.default_rng(1).normal(size=(n, d))
        K /= np.linalg.norm(K, axis=1, keepdims=True)
    pairs = list(itertools.combinations(range(n), k))
    norms, logits = [], []
    for part in range(0, len(pairs), n):
        A = np.zeros((n, n))
        for i, on in enumerate(pairs[part : part + n]):
            A[i, on] = 1 / k
        proof = hf.fit(
            A, d, method=hf.methods.MaxMargin(keys=K), leak=leak, dtype="float64"
        ).certificate
        assert proof.holds
        norms.append(proof.scale * proof.q_norm * proof.k_norm)
        logits.append(proof.max_logit)
    for limits in ({"max_norm": max(norms)}, {"max_logit": max(logits)}):
        bound = every_subset(n, k, leak=leak, **limits)
        assert 2 <= bound.dim <= d
        assert not bound.impossible


def test_every_subset_with_bounded_logits():
    by_logit = [every_subset(64, 3, max_logit=B).dim for B in (1.6, 2.0, 4.0, 16.0, 1e6)]
    assert by_logit == sorted(by_logit, reverse=True)
    assert by_logit[0] > 6
    assert by_logit[-1] == every_subset(64, 3).dim == 6
    assert every_subset(64, 3, max_logit=TAU / 2 * (1 - 1e-9), leak=0.05).impossible


def test_every_subset_at_the_least_norm_grows_as_k_log_n():
    n = 4096
    dims = []
    for k in (4, 8, 16):
        least = TAU * math.sqrt(k * (n - k) * (n - 1)) / n
        dims.append(every_subset(n, k, max_norm=1.5 * least, leak=0.05).dim)
        assert dims[-1] >= 0.5 * k * math.log(n / k)
    assert dims == sorted(dims)


def test_needed_agrees_with_the_formulas():
    leak = 0.05
    for m, N in ((500, 40.0), (100_000, 25.0)):
        apart = Facts(m, Fraction(1), joint=False, in_rows=False, closed=True)
        assert needed(apart, Limits(N), leak, m)[0] >= math.log(m) / math.log(1 + 2 * N / TAU)
        by_logit = needed(apart, Limits(max_logit=N), leak, m)[0]
        assert by_logit >= math.log(m) / math.log(1 + 2 * N / TAU)
        joint = Facts(m, Fraction(3, 4), joint=True, in_rows=True, closed=True)
        root = math.sqrt(2 * N / (0.75 * TAU))
        assert needed(joint, Limits(N), leak, m)[0] >= math.log(m) / math.log(1 + root)


@given(st.integers(0, 10**6), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_exact_logits_meet_the_tolerances_before_rounding(seed, dtype):
    rng = np.random.default_rng(seed)
    on, off = rng.normal(20, 3, size=4), rng.normal(0, 6, size=9)
    exact = np.float32(np.concatenate([on, off]))
    rounded = round_to(exact, dtype)
    log_weights = exact[:4].astype(float) - float(exact[0]) + rng.uniform(-0.3, 0.3, 4)
    leak = math.exp(rounded[4:].max() - rounded[:4].min())
    if not leak < 1:
        return
    spread = np.ptp(rounded[:4].astype(float) - log_weights)
    wanted = math.expm1(np.ptp(exact[:4].astype(float) - log_weights))
    for limit in (None, float(np.abs(rounded).max())):
        of_rounded = hf.Tolerances(min(leak * (1 + 1e-9), 0.999999), math.expm1(spread), limit)
        wide = of_rounded.before_rounding(hf.Kernel(logits=dtype))
        assert math.exp(float(exact[4:].max()) - float(exact[:4].min())) <= wide.leak
        assert wanted <= wide.distortion * (1 + 1e-9)
        assert np.abs(exact).max() <= wide.logit_limit
        assert wide.leak >= of_rounded.leak
    assert hf.Tolerances().before_rounding(hf.Kernel.named("flash-bfloat16")) == hf.Tolerances()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda A: lower(A, max_norm=0.0), "max_norm"),
        (lambda A: lower(A, max_norm=math.inf), "max_norm"),
        (lambda A: lower(A, max_logit=-1.0), "max_logit"),
        (lambda A: lower(A, max_logit=3.0, masked_logits=1), "masked_logits"),
        (lambda A: lower(A, masked_logits=True), "masked_logits must be False without max_logit"),
        (lambda A: lower(A, max_norm=3.0, masked_logits=True), "masked_logits"),
        (lambda A: counting(8, 2, leak=0.1), "leak"),
        (lambda A: counting(8, 2, exceptions=1.5), "exceptions"),
        (lambda A: counting(8, 2, max_norm=3.0, exceptions=0.0), "exceptions"),
        (lambda A: counting(8, 2, max_norm=-3.0), "max_norm"),
        (lambda A: every_subset(8, 9), "k"),
        (lambda A: every_subset(8, 2, max_norm=0), "max_norm"),
        (lambda A: every_subset(8, 2, max_norm=3.0, leak=1.0), "leak must lie"),
        (
            lambda A: every_subset(8, 2, leak=0.3),
            "leak must be None without max_norm and max_logit",
        ),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(InputError, match=name):
        call(P.band(8, 1))


@pytest.mark.parametrize("limits", [{"max_norm": 1e17}, {"max_logit": 1e17}], ids=str)
def test_enormous_limits_say_no_more_than_none(limits):
    A = hf.patterns.random_regular(24, 3, gamma=2.0, rng=0)
    found = lower(A, masked_logits="max_logit" in limits, **limits)
    assert found.dim == lower(A).dim
    assert found.verify(A)


def test_a_bound_is_valid_for_its_own_limits_only():
    A = hf.patterns.random_regular(48, 3, gamma=2.0, rng=0)
    found = lower(A, max_norm=3.0)
    assert found.dim > lower(A).dim
    assert found.verify(A)
    for other in ({"max_norm": 1e9}, {"max_norm": None}, {"impossible": True}, {"dim": 49}):
        assert not dataclasses.replace(found, **other).verify(A)


def test_additive_masks_are_those_of_booleans():
    allowed = np.tri(16, dtype=bool)
    A = hf.patterns.causal_band(16, 2)
    with np.errstate(divide="ignore"):
        additive = np.log(allowed)
    one, other = (lower(A, mask=m, max_norm=4.0) for m in (allowed, additive))
    assert (one.dim, one.reason) == (other.dim, other.reason)
    assert other.verify(A)


def test_a_search_without_families_has_finished():
    bound = lower(hf.patterns.block(16, 16), max_norm=5.0)
    assert {c.status for c in bound.candidates} == {"proved"}
