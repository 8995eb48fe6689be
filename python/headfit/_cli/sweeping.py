"""`headfit sweep` and `headfit report`: many points from a file, and a page about them."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

from headfit._cli import text
from headfit._cli.arguments import Commands, command
from headfit._cli.shared import add_force, add_running
from headfit._sweep.dask_cluster import connected
from headfit._sweep.report import MANIFEST, write_report
from headfit._sweep.result import load_sweep
from headfit._sweep.rows import as_place
from headfit._sweep.store import Store, check_free
from headfit._sweep.sweep import is_open, sweep_tasks
from headfit._sweep.sweep_file import SweepFile, read_sweep_file
from headfit.errors import InputError

SHOWN = 5
"""Failures that are printed, at most; the report has all."""


def add_sweep(parent: Commands) -> None:
    """Add `headfit sweep`."""
    parser = command(
        parent,
        "sweep",
        sweep,
        "fit a head for every point of a file, and keep every result",
        "  headfit sweep sweep.toml --out results\n"
        "  headfit sweep sweep.toml --out results --dry-run\n"
        "  headfit sweep sweep.toml --out results --scheduler tcp://10.0.0.1:8786\n",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="grids of points, in TOML")
    parser.add_argument(
        "--out", type=Path, metavar="STORE",
        help="the folder of the results (default: that of the file); points it has are not redone",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="compute on the Dask cluster of this scheduler"
    )
    parser.add_argument(
        "--processes", type=int, metavar="N",
        help="worker processes here (default: those of the file, or as many as fill the cores)",
    )  # fmt: skip
    parser.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="threads of each point (default: that of the file, or its share of the cores)",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="compute points again that failed before"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check the file, count its points, and end"
    )
    add_running(parser, threads=False)


def add_report(parent: Commands) -> None:
    """Add `headfit report`."""
    parser = command(
        parent,
        "report",
        report,
        "draw the results of a sweep: a page that needs no other file, and CSV beside it",
        "  headfit report results -o report\n",
    )
    parser.add_argument("store", metavar="STORE", type=Path, help="the folder of a sweep")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER",
        help="the folder of index.html; nothing but an older report may be there",
    )  # fmt: skip
    add_force(parser)


def sweep(arguments: Any) -> int:
    """Run `headfit sweep`."""
    asked = read_sweep_file(arguments.file)
    out = asked.out if arguments.out is None else arguments.out
    if out is None:
        raise InputError(f"{arguments.file}: out must be given, there or as --out")
    if arguments.dry_run:
        return _dry_run(arguments, asked, out)
    processes = asked.processes if arguments.processes is None else arguments.processes
    threads = asked.num_threads if arguments.num_threads is None else arguments.num_threads
    with contextlib.ExitStack() as stack:
        client = None
        if arguments.scheduler is not None:
            if arguments.processes is not None:
                raise InputError("--processes must not be given beside --scheduler")
            client, processes = stack.enter_context(connected(arguments.scheduler)), None
        found = sweep_tasks(
            asked.tasks,
            out,
            client=client,
            processes=processes,
            num_threads=threads,
            retry_failed=arguments.retry_failed,
            progress=stack.enter_context(text.progress(arguments.progress)),
        )
    figures = {
        "store": str(out),
        "done": len(found.rows),
        "failed": len(found.failures),
        "damaged": found.damaged,
    }
    if arguments.json:
        text.emit(figures)
    else:
        print(f"{out}: {len(found.rows)} points done, {len(found.failures)} failed")
        for failure in found.failures[:SHOWN]:
            point = as_place(failure, found.axes)
            said = f"{failure['error']}: {' '.join(failure['message'].split())}"
            print(f"  failed: {point}: {said}" if point else f"  failed: {said}")
        for line in found.damaged:
            print(f"  damaged: {line}")
    return 1 if found.failures else 0


def _dry_run(arguments: Any, asked: SweepFile, out: Path) -> int:
    check_free(out, "out")
    entries = [Store(out).read(task.key) for task in asked.tasks]
    count = Counter(entry.status for entry in entries)
    todo = sum(is_open(entry, arguments.retry_failed) for entry in entries)
    figures = {"points": len(entries), "done": count["done"], "failed": count["failed"]}
    if arguments.json:
        text.emit({"store": str(out), **figures, "to_compute": todo})
    else:
        print(
            f"{out}: {len(entries)} points, {count['done']} done, {count['failed']} failed; "
            f"{todo} to compute"
        )
    return 0


def report(arguments: Any) -> int:
    """Run `headfit report`."""
    arguments.streams.check_free(arguments.output, MANIFEST)
    found = load_sweep(arguments.store)
    files = write_report(found, arguments.output)
    page = arguments.output / "index.html"
    if arguments.json:
        text.emit({"page": str(page), "files": files, "results": len(found)})
    else:
        print(f"{page}: {len(found)} results, {len(found.failures)} failed")
    return 0
