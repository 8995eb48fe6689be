"""The engine without workers: points are computed here, one after the other."""

from __future__ import annotations

from typing import Protocol, Self

from headfit._sweep.measure import Outcome, measure
from headfit._sweep.work import Task


class Engine(Protocol):
    """What computes tasks, a bounded number at a time."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def in_flight(self) -> int:
        """The number of tasks that were submitted and not taken."""
        ...

    @property
    def most(self) -> int:
        """The most tasks that may be in flight."""
        ...

    def submit(self, task: Task) -> None:
        """Start a task."""
        ...

    def take(self) -> tuple[Task, Outcome]:
        """Wait for a task to end; return it with its outcome."""
        ...


class InProcess:
    """One task at a time, in this process and thread."""

    most = 1

    def __init__(self, num_threads: int) -> None:
        self._threads = num_threads
        self._task: Task | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._task = None

    @property
    def in_flight(self) -> int:
        """One while a task waits to be taken."""
        return int(self._task is not None)

    def submit(self, task: Task) -> None:
        """Keep a task for `take`."""
        self._task = task

    def take(self) -> tuple[Task, Outcome]:
        """Compute the task."""
        task, self._task = self._task, None
        assert task is not None
        return task, measure(task, self._threads)
