"""What `describe` measures, added up over many passages, in memory that does not grow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.profile import Counts, Floats, Measures, Profile, mean_of
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import thread_count

BINS_PER_DOUBLING = 8
"""Bins from x to 2x. The edges of a bin differ by a factor of 2**(1/8), about 9%."""

BINS = 64 * BINS_PER_DOUBLING + 1
"""The last bin holds everything from 2**64."""


class HeadStatistics:
    """Sums, maxima and histograms of the measures of some heads, over the passages that were added.

    All arrays have the heads as their first axis. Memory is O(heads x longest passage).

    Attributes
    ----------
    passages : int
        How many passages were added.
    rows : ndarray of int
        Rows with attention; all means are means over them.
    sums : dict of str to ndarray
        Sums over rows or passages, by the names of the measures. ``previous_rows``,
        ``diagonal_rows`` and ``induction_rows`` count the rows that these measures have.
    largest, least : dict of str to ndarray
        The largest and the least value in any row.
    keys_counts, gamma_counts : ndarray of int, shape (heads, shares, BINS) and (heads, BINS)
        Histograms of how many keys hold a share of a row's mass, and of gamma.
    before, after : ndarray, shape (heads, longest)
        The mass on keys at the distances 0, 1, ... before the query, and 1, 2, ... after it.
    columns : ndarray, shape (heads, longest)
        The mass on the keys at each position of their passage.
    """

    def __init__(self, heads: int, measures: Measures) -> None:
        self.heads, self.measures, self.passages = heads, measures, 0
        shares = np.size(measures.shares)
        self.rows: Counts = np.zeros(heads, np.int64)
        self.sums: dict[str, Any] = dict.fromkeys(_SUMS, np.zeros(heads))
        self.sums["keys"] = np.zeros((heads, shares))
        self.largest = {
            "keys": np.full((heads, shares), np.nan),
            "gamma": np.full(heads, np.nan),
            "load": np.zeros(heads, np.int64),
        }
        self.least = {"top_mass": np.full(heads, np.nan)}
        self.keys_counts: Counts = np.zeros((heads, shares, BINS), np.int64)
        self.gamma_counts: Counts = np.zeros((heads, BINS), np.int64)
        self.before, self.after, self.columns = (np.zeros((heads, 0)) for _ in range(3))

    @standard_arithmetic()
    def add(
        self, attention: Attention, *, tokens: Any = None, num_threads: int | None = None
    ) -> None:
        """Add the passages of an attention whose last leading axis is the heads.

        Its other leading axes are passages; `tokens` are those of `describe`. Takes O(n m d) time
        per head in two passes over the logits, and O(n + m) memory per head.
        """
        n = attention.n
        if 0 in (*attention.lead, n, attention.m):
            return
        passages = math.prod(attention.lead) // self.heads
        threads = thread_count(num_threads)
        profile = Profile.of(attention, self.measures, tokens, threads, (passages, self.heads))
        self.passages += passages
        self.rows += profile.present.sum(axis=(0, -1))
        for name, values in _sums(profile).items():
            self.sums[name] = self.sums[name] + values
        for name, function, extremes, values in (
            ("keys", np.fmax, self.largest, profile.over_keys(np.nanmax)),
            ("gamma", np.fmax, self.largest, profile.over_rows(np.nanmax, profile.gamma)),
            ("load", np.fmax, self.largest, profile.load.max(axis=-1)),
            ("top_mass", np.fmin, self.least, profile.over_rows(np.nanmin, profile.top_mass)),
        ):
            extremes[name] = function(extremes[name], function.reduce(values, axis=0))
        present = _heads_first(profile.present)
        for s in range(profile.keys.shape[-1]):
            self.keys_counts[:, s] += counted(_heads_first(profile.keys[..., s]), present)
        self.gamma_counts += counted(_heads_first(profile.gamma), present)
        offsets = profile.offset_mass.sum(axis=0)
        self.before = _plus(self.before, offsets[:, n - 1 :])
        self.after = _plus(self.after, offsets[:, n - 2 :: -1] if n > 1 else offsets[:, :0])
        self.columns = _plus(self.columns, profile.column_mass.sum(axis=0))

    def numbers(self) -> dict[str, NDArray[Any]]:
        """Return a column for each measure, by name: see `ModelTable`."""
        measures, rows, sums = self.measures, self.rows, self.sums
        columns: dict[str, NDArray[Any]] = {"rows": rows}
        middle = medians(self.keys_counts, integers=True)
        names = zip(*(measures.names(kind) for kind in ("mean", "median~", "max")), strict=True)
        for s, (mean, median, most) in enumerate(names):
            columns[mean] = mean_of(sums["keys"][:, s], rows)
            columns[median] = middle[:, s]
            columns[most] = self.largest["keys"][:, s]
        columns[f"top{measures.per_row}_mean"] = mean_of(sums["top_mass"], rows)
        columns[f"top{measures.per_row}_worst"] = self.least["top_mass"]
        columns["max_load"] = self.largest["load"]
        columns["gamma"] = self.largest["gamma"]
        columns["gamma_median~"] = medians(self.gamma_counts)
        ahead, back = np.arange(1, self.after.shape[1] + 1), np.arange(self.before.shape[1])
        distance = self.before @ back + self.after @ ahead
        return columns | {
            "entropy": mean_of(sums["entropy"], rows),
            "key_mass": mean_of(sums["key_mass"], rows),
            "sink_columns": mean_of(sums["sink_columns"], np.full(self.heads, self.passages)),
            "sink_mass": mean_of(sums["sink_mass"], rows),
            "distance": mean_of(distance, sums["key_mass"]),
            "previous": mean_of(sums["previous"], sums["previous_rows"]),
            "diagonal": mean_of(sums["diagonal"], sums["diagonal_rows"]),
            "induction": mean_of(sums["induction"], sums["induction_rows"]),
            "sparse": mean_of(sums["sparse"], np.full(self.heads, self.passages)),
        }


_SUMS = (
    "entropy", "key_mass", "top_mass", "sink_columns", "sink_mass", "sparse", "previous",
    "previous_rows", "diagonal", "diagonal_rows", "induction", "induction_rows",
)  # fmt: skip


def _sums(profile: Profile) -> dict[str, NDArray[Any]]:
    """Return what is added up of passages, with the heads as the first axis."""
    previous, diagonal = profile.at_offset(1), profile.at_offset(0)
    per_row = {
        "entropy": profile.entropy,
        "key_mass": profile.key_mass,
        "top_mass": profile.top_mass,
        "induction": np.nan_to_num(profile.induction),
        "induction_rows": ~np.isnan(profile.induction),
    }
    per_head = {
        "keys": np.sum(profile.keys, axis=-2, where=profile.present[..., np.newaxis]),
        "sink_columns": profile.sink_columns.sum(axis=-1),
        "sink_mass": (profile.column_mass * profile.sink_columns).sum(axis=-1),
        "sparse": profile.sparse,
        "previous": previous[0],
        "previous_rows": previous[1],
        "diagonal": diagonal[0],
        "diagonal_rows": diagonal[1],
    }
    sums = {name: x.sum(axis=(0, -1), where=profile.present) for name, x in per_row.items()}
    return sums | {name: x.sum(axis=0) for name, x in per_head.items()}


def _heads_first(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of passages, heads and rows with the shape (heads, passages x rows)."""
    return values.transpose(1, 0, 2).reshape((values.shape[1], -1))


