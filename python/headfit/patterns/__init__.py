"""Target attention patterns: sparse matrices that say who attends to whom.

Every function returns a row-stochastic ``scipy.sparse.csr_array``: float64 values,
sorted column indices without duplicates (int32 where they fit), no empty row. Row ``i``
holds what token ``i`` attends to. Each takes the same three keyword arguments:

``weights``
    ``"uniform"``: equal weights in a row. ``"random"``: weights ``exp(u)`` with ``u``
    uniform on ``[0, log(gamma)]``, divided by the sum of their row. Without it,
    ``"random"`` when ``gamma > 1``, otherwise ``"uniform"``.
``gamma``
    The largest ratio of two nonzeros of a row, at least 1. Equal weights keep any
    ``gamma``.
``rng``
    A seed or a ``numpy.random.Generator``, used as in ``numpy.random.default_rng``;
    None draws fresh entropy. The places of the nonzeros are drawn before their weights:
    one seed gives one support, whatever the weights.

Where a pattern has an edge of the sequence to treat, ``boundary="clip"`` leaves out what
lies outside and ``boundary="wrap"`` counts modulo ``n``. A row that this leaves without
any column attends to itself (token 0 of `previous_token`, a grid of one cell).
"""

from __future__ import annotations

from headfit.patterns._graphs import from_graph
from headfit.patterns._knn import digits_knn, knn
from headfit.patterns._sequences import (
    band,
    bigbird,
    block,
    causal_band,
    circulant,
    dilated,
    induction,
    permutation,
    previous_token,
    random_regular,
    strided,
)
from headfit.patterns._shapes import (
    butterfly,
    grid2d,
    hypercube,
    tree,
)

__all__ = [
    "band",
    "bigbird",
    "block",
    "butterfly",
    "causal_band",
    "circulant",
    "digits_knn",
    "dilated",
    "from_graph",
    "grid2d",
    "hypercube",
    "induction",
    "knn",
    "permutation",
    "previous_token",
    "random_regular",
    "strided",
    "tree",
]


def __dir__() -> list[str]:
    return sorted(__all__)
