"""What a sweep computed: rows, columns, failures, and lines of its file that are no records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.files import as_path
from headfit._base.frames import pandas
from headfit._base.shown import Shown
from headfit._sweep.fits import DEFAULTS
from headfit._sweep.table import Table, point_of
from headfit._sweep.work import Record

__all__ = ["Sweep", "load"]


class Sweep(Shown):
    """The results of a sweep, as `run` and `load` return them.

    Attributes
    ----------
    path : Path
        The file that they are in.
    rows : list of dict
        One flat dict for each point that has a result: its `key`, the items of the point, how it
        was computed (`work`, `version`, `code`, `when`, `wall_seconds`, `threads`, `headfit`,
        `cpu_level`, `cpu`), and those of the result. Where a point and its result share a name
        and differ, the result's is ``name_found``.
    failures : list of dict
        The same for each point that raised an error, with `exception`, its class and message, and
        `traceback` in place of a result.
    damaged : list of str
        Lines of the file that are no records, or were changed. They count for nothing, and stay.

    Notes
    -----
    The result of a fit has these keys. What the point says keeps its own names.

    ==================  ==========================================================================
    certified           whether the certificate holds; `status` is its word
    dim_found           the head size, if certified; `dim_tried` in any case
    lower_bound         the proved lower bound on the size, if there is one
    stopped, searched   why the fit ended, and its search
    leak_found          certified upper bounds: `leak_found`, `distortion_found`,
                        `max_logit_found`, `max_norm_found`
    share_held          the share of rows that meet the tolerances
    failed_rows         rows that the method itself gave up
    steps               steps that the learned method took for this head
    method_used         the method of the head
    n, nnz              tokens, and nonzeros of the pattern
    seconds             time of the fit, its certificate included
    ==================  ==========================================================================

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
    >>> swept = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
    >>> swept
    Sweep(results.jsonl: 2 results)
    >>> swept.axes
    {'n': [16, 32]}
    >>> swept.columns["certified"]
    array([ True,  True])
    """

    def __init__(self, path: Path, records: Iterable[Record], damaged: Sequence[str] = ()) -> None:
        self.path, self.damaged = path, list(damaged)
        self.rows: list[Record] = []
        self.failures: list[Record] = []
        for record in records:
            (self.failures if "exception" in record else self.rows).append(record)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The keys of points that have more than one value, with their values in order.

        None stands for a key of fits that a point leaves out, such as `dim`. The absence of others,
        such as options that only some methods have, is no value.
        """
        points = [point_of(record) for record in (*self.rows, *self.failures)]
        values: dict[str, dict[str, Any]] = {name: {} for point in points for name in point}
        for name, of_name in values.items():
            kept = (p.get(name) for p in points if name in p or name in DEFAULTS)
            of_name |= {repr(value): value for value in kept}
        return {n: sorted(v.values(), key=_order) for n, v in values.items() if len(v) > 1}

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The rows as one array for each name: bool, int64, float64 (None is NaN) or object."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return {name: _column([row.get(name) for row in self.rows]) for name in names}

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame; pandas is needed."""
        return pandas().DataFrame(self.columns)

    def __len__(self) -> int:
        return len(self.rows)

    def _counts(self) -> dict[str, int]:
        counts = {"failed": len(self.failures), "damaged lines": len(self.damaged)}
        return {"results": len(self.rows)} | {name: n for name, n in counts.items() if n}

    def _facts(self) -> dict[str, str]:
        facts = {"file": str(self.path)} | {name: str(n) for name, n in self._counts().items()}
        return facts | {name: shown(values) for name, values in self.axes.items()}

    def __repr__(self) -> str:
        said = ", ".join(f"{count} {name}" for name, count in self._counts().items())
        return f"Sweep({self.path.name}: {said})"


def _order(value: Any) -> tuple[int, float, str]:
    """Return what sorts values of different kinds: numbers, then nothing, texts and the rest."""
    return (0, value, "") if isinstance(value, (int, float)) else (1, 0.0, str(value))


def _column(values: list[Any]) -> NDArray[Any]:
    """Return values as an array: booleans, int64, float64 (None is NaN), or objects."""
    kinds = {type(value) for value in values}
    if kinds <= {bool} or kinds <= {int}:
        return np.array(values)
    if kinds <= {int, float, type(None)}:
        return np.array(values, dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def load(path: Any) -> Sweep:
    """Read the results in a file of a sweep, of every function and version that wrote to it.

    Parameters
    ----------
    path : path
        The file that `run` wrote to. It may be written to meanwhile.

    Returns
    -------
    Sweep

    Raises
    ------
    FileError
        For a path that is no such file. Lines of the file that are no records are no error: see
        `Sweep`.

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
    >>> _ = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
    >>> swept = hf.sweep.load("results.jsonl")
    >>> [(row["n"], row["certified"]) for row in swept.rows]
    [(16, True), (32, True)]
    """
    table = Table(Path(as_path(path, "path")))
    return Sweep(table.path, table.records.values(), table.damaged)
