"""What a translation-invariant pattern wants at each offset, and what a pattern has beside it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._base.masks import as_window
from headfit._target.target import Blocks, Target, with_matrix
from headfit.errors import InputError

# By how much the logarithm of a weight may differ from that of its offset.
SAME = 1e-6

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stencil:
    """The offsets i - j that a pattern attends to, with weights that are the same in every row.

    Rows near the ends of the sequence have the part of the stencil that lies within it (and within
    the mask), scaled to sum to 1. Where tokens come in blocks, offsets are those of blocks.

    Attributes
    ----------
    n : int
        The number of positions: of tokens, or of blocks.
    offsets : ndarray of int64, shape (k,)
        Sorted; queries minus keys, so that earlier keys have positive offsets.
    log_weights : ndarray of float64, shape (k,)
        The logarithms of the weights, up to one constant.
    first, last : int
        The least and the largest offset that the mask allows.
    block : int
        How many tokens share a position.
    apart : ndarray of int
        Rows that attend to everything with equal weights, whatever the stencil is.
    """

    n: int
    offsets: Offsets
    log_weights: Floats
    first: int
    last: int
    block: int = 1
    apart: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    @classmethod
    def of(cls, target: Target, ignored: Sequence[int] | Offsets = ()) -> Self:
        """Find the stencil of a target, leaving out columns whose logits do not matter.

        Rows that attend to all that the mask allows, with equal weights, may be anything else than
        the stencil: a query of zeros produces them. Raises an InputError if the target is not
        translation-invariant; the message names an offset that shows it.
        """
        n, missing = target.n, []
        reach, left_out = allowed_offsets(target.mask, n), np.isin(np.arange(n), ignored)
        for part, block, full in _readings(target, left_out):
            rows, columns, logs = entries(part, full, left_out)
            if not rows.size:
                continue
            offsets = rows - columns
            present, count = np.unique(offsets, return_counts=True)
            wrong = present[count != _pairs(present, full, left_out[: part.n])]
            if not wrong.size:
                distinct, log_weights = _log_weights(rows, offsets, logs, part.n)
                reach = allowed_offsets(part.mask, part.n)
                return cls(part.n, distinct, log_weights, *reach, block, np.flatnonzero(full))
            missing.append(int(wrong[0]))
        if not missing:  # nothing is wanted of any row: the least that a filter can do
            return cls(n, np.zeros(1, dtype=np.int64), np.zeros(1), *reach, apart=np.arange(n))
        raise InputError(
            "A must be translation-invariant: whether token i attends to token j must depend on "
            f"i - j alone; some rows attend at offset {missing[0]}, and others do not"
        )

    @property
    def per_row(self) -> int:
        """How many keys a row away from the ends attends to."""
        return int(self.offsets.size) * self.block

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether offsets x and -x are attended to alike; then cosines alone suffice."""
        return (
            self.first == -self.last
            and np.array_equal(self.offsets, -self.offsets[::-1])
            and bool(np.all(np.abs(self.log_weights - self.log_weights[::-1]) <= SAME))
        )

    @property
    def wraps(self) -> bool:
        """Whether offsets x and x - n are attended to alike, as in circulant patterns."""
        inside = self.offsets[self.offsets != 0]
        if not inside.size or not self.first < 0 < self.last:
            return False
        return bool(np.isin(inside - self.n * np.sign(inside), self.offsets).all())

    @cached_property
    def others(self) -> Offsets:
        """All allowed offsets that are not attended to, shape (n - k,) or up to twice as many."""
        return np.delete(np.arange(self.first, self.last + 1), self.offsets - self.first)


def whole_target(target: Target, stencil: Stencil) -> _core.Target:
    """Return the target that a stencil was found in, as if no column had been left out.

    A target without its exempt columns wants the first rows of a window to keep away from them,
    which no filter does and no one needs. Rows that attend to everything become empty.
    """
    n, size = target.n, stencil.n
    weights = [math.exp(weight) for weight in stencil.log_weights]
    inside: Any = sp.diags_array(weights, offsets=-stencil.offsets, shape=(size, size))
    if stencil.block > 1:
        inside = sp.csr_array(sp.kron(inside, np.ones((stencil.block, stencil.block))))[:n, :n]
        inside = sp.tril(inside) if stencil.first == 0 else inside
    attends = np.ones(n)
    attends[stencil.apart] = 0.0
    whole: Any = sp.csr_array(sp.diags_array(attends) @ inside)
    whole.eliminate_zeros()
    whole.sort_indices()
    return with_matrix(target, whole).core


def entries(target: Target, full: Flags, left_out: Flags) -> tuple[Offsets, Offsets, Floats]:
    """Return row, column and logarithm of the weights outside some rows and columns."""
    csr = target.matrix
    rows = np.repeat(np.arange(target.n, dtype=np.int64), np.diff(csr.indptr))
    kept = ~(full[rows] | left_out[csr.indices])
    return rows[kept], csr.indices[kept].astype(np.int64), np.log(csr.data[kept])


def full_rows(target: Target, left_out: Flags) -> Flags:
    """Return which rows attend to all that the mask allows, with equal weights.

    Columns that are left out do not count.
    """
    n, (first, last) = target.n, allowed_offsets(target.mask, target.n)
    row = np.arange(n)
    start, end = np.maximum(row - last, 0), np.minimum(row - first, n - 1) + 1
    skipped = np.cumsum(np.pad(left_out, (1, 0)))
    allowed = end - start - (skipped[end] - skipped[start])
    rows, _, logs = entries(target, np.zeros(n, dtype=np.bool_), left_out)
    most, least = np.full(n, -np.inf), np.full(n, np.inf)
    np.maximum.at(most, rows, logs)
    np.minimum.at(least, rows, logs)
    counts = np.bincount(rows, minlength=n)
    return np.asarray((counts > 0) & (counts == allowed) & (most - least <= SAME))


