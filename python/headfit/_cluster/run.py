"""Work that the workers of a cluster do for one block of rows after the other."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from headfit._base.arithmetic import standard_arithmetic
from headfit._base.deadline import calls_until
from headfit._base.progress import Counter
from headfit._cluster.build import Build, own_build
from headfit._cluster.cluster import Cluster
from headfit._cluster.under_way import UnderWay, reaching
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
    HeadfitError
        When the scheduler ended, or the blocks were cancelled there.
    TimeoutError
        When the deadline of the cluster comes. Then, after Ctrl-C and after any other error, what
        has been submitted is cancelled; a worker ends the block that it has begun.
    """
    cluster, left = held.cluster, iter(blocks)
    bar = Counter(len(blocks), "block") if cluster.progress else None
    with (
        nullcontext() if bar is None else bar,
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
