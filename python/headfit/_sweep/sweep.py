"""`sweep`: something is computed for each of many points, and every result kept at once."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count, thread_count
from headfit._base.files import replace_file
from headfit._sweep.dask_cluster import DaskCluster, check_sweep_client
from headfit._sweep.in_process import Engine, InProcess
from headfit._sweep.local_pool import LocalPool, divided
from headfit._sweep.measure import Outcome
from headfit._sweep.pace import Pace, check_progress
from headfit._sweep.record import make_record
from headfit._sweep.result import Sweep, load_sweep
from headfit._sweep.rows import as_csv
from headfit._sweep.store import INDEX, POINTS, Entry, Store
from headfit._sweep.work import Task, Work
from headfit.errors import FileError, InputError

__all__ = ["sweep"]

MOST_PROCESSES = 2**12


def sweep(
    points: Iterable[Mapping[str, Any]],
    out: Any,
    *,
    run: Callable[..., Mapping[str, Any]] | None = None,
    version: Any = None,
    client: Any = None,
    processes: int | None = None,
    num_threads: int | None = None,
    retry_failed: bool = False,
    progress: bool | Callable[[str], Any] | None = None,
) -> Sweep:
    """Fit a head, or compute something else, for each of many points, and keep every result.

    Each result is a small file in the folder `out`, whole and flushed to the disk as soon as the
    point is done. The same call with the same folder computes only what is not there, so that a
    sweep that was killed goes on where it was.

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
    out : path
        The store: a folder of an earlier sweep, an empty one, or one to be made. Sweeps of
        different points, and several at once, may share it.
    run : function, optional
        What to compute in place of fits: a function of a module, called with the items of the
        point as keyword arguments, and with `num_threads` if it has a parameter of this name. It
        returns a flat dict of numbers, texts and None. Whole numbers of a point are given to it
        as integers: 2.0 as 2.
    version : str or number, optional
        The version of `run`: results of another version are not taken. By default its attribute
        ``version``, if there is one. For fits it is headfit's. Results of the same version that
        were computed before the source of `run` changed are taken with a warning.
    client : distributed.Client, optional
        A cluster of Dask to compute on. Its workers need headfit in this version, and the module
        of `run`, but no access to `out`.
    processes : int, optional
        Without a client: the number of worker processes on this machine; by default as many as
        fill its cores. 0 computes in this process.
    num_threads : int, optional
        The threads that each point may use. By default the cores are divided among the
        processes; a task of a cluster gets 1. No result depends on it.
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
        When the store cannot be written, as on a full disk, or a file of it not be read. What it
        held stays whole.
    HeadfitError
        When worker processes cannot be started, or a cluster gives up.

    See Also
    --------
    load_sweep : reads a store.

    Notes
    -----
    A file is named by the hash of its point and of what computed it, written under a temporary
    name, flushed and renamed. An error of a point is recorded with the end of its traceback, and
    the others go on. When a worker process is killed, its point is computed again, and recorded
    as failed after three times. Ctrl-C, or the death of this process, ends the workers; the points
    that they had are computed by the next call.

    A script that sweeps on worker processes needs ``if __name__ == "__main__":`` around the call.

    Examples
    --------
    >>> import headfit as hf
    >>> points = hf.grid(pattern="random_regular", n=[32, 64], k=2, dim=[2, 6], effort=20)
    >>> found = hf.sweep(points, "results", processes=0, num_threads=1)
    >>> [(row["n"], row["dim"], row["certified"]) for row in found.rows]
    [(32, 2, False), (32, 6, True), (64, 2, False), (64, 6, True)]
    """
    return sweep_tasks(
        Work.of(run, version).tasks(points),
        out,
        client=client,
        processes=processes,
        num_threads=num_threads,
        retry_failed=retry_failed,
        progress=progress,
    )


def sweep_tasks(
    tasks: Sequence[Task],
    out: Any,
    *,
    client: Any = None,
    processes: int | None = None,
    num_threads: int | None = None,
    retry_failed: bool = False,
    progress: bool | Callable[[str], Any] | None = None,
) -> Sweep:
    """Do what `sweep` does for points that were checked: the tasks of one work."""
    retry_failed = as_flag(retry_failed, "retry_failed")
    progress = check_progress(progress)
    engine = _engine_maker(client, processes, num_threads, tasks[0].run)
    store = Store.made(out)
    held = {task.key: store.read(task.key) for task in tasks}
    damaged = [entry.why for entry in held.values() if entry.status == "damaged"]
    todo = [task for task in tasks if is_open(held[task.key], retry_failed)]
    kept = (held[task.key] for task in tasks if not is_open(held[task.key], retry_failed))
    older = sum(is_older(entry, tasks[0].code) for entry in kept)
    if older:
        warnings.warn(
            f"run has changed since {older} of its results in {store.folder} were computed, which "
            "are taken as they are: a new version= computes them again, and so does a new store",
            stacklevel=3,
        )
    if todo:
        store.check_writable()
        # Another sweep on this store may have computed a point in the meantime.
        still_open = (t for t in todo if is_open(store.read(t.key), retry_failed))
        with engine(len(todo)) as workers, Pace(len(todo), progress) as pace:
            for task, outcome in outcomes(still_open, workers):
                entry = store.write(make_record(task, outcome))
                held[task.key] = entry
                pace.step(entry.status == "failed")
    if todo:
        write_index(store)
    elif is_index_old(store):
        with contextlib.suppress(FileError):  # a store with all results may be read-only
            write_index(store)
    # A point that another sweep computed is not yet among what this one holds.
    entries = [e if e.record else store.read(key) for key, e in held.items()]
    found = Sweep(store.folder, entries)
    found.damaged = damaged
    return found


def is_open(entry: Entry, retry_failed: bool) -> bool:
    """Return whether a point is still to be computed."""
    return entry.record is None or (retry_failed and entry.status == "failed")


def is_older(entry: Entry, code: str | None) -> bool:
    """Return whether a point was computed by other code; what has no hash of it counts as new."""
    made_by = None if entry.record is None else entry.record.get("code")
    return None not in (made_by, code) and made_by != code


def outcomes(tasks: Iterable[Task], engine: Engine) -> Iterator[tuple[Task, Outcome]]:
    """Yield the outcome of every task as it comes, with a bounded number of tasks in flight."""
    rest = iter(tasks)
    while True:
        while engine.in_flight < engine.most and (task := next(rest, None)) is not None:
            engine.submit(task)
        if not engine.in_flight:
            return
        yield engine.take()


def is_index_old(store: Store) -> bool:
    """Return whether results were written after the index, by a sweep that was killed then."""
    try:
        made = (store.folder / INDEX).stat().st_mtime_ns
        with os.scandir(store.folder / POINTS) as shards:
            return any(shard.stat().st_mtime_ns > made for shard in shards)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def write_index(store: Store) -> None:
    """Write all results of a store to one CSV file in it, for other programs.

    Nothing in headfit reads it: the files of the points are the truth.
    """
    begun = time.time_ns()
    text = as_csv(load_sweep(store.folder).rows)
    with store.naming():
        replace_file(store.folder / INDEX, lambda file: file.write(text), "out")
        # Results that other sweeps have written since are newer than the index.
        os.utime(store.folder / INDEX, ns=(begun, begun))


def _engine_maker(
    client: Any, processes: Any, num_threads: Any, run: Any
) -> Callable[[int], Engine]:
    """Check what computes the points; return a function of their number that starts it."""
    if num_threads is not None:
        num_threads = thread_count(num_threads)
    if client is not None:
        if processes is not None:
            raise InputError("processes must not be given beside a client, which has its workers")
        check_sweep_client(client, run)
        return lambda tasks: DaskCluster(client, num_threads or 1)
    if processes is not None:
        processes = as_count(processes, "processes", 0, MOST_PROCESSES)
    if processes == 0:
        return lambda tasks: InProcess(thread_count(num_threads))
    return lambda tasks: LocalPool(*divided(processes, num_threads, tasks))
