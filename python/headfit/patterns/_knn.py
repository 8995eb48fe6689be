"""Nearest-neighbour patterns."""

from __future__ import annotations

from importlib import resources
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from headfit._base.arrays import as_array, as_count
from headfit.errors import InputError, TargetError
from headfit.patterns._build import (
    Floats,
    Ints,
    Pattern,
    Seed,
    Style,
    Weights,
    check_entries,
    checked_choice,
    checked_positive,
    row_starts,
    weighted,
)
from headfit.patterns._search import Neighbours, Pairs, capped


def digits_knn(*, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None) -> Pattern:
    """The nearest-neighbour graph of 1,797 handwritten digits, shipped with the package.

    The images of ``sklearn.datasets.load_digits``; each attends to 8 others, nearest
    first as in `knn`, and at most 16 attend to it. No self-loops, no boundary. Origin and
    licence are in ``headfit/data/README.md``.

    Parameters
    ----------
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.digits_knn()
    >>> A.shape, A.nnz
    ((1797, 1797), 14376)
    """
    style = Style.of(weights, gamma, rng)
    file = resources.files("headfit").joinpath("data", "digits_knn.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
        return weighted(data["indptr"], data["indices"], int(data["shape"][0]), style)


def knn(
    points: ArrayLike,
    k: int,
    per_column: int | None = None,
    *,
    on_short: Literal["raise", "fewer"] = "raise",
    bandwidth: float | None = None,
    weights: Literal["uniform", "random", "gaussian"] | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each point attends to its `k` nearest other points.

    Exact Euclidean neighbours. A point never attends to itself, though it does to others
    at the same place. Equal distances are decided by the smaller column index, so the
    same points give the same pattern. There is no boundary.

    Parameters
    ----------
    points : array_like, shape (n, dimensions) or (n,)
        The points, finite numbers.
    k : int
        The neighbours of each point, 1 to ``n - 1``.
    per_column : int, optional
        How many points may attend to one point; without it, hubs may form. The pairs are
        then taken greedily over all points: the closest pair first (of equal ones the
        smaller row, then column), each taken unless its row has `k` or its column
        `per_column` already. A point whose nearest are taken goes on to further ones.
    on_short : {"raise", "fewer"}
        What to do when the cap leaves a point with fewer than `k` although all others
        were tried: raise a TargetError that names its row, or keep the fewer.
    bandwidth : float, optional
        The standard deviation of the Gaussian weights, in the unit of the points; for
        each point the distance to the furthest neighbour it got, unless said.
    weights : {"uniform", "random", "gaussian"}, optional
        As in the module; "gaussian" is ``exp(-distance**2 / (2 * bandwidth**2))``, never
        below ``1/gamma`` of the largest in its row. With the default ``gamma=1`` that
        makes equal weights: set `gamma` too.
    gamma, rng
        The largest ratio of two weights in a row, and the draw for random ones.

    Raises
    ------
    TargetError
        If a row is left short and `on_short` is "raise", or is left with nothing.

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
    checked_choice("on_short", on_short, ("raise", "fewer"))
    style = Style.of(weights, gamma, rng, ("uniform", "random", "gaussian"))
    if bandwidth is not None:
        checked_positive("bandwidth", bandwidth)
    if cap < k and on_short == "raise":
        raise InputError(f"per_column must be at least k = {k}; got {cap} (all rows need k)")
    check_entries(3 * n * k, n)
    neighbours = Neighbours(places)
    pairs = capped(neighbours, k, cap) if cap < n - 1 else neighbours.nearest(np.arange(n), k)
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
    counts = np.bincount(pairs.rows, minlength=n)
    short = np.flatnonzero(counts < (k if on_short == "raise" else 1))
    if short.size:
        row = int(short[0])
        raise TargetError(
            f"per_column: row {row} finds {counts[row]} free columns, expected "
            f"{k if on_short == 'raise' else 'at least 1'} ({short.size} rows are short; "
            f"a larger per_column helps" + (', or on_short="fewer")' if counts[row] else ")")
        )
    starts = row_starts(counts)
    log_weights = None
    if style.weights == "gaussian":
        log_weights = _gaussian(pairs.squares, starts, bandwidth, style)
    order = np.lexsort((pairs.columns, pairs.rows))
    if log_weights is not None:
        log_weights = log_weights[order]
    return weighted(starts, pairs.columns[order], n, style, log_weights)


def _gaussian(squares: Floats, starts: Ints, bandwidth: float | None, style: Style) -> Floats:
    """Logarithms of the weights of pairs grouped by row, from 0 down to -log(gamma)."""
    counts = np.diff(starts)
    least = np.minimum.reduceat(squares, starts[:-1]).repeat(counts)
    if bandwidth is None:
        variance = np.maximum.reduceat(squares, starts[:-1]).repeat(counts)
    else:
        variance = np.full(squares.shape, float(bandwidth) ** 2)
    excess = squares - least
    with np.errstate(over="ignore", divide="ignore"):
        # Points all at one place are equally near, whatever the bandwidth.
        depth = np.divide(excess, 2 * variance, out=np.zeros_like(excess), where=excess > 0)
    return np.asarray(-np.minimum(depth, style.log_cap))
