"""Many points: something computed for each of them, with every result kept at once.

>>> import headfit as hf
>>> points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=1, dim=6)
>>> swept = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
>>> [(row["n"], row["certified"]) for row in hf.sweep.load("results.jsonl").rows]
[(16, True), (32, True)]
"""

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headfit._base.arguments import as_count, as_flag, shown, thread_count
from headfit._base.calls import count_step, tqdm_class
from headfit._base.files import as_path
from headfit._sweep.executors import records_by
from headfit._sweep.table import Sweep, Table, load, open_tasks
from headfit._sweep.work import Function, Record, Work, compute, tasks_of
from headfit.errors import InputError

__all__ = ["Sweep", "grid", "load", "run"]
__dir__ = __all__.copy

MOST_WORKERS = 2**12

# More points than any sweep computes; their list alone would fill the memory.
MOST_POINTS = 10**7


def grid(**axes: Any) -> list[dict[str, Any]]:
    """Return every combination of the values of some axes, as the points of a sweep.

    Parameters
    ----------
    **axes
        A list, a tuple, a range or a 1-dimensional array is an axis; anything else is a single
        value. A value that is a list itself stands in a list of its own:
        ``offsets=[[-1, 2]]``. The last axis varies fastest.

    Returns
    -------
    list of dict
        Lists of points can be added: ``grid(...) + grid(...)``.

    Raises
    ------
    InputError
        For an axis without values, for an array that is not 1-dimensional, and for more than
        10,000,000 points.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.sweep.grid(pattern="band", n=[64, 128], neighbors=2, seed=range(2))
    [{'pattern': 'band', 'n': 64, 'neighbors': 2, 'seed': 0},
     {'pattern': 'band', 'n': 64, 'neighbors': 2, 'seed': 1},
     {'pattern': 'band', 'n': 128, 'neighbors': 2, 'seed': 0},
     {'pattern': 'band', 'n': 128, 'neighbors': 2, 'seed': 1}]
    """
    values = {name: _values(name, axis) for name, axis in axes.items()}
    count = math.prod(map(len, values.values()))
    if count > MOST_POINTS:
        lengths = ", ".join(f"{name}: {len(v):,}" for name, v in values.items() if len(v) > 1)
        raise InputError(
            f"a grid must have at most {MOST_POINTS:,} points; got {count:,} from the values of "
            f"{lengths}"
        )
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def run(
    points: Iterable[Mapping[str, Any]],
    path: Any,
    *,
    function: Function | None = None,
    version: Any = None,
    executor: Executor | None = None,
    workers: int | None = None,
    num_threads: int | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    progress: bool | Callable[[str], Any] | None = None,
) -> Sweep:
    """Fit a head, or compute something else, for each of many points, and keep every result.

    Each result is a line of the file `path`, flushed to the disk as soon as the point is done. The
    same call with the same file computes only what is not there, so that a sweep that was killed
    goes on where it was.

    Parameters
    ----------
    points : sequence of dict
        Points of plain values: numbers, texts, None, lists and dicts; `grid` makes products of
        lists. Equal points count once, and 1 and 1.0 are equal. For fits the keys are `pattern`,
        the name of a function of `headfit.patterns`, and its arguments; `method`, a word of `fit`,
        and its options; `dim`, `leak` and other arguments of `fit`, with "causal" or
        ["window", width] as `mask`; `seed`, and `pattern_seed` where the pattern has its own. An
        option that pattern and method both have, such as `stages` of a butterfly, is the
        pattern's. A default and its absence are the same point.
    path : path
        A table in JSON Lines, which ``pandas.read_json(path, lines=True)`` reads: the file of an
        earlier sweep, or one to be made. Sweeps of different points may share it, one at a time.
    function : function, optional
        What to compute in place of fits: a function of a module, called with the items of the
        point as keyword arguments, and with `num_threads` if it has a parameter of this name. It
        returns a flat dict of numbers, texts and None. Whole numbers come as integers: 2.0 as 2.
    version : str or number, optional
        The version of `function`: results of another version are not taken. By default its
        attribute ``version``, if there is one; for fits it is headfit's. Results of this version
        from before the source of `function` changed are taken with a warning.
    executor : concurrent.futures.Executor, optional
        What computes the points, such as ``client.get_executor()`` of a Dask client. Its workers
        need headfit in this version, and the module of `function`, but no access to `path`. By
        default it is a pool of processes on this machine, which end with the sweep.
    workers : int, optional
        Without an executor: the number of processes; by default as many as fill the cores. 0
        computes in this process.
    num_threads : int, optional
        The threads that each point may use. By default the cores are divided among the
        processes; a point on an executor gets 1. No result depends on it, as long as no time limit
        ends the work.
    retry_failed : bool, default False
        Whether points that failed before are computed again.
    dry_run : bool, default False
        Whether to check the arguments and return the results that are there, and compute nothing.
    progress : bool or function, optional
        True shows a bar (needs tqdm); a function is called with a line of text for each point.

    Returns
    -------
    Sweep
        The results of these points, in their order. ``sweep.failures`` lists those that failed.

    Raises
    ------
    InputError
        For a point or an argument that is not as described, before any work starts.
    FileError
        When the file cannot be read or written, as on a full disk, or another sweep is writing to
        it. What it held stays whole.
    HeadfitError
        When workers cannot be started, or an executor takes no more work.

    Notes
    -----
    An error of a point is recorded with the end of its traceback, and the others go on. When a
    worker dies, the points that were lost are computed once more at the end, one at a time, and
    recorded as failed where that fails. Ctrl-C, or the death of this process, ends the processes
    of the default pool; the points that they had are computed by the next call.

    A script that sweeps on processes needs ``if __name__ == "__main__":`` around the call.

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.sweep.grid(pattern="random_regular", n=[32, 64], k=2, dim=[2, 6], effort=20)
    >>> swept = hf.sweep.run(points, "results.jsonl", workers=0, num_threads=1)
    >>> [(row["n"], row["dim"], row["certified"]) for row in swept.rows]
    [(32, 2, False), (32, 6, True), (64, 2, False), (64, 6, True)]
    """
    work = Work.of(function, version)
    tasks = tasks_of(points, work)
    retry_failed, dry_run = as_flag(retry_failed, "retry_failed"), as_flag(dry_run, "dry_run")
    workers = None if workers is None else as_count(workers, "workers", 0, MOST_WORKERS)
    num_threads = None if num_threads is None else thread_count(num_threads)
    if executor is not None and workers is not None:
        raise InputError("workers must not be given beside an executor, which has its own")
    if not isinstance(executor, Executor | None):
        raise InputError(
            "executor must be None or a concurrent.futures.Executor, such as "
            f"client.get_executor() of a Dask client; got {shown(executor)}"
        )
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise InputError(f"progress must be True, False or callable; got {shown(progress)}")
    if progress is True:
        tqdm_class()
    file = Path(as_path(path, "path")).absolute()
    table = Table(file, may_lack=True)
    with contextlib.ExitStack() as stack:
        todo = open_tasks(tasks, table, retry_failed)
        if todo and not dry_run:
            table = stack.enter_context(Table.writing(file))
            # Another sweep may have computed a point in the meantime.
            todo = open_tasks(tasks, table, retry_failed)
        _warn_of_older({task.key for task in tasks} - {task.key for task in todo}, table, work)
        if todo and not dry_run:
            records: Iterable[Record] = (compute(task, thread_count(num_threads)) for task in todo)
            if workers != 0:
                records = records_by(executor, stack, todo, workers, num_threads)
            if progress is True:
                bar = stack.enter_context(tqdm_class()(total=len(todo), unit="point"))
                progress = partial(count_step, bar)
            elif callable(progress):
                progress(f"0 of {len(todo)} points")
            failed = 0
            for done, record in enumerate(records, start=1):
                table.write(record)
                failed += "exception" in record
                if callable(progress):
                    more = f", {failed} failed" if failed else ""
                    progress(f"{done} of {len(todo)} points{more}")
    there = [table.records[task.key] for task in tasks if task.key in table.records]
    return Sweep(file, there, table.damaged, len(todo) if dry_run else 0)


def _values(name: str, axis: Any) -> Sequence[Any]:
    if isinstance(axis, np.ndarray):
        if axis.ndim != 1:
            raise InputError(f"{name} must be a 1-dimensional array; got shape {axis.shape}")
        axis = axis.tolist()
    if not isinstance(axis, (list, tuple, range)):
        return [axis]
    if not axis:
        raise InputError(f"{name} must have at least one value; got none")
    return axis


def _warn_of_older(keys: Iterable[str], table: Table, work: Work) -> None:
    """Warn of results by other source code; those without a hash of it count as new."""
    older = sum(table.records[key].get("code") not in (None, work.code) for key in keys)
    if older and work.code is not None:
        warnings.warn(
            f"function has changed since {older} of its results in {table.path} were computed, "
            "which are taken as they are: a new version= or a new file computes them again",
            stacklevel=3,
        )
