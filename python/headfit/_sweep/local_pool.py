"""The engine of one machine: a few worker processes, each with its share of the cores.

Every worker is a process pool of its own (`concurrent.futures`), so that a worker that dies takes
one point with it, and it is known which.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Self

from headfit._base.machine import available_cores
from headfit._sweep.measure import Outcome, failed, measure_packed
from headfit._sweep.work import Task
from headfit.errors import HeadfitError

LOSSES = 3
"""How many workers a point may lose before it counts as failed."""

BLAS_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What libraries of linear algebra read, when they are loaded, about their threads."""


def divided(processes: int | None, num_threads: int | None, tasks: int) -> tuple[int, int]:
    """Return the number of processes and the threads of each, which fill the cores together."""
    cores = available_cores()
    if processes is None:
        processes = max(1, cores // (num_threads or 1))
    processes = min(processes, max(1, tasks))
    return processes, num_threads or max(1, cores // max(1, processes))


class LocalPool:
    """Worker processes on this machine. They end when this process does, however it ends."""

    def __init__(self, processes: int, num_threads: int) -> None:
        self._threads = num_threads
        self._context = multiprocessing.get_context("spawn")
        # Workers read from this pipe. When its other end is closed, by this process or by the
        # death of it, they end at once.
        self._lifeline, self._end = self._context.Pipe(duplex=False)
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[Any], tuple[Task, ProcessPoolExecutor]] = {}
        self._losses: dict[str, int] = {}
        self._processes = processes

    @property
    def most(self) -> int:
        """One task for each worker."""
        return self._processes

    @property
    def in_flight(self) -> int:
        """The number of tasks that workers have."""
        return len(self._busy)

    def __enter__(self) -> Self:
        try:
            starting = []
            for _ in range(self._processes):
                worker, ready = self._new_worker()
                self._idle.append(worker)
                starting.append(ready)
            for ready in starting:
                ready.result()
        except BrokenProcessPool as error:
            self._abandon()
            raise HeadfitError(
                "the worker processes of the sweep ended as they began. A script that sweeps "
                'must do so under: if __name__ == "__main__":'
            ) from error
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._abandon()
            return
        for worker in self._idle:
            worker.shutdown()
        self._end.close()
        self._lifeline.close()

    def submit(self, task: Task) -> None:
        """Give a task to an idle worker."""
        worker, packed = self._idle.pop(), pickle.dumps(task)
        try:
            future = worker.submit(measure_packed, packed, self._threads)
        except BrokenProcessPool:  # the worker died while it was idle
            worker.shutdown()
            worker, _ = self._new_worker()
            future = worker.submit(measure_packed, packed, self._threads)
        self._busy[future] = task, worker

    def take(self) -> tuple[Task, Outcome]:
        """Wait for the next outcome. A task whose worker died is given to a new one."""
        while True:
            done, _ = wait(self._busy, return_when=FIRST_COMPLETED)
            future = done.pop()
            task, worker = self._busy.pop(future)
            try:
                outcome: Outcome = future.result()
            except BrokenProcessPool as error:
                worker.shutdown()
                self._idle.append(self._new_worker()[0])
                lost = self._losses[task.key] = self._losses.get(task.key, 0) + 1
                if lost < LOSSES:
                    self.submit(task)
                    continue
                return task, lost_outcome(lost, error)
            except Exception as error:  # such as an outcome that could not be sent
                outcome = failed(error)
            self._idle.append(worker)
            return task, outcome

    def _new_worker(self) -> tuple[ProcessPoolExecutor, Future[Any]]:
        try:
            worker = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=begin_worker, initargs=(self._lifeline,)
            )
            with environment(dict.fromkeys(BLAS_VARIABLES, str(self._threads))):
                return worker, worker.submit(os.getpid)  # the process starts here
        except OSError as error:
            raise HeadfitError(
                f"one of {self._processes} worker processes cannot be started: {error}"
            ) from error

    def _abandon(self) -> None:
        """End all workers, whatever they are doing."""
        self._end.close()
        for worker in [*self._idle, *(worker for _, worker in self._busy.values())]:
            worker.shutdown(cancel_futures=True)
        self._lifeline.close()


def lost_outcome(times: int, error: BaseException) -> Outcome:
    """Return the outcome of a task whose workers died."""
    message = f"the worker process died {times} times: killed, out of memory, or a crash"
    return {
        "status": "failed",
        "error": {"class": "WorkerDied", "message": message, "traceback": str(error)},
        "made": {},
    }


def begin_worker(lifeline: Connection) -> None:
    """Prepare a worker process: it ends with its parent, which alone reacts to Ctrl-C."""
    import signal

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
