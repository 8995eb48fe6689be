"""The pattern of a stencil: what its filter produces in all columns, exempt ones included."""

from __future__ import annotations

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
    n, reach = target.n, (stencil.first, stencil.last)
    weights = np.exp(stencil.log_weights)
    inside = sp.diags_array(
        [np.full(stencil.n - abs(x), w) for x, w in zip(stencil.offsets, weights, strict=True)],
        offsets=[-int(x) for x in stencil.offsets],
        shape=(stencil.n, stencil.n),
    )
    if stencil.block > 1:
        inside = sp.kron(inside, np.ones((stencil.block, stencil.block)))
    whole = sp.csr_array(sp.csr_array(inside)[:n, :n])
    if stencil.block > 1 and reach[0] == 0:
        whole = sp.csr_array(sp.tril(whole))
    apart = np.ones(n)
    apart[stencil.apart] = 0.0
    whole = sp.csr_array(sp.diags_array(apart) @ whole)
    whole.eliminate_zeros()
    whole.sort_indices()
    counts = np.diff(whole.indptr)
    sums = np.asarray(whole.sum(axis=1)).ravel()
    return _core.Target(
        whole.indptr.astype(np.int64),
        whole.indices.astype(np.int32),
        whole.data / np.repeat(sums, counts),
        target.core.mask,
    )
