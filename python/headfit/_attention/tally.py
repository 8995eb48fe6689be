"""`Tally`: what `describe` measures, added up over many passages, in memory that does not grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.describe import _previous
from headfit._attention.head_table import Counts, Floats
from headfit._attention.histogram import BINS, counted
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_count, as_share, as_shares, thread_count


@dataclass(frozen=True)
class Measures:
    """What is measured; the fields are the options of `describe` of the same names."""

    per_row: int = 8
    per_column: int | None = None
    share: float = 0.9
    shares: float | Sequence[float] = (0.9, 0.95, 0.99)

    def __post_init__(self) -> None:
        per_row = as_count(self.per_row, "per_row", 1)
        column = self.per_column
        column = per_row if column is None else as_count(column, "per_column", 1)
        shares = tuple(float(s) for s in as_shares(self.shares, "shares"))
        vars(self).update(
            per_row=per_row,
            per_column=column,
            share=as_share(self.share, "share"),
            shares=shares,
        )


class Tally:
    """Sums, maxima and histograms of the measures of some heads, over the passages that were added.

    All arrays have the heads as their first axis. Memory is O(heads x longest passage).

    Parameters
    ----------
    heads : int
        The number of query heads.
    measures : Measures
        What is measured.

    Attributes
    ----------
    passages : int
        How many passages were added.
    rows : ndarray of int
        Rows with attention; all means are means over them.
    keys_sum, keys_max : ndarray, shape (heads, shares)
    keys_counts : ndarray of int, shape (heads, shares, BINS)
        The histogram of how many keys hold a share of a row's mass.
    top_mass_sum, top_mass_worst, gamma_max, entropy_sum, key_mass_sum : ndarray
    gamma_counts : ndarray of int, shape (heads, BINS)
    max_load, sinks : ndarray of int
        The largest load of a column in a passage, and the number of sinks in all passages.
    sink_mass_sum : ndarray
    sparse : ndarray of int
        In how many passages the head is sparse.
    induction_sum, induction_rows, previous_rows, diagonal_rows : ndarray
    before, after : ndarray, shape (heads, longest)
        The mass on keys at the distances 0, 1, ... before the query, and 1, 2, ... after it.
    columns : ndarray, shape (heads, longest)
        The mass on the keys at each position of their passage.
    """

    def __init__(self, heads: int, measures: Measures) -> None:
        self.heads, self.measures, self.passages = heads, measures, 0
        shares = len(np.atleast_1d(np.asarray(measures.shares)))
        self.rows: Counts = np.zeros(heads, np.int64)
        self.keys_sum: Floats = np.zeros((heads, shares))
        self.keys_max: Floats = np.full((heads, shares), np.nan)
        self.keys_counts: Counts = np.zeros((heads, shares, BINS), np.int64)
        self.top_mass_sum, self.entropy_sum, self.sink_mass_sum = np.zeros((3, heads))
        self.key_mass_sum: Floats = np.zeros(heads)
        self.top_mass_worst, self.gamma_max = np.full((2, heads), np.nan)
        self.gamma_counts: Counts = np.zeros((heads, BINS), np.int64)
        self.max_load, self.sinks, self.sparse = np.zeros((3, heads), np.int64)
        self.induction_sum: Floats = np.zeros(heads)
        self.induction_rows: Counts = np.zeros(heads, np.int64)
        self.previous_rows, self.diagonal_rows = np.zeros((2, heads), np.int64)
        self.before, self.after, self.columns = (np.zeros((heads, 0)) for _ in range(3))

    @standard_arithmetic()
    def add(
        self, attention: Attention, *, tokens: Any = None, num_threads: int | None = None
    ) -> None:
        """Add the passages of an attention whose last leading axis is the heads.

        Parameters
        ----------
        attention : Attention
            Its other leading axes are passages.
        tokens : array_like of int, optional
            The token at each position, as in `describe`.
        num_threads : int, optional
            None uses every core. The result does not depend on it.

        Raises
        ------
        InputError
            For tokens of the wrong kind or shape.
        NonFiniteError
            For NaN or infinity in Q, K or bias.

        Notes
        -----
        Takes O(n m d) time per head in two passes over the logits, and O(n + m) memory per head.
        """
        lead, n, m = attention.lead, attention.n, attention.m
        if 0 in (*lead, n, m):
            return
        threads = thread_count(num_threads)
        per_row, per_column = min(self.measures.per_row, m), self.measures.per_column
        share, shares = self.measures.share, np.atleast_1d(np.asarray(self.measures.shares))
        assert per_column is not None
        earlier = None if tokens is None else _previous(tokens, lead, n)
        stats = attention.stats(shares=shares.tolist(), num_threads=threads)
        profile = _core.head_profile(attention.core, per_row, share, earlier, threads)
        # From here on, arrays have the axes passages, heads, and what they are about.
        parts = (math.prod(lead) // self.heads, self.heads)
        entropy = stats.entropy.reshape((*parts, n))
        keys = stats.keys_for_share.reshape((*parts, n, len(shares)))
        found = {name: x.reshape((*parts, x.shape[-1])) for name, x in profile.items()}
        present = found["kept"] > 0
        rows = present.sum(axis=-1)
        self.passages += parts[0]
        self.rows += rows.sum(axis=0)
        self.entropy_sum += _sum(entropy, present)
        self.key_mass_sum += _sum(stats.key_mass.reshape((*parts, n)), present)
        self._add_keys(keys, present)
        self._add_top(found, rows, per_column)
        self._add_places(found, present)

    def _add_keys(self, keys: Counts, present: NDArray[np.bool_]) -> None:
        heads_first = present.transpose(1, 0, 2).reshape((self.heads, -1))
        for s in range(keys.shape[-1]):
            values = keys[..., s].transpose(1, 0, 2).reshape((self.heads, -1)).astype(np.float64)
            self.keys_sum[:, s] += values.sum(axis=1, where=heads_first)
            self.keys_max[:, s] = np.fmax(self.keys_max[:, s], _largest(values, heads_first))
            self.keys_counts[:, s] += counted(values, heads_first)

    def _add_top(self, found: dict[str, Any], rows: Counts, per_column: int) -> None:
        present, top, load = found["kept"] > 0, found["top_mass"], found["load"]
        worst = np.where(present, top, np.inf).min(axis=-1)
        with np.errstate(over="ignore"):
            gamma = np.exp(found["log_gamma"])
        heads_first = present.transpose(1, 0, 2).reshape((self.heads, -1))
        gamma = gamma.transpose(1, 0, 2).reshape((self.heads, -1))
        self.top_mass_sum += _sum(top, present)
        least = worst.min(axis=0)
        self.top_mass_worst = np.fmin(self.top_mass_worst, np.where(least < np.inf, least, np.nan))
        self.gamma_max = np.fmax(self.gamma_max, _largest(gamma, heads_first))
        self.gamma_counts += counted(gamma, heads_first)
        most = load.max(axis=-1)
        self.max_load = np.maximum(self.max_load, most.max(axis=0))
        sinks = (2 * load > rows[..., np.newaxis]) & (load > per_column)
        self.sinks += sinks.sum(axis=(0, -1))
        self.sink_mass_sum += (found["column_mass"] * sinks).sum(axis=(0, -1))
        held = (worst >= self.measures.share - 1e-12) & (worst < np.inf)
        self.sparse += (held & (most <= per_column)).sum(axis=0)

    def _add_places(self, found: dict[str, Any], present: NDArray[np.bool_]) -> None:
        n, m = present.shape[-1], found["load"].shape[-1]
        position = np.arange(n) + m - n
        self.previous_rows += present[..., (position >= 1) & (position <= m)].sum(axis=(0, -1))
        self.diagonal_rows += present[..., (position >= 0) & (position < m)].sum(axis=(0, -1))
        offsets = found["offset_mass"].sum(axis=0)
        self.before = _plus(self.before, offsets[:, n - 1 :])
        self.after = _plus(self.after, offsets[:, n - 2 :: -1] if n > 1 else offsets[:, :0])
        self.columns = _plus(self.columns, found["column_mass"].sum(axis=0))
        if "induction" in found:
            score = found["induction"]
            self.induction_sum += np.nansum(score, axis=(0, -1))
            self.induction_rows += (~np.isnan(score)).sum(axis=(0, -1))


def _sum(values: NDArray[Any], present: NDArray[np.bool_]) -> Floats:
    """Return the sum of each head's values over passages and rows."""
    return np.asarray(values.sum(axis=(0, -1), where=present), dtype=np.float64)


def _largest(values: Floats, present: NDArray[np.bool_]) -> Floats:
    """Return the largest of each head's values; NaN if it has none."""
    largest = values.max(axis=-1, where=present, initial=-np.inf)
    return np.where(largest > -np.inf, largest, np.nan)


def _plus(total: Floats, more: Floats) -> Floats:
    """Return the sum of two arrays of shape (heads, positions), the shorter continued by zeros."""
    longer, shorter = (total, more) if total.shape[1] >= more.shape[1] else (more, total)
    result = longer.copy()
    result[:, : shorter.shape[1]] += shorter
    return result
