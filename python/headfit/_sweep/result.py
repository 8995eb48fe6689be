"""What a sweep found: rows, columns, failures, and files that could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.files import as_path, replace_file
from headfit._base.shown import Shown, picture
from headfit._sweep.grid import axis_values
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
            return
        error = record["error"]
        about = {name: error.get(name, "") for name in ("message", "traceback")}
        self.failures.append({**as_row(record), "error": error.get("class", ""), **about})

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The keys of points that have more than one value, with their values."""
        rows = [*self.rows, *self.failures]
        found = {name: distinct(row.get(name) for row in rows) for name in self._axes}
        return {name: values for name, values in found.items() if len(values) > 1}

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
        allowed = {name: axis_values(name, value) for name, value in values.items()}
        found = Sweep(self.store, ())
        found.rows = [r for r in self.rows if all(r.get(n) in v for n, v in allowed.items())]
        found._axes = self._axes
        return found

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

    def _picture(self) -> str:
        """Return the head sizes against n, with a series for each value of the other keys."""
        axes = self.axes
        if "n" not in axes:
            return ""
        known = names_of(self.rows)  # a key may be one of failures alone
        by = [name for name in axes if name in known and name not in ("n", "seed")]
        alt = "The head size against the number of tokens"
        return picture("growth", self, alt, (7.6, 3.8), by=by)

    def __repr__(self) -> str:
        parts = [f"{len(self.rows)} results"]
        parts += [f"{len(self.failures)} failed"] if self.failures else []
        parts += [f"{self.missing} missing"] if self.missing else []
        parts += [f"{len(self.damaged)} damaged files"] if self.damaged else []
        return f"Sweep({self.store}: {', '.join(parts)})"


def load_sweep(store: Any) -> Sweep:
    """Read all results of a store, from the files of its points.

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
    >>> points = hf.grid(pattern="band", n=[16, 32], width=1, dim=6)
    >>> _ = hf.sweep(points, "results", processes=0, num_threads=1)
    >>> found = hf.load_sweep("results")
    >>> sorted(found.columns["n"].tolist()), found.columns["certified"].tolist()
    ([16, 32], [True, True])
    """
    opened = Store.existing(store)
    return Sweep(opened.folder, opened.entries())
