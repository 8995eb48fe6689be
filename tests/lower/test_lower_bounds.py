"""Lower bounds compared with brute force and with existing heads, and checks of witnesses."""

import dataclasses
import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.spatial
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.references import allowed_by

import headfit as hf
from headfit._lower.general import counting, log_regular_patterns
from headfit._lower.hull import (
    Hull,
    count_squares,
    count_triangles,
    dim_of_edges,
    dim_of_hull,
    not_in_a_polygon,
)
from headfit._lower.lower import lower
from headfit._lower.problem import Problem, Visibility, best_proof
from headfit._lower.traces import NoOrder, Traces, least_dim, order_proofs
from headfit._lower.traces import traces as search_traces
from headfit._lower.weights import Block, _positive_eigenvalues, block_dim
from headfit.bounds import random_keys_dim

P = hf.patterns
USUAL = hf.Tolerances(0.05, 0.1)


def no_limit():
    """Let a search go on, at any time."""


def candidate(bound, name):
    return next(c for c in bound.candidates if c.name == name)


def mask_forms(n, rng):
    dense = rng.random((n, n)) < 0.8
    np.fill_diagonal(dense, True)
    rows = np.zeros((1, n), bool)
    rows[:, : max(2, n - 3)] = True
    return [None, "causal", ("window", 4), ("window", (2, 3)), dense, sp.csr_array(dense), rows]


def head_target(seed, n, d, most, mask=None, spread=None):
    """Return a target that a head of size d meets: the softmax over the top keys of each row.

    The distortion of the head is 0; after scaling its leak is at most 1/2.
    """
    rng = np.random.default_rng(seed)
    kind = rng.integers(3)
    K = rng.normal(size=(n, d))
    if kind == 1:
        K = np.round(2 * K) / 2 + 1e-3 * rng.normal(size=(n, d))  # clusters
    if kind == 2:
        K /= np.linalg.norm(K, axis=1, keepdims=True)
    Q = 2 * K + rng.normal(size=(n, d)) if rng.random() < 0.5 else rng.normal(size=(n, d))
    allowed = allowed_by(mask, n)
    A = np.zeros((n, n))
    leak = 0.0
    for i in range(n):
        seen = np.flatnonzero(allowed[i])
        if not seen.size:
            continue
        s = K[seen] @ Q[i]
        s = s - s.max()
        by = np.argsort(-s)
        size = int(min(rng.integers(1, most + 1), seen.size))
        gap = s[by[size - 1]] - s[by[size]] if size < seen.size else 0.0
        if gap > 1e-9:
            s = s * min(max(1.0, 0.8 / gap), 300.0 / max(1e-9, -s[by[size - 1]]))
            leak = max(leak, math.exp(s[by[size]] - s[by[size - 1]]))
        elif size < seen.size:
            size = seen.size
        A[i, seen[by[:size]]] = np.exp(s[by[:size]])
        A[i] /= A[i].sum()
    return A, leak


def check(A, d, **options):
    bound = lower(A, time_limit=2.0, **options)
    assert bound.dim <= d, bound
    assert all(c.dim is None or c.dim <= d for c in bound.candidates)
    assert bound.verify(A)
    return bound


# Soundness: never above the size of a head that exists.


@given(
    seed=st.integers(0, 10**9),
    n=st.integers(2, 60),
    d=st.integers(1, 3),
    most=st.integers(1, 8),
    form=st.integers(0, 6),
)
def test_never_above_a_head_that_exists(seed, n, d, most, form):
    mask = mask_forms(n, np.random.default_rng(seed))[form]
    A, leak = head_target(seed, n, d, most, mask)
    if not leak < 0.999:
        return
    leak = min(0.9999, leak * 1.001 + 1e-9)
    check(A, d, mask=mask, leak=leak, distortion=1e-6)
    check(A, d, mask=mask, leak=max(leak, 0.9), distortion=0.5)


@given(
    seed=st.integers(0, 10**9),
    d=st.integers(1, 3),
    most=st.integers(1, 12),
    mask=st.sampled_from(["causal", ("window", 40), ("window", (9, 5)), ("window", (400, 3))]),
)
@settings(max_examples=25)
def test_never_above_a_head_that_exists_under_causal_masks_and_windows(seed, d, most, mask):
    A, leak = head_target(seed, 240, d, most, mask)
    if not leak < 0.999:
        return
    check(A, d, mask=mask, leak=min(0.9999, leak * 1.001 + 1e-9), distortion=1e-6)


def causal_random(n, k, rng=0, window=None):
    """Return a target in which each row attends to up to k random keys that its mask allows."""
    rng = np.random.default_rng(rng)
    rows = np.repeat(np.arange(n), k)
    back = np.floor(rng.random(n * k) * np.minimum(rows + 1, window or n)).astype(int)
    A = sp.csr_array((np.ones(n * k), (rows, rows - back)), shape=(n, n))
    A.data[:] = 1.0
    A.data /= np.repeat(np.diff(A.indptr), np.diff(A.indptr))
    return A


