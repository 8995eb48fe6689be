"""Conversion of a dense matrix to a sparse one, a few rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import BFLOAT16, BLOCK, widened
from headfit._base.memory import require_memory
from headfit.errors import InputError

INT32_MAX = 2**31 - 1


def csr_of_dense(matrix: NDArray[Any]) -> sp.csr_array:
    """Return a dense matrix of numbers, 16-bit floats included, as a canonical float64 csr_array.

    Besides the result it needs the memory of a few rows only, and it can be interrupted with
    Ctrl-C between blocks of rows.
    """
    rows, cols = matrix.shape
    step = max(1, BLOCK // max(1, cols))
    blocks = [slice(first, first + step) for first in range(0, rows, step)]
    counts = np.empty(rows, np.int64)
    for block in blocks:
        counts[block] = np.count_nonzero(_comparable(matrix[block]), axis=1)
    starts = np.concatenate(([0], np.cumsum(counts)))
    require_memory(16 * int(starts[-1]), f"the {starts[-1]} nonzeros of A of shape {matrix.shape}")
    index = np.int32 if max(int(starts[-1]), cols) <= INT32_MAX else np.int64
    columns: NDArray[Any] = np.empty(int(starts[-1]), index)
    values = np.empty(columns.size)
    for block in blocks:
        part = np.array(matrix[block])  # nobody else can change it
        places = np.nonzero(_comparable(part))
        if places[0].size != counts[block].sum():
            raise InputError("A must not be changed while it is read")
        of_block = slice(starts[block.start], starts[block.start] + places[0].size)
        columns[of_block] = places[1]
        values[of_block] = widened(part[places])
    csr: sp.csr_array = sp.csr_array((values, columns, starts.astype(index)), shape=matrix.shape)
    csr.has_canonical_format = True
    return csr


def _comparable(part: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose zeros are those of `part`, and that NumPy can compare with zero.

    For bfloat16 these are its bits without the sign bit, since -0.0 counts as zero.
    """
    return part.view(np.uint16) << 1 if part.dtype == BFLOAT16 else part
