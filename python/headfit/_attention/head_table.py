"""The table that `describe` returns: measures of heads, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.arrays import as_count
from headfit._base.frames import pandas
from headfit._base.plain import plain_dict
from headfit._base.shown import html_table, text_table
from headfit.errors import InputError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# The names of the two leading axes of Q; of more than two axes, those of the last two.
AXES = ("batch", "head")


@dataclass(frozen=True, repr=False, eq=False)
class HeadTable:
    """The measures of heads that `describe` returns, in arrays with the leading axes of Q.

    The leading axes are written ... below. Rows in which the mask allows no key are left out of
    every measure; a head that has no other rows gets NaN. With the option `sinks` of attention,
    the mass of a row is what it gives to keys in `keys`, supports, `top_mass`, `entropy` and
    `distance`; the other measures are made of the weights as they are.

    Attributes
    ----------
    n, m : int
        The numbers of queries and keys of a head.
    axes : tuple of str
        The names of the leading axes: those that `describe` was given, else ``("batch", "head")``
        for two, ``("head",)`` for one, and ``("axis0", ..., "batch", "head")`` for more.
    shares : tuple of float
        The shares of a row's mass that keys are counted for.
    keys : ndarray of int, shape (..., n, len(shares))
        The fewest keys that hold each share of each row's mass.
    keys_mean, keys_median, keys_max : ndarray, shape (..., len(shares))
        The mean, median and maximum of `keys` over the rows.
    per_row, share : int and float
        They define a row's support: its largest entries until they hold `share` of its mass, at
        most `per_row` of them. It is what ``sparsify(per_row=per_row, mass=share)`` keeps.
    per_column : int
        The most rows that may have a column in their support for the head to be called sparse.
    top_mass : ndarray, shape (..., n)
        The mass of each row's `per_row` largest entries.
    top_mass_mean, top_mass_worst : ndarray, shape (...)
        The mean and the least of `top_mass` over the rows.
    load : ndarray of int, shape (..., m)
        How many rows have the column in their support.
    max_load : ndarray of int, shape (...)
        The largest `load` of a column.
    gamma, gamma_median : ndarray, shape (...)
        The ratio of the largest to the least weight in a row's support: its maximum and its
        median over the rows.
    entropy : ndarray, shape (...)
        The mean entropy of the rows, in nats.
    key_mass : ndarray, shape (...)
        The mean sum of a row's weights: 1 unless attention has the option `sinks`.
    column_mass : ndarray, shape (..., m)
        The share of the head's attention that goes to each column; sums to `key_mass`.
    sinks : ndarray of bool, shape (..., m)
        Attention sinks: columns that are in the support of more than half of the rows, and of
        more than `per_column` rows. ``sparsify(exempt_columns="auto")`` exempts them.
    sink_mass : ndarray, shape (...)
        The share of the head's attention that goes to sinks.
    offsets : ndarray of int, shape (n + m - 1,)
        The differences between the position i + m - n of a query and the position j of a key,
        in increasing order.
    offset_mass : ndarray, shape (..., n + m - 1)
        The share of the head's attention at each difference; sums to `key_mass`.
    distance : ndarray, shape (...)
        The mean absolute difference of positions, weighted by attention.
    previous, diagonal : ndarray, shape (...)
        The mean weight of the key at the position before the query's own, and of the key at the
        query's own position, over the rows for which there is such a key.
    induction : ndarray, shape (...)
        The induction score of Olsson et al. (2022): the weight of the keys that follow earlier
        occurrences of the row's token, as the mean over the rows whose token occurred before.
        NaN without tokens.
    rank : ndarray of int, shape (...)
        The numerical rank of scale * Q K^T: how many singular values exceed max(n, m) eps times
        the largest.
    rank_99 : ndarray of int, shape (...)
        How many singular values hold 99% of the squared sum of the logits after the mean of each
        row is subtracted (which leaves the softmax unchanged).
    sparse : ndarray of bool, shape (...)
        Whether the head is sparse in the paper's sense: every row holds `share` of its mass in
        `per_row` keys, and no column is in the support of more than `per_column` rows.
    """

    n: int
    m: int
    shares: tuple[float, ...]
    keys: Counts
    keys_mean: Floats
    keys_median: Floats
    keys_max: Floats
    per_row: int
    per_column: int
    share: float
    top_mass: Floats
    top_mass_mean: Floats
    top_mass_worst: Floats
    load: Counts
    max_load: Counts
    gamma: Floats
    gamma_median: Floats
    entropy: Floats
    key_mass: Floats
    column_mass: Floats
    sinks: NDArray[np.bool_]
    sink_mass: Floats
    offsets: Counts
    offset_mass: Floats
    distance: Floats
    previous: Floats
    diagonal: Floats
    induction: Floats
    rank: Counts
    rank_99: Counts
    sparse: NDArray[np.bool_]
    axes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes: batch and heads."""
        return self.entropy.shape

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the measures that are one number per head, by name."""
        table: dict[str, NDArray[Any]] = {}
        for i, share in enumerate(self.shares):
            for kind in ("mean", "median", "max"):
                table[f"keys{share * 100:g}_{kind}"] = getattr(self, f"keys_{kind}")[..., i]
        table[f"top{self.per_row}_mean"] = self.top_mass_mean
        table[f"top{self.per_row}_worst"] = self.top_mass_worst
        for name in ("max_load", "gamma", "gamma_median", "entropy"):
            table[name] = getattr(self, name)
        if (self.key_mass < 1).any():
            table["key_mass"] = self.key_mass
        table["sinks"] = self.sinks.sum(axis=-1)
        for name in ("sink_mass", "distance", "previous", "diagonal", "induction"):
            table[name] = getattr(self, name)
        return {**table, "rank": self.rank, "rank_99": self.rank_99, "sparse": self.sparse}

    def to_dict(self) -> dict[str, Any]:
        """Return `columns` as (nested) lists, with the shape and definitions, for JSON."""
        names = ("n", "m", "axes", "per_row", "per_column", "share")
        return plain_dict({**{name: getattr(self, name) for name in names}, **self.columns()})

    def to_pandas(self, axes: Sequence[str] = AXES) -> Any:
        """Return `columns` as a pandas DataFrame with one row per head; pandas must be installed.

        Parameters
        ----------
        axes : sequence of str, optional
            The names of the leading axes of Q, which become the levels of the index; the
            attribute `axes` when they are not given.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        InputError
            If there are not as many names as leading axes, or a name occurs twice.
        ImportError
            If pandas is not installed.
        """
        names = list(self.axes if axes is AXES else axis_names(axes, len(self.shape)))
        pd = pandas()
        rows = {name: values.reshape(-1) for name, values in self.columns().items()}
        if not self.shape:
            return pd.DataFrame(rows)
        index = pd.MultiIndex.from_product([range(s) for s in self.shape], names=names)
        return pd.DataFrame(rows, index=index)

    def statement(self, *head: int) -> str:
        """Return a text that says whether a head is sparse in the paper's sense, and why.

        Parameters
        ----------
        *head : int
            The index of the head along the leading axes.

        Returns
        -------
        str

        Raises
        ------
        InputError
            If there are not as many indices as leading axes, or one is out of range.
        """
        if len(head) != len(self.shape):
            raise InputError(f"head must have {len(self.shape)} indices; got {shown(head)}")
        head = tuple(as_count(i, "head", 0, s - 1) for i, s in zip(head, self.shape, strict=True))
        k, rows = self.per_row, self.top_mass[head] > 0
        if not rows.any():
            return "no attention: every row is empty"
        held = self.top_mass[head][rows] >= self.share - 1e-12
        mass = (
            f"{held.mean():.0%} of the rows hold {self.share:.0%} of their mass in "
            f"{k} {'key' if k == 1 else 'keys'} ({self.top_mass_mean[head]:.0%} on average, "
            f"{self.top_mass_worst[head]:.0%} at worst)"
        )
        busiest = int(self.load[head].argmax())
        load = f"column {busiest} serves {self.max_load[head]} of {int(rows.sum())} rows"
        sinks = np.flatnonzero(self.sinks[head])
        if sinks.size:
            load += f"; {sinks.size} sink{'s' if sinks.size > 1 else ''} with "
            load += f"{self.sink_mass[head]:.0%} of all mass"
        verdict = "sparse" if self.sparse[head] else "not sparse"
        return f"{verdict} at {k} a row and {self.per_column} a column: {mass}; {load}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        shown = self.columns()
        for name in [f"keys{s * 100:g}_{kind}" for s in self.shares for kind in ("mean", "max")]:
            del shown[name]
        del shown["gamma"], shown[f"top{self.per_row}_worst"]
        heads = list(np.ndindex(self.shape))
        keep = heads if len(heads) <= 24 else heads[:12]
        rows = [
            [",".join(str(i) for i in head), *(_text(values[head]) for values in shown.values())]
            for head in keep
        ]
        names = [name.removesuffix("_median") for name in shown]
        is_usual = self.axes == axis_names(AXES, len(self.shape))
        return ["head" if is_usual else ",".join(self.axes), *names], rows

    def __repr__(self) -> str:
        names, rows = self._cells()
        return text_table(self._title(), names, rows, self._more(len(rows)))

    def _repr_html_(self) -> str:
        names, rows = self._cells()
        return html_table(self._title(), names, rows, self._more(len(rows)))

    def _title(self) -> str:
        heads = math.prod(self.shape)
        return (
            f"HeadTable({heads} head{'s' if heads != 1 else ''} of {self.n} x {self.m}; "
            f"{int(self.sparse.sum())} sparse at {self.per_row} a row and {self.per_column} a "
            f"column; keys and gamma are medians over rows)"
        )

    def _more(self, shown: int) -> list[str]:
        left = math.prod(self.shape) - shown
        return [f"... and {left} heads more"] if left else []


def axis_names(axes: Any, count: int) -> tuple[str, ...]:
    """Return one name for each leading axis, or raise an InputError; `AXES` fits any number."""
    if not isinstance(axes, (list, tuple)) or not all(isinstance(name, str) for name in axes):
        raise InputError(f"axes must be a sequence of names; got {shown(axes)}")
    if tuple(axes) == AXES and count != len(AXES):
        return (
            *(f"axis{at}" for at in range(count - len(AXES))),
            *AXES[max(0, len(AXES) - count) :],
        )
    if len(axes) != count:
        raise InputError(
            f"axes must name each of the {count} leading axes of Q; got {len(axes)}: {axes!r}"
        )
    if len(set(axes)) < count:
        raise InputError(f"axes must be different names; got {axes!r}")
    return tuple(axes)


def _text(value: Any) -> str:
    if isinstance(value, (np.bool_, bool)):
        return "yes" if value else "no"
    return "-" if np.isnan(value) else f"{value:.3g}"
