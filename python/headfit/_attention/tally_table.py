"""`TallyTable`: streamed measures of the heads of many layers, one row per layer and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.head_table import _text
from headfit._attention.histogram import medians
from headfit._attention.tally import Tally
from headfit._base.files import as_path, save_arrays
from headfit._base.frames import pandas
from headfit._base.plain import plain_dict
from headfit._base.shown import html_table, text_table
from headfit._base.stored_arrays import load_arrays
from headfit.errors import InputError

_FORMAT = "headfit capture 1"
_SHOWN = 24  # rows that the repr shows at most


@dataclass(frozen=True, repr=False, eq=False)
class TallyTable:
    """The measures of a model's heads over all passages that it read, one row per layer and head.

    Attributes
    ----------
    numbers : dict of str to ndarray
        A column for each measure, by name, each of shape (rows of the table,). ``layer`` and
        ``kind`` hold text, ``head`` the number of the head in its layer; the others are named
        as in `HeadTable.columns`. Means are over all rows of all passages; ``max`` and ``worst``
        are over them too. Medians come from histograms with bins of a ratio of 2**(1/8), and are
        approximate: their names end in ``_median~``. ``max_load`` is the largest in a passage,
        ``sinks`` the mean number per passage, and ``sparse`` the share of the passages in which
        the head is sparse in the paper's sense.
    distances : dict of str to ndarray
        For each layer, the share of each head's attention on the key at the distance
        0, 1, 2, ... before the query, with shape (heads, longest passage).
    columns : dict of str to ndarray
        For each layer, the share of each head's attention on the key at each position of its
        passage, with shape (heads, longest passage).

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from headfit._attention.tally import Measures, Tally
    >>> tally = Tally(1, Measures(per_row=1))
    >>> X = 8 * np.eye(16)
    >>> tally.add(hf.Attention(X[None], np.roll(X, -1, axis=0)[None]))
    >>> table = TallyTable.of({"layer": ("self", tally)})
    >>> table.numbers["previous"].round(3), table.numbers["keys90_median~"]
    (array([1.]), array([1.]))
    """

    numbers: dict[str, NDArray[Any]]
    distances: dict[str, NDArray[np.float64]]
    columns: dict[str, NDArray[np.float64]]

    @classmethod
    def of(cls, layers: Mapping[str, tuple[str, Tally]]) -> TallyTable:
        """Return the table of the tallies of some layers, by name, with their kinds."""
        parts: list[dict[str, NDArray[Any]]] = []
        for name, (kind, tally) in layers.items():
            about = {
                "layer": np.full(tally.heads, name),
                "kind": np.full(tally.heads, kind),
                "head": np.arange(tally.heads),
            }
            parts.append({**about, **_measures(tally)})
        numbers = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        return cls(
            numbers,
            {name: _share(t.before, t.rows) for name, (_, t) in layers.items()},
            {name: _share(t.columns, t.rows) for name, (_, t) in layers.items()},
        )

    def __len__(self) -> int:
        return len(self.numbers["head"])

    def to_dict(self) -> dict[str, Any]:
        """Return `numbers` as lists, for JSON."""
        return plain_dict(self.numbers)

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame indexed by layer and head.

        Raises
        ------
        ImportError
            Without pandas.
        """
        return pandas().DataFrame(self.numbers).set_index(["layer", "head"])

    def save(self, path: Any) -> Path:
        """Write the numbers of the table to an .npz file, which `load` reads; never a pickle.

        Raises
        ------
        FileError
            If the file cannot be written. A file of that name stays as it was then.
        """
        target = Path(as_path(path, "path"))
        if target.suffix != ".npz":
            raise InputError(f"path must end in .npz; got {target}")
        arrays = {f"numbers/{name}": values for name, values in self.numbers.items()}
        layers = list(self.distances)
        for at, layer in enumerate(layers):
            arrays[f"distances/{at}"] = self.distances[layer]
            arrays[f"columns/{at}"] = self.columns[layer]
        return save_arrays(
            target, {"format": np.array(_FORMAT), "layers": np.array(layers), **arrays}
        )

    @classmethod
    def load(cls, path: Any) -> TallyTable:
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
        try:
            layers = [str(name) for name in arrays["layers"]]
            prefix = "numbers/"
            return cls(
                {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)},
                {layer: arrays[f"distances/{at}"] for at, layer in enumerate(layers)},
                {layer: arrays[f"columns/{at}"] for at, layer in enumerate(layers)},
            )
        except KeyError as error:
            raise InputError(f"path: {path} is no saved capture: it lacks {error}") from error

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        names = [n for n in self.numbers if not n.endswith(("_max", "_mean", "gamma", "_worst"))]
        if (np.nan_to_num(self.numbers["key_mass"], nan=1) >= 1 - 1e-9).all():
            names.remove("key_mass")  # no layer has sinks as parameters
        keep = len(self) if len(self) <= _SHOWN else _SHOWN // 2
        return names, self.cells(names, keep)

    def cells(self, names: list[str], count: int) -> list[list[str]]:
        """Return the first rows of some columns as text."""
        return [[_cell(self.numbers[name][at]) for name in names] for at in range(count)]

    def _title(self) -> str:
        return (
            f"TallyTable({len(self)} heads of {len(self.distances)} layers; medians (~) are "
            "approximate, from histograms)"
        )

    def _more(self, shown: int) -> list[str]:
        left = len(self) - shown
        return [f"... and {left} heads more"] if left else []

    def __repr__(self) -> str:
        names, rows = self._cells()
        return text_table(self._title(), names, rows, self._more(len(rows)))

    def _repr_html_(self) -> str:
        names, rows = self._cells()
        return html_table(self._title(), names, rows, self._more(len(rows)))


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, (str, np.str_)) else _text(value)


