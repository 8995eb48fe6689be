"""What the rows and keys of heads measure: the arrays that tables of heads are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arrays import as_array, as_count, as_share, as_shares
from headfit.errors import InputError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


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

    def names(self, kind: str) -> list[str]:
        """Return the names of the columns with the mean, median or maximum of the keys."""
        return [f"keys{share * 100:g}_{kind}" for share in np.atleast_1d(self.shares)]


@dataclass(frozen=True)
class Profile:
    """The measures of each row and key of heads; `HeadTable` describes those of the same names.

    Arrays have the leading axes of the attention, or others in their place. `present` tells which
    rows have a key. `gamma` and `induction` are of each row, NaN in rows without an induction
    score. `column_mass` and `offset_mass` are sums over the rows.
    """

    present: NDArray[np.bool_]
    keys: Counts
    entropy: Floats
    key_mass: Floats
    top_mass: Floats
    gamma: Floats
    induction: Floats
    load: Counts
    sink_columns: NDArray[np.bool_]
    sparse: NDArray[np.bool_]
    column_mass: Floats
    offset_mass: Floats

    @classmethod
    def of(
        cls,
        attention: Attention,
        measures: Measures,
        tokens: Any,
        threads: int,
        lead: tuple[int, ...] | None = None,
    ) -> Profile:
        """Measure heads, in two passes over their logits, for arrays with the leading axes `lead`.

        `tokens` are those of `describe`: None where no induction score is wanted.
        """
        n, m = attention.n, attention.m
        if tokens is not None and n != m:
            raise InputError(f"tokens need as many queries as keys; got {n} and {m}")
        previous = None if tokens is None else _previous(tokens, attention.lead, n)
        stats = attention.stats(shares=measures.shares, num_threads=threads)
        per_row, per_column = min(measures.per_row, m), measures.per_column
        raw = _core.head_profile(attention.core, per_row, measures.share, previous, threads)
        lead = attention.lead if lead is None else lead
        rows = {name: x.reshape((*lead, x.shape[-1])) for name, x in raw.items()}
        present, load, top_mass = rows["kept"] > 0, rows["load"], rows["top_mass"]
        count = present.sum(axis=-1, keepdims=True)
        least = np.where(present, top_mass, np.inf).min(axis=-1)
        held = (least >= measures.share - 1e-12) & (least < np.inf)
        with np.errstate(over="ignore"):
            gamma = np.exp(rows["log_gamma"])
        return cls(
            present=present,
            keys=stats.keys_for_share.reshape((*lead, n, stats.keys_for_share.shape[-1])),
            entropy=stats.entropy.reshape((*lead, n)),
            key_mass=stats.key_mass.reshape((*lead, n)),
            top_mass=top_mass,
            gamma=gamma,
            induction=rows.get("induction", np.full(present.shape, np.nan)),
            load=load,
            sink_columns=(2 * load > count) & (load > per_column),
            sparse=held & (load.max(axis=-1) <= per_column),
            column_mass=rows["column_mass"],
            offset_mass=rows["offset_mass"],
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


def _previous(tokens: Any, lead: tuple[int, ...], n: int) -> Counts:
    """Return the last earlier position of each position's token, or -1; shape (heads, n)."""
    array = as_array(tokens, "tokens")
    if array.dtype.kind not in "iu" or array.ndim < 1 or array.shape[-1] != n:
        raise InputError(
            f"tokens must be integers of shape (..., {n}); got shape {array.shape} of {array.dtype}"
        )
    batch = array.shape[:-1] + (1,) * (len(lead) - array.ndim + 1)
    order = np.argsort(array, axis=-1, kind="stable")
    in_order = np.take_along_axis(array, order, axis=-1)
    before = np.where(in_order[..., 1:] == in_order[..., :-1], order[..., :-1], -1)
    previous = np.full(array.shape, -1, dtype=np.int64)
    np.put_along_axis(previous, order[..., 1:], before, axis=-1)
    try:
        of_heads = np.broadcast_to(previous.reshape((*batch, n)), (*lead, n))
    except ValueError as error:
        raise InputError(
            f"tokens must have the leading axes {lead} or the first of them; got {array.shape[:-1]}"
        ) from error
    return np.ascontiguousarray(of_heads.reshape((math.prod(lead), n)))
