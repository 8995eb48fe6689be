"""Queries for given keys: solved on this machine, or by the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._cluster.blocks import row_blocks
from headfit._cluster.cluster import Cluster
from headfit._cluster.run import Held, run_blocks
from headfit._target.target import Target

RowStatus = str
Result = TypeVar("Result")

Solved = tuple[NDArray[np.float64], list[RowStatus], NDArray[np.float64], list[Any], int]
"""Queries, the status and the norm of each row asked for; proofs; scans of the logits."""

SCANS = 8
"""About how many scans of the logits a row takes: blocks are smaller by this factor."""


@dataclass(frozen=True, eq=False)
class GivenKeys:
    """A target and keys in float64, and what queries of these keys must keep to."""

    target: Target
    keys: NDArray[np.float64]
    equality: bool
    max_norm: float


@dataclass(frozen=True, eq=False)
class Here:
    """Solves rows on this machine."""

    given: GivenKeys
    threads: int

    def queries(self, rows: NDArray[np.int64], leak: float, distortion: float) -> Solved:
        """Return the shortest queries of some rows in ascending order, or proofs."""
        given = self.given
        q, status, norms, proofs, scans = _core.max_margin_queries(
            only_rows(given.target, rows),
            given.keys,
            _core.Tolerances(leak, distortion),
            _core.MaxMarginOptions(equality=given.equality, max_norm=given.max_norm),
            self.threads,
        )
        if rows.size < given.target.n:
            q, norms, status = q[rows], norms[rows], [status[i] for i in rows]
        return q, list(status), norms, proofs, scans

    def face_reports(self, rows: NDArray[np.int64]) -> list[Any]:
        """Say for some rows whether their keys are a face of the polytope of all keys."""
        given = self.given
        return _core.face_reports(given.target.core, given.keys, rows, self.threads)


@dataclass(frozen=True, eq=False)
class ByWorkers:
    """Solves rows on the workers of a cluster; every row is a problem of its own."""

    held: Held[Here]
    size: tuple[int, int]

    @classmethod
    def of(cls, given: GivenKeys, cluster: Cluster) -> ByWorkers:
        """Send keys and target to the workers."""
        return cls(Held.of(cluster, Here(given, cluster.threads)), given.keys.shape)

    def queries(self, rows: NDArray[np.int64], leak: float, distortion: float) -> Solved:
        """Return what `Here.queries` does, except that rows of two blocks share no scan."""
        parts = self._in_blocks(rows, _queries_of_block, leak, distortion)
        q, status, norms, proofs, scans = zip(*parts, strict=True)
        found = np.concatenate(q), _joined(status), np.concatenate(norms), _joined(proofs)
        return *found, sum(scans)

    def face_reports(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return what `Here.face_reports` does."""
        return _joined(self._in_blocks(rows, _reports_of_block))

    def _in_blocks(
        self, rows: NDArray[np.int64], work: Callable[[Here, Any], Result], *more: Any
    ) -> list[Result]:
        n, dim = self.size
        parts: dict[int, Result] = {}

        def take(asked: tuple[Any, ...], result: Result) -> None:
            parts[int(asked[0][0])] = result

        blocks = row_blocks(rows.size, SCANS * n * dim, self.held.cluster.slots)
        asked = [(rows[block], *more) for block in blocks]
        run_blocks(self.held, work, asked, take, "max-margin queries")
        return [parts[first] for first in sorted(parts)]


def _queries_of_block(solver: Here, asked: tuple[NDArray[np.int64], float, float]) -> Solved:
    return solver.queries(*asked)


def _reports_of_block(solver: Here, asked: tuple[NDArray[np.int64]]) -> list[Any]:
    return solver.face_reports(*asked)


def _joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def only_rows(target: Target, rows: NDArray[np.int64]) -> _core.Target:
    """Return the target with all other rows empty, so that nothing is required of them."""
    if rows.size == target.n:
        return target.core
    keep = np.zeros(target.n, dtype=np.bool_)
    keep[rows] = True
    offsets, columns, weights = target.csr_arrays
    counts = np.diff(offsets)
    entries = np.repeat(keep, counts)
    left = np.concatenate(([0], np.cumsum(np.where(keep, counts, 0))))
    return _core.Target(left.astype(np.int64), columns[entries], weights[entries], target.core.mask)
