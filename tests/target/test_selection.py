"""Certificates of selections against their definition, key by key, in fractions and 200 bits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit.errors import CertificateError, InputError, NonFiniteError

RNG = np.random.default_rng
N, M, D, SMALL = 17, 40, 5, 3
ASKS: dict[str, Any] = {"keys": 12, "window": 4, "first": 2}

BACK = np.arange(N)[:, None] + M - N - np.arange(M)
SOME = RNG(5).random((N, M)) < 0.7
FEW = RNG(6).random((N, M)) < 0.1
KEYS = RNG(7).random(M) < 0.8
OPEN = np.ones((N, M), bool)
OPTIONS: dict[str, tuple[dict[str, Any], np.ndarray]] = {
    "open": ({}, OPEN),
    "causal": ({"mask": "causal"}, BACK >= 0),
    "window": ({"mask": ("window", (20, 2))}, (BACK <= 20) & (BACK >= -2)),
    "dense": ({"mask": SOME}, SOME),
    "sparse": ({"mask": sp.csr_array(SOME)}, SOME),
    "few entries": ({"mask": sp.csr_array(FEW)}, FEW),
    "lengths": ({"key_lengths": 21}, OPEN & (np.arange(M) < 21)),
    "keys": ({"key_mask": KEYS, "mask": "causal"}, (BACK >= 0) & KEYS),
    "nothing": ({"key_mask": np.zeros(M, bool)}, ~OPEN),
    "sink": ({"sinks": 1.25}, OPEN),
    "softcap": ({"softcap": 0.75}, OPEN),
}


def a_problem(seed: int, dtype: Any = np.float32, heads: tuple[int, ...] = ()) -> list[np.ndarray]:
    rng = RNG(seed)
    Q, K = rng.normal(size=(*heads, N, D)), rng.normal(size=(M, D))
    # Scores are coarse, so that many are equal.
    q, k = (np.round(2 * rng.normal(size=(rows, SMALL))) / 4 for rows in (N, M))
    return [Q.astype(dtype), K.astype(dtype), q.astype(np.float32), k.astype(np.float32)]


def exact(x: Any, y: Any) -> Fraction:
    return sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)),
               Fraction(0))  # fmt: skip


def split(allowed: np.ndarray, i: int, asks: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The keys that a row keeps always, and its free keys."""
    seen = np.flatnonzero(allowed[i]).tolist()
    position = i + M - N
    last = range(position - asks["window"] + 1, position + 1)
    kept = [j for j in seen if j in seen[: asks["first"]] or j in last]
    return kept, [j for j in seen if j not in kept]


def choices(q: Any, k: Any, i: int, free: list[int], budget: int) -> tuple[set[int], set[int]]:
    """The free keys of a row that are surely selected, and those that may be."""
    u = Fraction(SMALL + 9, 2**24)
    gamma = u / (1 - u)
    ends = {}
    for j in free:
        s = exact(q[i], k[j])
        size = math.sqrt(exact(q[i], q[i])) * math.sqrt(exact(k[j], k[j]))
        r = gamma * Fraction(size) + Fraction(1, 2**100)
        ends[j] = s - r, s + r
    sure = {j for j in free if sum(ends[x][1] >= ends[j][0] for x in free if x != j) < budget}
    out = {j for j in free if sum(ends[x][0] > ends[j][1] for x in free if x != j) >= budget}
    return sure, set(free) - out


