"""The scans of a certificate: on this machine, or by the workers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances
from headfit._cluster.cluster import Cluster
from headfit._cluster.run import Held, row_blocks, run_blocks
from headfit._target.target import Target

Scans = Literal["both", "first", "in double"]

# What the core returns for each row, and the numbers that are the largest of all rows.
BY_ROW = (
    "leak",
    "distortion",
    "tv",
    "stray",
    "largest_logit",
    "verdict",
    "leak_column",
    "weakest_column",
    "highest_column",
    "lowest_column",
)
LARGEST = ("q_norm", "k_norm", "max_logit", "rounding_bound")


@dataclass(frozen=True, eq=False)
class Statement:
    """What a certificate is about: checked arguments of `certify`."""

    target: Target
    attention: Attention
    tolerances: Tolerances
    kernel: Kernel
    mass: bool


def certify_rows(
    statement: Statement,
    threads: int,
    rows: NDArray[np.int64] | None = None,
    scans: Scans = "both",
) -> dict[str, Any]:
    """Return what the core finds out about some rows, by default all, in arrays for all rows."""
    attention = statement.attention
    q_error, k_error = attention.errors or (None, None)
    options = _core.CertifyOptions(
        q_error=q_error,
        k_error=k_error,
        kernel=statement.kernel.core,
        mass=statement.mass,
        scans=scans,
    )
    logits = attention.core if rows is None else attention.core.of_rows(rows)
    return _core.certify_logits(
        statement.target.core, logits, statement.tolerances.core, options, threads
    )


def certify_blocks(cluster: Cluster, statement: Statement) -> dict[str, Any]:
    """Return what `certify_rows` does, found by the workers of a cluster.

    The scan in float64 of undecided rows follows the one of all rows, as on one machine: the rows
    that one block of the core holds, and with them the order of sums, are then the same.
    """
    n, attention = statement.target.n, statement.attention
    held = Held.of(cluster, (statement, cluster.threads))
    found: dict[str, Any] = {}

    def take(scan: tuple[NDArray[np.int64], Scans], part: dict[str, Any]) -> None:
        rows, _ = scan
        for name in BY_ROW:
            if name not in found:
                found[name] = np.empty(n, part[name].dtype)
            found[name][rows] = part[name]
        for name in LARGEST:
            found[name] = max(found.get(name, 0.0), part[name])

    def scan(rows: NDArray[np.int64], scans: Scans) -> None:
        blocks = row_blocks(rows.size, attention.m * attention.dim, cluster.slots)
        asked = [(rows[block], scans) for block in blocks]
        run_blocks(held, _certify_block, asked, take, f"certify, scan {scans}")

    scan(np.arange(n, dtype=np.int64), "first")
    undecided = np.flatnonzero(found["verdict"] == 2).astype(np.int64)
    found["rescanned"] = 0
    if attention.dtype == np.float32 and undecided.size:
        scan(undecided, "in double")
        found["rescanned"] = undecided.size
    found["max_logit"] = float(found["largest_logit"].max())
    return found


def _certify_block(
    shared: tuple[Statement, int], block: tuple[NDArray[np.int64], Scans]
) -> dict[str, Any]:
    """Judge a block of rows on a worker."""
    (statement, threads), (rows, scans) = shared, block
    found = certify_rows(statement, threads, rows, scans)
    return {name: found[name][rows] for name in BY_ROW} | {name: found[name] for name in LARGEST}
