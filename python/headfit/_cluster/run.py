"""Work that the workers of a cluster do for one block of rows after the other."""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Self, TypeVar

from headfit import _core
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.deadline import calls_until
from headfit._base.progress import Counter
from headfit._cluster.cluster import Build, Cluster, own_build
from headfit.errors import HeadfitError, InputError

Shared = TypeVar("Shared")
Block = TypeVar("Block")
Result = TypeVar("Result")
Item = TypeVar("Item")

GRANULE = _core.row_granule
"""Rows that are split at multiples of this number have the results of all rows, bit for bit."""

PER_SLOT = 8
"""Blocks for each thread of the workers, so that none waits long for another at the end."""

AT_ONCE = 2**36
"""The most multiplications in a block, some ten seconds of one core: what a worker that is lost
costs, and how long a worker goes on after Ctrl-C."""

AHEAD = 2
"""Blocks that are submitted for each thread of the workers: one that it computes, one that waits.
Results are small, but a cluster may be large."""

GAVE_UP = "the cluster gave up: its scheduler ended, or cancelled the work"


def row_blocks(rows: int, products: int, slots: int) -> list[slice]:
    """Split rows into blocks that begin at multiples of `GRANULE`.

    Parameters
    ----------
    rows : int
        The number of rows.
    products : int
        The multiplications that one row takes.
    slots : int
        How many blocks the workers compute at a time.
    """
    wanted = min(rows / (PER_SLOT * slots), AT_ONCE / max(1, products))
    size = GRANULE * max(1, round(wanted / GRANULE))
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


@dataclass(frozen=True, eq=False)
class Held(Generic[Shared]):
    """An object that the workers of a cluster hold.

    It is pickled and sent once; each worker that needs it copies it from another one. Dask makes
    it again where it is lost with a worker, which it could not do with scattered data: the pickled
    object is the argument of a task, which the scheduler keeps.
    """

    cluster: Cluster
    future: Any

    @classmethod
    def of(cls, cluster: Cluster, shared: Shared) -> Held[Shared]:
        """Send an object that can be pickled to the cluster."""
        dask: Any = sys.modules["dask"]
        pickled = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
        # Dask warns of large arguments because they are often sent again with each task. This one
        # is sent once.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PB"}):
            return cls(cluster, cluster.client.submit(_unpickled, pickled, pure=False))


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


def run_blocks(
    held: Held[Shared],
    work: Callable[[Shared, Block], Result],
    blocks: Sequence[Block],
    take: Callable[[Block, Result], None],
    label: str,
) -> None:
    """Call ``take(block, work(shared, block))`` for every block; workers do the work.

    Parameters
    ----------
    held : Held
        The object `shared`, which every block reads, and the cluster.
    work : callable
        A function of a module of this package.
    blocks : sequence
        Small objects that say what to do. What a worker had not done when it was lost is done by
        another one.
    take : callable
        Called in this process, in the order in which blocks are done.
    label : str
        The text of the bar that counts blocks, if the cluster shows progress.

    Raises
    ------
    HeadfitError
        When the scheduler ended, or the blocks were cancelled there.
    TimeoutError
        When the deadline of the cluster comes. Then, after Ctrl-C and after any other error, what
        has been submitted is cancelled; a worker ends the block that it has begun.
    """
    cluster, left = held.cluster, iter(blocks)
    bar = Counter(len(blocks), "block") if cluster.progress else None
    with (
        contextlib.nullcontext() if bar is None else bar,
        UnderWay[Block](cluster.client, cluster.deadline) as tasks,
    ):

        def submit(block: Block) -> None:
            seconds = cluster.deadline - time.perf_counter()
            given = cluster.build, seconds, work, held.future, block
            with reaching(cluster.client):
                future = cluster.client.submit(_task, *given, pure=False)
            tasks.add(future, block)

        for block in islice(left, AHEAD * cluster.slots):
            submit(block)
        while tasks:
            done, result, error = tasks.take()
            if error is not None:
                raise error
            take(done, result)
            if bar is not None:
                bar.step(label)
            for block in islice(left, 1):
                submit(block)


def _unpickled(pickled: bytes) -> Any:
    return pickle.loads(pickled)


def _task(
    build: Build,
    seconds: float,
    work: Callable[[Shared, Block], Result],
    shared: Shared,
    block: Block,
) -> Result:
    """Do the work for one block on a worker, which may have joined after the first was checked."""
    if own_build() != build:
        raise InputError(
            f"client: all workers must have the same build and CPU level; got {own_build()} on a "
            f"worker that joined later, and {build} on others"
        )
    with standard_arithmetic(), calls_until(time.perf_counter() + seconds):
        return work(shared, block)
