"""What a sweep found: rows, columns, failures, and files that could not be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.files import as_path, replace_file
from headfit._base.shown import Shown
from headfit._sweep.fit_points import DEFAULTS
from headfit._sweep.grid import axis_values
from headfit._sweep.record import Record
from headfit._sweep.rows import Row, as_columns, as_csv, as_row, distinct, names_of
from headfit._sweep.store import Entry, Store
from headfit.errors import InputError

__all__ = ["Sweep", "load_sweep"]


class Sweep(Shown):
    """The results of a sweep, as `sweep` and `load_sweep` return them.

    Attributes
    ----------
    store : Path
        The folder that they are from.
    rows : list of dict
        One flat dict for each point that has a result: the keys of the point, those of its
        result, and how it was made (`wall_seconds`, `when`, `threads`, `headfit`, `cpu_level`,
        `cpu`, and `key`, `work`, `version`). Where a point and its result share a name and
        differ, the result's is ``name_found``. A point or a result that has a name of the last
        kind itself keeps it.
    failures : list of dict
        One for each point that failed: the keys of the point, with `error` (its class),
        `message` and `traceback`.
    missing : int
        How many points have neither.
    damaged : list of str
        Files that are no records: cut short, changed, not of a sweep, or such that the system
        cannot read them. They count as missing, and are left as they are, or set aside where a
        result takes their place.

    Notes
    -----
    The result of a fit has these keys. What the point asked for keeps its own names.

    ==================  ==========================================================================
    certified           whether the certificate holds; `status` is its word
    dim_found           the head size, if certified; `dim_tried` in any case
    lower_bound         the proved lower bound on the size, if there is one
    stopped, searched   why the fit ended, and its search
    leak_found          certified upper bounds: `leak_found`, `distortion_found`,
                        `max_logit_found`, `max_norm_found`
    share_held          the share of rows that meet the tolerances
    failed_rows         rows that the method itself gave up
    steps               steps of the learned method, of all sizes, as of its last scan
    method_used         the method that found the head
    n, nnz              tokens, and nonzeros of the pattern
    seconds             time of the fit, its certificate included
    ==================  ==========================================================================
    """

    def __init__(self, store: Path, entries: Iterable[Entry]) -> None:
        self.store = store
        self.rows: list[Row] = []
        self.failures: list[Row] = []
        self.damaged: list[str] = []
        self.missing = 0
        self._records: list[Record] = []  # of the rows, in their order
        self._failed: list[Record] = []
        self._axes: list[str] = []
        for entry in entries:
            if entry.record is not None:
                self._add(entry.record)
            elif entry.status == "damaged":
                self.damaged.append(entry.why)
            if entry.key and entry.record is None:
                self.missing += 1

    def _add(self, record: dict[str, Any]) -> None:
        self._axes += [name for name in record["point"] if name not in self._axes]
        if record["status"] == "done":
            self.rows.append(as_row(record))
            self._records.append(record)
            return
        self._failed.append(record)
        error = record["error"]
        about = {name: error.get(name, "") for name in ("message", "traceback")}
        self.failures.append({**as_row(record), "error": error.get("class", ""), **about})

    @property
    def records(self) -> list[Record]:
        """What the files of the points say, failures last: names as they are, and nothing merged.

        A result may have a name of its own that a row also needs, such as `version`.
        """
        return [*self._records, *self._failed]

    def _part(self, keep: Callable[[Row, Record], bool]) -> Sweep:
        """Return the rows that are kept, given them and their records, without failures."""
        found = Sweep(self.store, ())
        for row, record in zip(self.rows, self._records, strict=True):
            if keep(row, record):
                found.rows.append(row)
                found._records.append(record)
        found._axes = self._axes
        return found

    def by_work(self) -> list[tuple[Record, Sweep]]:
        """Return the rows of each work and version apart, beside the newest record of them.

        Of one work the version whose newest record is the latest comes first.
        """
        newest: dict[str, Record] = {}
        for record in self._records:
            text = _maker(record)
            if text not in newest or _when(record) >= _when(newest[text]):
                newest[text] = record
        ordered = sorted(newest.values(), key=_when, reverse=True)
        by_work = sorted(ordered, key=lambda record: str(record["work"]))
        return [(record, self._made_like(record)) for record in by_work]

    def _made_like(self, record: Record) -> Sweep:
        maker = _maker(record)
        return self._part(lambda _, other: _maker(other) == maker)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The keys of points that have more than one value, with their values.

        A key of one value that goes with some patterns or methods alone, such as the default of an
        option that others lack, is none.
        """
        rows = [*self.rows, *self.failures]
        found = {name: distinct(row.get(name) for row in rows) for name in self._axes}
        return {
            name: values
            for name, values in found.items()
            if len(values) > 1 and not _goes_with_kinds(name, values, rows)
        }

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The rows as one array for each name: bool, int64, float64 (None is NaN) or object."""
        return as_columns(self.rows)

    def where(self, **values: Any) -> Sweep:
        """Return the rows whose values are as given, without failures.

        A list, a tuple, a range or a 1-dimensional array stands for any of its values, as in
        `grid`.

        Raises
        ------
        InputError
            For a name that no row has, and for an array that is not 1-dimensional.
        """
        known = names_of(self.rows)
        for name in values:
            if name not in known:
                raise InputError(f"{name} is no column; these are: {', '.join(known)}")
        allowed = {name: list(axis_values(name, value)) for name, value in values.items()}
        return self._part(lambda row, _: all(row.get(n) in v for n, v in allowed.items()))

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame; pandas is needed."""
        try:
            import pandas as pd  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'headfit[pandas]'") from error
        return pd.DataFrame(self.columns)

    def to_csv(self, path: Any) -> Path:
        """Write the rows to a CSV file, at once or not at all."""
        target = Path(as_path(path, "path"))
        text = as_csv(self.rows)
        replace_file(target, lambda file: file.write(text))
        return target

    def __len__(self) -> int:
        return len(self.rows)

    def _facts(self) -> dict[str, str]:
        facts = {"store": str(self.store), "results": str(len(self.rows))}
        counts = {
            "failed": len(self.failures),
            "missing": self.missing,
            "damaged files": len(self.damaged),
        }
        facts |= {name: str(count) for name, count in counts.items() if count}
        return facts | {name: shown(values) for name, values in self.axes.items()}

    def __repr__(self) -> str:
        parts = [f"{len(self.rows)} results"]
        parts += [f"{len(self.failures)} failed"] if self.failures else []
        parts += [f"{self.missing} missing"] if self.missing else []
        parts += [f"{len(self.damaged)} damaged files"] if self.damaged else []
        return f"Sweep({self.store}: {', '.join(parts)})"


