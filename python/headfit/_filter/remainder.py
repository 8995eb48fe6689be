"""Patterns that are a stencil and a few entries more per row: the two parts are told apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from headfit._filter.stencil import (
    Flags,
    Floats,
    Offsets,
    Stencil,
    allowed_offsets,
    entries,
    full_rows,
)
from headfit._target.target import Target, with_matrix
from headfit.errors import InputError

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
        beside = float(np.count_nonzero(~inside)) / n
        return cls(stencil, with_matrix(target, whole), beside)


def _means(values: Floats, groups: Offsets, counts: Flags, size: int) -> Floats:
    """Return the mean of the values that count in each group; 0 for a group without any."""
    sums = np.bincount(groups, np.where(counts, values, 0.0), size)
    sizes = np.bincount(groups, counts, size)
    return np.asarray(sums / np.maximum(sizes, 1))
