"""Work that the workers of a cluster do for one block of rows after the other."""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headfit import _core
from headfit._base.calls import calls_until, standard_arithmetic
from headfit._base.progress import count_step, tqdm_class
from headfit._cluster.cluster import Build, Cluster, own_build
from headfit.errors import HeadfitError, InputError

Block = TypeVar("Block")
Result = TypeVar("Result")

GRANULE = _core.row_granule
"""Rows that are split at multiples of this number have the results of all rows, bit for bit."""

PER_SLOT = 8
"""Blocks for each thread of the workers, so that none waits long for another at the end."""

AT_ONCE = 2**36
"""The most multiplications in a block, some ten seconds of one core: what a worker that is lost
costs, and how long a worker goes on after Ctrl-C."""

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


def hold(cluster: Cluster, shared: Any) -> Any:
    """Send an object that can be pickled to a cluster, and return what stands for it in tasks.

    It is pickled and sent once; each worker that needs it copies it from another one. Dask makes
    it again where it is lost with a worker, which it could not do with scattered data: the pickled
    object is the argument of a task, which the scheduler keeps.
    """
    dask: Any = sys.modules["dask"]
    pickled = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
    # Dask warns of large arguments because they are often sent again with each task. This one is
    # sent once.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PB"}):
        return cluster.client.submit(_unpickled, pickled, pure=False)


def run_blocks(
    cluster: Cluster,
    work: Callable[[Any, Block], Result],
    held: Any,
    blocks: Sequence[Block],
    label: str,
) -> list[Result]:
    """Return ``work(shared, block)`` for every block, in their order; workers do the work.

    Parameters
    ----------
    cluster : Cluster
    work : callable
        A function of a module of this package.
    held : future
        What `hold` returned for the object `shared`, which every block reads.
    blocks : sequence
        Small objects that say what to do. What a worker had not done when it was lost is done by
        another one.
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
    client = cluster.client
    distributed: Any = sys.modules["distributed"]  # the package of the client
    bar = tqdm_class()(total=len(blocks), unit="block") if cluster.progress else None
    tasks: list[Any] = []
    results: dict[Any, Result] = {}

    def seconds_left() -> float | None:
        left = cluster.deadline - time.perf_counter()
        return None if math.isinf(left) else max(0.0, left)

    with bar or contextlib.nullcontext():
        try:
            known = cluster.build, seconds_left(), work, held
            tasks = [client.submit(_task, *known, block, pure=False) for block in blocks]
            for task in distributed.as_completed(tasks, loop=client.loop, timeout=known[1]):
                # This waits where the result was lost with its worker and is computed again.
                results[task] = task.result(timeout=seconds_left())
                if bar is not None:
                    count_step(bar, label)
            return [results[task] for task in tasks]
        except Exception as error:
            if client.status == "running" and not isinstance(error, distributed.CancelledError):
                raise
            raise HeadfitError(GAVE_UP) from error
        finally:
            # A client that has lost its scheduler cannot cancel; the error that led here says so.
            with contextlib.suppress(Exception):
                client.cancel([task for task in tasks if task not in results])
            # Dask keeps the error of a failed task until its future is released, and the traceback
            # of that error holds the future: left alone, the task would stay with the client.
            for task in tasks:
                task.release()


def _unpickled(pickled: bytes) -> Any:
    return pickle.loads(pickled)


def _task(
    build: Build,
    seconds: float | None,
    work: Callable[[Any, Block], Result],
    shared: Any,
    block: Block,
) -> Result:
    """Do the work for one block on a worker, which may have joined after the first was checked."""
    if own_build() != build:
        raise InputError(
            f"client: all workers must have the same build and CPU level; got {own_build()} on a "
            f"worker that joined later, and {build} on others"
        )
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    with standard_arithmetic(), calls_until(deadline):
        return work(shared, block)
