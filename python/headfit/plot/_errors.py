"""Where attention misses its target: every entry judged, by blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit.plot._source import Source
from headfit.plot._tiles import Pool

Floats = NDArray[np.float64]
_NOISE = 1e-6  # rounding in float32 is not pointed at


@dataclass(frozen=True)
class Errors:
    """Tiles of the errors, the error of each row, and the entries to point at.

    `marks` has (name, value, row, column) of each worst entry.
    """

    cells: Floats
    rows: Floats
    marks: tuple[tuple[str, float, int, int], ...]


class _Worst:
    """The largest value of a kind above `least` so far, and where."""

    def __init__(self, name: str, least: float) -> None:
        self.name, self.value, self.row, self.column = name, least, -1, -1

    def see(self, values: Floats, columns: NDArray[Any], start: int) -> None:
        row = int(values.argmax())
        if values[row] > self.value:
            self.value, self.row = float(values[row]), start + row
            self.column = int(columns[row])


def tolerance_errors(
    target: sp.csr_array, M: Source, leak: float, distortion: float, pixels: int
) -> Errors:
    """Shares of the tolerances: what leaks off the pattern, what is too heavy on it.

    Off the support of a row an entry counts with its weight over the smallest weight on the
    support, divided by `leak`; on it with how much too heavy it is beside the lightest,
    divided by `distortion`. The largest of a row is what a certificate judges, here in the
    rounding of the arrays.
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
            # -inf - -inf is NaN: no weight beside no weight is no error.
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
    """Absolute differences of weights; a row's error is its total variation."""
    pool = Pool(M.shape, pixels)
    rows = np.zeros(M.shape[0])
    worst = _Worst("difference", 0.0)
    for start, stop in pool.blocks():
        differences = np.abs(A.block(start, stop) - M.block(start, stop))
        rows[start:stop] = 0.5 * differences.sum(axis=1)
        at = differences.argmax(axis=1)
        worst.see(differences[np.arange(stop - start), at].astype(np.float64), at, start)
        pool.add(start, differences)
    mark = (worst.name, worst.value, worst.row, worst.column)
    return Errors(pool.cells, rows, (mark,) if worst.row >= 0 else ())


def _over(values: Floats, tolerance: float) -> Floats:
    """values / tolerance, 0 for 0 / 0."""
    return np.nan_to_num(values / np.float64(tolerance), nan=0.0, posinf=np.inf)


def _least(values: Floats, row: NDArray[Any], count: int) -> Floats:
    least = np.full(count, np.inf)
    np.minimum.at(least, row, values)
    return least


def _most(
    values: Floats, row: NDArray[Any], columns: NDArray[Any], count: int
) -> tuple[Floats, NDArray[np.int64]]:
    """The largest value of each row, and a column that has it."""
    most = np.zeros(count)
    np.maximum.at(most, row, values)
    column = np.full(count, -1, dtype=np.int64)
    has = values == most[row]
    column[row[has]] = columns[has]
    return most, column
