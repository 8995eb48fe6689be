"""The file of a sweep: grids of points in TOML, checked before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headfit._base.arguments import shown
from headfit._base.arrays import as_count, thread_count
from headfit._base.files import as_path, opened
from headfit._sweep.grid import grid
from headfit._sweep.work import Task, Work
from headfit.errors import InputError

KEYS = ("out", "processes", "num_threads", "grid")


@dataclass(frozen=True)
class SweepFile:
    """What a file asks for: checked points, where results go, and how many processes and threads.

    A point that is repeated is one task.
    """

    tasks: list[Task]
    out: Path | None
    processes: int | None
    num_threads: int | None


def read_sweep_file(path: Any) -> SweepFile:
    """Return the sweep of fits in a TOML file.

    Raises
    ------
    InputError
        For anything that is not as it should be; the message names the file, the table and the
        key.
    """
    file = Path(as_path(path, "file"))
    with opened(file, "file", "is no file of a sweep") as stream:
        text = stream.read()
    try:
        found = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise InputError(f"file: {file} is no TOML: {error}") from error
    try:
        return _checked(found, file)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _checked(found: Mapping[str, Any], file: Path) -> SweepFile:
    for key in found:
        if key not in KEYS:
            raise InputError(f"{key} is no key of a sweep; these are: {', '.join(KEYS)}")
    out, processes, threads = (found.get(key) for key in KEYS[:3])
    if out is not None and (not isinstance(out, str) or not out):
        raise InputError(f"out must be the name of a folder; got {shown(out)}")
    return SweepFile(
        _tasks(found.get("grid")),
        None if out is None else file.parent / as_path(out, "out"),
        None if processes is None else as_count(processes, "processes", 0),
        None if threads is None else thread_count(threads),
    )


def _tasks(tables: Any) -> list[Task]:
    """Return the tasks of all tables [[grid]], each table checked by itself."""
    if isinstance(tables, Mapping):
        tables = [tables]
    if not isinstance(tables, list) or not tables:
        raise InputError("grid must be given: tables [[grid]] whose keys are those of points")
    tasks: dict[str, Task] = {}
    for i, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping):
            raise InputError(f"grid must be a table; got {shown(table)}")
        try:
            part = Work.of(None, None).tasks(grid(**table))
        except InputError as error:
            name = "grid" if len(tables) == 1 else f"grid {i} of {len(tables)}"
            raise InputError(f"{name}: {error}") from error
        tasks |= {task.key: task for task in part if task.key not in tasks}
    return list(tasks.values())
