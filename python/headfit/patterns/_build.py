"""Common parts of all patterns: checks of arguments, weights, and making of the matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from headfit._base.arguments import as_choice, as_generator, as_number
from headfit._base.arrays import as_count
from headfit._base.memory import require_memory
from headfit._base.types import Seed as Seed
from headfit.errors import InputError, TargetError

Weights: TypeAlias = Literal["uniform", "random"]
Boundary: TypeAlias = Literal["clip", "wrap"]
Pattern: TypeAlias = "sparse.csr_array[np.float64, tuple[int, int]]"
Ints: TypeAlias = "NDArray[np.signedinteger[Any]]"
Floats: TypeAlias = NDArray[np.float64]

MOST_TOKENS = np.iinfo(np.int32).max


def checked_tokens(n: SupportsIndex) -> int:
    return as_count(n, "n", 1, MOST_TOKENS)


def check_entries(count: int, n: int) -> None:
    """Refuse a pattern if making its entries, with temporary arrays, would not fit in memory."""
    require_memory(40 * (count + n), f"a pattern of n = {n} tokens with up to {count} entries")


def checked_choice(name: str, value: str, allowed: Sequence[str]) -> str:
    return as_choice(value, name, allowed)


def checked_positive(name: str, value: float) -> float:
    number = as_number(value, name, "be a finite number above 0")
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} must be a finite number above 0; got {value!r}")
    return number


@dataclass(frozen=True)
class Style:
    """How the nonzeros of a pattern get their weights; `rng` also draws random supports."""

    weights: str
    gamma: float
    rng: np.random.Generator

    @classmethod
    def of(
        cls,
        weights: str | None,
        gamma: float,
        rng: Seed,
        allowed: Sequence[str] = ("uniform", "random"),
    ) -> Style:
        """Return the checked style of a pattern function's `weights`, `gamma` and `rng`."""
        ratio = as_number(gamma, "gamma", "be a finite number of at least 1")
        if not (math.isfinite(ratio) and ratio >= 1):
            raise InputError(f"gamma must be a finite number of at least 1; got {gamma!r}")
        if weights is None:
            weights = "random" if ratio > 1 else "uniform"
        checked_choice("weights", weights, allowed)
        return cls(weights, ratio, as_generator(rng))

    @property
    def log_cap(self) -> float:
        """The largest log-ratio of weights: slightly below log(gamma), to allow for rounding."""
        return max(0.0, math.log(self.gamma) - 2.0**-48 * (1.0 + math.log(self.gamma)))


def weighted(
    starts: Ints, columns: Ints, n: int, style: Style, log_weights: Floats | None = None
) -> Pattern:
    """Return the pattern with the given columns, sorted within rows, and rows of sum 1.

    Row i has the columns ``columns[starts[i]:starts[i + 1]]``. The weights are those of `style`,
    unless their logarithms are given.
    """
    counts = np.diff(starts)
    if not counts.all():
        row = int(np.argmin(counts != 0))
        raise TargetError(f"row {row} attends to nothing: expected at least one column in a row")
    if log_weights is None and style.weights == "random":
        log_weights = style.rng.uniform(0.0, style.log_cap, columns.size)
    if log_weights is None:
        values = np.repeat(1.0 / counts, counts)
    else:
        values = np.exp(log_weights)
        values /= np.repeat(np.add.reduceat(values, starts[:-1]), counts)
    small = max(columns.size, n) <= MOST_TOKENS
    index = np.int32 if small else np.int64
    matrix = sparse.csr_array(
        (values, columns.astype(index, copy=False), starts.astype(index, copy=False)), shape=(n, n)
    )
    matrix.has_canonical_format = True
    return matrix


def from_rows(columns: Ints, n: int, style: Style, *, full: int = 0) -> Pattern:
    """Return the pattern whose row ``i`` has the columns ``columns[i]``, in any order.

    Columns outside ``0 ... n - 1`` are left out and repeated ones merged; a row that would be
    empty attends to itself. The first `full` rows have all columns instead.
    """
    columns = np.where((columns >= 0) & (columns < n), columns, n)[full:]
    columns.sort(axis=1)
    empty = np.flatnonzero(columns[:, 0] == n)
    columns[empty, 0] = full + empty
    keep = columns < n
    keep[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    counts = np.concatenate([np.full(full, n), keep.sum(axis=1)])
    all_columns = np.tile(np.arange(n), full)
    return weighted(row_starts(counts), np.concatenate([all_columns, columns[keep]]), n, style)


def from_edges(rows: Ints, columns: Ints, n: int, style: Style) -> Pattern:
    """Return the pattern with a nonzero at each (row, column); repeated pairs are merged."""
    places = np.unique(rows.astype(np.int64) * n + columns)
    counts = np.bincount(places // n, minlength=n)
    return weighted(row_starts(counts), places % n, n, style)


def row_starts(counts: Ints) -> Ints:
    """Return the offsets of rows with these numbers of entries, as in CSR format."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def shifted_columns(n: int, offsets: Ints, boundary: str) -> Ints:
    """Return ``i + offset`` for every row ``i`` and offset, shape (n, offsets).

    With "wrap" they are taken modulo n; with "clip" `from_rows` drops those outside.
    """
    check_entries(n * len(offsets), n)
    columns = np.arange(n)[:, None] + offsets
    return columns % n if boundary == "wrap" else columns


def diagonal_or_nothing(n: int, self_loops: bool) -> Ints:
    """Return one column per row for `from_rows`: the diagonal, or -1, which it drops."""
    return (np.arange(n) if self_loops else np.full(n, -1))[:, None]


BOUNDARIES = ("clip", "wrap")
