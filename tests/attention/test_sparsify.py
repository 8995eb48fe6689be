"""`sparsify` compared with a slow greedy algorithm and with brute force."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import headfit as hf
from headfit._attention.sparsify import EXACT_LIMIT
from headfit.errors import InputError, NonFiniteError

RNG = np.random.default_rng
DTYPES = ["float32", "float64"]
MASKS = ["none", "causal", "window", "dense", "sparse"]


def mask_of(kind: str, n: int, m: int) -> tuple[Any, np.ndarray]:
    """Return a mask as users write it, and where it allows attention."""
    rng = RNG(5)
    position, column = np.arange(n)[:, None] + m - n, np.arange(m)
    if kind == "none":
        return None, np.ones((n, m), bool)
    if kind == "causal":
        return kind, column <= position
    if kind == "window":
        return ("window", (4, 2)), (column >= position - 4) & (column <= position + 2)
    dense = rng.random((n, m)) < 0.5
    return (dense if kind == "dense" else sp.csr_array(dense)), dense


def slow_greedy(
    key: np.ndarray,
    share: np.ndarray,
    per_row: int | None,
    per_column: int | None,
    exempt: Any = (),
    mass: float | None = None,
) -> np.ndarray:
    """Take all entries in the order of decreasing weight, each if its row and column have room."""
    n, m = key.shape
    rows, columns = np.divmod(np.arange(n * m), m)
    taken = np.zeros((n, m), bool)
    for e in np.lexsort((columns, rows, -key.ravel())):
        i, j = rows[e], columns[e]
        if not share[i, j] > 0:
            continue
        if per_row is not None and taken[i].sum() >= per_row:
            continue
        if mass is not None and share[i][taken[i]].sum() >= mass - 1e-12:
            continue
        if per_column is not None and j not in exempt and taken[:, j].sum() >= per_column:
            continue
        taken[i, j] = True
    return taken


def shares_of(M: np.ndarray) -> np.ndarray:
    sums = M.astype(np.float64).sum(axis=1, keepdims=True)
    return np.divide(M, sums, out=np.zeros(M.shape), where=sums > 0)


def check(result: hf.results.Sparsified, taken: np.ndarray, share: np.ndarray) -> None:
    kept = np.where(taken, share, 0.0)
    sums = kept.sum(axis=1, keepdims=True)
    dense = result.matrix.toarray()
    np.testing.assert_array_equal(dense > 0, taken)
    expected = np.divide(kept, sums, out=np.zeros_like(kept), where=sums > 0)
    np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-12)
    present = share.any(axis=1)
    # This is the total variation by its definition.
    tv = 0.5 * np.abs(dense - share).sum(axis=1)
    np.testing.assert_allclose(result.dropped_mass[present], tv[present], atol=2e-6)
    assert (result.dropped_mass[~present] == 0).all()
    assert result.worst_row == result.dropped_mass.argmax()
    assert result.per_row == taken.sum(axis=1).max()
    counts = taken.sum(axis=0)
    counts[result.exempt] = 0
    assert result.per_column == counts.max()


# Greedy -------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "rows": {"per_row": 3},
    "columns": {"per_row": 3, "per_column": 3},
    "tight": {"per_row": 6, "per_column": 1},
    "mass": {"mass": 0.7},
    "mass-rows": {"mass": 0.8, "per_row": 4},
    "mass-columns": {"mass": 0.6, "per_column": 3},
    "all": {"mass": 0.9, "per_row": 5, "per_column": 2, "exempt_columns": [0, 3]},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("ties", [False, True])
def test_a_matrix_is_thinned_as_the_slow_greedy_does(setting, dtype, mask, ties):
    rng = RNG(1)
    n, m = 23, 29
    M = rng.integers(0, 4, (n, m)) if ties else rng.random((n, m)) ** 3
    M[:, 3] += 1
    M = M.astype(dtype)
    given_mask, open_ = mask_of(mask, n, m)
    share = shares_of(np.where(open_, M, 0))
    options = dict(SETTINGS[setting])
    exempt = options.get("exempt_columns", ())
    taken = slow_greedy(
        share, share, options.get("per_row"), options.get("per_column"), exempt, options.get("mass")
    )
    lost = np.flatnonzero(share.any(axis=1) & ~taken.any(axis=1))
    for form in (M, np.asfortranarray(M), sp.csr_array(M), sp.coo_array(M)):
        for threads in (1, 2, 3):
            kept = hf.sparsify(
                form, mask=given_mask, on_empty="keep-max", num_threads=threads, **options
            )
            expected = taken.copy()
            expected[lost, share[lost].argmax(axis=1)] = True
            check(kept, expected, share)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_are_streamed_to_the_same_pattern(setting, dtype, mask):
    rng = RNG(2)
    n, m, d = 70, 90, 5
    Q = (2 * rng.standard_normal((n, d))).astype(dtype)
    K = (2 * rng.standard_normal((m, d))).astype(dtype)
    given_mask, open_ = mask_of(mask, n, m)
    logits = hf.attention_logits(Q, K, mask=given_mask).astype(np.longdouble)
    top = np.where(np.isfinite(logits), logits, -np.inf).max(axis=1, keepdims=True)
    weight = np.where(open_, np.exp(logits - np.where(np.isfinite(top), top, 0)), 0)
    share = shares_of(weight)
    options = dict(SETTINGS[setting])
    taken = slow_greedy(
        share,
        share,
        options.get("per_row"),
        options.get("per_column"),
        options.get("exempt_columns", ()),
        options.get("mass"),
    )
    lost = np.flatnonzero(share.any(axis=1) & ~taken.any(axis=1))
    taken[lost, share[lost].argmax(axis=1)] = True
    results = [
        hf.sparsify(Q, K, mask=given_mask, on_empty="keep-max", num_threads=threads, **options)
        for threads in (1, 2, 3)
    ]
    check(results[0], taken, share)
    for other in results[1:]:
        assert np.array_equal(other.matrix.data, results[0].matrix.data)
        assert np.array_equal(other.matrix.indices, results[0].matrix.indices)
        assert np.array_equal(other.matrix.indptr, results[0].matrix.indptr)
        assert np.array_equal(other.dropped_mass, results[0].dropped_mass)


@pytest.mark.parametrize("n", [40, 300])
def test_rows_that_want_the_same_columns_are_read_again_until_all_is_given_out(n):
    # All rows rank the columns in the same order, so that nearly all candidates are refused.
    Q = np.linspace(1, 2, n)[:, None]
    K = np.linspace(-3, 3, n)[:, None]
    kept = hf.sparsify(Q, K, scale=1.0, per_row=1, per_column=1)
    assert kept.matrix.nnz == n
    assert kept.per_column == 1
    share = hf.attention_matrix(Q, K, scale=1.0)
    check(kept, slow_greedy(share, share, 1, 1), share)


def test_mass_alone_keeps_as_few_entries_as_the_statistics_count():
    rng = RNG(3)
    Q, K = rng.standard_normal((2, 200, 8))
    kept = hf.sparsify(Q, K, mass=0.9)
    count = hf.attention_stats(Q, K, shares=(0.9,)).keys_for_share[:, 0]
    np.testing.assert_array_equal(np.diff(kept.matrix.indptr), count)
    assert kept.tv_worst <= 0.1 + 1e-9
    assert hf.sparsify(np.full((3, 10), 0.1), mass=0.8).per_row == 8  # not 9 by rounding


def test_free_columns_agree_with_topk():
    rng = RNG(4)
    Q, K = rng.standard_normal((2, 150, 8), dtype=np.float32)
    kept = hf.sparsify(Q, K, per_row=5, mask="causal")
    top = hf.attention_topk(Q, K, 5, mask="causal", renormalize=True)
    np.testing.assert_array_equal(kept.matrix.indices, top.indices)
    np.testing.assert_allclose(kept.matrix.data, top.data, rtol=1e-5)
    assert kept.per_column == np.bincount(top.indices).max()
    assert kept.exempt.size == 0


@st.composite
def problems(draw: Any) -> tuple[np.ndarray, dict[str, Any]]:
    n, m = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    weights = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 0.125, 1e-30])
    M = np.array(draw(st.lists(weights, min_size=n * m, max_size=n * m))).reshape(n, m)
    options = {
        "per_row": draw(st.one_of(st.none(), st.integers(1, 10))),
        "per_column": draw(st.one_of(st.none(), st.integers(1, 4))),
        "mass": draw(st.one_of(st.none(), st.sampled_from([0.3, 0.5, 0.75, 1.0]))),
        "exempt_columns": draw(st.lists(st.integers(0, m - 1), max_size=2)),
    }
    if options["per_row"] is None and options["mass"] is None:
        options["per_row"] = 2
    return M, options


@given(problems())
def test_constraints_hold_whatever_the_matrix(problem):
    M, options = problem
    share = shares_of(M)
    kept = hf.sparsify(M, on_empty="keep-max", **options)
    exempt = options["exempt_columns"]
    taken = slow_greedy(
        share, share, options["per_row"], options["per_column"], exempt, options["mass"]
    )
    lost = np.flatnonzero(share.any(axis=1) & ~taken.any(axis=1))
    taken[lost, share[lost].argmax(axis=1)] = True
    check(kept, taken, share)
    matrix = kept.matrix
    assert matrix.has_canonical_format
    assert (matrix.data > 0).all()
    sums = np.asarray(matrix.sum(axis=1))
    np.testing.assert_allclose(sums[share.any(axis=1)], 1)
    if options["per_row"] is not None:
        assert kept.per_row <= options["per_row"]
    if options["per_column"] is not None and not lost.size:
        assert kept.per_column <= options["per_column"]


def test_padding_keys_are_never_kept():
    rng = RNG(10)
    Q, K = rng.standard_normal((2, 40, 4))
    K[25:] = np.nan
    kept = hf.sparsify(Q, K, key_lengths=25, per_row=4, per_column=9)
    alone = hf.sparsify(Q, K[:25], per_row=4, per_column=9)
    assert kept.matrix.shape == (40, 40)
    np.testing.assert_array_equal(kept.matrix.indices, alone.matrix.indices)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(1, 6), st.integers())
def test_streamed_logits_keep_the_bounds_whatever_the_shape(n, m, per_row, per_column, seed):
    rng = RNG(abs(seed))
    Q, K = 3 * rng.standard_normal((n, 3)), rng.standard_normal((m, 3))
    share = hf.attention_matrix(Q, K)
    kept = hf.sparsify(Q, K, per_row=per_row, per_column=per_column, on_empty="keep-max")
    taken = slow_greedy(share, share, per_row, per_column)
    lost = np.flatnonzero(~taken.any(axis=1))
    taken[lost, share[lost].argmax(axis=1)] = True
    check(kept, taken, share)


def test_a_pattern_from_real_logits_is_a_target():
    rng = RNG(6)
    Q, K = rng.standard_normal((2, 60, 4))
    kept = hf.sparsify(Q, K, per_row=4, per_column=6)
    target = hf.Target(kept.matrix)
    assert target.per_row <= 4
    assert target.per_column == kept.per_column <= 6


def test_attention_objects_bring_their_settings():
    rng = RNG(7)
    Q, K = rng.standard_normal((2, 30, 4))
    attention = hf.Attention(Q, K, scale=0.7, mask="causal")
    a = hf.sparsify(attention, per_row=3)
    b = hf.sparsify(Q, K, scale=0.7, mask="causal", per_row=3)
    assert (a.matrix != b.matrix).nnz == 0
    with pytest.raises(InputError, match="an Attention with another"):
        hf.sparsify(attention, mask=("window", 3), per_row=3)


@pytest.mark.full
def test_memory_is_far_below_the_matrix():
    # 12,000 squared is 576 MB in float32.
    code = """
        import resource, numpy as np, headfit as hf
        rng = np.random.default_rng(0)
        Q, K = rng.standard_normal((2, 12000, 4), dtype=np.float32)
        hf.sparsify(Q[:50], K[:50], per_row=2, per_column=2)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        hf.sparsify(Q, K, per_row=4, per_column=4, on_empty="keep-max")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    kilobytes = int(out.stdout) / (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 150_000


# Sinks --------------------------------------------------------------------------------


def with_sink(n: int = 60, sink: int = 7) -> np.ndarray:
    M = RNG(8).random((n, n)) ** 6
    M[:, sink] += 2
    return M / M.sum(axis=1, keepdims=True)


def test_sinks_are_found_and_left_free():
    M = with_sink()
    bound = hf.sparsify(M, per_row=3, per_column=4)
    free = hf.sparsify(M, per_row=3, per_column=4, exempt_columns="auto")
    named = hf.sparsify(M, per_row=3, per_column=4, exempt_columns=[7])
    assert free.exempt.tolist() == [7]
    assert (free.matrix != named.matrix).nnz == 0
    assert (free.matrix[:, [7]].toarray() > 0).all()
    assert free.per_column <= 4
    assert free.tv_mean < bound.tv_mean
    # Without a bound on columns nothing is exempt.
    assert hf.sparsify(M, per_row=3, exempt_columns="auto").exempt.size == 0


def test_a_sink_is_wanted_by_more_than_half_of_the_rows_that_have_entries():
    M = np.zeros((8, 8))
    M[:6] = np.eye(8)[:6] * 0.5
    M[:3, 7] = 1.0  # three of the six nonempty rows
    assert hf.sparsify(M, per_row=1, per_column=1, exempt_columns="auto",
                       on_empty="keep-max").exempt.size == 0  # fmt: skip
    M[3, 7] = 1.0
    assert hf.sparsify(M, per_row=1, per_column=1, exempt_columns="auto").exempt.tolist() == [7]


# Exact --------------------------------------------------------------------------------


def best_by_brute_force(share: np.ndarray, per_row: int, per_column: int, free: list[int]) -> float:
    n, m = share.shape
    choices = [c for size in range(per_row + 1) for c in itertools.combinations(range(m), size)]
    best = 0.0
    for rows in itertools.product(choices, repeat=n):
        counts = np.bincount([j for row in rows for j in row], minlength=m)
        counts[free] = 0
        if counts.max() <= per_column:
            best = max(best, sum(share[i, j] for i, row in enumerate(rows) for j in row))
    return best


def weight(result: hf.results.Sparsified, share: np.ndarray) -> float:
    return float(share[result.matrix.toarray() > 0].sum())


@pytest.mark.parametrize("seed", range(12))
def test_exact_is_the_best_there_is_and_greedy_at_least_half(seed):
    rng = RNG(seed)
    n, m = rng.integers(2, 5), rng.integers(2, 5)
    M = rng.random((n, m)) ** 4 if seed % 2 else rng.integers(0, 4, (n, m)).astype(float)
    M[:, 0] += 2
    per_row, per_column = (2, 1) if seed % 3 else (1, 2)
    free = [1] if seed % 4 == 0 else []
    share = shares_of(M)
    options = {"per_row": per_row, "per_column": per_column, "exempt_columns": free}
    best = best_by_brute_force(share, per_row, per_column, free)
    greedy = slow_greedy(share, share, per_row, per_column, free)
    assert best / 2 - 1e-12 <= share[greedy].sum() <= best + 1e-12
    exact = hf.sparsify(M, method="exact", on_empty="keep-max", **options)
    taken = exact.matrix.toarray() > 0
    # A row that the best pattern leaves empty was given its largest entry.
    counts = taken.sum(axis=0)
    counts[free] = 0
    if counts.max() <= per_column:
        assert weight(exact, share) == pytest.approx(best, abs=1e-9)
    else:
        assert weight(exact, share) >= best - 1e-9
    assert (taken.sum(axis=1) <= per_row).all()


@pytest.mark.parametrize("seed", range(4))
def test_exact_agrees_with_the_whole_linear_programme(seed):
    from scipy.optimize import linprog

    rng = RNG(seed)
    n = 25
    Q, K = 2 * rng.standard_normal((2, n, 4))
    mask = "causal" if seed % 2 else None
    share = hf.attention_matrix(Q, K, mask=mask)
    options = {"per_row": 3, "per_column": 6}
    rows = sp.kron(sp.eye_array(n), np.ones((1, n)))
    columns = sp.kron(np.ones((1, n)), sp.eye_array(n))
    best = -linprog(
        -share.ravel(),
        A_ub=sp.vstack([rows, columns]).tocsr(),
        b_ub=np.repeat([3.0, 6.0], n),
        bounds=(0, 1),
        method="highs",
    ).fun
    exact = hf.sparsify(Q, K, mask=mask, method="exact", **options)
    assert weight(exact, share) == pytest.approx(best, abs=1e-8)
    assert exact.per_column <= 6
    assert exact.per_row <= 3
    kept = np.where(exact.matrix.toarray() > 0, share, 0).sum(axis=1)
    np.testing.assert_allclose(exact.dropped_mass, 1 - kept, atol=1e-12)
    greedy = hf.sparsify(Q, K, mask=mask, **options)
    assert best / 2 <= weight(greedy, share) <= best + 1e-9
    again = hf.sparsify(share, method="exact", **options)
    assert weight(again, share) == pytest.approx(best, abs=1e-8)


def test_exact_without_a_bound_on_columns_is_greedy():
    M = RNG(9).random((10, 10))
    a, b = (hf.sparsify(M, mass=0.5, method=method) for method in ("greedy", "exact"))
    assert (a.matrix != b.matrix).nnz == 0


def test_the_mask_of_a_result_does_not_change():
    mask, x = np.ones((5, 5), bool), RNG(9).random((5, 5))
    each = hf.sparsify(x, mask=mask, per_row=1), hf.sparsify(x, x, mask=mask, per_row=1)
    mask[:] = False
    assert all(kept.mask.all() for kept in each)


# Rows that lose everything, and bad input ---------------------------------------------


@pytest.mark.parametrize("method", ["greedy", "exact"])
def test_a_row_that_loses_everything_is_named_or_keeps_its_largest(method):
    M = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.3, 0.7, 0.0]])
    with pytest.raises(InputError, match=r"row 1 keeps nothing.*1 entries a column"):
        hf.sparsify(M, per_row=1, per_column=1, method=method)
    kept = hf.sparsify(M, per_row=1, per_column=1, method=method, on_empty="keep-max")
    np.testing.assert_array_equal(kept.matrix.toarray(), [[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert kept.per_column == 2  # the result reports the actual maximum


def test_empty_rows_of_a_mask_stay_empty():
    mask = np.ones((4, 4), bool)
    mask[2] = False
    kept = hf.sparsify(np.ones((4, 2)), np.ones((4, 2)), mask=mask, per_row=2)
    assert np.diff(kept.matrix.indptr).tolist() == [2, 2, 0, 2]
    np.testing.assert_allclose(kept.dropped_mass, [0.5, 0.5, 0.0, 0.5], rtol=1e-12)


@pytest.mark.parametrize("mask", ["none", "causal", "window", "dense", "sparse"])
@pytest.mark.parametrize("hidden", ["key_mask", "key_lengths", "bias"])
def test_rows_that_other_options_empty_are_ready_for_fit(mask, hidden):
    n = 12
    Q, K = RNG(3).standard_normal((2, n, 3))
    given, allowed = mask_of(mask, n, n)
    columns, bias = np.arange(n), np.zeros((n, n))
    bias[4] = -np.inf
    options, also = {
        "key_mask": (columns > 4, (columns > 4)[None]),
        "key_lengths": (3, (columns < 3)[None]),
        "bias": (bias, bias == 0),
    }[hidden]
    allowed = allowed & also
    kept = hf.sparsify(hf.Attention(Q, K, mask=given, **{hidden: options}), per_row=2)
    target = hf.Target(kept)
    filled = np.diff(target.matrix.indptr) > 0
    np.testing.assert_array_equal(filled, allowed.any(axis=1))
    if filled.all():
        assert type(kept.mask) is type(given) or isinstance(kept.mask, type(given))
    else:
        whole = kept.mask.toarray() if sp.issparse(kept.mask) else kept.mask
        assert sp.issparse(kept.mask) == (mask == "sparse")
        np.testing.assert_array_equal(whole, allowed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give per_row"),
        ({"per_row": 0}, "per_row must be an integer of at least 1; got 0"),
        ({"per_row": 2.0}, "per_row"),
        ({"per_row": 2, "per_column": 0}, "per_column"),
        ({"mass": 0.0}, r"mass must lie in \(0, 1\]; got 0.0"),
        ({"mass": 1.5}, "mass"),
        ({"mass": float("nan")}, "mass"),
        ({"mass": "most"}, r"mass must lie in \(0, 1\]; got 'most'"),
        ({"per_row": 1, "on_empty": "skip"}, "on_empty"),
        ({"per_row": 1, "method": "best"}, "method"),
        ({"per_row": 1, "exempt_columns": "sinks"}, "exempt_columns"),
        ({"per_row": 1, "exempt_columns": [3]}, r"exempt_columns must lie in 0 ... 2; got 3"),
        ({"per_row": 1, "exempt_columns": [-1]}, "exempt_columns"),
        ({"per_row": 1, "exempt_columns": [0.5]}, "exempt_columns"),
        ({"per_row": 1, "scale": 2.0}, "scale goes with queries and keys"),
        ({"per_row": 1, "bias": np.ones((3, 3))}, "bias goes with queries and keys"),
        ({"per_row": 1, "mass": 0.5, "per_column": 1, "method": "exact"}, "mass must be None"),
        ({"per_row": 1, "mask": np.ones((2, 2), bool)}, "mask must broadcast"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        hf.sparsify(np.full((3, 3), 1 / 3), **arguments)


@pytest.mark.parametrize("bad", [np.nan, -0.5, np.inf])
@pytest.mark.parametrize("sparse", [False, True])
def test_bad_entries_of_a_matrix_are_named(bad, sparse):
    M = np.full((3, 3), 1 / 3)
    M[1, 2] = bad
    with pytest.raises(InputError, match="at row 1, column 2"):
        hf.sparsify(sp.csr_array(M) if sparse else M, per_row=1)
    # Masked entries are ignored.
    mask = np.ones((3, 3), bool)
    mask[1, 2] = False
    assert hf.sparsify(M, per_row=1, mask=mask).per_row == 1


def test_bad_logits_and_shapes_are_named():
    Q = np.ones((3, 2))
    with pytest.raises(InputError, match="give Q and K, or an Attention"):
        hf.sparsify(None, Q, per_row=1)
    with pytest.raises(InputError, match="the leading axes of K must be those of Q"):
        hf.sparsify(Q, np.ones((2, 3, 2)), per_row=1)
    with pytest.raises(InputError, match="rows and columns"):
        hf.sparsify(np.ones((0, 3)), per_row=1)
    with pytest.raises(InputError, match="M must be a matrix"):
        hf.sparsify(np.ones((2, 3, 3)), per_row=1)
    with pytest.raises(NonFiniteError, match="Q must be finite"):
        hf.sparsify(np.where(np.eye(3, 2) > 0, np.nan, 1), Q, per_row=1)
    side = int(np.sqrt(EXACT_LIMIT)) + 1
    with pytest.raises(InputError, match="exact"):
        hf.sparsify(sp.eye_array(side).tocsr(), per_row=1, per_column=1, method="exact")


def test_what_it_says():
    text = repr(hf.sparsify(with_sink(), per_row=3, per_column=4, exempt_columns="auto"))
    assert "60 x 60" in text
    assert "at most 3 a row and 4 a column without columns 7" in text
    assert "dropped mass" in text


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_stacks_of_heads_are_as_single_calls(threads):
    """Each head of a stack gets, bit for bit, what a call for it alone returns."""
    rng = np.random.default_rng(5)
    Q, K = rng.standard_normal((2, 4, 30, 6)), rng.standard_normal((2, 2, 30, 6))
    bias = rng.standard_normal((4, 30, 30))
    bounds = {"per_row": 3, "per_column": 6, "on_empty": "keep-max"}
    stack = hf.sparsify(Q, K, mask="causal", bias=bias, num_threads=threads, **bounds)
    assert stack.shape == (2, 4)
    for b, h in np.ndindex(2, 4):
        alone = hf.sparsify(Q[b, h], K[b, h // 2], mask="causal", bias=bias[h], **bounds)
        np.testing.assert_array_equal(stack[b, h].matrix.toarray(), alone.matrix.toarray())
        np.testing.assert_array_equal(stack[b, h].dropped_mass, alone.dropped_mass)
    flat = hf.sparsify(hf.Attention(Q[0], K[0]), mass=0.5, num_threads=threads)
    assert flat.shape == (4,)
    assert hf.sparsify(Q[:0], K[:0], per_row=1).shape == (0, 4)


def test_an_error_in_a_stack_names_the_head():
    Q, K = np.zeros((2, 8, 2)), np.zeros((8, 2))
    mask = np.ones((2, 8, 8), dtype=bool)
    mask[1] = np.arange(8) == 2  # all rows want the same column
    with pytest.raises(InputError, match=r"head 1: row \d keeps nothing"):
        hf.sparsify(Q, K, mask=mask, per_row=1, per_column=1, num_threads=2)
