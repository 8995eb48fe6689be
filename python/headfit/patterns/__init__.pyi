"""Families of target attention patterns: sparse matrices of who attends to whom."""

from headfit.patterns._graphs import (
    butterfly,
    from_graph,
    grid2d,
    hypercube,
    permutation,
    random_regular,
    tree,
)
from headfit.patterns._knn import digits_knn, knn
from headfit.patterns._masks import from_mask
from headfit.patterns._windows import (
    band,
    bigbird,
    block,
    causal_band,
    circulant,
    dilated,
    induction,
    previous_token,
    strided,
    window_global,
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
    "from_mask",
    "grid2d",
    "hypercube",
    "induction",
    "knn",
    "permutation",
    "previous_token",
    "random_regular",
    "strided",
    "tree",
    "window_global",
]