@pytest.mark.parametrize(
    ("A", "mask", "dim"),
    [
        (causal_random(60, 2), "causal", 7),
        (causal_random(120, 3), "causal", 7),
        (causal_random(120, 3, window=16), ("window", 16), 7),
        (P.causal_band(120, 3), "causal", 6),
        (P.previous_token(120), ("window", (8, 2)), 3),
        (P.strided(60, 8), "causal", 12),
    ],
)
def test_never_above_a_certified_head(A, mask, dim):
    head = hf.fit(A, dim, mask=mask, time_limit=30)
    assert head.certificate.holds
    check(A, dim, mask=mask)


@pytest.mark.parametrize("d", [2, 3])
def test_halfspaces_near_every_point_of_a_sphere(d):
    rng = np.random.default_rng(d)
    for n, k in ((40, 3), (120, 5), (200, 4)):
        K = rng.normal(size=(n, d))
        K /= np.linalg.norm(K, axis=1, keepdims=True)
        S = 30 * (K + 0.05 * rng.normal(size=(n, d))) @ K.T
        A = np.zeros((n, n))
        leak = 0.0
        for i in range(n):
            by = np.argsort(-S[i])
            A[i, by[:k]] = np.exp(S[i, by[:k]] - S[i, by[0]])
            leak = max(leak, math.exp(S[i, by[k]] - S[i, by[k - 1]]))
        A /= A.sum(axis=1, keepdims=True)
        check(A, d, leak=min(0.99999, leak * 1.0001), distortion=1e-3)


def test_every_edge_of_a_hull():
    """d = 3 allows at most 3 V - 6 edges; one edge more needs d = 4."""
    rng = np.random.default_rng(0)
    V = 20
    n = 3 * V - 6
    K = np.zeros((n, 3))
    K[:V] = rng.normal(size=(V, 3))
    K[:V] /= np.linalg.norm(K[:V], axis=1, keepdims=True)
    faces = scipy.spatial.ConvexHull(K[:V])
    normals = {}
    for corners, equation in zip(faces.simplices, faces.equations, strict=True):
        for pair in itertools.combinations(sorted(corners.tolist()), 2):
            normals.setdefault(pair, []).append(equation[:3])
    assert len(normals) == n
    A, S = np.zeros((n, n)), np.zeros((n, n))
    for i, (pair, q) in enumerate(normals.items()):
        A[i, list(pair)] = 0.5
        S[i] = K @ sum(q)
        S[i] -= S[i, pair[0]]
        S[i] *= 4 / -np.delete(S[i], pair).max()
    assert hf.certify(A, matrix=np.exp(np.maximum(S, -600))).holds
    assert check(A, 3).dim == 3
    other = next(p for p in itertools.combinations(range(V), 2) if p not in normals)
    more = np.zeros((n + 1, n + 1))
    more[:n, :n] = A
    more[n, list(other)] = 0.5
    bound = lower(more)
    assert candidate(bound, "hull of the keys").dim == 4
    assert bound.verify(more)


