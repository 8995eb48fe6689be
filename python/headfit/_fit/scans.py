"""The scans of a learned fit, made by the workers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._cluster.blocks import row_blocks
from headfit._cluster.cluster import Cluster
from headfit._cluster.run import Held, run_blocks
from headfit._target.target import Target

Scanned = tuple[NDArray[Any], ...]
"""Candidate lists with a fixed number of places for each row, how many of them are in use, hits,
deficits and bounds of the rounding, as `_core.scan_rows` returns them."""


@dataclass(frozen=True, eq=False)
class Scanner:
    """Calls of `_core.scan_rows` for blocks of rows, on a worker."""

    target: Target
    tolerances: tuple[float, float, float]
    threads: int

    def rows(self, request: dict[str, Any], block: slice) -> Scanned:
        """Scan a block of rows."""
        tolerances = _core.Tolerances(*self.tolerances)
        asked = _core.ScanRequest(**request)
        first, end = block.start, block.stop
        return _core.scan_rows(self.target.core, tolerances, asked, first, end, self.threads)


@dataclass(frozen=True, eq=False)
class SharedScans:
    """Makes scans on the workers of a cluster, which hold the target during the whole fit.

    Every scan sends them queries and keys, 8 n d bytes, and the hits of the last scan; it gets back
    the candidate lists, about 4 n max(24, 4 k) bytes. Where lists are kept it sends these too.
    """

    held: Held[Scanner]

    @classmethod
    def of(
        cls, cluster: Cluster, target: Target, tolerances: tuple[float, float, float]
    ) -> SharedScans:
        """Send the target to the workers."""
        return cls(Held.of(cluster, Scanner(target, tolerances, cluster.threads)))

    def __call__(self, request: dict[str, Any]) -> Scanned:
        """Return what a scan of all rows finds; `request` has the arguments of a ScanRequest."""
        n, dim = request["q"].shape
        cap, cluster = request["list_cap"], self.held.cluster
        found = (
            np.empty(n * cap, np.int32),
            np.empty(n, np.int64),
            np.empty(n, np.int64),
            np.empty(n, np.float32),
            np.empty(n, np.float32),
        )

        def take(asked: tuple[Any, slice], part: Scanned) -> None:
            first, end = asked[1].start, asked[1].stop
            found[0][first * cap : end * cap] = part[0]
            for whole, rows in zip(found[1:], part[1:], strict=True):
                whole[first:end] = rows

        sent = Held.of(cluster, request)
        blocks = row_blocks(n, n * dim // request["column_step"], cluster.slots)
        run_blocks(self.held, _scan_block, [(sent.future, b) for b in blocks], take, "scan")
        return found


def _scan_block(scanner: Scanner, asked: tuple[dict[str, Any], slice]) -> Scanned:
    # Dask replaces the future of the request by what it stands for.
    return scanner.rows(*asked)
