"""`run`: something is computed for each of many points, and every result kept at once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from headfit._base.arguments import as_flag, shown
from headfit._base.arrays import as_count, thread_count
from headfit._base.files import as_path
from headfit._base.progress import Counter, tqdm_class
from headfit._sweep.executors import IN_FLIGHT, LocalWorkers, check_workers, computed, divided
from headfit._sweep.result import Sweep
from headfit._sweep.table import Table, writing
from headfit._sweep.work import Function, Record, Task, Work, compute, tasks_of
from headfit.errors import InputError

__all__ = ["run"]

MOST_WORKERS = 2**12


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
        lists. Equal points count once, and 1 and 1.0 are equal. For fits the keys are:

        - `pattern`, the name of a function of `headfit.patterns`, and its arguments;
        - `method`, a word of `fit`, and its options (`effort`, `max_norm`, `keys`, ...);
        - `dim` (none searches for the smallest), `leak`, `distortion`, `max_logit`, `dtype`,
          `kernel`, `scale`, `mask` ("causal" or ["window", width]), `exempt_columns` and
          `time_limit`, as in `fit`;
        - `seed` (default 0) of the fit and of the pattern; `pattern_seed`, of the pattern alone,
          which is left out of a point where it equals `seed`.

        What a point does not say is filled in, so that a default and its absence are the same
        point. Numbers are numbers: the text "0.05" is refused.
    path : path
        A table in JSON Lines, which ``pandas.read_json(path, lines=True)`` reads: the file of an
        earlier sweep, or one to be made. Sweeps of different points may share it, one at a time.
    function : function, optional
        What to compute in place of fits: a function of a module, called with the items of the
        point as keyword arguments, and with `num_threads` if it has a parameter of this name. It
        returns a flat dict of numbers, texts and None. Whole numbers of a point come as integers:
        2.0 as 2.
    version : str or number, optional
        The version of `function`: results of another version are not taken. By default its
        attribute ``version``, if there is one. For fits it is headfit's. Results of the same
        version that were computed before the source of `function` changed are taken with a
        warning.
    executor : concurrent.futures.Executor, optional
        What computes the points, such as ``client.get_executor()`` of a Dask client. Its workers
        need headfit in this version, and the module of `function`, but no access to `path`. By
        default it is a pool of processes on this machine, which end with the sweep.
    workers : int, optional
        Without an executor: the number of processes; by default as many as fill the cores. 0
        computes in this process.
    num_threads : int, optional
        The threads that each point may use. By default the cores are divided among the
        processes; a point on an executor gets 1. No result depends on it.
    retry_failed : bool, default False
        Whether points that failed before are computed again.
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

    See Also
    --------
    load : reads the file.

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
    retry_failed = as_flag(retry_failed, "retry_failed")
    _check_progress(progress)
    workers = _checked_workers(executor, workers)
    num_threads = None if num_threads is None else thread_count(num_threads)
    file = Path(as_path(path, "path")).absolute()
    table = Table(file, may_lack=True)
    todo = open_tasks(tasks, table.records, retry_failed)
    with contextlib.ExitStack() as stack:
        if todo:
            writer = stack.enter_context(writing(file))
            table = writer.table  # another sweep may have computed a point in the meantime
            todo = open_tasks(tasks, table.records, retry_failed)
        _warn_of_older(work, table, {task.key for task in tasks} - {task.key for task in todo})
        if todo:
            tell = stack.enter_context(_told(len(todo), progress))
            for record in stack.enter_context(
                _computing(todo, work, executor, workers, num_threads)
            ):
                writer.write(record)
                table.records[record["key"]] = record
                tell(record)
    return Sweep(file, [table.records[task.key] for task in tasks], table.damaged)


def open_tasks(
    tasks: Sequence[Task], records: Mapping[str, Record], retry_failed: bool
) -> list[Task]:
    """Return the tasks that are still to be computed."""
    return [
        task
        for task in tasks
        if task.key not in records or (retry_failed and "exception" in records[task.key])
    ]


def _warn_of_older(work: Work, table: Table, kept: Iterable[str]) -> None:
    """Warn of results by other source code; those without a hash of it count as new."""
    codes = [table.records[key]["code"] for key in kept]
    older = sum(None not in (code, work.code) and code != work.code for code in codes)
    if older:
        warnings.warn(
            f"function has changed since {older} of its results in {table.path} were computed, "
            "which are taken as they are: a new version= computes them again, and so does a new "
            "file",
            stacklevel=3,
        )


@contextlib.contextmanager
def _computing(
    todo: Sequence[Task],
    work: Work,
    executor: Executor | None,
    workers: int | None,
    num_threads: int | None,
) -> Iterator[Iterator[Record]]:
    """Yield the records of all tasks, as they come, while what computes them is there."""
    if workers == 0:
        threads = thread_count(num_threads)
        yield (compute(task, threads) for task in todo)
        return
    if executor is not None:
        check_workers(executor, work)
        with contextlib.closing(computed(todo, executor, IN_FLIGHT, num_threads or 1)) as records:
            yield records
        return
    workers, threads = divided(workers, num_threads, len(todo))
    with LocalWorkers(workers, threads) as pool:
        check_workers(pool, work)
        yield computed(todo, pool, workers, threads)


def _checked_workers(executor: Any, workers: Any) -> int | None:
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(
            "executor must be None or a concurrent.futures.Executor, such as "
            f"client.get_executor() of a Dask client; got {shown(executor)}"
        )
    if executor is not None and workers is not None:
        raise InputError("workers must not be given beside an executor, which has its own")
    return None if workers is None else as_count(workers, "workers", 0, MOST_WORKERS)


def _check_progress(progress: Any) -> None:
    if progress is True:
        tqdm_class()
    elif progress not in (None, False) and not callable(progress):
        raise InputError(f"progress must be True, False or callable; got {shown(progress)}")


@contextlib.contextmanager
def _told(
    total: int, progress: bool | Callable[[str], Any] | None
) -> Iterator[Callable[[Record], None]]:
    """Yield a function of each record, which moves a bar or says a line of text."""
    done = failed = 0
    bar = Counter(total, "point") if progress is True else contextlib.nullcontext()

    def tell(record: Record | None) -> None:
        nonlocal done, failed
        done += record is not None
        failed += record is not None and "exception" in record
        more = f", {failed} failed" if failed else ""
        if isinstance(bar, Counter):
            if record is not None:
                bar.step(more.removeprefix(", "))
        elif callable(progress):
            progress(f"{done} of {total} points{more}")

    with bar:
        tell(None)
        yield tell
