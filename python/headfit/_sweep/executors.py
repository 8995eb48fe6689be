"""Who computes the points: an executor of the caller's, or worker processes of this machine."""

import contextlib
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from headfit._base.machine import available_cores
from headfit._build import VERSION
from headfit._sweep.work import Record, Task, Work, compute, failure
from headfit.errors import HeadfitError, InputError

# Points that an executor of the caller's has at a time: more than the largest cluster has cores,
# and few enough for the memory.
IN_FLIGHT = 1000

# What libraries of linear algebra read, when they are loaded, about their threads.
BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
                  "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")  # fmt: skip


def records_by(
    executor: Executor | None, stack: contextlib.ExitStack, tasks: Sequence[Task],
    workers: int | None, num_threads: int | None,
) -> Iterator[Record]:  # fmt: skip
    """Return the records of tasks as they come, by an executor or processes of this machine."""
    at_once, threads = IN_FLIGHT, num_threads or 1
    if executor is None:
        at_once, threads = divided(workers, num_threads, len(tasks))
        executor = stack.enter_context(LocalWorkers(at_once, threads))
    work = tasks[0].work
    try:
        submitted(executor, _import, work.function, work).result()
    except Exception as error:
        raise HeadfitError(
            f"executor: its workers cannot import {work.name}, or ended as they began: "
            f'{error}. A script that sweeps must do so under: if __name__ == "__main__":'
        ) from error
    return stack.enter_context(contextlib.closing(computed(tasks, executor, at_once, threads)))


def divided(workers: int | None, num_threads: int | None, tasks: int) -> tuple[int, int]:
    """Return the number of processes and the threads of each, which fill the cores together."""
    cores = available_cores()
    if workers is None:
        workers = max(1, cores // (num_threads or 1))
    workers = min(workers, max(1, tasks))
    return workers, num_threads or max(1, cores // max(1, workers))


def computed(
    tasks: Sequence[Task], executor: Executor, at_once: int, num_threads: int
) -> Generator[Record, None, None]:
    """Yield the record of every task as it comes.

    Where a worker dies, an executor cannot tell which of its points killed it. Those that were
    lost are computed once more at the end, one at a time; what is lost then has failed.
    """
    lost: list[Task] = []
    for most, part in ((at_once, tasks), (1, lost)):
        rest, running = iter(part), dict[Future[Record], Task]()
        try:
            while True:
                for task in islice(rest, most - len(running)):
                    more = task.work, VERSION, num_threads
                    running[submitted(executor, _compute, task, *more)] = task
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    if future.cancelled():
                        raise HeadfitError("executor: it has cancelled the points of the sweep")
                    error = future.exception()
                    if isinstance(error, InputError):  # a worker has another version
                        raise error
                    if error is None:
                        yield future.result()
                    elif part is lost:
                        yield task.record(failure(error))
                    else:
                        lost.append(task)
        finally:
            for future in running:
                future.cancel()


def submitted(executor: Executor, call: Any, thing: Any, work: Work, *more: Any) -> Future[Any]:
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


def _compute(task: bytes, attempt: str, version: str, num_threads: int) -> Record:
    if version != VERSION:
        raise InputError(f"executor: its workers must have headfit {version}; got {VERSION}")
    return compute(pickle.loads(task), num_threads, is_worker=True)


def _import(function: bytes, attempt: str) -> None:
    pickle.loads(function)


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
        self._begin()

    def _begin(self) -> None:
        self._pool = ProcessPoolExecutor(
            self._workers, self._context, initializer=begin_worker, initargs=(self._lifeline,)
        )

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        """Submit a call; a process starts here if there are fewer than there may be."""
        before = {name: os.environ.get(name) for name in BLAS_VARIABLES}
        os.environ.update(dict.fromkeys(BLAS_VARIABLES, str(self._threads)))
        try:
            return self._pool.submit(function, *arguments, **options)
        except BrokenProcessPool:
            self._pool.shutdown()
            self._begin()
            return self._pool.submit(function, *arguments, **options)
        finally:
            for name, value in before.items():
                del os.environ[name]
                os.environ.update({} if value is None else {name: value})

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._end.close()
        self._pool.shutdown(cancel_futures=True)
        self._end.close()
        self._lifeline.close()


def begin_worker(lifeline: Connection) -> None:
    """Prepare a worker process: it ends with its parent, which alone reacts to Ctrl-C."""

    def end_with_parent() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
