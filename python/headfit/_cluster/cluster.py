"""A checked Dask client, whose workers give the bits of one machine, and what they do for it."""

import contextlib
import math
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from headfit import _core
from headfit._base.arguments import as_flag, shown, thread_count
from headfit._base.calls import calls_until, count_step, standard_arithmetic, tqdm_class
from headfit._configuration import show_config
from headfit.errors import HeadfitError, InputError

Result = TypeVar("Result")

# Rows that are split at multiples of this number have the results of all rows, bit for bit.
GRANULE = _core.row_granule

# Blocks for each thread of the workers, so that none waits long for another at the end.
PER_SLOT = 8

# The most multiplications in a block, some ten seconds of one core: what a worker that is lost
# costs, and how long a worker goes on after Ctrl-C.
AT_ONCE = 2**36

GAVE_UP = "the cluster gave up: its scheduler ended, or cancelled the work"

# How many workers of a kind an error message names.
MOST_LISTED = 4


class Build(NamedTuple):
    """The version of headfit, and everything about its core that may change the bits of a result.

    Two cores of the level "native" were each compiled for the machine that they were built on, so
    that their machines must support the same levels as well.
    """

    version: str
    cpu: str
    supported: tuple[str, ...]
    compiler: str
    flags: str
    eigen: str

    def __str__(self) -> str:
        level = f"CPU level {self.cpu}"
        if self.supported:
            level += f" on a machine with {', '.join(self.supported)}"
        return f"headfit {self.version}, {level} ({self.compiler})"


def own_build() -> Build:
    """Return the build of this process."""
    here = show_config()
    levels = here.supported if here.cpu == "native" else ()
    return Build(here.version, here.cpu, levels, here.compiler, here.flags, here.eigen)


def common_build(found: Mapping[str, Any]) -> Build:
    """Return the build of all workers, from what each of them answered to `own_build`.

    Raises
    ------
    InputError
        If a worker has no headfit, or another version than this process, or if builds differ. The
        message names the workers and what they have.
    """
    by_build: dict[Build, list[str]] = {}
    for worker, build in found.items():
        if not isinstance(build, Build):
            raise InputError(f"client: the worker {worker} could not import headfit: {build!r}")
        by_build.setdefault(build, []).append(worker)
    here = own_build().version
    for build, workers in by_build.items():
        if build.version != here:
            raise InputError(
                f"client: all workers must have headfit {here}, as this process does; "
                f"got {build.version} on {_listed(workers)}"
            )
    if len(by_build) > 1:
        kinds = "; ".join(f"{build} on {_listed(workers)}" for build, workers in by_build.items())
        raise InputError(
            "client: all workers must have the same build and CPU level, since levels round "
            f"differently (see headfit.show_config; HEADFIT_CPU sets the level); got {kinds}"
        )
    return next(iter(by_build))


def _listed(workers: list[str]) -> str:
    more = len(workers) - MOST_LISTED
    return ", ".join(workers[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def answers(client: Any, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """Return what a function returns on each worker, or the exception that it raises there.

    A worker that leaves the cluster before it answers is left out.
    """
    found = client.run(function, *given, on_error="return")
    present = client.nthreads()
    return {
        worker: answer
        for worker, answer in found.items()
        if worker in present or not isinstance(answer, Exception)
    }


@dataclass(frozen=True, eq=False)
class Cluster:
    """A client whose workers all have the same build of headfit.

    Attributes
    ----------
    client : dask.distributed.Client
    build : Build
        What all workers have, and every worker that joins later must have.
    slots : int
        How many blocks the workers compute at a time.
    threads : int
        The threads of each block.
    progress : bool
        Whether a bar counts the blocks that are done.
    deadline : float
        The value of ``time.perf_counter()`` at which work ends with a TimeoutError.
    """

    client: Any
    build: Build
    slots: int
    threads: int = 1
    progress: bool = False
    deadline: float = math.inf

    @classmethod
    def of(
        cls, client: Any, num_threads: int | None = None, progress: bool = False
    ) -> "Cluster | None":
        """Return a user's `client` as a cluster; None stays None.

        A worker computes as many blocks at a time as Dask gives it threads, so that a block takes
        one thread unless `num_threads` says more.

        Raises
        ------
        InputError
            If `client` is not a connected, synchronous `dask.distributed.Client`, or if its
            workers differ in their builds (see `common_build`); or for `progress` without one.
        """
        if (progress := as_flag(progress, "progress")) and client is None:
            raise InputError("progress counts blocks of rows that a client has done: give client")
        if client is None or isinstance(client, Cluster):
            return client
        # Nobody has a client without having imported its package. headfit itself never does.
        distributed: Any = sys.modules.get("distributed")
        if distributed is None or not isinstance(client, distributed.Client):
            got = shown(client)
            raise InputError(f"client must be a dask.distributed.Client, or None; got {got}")
        if client.asynchronous:
            raise InputError("client must be synchronous; got a Client with asynchronous=True")
        if client.status != "running":
            raise InputError(f"client must be connected to a scheduler; it is {client.status!r}")
        threads = 1 if num_threads is None else thread_count(num_threads)
        builds = answers(client, own_build)
        if not builds:
            raise InputError("client must have at least one worker; got a cluster without any")
        slots = sum(client.nthreads().values())
        return cls(client, common_build(builds), max(1, slots), threads, progress)


def row_blocks(rows: int, products: int, slots: int) -> list[slice]:
    """Split so many rows into blocks that begin at multiples of `GRANULE`.

    A row takes so many products, and the workers compute so many blocks (slots) at a time.
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
        return cluster.client.submit(pickle.loads, pickled, pure=False)


def run_blocks(
    cluster: Cluster, work: Callable[..., Result], held: Any, products: int, label: str,
    rows: Any, *given: Any,
) -> list[Result]:  # fmt: skip
    """Return ``work(shared, rows[block], *given)`` for all blocks, in order; workers do the work.

    Parameters
    ----------
    cluster : Cluster
    work : callable
        A function that workers can import.
    held : future
        What `hold` returned for the object `shared`, which every block reads.
    products : int
        How many products a row takes, as in `row_blocks`.
    label : str
        The text of the bar that counts blocks, if the cluster shows progress.
    rows : array or range
        What a worker had not done of it when it was lost is done by another one.
    *given
        Small objects, the same for every block.

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
    blocks = [rows[block] for block in row_blocks(len(rows), products, cluster.slots)]
    bar = tqdm_class()(total=len(blocks), unit="block") if cluster.progress else None
    tasks: list[Any] = []
    results: dict[Any, Result] = {}

    def seconds_left() -> float | None:
        left = cluster.deadline - time.perf_counter()
        return None if math.isinf(left) else max(0.0, left)

    with bar or contextlib.nullcontext():
        try:
            known = cluster.build, cluster.deadline - time.perf_counter(), work, held
            tasks = [client.submit(_task, *known, block, *given, pure=False) for block in blocks]
            for task in distributed.as_completed(tasks, loop=client.loop, timeout=seconds_left()):
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


def _task(
    build: Build, seconds: float, work: Callable[..., Result], shared: Any, *block: Any
) -> Result:
    """Do the work for one block on a worker, which may have joined after the first was checked."""
    if own_build() != build:
        raise InputError(
            f"client: all workers must have the same build and CPU level; got {own_build()} on a "
            f"worker that joined later, and {build} on others"
        )
    with standard_arithmetic(), calls_until(time.perf_counter() + seconds):
        return work(shared, *block)
