"""The engine of a cluster: a `dask.distributed.Client` that the caller has connected."""

from __future__ import annotations

import math
import pickle
import secrets
import time
from typing import Any, Self

from headfit._base.arguments import shown
from headfit._base.version import VERSION
from headfit._sweep.measure import Outcome, error_record, measure_packed
from headfit._sweep.work import Task
from headfit.errors import HeadfitError, InputError

PER_THREAD = 2
"""Tasks in flight for each thread of the cluster, so that no thread waits for this process."""

COUNTING = 5.0
"""Seconds after which the threads of the cluster are counted again: workers come and go."""

CONNECTING = 10
"""Seconds after which a scheduler that does not answer is an error."""

MISSING = "a cluster needs Dask: pip install 'headfit[sweep]'"


def connected(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError(MISSING) from error
    try:
        return Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"scheduler: {address} does not answer: {error}") from error


def check_client(client: Any, run: Any) -> None:
    """Raise an InputError unless a client is one, and its workers have this headfit and `run`."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(MISSING) from error
    if not isinstance(client, Client) or client.asynchronous:
        raise InputError(
            f"client must be a distributed.Client (not an asynchronous one); got {shown(client)}"
        )
    if client.status != "running":
        raise InputError(f"client must be connected; its status is {client.status}")
    for address, trouble in client.run(worker_trouble, VERSION, packed(run)).items():
        if trouble:
            raise InputError(f"client: its worker {address} {trouble}")


def packed(thing: Any) -> bytes:
    """Return something pickled: functions by name, and those of a running script whole."""
    from distributed.protocol.pickle import dumps

    text: bytes = dumps(thing)
    return text


def worker_trouble(version: str, run: bytes) -> str:
    """Return what a worker lacks, in words; empty if nothing."""
    if version != VERSION:
        return f"has headfit {VERSION}; this is {version}"
    try:
        pickle.loads(run)
    except Exception as error:
        return f"cannot import run: {error}"
    return ""


class DaskCluster:
    """The workers of a cluster. Dask gives the tasks of a dead worker to others, a few times."""

    def __init__(self, client: Any, num_threads: int) -> None:
        from distributed import as_completed

        self._client, self._threads = client, num_threads
        self._completed: Any = as_completed(loop=client.loop)
        self._cores, self._counted = 0, -math.inf
        self._tasks: dict[str, Task] = {}
        self._futures: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._futures:
            self._client.cancel(list(self._futures.values()))
            self._futures.clear()

    @property
    def most(self) -> int:
        """A few tasks for each thread that the cluster has."""
        now = time.monotonic()
        if now - self._counted > COUNTING:
            self._counted = now
            self._cores = sum(int(n) for n in self._client.nthreads().values())
        return max(1, PER_THREAD * self._cores)

    @property
    def in_flight(self) -> int:
        """The number of tasks that the cluster has."""
        return len(self._tasks)

    def submit(self, task: Task) -> None:
        """Give a task to the cluster.

        Its name is a new one each time. Under an old name Dask would return a failure that some
        client of the cluster still holds.
        """
        name = f"headfit-sweep-{task.key}-{secrets.token_hex(4)}"
        future = self._client.submit(
            measure_packed, packed(task), self._threads, key=name, pure=False
        )
        self._tasks[future.key], self._futures[future.key] = task, future
        self._completed.add(future)

    def take(self) -> tuple[Task, Outcome]:
        """Wait for the next outcome."""
        future = next(self._completed)
        task = self._tasks.pop(future.key)
        del self._futures[future.key]
        if future.status in ("cancelled", "lost"):
            raise HeadfitError(
                "the cluster gave up the sweep: its scheduler ended, or cancelled it"
            )
        error = future.exception()
        if error is not None:  # the workers died that had it, or it could not be sent
            return task, {"status": "failed", "error": error_record(error), "made": {}}
        outcome: Outcome = future.result()
        return task, outcome
