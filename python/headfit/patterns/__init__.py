"""Families of target attention patterns: sparse matrices of who attends to whom.

Every function returns a row-stochastic ``scipy.sparse.csr_array``: float64 values,
sorted column indices without duplicates (int32 if they fit), no empty row. Row ``i``
contains the tokens that token ``i`` attends to. Making one takes O(nonzeros) time and
memory, up to the sorting of nonzeros, unless the function says otherwise. Arguments that
are not as described raise an ``InputError``, and so does a pattern that does not fit in
memory. Each function takes the same three keyword arguments:

``weights``
    ``"uniform"``: equal weights in each row. ``"random"``: weights ``exp(u)`` with ``u``
    uniform on ``[0, log(gamma)]``, divided by the sum of their row. None means
    ``"random"`` if ``gamma > 1``, otherwise ``"uniform"``. `knn` has ``"gaussian"`` besides.
``gamma``
    The largest allowed ratio of two nonzeros of a row, 1 to 1e300.
``rng``
    A seed or a ``numpy.random.Generator``, used as in ``numpy.random.default_rng``; 0 by
    default, so that calls repeat. None draws fresh entropy. The support is drawn before the
    weights, so that a seed gives the same support for all kinds of weights.

``width`` is the number of keys in a window, the token itself included, as in the mask
``("window", width)``; ``neighbors`` is how many tokens next to it a token attends to, on each
side that the pattern looks to.

At the ends of the sequence, ``boundary="clip"`` leaves out columns outside
``0 ... n - 1`` and ``boundary="wrap"`` takes them modulo ``n``. A row that would have no
column attends to itself (token 0 of `previous_token`, a grid of one cell); only `from_graph`,
`from_mask` and `knn`, which are given the rows, refuse an empty one.
"""

from headfit._public import attach

__getattr__, __dir__, __all__ = attach(__name__, "patterns/__init__.pyi")
