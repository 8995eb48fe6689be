"""Nearest-neighbour patterns: exact, and chosen greedily under a bound on columns."""

from __future__ import annotations

from importlib import resources
from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from headfit import _core
from headfit._base.arguments import as_choice, as_count, as_positive, shown, thread_count
from headfit._base.arrays import as_float_array
from headfit.errors import InputError, TargetError
from headfit.patterns._build import Style, check_entries, csr, pattern, weighted
from headfit.patterns._types import Floats, Ints, Pattern, Seed, Weighting


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
    In few dimensions the search in a k-d tree takes about O(n k log n) time; in many, O(n**2
    dimensions). The memory is O(n (k + dimensions)). The greedy choice under `per_column` is
    computed by deferred acceptance (Gale and Shapley 1962).

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
    places, power = _points(points)
    n = len(places)
    k = as_count(k, "k", 1, n - 1)
    cap = n if per_column is None else as_count(per_column, "per_column", 1)
    as_choice(on_short, "on_short", ("raise", "fewer"))
    style = Style.of(weights, gamma, rng, ("uniform", "random", "gaussian"))
    bandwidth = as_positive(bandwidth, "bandwidth")
    if bandwidth is not None and style.weights != "gaussian":
        raise InputError(f'bandwidth must have weights="gaussian" beside it; got {shown(weights)}')
    if cap < k and on_short == "raise":
        raise InputError(f"per_column must be at least k = {k}; got {cap} (all rows need k)")
    check_entries((4 if cap >= n - 1 else 8) * n * k, n)
    most, threads = cap if cap < n - 1 else 0, thread_count(None)
    starts, columns, squares = _core.nearest_points(places, k, most, threads)
    counts = np.diff(starts)
    short = np.flatnonzero(counts < (k if on_short == "raise" else 1))
    if short.size:
        row = int(short[0])
        raise TargetError(
            f"per_column: row {row} finds {counts[row]} free columns, expected "
            f"{k if on_short == 'raise' else 'at least 1'} ({short.size} rows are short; "
            f"a larger per_column helps" + (', or on_short="fewer")' if counts[row] else ")")
        )
    log_weights = None
    if style.weights == "gaussian":
        log_weights = _gaussian(squares, starts[:-1], counts, bandwidth, power, style.log_cap)
    return weighted(csr(squares, columns, starts), style, log_weights)


def _points(points: ArrayLike) -> tuple[Floats, int]:
    """Return the points times a power of 2, so that squares of distances are normal numbers; it."""
    places = np.array(as_float_array(points, "points", ndim=0), np.float64, order="C")
    if places.ndim == 1:
        places = places[:, None]
    if places.ndim != 2 or places.shape[1] == 0:
        raise InputError(f"points must have shape (n, dimensions); got {places.shape}")
    finite = np.isfinite(places).all(axis=1)
    if not finite.all():
        raise InputError(f"points must be finite numbers; got others in row {np.argmin(finite)}")
    if len(places) < 2:
        raise InputError(f"points must be at least 2; got {len(places)}")
    with np.errstate(over="ignore"):
        spread = np.ptp(places, axis=0)
        if not np.isfinite(np.square(spread).sum()):
            raise InputError("points must have distances whose squares are finite numbers")
    places[:, spread == 0] = 0.0  # which could overflow
    power = 480 - int(np.frexp(spread.max())[1])  # squares of 2**480 can be summed
    return np.ldexp(places, power, out=places), power


def _gaussian(
    squares: Floats, starts: Ints, counts: Ints, bandwidth: float | None, power: int, log_cap: float
) -> Floats:
    """Return the log-weights of rows of pairs, of points scaled by 2**power: -log(gamma) to 0."""
    excess = squares - np.minimum.reduceat(squares, starts).repeat(counts)
    farthest = np.maximum.reduceat(squares, starts).repeat(counts)
    with np.errstate(over="ignore", divide="ignore"):
        variance = farthest if bandwidth is None else np.ldexp(bandwidth, power) ** 2
        # If all neighbours are at the same distance their weights are equal, even for a
        # variance of 0.
        depth = np.divide(excess, 2 * variance, out=np.zeros_like(excess), where=excess > 0)
    return np.asarray(-np.minimum(depth, log_cap))
