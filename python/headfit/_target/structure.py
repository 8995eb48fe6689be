"""What stands out in a pattern: blocks of tokens, and columns and rows with far more nonzeros."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._target.target import Target

# A column or row is heavy if it has more than so many times the mean nonzeros, and more than MANY.
TIMES_THE_MEAN = 8
MANY = 32
# A column is global if more than half of the rows attend to it, and more than GLOBAL_TIMES times
# the mean over the columns, so that a dense pattern has no global column. Measured for random
# 4-regular patterns of 512 tokens with four hubs: giving a hub a coordinate of its own pays if at
# least half of the rows attend to it; if a quarter of them do, a fit without it is faster.
GLOBAL_TIMES = 4


@dataclass(frozen=True, eq=False)
class Blocks:
    """A pattern of blocks of equal size (the last one may be smaller), and that of its blocks.

    A head for `target`, with its queries and keys repeated, meets the same tolerances for all
    tokens: logits, and weights up to one factor for each row, are the same within each block.
    """

    size: int  # the tokens in a block, at least 2
    target: Target  # the pattern of the blocks, in which a block is one token
    n: int  # the tokens

    @classmethod
    def of(cls, target: Target) -> Self | None:
        """Return the largest blocks that a target consists of; None if there are none."""
        is_causal = isinstance(target.mask, str)  # "causal" is the only word
        if target.mask is not None and not is_causal:
            return None
        n = target.n
        size = _core.block_size(target.core, is_causal, 1)
        if size == 0:
            return None
        # The last row of a block sees all of it; under a causal mask earlier ones see less.
        last = np.minimum(np.arange(size - 1, n + size - 1, size), n - 1)
        small = sp.csr_array(target.matrix[last][:, ::size])
        return cls(size, Target(small, mask=target.mask, normalize=True), n)

    def expanded(self, rows: FloatArray) -> FloatArray:
        """Return one row for each token, given one for each block."""
        return np.repeat(rows, self.size, axis=0)[: self.n]


def _loads(target: Target) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return how many rows attend to each column, and how many columns each row attends to."""
    csr = target.matrix
    return np.bincount(csr.indices, minlength=target.n), np.diff(csr.indptr).astype(np.intp)


def global_columns(target: Target) -> NDArray[np.int64]:
    """Return the columns that ``fit(A, exempt_columns="auto")`` exempts.

    None if tokens come in blocks: a head for the blocks makes global ones as it does others.
    """
    loads, sizes = _loads(target)
    columns = (2 * loads > np.count_nonzero(sizes)) & (loads > GLOBAL_TIMES * loads.mean())
    if columns.any() and Blocks.of(target) is not None:
        columns[:] = False
    return np.flatnonzero(columns).astype(np.int64)


def _mean(counts: NDArray[np.intp]) -> float:
    return float(counts.sum() / max(1, np.count_nonzero(counts)))


def _heavy(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the indices of the rows or columns with so many nonzeros that they are heavy."""
    return np.flatnonzero((counts > TIMES_THE_MEAN * _mean(counts)) & (counts > MANY))


def _described(kind: str, heavy: NDArray[Any], counts: NDArray[np.intp]) -> str:
    """Name heavy rows or columns in words: "column 0 (512 nonzeros, ...) is far heavier ..."."""
    names = ", ".join(str(at) for at in heavy[:3])
    more = f" and {heavy.size - 3} more" if heavy.size > 3 else ""
    least, most = int(counts[heavy].min()), int(counts[heavy].max())
    span = str(least) if least == most else f"{least} to {most}"
    kinds, verb = (f"{kind}s", "are") if heavy.size > 1 else (kind, "is")
    counted = f"{span} nonzeros, {_mean(counts):.2g} on average"
    return f"{kinds} {names}{more} ({counted}) {verb} far heavier than the rest"


def heavy_notes(target: Target, exempt: NDArray[np.int64] | None = None) -> tuple[str, ...]:
    """Return notes that name the heavy columns and rows and suggest what to do about them.

    They are computed before a fit starts. Columns in `exempt` have a coordinate of their own
    already and are left out.
    """
    loads, sizes = _loads(target)
    columns = np.setdiff1d(_heavy(loads), [] if exempt is None else exempt).astype(np.intp)
    shared = np.intersect1d(columns, global_columns(target))
    hubs = np.setdiff1d(columns, shared)
    each, them = ("it" if of.size == 1 else many for of, many in ((shared, "each"), (hubs, "them")))
    advice = {
        f'exempt_columns="auto" gives {each} a coordinate of its own, and the rest a smaller head':
            ("column", shared, loads),
        f"a larger dim makes room for {them}; exempt_columns pays where most rows attend to a "
        "column": ("column", hubs, loads),
        "equal weights there ask for little, unequal ones for dimensions of their own":
            ("row", _heavy(sizes), sizes),
    }  # fmt: skip
    return tuple(f"{_described(*of)}: {what}" for what, of in advice.items() if of[1].size)