def choices_of_sums(
    q: Any, k: Any, i: int, seen: list[int], free: list[int], budget: int, valid: int, share: float
) -> tuple[set[int], set[int]]:
    """The same for sums of softmaxes, with `share` of the bound of docs/certificates.md."""
    n, heads, u = len(seen), len(q), mpmath.mpf(2) ** -24
    w = dict.fromkeys(seen, mpmath.mpf(0))
    for own in q[:, i]:
        x = {j: exact(own, k[j]) for j in seen}
        of_head = {j: mpmath.exp(mpmath.mpf(y.numerator) / y.denominator) for j, y in x.items()}
        total = mpmath.fsum(of_head.values())
        w = {j: w[j] + of_head[j] / total for j in seen}
    longest, norms = (np.sqrt((x**2).sum(axis=-1)) for x in (q[:, i], k))
    gamma, longest = (SMALL + 9) * u / (1 - (SMALL + 9) * u), float(longest.max())
    added = n + 9 * min(n, M / 16 + 1)
    common = (gamma + 4 * u) * longest * float(norms[:valid].max()) + u * (
        added + 16 * mpmath.log(n)
    )
    ends = {}
    for j in free:
        e = gamma * longest * float(norms[j]) + (common if heads > 1 else 0)
        e += u * (112 + 2 * heads + 20 * (abs(mpmath.log(w[j])) + mpmath.log(heads)))
        ends[j] = w[j] * mpmath.exp(-share * e), w[j] * mpmath.exp(share * e)
    sure = {j for j in free if sum(ends[x][1] >= ends[j][0] for x in free if x != j) < budget}
    out = {j for j in free if sum(ends[x][0] > ends[j][1] for x in free if x != j) >= budget}
    return sure, set(free) - out


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_definition_of_sums(name: str, heads: int) -> None:
    options, allowed = OPTIONS[name]
    Q, K, _, k = a_problem(3, heads=(2,))
    q = np.round(2 * RNG(4).normal(size=(heads, N, SMALL))).astype(np.float32) / 4
    # Keys whose scores are as close as roundings, and equal ones.
    k[1::5] = k[::5] * (1 + RNG(1).normal(size=(8, 1)).astype(np.float32) * 2.0**-18)
    k = k.astype(np.float32)
    asks = {**ASKS, "mass": 0.5, "form": "sum"}
    c = hf.certify_selection(Q, K, q, k, **options, **asks, columns=True)
    assert c.columns is not None
    assert c.form == "sum"
    budget = ASKS["keys"] - ASKS["window"] - ASKS["first"]
    valid, doubtful = options.get("key_lengths", M), 0
    with mpmath.workprec(200):
        for i in range(N):
            kept, free = split(allowed, i, ASKS)
            found = {*c.columns[i].tolist()} - {-1} - {*kept}
            count = min(budget, len(free))
            assert (c.sure[i], c.selected[i]) == (len(kept) + len(found), len(kept) + count)
            if len(free) <= budget:
                assert found == {*free}
                continue
            loose, tight = (
                choices_of_sums(q, k, i, [*kept, *free], free, budget, valid, share)
                for share in (0.999, 1.001)
            )
            assert tight[0] <= found <= loose[0]
            doubtful += len(found) < budget
            for h in range(2):
                low, high = (
                    mass_between(Q[h, i], K, options, [*kept, *free], {*kept, *sure}, may - sure,
                                 count - len(sure))
                    for sure, may in (tight, loose)
                )  # fmt: skip
                assert low[0] - 1e-5 <= c.row_mass[h, i] <= high[0] + mpmath.mpf(2) ** -100
                assert high[1] - mpmath.mpf(2) ** -100 <= c.row_most[h, i] <= low[1] + 1e-5
    if name not in ("nothing", "few entries"):
        assert doubtful > 0
    again = hf.certify_selection(Q, K, q, k, **options, **asks, num_threads=3)
    np.testing.assert_array_equal(c.row_mass, again.row_mass)


def test_a_sum_with_one_head_says_what_its_product_says() -> None:
    """The order is that of the products, of which roundings of exponentials take little."""
    Q, K, q, k = a_problem(20)
    q += RNG(21).normal(size=q.shape).astype(np.float32)
    dot, by_sum = (
        hf.certify_selection(Q, K, q, k, **ASKS, form=form, columns=True) for form in ("dot", "sum")
    )
    np.testing.assert_array_equal(dot.columns, by_sum.columns)
    np.testing.assert_array_equal(dot.row_mass, by_sum.row_mass)