def allowed_offsets(mask: Any, n: int) -> tuple[int, int]:
    """Return the least and the largest offset i - j that a mask allows."""
    window = as_window(mask, n)
    if window is None:
        raise InputError(
            'mask must be None, "causal" or a window where A is translation-invariant; got an array'
        )
    return -window[1], window[0]


def _readings(target: Target, left_out: Flags) -> Iterator[tuple[Target, int, Flags]]:
    """Yield what may have a stencil: a target, that of its blocks, and how many tokens these have.

    Last comes the target without its rows that attend to everything, which are flagged.
    """
    none = np.zeros(target.n, dtype=np.bool_)
    yield target, 1, none
    blocks = None if left_out.any() else Blocks.of(target)
    if blocks is not None:
        yield blocks.target, blocks.size, none[: blocks.target.n]
    yield target, 1, full_rows(target, left_out)


def _pairs(offsets: Offsets, full: Flags, left_out: Flags) -> Offsets:
    """Return how many rows and columns that count lie at each offset from each other.

    This is a correlation, which Fourier transforms compute for all offsets at once.
    """
    size = 2 * full.size
    rows, columns = (np.fft.rfft(~flags, size) for flags in (full, left_out))
    return np.rint(np.fft.irfft(rows * columns.conj(), size)[offsets]).astype(np.int64)


def _log_weights(rows: Offsets, offsets: Offsets, logs: Floats, n: int) -> tuple[Offsets, Floats]:
    """Return the offsets and the logarithms of their weights, which rows have up to a constant.

    The constant of a row follows from offsets whose weights are known already; the first known
    one is the most frequent, and each pass learns those that share a row with a known one. Where
    none does, the weight of another is chosen.
    """
    distinct, index, counts = np.unique(offsets, return_inverse=True, return_counts=True)
    weights = np.full(distinct.size, np.nan)
    weights[np.argmax(counts)] = 0.0
    while True:
        known = ~np.isnan(weights[index])
        shift = np.full(n, np.nan)
        shift[rows[known]] = (weights[index] - logs)[known]
        value = logs + shift[rows]
        new = ~known & ~np.isnan(value)
        if new.any():
            weights[index[new]] = value[new]
        elif known.all():
            break
        else:
            weights[index[np.argmin(known)]] = 0.0
    differs = np.abs(value - weights[index]) > SAME
    if differs.any():
        at = int(np.argmax(differs))
        raise InputError(
            "A must be translation-invariant: the ratios of the weights of a row must depend on "
            f"i - j alone; those of row {rows[at]} at offset {offsets[at]} differ from other rows"
        )
    return distinct, weights - weights.min()


# An offset belongs to the stencil if more than this share of the rows that could attend to it do.
MOST = 0.9


@dataclass(frozen=True, eq=False)
class Parts:
    """A pattern as the sum of a stencil and a remainder.

    Attributes
    ----------
    stencil : Stencil
        The offsets that nearly all rows attend to, with the mean of their weights' logarithms.
        ``stencil.apart`` are the rows that attend to everything with equal weights.
    target : Target
        The pattern without the rows apart, of which nothing is wanted. Ignored columns are
        attended to where the stencil does: their logits do not matter, and a filter does so.
    per_row : float
        How many entries per row, on average, the remainder has.
    """

    stencil: Stencil
    target: Target
    per_row: float

    @classmethod
    def of(cls, target: Target, ignored: Sequence[int] | Offsets = ()) -> Self:
        """Tell the parts of a target apart; `ignored` are columns whose logits do not matter.

        Raises an InputError if there is no offset that nearly all rows attend to.
        """
        n, left_out = target.n, np.isin(np.arange(target.n), ignored)
        is_apart = full_rows(target, left_out)
        rows, columns, logs = entries(target, is_apart, left_out)
        present, place, count = np.unique(rows - columns, return_inverse=True, return_counts=True)
        could = n - np.abs(present) - int(is_apart.sum()) - int(left_out.sum())
        common = count > MOST * np.maximum(could, n / 2)
        if not common.any():
            raise InputError(
                "A must attend at some offset i - j in nearly all rows; no offset of this pattern "
                "is that common"
            )
        inside = common[place]
        weights = _means(logs - _means(logs, rows, inside, n)[rows], place, inside, present.size)
        level = _means(logs - weights[place], rows, inside, n)
        reach, apart = allowed_offsets(target.mask, n), np.flatnonzero(is_apart)
        stencil = Stencil(n, present[common], weights[common], *reach, apart=apart)

        # A row attends to an ignored column as much as the stencil does.
        skipped = np.flatnonzero(left_out)
        to = np.tile(skipped, stencil.offsets.size)
        at = to + np.repeat(stencil.offsets, skipped.size)
        log = np.repeat(stencil.log_weights, skipped.size)
        exists = (at >= 0) & (at < n)
        exists[exists] = ~is_apart[at[exists]]
        at, to, log = at[exists], to[exists], log[exists]
        places = np.concatenate([rows, at]), np.concatenate([columns, to])
        weights = np.exp(np.concatenate([logs, log + level[at]]))
        whole: Any = sp.csr_array((weights, places), shape=(n, n))
        whole.sort_indices()
        return cls(stencil, with_matrix(target, whole), float(np.count_nonzero(~inside)) / n)


def _means(values: Floats, groups: Offsets, counts: Flags, size: int) -> Floats:
    """Return the mean of the values that count in each group; 0 for a group without any."""
    sums = np.bincount(groups, np.where(counts, values, 0.0), size)
    return np.asarray(sums / np.maximum(np.bincount(groups, counts, size), 1))
