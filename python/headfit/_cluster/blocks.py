"""How rows are split into blocks."""

from __future__ import annotations

from headfit import _core

GRANULE = _core.row_granule
"""Rows that are split at multiples of this number have the results of all rows, bit for bit."""

PER_SLOT = 8
"""Blocks for each thread of the workers, so that none waits long for another at the end."""

AT_ONCE = 2**36
"""The most multiplications in a block, some ten seconds of one core: what a worker that is lost
costs, and how long a worker goes on after Ctrl-C."""


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