def mass_between(
    q: Any, K: Any, options: dict[str, Any], seen: list[int], sure: set[int], loose: set[int],
    count: int,
) -> tuple[Any, Any]:  # fmt: skip
    """The least and the largest mass of the sure keys of a row and so many of the loose ones."""
    if not seen:
        return mpmath.mpf(1), mpmath.mpf(1)
    scale, cap, w = Fraction(D**-0.5), options.get("softcap"), {}
    for j in seen:
        s = scale * exact(q, K[j])
        x = mpmath.mpf(s.numerator) / s.denominator
        w[j] = mpmath.exp(x if cap is None else cap * mpmath.tanh(x / cap))
    total = mpmath.fsum(w.values()) + (mpmath.exp(options["sinks"]) if "sinks" in options else 0)
    light = sorted(loose, key=w.__getitem__)
    low, high = (
        mpmath.fsum(w[j] for j in (*sure, *more)) / total
        for more in (light[:count], light[::-1][:count])
    )
    return low, high


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_definition(name: str, dtype: Any) -> None:
    options, allowed = OPTIONS[name]
    case = a_problem(3, dtype)
    c = hf.certify_selection(*case, **options, **ASKS, mass=0.5, columns=True, num_threads=1)
    budget = ASKS["keys"] - ASKS["window"] - ASKS["first"]
    assert c.columns is not None
    with mpmath.workprec(200):
        for i in range(N):
            kept, free = split(allowed, i, ASKS)
            sure, may = choices(*case[2:], i, free, budget)
            if len(free) <= budget:
                sure = may = set(free)
            found = c.columns[i][c.columns[i] >= 0]
            assert found.tolist() == sorted({*kept, *sure})
            assert (c.sure[i], c.selected[i]) == (len(found), len(kept) + min(budget, len(free)))
            low, high = mass_between(
                case[0][i], case[1], options, [*kept, *free], {*kept, *sure}, may - sure,
                min(budget, len(free)) - len(sure),
            )  # fmt: skip
            tight = 1e-5 if dtype != np.float64 else 1e-11
            assert low - tight <= c.row_mass[i] <= low + mpmath.mpf(2) ** -100
            assert high - mpmath.mpf(2) ** -100 <= c.row_most[i] <= high + tight
            status = 0 if c.row_mass[i] >= 0.5 else 1 if c.row_most[i] < 0.5 else 2
            assert c.row_status[i] == status
    again = hf.certify_selection(*case, **options, **ASKS, mass=0.5, columns=True, num_threads=3)
    np.testing.assert_array_equal(c.row_mass, again.row_mass)
    np.testing.assert_array_equal(c.columns, again.columns)
    # An Attention has the same.
    attention = hf.Attention(*case[:2], **options)
    from_one = hf.certify_selection(attention, Q_index=case[2], K_index=case[3], **ASKS, mass=0.5)
    np.testing.assert_array_equal(c.row_most, from_one.row_most)


def test_heads_are_judged_one_by_one() -> None:
    case = a_problem(8, heads=(2, 3))
    c = hf.certify_selection(*case, **ASKS, sinks=np.arange(6).reshape(2, 3) - 3.0, mass=0.3)
    assert c.row_mass.shape == c.row_status.shape == (2, 3, N)
    assert c.worst is not None
    assert c.row_mass[c.worst] == c.mass == c.row_mass.min()
    for at in np.ndindex(2, 3):
        sink = float(3 * at[0] + at[1] - 3)
        one = hf.certify_selection(case[0][at], *case[1:], **ASKS, sinks=sink, mass=0.3)
        np.testing.assert_array_equal(one.row_mass, c.row_mass[at])
        np.testing.assert_array_equal(one.sure, c.sure)


def test_a_close_mass_is_decided_in_float64() -> None:
    case = a_problem(9)
    exactly = hf.certify_selection(case[0].astype(np.float64), *case[1:], **ASKS)
    row = int(np.argmax((exactly.row_most - exactly.row_mass < 1e-10) & (exactly.row_most < 1)))
    for beyond, status in ((-1e-9, 0), (1e-9, 1)):
        c = hf.certify_selection(*case, **ASKS, mass=exactly.row_mass[row] + beyond)
        assert c.row_status[row] == status
        assert c.rescanned > 0


