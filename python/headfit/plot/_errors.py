"""The errors of attention against its target, computed by blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit.plot._source import Source
from headfit.plot._tiles import Pool

Floats = NDArray[np.float64]

_NOISE = 1e-6  # smaller errors are not marked: they are rounding errors of float32


@dataclass(frozen=True)
class Errors:
    """The max-pooled errors, the error of each row, and the worst entries.

    `marks` has (name, value, row, column) for the worst entry of each kind.
    """

    cells: Floats
    rows: Floats
    marks: tuple[tuple[str, float, int, int], ...]


def is_pattern(A: Source) -> bool:
    """Whether at most half of a matrix is nonzero; queries and keys have no zeros."""
    if A.attention is not None:
        return False
    entries = A.block(0, A.shape[0]) if A.sparse is None else A.sparse.data
    return bool(2 * np.count_nonzero(entries) <= A.shape[0] * A.shape[1])


def tolerance_errors(A: Source, M: Source, leak: float, distortion: float, pixels: int) -> Errors:
    """Return which share of its tolerance each entry uses; see `compare`.

    Off the support of a row this is the entry's weight over the smallest weight on the support,
    divided by `leak`. On the support it is the ratio of attention to target over the smallest
    such ratio of the row, minus 1, divided by `distortion`. A row meets the tolerances if its
    largest share is at most 1 (up to the rounding errors of the arrays' dtype).
    """
    pool = Pool(M.shape, pixels)
    rows = np.zeros(M.shape[0])
    leaks, distortions = _Worst("leak", M.shape[0]), _Worst("distortion", M.shape[0])
    for start, stop in pool.blocks():
        target = A.block(start, stop)
        on = target != 0
        logs = M.logarithms(start, stop).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            leaked = np.where(on, 0.0, np.exp(logs - _least(logs, on)))
            logs -= np.log(target)
            distorted = np.where(on, np.expm1(logs - _least(logs, on)), 0.0)
        # NaN is -inf minus -inf, both on the support or both off it: no error.
        for errors in (leaked, distorted):
            np.nan_to_num(errors, copy=False, nan=0.0, posinf=np.inf)
        leaks.see(leaked, start)
        distortions.see(distorted, start)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = leaked / leak + np.where(distorted > 0, distorted / np.float64(distortion), 0)
        rows[start:stop] = shares.max(axis=1)
        pool.add(start, shares)
    return Errors(pool.cells, rows, (*leaks.mark(_NOISE), *distortions.mark(_NOISE)))


def difference_errors(A: Source, M: Source, pixels: int) -> Errors:
    """Return absolute differences of weights; a row's error is its total variation."""
    pool = Pool(M.shape, pixels)
    rows = np.zeros(M.shape[0])
    differences = _Worst("difference", M.shape[0])
    for start, stop in pool.blocks():
        difference = np.abs(A.block(start, stop) - M.block(start, stop))
        rows[start:stop] = 0.5 * difference.sum(axis=1)
        differences.see(difference, start)
        pool.add(start, difference)
    return Errors(pool.cells, rows, differences.mark(0.0))


class _Worst:
    """The largest error of each row of one kind, and its column."""

    def __init__(self, name: str, n: int) -> None:
        self.name, self.value, self.column = name, np.zeros(n), np.zeros(n, dtype=np.intp)

    def see(self, errors: NDArray[Any], start: int) -> None:
        """Take the errors of the rows from `start` on."""
        rows = slice(start, start + len(errors))
        self.value[rows], self.column[rows] = errors.max(axis=1), errors.argmax(axis=1)

    def mark(self, least: float) -> tuple[tuple[str, float, int, int], ...]:
        """Return the name, the value and the place of the largest error, if it is above `least`."""
        row = int(self.value.argmax())
        value = float(self.value[row])
        return ((self.name, value, row, int(self.column[row])),) if value > least else ()


def _least(values: Floats, on: NDArray[np.bool_]) -> Floats:
    """Return the least value of each row on its support; infinity for a row without any."""
    return np.asarray(np.where(on, values, np.inf).min(axis=1, keepdims=True))
