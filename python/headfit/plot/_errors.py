"""The errors of attention against its target, computed by blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
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


class _Worst:
    """The largest value above `least` that was seen so far, with its row and column."""

    def __init__(self, name: str, least: float) -> None:
        self.name, self.value, self.row, self.column = name, least, -1, -1

    def see(self, values: Floats, columns: NDArray[Any], start: int) -> None:
        """Take the largest value of each row and its column, for rows from `start` on."""
        row = int(values.argmax())
        if values[row] > self.value:
            self.value, self.row = float(values[row]), start + row
            self.column = int(columns[row])


def tolerance_errors(
    target: sp.csr_array, M: Source, leak: float, distortion: float, pixels: int
) -> Errors:
    """Return which share of its tolerance each entry uses; see `compare`.

    Off the support of a row this is the entry's weight over the smallest weight on the support,
    divided by `leak`. On the support it is the ratio of attention to target over the smallest
    such ratio of the row, minus 1, divided by `distortion`. A row meets the tolerances if its
    largest share is at most 1 (up to the rounding errors of the arrays' dtype).
    """
    pool = Pool(M.shape, pixels)
    rows = np.zeros(M.shape[0])
    worst = _Worst("leak", _NOISE), _Worst("distortion", _NOISE)
    for start, stop in pool.blocks():
        part = target[start:stop]
        row = np.repeat(np.arange(stop - start), np.diff(part.indptr))
        place = row, part.indices
        logs = M.logarithms(start, stop)
        on = logs[place].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            least = _least(on, row, stop - start)
            logs -= least.astype(logs.dtype)[:, np.newaxis]
            leaks = np.exp(logs, out=logs)
            leaks[place] = 0.0
            # If the least weight on the support is 0, other zeros give NaN (-inf minus -inf);
            # they are not errors.
            lost = np.isneginf(least)
            leaks[lost] = np.nan_to_num(leaks[lost], nan=0.0, posinf=np.inf)
            ratio = on - np.log(part.data)
            heavy = np.expm1(ratio - _least(ratio, row, stop - start)[row])
            heavy = np.nan_to_num(heavy, nan=0.0, posinf=np.inf)
            most, column = _most(heavy, row, part.indices, stop - start)
            at = leaks.argmax(axis=1)
            leaked = leaks[np.arange(stop - start), at].astype(np.float64)
            worst[0].see(leaked, at, start)
            worst[1].see(most, column, start)
            leaks /= leak
            leaks[place] = _over(heavy, distortion)
            rows[start:stop] = np.maximum(leaked / leak, _over(most, distortion))
        pool.add(start, leaks)
    marks = tuple((w.name, w.value, w.row, w.column) for w in worst if w.row >= 0)
    return Errors(pool.cells, rows, marks)


def difference_errors(A: Source, M: Source, pixels: int) -> Errors:
    """Return absolute differences of weights; a row's error is its total variation."""
    pool = Pool(M.shape, pixels)
    rows = np.zeros(M.shape[0])
    worst = _Worst("difference", 0.0)
    for start, stop in pool.blocks():
        difference = np.abs(A.block(start, stop) - M.block(start, stop))
        rows[start:stop] = 0.5 * difference.sum(axis=1)
        at = difference.argmax(axis=1)
        worst.see(difference[np.arange(stop - start), at].astype(np.float64), at, start)
        pool.add(start, difference)
    mark = (worst.name, worst.value, worst.row, worst.column)
    return Errors(pool.cells, rows, (mark,) if worst.row >= 0 else ())


def _over(values: Floats, tolerance: float) -> Floats:
    """Return values / tolerance, where 0 / 0 is 0."""
    return np.nan_to_num(values / np.float64(tolerance), nan=0.0, posinf=np.inf)


def _least(values: Floats, row: NDArray[Any], count: int) -> Floats:
    """Return the least value of each row; infinity for a row without any."""
    least = np.full(count, np.inf)
    np.minimum.at(least, row, values)
    return least


def _most(
    values: Floats, row: NDArray[Any], columns: NDArray[Any], count: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Return the largest value of each row, and a column that has it."""
    most = np.zeros(count)
    np.maximum.at(most, row, values)
    column = np.full(count, -1, dtype=np.int64)
    has = values == most[row]
    column[row[has]] = columns[has]
    return most, column