def test_numbers_of_float8_with_scales_last() -> None:
    """A kernel that multiplies the scales in last selects all that is sure too."""
    rng = RNG(10)
    numbers = [rng.integers(-30, 31, (x, 16)).astype(np.float32) for x in (N, M)]
    scales = [np.float32(2.0 ** rng.integers(-5, 5, (x, 1))) * np.float32(1.28125) for x in (N, M)]
    Q, K = a_problem(11)[:2]
    stored = [x * s for x, s in zip(numbers, scales, strict=True)]
    c = hf.certify_selection(Q, K, *stored, **ASKS, columns=True)
    assert c.columns is not None
    scores = (numbers[0] @ numbers[1].T) * scales[1].T
    for i in range(N):
        kept, free = split(OPEN, i, ASKS)
        best = sorted(free, key=lambda j: -scores[i, j])[: 12 - 6]
        assert set(c.columns[i].tolist()) - {-1} <= {*kept, *best}


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_scores_that_are_rounded_to_16_bits(dtype: str, step: float) -> None:
    Q, K = a_problem(15)[:2]
    k = np.float32(1 + (RNG(1).permutation(M)[:, None] + 0.5) * 2.0**-9)
    q = np.ones((N, 1), np.float32)
    kernel = hf.Kernel(accumulate="float32", logits=dtype)
    c = hf.certify_selection(Q, K, q, k, **ASKS, kernel=kernel, columns=True)
    assert c.columns is not None
    scores = np.round(k[:, 0] / step) * step  # in [1, 2)
    for i in range(N):
        kept, free = split(OPEN, i, ASKS)
        sure = {j for j in free if sum(scores[x] >= scores[j] for x in free if x != j) < 12 - 6}
        assert {*c.columns[i].tolist()} - {-1} == {*kept, *sure}
    assert f"logits in {dtype}" in repr(c)
    # Beyond the largest number of float16 nothing is known.
    large = hf.certify_selection(Q, K, q * 2.0**16, k, **ASKS, kernel=kernel)
    assert (large.sure == 6).all() == (dtype == "float16")
    # Nor where a hidden score is beyond it, of which a mask that is added makes NaN.
    k[-1] *= 2.0**17
    hidden = hf.certify_selection(Q, K, q, k, **ASKS, mask="causal", kernel=kernel)
    assert (hidden.sure == 6).all() == (dtype == "float16")
    k[-1] *= 2.0**-17
    fused = hf.certify_selection(
        Q, K, q, k, **ASKS, kernel={"accumulate": "float32", "logits": dtype, "fused": True}
    )
    assert (fused.sure <= c.sure).all()


def test_sums_of_fewer_bits() -> None:
    case = a_problem(16, heads=(2,))
    case[2], case[3] = (RNG(2).normal(size=x.shape).astype(np.float32) for x in case[2:])
    sure = []
    for form in ("dot", "sum"):
        for bits in (24, 9, 6):
            kernel = hf.Kernel(accumulate="float32", sum_bits=bits)
            sure.append(hf.certify_selection(*case, **ASKS, form=form, kernel=kernel).sure.sum())
    assert sure[0] > sure[1] > sure[2]
    assert sure[3] > sure[4] > sure[5]
    assert min(sure) >= 6 * N
    # Sums of 2 bits may grow at every step, and leave NaN where exact products are far from it.
    q = np.ones((1, 16), np.float32)
    k = np.full((40, 16), -(2.0**-60), np.float32)
    q[0, 0], k[:, 0] = 2.0**14, -(2.0**13) * (1 + np.arange(40) / 64)
    nothing = np.zeros((1, 4), np.float32), np.zeros((40, 4), np.float32)
    c = hf.certify_selection(
        *nothing, q, k, form="sum", keys=32, window=1, first=0, mass=0.7,
        kernel=hf.Kernel("float32", sum_bits=2),
    )  # fmt: skip
    assert c.mass < 0.03
    with pytest.raises(InputError, match="kernel must have accumulate="):
        hf.certify_selection(*case, **ASKS, kernel="exact")
    with pytest.raises(InputError, match=r"kernel must have .*; got Kernel.'eager-float16'"):
        hf.certify_selection(*case, **ASKS, kernel="eager-float16")
    with pytest.raises(InputError, match=r"in the form .dot. logits"):
        hf.certify_selection(
            *case, **ASKS, form="sum", kernel=hf.Kernel("float32", logits="bfloat16")
        )


