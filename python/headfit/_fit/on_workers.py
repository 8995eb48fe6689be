"""The parts of a fit that the workers of a cluster do: scans of the logits, and queries of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._cluster.cluster import Cluster, hold, row_blocks, run_blocks
from headfit._target.target import Target

SCANS = 8
"""About how many scans of the logits a query takes: blocks are smaller by this factor."""


@dataclass(frozen=True, eq=False)
class RowSolver:
    """The shortest query of each row for keys in float64, or a proof that there is none."""

    target: Target
    keys: NDArray[np.float64]
    threads: int
    equality: bool
    max_norm: float

    def queries(self, rows: NDArray[np.int64], leak: float, distortion: float) -> Any:
        """Return the shortest queries of some rows, or proofs."""
        tolerances = _core.Tolerances(leak, distortion)
        options = _core.MaxMarginOptions(equality=self.equality, max_norm=self.max_norm)
        return _core.max_margin_queries(
            self.target.core, self.keys, tolerances, options, self.threads, rows
        )

    def face_reports(self, rows: NDArray[np.int64]) -> Any:
        """Say for some rows whether their keys are a face of the polytope of all keys."""
        return _core.face_reports(self.target.core, self.keys, rows, self.threads)


def row_solver(solver: RowSolver, cluster: Cluster | None) -> Callable[..., list[Any]]:
    """Return a function that calls one of a solver's, by name, and returns a list of results.

    Without a cluster there is one, of all rows. Otherwise the workers, which hold the solver, solve
    blocks of rows, each of which is a problem of its own: rows of two blocks share no scan.
    """
    if cluster is None:
        return lambda *call: [_solve_block(solver, call)]
    held = hold(cluster, replace(solver, threads=cluster.threads))

    def solve(name: str, rows: NDArray[np.int64], *more: float) -> list[Any]:
        slices = row_blocks(rows.size, SCANS * solver.keys.size, cluster.slots)
        blocks = [(name, rows[block], *more) for block in slices]
        return run_blocks(cluster, _solve_block, held, blocks, "max-margin queries")

    return solve


def _solve_block(solver: RowSolver, call: tuple[Any, ...]) -> Any:
    name, *arguments = call
    return getattr(solver, name)(*arguments)


def shared_scans(cluster: Cluster, target: Target) -> Callable[..., tuple[NDArray[Any], ...]]:
    """Return a function that makes the scans of a fit on the workers, which hold the target.

    Every scan sends them queries and keys, 8 n d bytes, and the hits of the last scan; it gets back
    the candidate lists, about 4 n max(24, 4 k) bytes. Where lists are kept it sends these too.
    """
    held = hold(cluster, (target, cluster.threads))

    def scan(tolerances: tuple[float, ...], request: dict[str, Any]) -> tuple[NDArray[Any], ...]:
        n, dim = request["q"].shape
        sent = hold(cluster, request)
        slices = row_blocks(n, n * dim // request["column_step"], cluster.slots)
        blocks = [(sent, tolerances, block) for block in slices]
        parts = run_blocks(cluster, _scan_block, held, blocks, "scan")
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

    return scan


def _scan_block(held: tuple[Target, int], sent: tuple[Any, ...]) -> tuple[NDArray[Any], ...]:
    # Dask replaces the future of the request by what it stands for.
    (target, threads), (request, numbers, rows) = held, sent
    tolerances, request = _core.Tolerances(*numbers), _core.ScanRequest(**request)
    return _core.scan_rows(target.core, tolerances, request, rows.start, rows.stop, threads)
