"""Work that the workers of a cluster do for one block of rows after the other."""

from __future__ import annotations

import math
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headfit._base.arithmetic import standard_arithmetic
from headfit._base.deadline import calls_until
from headfit._base.progress import Counter
from headfit._cluster.build import Build, own_build
from headfit._cluster.cluster import Cluster
from headfit.errors import InputError

Shared = TypeVar("Shared")
Block = TypeVar("Block")
Result = TypeVar("Result")

AHEAD = 2
"""Blocks that are submitted for each thread of the workers: one that it computes, one that waits.
Results are small, but a cluster may be large."""


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
    TimeoutError
        When the deadline of the cluster comes. Then, after Ctrl-C and after any other error, what
        has been submitted is cancelled; a worker ends the block that it has begun.
    """
    # The package of the client, which is loaded since there is a client.
    distributed: Any = sys.modules["distributed"]
    cluster = held.cluster
    client, left = cluster.client, iter(blocks)
    seconds = max(0.0, cluster.deadline - time.perf_counter())
    done = distributed.as_completed(
        loop=client.loop, timeout=None if math.isinf(seconds) else seconds
    )
    under_way: dict[Any, Block] = {}

    def submit_next() -> None:
        for block in left:
            limit = cluster.deadline - time.perf_counter()
            future = client.submit(
                _task, cluster.build, limit, work, held.future, block, pure=False
            )
            under_way[future] = block
            done.add(future)
            return

    bar = Counter(len(blocks), "block") if cluster.progress else None
    try:
        with nullcontext() if bar is None else bar:
            for _ in range(AHEAD * cluster.slots):
                submit_next()
            while under_way:
                future = next(done)
                result = future.result()
                take(under_way.pop(future), result)
                if bar is not None:
                    bar.step(label)
                submit_next()
    finally:
        if under_way:
            client.cancel(list(under_way))


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