def _goes_with_kinds(name: str, values: Sequence[Any], rows: Iterable[Row]) -> bool:
    """Return whether points of a pattern and a method all have a key, with one value, or lack it.

    Every point may have the keys of `DEFAULTS`, so that their absence is a choice.
    """
    if name in DEFAULTS or len(values) != 2 or None not in values:
        return False
    lacks: dict[str, bool] = {}
    for row in rows:
        kinds, is_none = json.dumps([row.get("pattern"), row.get("method")]), row.get(name) is None
        if lacks.setdefault(kinds, is_none) != is_none:
            return False
    return True


def _maker(record: Record) -> str:
    return json.dumps([record["work"], record["version"]], sort_keys=True)


def _when(record: Record) -> str:
    """Return when a record was made: a text in UTC, by which records can be sorted."""
    return str(record["made"].get("when", ""))


def load_sweep(store: Any) -> Sweep:
    """Read all results of a store, from the files of its points, of every work and version.

    ``load_sweep(store).where(version=2)`` has those of one version.

    Parameters
    ----------
    store : path
        The folder that `sweep` wrote to. It may be written to meanwhile.

    Returns
    -------
    Sweep

    Raises
    ------
    FileError
        For a path that is no store. A damaged file in a store is no error: see `Sweep`.

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
    >>> _ = hf.sweep(points, "results", processes=0, num_threads=1)
    >>> found = hf.load_sweep("results")
    >>> sorted(found.columns["n"].tolist()), found.columns["certified"].tolist()
    ([16, 32], [True, True])
    """
    opened = Store.existing(store)
    return Sweep(opened.folder, opened.entries())
