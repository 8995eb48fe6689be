"""The file of a sweep, and what it says: a table in JSON Lines, one record a line, that only grows.

A record is flushed to the disk before the next point is taken. Whatever ends the process, and
whenever, the lines before stay whole. A last line that is cut short was being written; readers
leave it out, and the next sweep that writes removes it.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headfit._base.display import Pictured, Tabular
from headfit._base.files import as_path, file_error, file_errors, opened
from headfit._sweep.work import DEFAULTS, Record, Task, point_key
from headfit.errors import MissingFileError

# How every line begins.
START = b'{"key": "'

# Bytes that are written before a sweep begins, to see whether there is room for a record.
PROBE = 4096


class Table:
    """What a file of a sweep says: the records by key, and lines that are none, in words.

    Of several records of one key, as of a point that failed and was computed again, the last
    counts.
    """

    def __init__(self, path: Path, may_lack: bool = False) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        self.damaged: list[str] = []
        self._end = 0  # of the last whole line
        self._gap = b""  # what a new line needs before it
        self._handle = -1
        try:
            with opened(path, "path", "is no table of a sweep") as file:
                for number, line in enumerate(file, start=1):
                    self._read(number, line)
                if self.damaged and not self.records:
                    raise OSError("no line is a record")
        except MissingFileError:
            if not may_lack:
                raise

    def _read(self, number: int, line: bytes) -> None:
        is_ours = line[: len(START)] == START[: len(line)]
        if number == 1 and not is_ours:
            raise OSError("its first line is no record")  # `opened` names the file
        is_whole, record = line.endswith(b"\n"), None
        try:
            record = json.loads(line)
            if record["key"] != point_key(record["work"], record["version"], point_of(record)):
                raise ValueError
            self.records[record["key"]] = record
        except (ValueError, KeyError, TypeError, RecursionError):
            if is_ours and not is_whole and record is None:  # cut short while it was written
                return
            self.damaged.append(f"line {number} of {self.path} is no record, or was changed")
        self._end += len(line)
        self._gap = b"" if is_whole else b"\n"

    def write(self, record: Record) -> None:
        """Add a record; it is on the disk when this returns, or the file is as it was."""
        line = self._gap + json.dumps(record).encode("ascii") + b"\n"
        with file_errors("path", str(self.path), "cannot be written"):
            self._append(line)
        self._end, self._gap = self._end + len(line), b""
        self.records[record["key"]] = record

    def _append(self, text: bytes) -> None:
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
            os.fsync(self._handle)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._end)
            raise

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: Path) -> Iterator[Self]:
        """Open the table at a path for writing, by one sweep at a time; it is made if need be."""
        with file_errors("path", str(path), "cannot be written"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with file_errors("path", str(path), "cannot be written"):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    problem = "is being written by another sweep"
                    raise file_error("path", str(path), problem, error) from error
                except OSError:  # some file systems have no locks
                    pass
                table = cls(path)
                table._handle = handle
                os.ftruncate(handle, table._end)
                table._append(table._gap + START.ljust(PROBE))
                os.ftruncate(handle, table._end)
                # Names in the folder are flushed too, so that a new file survives a loss of power.
                folder = os.open(path.parent, os.O_RDONLY)
                with contextlib.suppress(OSError):  # not every file system can
                    os.fsync(folder)
                os.close(folder)
            yield table
        finally:
            # Processes that were forked meanwhile hold the file open, and would keep the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def point_of(record: Record) -> dict[str, Any]:
    """Return the point of a record: what stands between its key and its work."""
    names = list(record)
    return {name: record[name] for name in names[1 : names.index("work")]}


def open_tasks(tasks: Iterable[Task], table: Table, retry_failed: bool) -> list[Task]:
    """Return the tasks that are still to be computed."""
    done = {key for key, x in table.records.items() if not (retry_failed and "exception" in x)}
    return [task for task in tasks if task.key not in done]


class Sweep(Pictured, Tabular):
    """The results of a sweep, as `run` and `load` return them.

    Attributes
    ----------
    path : Path
        The file that they are in.
    rows : list of dict
        One flat dict for each point that has a result: its `key`, the items of the point, how it
        was computed (`work`, `version`, `code`, `when`, `wall_seconds`, `threads`, `headfit`,
        `cpu_level`, `cpu`), and the result. Where a point and its result share a name and differ,
        the result's is ``name_found``.
    failures : list of dict
        The same for each point that raised an error, with `exception`, its class and message, and
        `traceback` in place of a result.
    damaged : list of str
        Lines that are no records, or whose point was changed. They count for nothing, and stay.
    to_compute : int
        Points that a dry run has left to compute; 0 otherwise.

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
    >>> swept = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
    >>> swept, swept.axes
    (Sweep(results.jsonl: 2 results), {'n': [16, 32]})
    >>> swept.columns["certified"]
    array([ True,  True])
    """

    def __init__(
        self, path: Path, records: Collection[Record], damaged: Sequence[str], to_compute: int = 0
    ) -> None:
        self.path, self.damaged, self.to_compute = path, list(damaged), to_compute
        self.rows: list[Record] = [record for record in records if "exception" not in record]
        self.failures: list[Record] = [record for record in records if "exception" in record]

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

    def _table(self) -> tuple[dict[Any, Any], list[str]]:
        return self.columns, []

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        more = f", {len(self.failures)} failed" if self.failures else ""
        return f"Sweep({self.path.name}: {len(self)} results{more})"


def _order(value: Any) -> tuple[int, float, str]:
    """Return what sorts values of different kinds: numbers, then all else as texts."""
    return (0, value, "") if isinstance(value, (int, float)) else (1, 0.0, str(value))


def _column(values: list[Any]) -> NDArray[Any]:
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
        For a path that is no such file. Lines that are no records are no error: see `Sweep`.

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
    >>> _ = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
    >>> [(row["n"], row["certified"]) for row in hf.sweep.load("results.jsonl").rows]
    [(16, True), (32, True)]
    """
    table = Table(Path(as_path(path, "path")))
    return Sweep(table.path, table.records.values(), table.damaged)
