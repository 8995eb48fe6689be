"""The `client` argument: a checked Dask client, and how work is done by its workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from headfit._base.arguments import as_flag
from headfit._base.arrays import thread_count
from headfit._cluster.build import Build, common_build, own_build
from headfit._cluster.workers import answers, check_client
from headfit.errors import InputError

__all__ = ["Cluster"]


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
    ) -> Cluster | None:
        """Return a user's `client` as a cluster; None stays None.

        A worker computes as many blocks at a time as Dask gives it threads, so that a block takes
        one thread unless `num_threads` says more.

        Raises
        ------
        InputError
            If `client` is not a connected, synchronous `dask.distributed.Client`, or if its
            workers differ in their builds (see `common_build`); or for `progress` without one.
        """
        if as_flag(progress, "progress") and client is None:
            raise InputError("progress counts blocks of rows that a client has done: give client")
        if client is None or isinstance(client, Cluster):
            return client
        check_client(client)
        threads = 1 if num_threads is None else thread_count(num_threads)
        builds = answers(client, own_build)
        if not builds:
            raise InputError("client must have at least one worker; got a cluster without any")
        slots = sum(client.nthreads().values())
        return cls(client, common_build(builds), max(1, slots), threads, bool(progress))

    def check_own_build(self) -> None:
        """Raise an InputError unless this process has the build of the workers too.

        For work of which this process does a part.
        """
        if own_build() != self.build:
            raise InputError(
                "client: a fit computes a part here, so workers must have the build and CPU level "
                f"of this process, {own_build()}; got {self.build} (HEADFIT_CPU sets the level)"
            )

    def until(self, deadline: float) -> Cluster:
        """Return the same cluster with a deadline for all that it is asked to do."""
        return replace(self, deadline=deadline)
