"""What heads measure, of one call or added up over passages: what tables of heads are made of."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arguments import as_count, as_share, thread_count
from headfit._base.arrays import as_array, as_shares
from headfit._base.calls import standard_arithmetic
from headfit._base.display import named
from headfit._base.masks import by_first_axes
from headfit.errors import InputError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Bins from x to 2x. The edges of a bin differ by a factor of 2**(1/8), about 9%.
BINS_PER_DOUBLING = 8

# Where bins begin; the last one holds everything from 2**64.
EDGES = 2.0 ** (np.arange(64 * BINS_PER_DOUBLING + 1) / BINS_PER_DOUBLING)

# The measures that are a sum divided by another, in the order of the table.
MEANS = {
    "entropy": "rows", "key_mass": "rows", "sink_columns": "passages", "sink_mass": "rows",
    "distance": "key_mass", "previous": "previous_rows", "diagonal": "diagonal_rows",
    "induction": "induction_rows", "sparse": "passages",
}  # fmt: skip


@dataclass(frozen=True)
class Measures:
    """What is measured; the fields are the options of `describe` of the same names."""

    per_row: int = 8
    per_column: int | None = None
    share: float = 0.9
    shares: float | Sequence[float] = (0.9, 0.95, 0.99)

    def __post_init__(self) -> None:
        per_row, column = as_count(self.per_row, "per_row", 1), self.per_column
        vars(self).update(
            per_row=per_row,
            per_column=per_row if column is None else as_count(column, "per_column", 1),
            share=as_share(self.share, "share"),
            shares=tuple(float(s) for s in as_shares(self.shares, "shares")),
        )


class Profile(SimpleNamespace):
    """The measures of each row and key of heads; `HeadTable` describes those of the same names.

    These are the arrays keys, entropy, key_mass, top_mass, load, sink_columns and sparse, with the
    leading axes of the attention or others in their place. `present` tells which rows have a key.
    `gamma` and `induction` are of each row, NaN in rows without an induction score. `column_mass`
    and `offset_mass` are sums over the rows.
    """

    @classmethod
    def of(
        cls,
        attention: Attention,
        measures: Measures,
        tokens: Any,
        threads: int,
        lead: tuple[int, ...] | None = None,
    ) -> Self:
        """Measure heads, in a pass over their logits, for arrays with the leading axes `lead`.

        `tokens` are those of `describe`: None where no induction score is wanted.
        """
        n, m = attention.n, attention.m
        per_row, per_column = min(measures.per_row, m), measures.per_column
        of_heads = None if tokens is None else _of_heads(tokens, attention.lead, n)
        shares = np.array(measures.shares)
        raw = _core.head_profile(attention.core, per_row, measures.share, shares, of_heads, threads)
        lead = attention.lead if lead is None else lead
        rows = {name: x.reshape((*lead, *x.shape[1:])) for name, x in raw.items()}
        present, load, top_mass = rows["kept"] > 0, rows["load"], rows["top_mass"]
        count = present.sum(axis=-1, keepdims=True)
        least = np.where(present, top_mass, np.inf).min(axis=-1)
        held = (least >= measures.share - 1e-12) & (least < np.inf)
        with np.errstate(over="ignore"):
            gamma = np.exp(rows["log_gamma"])
        return cls(
            **{"induction": np.full(present.shape, np.nan), **rows},
            present=present,
            gamma=gamma,
            sink_columns=(2 * load > count) & (load > per_column),
            sparse=held & (load.max(axis=-1) <= per_column),
        )

    def over_rows(self, function: Callable[..., Any], values: NDArray[Any]) -> Floats:
        """Apply a NaN-aware reduction over the present rows of a head; NaN where it has none."""
        masked = np.where(self.present, values, np.nan)
        some = ~np.isnan(masked).all(axis=-1)
        result = np.full(some.shape, np.nan)
        result[some] = function(masked[some], axis=-1)
        return result

    def over_keys(self, function: Callable[..., Any]) -> Floats:
        """Reduce `keys` over the present rows: an array of shape (..., shares)."""
        return np.moveaxis(self.over_rows(function, np.moveaxis(self.keys, -1, 0)), 0, -1)

    def at_offset(self, offset: int) -> tuple[Floats, Counts]:
        """Return the mass on keys so many positions before the query, and the rows with such keys.

        Both are sums over the rows of each head.
        """
        n, m = self.present.shape[-1], self.load.shape[-1]
        key = np.arange(n) + m - n - offset
        rows = (self.present & (key >= 0) & (key < m)).sum(axis=-1)
        if not 1 - n <= offset < m:
            return np.zeros(rows.shape), rows
        return self.offset_mass[..., offset + n - 1], rows


def mean_of(total: NDArray[Any], count: NDArray[Any]) -> Floats:
    """Return total / count, and NaN where nothing was counted."""
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)


def _of_heads(tokens: Any, lead: tuple[int, ...], n: int) -> Counts:
    """Return the token at each position of each head, shape (heads, n)."""
    array = as_array(tokens, "tokens")
    if array.dtype.kind not in "iu" or array.shape[-1:] != (n,):
        raise InputError(
            f"tokens must be integers of shape (..., {n}); got shape {array.shape} of {array.dtype}"
        )
    return by_first_axes(array.astype(np.int64), lead, "tokens", n)


class HeadStatistics:
    """Sums, maxima and histograms of the measures of some heads, over the passages that were added.

    All arrays have the heads as their first axis. Memory is O(heads x longest passage).

    Attributes
    ----------
    sums : dict of str to ndarray
        Sums over rows or passages, by the names of the measures: those of `MEANS`; ``rows`` (with
        attention) and other counts; histograms ``keys_counts`` and ``gamma_counts``; the mass on
        keys at the distances 0, 1, ... ``before`` the query, and that on the ``columns`` of the
        passages.
    worst : dict of str to ndarray
        The largest value in any row, of ``top_mass`` the least.
    """

    def __init__(self, heads: int, measures: Measures) -> None:
        self.heads, self.measures = heads, measures
        shares, nothing = (heads, np.size(measures.shares)), np.zeros((heads, 0))
        one, many = np.full(heads, np.nan), np.full(shares, np.nan)
        self.sums: dict[str, NDArray[Any]] = {
            **dict.fromkeys([*MEANS, *MEANS.values(), "top_mass"], np.zeros(heads)),
            **dict.fromkeys(["rows", "passages"], np.zeros(heads, np.int64)),
            "keys": np.zeros(shares),
            "keys_counts": np.zeros((*shares, EDGES.size), np.int64),
            "gamma_counts": np.zeros((heads, EDGES.size), np.int64),
            **dict.fromkeys(["before", "columns"], nothing),
        }
        self.worst = {"keys": many, "gamma": one, "load": np.zeros(heads, int), "top_mass": one}

    @property
    def passages(self) -> int:
        """How many passages were added."""
        return int(self.sums["passages"].max(initial=0))

    @standard_arithmetic()
    def add(
        self, attention: Attention, *, tokens: Any = None, num_threads: int | None = None
    ) -> None:
        """Add the passages of an attention whose last leading axis is the heads.

        Its other leading axes are passages; `tokens` are those of `describe`. Takes O(n m d) time
        per head in one pass over the logits, and O(n + m) memory per head.
        """
        if 0 in (*attention.lead, attention.n, attention.m):
            return
        lead = math.prod(attention.lead) // self.heads, self.heads
        profile = Profile.of(attention, self.measures, tokens, thread_count(num_threads), lead)
        self.sums |= {name: _plus(self.sums[name], x) for name, x in _sums(profile).items()}
        worst = {
            "keys": (np.fmax, profile.over_keys(np.nanmax)),
            "gamma": (np.fmax, profile.over_rows(np.nanmax, profile.gamma)),
            "load": (np.fmax, profile.load.max(axis=-1)),
            "top_mass": (np.fmin, profile.over_rows(np.nanmin, profile.top_mass)),
        }
        for name, (worse, values) in worst.items():
            self.worst[name] = worse(self.worst[name], worse.reduce(values, axis=0))

    def numbers(self) -> dict[str, NDArray[Any]]:
        """Return a column for each measure, by name: see `ModelTable`."""
        measures, sums = self.measures, self.sums
        columns: dict[str, NDArray[Any]] = {"rows": sums["rows"]}
        middle = medians(sums["keys_counts"], integers=True)
        for s, share in enumerate(np.atleast_1d(measures.shares)):
            keys = f"keys{share * 100:.12g}"
            columns[f"{keys}_mean"] = mean_of(sums["keys"][:, s], sums["rows"])
            columns[f"{keys}_median~"] = middle[:, s]
            columns[f"{keys}_max"] = self.worst["keys"][:, s]
        return columns | {
            f"top{measures.per_row}_mean": mean_of(sums["top_mass"], sums["rows"]),
            f"top{measures.per_row}_worst": self.worst["top_mass"],
            "max_load": self.worst["load"],
            "gamma": self.worst["gamma"],
            "gamma_median~": medians(sums["gamma_counts"]),
            **{name: mean_of(sums[name], sums[count]) for name, count in MEANS.items()},
        }

    def shares(self, name: str) -> Floats:
        """Return a sum of masses as shares of all attention of each head."""
        return np.asarray(self.sums[name] / np.maximum(self.sums["rows"], 1)[:, np.newaxis])


def _sums(profile: Profile) -> dict[str, NDArray[Any]]:
    """Return what is added up of passages, with the heads as the first axis."""
    passages, heads, n = profile.present.shape
    per_row = {
        "rows": profile.present,
        **named(profile, "entropy", "key_mass", "top_mass"),
        "induction": np.nan_to_num(profile.induction),
        "induction_rows": ~np.isnan(profile.induction),
    }
    offset_mass = profile.offset_mass.sum(axis=0)
    per_head = {
        "keys": np.sum(profile.keys, axis=-2, where=profile.present[..., np.newaxis]),
        "sink_columns": profile.sink_columns.sum(axis=-1),
        "sink_mass": (profile.column_mass * profile.sink_columns).sum(axis=-1),
        "sparse": profile.sparse,
        "columns": profile.column_mass,
        **dict(zip(("previous", "previous_rows"), profile.at_offset(1), strict=True)),
        **dict(zip(("diagonal", "diagonal_rows"), profile.at_offset(0), strict=True)),
    }
    keys = np.moveaxis(profile.keys, -1, 0)
    return {
        **{name: x.sum(axis=(0, -1), where=profile.present) for name, x in per_row.items()},
        **{name: x.sum(axis=0) for name, x in per_head.items()},
        "passages": np.full(heads, passages),
        "keys_counts": np.stack([counted(x, profile.present) for x in keys], axis=1),
        "gamma_counts": counted(profile.gamma, profile.present),
        "distance": offset_mass @ np.abs(np.arange(offset_mass.shape[1]) - (n - 1.0)),
        "before": offset_mass[:, n - 1 :],
    }


def _plus(total: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of two arrays, the last axis of the shorter continued by zeros."""
    longer, shorter = (total, more) if total.shape[-1] >= more.shape[-1] else (more, total)
    result = longer.astype(np.result_type(longer, shorter))
    result[..., : shorter.shape[-1]] += shorter
    return result


