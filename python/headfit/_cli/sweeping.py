"""`headfit sweep`: many points from a file in TOML."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headfit._base.arguments import shown
from headfit._base.files import as_path, opened
from headfit._cli.command import Call, Outcome, command
from headfit._cli.options import flag, option
from headfit._sweep.table import Table, open_tasks
from headfit._sweep.work import Task, Work, tasks_of
from headfit.errors import InputError
from headfit.sweep import grid, run

KEYS = ("out", "workers", "num_threads", "grid")
CONNECTING = 10
"""Seconds after which a scheduler that does not answer is an error."""
SHOWN = 5
"""Failures that are printed, at most; the table has all."""


@command(
    option("file", metavar="FILE", help="grids of points, in TOML"),
    option("--out", metavar="TABLE", help="the file of the results, in JSON Lines (default: that "
           "of FILE); points that it has are not computed again"),
    option("--scheduler", metavar="ADDRESS", help="compute on the Dask cluster of this scheduler"),
    option("--workers", type=int, metavar="N", help="processes here (default: those of FILE, or as "
           "many as fill the cores)"),
    option("--num-threads", type=int, metavar="N", help="threads of each point (default: that of "
           "FILE, or its share of the cores)"),
    flag("--retry-failed", "compute points again that failed before"),
    flag("--dry-run", "check FILE, count its points, and end"),
    examples="""
        headfit sweep sweep.toml --out results.jsonl
        headfit sweep sweep.toml --out results.jsonl --dry-run
        headfit sweep sweep.toml --out results.jsonl --scheduler tcp://10.0.0.1:8786
    """,
)  # fmt: skip
def sweep(call: Call) -> Outcome:
    """Fit a head for every point of a file, and keep every result."""
    file, scheduler = call.pop("file"), call.pop("scheduler", None)
    if scheduler is not None and "workers" in call:
        raise InputError("--workers must not be given beside --scheduler")
    said = read_sweep_file(file)
    tasks, out = said.pop("grid"), call.pop("out", said.pop("out", None))
    if out is None:
        raise InputError(f"{file}: out must be given, there or as --out")
    if call.pop("dry_run", False):
        return _dry_run(tasks, out, call.pop("retry_failed", False))
    options = {**said, **call}
    with contextlib.ExitStack() as stack:
        if scheduler is not None:
            client = stack.enter_context(_connected(scheduler))
            options |= {"executor": client.get_executor(), "workers": None}
        swept = run([task.point for task in tasks], out, progress=call.say, **options)
    done, failed = len(swept.rows), len(swept.failures)
    lines = [f"{out}: {done} points done, {failed} failed"]
    for failure in swept.failures[:SHOWN]:
        names = [name for name in swept.axes if name in failure]
        point = ", ".join(f"{name} = {json.dumps(failure[name])}" for name in names)
        lines.append(f"  failed: {point}: {' '.join(failure['exception'].split())}")
    lines += [f"  damaged: {line}" for line in swept.damaged]
    figures = {"table": str(out), "done": done, "failed": failed, "damaged": swept.damaged}
    return Outcome(figures, "\n".join(lines), not failed)


def _dry_run(tasks: list[Task], out: Any, retry_failed: bool) -> Outcome:
    table = Table(Path(out), may_lack=True)
    records = table.records
    failed = sum(task.key in records and "exception" in records[task.key] for task in tasks)
    figures = {
        "table": str(out),
        "points": len(tasks),
        "done": sum(task.key in records for task in tasks) - failed,
        "failed": failed,
        "to_compute": len(open_tasks(tasks, table, retry_failed)),
    }
    said = "{table}: {points} points, {done} done, {failed} failed; {to_compute} to compute"
    return Outcome(figures, said.format(**figures))


def _connected(address: str) -> Any:
    """Return a client of the Dask scheduler at an address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("a cluster needs Dask: pip install 'headfit[sweep]'") from error
    try:
        return Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"scheduler: {address} does not answer: {error}") from error


def read_sweep_file(path: Any) -> dict[str, Any]:
    """Return what a file in TOML says: `KEYS`, with checked tasks in place of the grids.

    Raises
    ------
    InputError
        For anything that is not as it should be; the message names the file, the table and the
        key.
    """
    file = Path(as_path(path, "file"))
    with opened(file, "file", "is no file of a sweep") as stream:
        raw = stream.read()
    try:
        said = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise InputError(f"file: {file} is no TOML: {error}") from error
    try:
        for key in said:
            if key not in KEYS:
                raise InputError(f"{key} is no key of a sweep; these are: {', '.join(KEYS)}")
        if "out" in said:
            if not isinstance(said["out"], str) or not said["out"]:
                raise InputError(f"out must be the name of a file; got {shown(said['out'])}")
            said["out"] = file.parent / as_path(said["out"], "out")
        return {**said, "grid": _tasks(said.get("grid"))}
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _tasks(tables: Any) -> list[Task]:
    """Return the tasks of all tables [[grid]], each table checked by itself."""
    tables = [tables] if isinstance(tables, Mapping) else tables
    if not isinstance(tables, list) or not tables:
        raise InputError("grid must be given: tables [[grid]] whose keys are those of points")
    tasks: dict[str, Task] = {}
    for i, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping):
            raise InputError(f"grid must be a table; got {shown(table)}")
        try:
            part = tasks_of(grid(**table), Work.of(None, None))
        except InputError as error:
            name = "grid" if len(tables) == 1 else f"grid {i} of {len(tables)}"
            raise InputError(f"{name}: {error}") from error
        tasks |= {task.key: task for task in part}
    return list(tasks.values())
