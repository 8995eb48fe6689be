"""The pattern of a stencil: what its filter produces in all columns, exempt ones included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from headfit import _core
from headfit._filter.stencil import Stencil
from headfit._target.target import Target

__all__ = ["whole_target"]


def whole_target(target: Target, stencil: Stencil) -> _core.Target:
    """Return the target that a stencil was found in, as if no column had been left out.

    A target without its exempt columns wants the first rows of a window to keep away from them,
    which no filter does and no one needs. Rows that attend to everything become empty.
    """
    n, size = target.n, stencil.n
    inside: Any = sp.diags_array(
        [
            np.full(size - abs(int(x)), math.exp(weight))
            for x, weight in zip(stencil.offsets, stencil.log_weights, strict=True)
        ],
        offsets=[-int(x) for x in stencil.offsets],
        shape=(size, size),
    )
    if stencil.block > 1:
        inside = sp.kron(inside, np.ones((stencil.block, stencil.block)))
        inside = sp.csr_array(inside)[:n, :n]
        inside = sp.tril(inside) if stencil.first == 0 else inside
    attends = np.ones(n)
    attends[stencil.apart] = 0.0
    whole: Any = sp.csr_array(sp.diags_array(attends) @ inside)
    whole.eliminate_zeros()
    whole.sort_indices()
    sums = np.asarray(whole.sum(axis=1)).ravel()
    return _core.Target(
        whole.indptr.astype(np.int64),
        whole.indices.astype(np.int32),
        whole.data / np.repeat(sums, np.diff(whole.indptr)),
        target.core.mask,
    )