def counted(values: NDArray[Any], present: NDArray[np.bool_]) -> Counts:
    """Return how many of the present values of each head lie in each bin, shape (heads, bins).

    `values`, shape (passages, heads, rows), are numbers of at least 1, or infinity.
    """
    heads = values.shape[1]
    bins = np.searchsorted(EDGES, np.maximum(values, 1.0), side="right") - 1
    bins += np.arange(heads)[:, np.newaxis] * EDGES.size
    return np.bincount(bins[present], minlength=heads * EDGES.size).reshape((heads, EDGES.size))


def medians(counts: Counts, *, integers: bool = False) -> Floats:
    """Return the approximate median of each histogram, shape (..., bins); NaN where it is empty.

    Of `integers` up to 11, each has a bin of its own, and the median is exact; for larger ones the
    least integer of the bin is taken. Other numbers count as the geometric middle of their bin; in
    the first most are the ratio of rows with one entry, which is exactly 1.
    """
    total = counts.sum(axis=-1, keepdims=True)
    cumulated = np.cumsum(counts, axis=-1)
    # The two middle values, of which the median is the mean; they are the same for odd counts.
    lower, upper = ((cumulated <= rank).sum(axis=-1) for rank in ((total - 1) // 2, total // 2))
    if integers:
        values = np.ceil(EDGES - 1e-6)
    else:
        values = np.append(1.0, EDGES[1:] * 2 ** (0.5 / BINS_PER_DOUBLING))
    middle = (values.take(lower, mode="clip") + values.take(upper, mode="clip")) / 2
    return np.where(total[..., 0] > 0, middle, np.nan)
