"""`headfit sweep`: many points from a file in TOML."""

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

from headfit._base.display import optional
from headfit._base.files import as_path, read_file
from headfit._cli.command import Call, Outcome, command, option, options_of
from headfit._sweep.work import Work, tasks_of
from headfit.errors import InputError, input_errors
from headfit.sweep import grid, run

KEYS = ("out", "workers", "num_threads", "grid")
# Seconds after which a scheduler that does not answer is an error.
CONNECTING = 10
# Failures that are printed, at most; the table has all.
SHOWN = 5


@command(
    option("file", metavar="FILE", help="grids of points, in TOML"),
    option("--out", metavar="TABLE", help="the file of the results, in JSON Lines (default: that "
           "of FILE); points that it has are not computed again"),
    option("--scheduler", metavar="ADDRESS", help="compute on the Dask cluster of this scheduler"),
    options_of(run, "workers num_threads retry_failed dry_run", by_default="as FILE says"),
)  # fmt: skip
def sweep(call: Call) -> Outcome:
    """Fit a head for every point of a file, and keep every result.

    headfit sweep sweep.toml --out results.jsonl
    headfit sweep sweep.toml --out results.jsonl --dry-run
    headfit sweep sweep.toml --out results.jsonl --scheduler tcp://10.0.0.1:8786
    """
    file, scheduler, dry_run = call.pop("file"), call.pop("scheduler", None), "dry_run" in call
    options = read_sweep_file(file) | call
    out = options.pop("out", None)
    if out is None:
        raise InputError(f"{file}: out must be given, there or as --out")
    if scheduler is not None:
        call.refuse(call.keys() & {"workers"}, "must not be given beside --scheduler")
    with contextlib.ExitStack() as stack:
        if scheduler is not None and not dry_run:
            client = stack.enter_context(_connected(scheduler))
            call.say(f"waiting for a worker of {scheduler}")
            options |= {"workers": None, "executor": client.get_executor()}
        swept = run(options.pop("points"), out, progress=call.say, **options)
    done, failed = len(swept.rows), len(swept.failures)
    figures = {"table": str(out), "done": done, "failed": failed, "damaged": swept.damaged}
    lines = [f"{out}: {done} points done, {failed} failed"]
    if dry_run:
        figures["to_compute"] = swept.to_compute
        lines[0] += f", {swept.to_compute} to compute"
    for failure in swept.failures[:SHOWN]:
        said = [f"{n} = {json.dumps(failure[n])}" for n in swept.axes if n in failure]
        error = " ".join(failure["exception"].split())
        lines.append(f"  failed: {', '.join(said)}{': ' if said else ''}{error}")
    lines += [f"  damaged: {line}" for line in swept.damaged]
    return Outcome(figures, "\n".join(lines), dry_run or not failed)


def _connected(address: str) -> Any:
    missing = ImportError("a cluster needs Dask: pip install 'headfit[sweep]'")
    distributed = optional("distributed", missing)
    comm = distributed.comm
    with input_errors(f"scheduler: {address} does not answer", OSError, ValueError):
        comm.registry.get_backend(comm.parse_address(address)[0])  # which a client would wait for
        return distributed.Client(address, timeout=CONNECTING, set_as_default=False)


def read_sweep_file(path: str) -> dict[str, Any]:
    """Return what a file in TOML says: `KEYS`, with checked points in place of the grids.

    An error names the file, the table and the key.
    """
    said = read_file(tomllib.load, path, "file", "is no sweep in TOML")
    with input_errors(path, InputError):
        for key in said:
            if key not in KEYS:
                raise InputError(f"{key} is no key of a sweep; these are: {', '.join(KEYS)}")
        if "out" in said:
            said["out"] = Path(path).parent / as_path(said["out"], "out")
        return {"points": _points(said.pop("grid", None)), **said}


def _points(tables: Any) -> list[dict[str, Any]]:
    """Return the points of all tables [[grid]], each table checked by itself."""
    tables = [tables] if isinstance(tables, dict) else tables
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise InputError("grid must be given: tables [[grid]] whose keys are those of points")
    points = []
    for i, table in enumerate(tables, start=1):
        with input_errors(f"grid {i} of {len(tables)}", InputError):
            points += [task.point for task in tasks_of(grid(**table), Work.of(None, None))]
    return points