def test_block_of_eight_closes_its_bracket():
    A = P.block(64, 8)
    angle = 2 * np.pi * (np.arange(64) // 8) / 8
    keys = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert hf.certify(A, 20 * keys, keys, scale=1.0).holds
    bound = check(A, 2)
    assert bound.dim == 2


def test_band_stays_at_two():
    """cosh(t (i - j)) has rank 2 and fits a band, so that no valid bound exceeds 2."""
    n, width, t = 24, 2, 5.0
    i, j = np.indices((n, n))
    S = -0.05 * np.cosh(t * (i - j)) / np.cosh(t * width)
    A = P.band(n, width)
    assert np.linalg.matrix_rank(np.cosh(t * (i[:4, :4] - j[:4, :4]))) == 2
    assert hf.certify(A, matrix=np.maximum(np.exp(S), 1e-300), leak=0.05, distortion=0.1).holds
    assert check(A, 2).dim == 2


@pytest.mark.parametrize(
    ("A", "dim"),
    [
        (np.eye(1), 1),
        (np.eye(2), 1),
        (np.eye(3), 2),
        (np.full((9, 9), 1 / 9), 1),
        (P.permutation(50, rng=0), 2),
        (P.grid2d(20, 20), 3),
        (P.tree(63), 2),
        (P.hypercube(6), 2),
        (P.random_regular(256, 2, gamma=2.0, rng=0), 3),
        (P.random_regular(128, 3, gamma=2.0, rng=0), 4),
        (P.random_regular(512, 4, gamma=2.0, rng=1), 4),
        (P.random_regular(1024, 8, rng=0), 4),
        (P.strided(400, 20), 4),
    ],
)
def test_known_patterns(A, dim):
    bound = lower(A)
    assert bound.dim >= dim
    assert bound.verify(A)
    if dim <= 2 and A.shape[0] < 60:
        assert bound.dim == dim


@pytest.mark.parametrize("ratio", [1.0, 3.0])
@pytest.mark.parametrize(("rings", "dim"), [((16,), 2), ((8, 8), 3), ((3, 5, 7), 3), ((2, 3), 3)])
def test_rings(rings, dim, ratio):
    """Rows that attend to neighbours on one ring fit a polygon; more rings need a sphere."""
    n = sum(rings)
    A, K, S = np.zeros((n, n)), np.zeros((n, 3)), np.zeros((n, n))
    first = 0
    for ring, height in zip(rings, np.linspace(-0.7, 0.7, len(rings)) * (dim - 2), strict=True):
        for i in range(ring):
            angle = 2 * np.pi * i / ring
            K[first + i] = [np.cos(angle), np.sin(angle), 1.5 * height]
            K[first + i] /= np.linalg.norm(K[first + i])
            A[first + i, [first + i, first + (i + 1) % ring]] = ratio / (ratio + 1), 1 / (ratio + 1)
        first += ring
    for i in range(n):
        a, b = np.flatnonzero(A[i])
        edge = K @ (K[a] + K[b])
        tilt = K @ (K[a] - K[b])
        tilt *= np.log(A[i, a] / A[i, b]) / (tilt[a] - tilt[b])
        room = edge[a] - np.delete(edge, [a, b]).max()
        S[i] = (edge - edge[a]) * (5 + 2 * np.abs(tilt).max()) / room + tilt - tilt[a]
    assert hf.certify(A, matrix=np.exp(S)).holds
    assert np.linalg.matrix_rank(K) == dim
    assert check(A, dim).dim == dim


@pytest.mark.parametrize("rings", [2, 3])
def test_rings_of_two_columns_fit_a_polygon(rings):
    pair = np.full((2, 2), 0.5)
    assert lower(np.kron(np.eye(rings), pair)).dim <= 2


def test_the_graph_of_a_polytope_fits_space_and_one_edge_more_may_not():
    """The dodecahedron has no cycles of length 3 or 4, and as many edges as is then possible."""
    nx = pytest.importorskip("networkx")
    A = np.zeros((31, 31))
    pairs = sorted(tuple(sorted(p)) for p in nx.dodecahedral_graph().edges)
    for i, pair in enumerate(pairs):
        A[i, list(pair)] = 0.5
    A[30, 30] = 1
    assert candidate(lower(A), "hull of the keys").dim == 3
    A[30, 30] = 0
    A[30, [0, 5]] = 0.5
    assert (0, 5) not in pairs
    bound = lower(A)
    assert candidate(bound, "hull of the keys").dim == 4
    assert bound.verify(A)


def test_a_proved_size_survives_the_deadline(monkeypatch):
    """Where no time is left to count cycles, the edges alone still count."""
    holders = {pair: [0] for pair in itertools.combinations(range(20), 2)}
    assert dim_of_hull(Fraction(38), 20, lambda: holders, deadline=-math.inf) == 3
    monkeypatch.setattr("headfit._lower.hull.count_triangles", lambda holders: 0)
    assert dim_of_hull(Fraction(38), 20, lambda: holders) == 4


@pytest.mark.full
def test_large_supports_do_not_take_long():
    """The columns of a row make a row of a grid, those of another one a column of it."""
    m = 30
    grid = np.arange(m * m).reshape(m, m)
    A = sp.lil_array((m * m, m * m))
    for i, line in enumerate([*grid, *grid.T]):
        A[i, line] = 1 / m
    for i in range(2 * m, m * m):
        A[i, i] = 1
    holders = {}
    for i, line in enumerate([*grid, *grid.T]):
        for pair in itertools.combinations(line.tolist(), 2):
            holders[pair] = [i]
    assert count_squares(holders) is None
    bound = lower(sp.csr_array(A))
    assert bound.dim >= 3
    assert bound.verify(sp.csr_array(A))


def test_a_column_with_three_neighbours_needs_three_dimensions():
    A = np.zeros((5, 5))
    for i, pair in enumerate([(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)]):
        A[i, pair] = 0.5
    bound = lower(A)
    assert candidate(bound, "hull of the keys").dim == 3
    assert bound.verify(A)


def test_random_weights_of_a_block_need_more():
    A = P.block(64, 8, gamma=2.0, rng=0)
    bound = lower(A)
    assert bound.dim >= 4
    assert isinstance(bound.witness, Block)
    assert bound.verify(A)
    assert lower(A, distortion=1.5).dim == 2


# Exactness of the searches against brute force.


def brute_vc(N, allowed, columns):
    """Return the bound of the largest shattered set; columns may lack the constant traces."""
    if not columns:
        N, allowed = N.T, allowed.T
    best = 2 if columns else 1
    for size in range(best + 1 if columns else 2, 5):
        for T in itertools.combinations(range(N.shape[1]), size):
            rows = N[allowed[:, T].all(axis=1)][:, T]
            seen = {tuple(r) for r in rows.tolist()}
            if columns:
                seen |= {(True,) * size, (False,) * size}
            if len(seen) == 2**size:
                best = size
                break
        else:
            break
    return best - columns


@given(seed=st.integers(0, 10**9), n=st.integers(3, 9), form=st.integers(0, 6))
def test_shattered_sets_are_the_largest(seed, n, form):
    rng = np.random.default_rng(seed)
    mask = mask_forms(n, rng)[form]
    allowed = allowed_by(mask, n)
    N = (rng.random((n, n)) < rng.choice([0.3, 0.5, 0.7])) & allowed
    N[~N.any(axis=1)] = allowed[~N.any(axis=1)]
    A = N / np.maximum(N.sum(axis=1, keepdims=True), 1)
    problem = Problem.of(hf.Target(A, mask=mask), USUAL, 20.0)
    for kind in ("columns", "rows"):
        found = search_traces(problem, kind)[0]
        assert found.dim == max(1, brute_vc(N, allowed, kind == "columns"))
        if found.witness is not None:
            assert found.witness.proves(problem.target, USUAL) == found.dim


def brute_order_exists(N, allowed, columns):
    """Return whether an order of columns has each row's support at one end of what it sees."""
    for keys in itertools.permutations(columns):
        lines = [N[i, [j for j in keys if allowed[i, j]]].tolist() for i in range(len(N))]
        if all(line in (sorted(line), sorted(line)[::-1]) for line in lines):
            return True
    return False


@given(seed=st.integers(0, 10**9), n=st.integers(2, 6))
def test_order_is_decided(seed, n):
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:
        N = rng.random((n, n)) < 0.5
    else:  # an order of the keys, perhaps with one row that violates it
        place = rng.permutation(n)
        N = place < rng.integers(1, n + 1, size=(n, 1))
        N[rng.random(n) < 0.5] ^= True
        if rng.random() < 0.5:
            N[rng.integers(n), rng.integers(n)] ^= True
    N[~N.any(axis=1)] = True
    target = hf.Target(N / N.sum(axis=1, keepdims=True))
    found = best_proof("order", Problem.of(target, USUAL, 5.0), order_proofs)
    assert found.dim == (1 if brute_order_exists(N, np.ones((n, n), bool), range(n)) else 2)
    if found.dim == 2:
        assert found.witness.proves(target, USUAL) == 2


def test_least_dim_is_the_count_of_halfspaces():
    """Points of R^d in general position have exactly C(m-1, 0) + ... + C(m-1, d) splits."""
    for m in range(1, 9):
        for d in range(m):
            reachable = sum(math.comb(m - 1, i) for i in range(d + 1))
            assert least_dim(reachable, m) == d
            if d < m - 1:
                assert least_dim(reachable + 1, m) == d + 1


@given(seed=st.integers(0, 10**9), n=st.integers(2, 12), form=st.integers(0, 6))
def test_sight_is_the_mask(seed, n, form):
    mask = mask_forms(n, np.random.default_rng(seed))[form]
    expected, sight = allowed_by(mask, n), Visibility(mask, n)
    for i in range(n):
        assert (sight.row(i) == expected[i]).all()
    for rows, columns in sight.rectangles(no_limit):
        assert expected[np.ix_(rows, columns)].all()
    ones = np.where(expected, 1.0, 0.0)
    ones /= np.maximum(ones.sum(axis=1, keepdims=True), 1)
    hf.Target(ones, mask=mask)  # the core agrees that nothing is masked
    off = np.argwhere(~expected)
    if off.size and expected.any(axis=1).all():
        ones[off[0][0]] = np.eye(n)[off[0][1]]
        with pytest.raises(hf.errors.TargetError):
            hf.Target(ones, mask=mask)


@given(seed=st.integers(0, 10**9), n=st.integers(1, 7))
def test_inertia(seed, n):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-5, 6, size=(n, n))
    matrix = matrix + matrix.T
    count = _positive_eigenvalues(matrix.tolist())
    values = np.linalg.eigvalsh(matrix.astype(float))
    if count is not None and abs(values).min() > 1e-9:
        assert count == (values > 0).sum()


