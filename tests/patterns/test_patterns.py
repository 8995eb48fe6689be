"""headfit.patterns compared with its documentation and with slow references."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from headfit import patterns
from headfit.errors import InputError, TargetError, TooLargeError

POINTS = np.random.default_rng(5).standard_normal((40, 3))
PATH_GRAPH = np.eye(7, k=1) + np.eye(7, k=-1)

# A function for each kind, which makes a pattern from the keywords that all kinds share.
KINDS: dict[str, Callable[..., Any]] = {
    "random_regular": lambda **s: patterns.random_regular(30, 4, **s),
    "permutation": lambda **s: patterns.permutation(30, **s),
    "band": lambda **s: patterns.band(30, 2, **s),
    "causal_band": lambda **s: patterns.causal_band(30, 3, **s),
    "dilated": lambda **s: patterns.dilated(30, 2, 4, **s),
    "circulant": lambda **s: patterns.circulant(30, [-1, 2, 7], **s),
    "strided": lambda **s: patterns.strided(30, 5, **s),
    "block": lambda **s: patterns.block(30, 4, **s),
    "bigbird": lambda **s: patterns.bigbird(30, 2, 2, 3, **s),
    "grid2d": lambda **s: patterns.grid2d(5, 6, **s),
    "tree": lambda **s: patterns.tree(30, **s),
    "butterfly": lambda **s: patterns.butterfly(32, **s),
    "hypercube": lambda **s: patterns.hypercube(32, **s),
    "previous_token": lambda **s: patterns.previous_token(30, **s),
    "induction": lambda **s: patterns.induction([0, 1, 0, 2, 0, 1, 1, 2] * 3, which="all", **s),
    "from_graph": lambda **s: patterns.from_graph(PATH_GRAPH, **s),
    "from_mask": lambda **s: patterns.from_mask(np.tri(9, dtype=bool), **s),
    "window_global": lambda **s: patterns.window_global(30, 3, 2, stride=7, **s),
    "knn": lambda **s: patterns.knn(POINTS, 4, **s),
    "digits_knn": lambda **s: patterns.digits_knn(**s),
}
RANDOM_PLACES = {"random_regular", "permutation", "bigbird"}
SIZES = st.integers(1, 40)


def ratios(A: sparse.csr_array) -> np.ndarray:
    """Return the ratio of the largest to the smallest nonzero of each row."""
    starts = A.indptr[:-1]
    return np.maximum.reduceat(A.data, starts) / np.minimum.reduceat(A.data, starts)


def check(A: sparse.csr_array, gamma: float = 1.0) -> None:
    """Check what the documentation says about every pattern."""
    n = A.shape[0]
    assert isinstance(A, sparse.csr_array)
    assert A.shape == (n, n)
    assert A.data.dtype == np.float64
    assert A.indices.dtype == np.int32
    assert A.indptr.dtype == np.int32
    assert A.indices.min() >= 0
    assert A.indices.max() < n
    rows = np.repeat(np.arange(n), np.diff(A.indptr))
    assert (np.diff(rows * n + A.indices) > 0).all(), "columns sorted and distinct"
    assert (np.diff(A.indptr) > 0).all(), "no empty row"
    assert (A.data > 0).all()
    np.testing.assert_allclose(A.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    assert ratios(A).max() <= gamma


def support(A: sparse.csr_array) -> np.ndarray:
    return A.toarray() > 0


def per_row(A: sparse.csr_array) -> set[int]:
    return set(np.diff(A.indptr).tolist())


def per_column(A: sparse.csr_array) -> set[int]:
    return set(np.bincount(A.indices, minlength=A.shape[0]).tolist())


def distance(n: int) -> np.ndarray:
    """Return the matrix with i - j at (i, j)."""
    return np.subtract.outer(np.arange(n), np.arange(n))


# What holds for every kind ------------------------------------------------------------


def test_every_public_pattern_is_tested() -> None:
    assert set(KINDS) == set(patterns.__all__)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [1.0, 1.0000001, 2.0, 1e6])
def test_row_stochastic_with_bounded_ratios(kind: str, gamma: float) -> None:
    check(KINDS[kind](gamma=gamma, rng=1), gamma)
    check(KINDS[kind](gamma=gamma, rng=1, weights="uniform"))


@pytest.mark.parametrize("kind", KINDS)
def test_default_weights_follow_gamma(kind: str) -> None:
    make = KINDS[kind]
    equal = make(rng=1)
    assert ratios(equal).max() == 1.0
    assert np.array_equal(make(rng=1, weights="random").data, equal.data)
    drawn = make(rng=1, gamma=4.0)
    assert np.array_equal(drawn.data, make(rng=1, gamma=4.0, weights="random").data)
    if max(per_row(drawn)) > 1:
        assert ratios(drawn).max() > 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_reproduce_and_weights_leave_the_places(kind: str) -> None:
    make = KINDS[kind]
    first, again, other = make(gamma=2.0, rng=3), make(gamma=2.0, rng=3), make(gamma=2.0, rng=4)
    generator = make(gamma=2.0, rng=np.random.default_rng(3))
    for same in (again, generator):
        assert np.array_equal(first.indices, same.indices)
        assert np.array_equal(first.data, same.data)
    assert np.array_equal(first.indices, make(rng=3).indices)
    assert np.array_equal(first.indices, other.indices) == (kind not in RANDOM_PLACES)
    if max(per_row(first)) > 1:
        assert not np.array_equal(first.data, other.data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 0.5),
        ("gamma", np.nan),
        ("gamma", np.inf),
        ("gamma", "two"),
        ("weights", "equal"),
        ("rng", -1),
        ("rng", "seed"),
    ],
)
def test_shared_arguments_are_checked(kind: str, name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{name} must"):
        KINDS[kind](**{name: value})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("n", lambda: patterns.band(0, 1)),
        ("n", lambda: patterns.random_regular(2**31, 1)),
        ("n", lambda: patterns.tree(3.0)),  # type: ignore[arg-type]
        ("n", lambda: patterns.permutation(True)),
        ("k", lambda: patterns.random_regular(5, 0)),
        ("k", lambda: patterns.random_regular(5, 6)),
        ("neighbors", lambda: patterns.band(5, -1)),
        ("neighbors", lambda: patterns.causal_band(5, -1)),
        ("boundary", lambda: patterns.band(5, 1, boundary="mirror")),  # type: ignore[arg-type]
        ("boundary", lambda: patterns.grid2d(5, 1, boundary="mirror")),  # type: ignore[arg-type]
        ("dilation", lambda: patterns.dilated(5, 1, 0)),
        ("offsets", lambda: patterns.circulant(5, [])),
        ("offsets", lambda: patterns.circulant(5, [0.5])),
        ("offsets", lambda: patterns.circulant(5, np.array([1], "m8[s]"))),
        ("stride", lambda: patterns.strided(5, 0)),
        ("neighbors", lambda: patterns.strided(5, 2, neighbors=-1)),
        ("gamma", lambda: patterns.band(5, 2, gamma=1e301)),
        ("size", lambda: patterns.block(5, 0)),
        ("neighbors", lambda: patterns.bigbird(5, -1, 0, 0)),
        ("n_global", lambda: patterns.bigbird(5, 1, 6, 0)),
        ("n_random", lambda: patterns.bigbird(5, 1, 0, 6)),
        ("width", lambda: patterns.window_global(5, 0, 0)),
        ("n_global", lambda: patterns.window_global(5, 1, 6)),
        ("stride", lambda: patterns.window_global(5, 1, 1, stride=0)),
        ("causal", lambda: patterns.window_global(5, 1, 1, causal=1)),  # type: ignore[arg-type]
        ("height", lambda: patterns.grid2d(0, 3)),
        ("width", lambda: patterns.grid2d(3, 0)),
        ("width", lambda: patterns.grid2d(2**16, 2**16)),
        ("arity", lambda: patterns.tree(5, 0)),
        ("stages", lambda: patterns.butterfly(8, stages=[3])),
        ("tokens", lambda: patterns.induction([])),
        ("tokens", lambda: patterns.induction([[1, 2]])),
        ("tokens", lambda: patterns.induction([1, 5, "1"])),
        ("tokens", lambda: patterns.induction(["1", 1.0])),
        ("tokens", lambda: patterns.induction([b"1", 1])),
        ("tokens", lambda: patterns.induction([b"1", "1"])),
        ("which", lambda: patterns.induction([1], which="first")),  # type: ignore[arg-type]
        ("graph", lambda: patterns.from_graph(np.ones((2, 3)))),
        ("graph", lambda: patterns.from_graph(np.zeros((0, 0)))),
        ("graph", lambda: patterns.from_graph(object())),
        ("graph", lambda: patterns.from_graph(np.full((2, 2), np.nan))),
        ("points", lambda: patterns.knn(np.zeros((1, 2)), 1)),
        ("points", lambda: patterns.knn(np.zeros((2, 2, 2)), 1)),
        ("points", lambda: patterns.knn([[0.0], [np.inf], [1.0]], 1)),
        ("points", lambda: patterns.knn([[0.0], [1e300]], 1)),
        ("points", lambda: patterns.knn(["a", "b"], 1)),
        ("k", lambda: patterns.knn(POINTS, 40)),
        ("per_column", lambda: patterns.knn(POINTS, 4, 0)),
        ("per_column", lambda: patterns.knn(POINTS, 4, 3)),
        ("on_short", lambda: patterns.knn(POINTS, 4, on_short="pad")),  # type: ignore[arg-type]
        ("bandwidth", lambda: patterns.knn(POINTS, 4, bandwidth=0.0)),
        ("bandwidth", lambda: patterns.knn(POINTS, 4, bandwidth=1.0, gamma=8.0)),
        ("bandwidth", lambda: patterns.knn(POINTS, 4, bandwidth=1.0, weights="uniform")),
    ],
)
def test_bad_arguments_are_named(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=f"^{name} must"):
        call()


def test_weights_of_any_ratio_are_positive() -> None:
    A = patterns.band(400, 150, gamma=1e300)
    assert (A.data > 0).all()
    np.testing.assert_allclose(A.sum(axis=1), 1)


@pytest.mark.parametrize("boundary", ["clip", "wrap"])
def test_a_band_beyond_the_memory_is_refused_before_its_offsets_are_made(boundary: str) -> None:
    with pytest.raises(TooLargeError, match="a pattern of n = 1000000000 tokens"):
        patterns.band(10**9, 10**9, boundary=boundary)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65])
def test_small_and_odd_sizes(n: int) -> None:
    for A in (
        patterns.random_regular(n, n, rng=0),
        patterns.permutation(n, rng=0),
        patterns.band(n, 100),
        patterns.band(n, 100, boundary="wrap"),
        patterns.causal_band(n, 100),
        patterns.dilated(n, 3, 100),
        patterns.dilated(n, 3, 100, boundary="wrap"),
        patterns.circulant(n, [10**15, -7]),
        patterns.strided(n, 100),
        patterns.block(n, 100),
        patterns.bigbird(n, 0, 0, 0),
        patterns.bigbird(n, 1, n, n),
        patterns.window_global(n, 100, n),
        patterns.window_global(n, 1, 0, stride=100),
        patterns.window_global(n, 1, n, causal=False, stride=2**40),
        patterns.from_mask(np.ones((n, n), bool)),
        patterns.grid2d(1, n),
        patterns.grid2d(n, 1, boundary="wrap", diagonals=True),
        patterns.tree(n, 100),
        patterns.butterfly(n),
        patterns.hypercube(n),
        patterns.previous_token(n),
        patterns.induction(np.zeros(n)),
    ):
        assert A.shape == (n, n)
        check(A)


# Each kind ----------------------------------------------------------------------------


@given(SIZES, st.data(), st.integers(0, 2**32))
def test_random_regular_has_exactly_k(n: int, data: st.DataObject, seed: int) -> None:
    k = data.draw(st.integers(1, n))
    A = patterns.random_regular(n, k, rng=seed)
    check(A)
    assert per_row(A) == per_column(A) == {k}


@pytest.mark.parametrize(("n", "k"), [(20_000, 8), (1000, 300), (1000, 700), (1000, 500)])
def test_random_regular_larger(n: int, k: int) -> None:
    A = patterns.random_regular(n, k, rng=0)
    check(A)
    assert per_row(A) == per_column(A) == {k}


def test_random_regular_places_are_even() -> None:
    # Each entry is nonzero with probability k/n = 1/2: 2000 draws, 5 standard deviations.
    taken = sum(support(patterns.random_regular(6, 3, rng=seed)) for seed in range(2000))
    assert abs(taken / 2000 - 0.5).max() < 5 * 0.5 / np.sqrt(2000)


@given(SIZES, st.integers(0, 2**32))
def test_permutation(n: int, seed: int) -> None:
    A = patterns.permutation(n, gamma=3.0, rng=seed)
    check(A)
    assert per_row(A) == per_column(A) == {1}


@given(SIZES, st.integers(0, 50), st.integers(1, 50))
def test_bands(n: int, width: int, dilation: int) -> None:
    apart = distance(n)
    steps = [dilation * m for m in range(-width, width + 1)]
    wrapped = np.isin(apart % n, np.mod(steps, n))
    assert np.array_equal(support(patterns.band(n, width)), abs(apart) <= width)
    causal = (apart >= 0) & (apart <= width)
    assert np.array_equal(support(patterns.causal_band(n, width)), causal)
    dilated = patterns.dilated(n, width, dilation)
    assert np.array_equal(support(dilated), np.isin(apart, steps))
    around = patterns.dilated(n, width, dilation, boundary="wrap")
    assert np.array_equal(support(around), wrapped)
    ring = patterns.band(n, width, boundary="wrap")
    assert per_row(ring) == per_column(ring) == {min(2 * width + 1, n)}


@given(SIZES, st.lists(st.integers(-100, 100), min_size=1, max_size=6))
def test_circulant(n: int, offsets: list[int]) -> None:
    A = patterns.circulant(n, offsets)
    assert np.array_equal(support(A), np.isin(-distance(n) % n, np.mod(offsets, n)))
    assert per_row(A) == per_column(A) == {len({offset % n for offset in offsets})}


def test_circulant_takes_unsigned_offsets() -> None:
    A = patterns.circulant(5, np.array([1], dtype=np.uint8))
    assert A.indices.tolist() == [1, 2, 3, 4, 0]


@given(SIZES, st.integers(1, 50), st.none() | st.integers(0, 50))
def test_strided(n: int, stride: int, window: int | None) -> None:
    reach = stride if window is None else window
    apart = distance(n)
    both = (abs(apart) <= reach) | (apart % stride == 0)
    assert np.array_equal(
        support(patterns.strided(n, stride, neighbors=window)), both & (apart >= 0)
    )
    assert np.array_equal(
        support(patterns.strided(n, stride, neighbors=window, causal=False)), both
    )


@given(SIZES, st.integers(1, 50))
def test_block(n: int, size: int) -> None:
    blocks = np.arange(n) // size
    assert np.array_equal(support(patterns.block(n, size)), np.equal.outer(blocks, blocks))


@pytest.mark.parametrize("boundary", ["clip", "wrap"])
def test_bigbird(boundary: Any) -> None:
    n, window, n_global, n_random = 60, 2, 3, 4
    A = patterns.bigbird(n, window, n_global, n_random, boundary=boundary, rng=0)
    apart = distance(n)
    near = abs(apart) <= window
    if boundary == "wrap":
        near = np.minimum(apart % n, -apart % n) <= window
    fixed = near.copy()
    fixed[:n_global] = True
    fixed[:, :n_global] = True
    S = support(A)
    assert S[fixed].all()
    bound = 2 * window + 1 + n_global + n_random
    assert (S.sum(axis=0)[:n_global] == n).all(), "the global columns break the bound"
    assert (S.sum(axis=0)[n_global:] <= bound).all()
    assert (S.sum(axis=1)[n_global:] <= bound).all()
    assert (S & ~fixed).sum() > n  # some random ones are there
    assert (S & ~fixed).sum(axis=1).max() <= n_random


@given(SIZES, st.integers(1, 50), st.data(), st.booleans(), st.none() | st.integers(1, 50))
def test_window_global(
    n: int, width: int, data: st.DataObject, causal: bool, stride: int | None
) -> None:
    n_global = data.draw(st.integers(0, n))
    A = patterns.window_global(n, width, n_global, causal=causal, stride=stride)
    expected = np.zeros((n, n), dtype=bool)
    for i, j in np.ndindex(n, n):
        near = abs(i - j) < width
        far = stride is not None and (i - j) % stride == 0
        shared = j < n_global or (i < n_global and not causal)
        expected[i, j] = (near or far or shared) and (j <= i or not causal)
    check(A)
    assert np.array_equal(support(A), expected)


def test_window_global_among_other_patterns() -> None:
    def same(A: sparse.csr_array, B: sparse.csr_array) -> bool:
        return np.array_equal(A.toarray(), B.toarray())

    assert same(patterns.window_global(40, 5, 0), patterns.causal_band(40, 4))
    assert same(patterns.window_global(40, 5, 0, causal=False), patterns.band(40, 4))
    assert same(
        patterns.window_global(40, 5, 2, causal=False, gamma=3.0, rng=1),
        patterns.bigbird(40, 4, 2, 0, gamma=3.0, rng=1),
    )
    for causal in (False, True):
        A = patterns.window_global(40, 5, 0, stride=7, causal=causal)
        assert same(A, patterns.strided(40, 7, neighbors=4, causal=causal))


def test_empty_rows_after_full_ones_attend_to_themselves() -> None:
    A = patterns._build.from_edges(np.repeat([0, 1], 4), np.tile(np.arange(4), 2), 4)
    assert np.array_equal(support(A), np.vstack([np.ones((2, 4)), np.eye(4)[2:]]))


def grid_reference(
    height: int, width: int, diagonals: bool, wrap: bool, self_loops: bool
) -> np.ndarray:
    S = np.zeros((height * width,) * 2, dtype=bool)
    for r, c, dr, dc in np.ndindex(height, width, 3, 3):
        i, r2, c2 = r * width + c, r + dr - 1, c + dc - 1
        if not diagonals and dr != 1 and dc != 1:
            continue
        if wrap:
            r2, c2 = r2 % height, c2 % width
        if 0 <= r2 < height and 0 <= c2 < width:
            S[i, r2 * width + c2] = True
    np.fill_diagonal(S, self_loops or len(S) == 1)
    return S


@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans(), st.booleans())
def test_grid2d(height: int, width: int, diagonals: bool, wrap: bool, loops: bool) -> None:
    A = patterns.grid2d(
        height,
        width,
        diagonals=diagonals,
        boundary="wrap" if wrap else "clip",
        self_loops=loops,
    )
    check(A)
    assert np.array_equal(support(A), grid_reference(height, width, diagonals, wrap, loops))


@given(SIZES, st.integers(1, 50), st.booleans())
def test_tree(n: int, arity: int, loops: bool) -> None:
    S = np.zeros((n, n), dtype=bool)
    for child in range(1, n):
        S[child, (child - 1) // arity] = S[(child - 1) // arity, child] = True
    np.fill_diagonal(S, loops or n == 1)
    A = patterns.tree(n, arity, self_loops=loops)
    check(A)
    assert np.array_equal(support(A), S)
    assert max(per_row(A)) <= arity + 1 + loops


@given(SIZES)
def test_hypercube_and_butterfly(n: int) -> None:
    flips = np.bitwise_xor.outer(np.arange(n), np.arange(n))
    edges = (flips > 0) & (flips & (flips - 1) == 0)  # powers of two: one bit apart
    assert np.array_equal(support(patterns.hypercube(n)), edges | (np.eye(n) * (n == 1) > 0))
    assert np.array_equal(support(patterns.butterfly(n)), edges | np.eye(n, dtype=bool))
    both = patterns.hypercube(n, self_loops=True), patterns.butterfly(n)
    assert np.array_equal(both[0].indices, both[1].indices)
    for stage in range((n - 1).bit_length()):
        factor = support(patterns.butterfly(n, stages=[stage]))
        assert np.array_equal(factor, (flips == 0) | (flips == 1 << stage))


def test_butterfly_of_a_power_of_two_is_regular() -> None:
    A = patterns.butterfly(64)
    assert per_row(A) == per_column(A) == {7}


@given(SIZES)
def test_previous_token(n: int) -> None:
    assert patterns.previous_token(n).indices.tolist() == [0, *range(n - 1)]
    wrapped = patterns.previous_token(n, boundary="wrap")
    assert wrapped.indices.tolist() == [n - 1, *range(n - 1)]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_induction(tokens: list[int]) -> None:
    n = len(tokens)
    every, latest = np.zeros((2, n, n), dtype=bool)
    for i in range(n):
        after = [p + 1 for p in range(i) if tokens[p] == tokens[i]] or [i]
        every[i, after] = True
        latest[i, after[-1]] = True
    A = patterns.induction(tokens, which="all")
    check(A)
    assert np.array_equal(support(A), every)
    B = patterns.induction(tokens)
    assert np.array_equal(support(B), latest)
    assert max(per_column(B)) <= 2


def test_induction_takes_strings() -> None:
    by_letters = patterns.induction("the cat saw the cat")
    by_codes = patterns.induction([ord(letter) for letter in "the cat saw the cat"])
    assert np.array_equal(by_letters.indices, by_codes.indices)
    assert patterns.induction(["to", "be", "to"]).indices.tolist() == [0, 1, 1]


# From data ----------------------------------------------------------------------------


def test_from_graph_matrices() -> None:
    dense = np.array([[1.0, 0.5, 0.0], [0.0, 0.0, -2.0], [7.0, 0.0, 0.0]])
    # A zero that is stored at (1, 1) is not an edge.
    stored = sparse.csr_array(([1.0, 0.5, 0.0, -2.0, 7.0], [0, 1, 1, 2, 0], [0, 2, 4, 5]))
    twice = sparse.coo_array(([1, 1, 1, 1, 5, -5], ([0, 0, 1, 2, 1, 1], [0, 1, 2, 0, 0, 0])))
    for graph in (dense, dense != 0, stored, stored.tocsc(), sparse.csr_matrix(dense), twice):
        A = patterns.from_graph(graph)
        check(A)
        assert np.array_equal(support(A), dense != 0)
    assert stored.nnz == twice.nnz - 1 == 5, "the arguments stay as they were"
    assert np.array_equal(
        support(patterns.from_graph(dense, self_loops=True)), (dense != 0) | np.eye(3, dtype=bool)
    )
    loopless = patterns.from_graph(dense, self_loops=False)
    assert np.array_equal(support(loopless), (dense != 0) & ~np.eye(3, dtype=bool))


def test_from_graph_names_an_isolated_row() -> None:
    with pytest.raises(TargetError, match=r"^graph must have .*row 2 "):
        patterns.from_graph(np.diag([1, 1, 0, 0]))
    assert per_row(patterns.from_graph(np.diag([1, 1, 0, 0]), self_loops=True)) == {1}


def test_from_graph_names_the_row_of_a_nan() -> None:
    graph = np.eye(4)
    graph[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN in row 2"):
        patterns.from_graph(sparse.csr_array(graph))


def test_from_networkx() -> None:
    nx = pytest.importorskip("networkx")
    grid = patterns.from_graph(nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4)))
    assert np.array_equal(grid.toarray(), patterns.grid2d(3, 4).toarray())
    graph = nx.MultiDiGraph()
    graph.add_nodes_from("cab")
    graph.add_edges_from([("c", "a")] * 300 + [("a", "b"), ("b", "b")], weight=0.0)
    assert patterns.from_graph(graph).indices.tolist() == [1, 2, 2]
    with pytest.raises(InputError, match=r"^graph must have at least one node"):
        patterns.from_graph(nx.Graph())


def test_networkx_is_not_imported_unasked() -> None:
    code = "import sys, headfit.patterns; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def sorted_pairs(points: np.ndarray) -> list[tuple[float, int, int]]:
    """Return all pairs of different points as (squared distance, row, column), closest first."""
    n = len(points)
    squares = np.zeros((n, n))
    for coordinate in points.T:
        squares += np.subtract.outer(coordinate, coordinate) ** 2
    return sorted((squares[i, j], i, j) for i in range(n) for j in range(n) if i != j)


def greedy_reference(points: np.ndarray, k: int, cap: int) -> np.ndarray:
    taken = np.zeros((len(points),) * 2, dtype=bool)
    for _, i, j in sorted_pairs(points):
        if taken[i].sum() < k and taken[:, j].sum() < cap:
            taken[i, j] = True
    return taken


def clouds(seed: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "tree": rng.standard_normal((n, 3)),
        "brute force": rng.standard_normal((n, 20)),
        "line": np.arange(n)[:, None] * 1.0,
        "lattice": rng.integers(0, 3, (n, 3)).astype(float),  # ties everywhere
        "one place": np.zeros((n, 2)),
        "hub": rng.standard_normal((n, 30)) / np.arange(1, n + 1)[:, None],
        "near ties": 0.1 * rng.integers(0, 3, (n, 14)) + 1e8,
    }


@pytest.mark.parametrize("cloud", clouds(0, 2))
@pytest.mark.parametrize("n", [2, 9, 60])
def test_knn_is_exact(cloud: str, n: int) -> None:
    points = clouds(n, n)[cloud]
    for k in {1, min(4, n - 1), n - 1}:
        A = patterns.knn(points, k)
        check(A)
        assert per_row(A) == {k}
        assert np.array_equal(support(A), greedy_reference(points, k, n))


@pytest.mark.parametrize("cloud", clouds(0, 2))
@pytest.mark.parametrize("cap", [1, 3, 4, 6])
def test_knn_with_a_column_cap_is_greedy(cloud: str, cap: int) -> None:
    points, k = clouds(cap, 45)[cloud], 4
    expected = greedy_reference(points, k, cap)
    empty = np.flatnonzero(~expected.any(axis=1))
    short = np.flatnonzero(expected.sum(axis=1) < k)
    if empty.size:
        with pytest.raises(TargetError, match=f"^per_column: row {empty[0]} finds 0 "):
            patterns.knn(points, k, cap, on_short="fewer")
    else:
        A = patterns.knn(points, k, cap, on_short="fewer")
        check(A)
        assert np.array_equal(support(A), expected)
    if cap < k:
        return
    if short.size:
        with pytest.raises(TargetError, match=f"^per_column: row {short[0]} finds "):
            patterns.knn(points, k, cap)
    else:
        assert np.array_equal(support(patterns.knn(points, k, cap)), expected)


@given(st.integers(2, 25), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32))
def test_knn_with_a_column_cap_any(n: int, k: int, cap: int, seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 4, (n, 2)).astype(float)
    k = min(k, n - 1)
    expected = greedy_reference(points, k, cap)
    if expected.any(axis=1).all():
        A = patterns.knn(points, k, cap, on_short="fewer")
        assert np.array_equal(support(A), expected)


def test_knn_of_a_large_lattice_is_exact() -> None:
    points = np.random.default_rng(0).integers(0, 12, (1500, 3)).astype(float)
    squares = np.square(points[:, np.newaxis] - points).sum(axis=-1)
    np.fill_diagonal(squares, np.inf)
    nearest = np.sort(np.argsort(squares, axis=1, kind="stable")[:, :5], axis=1)
    assert np.array_equal(patterns.knn(points, 5).indices.reshape(1500, 5), nearest)
    assert max(per_column(patterns.knn(points, 5, 7, on_short="fewer"))) == 7


@pytest.mark.parametrize("power", [-1040, -900, -300, 300, 500])
def test_knn_does_not_depend_on_the_unit_of_points(power: int) -> None:
    points = np.random.default_rng(0).integers(0, 40, (60, 2)) * 1.0
    scaled = np.ldexp(np.hstack([points, np.full((60, 1), 37.0)]), power)
    for more in ({}, {"per_column": 6, "on_short": "fewer"}):
        want, got = (patterns.knn(x, 4, **more) for x in (points, scaled))
        assert np.array_equal(got.toarray(), want.toarray())
    for bandwidth in (None, 3.0):
        wide = None if bandwidth is None else np.ldexp(bandwidth, power)
        style: Any = {"weights": "gaussian", "gamma": 1e9}
        want = patterns.knn(points, 4, bandwidth=bandwidth, **style)
        assert np.array_equal(
            patterns.knn(scaled, 4, bandwidth=wide, **style).toarray(), want.toarray()
        )


def test_knn_tells_tiny_distances_beside_large_ones_apart() -> None:
    assert patterns.knn(np.array([0, 3e-200, 1e-200]), 1).indices.tolist() == [2, 2, 0]
    far = patterns.knn(np.array([0, 3e-250, 1e-250, 1.0, -2.0]), 1)
    assert far.indices.tolist() == [2, 2, 0, 0, 0]
    assert patterns.knn([[0, 1e300], [3e-300, 1e300], [1e-300, 1e300]], 1).indices.tolist() == [
        *(2, 2, 0)
    ]


def test_knn_gaussian_weights() -> None:
    points = np.array([0.0, 1.0, 3.0, 7.0])
    A = patterns.knn(points, 3, weights="gaussian", gamma=1e9, bandwidth=2.0)
    squares = np.subtract.outer(points, points) ** 2
    expected = np.exp(-squares / 8) * (1 - np.eye(4))
    np.testing.assert_allclose(A.toarray(), expected / expected.sum(axis=1, keepdims=True))

    capped = patterns.knn(points, 3, weights="gaussian", gamma=2.0, bandwidth=0.5)
    check(capped, 2.0)
    np.testing.assert_allclose(ratios(capped), 2.0)

    own = patterns.knn(points, 3, weights="gaussian", gamma=9.0)
    np.testing.assert_allclose(ratios(own)[0], np.exp(0.5 * (1 - 1 / 49)))
    same_place = patterns.knn(np.zeros((5, 2)), 3, weights="gaussian", gamma=9.0, bandwidth=1e-200)
    assert ratios(same_place).max() == 1.0


def test_digits() -> None:
    A = patterns.digits_knn()
    check(A)
    assert A.shape == (1797, 1797)
    assert per_row(A) == {8}
    assert max(per_column(A)) <= 16
    assert not A.diagonal().any()


def test_digits_come_from_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    points = datasets.load_digits().data
    made = patterns.knn(points, k=8, per_column=16)
    shipped = patterns.digits_knn()
    assert np.array_equal(made.indices, shipped.indices)
    assert np.array_equal(made.indptr, shipped.indptr)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64])
def test_offsets_of_narrow_integers(dtype: Any) -> None:
    wide, narrow = (patterns.circulant(300, np.array([1, 2], kind)) for kind in (np.int64, dtype))
    np.testing.assert_array_equal(narrow.indices, wide.indices)
