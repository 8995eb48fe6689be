"""Who computes the points: an executor of the caller's, or worker processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from headfit._base.machine import available_cores
from headfit._base.version import VERSION
from headfit._sweep.work import Record, Task, Work, compute
from headfit.errors import HeadfitError, InputError

IN_FLIGHT = 1000
"""Points that an executor of the caller's has at a time: more than the largest cluster has cores,
and few enough for the memory."""

BLAS_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What libraries of linear algebra read, when they are loaded, about their threads."""


def divided(workers: int | None, num_threads: int | None, tasks: int) -> tuple[int, int]:
    """Return the number of processes and the threads of each, which fill the cores together."""
    cores = available_cores()
    if workers is None:
        workers = max(1, cores // (num_threads or 1))
    workers = min(workers, max(1, tasks))
    return workers, num_threads or max(1, cores // max(1, workers))


def computed(
    tasks: Iterable[Task], executor: Executor, in_flight: int, num_threads: int
) -> Generator[Record, None, None]:
    """Yield the record of every task as it comes.

    Where a worker dies, an executor cannot tell which of its points killed it. Those that were
    lost are computed once more at the end, one at a time; what is lost then has failed.
    """
    lost: list[Task] = []
    for task, future in _ended(tasks, executor, in_flight, num_threads):
        if future.exception() is None:
            yield future.result()
        else:
            lost.append(task)
    for task, future in _ended(lost, executor, 1, num_threads):
        error = future.exception()
        yield future.result() if error is None else task.failed(error)


def _ended(
    tasks: Iterable[Task], executor: Executor, in_flight: int, num_threads: int
) -> Iterator[tuple[Task, Future[Record]]]:
    """Submit tasks, a bounded number at a time, and yield each with its future when it ends."""
    rest, running = iter(tasks), dict[Future[Record], Task]()
    try:
        while True:
            for task in islice(rest, in_flight - len(running)):
                running[_submitted(executor, _compute, task, task.work, num_threads)] = task
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                if future.cancelled():
                    raise HeadfitError("executor: it has cancelled the points of the sweep")
                yield running.pop(future), future
    finally:
        for future in running:
            future.cancel()


def _submitted(executor: Executor, call: Any, thing: Any, work: Work, *more: Any) -> Future[Any]:
    """Submit the call of a function with something pickled.

    A worker that could not import the function of a task as it receives it would end, or never
    answer. Functions of a script that is running are pickled whole where that can be done. Dask
    would return the result of an earlier call with equal arguments: one differs each time.
    """
    dumps: Any = pickle.dumps
    if work.function.__module__ == "__main__":
        with contextlib.suppress(ImportError):
            dumps = import_module("cloudpickle").dumps
    try:
        return executor.submit(call, dumps(thing), secrets.token_hex(8), *more)
    except Exception as error:
        raise HeadfitError(f"executor: a worker cannot be started or reached: {error}") from error


def _compute(task: bytes, attempt: str, num_threads: int) -> Record:
    return compute(pickle.loads(task), num_threads, is_worker=True)


def check_workers(executor: Executor, work: Work) -> None:
    """Raise an error unless a worker can import the function, and has this version of headfit."""
    try:
        version = _submitted(executor, _version_with, work.function, work).result()
    except (Exception, CancelledError) as error:
        raise HeadfitError(
            f"executor: its workers cannot import {work.name}, or ended as they began: "
            f'{error}. A script that sweeps must do so under: if __name__ == "__main__":'
        ) from error
    if version != VERSION:
        raise InputError(
            f"executor: its workers must have headfit {VERSION}, as this process does; "
            f"got {version}"
        )


def _version_with(function: bytes, attempt: str) -> str:
    pickle.loads(function)
    return VERSION


class LocalWorkers(Executor):
    """A ProcessPoolExecutor that is begun anew after one of its processes died.

    The processes end when this process does, however it ends, or when the context is left by an
    error; Ctrl-C is for this process alone.
    """

    def __init__(self, workers: int, num_threads: int) -> None:
        self._workers, self._threads = workers, num_threads
        self._context = multiprocessing.get_context("spawn")
        # Workers read from this pipe. When its other end is closed, by this process or by the
        # death of it, they end at once.
        self._lifeline, self._end = self._context.Pipe(duplex=False)
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers, self._context, initializer=begin_worker, initargs=(self._lifeline,)
        )

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        """Submit a call; a process starts here if there are fewer than there may be."""
        with environment(dict.fromkeys(BLAS_VARIABLES, str(self._threads))):
            try:
                return self._pool.submit(function, *arguments, **options)
            except BrokenProcessPool:
                self._pool.shutdown()
                self._pool = self._new_pool()
                return self._pool.submit(function, *arguments, **options)

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._end.close()
        self._pool.shutdown(cancel_futures=True)
        self._end.close()
        self._lifeline.close()


def begin_worker(lifeline: Connection) -> None:
    """Prepare a worker process: it ends with its parent, which alone reacts to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()


def _end_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that start within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
