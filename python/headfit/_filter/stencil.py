"""What a translation-invariant pattern wants at each offset, and how it is found in a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.masks import as_window
from headfit._target.target import Target
from headfit.errors import InputError

__all__ = ["Stencil"]

# By how much the logarithm of a weight may differ from that of its offset.
SAME = 1e-6


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
    """

    n: int
    offsets: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    first: int
    last: int
    block: int = 1

    @classmethod
    def of(cls, target: Target) -> Stencil:
        """Find the stencil of a target.

        Raises
        ------
        InputError
            If the target is not translation-invariant; the message names an entry that shows it.
        """
        csr = target.matrix
        rows = np.repeat(np.arange(target.n, dtype=np.int64), np.diff(csr.indptr))
        columns = csr.indices.astype(np.int64)
        reach = _allowed_offsets(target.mask, target.n)
        # A row with one allowed key, such as the first of a causal mask, attends to it anyway.
        free = _choices(reach, target.n)
        forced = int(target.n - np.count_nonzero(free))
        data = csr.data[free[rows]]
        rows, columns = rows[free[rows]], columns[free[rows]]
        sizes = {1, _block_size(target)}
        for block in sorted(sizes):
            positions = -(-target.n // block)
            offsets = rows // block - columns // block
            missing = _missing(offsets, target.n, block, reach, target.mask, forced)
            if missing is None:
                found, log_weights = _log_weights(rows, offsets, np.log(data), target.n)
                first, last = (
                    int(np.clip(x // block, 1 - positions, positions - 1)) for x in reach
                )
                return cls(positions, found, log_weights, first, last, block)
        raise InputError(
            "A must be translation-invariant: whether token i attends to token j must depend on "
            f"i - j alone; some rows attend at offset {missing}, and others do not"
        )

    @property
    def per_row(self) -> int:
        """How many keys a row away from the ends attends to."""
        return int(self.offsets.size) * self.block

    @property
    def others(self) -> NDArray[np.int64]:
        """All allowed offsets that are not attended to, shape (n - k,) or up to twice as many."""
        every = np.arange(self.first, self.last + 1, dtype=np.int64)
        wanted = np.zeros(every.size, dtype=np.bool_)
        wanted[self.offsets - self.first] = True
        return every[~wanted]


def _allowed_offsets(mask: Any, n: int) -> tuple[int, int]:
    """Return the least and the largest offset i - j that a mask allows."""
    window = as_window(mask, n)
    if window is None:
        raise InputError(
            'mask must be None, "causal" or a window where A is translation-invariant; got an array'
        )
    return -window[1], window[0]


def _choices(reach: tuple[int, int], n: int) -> NDArray[np.bool_]:
    """Return which rows may attend to more than one key; all rows if none may."""
    rows = np.arange(n)
    first, last = np.maximum(rows - reach[1], 0), np.minimum(rows - reach[0], n - 1)
    free = last > first
    return free if free.any() else ~free


def _block_size(target: Target) -> int:
    """Return how many tokens share a position, should the pattern consist of blocks.

    The first column of a row is a multiple of the size, and changes once per block.
    """
    csr = target.matrix
    filled = np.diff(csr.indptr) > 0
    firsts = csr.indices[csr.indptr[:-1][filled]]
    later = firsts[firsts > 0]
    return int(later[0]) if later.size else 1


def _missing(
    offsets: NDArray[np.int64],
    n: int,
    block: int,
    reach: tuple[int, int],
    mask: Any,
    forced: int,
) -> int | None:
    """Return an offset at which some allowed entries are zero; None if there is none.

    `forced` rows have no choice, and are not among the entries.
    """
    positions = -(-n // block)
    count = np.bincount(offsets + positions - 1, minlength=2 * positions - 1)
    present = np.flatnonzero(count) - (positions - 1)
    if block == 1:
        allowed = np.where((present >= reach[0]) & (present <= reach[1]), n - np.abs(present), 0)
        allowed -= np.where(present == 0, forced, 0)  # their one key is their own
    else:
        if mask is not None and not isinstance(mask, str):
            return int(present[0])
        last = n - (positions - 1) * block  # the size of the last block
        pairs = (positions - np.abs(present) - 1) * block * block + block * last
        inner = (positions - 1) * block * block + last * last
        if mask is not None:  # causal: half of the blocks on the diagonal
            inner = (inner + n) // 2 - forced
        allowed = np.where(present == 0, inner, pairs)
    wrong = np.flatnonzero(count[present + positions - 1] != allowed)
    return int(present[wrong[0]]) if wrong.size else None


def _log_weights(
    rows: NDArray[np.int64], offsets: NDArray[np.int64], logs: NDArray[np.float64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the offsets and the logarithms of their weights, which rows have up to a constant.

    The constant of a row follows from offsets whose weights are known already; the first known
    one is the most frequent, and each pass learns those that share a row with a known one.
    """
    found, index, counts = np.unique(offsets, return_inverse=True, return_counts=True)
    weights = np.full(found.size, np.nan)
    weights[np.argmax(counts)] = 0.0
    while True:
        known = ~np.isnan(weights[index])
        shift = np.full(n, np.nan)
        shift[rows[known]] = (weights[index] - logs)[known]
        value = logs + shift[rows]
        new = np.isnan(weights[index]) & ~np.isnan(value)
        if not new.any():
            break
        weights[index[new]] = value[new]
    differs = np.abs(value - weights[index]) > SAME
    if np.isnan(value).any() or differs.any():
        at = int(np.argmax(np.isnan(value) | differs))
        raise InputError(
            "A must be translation-invariant: the ratios of the weights of a row must depend on "
            f"i - j alone; those of row {rows[at]} at offset {offsets[at]} differ from other rows"
        )
    return found, weights - weights.min()
