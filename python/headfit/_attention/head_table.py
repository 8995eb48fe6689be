"""Tables of heads: `HeadTable` of single heads, `ModelTable` of a model's heads over passages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headfit._attention.profile import Counts, Floats, HeadStatistics
from headfit._base.arguments import as_count, shown
from headfit._base.display import Pictured, Tabular, named, plain_dict, text_table
from headfit._base.files import load_arrays, save_arrays, with_suffix
from headfit.errors import InputError

_FORMAT = "headfit capture 1"
_SHOWN = 24  # heads that a table shows at most
_ONE_NUMBER = (
    "max_load", "gamma", "gamma_median", "entropy", "key_mass", "sink_columns", "sink_mass",
    "distance", "previous", "diagonal", "induction", "rank", "rank_99", "sparse",
)  # fmt: skip


def _as_text(title: str, columns: Mapping[str, NDArray[Any]]) -> str:
    """Return a title, and the columns of a table below it, as text."""
    total = len(next(iter(columns.values())))
    count = total if total <= _SHOWN else _SHOWN // 2
    more = [f"... and {total - count} heads more"] if count < total else []
    return text_table(title, list(columns), cells(columns, count), more)


def cells(columns: Mapping[str, NDArray[Any]], count: int) -> list[list[str]]:
    """Return the first rows of columns as text."""
    return [[_text(column[at]) for column in columns.values()] for at in range(count)]


def _text(value: Any) -> str:
    if isinstance(value, (str, np.str_)):
        return str(value)
    if isinstance(value, (np.bool_, bool)):
        return "yes" if value else "no"
    return "-" if np.isnan(value) else f"{value:.3g}"


@dataclass(frozen=True, repr=False, eq=False)
class HeadTable(Pictured, Tabular):
    """The measures of heads that `describe` returns, in arrays with the leading axes of Q.

    The leading axes are written ... below, and are the index of a table. Rows in which the mask
    allows no key are left out of every measure; a head that has no other rows gets NaN. With the
    option `sinks` of attention, the mass of a row is what it gives to keys in `keys`, supports,
    `top_mass`, `entropy` and `distance`; the other measures are made of the weights as they are.

    Attributes
    ----------
    n, m : int
        The numbers of queries and keys of a head.
    axes : tuple of str
        The names of the leading axes: the last two are "batch" and "head".
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
    sink_columns : ndarray of bool, shape (..., m)
        Attention sinks: columns that are in the support of more than half of the rows, and of
        more than `per_column` rows. ``sparsify(exempt_columns="auto")`` exempts them.
    sink_mass : ndarray, shape (...)
        The share of the head's attention that goes to `sink_columns`.
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
    sink_columns: NDArray[np.bool_]
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

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes: batch and heads."""
        return np.shape(self.entropy)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the leading axes: ``axis0``, ..., ``batch`` and ``head``."""
        count = len(self.shape)
        return (*(f"axis{at}" for at in range(count - 2)), "batch", "head")[-count or 2 :]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the measures that are one number per head, by name."""
        table = {
            f"keys{share * 100:.12g}_{kind}": getattr(self, f"keys_{kind}")[..., i]
            for i, share in enumerate(self.shares)
            for kind in ("mean", "median", "max")
        }
        table |= {
            f"top{self.per_row}_mean": self.top_mass_mean,
            f"top{self.per_row}_worst": self.top_mass_worst,
            **named(self, *_ONE_NUMBER),
            "sink_columns": self.sink_columns.sum(axis=-1),
        }
        if not (self.key_mass < 1).any():
            del table["key_mass"]
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return `columns` as (nested) lists, with the shape and definitions, for JSON."""
        own = named(self, "n", "m", "axes", "per_row", "per_column", "share")
        return plain_dict(own | self.columns())

    def statement(self, *head: int) -> str:
        """Return a text that says whether a head is sparse in the paper's sense, and why.

        Parameters
        ----------
        *head : int
            The index of the head along the leading axes.

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
        busiest, sinks = int(self.load[head].argmax()), int(self.sink_columns[head].sum())
        text = (
            f"{'sparse' if self.sparse[head] else 'not sparse'} at {k} a row and "
            f"{self.per_column} a column: {held.mean():.0%} of the rows hold "
            f"{self.share * 100:.12g}% of their mass in {k} {'key' if k == 1 else 'keys'} "
            f"({self.top_mass_mean[head]:.0%} on average, {self.top_mass_worst[head]:.0%} at worst)"
            f"; column {busiest} serves {self.max_load[head]} of {int(rows.sum())} rows"
        )
        if sinks:
            plural = "s" if sinks > 1 else ""
            text += f"; {sinks} sink{plural} with {self.sink_mass[head]:.0%} of all mass"
        return text

    def __repr__(self) -> str:
        heads = math.prod(self.shape)
        title = (
            f"HeadTable({heads} head{'s' if heads != 1 else ''} of {self.n} x {self.m}; "
            f"{int(self.sparse.sum())} sparse at {self.per_row} a row and {self.per_column} a "
            f"column; keys and gamma are medians over rows)"
        )
        keys = (f"keys{s * 100:.12g}_{kind}" for s in self.shares for kind in ("mean", "max"))
        hidden = {*keys, "gamma", f"top{self.per_row}_worst"}
        places = [",".join(str(i) for i in head) for head in np.ndindex(self.shape)]
        columns = {
            name.removesuffix("_median"): np.reshape(values, -1)
            for name, values in self.columns().items()
            if name not in hidden
        }
        return _as_text(title, {"head": np.array(places), **columns})

    def _table(self) -> tuple[dict[Any, Any], list[str]]:
        places = np.indices(self.shape).reshape((len(self.shape), math.prod(self.shape)))
        columns = {name: np.reshape(values, -1) for name, values in self.columns().items()}
        return {**dict(zip(self.axes, places, strict=True)), **columns}, [*self.axes]


@dataclass(frozen=True, repr=False, eq=False)
class ModelTable(Pictured, Tabular):
    """The measures of a model's heads over all passages that it read, one row per layer and head.

    These are the index of their table.

    Attributes
    ----------
    numbers : dict of str to ndarray
        A column for each measure, by name, each of shape (rows of the table,). ``layer`` and
        ``kind`` hold text, ``head`` the number of the head in its layer; the others are named
        as in `HeadTable.columns`. Means are over all rows of all passages; ``max`` and ``worst``
        are over them too. Medians come from histograms with bins of a ratio of 2**(1/8), and are
        approximate: their names end in ``_median~``. ``max_load`` is the largest in a passage,
        ``sink_columns`` the mean number per passage, and ``sparse`` the share of the passages in
        which the head is sparse in the paper's sense.
    distances : dict of str to ndarray
        For each layer, the share of each head's attention on the key at the distance
        0, 1, 2, ... before the query, with shape (heads, longest passage).
    column_mass : dict of str to ndarray
        For each layer, the share of each head's attention on the key at each position of its
        passage, with shape (heads, longest passage).

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from headfit._attention.profile import HeadStatistics, Measures
    >>> statistics = HeadStatistics(1, Measures(per_row=1))
    >>> X = 8 * np.eye(16)
    >>> statistics.add(hf.Attention(X[None], np.roll(X, -1, axis=0)[None]))
    >>> table = ModelTable.of({"layer": ("self", statistics)})
    >>> table.numbers["previous"].round(3), table.numbers["keys90_median~"]
    (array([1.]), array([1.]))
    """

    numbers: dict[str, NDArray[Any]]
    distances: dict[str, NDArray[np.float64]]
    column_mass: dict[str, NDArray[np.float64]]

    @classmethod
    def of(cls, layers: Mapping[str, tuple[str, HeadStatistics]]) -> Self:
        """Return the table of the statistics of some layers, by name, with their kinds."""
        parts = [
            {"layer": np.full(s.heads, name), "kind": np.full(s.heads, kind),
             "head": np.arange(s.heads), **s.numbers()}
            for name, (kind, s) in layers.items()
        ]  # fmt: skip
        return cls(
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
            {name: s.shares("before") for name, (_, s) in layers.items()},
            {name: s.shares("columns") for name, (_, s) in layers.items()},
        )

    def __len__(self) -> int:
        return len(self.numbers["head"])

    def to_dict(self) -> dict[str, Any]:
        """Return `numbers` as lists, for JSON."""
        return plain_dict(self.numbers)

    def save(self, path: Any) -> Path:
        """Write the numbers of the table to an .npz file, which `load` reads; never a pickle.

        Raises
        ------
        FileError
            If the file cannot be written. A file of that name stays as it was then.
        """
        return save_arrays(with_suffix(path, "path", [".npz"]), {
            "format": np.array(_FORMAT),
            "layers": np.array(list(self.distances)),
            **{f"numbers/{name}": x for name, x in self.numbers.items()},
            **{f"distances/{at}": x for at, x in enumerate(self.distances.values())},
            **{f"columns/{at}": x for at, x in enumerate(self.column_mass.values())},
        })  # fmt: skip

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read a table that `save` wrote.

        Raises
        ------
        FileError
            If the file cannot be read.
        InputError
            If it holds no such table.
        """
        arrays = load_arrays(path, "saved capture")
        if "format" not in arrays or str(arrays["format"]) != _FORMAT:
            raise InputError(f"path: {path} is no saved capture")
        new = {"sinks": "sink_columns"}  # names of columns in files of earlier versions
        parts = [(name.partition("numbers/")[2], values) for name, values in arrays.items()]
        try:
            layers = [str(name) for name in arrays["layers"]]
            return cls(
                {new.get(name, name): values for name, values in parts if name},
                {layer: arrays[f"distances/{at}"] for at, layer in enumerate(layers)},
                {layer: arrays[f"columns/{at}"] for at, layer in enumerate(layers)},
            )
        except (KeyError, TypeError) as error:
            lacking = error if isinstance(error, KeyError) else "a list of layers"
            raise InputError(f"path: {path} is no saved capture: it lacks {lacking}") from error

    def __repr__(self) -> str:
        title = (
            f"ModelTable({len(self)} heads of {len(self.distances)} layers; medians (~) are "
            "approximate, from histograms)"
        )
        hidden: tuple[str, ...] = ("_max", "_mean", "gamma", "_worst")
        if (np.nan_to_num(self.numbers["key_mass"], nan=1) >= 1 - 1e-9).all():
            hidden += ("key_mass",)  # no layer has sinks as parameters
        return _as_text(title, {n: x for n, x in self.numbers.items() if not n.endswith(hidden)})

    def _table(self) -> tuple[dict[Any, Any], list[str]]:
        return self.numbers, ["layer", "head"]