def test_edges() -> None:
    Q, K, q, k = a_problem(12)
    # All that is visible is selected.
    every = hf.certify_selection(Q, K, q, k, keys=M, window=2, first=1, mass=0.999)
    assert every.holds
    assert every.mass == every.mass_mean == 1
    assert (every.sure == M).all()
    none = hf.certify_selection(Q[:0], K, q[:0], k, keys=10, window=2, first=1)
    assert none.holds
    assert (none.worst, none.mass) == (None, 1)
    repr(none)
    blind = hf.certify_selection(Q, K[:0], q, k[:0], keys=10, window=2, first=1)
    assert blind.holds
    assert not blind.sure.any()
    # Where a score may overflow nothing but what is kept always is sure.
    huge = hf.certify_selection(Q, K, q * 2.0**66, k * 2.0**66, **ASKS, mask="causal")
    assert huge.sure.max() <= ASKS["window"] + ASKS["first"]
    few = {"window": ASKS["window"], "first": ASKS["first"], "keys": M}
    hides = np.arange(len(Q)) + M - len(Q) < M - 1
    huge = hf.certify_selection(Q, K, q * 2.0**66, k * 2.0**66, **few, mask="causal")
    assert (huge.sure[hides] <= ASKS["window"] + ASKS["first"]).all()
    assert (huge.sure[~hides] == M).all()
    assert (huge.row_status[hides & (huge.selected > huge.sure)] == 2).all()
    tiny = hf.certify_selection(Q, K, q * 2.0**-140, k, **ASKS)
    assert not tiny.holds
    assert (tiny.sure <= tiny.selected).all()
    assert (tiny.sure == 6).any()
    # Keys that are padding are never read.
    K[30:], k[30:] = np.nan, np.nan
    read = hf.certify_selection(Q, K, q, k, **ASKS, key_lengths=30)
    assert np.isfinite(read.row_mass).all()


@pytest.mark.parametrize(
    ("q", "k", "logits"), [(256.0, -256.0, "float16"), (1e20, -1e20, None), (1e20, 1e20, None)]
)
def test_overflowing_scores_beside_hidden_keys(q: float, k: float, logits: Any) -> None:
    # A kernel that hides keys by -inf: -inf ties with these, and +inf makes NaN of them.
    n, seen = 8, [0, 2, 5, 7]
    mask = np.zeros((1, n), bool)
    mask[0, seen] = True
    zeros = np.zeros((1, 2), "f"), np.zeros((n, 2), "f")
    index = np.full((1, 2), q, "f"), np.full((n, 2), k, "f")
    asked = {"keys": 4, "window": 1, "first": 0, "mass": 0.9, "mask": mask}
    kernel = hf.Kernel("float32", logits=logits)
    found = hf.certify_selection(*zeros, *index, **asked, kernel=kernel, columns=True)
    assert found.status == "undecided"
    assert found.sure.tolist() == [1]
    with np.errstate(over="ignore", invalid="ignore"):
        scores = (index[0] @ index[1].T).astype(logits or "f") + np.where(mask, 0, -np.inf)
    best = np.argsort(-scores[0, :-1], kind="stable")[:3]  # NaN last; some kernels have it first
    kept = {7, *best.tolist()} & set(seen) if k < 0 else {7}
    assert found.row_mass[0] <= len(kept) / len(seen)