@given(seed=st.integers(0, 10**9), d=st.integers(1, 4))
def test_weights_within_the_distortion_prove_nothing(seed, d):
    """log A of rank d, up to row offsets and errors of spread delta, gives a bound of at most d."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(2, 10, size=2)
    distortion = float(rng.uniform(0.01, 1))
    errors = rng.choice([-1, 1], size=(rows, columns)) * math.log1p(distortion) / 2
    logits = rng.normal(size=(rows, d)) @ rng.normal(size=(d, columns))
    assert block_dim(logits + errors + rng.normal(size=(rows, 1)), distortion) <= d


def slow_holders(rows):
    """Return the rows that have each pair of columns."""
    pairs = {pair for row in rows for pair in itertools.combinations(row, 2)}
    return {pair: [at for at, row in enumerate(rows) if {*pair} <= {*row}] for pair in pairs}


def test_triangles_against_all_triples():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = [sorted(rng.choice(8, 3, replace=False).tolist()) for _ in range(5)]
        holders = slow_holders(rows)
        count = 0
        for a, b, c in itertools.combinations(range(8), 3):
            choices = [holders.get(p, []) for p in ((a, b), (a, c), (b, c))]
            count += any(len(set(pick)) > 1 for pick in itertools.product(*choices))
        assert count_triangles(holders) == count


def test_squares_against_all_cycles_of_four():
    rng = np.random.default_rng(0)
    for size in (2, 3, 4):
        rows = [sorted(rng.choice(8, size, replace=False).tolist()) for _ in range(7)]
        holders = slow_holders(rows)
        count = 0
        for a, b, c, d in itertools.permutations(range(8), 4):
            if a == min(a, b, c, d) and b < d:  # one of the eight ways around
                pairs = [tuple(sorted(p)) for p in ((a, b), (b, c), (c, d), (d, a))]
                choices = [holders.get(p, []) for p in pairs]
                count += any(len(set(pick)) > 1 for pick in itertools.product(*choices))
        assert count_squares(holders) == count


def test_too_many_squares_are_not_counted(monkeypatch):
    holders = {pair: [0, 1] for pair in itertools.combinations(range(5), 2)}
    assert count_squares(holders) == 15
    monkeypatch.setattr("headfit._lower.hull.PATHS_LIMIT", 29)
    assert count_squares(holders) is None  # 5 columns with 6 pairs of neighbours each


@given(seed=st.integers(0, 10**9), n=st.integers(4, 30), share=st.floats(0.2, 1.0))
def test_no_planar_graph_has_more_edges(seed, n, share):
    rng = np.random.default_rng(seed)
    faces = scipy.spatial.Delaunay(rng.normal(size=(n, 2))).simplices.tolist()
    edges = sorted({p for face in faces for p in itertools.combinations(sorted(face), 2)})
    edges = [p for p in edges if rng.random() < share]
    holders = {p: [at] for at, p in enumerate(edges)}
    counts = count_triangles(holders), count_squares(holders)
    assert dim_of_edges(len(edges), n, *counts) < 4


def test_edges_that_a_planar_graph_may_just_have():
    assert [dim_of_edges(e, 20) for e in (20, 21, 54, 55)] == [0, 3, 3, 4]
    assert [dim_of_edges(e, 20, 1) for e in (36, 37)] == [3, 4]  # 36 + 1/2
    assert [dim_of_edges(e, 20, 1, 3) for e in (31, 32)] == [3, 4]  # (90 + 2 + 3) / 3
    assert dim_of_edges(30, 20, 0, 0) == 3  # the dodecahedron has 30 edges
    assert dim_of_edges(31, 20, 0, 0) == 4


@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_parts_of_polygons_against_all_polygons(n):
    rng = np.random.default_rng(n)
    pairs = list(itertools.combinations(range(n), 2))
    for _ in range(60):
        chosen = {p for p in pairs if rng.random() < 1.6 / n}
        fits = False
        for around in itertools.permutations(range(n)):
            ring = {tuple(sorted(p)) for p in zip(around, around[1:] + around[:1], strict=True)}
            fits = fits or chosen <= ring
        assert (not_in_a_polygon(chosen, n) == ()) == fits


# Witnesses.


def replaced(bound, **changes):
    return dataclasses.replace(bound, **changes)


def test_tampered_witnesses_are_rejected():
    A = P.random_regular(512, 4, gamma=2.0, rng=0)
    bound = lower(A)
    assert isinstance(bound.witness, Hull)
    hull = bound.witness
    target = hf.Target(A)

    def proves(**changes):
        return dataclasses.replace(hull, **changes).proves(target, USUAL)

    assert proves() == bound.dim == 4
    assert proves(shares=tuple(2 * y for y in hull.shares)) == 0
    assert proves(shares=tuple(y / 3 for y in hull.shares)) == 0
    assert proves(shares=(Fraction(1),) * len(hull.shares)) == 0  # two rows share a pair
    assert proves(columns=hull.columns[:10]) == 0
    assert proves(columns=(*hull.columns[:-1], hull.columns[0])) == 0
    assert proves(rows=hull.rows[:50], shares=hull.shares[:50]) == 0
    assert proves(rows=(*hull.rows, 600), shares=(*hull.shares, Fraction(0))) == 0
    assert hull.proves(target, hf.Tolerances(0.95, 0.1)) == 0  # such a leak does not force vertices
    assert not replaced(bound, dim=5).verify(A)
    assert not replaced(bound, tolerances=hf.Tolerances(0.95, 0.1)).verify(A)
    assert not bound.verify(P.random_regular(512, 4, gamma=2.0, rng=1))
    traces = candidate(bound, "traces of columns")
    worse = replaced(traces, dim=traces.dim + 1)
    assert not replaced(bound, candidates=(*bound.candidates, worse)).verify(A)


def test_tampered_pairs_are_rejected():
    A = P.random_regular(256, 2, gamma=2.0, rng=0)
    hull = candidate(lower(A), "hull of the keys").witness
    target = hf.Target(A)

    def proves(**changes):
        return dataclasses.replace(hull, **changes).proves(target, USUAL)

    assert proves() == 3
    inside = A[list(hull.rows)][:, list(hull.columns)]
    edges = [
        i for i, size in zip(hull.rows, inside.count_nonzero(axis=1), strict=True) if size == 2
    ]
    others = [i for i in hull.rows if i not in edges]  # these make the last column a vertex
    for kept in [[i for i in hull.rows if i != dropped] for dropped in edges] + [edges]:
        assert proves(rows=tuple(kept), shares=(Fraction(0),) * len(kept)) == 0
    assert len(edges) + 1 == len(hull.columns)
    assert others
    for at in range(len(hull.columns)):
        assert proves(columns=hull.columns[:at] + hull.columns[at + 1 :]) == 0
    assert proves(rows=(*hull.rows[1:], hull.rows[1])) == 0
    assert proves(shares=(Fraction(-1, 2), *hull.shares[1:])) == 0


@pytest.mark.full
@pytest.mark.parametrize(("excess", "dim"), [(3e-12, 0), (-1e-9, 3)])
def test_sums_of_many_rows_are_exact(excess, dim):
    """The sum that forces a key to be a vertex, where rounding in every row goes one way.

    Columns 0 to 3; 100,000 rows attend to 0 and 1, with log(A_i1 / A_i0) + delta = excess. For a
    positive excess key 0 need not be a vertex, and there are heads of size 2. A running sum in
    double precision is -8e-7 at these tolerances.
    """
    leak, distortion = 0.012771411194124584, 0.18958035989116961
    delta, gap, many = math.log1p(distortion), -math.log(leak), 100_000
    ratio = math.exp(excess - delta)
    some = math.ceil(1.1 * many * delta / gap)
    few = math.ceil(1.1 * some * delta / gap)
    supports = [((0, 1), many), ((1, 2), some), ((1, 3), some), ((2,), few), ((3,), few)]
    columns = np.concatenate([np.tile(on, count) for on, count in supports])
    sizes = np.concatenate([np.full(count, len(on)) for on, count in supports])
    weights = 1 / np.repeat(sizes, sizes)
    weights[: 2 * many] = np.tile([1 / (1 + ratio), ratio / (1 + ratio)], many)
    n = sizes.size
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    target = hf.Target(sp.csr_array((weights, columns, offsets), shape=(n, n)))
    witness = Hull(tuple(range(n)), (0, 1, 2, 3), (Fraction(0),) * n)
    assert witness.proves(target, hf.Tolerances(leak, distortion)) == dim
    bound = lower(target, leak=leak, distortion=distortion, time_limit=60)
    assert candidate(bound, "hull of the keys").dim == max(1, dim)
    assert bound.verify(target)


def test_a_leak_next_to_one():
    A = np.zeros((17, 17))
    for i in range(15):
        A[i, [(0, 1), (1, 2), (0, 2)][i // 5]] = 0.5
    A[15, 3] = A[16, 4] = 1
    for gap, dim in ((5e-7, 3), (1e-12, 2), (2e-16, 2)):
        bound = lower(A, leak=math.exp(-gap), distortion=0.0)
        assert bound.dim == dim
        assert bound.verify(A)


def test_tampered_traces_are_rejected():
    A = hf.Target(P.strided(100, 10))
    bound = lower(A)
    for c in bound.candidates:
        w = c.witness
        if not isinstance(w, Traces):
            continue
        assert w.proves(A, USUAL) == c.dim
        assert dataclasses.replace(w, points=w.points[:1]).proves(A, USUAL) < c.dim
        assert dataclasses.replace(w, sets=(w.sets[0],) * len(w.sets)).proves(A, USUAL) == 0
        assert dataclasses.replace(w, sets=(*w.sets[:-1], 100)).proves(A, USUAL) == 0
        assert dataclasses.replace(w, points=(*w.points, -1)).proves(A, USUAL) == 0
        if w.kind == "columns":
            assert dataclasses.replace(w, free=True).proves(A, USUAL) == 0
        # A mask that hides one of the entries makes the witness invalid.
        row, column = (w.points[0], w.sets[0]) if w.kind == "columns" else (w.sets[0], w.points[0])
        if A.matrix[row, column] == 0:
            mask = np.ones((100, 100), bool)
            mask[row, column] = False
            assert w.proves(hf.Target(A.matrix, mask=mask), USUAL) == 0


def test_tampered_block_is_rejected():
    A = hf.Target(P.block(24, 8, gamma=2.0, rng=3))
    bound = lower(A)
    block = bound.witness
    assert isinstance(block, Block)
    assert block.proves(A, USUAL) == bound.dim
    assert dataclasses.replace(block, dim=block.dim + 1).proves(A, USUAL) == 0
    outside = next(j for j in range(24) if A.matrix[block.rows[0], j] == 0)
    assert dataclasses.replace(block, columns=(*block.columns, outside)).proves(A, USUAL) == 0
    assert dataclasses.replace(block, columns=block.columns[:1]).proves(A, USUAL) == 0
    assert block.proves(A, hf.Tolerances(0.05, 3.0)) == 0
    uniform = hf.Target(P.block(24, 8))
    assert block.proves(uniform, USUAL) == 0


# Masks, time, input.


def test_a_causal_mask_takes_places_away():
    """The mask hides columns that excluded d = 1, so that its bound is no longer proved."""
    A = P.previous_token(30)
    assert lower(A).dim == 2
    bound = lower(A, mask="causal")
    assert bound.verify(A)
    assert repr(bound).endswith("mask='causal')")
    assert lower(hf.Target(A, mask="causal")).dim == bound.dim
    # With keys 0, 1, 2, ... on a line the latest visible key i has the largest logit, not i - 1.
    # So the identity has a head of size 1 under a causal mask.
    own = lower(np.eye(30), mask="causal")
    assert own.dim == 1
    assert candidate(own, "order of the keys").status == "not finished"


@pytest.mark.parametrize("n", [256, 4096])
def test_the_last_rows_prove_something_under_a_causal_mask(n):
    """These rows see all earlier keys, so that supports are bounded as without a mask."""
    bound = lower(causal_random(n, 4), mask="causal")
    assert bound.dim >= 3
    assert (bound.dim == 4) or n < 1000
    assert bound.verify(causal_random(n, 4))


@pytest.mark.full
def test_many_tokens_under_a_causal_mask_keep_to_the_limit(monkeypatch):
    """The rectangles of a window are computed without looking at n x n entries."""

    def fail(*_):
        pytest.fail("a line of the mask was made")

    monkeypatch.setattr(Visibility, "row", fail)
    A = hf.Target(causal_random(65536, 4), mask="causal")
    start = time.monotonic()
    bound = lower(A, time_limit=3)
    assert time.monotonic() - start < 30  # 3 s on a machine that is not busy
    assert bound.dim >= 2
    monkeypatch.undo()
    assert bound.verify(A)


def test_rectangles_of_windows_are_wide():
    for n in (64, 1000):
        for mask in ("causal", ("window", (n, 0)), ("window", (0, n))):
            rows, columns = Visibility(mask, n).rectangles(no_limit)[0]
            assert rows.size * columns.size >= n * n / 8
            assert allowed_by(mask, n)[np.ix_(rows, columns)].all()
        assert any(
            rows.size >= 4 and columns.size >= 4
            for rows, columns in Visibility(("window", 12), n).rectangles(no_limit)
        )
    rows, columns = Visibility(("window", (99, 99)), 64).rectangles(no_limit)[0]
    assert rows.size == columns.size == 64  # it hides nothing
    documents = np.kron(np.eye(4, dtype=bool), np.ones((8, 8), bool))
    for mask in (documents, sp.csr_array(documents)):
        rows, columns = Visibility(mask, 32).rectangles(no_limit)[0]
        assert rows.size == columns.size == 8


@given(seed=st.integers(0, 10**9), n=st.integers(3, 5), form=st.integers(0, 6))
def test_no_order_is_decided_by_all_orders(seed, n, form):
    rng = np.random.default_rng(seed)
    mask = mask_forms(n, rng)[form]
    allowed = allowed_by(mask, n)
    N = (rng.random((n, n)) < 0.5) & allowed
    N[~N.any(axis=1)] = allowed[~N.any(axis=1)]
    target = hf.Target(N / np.maximum(N.sum(axis=1, keepdims=True), 1), mask=mask)
    columns, rows = tuple(range(n)), tuple(range(n))
    exists = brute_order_exists(N, allowed, columns)
    assert NoOrder(columns, rows).proves(target, USUAL) == (0 if exists else 2)
    assert lower(target, time_limit=20).dim >= (1 if exists else 2)


def test_no_order_in_a_narrow_window():
    rng = np.random.default_rng(0)
    A = np.zeros((60, 60))
    for i in range(60):
        A[i, rng.integers(max(0, i - 2), min(60, i + 3))] = 1
    bound = lower(A, mask=("window", (2, 2)))
    assert bound.dim == 2
    assert isinstance(bound.witness, NoOrder)
    assert bound.verify(A)
    target = hf.Target(A, mask=("window", (2, 2)))
    witness = bound.witness
    for wrong in (
        {"columns": witness.columns[:2]},
        {"columns": (*witness.columns[:-1], witness.columns[0])},
        {"columns": (*witness.columns[:-1], 60)},
        {"columns": tuple(range(12))},
        {"rows": ()},
        {"rows": (*witness.rows, -1)},
    ):
        assert dataclasses.replace(witness, **wrong).proves(target, USUAL) == 0


def test_hull_under_masks():
    A = P.random_regular(600, 6, rng=0).toarray()
    A[:, 560:] = 0
    A[A.sum(axis=1) == 0, 0] = 1
    A /= A.sum(axis=1, keepdims=True)
    padding = np.ones((1, 600), bool)
    padding[:, 560:] = False
    bound = lower(A, mask=padding)
    assert bound.dim == 4
    assert bound.verify(A)


def test_empty_rows_where_the_mask_leaves_nothing():
    mask = np.ones((6, 6), bool)
    mask[2] = False
    A = np.eye(6)
    A[2] = 0
    bound = lower(A, mask=mask)
    assert bound.dim == 2
    assert bound.verify(A)


def test_time_limit_claims_nothing_unfinished():
    A = P.random_regular(2000, 6, gamma=2.0, rng=0)
    bound = lower(A, time_limit=1e-6)
    assert any(c.status == "not finished" for c in bound.candidates)
    assert all(c.dim is None for c in bound.candidates if c.status == "not finished")
    assert bound.verify(A)


@pytest.mark.parametrize("seconds", [1e303, 1.7e308])
def test_no_time_limit_is_too_long(seconds):
    assert lower(P.band(24, 1), time_limit=seconds).dim == lower(P.band(24, 1)).dim


def test_same_seed_same_bound():
    A = P.random_regular(64, 3, rng=0)
    one, two = lower(A, rng=5, time_limit=60), lower(A, rng=5, time_limit=60)
    assert repr(one.candidates) == repr(two.candidates)
    assert one.witness == two.witness


@pytest.mark.parametrize(
    "options",
    [
        {"leak": 0},
        {"leak": 1},
        {"leak": "x"},
        {"distortion": -0.1},
        {"distortion": math.inf},
        {"distortion": math.nan},
        {"time_limit": 0},
        {"mask": "casual"},
    ],
)
def test_bad_options(options):
    with pytest.raises(hf.errors.InputError, match=next(iter(options))):
        lower(np.eye(3), **options)


def test_bad_target():
    with pytest.raises(hf.errors.TargetError):
        lower(np.zeros((3, 3)))


def test_repr_is_short():
    bound = lower(np.eye(4))
    assert len(repr(bound)) < 200
    assert "d >= 2" in repr(bound)
    assert all(len(repr(c)) < 300 for c in bound.candidates)


# Patterns in general.


def test_counting_for_any_norms_solves_its_inequality():
    def heads(d, n):
        v = 2 * n * d - d * d
        return n * math.log(2) + v * math.log(8 * math.e * n * n / v)

    for n, k in ((1024, 4), (10**5, 16), (10**4, 64), (256, 128), (16, 8), (5, 5)):
        count = counting(n, k)
        needed = float(log_regular_patterns(n, k)) + math.log(0.01)
        assert heads(count.dim, n) >= needed
        assert count.dim == 1 or heads(count.dim - 1, n) < needed
        assert count.dim <= max(1, 2 * min(k, n - k))  # so many suffice for every pattern
        assert counting(n, k, exceptions=1e-300).dim <= count.dim
    assert counting(10**5, 16).dim > 6
    assert "not a given one" in repr(counting(64, 2))
    assert counting(1024, 32, max_norm=1e30).dim == counting(1024, 32).dim


def test_random_keys_dim_solves_its_equation():
    assert random_keys_dim(1024, 4) == 29  # measured: 69-88% of the rows at 28, all at 40
    for n, k in ((1024, 4), (4096, 8), (10**5, 16)):
        d = random_keys_dim(n, k)
        assert d - 1 < 2 * k * math.log(n / d) + 1
        assert d >= 2 * k * math.log(n / d)
        all_of_them = random_keys_dim(n, k, all_subsets=True)
        assert all_of_them >= 2 * math.e * k * math.log(n / (2 * math.sqrt(math.pi) * all_of_them))
        assert all_of_them > d
    assert random_keys_dim(1, 1) == 1


@pytest.mark.parametrize("sizes", [(0, 1), (4, 0), (4, 5), (4.5, 1), (4, True), ("4", 1)])
def test_bad_sizes(sizes):
    with pytest.raises(hf.errors.InputError):
        counting(*sizes)
    with pytest.raises(hf.errors.InputError):
        random_keys_dim(*sizes)
