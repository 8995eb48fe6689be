"""The engine of a cluster: a `dask.distributed.Client` that the caller has connected."""

from __future__ import annotations

import math
import pickle
import secrets
import time
from collections.abc import Callable
from typing import Any, Self

from headfit._cluster.build import builds_of_this_version, own_build
from headfit._cluster.under_way import UnderWay, reaching
from headfit._cluster.workers import answers, check_client
from headfit._sweep.measure import Outcome, failed, measure_packed
from headfit._sweep.work import Task
from headfit.errors import InputError

PER_THREAD = 2
"""Tasks in flight for each thread of the cluster, so that no thread waits for this process."""

COUNTING = 5.0
"""Seconds after which the threads of the cluster are counted again: workers come and go."""

CONNECTING = 10
"""Seconds after which a scheduler that does not answer is an error."""


def connected(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("a cluster needs Dask: pip install 'headfit[sweep]'") from error
    try:
        return Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"scheduler: {address} does not answer: {error}") from error


def check_sweep_client(client: Any, run: Any) -> None:
    """Raise an InputError unless this is a client whose workers have this headfit and `run`."""
    check_client(client)
    builds = _answers(client, own_build)
    if not builds:
        raise InputError("client must have at least one worker; got a cluster without any")
    builds_of_this_version(builds)
    for worker, answer in _answers(client, import_error, packed(run)).items():
        if answer:
            raise InputError(f"client: its worker {worker} cannot import run: {answer}")


def _answers(client: Any, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """Return what workers answer. One whose connection broke has left, whoever knows of it yet."""
    found = answers(client, function, *given)
    return {worker: answer for worker, answer in found.items() if not isinstance(answer, OSError)}


def packed(thing: Any) -> bytes:
    """Return something pickled: functions by name, and those of a running script whole."""
    from distributed.protocol.pickle import dumps

    text: bytes = dumps(thing)
    return text


def import_error(run: bytes) -> str:
    """Return why a worker cannot import the pickled function of a sweep; empty if it can."""
    try:
        pickle.loads(run)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


class DaskCluster:
    """The workers of a cluster. Dask gives the tasks of a dead worker to others, a few times.

    It then takes each of them for the one that killed the workers, also those that only waited
    beside it. Such tasks are computed once more at the end, one at a time with no other task.
    """

    def __init__(self, client: Any, num_threads: int) -> None:
        self._client, self._threads = client, num_threads
        self._tasks = UnderWay[Task](client)
        self._suspects: list[Task] = []
        self._alone: set[str] = set()
        self._cores, self._counted = 0, -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._tasks.__exit__(*error)

    @property
    def most(self) -> int:
        """A few tasks for each thread that the cluster has."""
        now = time.monotonic()
        if now - self._counted > COUNTING:
            self._counted = now
            with reaching(self._client):
                self._cores = sum(int(n) for n in self._client.nthreads().values())
        return max(1, PER_THREAD * self._cores) + len(self._suspects)

    @property
    def in_flight(self) -> int:
        """The number of tasks that the cluster has, or is to have once more."""
        return len(self._tasks) + len(self._suspects)

    def submit(self, task: Task) -> None:
        """Give a task to the cluster.

        Its name is a new one each time. Under an old name Dask would return a failure that some
        client of the cluster still holds.
        """
        name = f"headfit-sweep-{task.key}-{secrets.token_hex(4)}"
        text = packed(task)
        with reaching(self._client):
            future = self._client.submit(measure_packed, text, self._threads, key=name, pure=False)
        self._tasks.add(future, task)

    def take(self) -> tuple[Task, Outcome]:
        """Wait for the next outcome."""
        from distributed import KilledWorker

        while True:
            if not len(self._tasks):
                suspect = self._suspects.pop()
                self._alone.add(suspect.key)
                self.submit(suspect)
            task, outcome, error = self._tasks.take()
            if isinstance(error, KilledWorker) and task.key not in self._alone:
                self._suspects.append(task)
                continue
            if error is not None:  # the workers died that had it, or it could not be sent
                outcome = failed(error)
            return task, outcome
