"""Nearest-neighbour patterns: exact, and chosen greedily under a bound on columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headfit._base.arguments import as_choice, as_count, check_between
from headfit._base.arrays import as_array
from headfit.errors import InputError, TargetError
from headfit.patterns._build import (
    Floats,
    Ints,
    Pattern,
    Seed,
    Style,
    Weighting,
    check_entries,
    csr,
    pattern,
    row_starts,
    weighted,
)

# Pairs of a row and a column, with their squared distances.
_PAIR = np.dtype([("row", np.int64), ("column", np.int64), ("square", np.float64)])
Pairs: TypeAlias = NDArray[Any]

# Temporary arrays of the neighbour search have about this many entries.
_BLOCK_ENTRIES = 1 << 20
# In more dimensions than this, a search in a KD-tree visits nearly every point.
_TREE_DIMENSIONS = 12

__all__ = ["digits_knn", "knn"]


@pattern
def digits_knn(**style: Unpack[Weighting]) -> Pattern:
    """Return the nearest-neighbour graph of 1,797 handwritten digits, a file of the package.

    The points are the images of ``sklearn.datasets.load_digits``. Each attends to 8 others,
    chosen as in `knn` with ``per_column=16``. There are no self-loops. Origin and licence are
    in ``headfit/data/README.md``.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.digits_knn()
    >>> A.shape, A.nnz
    ((1797, 1797), 14376)
    """
    file = resources.files("headfit").joinpath("data", "digits_knn.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
        return csr(data["indices"], data["indices"], data["indptr"])


def knn(
    points: ArrayLike,
    k: int,
    per_column: int | None = None,
    *,
    on_short: Literal["raise", "fewer"] = "raise",
    bandwidth: float | None = None,
    weights: Literal["uniform", "random", "gaussian"] | None = None,
    gamma: float = 1.0,
    rng: Seed = 0,
) -> Pattern:
    """Return the nearest-neighbour pattern of points: each attends to its `k` nearest others.

    The neighbours are exact, by Euclidean distance. A point never attends to itself, but it
    may attend to other points at the same place. Among equal distances the smaller column
    index is preferred, so that the same points always give the same pattern.

    Parameters
    ----------
    points : array_like, shape (n, dimensions) or (n,)
        The coordinates of the points, finite numbers.
    k : int
        The number of neighbours of each point, 1 to ``n - 1``.
    per_column : int, optional
        The most points that may attend to the same point. Pairs are then chosen greedily: the
        closest first (among equal ones the smaller row, then the smaller column), each unless
        its row already has `k` or its column `per_column` pairs.
    on_short : {"raise", "fewer"}
        What happens if a point gets fewer than `k` neighbours since all other points are
        full: raise a TargetError that names its row, or keep the fewer neighbours.
    bandwidth : float, optional
        The standard deviation of the Gaussian weights; for each point the distance to its
        furthest neighbour by default.
    weights : {"uniform", "random", "gaussian"}, optional
        As in the module; "gaussian" gives ``exp(-distance**2 / (2 * bandwidth**2))``, but at
        least ``1/gamma`` times the largest weight of the row. With the default ``gamma=1``
        all weights are equal: set `gamma` too.
    gamma, rng
        The largest ratio of two weights in a row, and the source of random weights.

    Returns
    -------
    csr_array, shape (n, n)

    Raises
    ------
    InputError
        For points, numbers or choices that are not as described.
    TargetError
        If a row gets fewer than `k` neighbours and `on_short` is "raise", or gets none.

    Notes
    -----
    Up to 12 dimensions the search in a KD-tree takes about O(n k log n) time; beyond, O(n**2
    dimensions). The memory is O(n k). The greedy choice under `per_column` is computed by
    deferred acceptance (Gale and Shapley 1962).

    Examples
    --------
    >>> import numpy as np
    >>> from headfit import patterns
    >>> points = np.array([0.0, 1.0, 3.0, 4.0])
    >>> patterns.knn(points, k=1).indices
    array([1, 0, 3, 2], dtype=int32)
    >>> patterns.knn(points, k=2, gamma=8.0, weights="gaussian")[[0]].data.round(3)
    array([0.609, 0.391])
    """
    places = _points(points)
    n = len(places)
    if n < 2:
        raise InputError(f"points must be at least 2; got {n}")
    k = as_count(k, "k", 1, n - 1)
    cap = n if per_column is None else as_count(per_column, "per_column", 1)
    as_choice(on_short, "on_short", ("raise", "fewer"))
    style = Style.of(weights, gamma, rng, ("uniform", "random", "gaussian"))
    if bandwidth is not None:
        bandwidth = check_between(bandwidth, "bandwidth", 0, np.inf)
    if cap < k and on_short == "raise":
        raise InputError(f"per_column must be at least k = {k}; got {cap} (all rows need k)")
    check_entries((4 if cap >= n - 1 else 8) * n * k, n)
    search = _Search(places)
    pairs = _capped(search, k, cap) if cap < n - 1 else search.nearest(np.arange(n), k)
    return _knn_pattern(pairs, n, k, on_short, bandwidth, style)


def _points(points: ArrayLike) -> Floats:
    places = as_array(points, "points")
    if places.dtype.kind not in "fiub":
        raise InputError(f"points must be an array of numbers; got dtype {places.dtype}")
    places = np.array(places, dtype=np.float64, order="C")
    if places.ndim == 1:
        places = places[:, None]
    if places.ndim != 2 or places.shape[1] == 0:
        raise InputError(f"points must have shape (n, dimensions); got {places.shape}")
    finite = np.isfinite(places).all(axis=1)
    if not finite.all():
        raise InputError(
            f"points must be finite numbers; got others in row {int(np.argmin(finite))}"
        )
    with np.errstate(over="ignore"):
        if places.size and not np.isfinite(np.square(np.ptp(places, axis=0)).sum()):
            raise InputError("points must have distances whose squares are finite numbers")
    return places


def _knn_pattern(
    pairs: Pairs, n: int, k: int, on_short: str, bandwidth: float | None, style: Style
) -> Pattern:
    """Return the weighted pattern of the chosen pairs, or raise an error for short rows."""
    counts = np.bincount(pairs["row"], minlength=n)
    short = np.flatnonzero(counts < (k if on_short == "raise" else 1))
    if short.size:
        row = int(short[0])
        raise TargetError(
            f"per_column: row {row} finds {counts[row]} free columns, expected "
            f"{k if on_short == 'raise' else 'at least 1'} ({short.size} rows are short; "
            f"a larger per_column helps" + (', or on_short="fewer")' if counts[row] else ")")
        )
    starts, log_weights = row_starts(counts), None
    if style.weights == "gaussian":
        log_weights = _gaussian(pairs["square"], starts[:-1], counts, bandwidth, style.log_cap)
    # Pairs are grouped by row, nearest first.
    support = csr(pairs["square"] if log_weights is None else log_weights, pairs["column"], starts)
    support.has_sorted_indices = False
    support.sort_indices()
    return weighted(support, style, None if log_weights is None else support.data)


def _gaussian(
    squares: Floats, starts: Ints, counts: Ints, bandwidth: float | None, log_cap: float
) -> Floats:
    """Return the log-weights of pairs that are grouped by row, between -log(gamma) and 0."""
    excess = squares - np.minimum.reduceat(squares, starts).repeat(counts)
    if bandwidth is None:
        variance = np.maximum.reduceat(squares, starts).repeat(counts)
    else:
        variance = np.full(squares.shape, float(bandwidth) ** 2)
    with np.errstate(over="ignore", divide="ignore"):
        # If all neighbours are at the same distance their weights are equal, even for a
        # variance of 0.
        depth = np.divide(excess, 2 * variance, out=np.zeros_like(excess), where=excess > 0)
    return np.asarray(-np.minimum(depth, log_cap))


class _Search:
    """A search for the nearest points of any point, ordered by (squared distance, index).

    Candidates come from a KD-tree, but the order is always decided by distances that are summed
    by coordinate, exactly symmetric in row and column. So ties, and near ties that formulas would
    round differently, have the same outcome for any number of candidates.
    """

    def __init__(self, points: Floats) -> None:
        from scipy.spatial import cKDTree

        self.points = points
        n, dimensions = points.shape
        # In many dimensions a search visits nearly every point: one leaf is quicker.
        self.tree = cKDTree(points, leafsize=16 if dimensions <= _TREE_DIMENSIONS else n)

    def nearest(
        self, rows: Ints, m: int, admit: Callable[[Pairs], Any] | None = None, candidates: int = 0
    ) -> Pairs:
        """Return the `m` nearest points of each row, nearest first, those that `admit` admits."""
        n = len(self.points)
        candidates = max(candidates, m + 8)
        if 8 * candidates > n:  # a search that returns many points takes longer than all distances
            candidates = n
        step = max(1, _BLOCK_ENTRIES // candidates)
        parts = []
        for start in range(0, len(rows), step):
            part = self._block(rows[start : start + step], m, candidates).ravel()
            parts.append(part if admit is None else part[admit(part)])
        return np.concatenate(parts)

    def _block(self, rows: Ints, m: int, candidates: int) -> Pairs:
        """Return the pairs of each row with the `m` nearest of about so many candidates."""
        n, furthest = len(self.points), np.full(len(rows), np.inf)
        columns: Ints = np.broadcast_to(np.arange(n), (len(rows), n))
        if candidates < n:
            distances, columns = map(np.asarray, self.tree.query(self.points[rows], k=candidates))
            furthest = np.square(distances[:, -1])
        squares = np.zeros(columns.shape)
        for coordinate in self.points.T:
            squares += np.square(coordinate[columns] - coordinate[rows, None])
        squares[columns == rows[:, None]] = np.inf  # a point is not its own neighbour
        order = np.lexsort((columns, squares))[:, :m]
        pairs = np.empty(order.shape, _PAIR)
        pairs["row"] = rows[:, None]
        pairs["column"] = np.take_along_axis(columns, order, axis=1)
        pairs["square"] = np.take_along_axis(squares, order, axis=1)
        # Points that are no candidates are at least as far as the furthest that is, up to rounding.
        # So a row whose m-th neighbour is nearer than that is finished; the others need more.
        left = np.flatnonzero(pairs["square"][:, -1] * (1 + 1e-9) >= furthest)
        if left.size and candidates < n:
            more = self.nearest(rows[left], m, candidates=4 * candidates)
            pairs[left] = more.reshape(left.size, m)
        return pairs


def _capped(search: _Search, k: int, cap: int) -> Pairs:
    """Return the greedy choice of pairs, nearest first, at most `k` per row and `cap` per column.

    Rows and columns rank pairs by the same order, (distance, row, column). Therefore the greedy
    choice is the unique stable matching, which deferred acceptance (Gale and Shapley 1962) finds
    in rounds instead of pair by pair: every row proposes its best `k` remaining pairs, every
    column keeps its best `cap` proposals and refuses all worse ones for good. Rows that run out
    of candidates search for more.
    """
    n = len(search.points)
    known = np.full(n, min(n - 1, 2 * k))  # how many nearest points of each row were candidates
    pool = search.nearest(np.arange(n), known[0])
    while True:
        pool = _deferred_acceptance(pool, k, cap)
        kept = pool[_rank_in_group(pool["row"]) < k]
        counts = np.bincount(kept["row"], minlength=n)
        short = np.flatnonzero((counts < k) & (known < n - 1))
        if short.size == 0:
            return kept
        # The worst pair that each full column keeps. It only improves, so that what the column
        # refuses now it would refuse later; columns with room have an infinite distance.
        by_column = kept[np.lexsort((kept["row"], kept["square"], kept["column"]))]
        last = by_column[_rank_in_group(by_column["column"]) == cap - 1]
        worst = np.zeros(n, _PAIR)
        worst["square"] = np.inf
        worst[last["column"]] = last
        known[short] = more = min(n - 1, 4 * int(known[short].max()))
        fresh = search.nearest(short, more, partial(_are_not_worse, than=worst))
        pool = np.concatenate([pool[~np.isin(pool["row"], short)], fresh])


def _are_not_worse(pairs: Pairs, than: Pairs) -> NDArray[np.bool_]:
    limit = than[pairs["column"]]
    tied = (pairs["square"] == limit["square"]) & (pairs["row"] <= limit["row"])
    return np.asarray((pairs["square"] < limit["square"]) | tied)


def _deferred_acceptance(pool: Pairs, k: int, cap: int) -> Pairs:
    """Make rounds of proposals and refusals until no column refuses a pair."""
    pool = pool[np.lexsort((pool["column"], pool["square"], pool["row"]))]
    by_column = np.lexsort((pool["row"], pool["square"], pool["column"]))
    row, column, left = pool["row"].copy(), pool["column"].copy(), np.arange(pool.size)
    while True:
        proposed = _rank_in_group(row) < k
        refused = _rank_in_group(column[by_column], proposed[by_column]) >= cap
        if not refused.any():
            return pool[left]
        stays = np.ones(left.size, dtype=np.bool_)
        stays[by_column[refused]] = False
        row, column, left = row[stays], column[stays], left[stays]
        # The order by column stays the same after the removal; only indices are renumbered.
        by_column = (np.cumsum(stays) - 1)[by_column[~refused]]


def _rank_in_group(groups: Ints, counted: NDArray[np.bool_] | None = None) -> Ints:
    """Return for each entry how many counted entries of its group precede it.

    Entries of the same group must be adjacent.
    """
    before = np.arange(groups.size) if counted is None else np.cumsum(counted) - counted
    new = np.ones(groups.size, dtype=np.bool_)
    new[1:] = groups[1:] != groups[:-1]
    return np.asarray(before - before[new][np.cumsum(new) - 1])
