"""The tasks that a Dask cluster has been given: what each is for, and which one ends next."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

from headfit.errors import HeadfitError

Item = TypeVar("Item")

GAVE_UP = "the cluster gave up: its scheduler ended, or cancelled the work"


@contextlib.contextmanager
def reaching(client: Any) -> Iterator[None]:
    """Raise a HeadfitError in place of what Dask raises for a client without its scheduler."""
    try:
        yield
    except Exception as error:
        if client.status == "running":
            raise
        raise HeadfitError(GAVE_UP) from error


class UnderWay(Generic[Item]):
    """Tasks that were submitted to a cluster and have not been taken, each with an item.

    When its context ends, those that are left are cancelled; a worker ends the task that it has
    begun.

    Parameters
    ----------
    client : dask.distributed.Client
    deadline : float
        The value of ``time.perf_counter()`` at which waiting ends with a TimeoutError.
    """

    def __init__(self, client: Any, deadline: float = math.inf) -> None:
        # The package of the client, which is loaded since there is a client.
        self._distributed: Any = sys.modules["distributed"]
        self._client, self._deadline = client, deadline
        self._ended = self._distributed.as_completed(loop=client.loop, timeout=self._seconds())
        self._items: dict[Any, Item] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._items:
            # A client that has lost its scheduler cannot cancel; the error that led here says so.
            with contextlib.suppress(Exception):
                self._client.cancel(list(self._items))
        self._items.clear()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, future: Any, item: Item) -> None:
        """Add a task, given by its future, that is for an item."""
        self._items[future] = item
        self._ended.add(future)

    def take(self) -> tuple[Item, Any, Exception | None]:
        """Wait for the next task that ends; return its item, its result, and its error or None.

        Raises
        ------
        HeadfitError
            When the task was cancelled, or the scheduler ended.
        TimeoutError
            When the deadline comes.
        """
        future = next(self._ended)
        result: Any = None
        error: Exception | None = None
        try:
            # This waits where the result was lost with its worker and is computed again.
            result = future.result(timeout=self._seconds())
        except self._distributed.CancelledError as gone:
            raise HeadfitError(GAVE_UP) from gone
        except Exception as raised:
            if isinstance(raised, TimeoutError) and future.status != "error":
                raise  # the deadline came while this process waited for the result
            error = raised
        item = self._items.pop(future)
        # Dask keeps the error of a failed task until its future is released, and the traceback of
        # that error holds the future: left alone, the task would stay as long as the client.
        future.release()
        return item, result, error

    def _seconds(self) -> float | None:
        if math.isinf(self._deadline):
            return None
        return max(0.0, self._deadline - time.perf_counter())