def test_results_and_words() -> None:
    case = a_problem(13, heads=(2,))
    c = hf.certify_selection(*case, **ASKS, mass=0.6, mask="causal")
    assert c.status == "fails"
    text = repr(c)
    for part in ("FAILS in", "asked for 0.6", "at head", "surely selected", "float32"):
        assert part in text
    with pytest.raises(CertificateError, match="FAILS"):
        c.raise_if_failed()
    assert c.to_dict()["rows_fails"] == (c.row_status == 1).sum() > 0
    held = hf.certify_selection(*case, **ASKS, mass=c.mass, mask="causal")
    assert held.raise_if_failed() is held
    assert isinstance(held, hf.results.SelectionCertificate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_heads_of_a_layer_read_their_own_keys(dtype: Any) -> None:
    Q, K, q, k = a_problem(15, dtype, heads=(4,))
    keys = np.stack([K, RNG(16).normal(size=K.shape).astype(dtype)])
    asks: dict[str, Any] = {**ASKS, "mass": 0.5, "mask": "causal", "columns": True}
    whole = hf.certify_selection(Q, keys, q, k, **asks)
    for g in range(2):
        own = slice(2 * g, 2 * g + 2)
        alone = hf.certify_selection(Q[own], keys[g], q, k, **asks)
        np.testing.assert_array_equal(alone.columns, whole.columns)
        np.testing.assert_array_equal(alone.row_status, whole.row_status[own])
        for name in ("row_mass", "row_most"):
            np.testing.assert_allclose(getattr(alone, name), getattr(whole, name)[own], rtol=1e-5)


def bad(name: str, value: Any) -> dict[str, Any]:
    return {**dict(zip(("Q", "K", "Q_index", "K_index"), a_problem(14, heads=(2,)), strict=True)),
            **ASKS, name: value}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("keys", 6, "keys must be an integer of at least 7"),
        ("window", 0, "window must"),
        ("first", -1, "first must"),
        ("mass", 1, "mass must"),
        ("columns", 1, "columns must"),
        ("form", "mean", "form must"),
        ("form", None, "form must"),
        ("Q_index", np.zeros((2, N, SMALL)), "Q_index must be a matrix; got shape"),
        ("Q_index", None, "Q_index"),
        ("Q_index", np.zeros((N + 1, SMALL)), f"Q_index must be a matrix with {N} rows"),
        ("K_index", np.zeros((M - 1, SMALL)), f"K_index must be a matrix with {M} rows"),
        ("K_index", np.zeros((M, SMALL + 1)), "Q_index and K_index must have rows of the same"),
        ("K_index", np.full((M, SMALL), 0.1), "K_index must hold numbers of float32"),
        ("K_index", np.full((M, SMALL), 1e300), "K_index must hold numbers of float32"),
        ("K", np.zeros((3, M, D)), "with a number of heads that divides Q's"),
        ("mask", np.stack([SOME, SOME]), "must have the same mask"),
        ("key_lengths", [20, 21], "must have the same mask, key_mask and key_lengths"),
    ],
)
def test_bad_arguments(name: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        hf.certify_selection(**bad(name, value))


@pytest.mark.parametrize("name", ["Q", "K", "Q_index", "K_index"])
def test_numbers_must_be_finite(name: str) -> None:
    given = bad("mass", 0.5)
    given[name][..., 2, 1] = np.inf
    with pytest.raises(NonFiniteError, match=name):
        hf.certify_selection(**given)


def test_queries_of_several_heads_of_an_index() -> None:
    Q, K, q, k = a_problem(14)
    stack = np.stack([q, q[::-1]])
    one = hf.certify_selection(Q, K, stack, k, **ASKS, form="sum")
    nested = hf.certify_selection(Q, K, stack.reshape(1, 2, N, SMALL), k, **ASKS, form="sum")
    np.testing.assert_array_equal(one.row_mass, nested.row_mass)
    for bad_q, bad_k, words in (
        (stack[:0], k, "Q_index must be matrices"),
        (stack[:, 1:], k, "Q_index must be matrices with 17 rows"),
        (stack, np.stack([k, k]), "K_index must be a matrix"),
    ):
        with pytest.raises(InputError, match=words):
            hf.certify_selection(Q, K, bad_q, bad_k, **ASKS, form="sum")
    stack[1, 2, 0] = np.nan
    with pytest.raises(NonFiniteError, match="Q_index"):
        hf.certify_selection(Q, K, stack, k, **ASKS, form="sum")


def test_other_logits_are_refused() -> None:
    Q, K, q, k = a_problem(15)
    for more in ({"bias": np.zeros((N, M))}, {"position": "alibi"}):
        with pytest.raises(InputError, match=next(iter(more))):
            hf.certify_selection(hf.Attention(Q, K, **more), Q_index=q, K_index=k)
        with pytest.raises(TypeError, match=next(iter(more))):
            hf.certify_selection(Q, K, q, k, **more)
