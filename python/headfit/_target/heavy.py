"""Columns and rows with far more nonzeros than the others, such as sinks and global tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headfit._target.blocks import Blocks
from headfit._target.target import Target

# A column or row is heavy if it has more than TIMES_THE_MEAN times the mean number of nonzeros,
# and more than MANY.
TIMES_THE_MEAN = 8
MANY = 32
# A column is global if more than half of the rows attend to it, and more than GLOBAL_TIMES times
# the mean over the columns, so that a dense pattern has no global column. Measured for random
# 4-regular patterns of 512 tokens with four hubs: giving a hub a coordinate of its own pays if at
# least half of the rows attend to it; if a quarter of them do, a fit without it is faster.
GLOBAL_TIMES = 4


def column_loads(target: Target) -> NDArray[np.int64]:
    """Return how many rows attend to each column."""
    return np.bincount(target.matrix.indices, minlength=target.n).astype(np.int64)


def _row_sizes(target: Target) -> NDArray[np.int64]:
    return np.diff(target.matrix.indptr).astype(np.int64)


def global_columns(target: Target) -> NDArray[np.int64]:
    """Return the columns that ``fit(A, exempt_columns="auto")`` exempts.

    None if tokens come in blocks: a head for the blocks makes global ones as it does others.
    """
    loads = column_loads(target)
    rows = np.count_nonzero(_row_sizes(target))
    is_global = (2 * loads > rows) & (loads > GLOBAL_TIMES * loads.mean())
    if is_global.any() and Blocks.of(target) is not None:
        is_global[:] = False
    return np.flatnonzero(is_global).astype(np.int64)


def _heavy(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of the rows or columns with so many nonzeros that they are heavy."""
    mean = counts.sum() / max(1, np.count_nonzero(counts))
    return np.flatnonzero((counts > TIMES_THE_MEAN * mean) & (counts > MANY)).astype(np.int64)


def _described(kind: str, heavy: NDArray[np.int64], counts: NDArray[np.int64]) -> str:
    """Name heavy rows or columns in words: "column 0 (512 nonzeros, ...) is far heavier ..."."""
    names = ", ".join(str(at) for at in heavy[:3])
    more = f" and {heavy.size - 3} more" if heavy.size > 3 else ""
    least, most = int(counts[heavy].min()), int(counts[heavy].max())
    span = str(least) if least == most else f"{least} to {most}"
    mean = counts.sum() / max(1, np.count_nonzero(counts))
    kinds, verb = (f"{kind}s", "are") if heavy.size > 1 else (kind, "is")
    counted = f"{span} nonzeros, {mean:.2g} on average"
    return f"{kinds} {names}{more} ({counted}) {verb} far heavier than the rest"


def heavy_notes(target: Target, exempt: NDArray[np.int64] | None = None) -> tuple[str, ...]:
    """Return notes that name the heavy columns and rows and suggest what to do about them.

    They are computed before a fit starts. Columns in `exempt` have a coordinate of their own
    already and are left out.
    """
    notes = []
    loads, sizes = column_loads(target), _row_sizes(target)
    columns = _heavy(loads) if exempt is None else np.setdiff1d(_heavy(loads), exempt)
    shared = np.intersect1d(columns, global_columns(target))
    if shared.size:
        notes.append(
            f'{_described("column", shared, loads)}: exempt_columns="auto" gives '
            f"{'it' if shared.size == 1 else 'each'} a coordinate of its own, and the rest a "
            "smaller head"
        )
    hubs = np.setdiff1d(columns, shared)
    if hubs.size:
        notes.append(
            f"{_described('column', hubs, loads)}: a larger dim makes room for "
            f"{'it' if hubs.size == 1 else 'them'}; exempt_columns pays where most rows attend to "
            "a column"
        )
    rows = _heavy(sizes)
    if rows.size:
        notes.append(
            f"{_described('row', rows, sizes)}: equal weights there ask for little, unequal ones "
            "for dimensions of their own"
        )
    return tuple(notes)