def _plus(total: Floats, more: Floats) -> Floats:
    """Return the sum of two arrays of shape (heads, positions), the shorter continued by zeros."""
    longer, shorter = (total, more) if total.shape[1] >= more.shape[1] else (more, total)
    result = longer.copy()
    result[:, : shorter.shape[1]] += shorter
    return result


def counted(values: NDArray[Any], present: NDArray[np.bool_]) -> Counts:
    """Return how many of the present values of each head lie in each bin, shape (heads, BINS).

    `values`, shape (heads, rows), are numbers of at least 1, or infinity.
    """
    heads = len(values)
    exponents = np.log2(np.where(present, np.maximum(values, 1.0), 1.0))
    # Logarithms of powers of two are exact; others may be just below the edge that they stand on.
    bins = np.minimum(exponents * BINS_PER_DOUBLING + 1e-9, BINS - 1).astype(np.int64)
    bins += np.arange(heads)[:, np.newaxis] * BINS
    return np.bincount(bins[present], minlength=heads * BINS).reshape((heads, BINS))


def medians(counts: Counts, *, integers: bool = False) -> Floats:
    """Return the approximate median of each histogram, shape (..., BINS); NaN where it is empty.

    Of `integers` up to 11, each has a bin of its own, and the median is exact; for larger ones the
    least integer of the bin is taken. Other numbers count as the geometric middle of their bin.
    """
    total = counts.sum(axis=-1, keepdims=True)
    cumulated = np.cumsum(counts, axis=-1)
    # The two middle values, of which the median is the mean; they are the same for odd counts.
    lower, upper = ((cumulated <= rank).sum(axis=-1) for rank in ((total - 1) // 2, total // 2))
    places = np.arange(BINS) + (0.0 if integers else 0.5)
    values = 2.0 ** (places / BINS_PER_DOUBLING)
    if integers:
        values = np.ceil(values - 1e-6)
    else:
        values[0] = 1.0  # most often the ratio of rows with one entry, which is exactly 1
    last = BINS - 1
    middle = (values[np.minimum(lower, last)] + values[np.minimum(upper, last)]) / 2
    return np.where(total[..., 0] > 0, middle, np.nan)