def _share(mass: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return masses as shares of all attention of their head."""
    return mass / np.maximum(rows, 1)[:, np.newaxis]


def _mean(total: NDArray[Any], count: NDArray[Any]) -> NDArray[np.float64]:
    """Return total / count, and NaN where nothing was counted."""
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)


def _measures(tally: Tally) -> dict[str, NDArray[Any]]:
    measures, rows = tally.measures, tally.rows
    key_medians = medians(tally.keys_counts, integers=True)
    found: dict[str, NDArray[Any]] = {"rows": rows}
    for s, share in enumerate(np.atleast_1d(np.asarray(measures.shares))):
        found[f"keys{share * 100:g}_mean"] = _mean(tally.keys_sum[:, s], rows)
        found[f"keys{share * 100:g}_median~"] = key_medians[:, s]
        found[f"keys{share * 100:g}_max"] = tally.keys_max[:, s]
    found[f"top{measures.per_row}_mean"] = _mean(tally.top_mass_sum, rows)
    found[f"top{measures.per_row}_worst"] = tally.top_mass_worst
    passages = np.full(tally.heads, tally.passages)
    ahead = np.arange(1, tally.after.shape[1] + 1)
    distance = tally.before @ np.arange(tally.before.shape[1]) + tally.after @ ahead
    return {
        **found,
        "max_load": tally.max_load,
        "gamma": tally.gamma_max,
        "gamma_median~": medians(tally.gamma_counts),
        "entropy": _mean(tally.entropy_sum, rows),
        "key_mass": _mean(tally.key_mass_sum, rows),
        "sinks": _mean(tally.sinks, passages),
        "sink_mass": _mean(tally.sink_mass_sum, rows),
        "distance": _mean(distance, np.where(rows > 0, tally.key_mass_sum, 0)),
        "previous": _mean(_at(tally.before, 1), tally.previous_rows),
        "diagonal": _mean(_at(tally.before, 0), tally.diagonal_rows),
        "induction": _mean(tally.induction_sum, tally.induction_rows),
        "sparse": _mean(tally.sparse, passages),
    }


def _at(profile: NDArray[np.float64], distance: int) -> NDArray[np.float64]:
    """Return the mass at a distance; zeros if no passage is so long."""
    return profile[:, distance] if distance < profile.shape[1] else np.zeros(len(profile))
