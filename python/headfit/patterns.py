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

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from headfit import _core
from headfit.errors import InputError, TargetError

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

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

Weights: TypeAlias = Literal["uniform", "random"]
Boundary: TypeAlias = Literal["clip", "wrap"]
Seed: TypeAlias = "int | Sequence[int] | np.random.Generator | np.random.BitGenerator | None"
Pattern: TypeAlias = "sparse.csr_array[np.float64, tuple[int, int]]"
Ints: TypeAlias = "NDArray[np.signedinteger[Any]]"
Floats: TypeAlias = NDArray[np.float64]

_MOST_TOKENS = np.iinfo(np.int32).max
# Temporary arrays of the neighbour search hold about this many entries (of 8 bytes).
_BLOCK_ENTRIES = 1 << 20
# Beyond this many dimensions a KD-tree visits nearly every point anyway.
_TREE_DIMENSIONS = 12


# Arguments ----------------------------------------------------------------------------


def _count(name: str, value: SupportsIndex, least: int, most: int | None = None) -> int:
    """`value` as an int within its bounds, or an InputError that names it."""
    expected = f"an integer of at least {least}" if most is None else f"{least} to {most}"
    try:
        count = operator.index(value)
    except TypeError:
        raise InputError(f"{name}: expected {expected}, got {value!r}") from None
    if isinstance(value, bool) or count < least or (most is not None and count > most):
        raise InputError(f"{name}: expected {expected}, got {value!r}")
    return count


def _tokens(n: SupportsIndex) -> int:
    return _count("n", n, 1, _MOST_TOKENS)


def _choice(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        listed = " or ".join(repr(choice) for choice in allowed)
        raise InputError(f"{name}: expected {listed}, got {value!r}")
    return value


def _positive(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name}: expected a finite number above 0, got {value!r}")
    return number


@dataclass(frozen=True)
class _Style:
    """How the nonzeros of a pattern get their weights; the generator draws supports too."""

    weights: str
    gamma: float
    rng: np.random.Generator

    @classmethod
    def of(
        cls,
        weights: str | None,
        gamma: float,
        rng: Seed,
        allowed: Sequence[str] = ("uniform", "random"),
    ) -> _Style:
        try:
            ratio = float(gamma)
        except (TypeError, ValueError):
            ratio = math.nan
        if not (math.isfinite(ratio) and ratio >= 1):
            raise InputError(f"gamma: expected a finite number of at least 1, got {gamma!r}")
        if weights is None:
            weights = "random" if ratio > 1 else "uniform"
        _choice("weights", weights, allowed)
        try:
            generator = np.random.default_rng(rng)
        except (TypeError, ValueError) as error:
            raise InputError(f"rng: expected a seed or a Generator, got {rng!r}") from error
        return cls(weights, ratio, generator)

    @property
    def log_cap(self) -> float:
        # A hair below log(gamma): no rounding later on takes a ratio above gamma.
        return max(0.0, math.log(self.gamma) - 2.0**-48 * (1.0 + math.log(self.gamma)))


# From places to a weighted matrix -----------------------------------------------------


def _weighted(
    starts: Ints, columns: Ints, n: int, style: _Style, log_weights: Floats | None = None
) -> Pattern:
    """The matrix with the given sorted columns a row, each row weighted to a sum of one."""
    counts = np.diff(starts)
    if not counts.all():
        row = int(np.argmin(counts != 0))
        raise TargetError(f"row {row} attends to nothing: expected at least one column in a row")
    if log_weights is None and style.weights == "random":
        log_weights = style.rng.uniform(0.0, style.log_cap, columns.size)
    if log_weights is None:
        values = np.repeat(1.0 / counts, counts)
    else:
        values = np.exp(log_weights)
        values /= np.repeat(np.add.reduceat(values, starts[:-1]), counts)
    small = max(columns.size, n) <= _MOST_TOKENS
    index = np.int32 if small else np.int64
    matrix = sparse.csr_array(
        (values, columns.astype(index, copy=False), starts.astype(index, copy=False)), shape=(n, n)
    )
    matrix.has_canonical_format = True
    return matrix


def _from_rows(columns: Ints, n: int, style: _Style) -> Pattern:
    """The pattern whose row ``i`` holds ``columns[i]``, in any order.

    Columns outside ``0 ... n-1`` are left out and repeated ones merged; a row that this
    leaves empty attends to itself.
    """
    columns = np.where((columns >= 0) & (columns < n), columns, n)
    columns.sort(axis=1)
    lonely = columns[:, 0] == n
    columns[lonely, 0] = np.flatnonzero(lonely)
    keep = columns < n
    keep[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    return _weighted(_starts(keep.sum(axis=1)), columns[keep], n, style)


def _from_edges(rows: Ints, columns: Ints, n: int, style: _Style) -> Pattern:
    """The pattern with an entry at each (row, column); repeated ones are merged."""
    places = np.unique(rows.astype(np.int64) * n + columns)
    counts = np.bincount(places // n, minlength=n)
    return _weighted(_starts(counts), places % n, n, style)


def _starts(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _reach(n: int, offsets: Ints, boundary: str) -> Ints:
    """``i + offset`` for every row ``i``, wrapped or left outside for _from_rows to drop."""
    columns = np.arange(n)[:, None] + offsets
    return columns % n if boundary == "wrap" else columns


def _diagonal_or_nothing(n: int, self_loops: bool) -> Ints:
    return (np.arange(n) if self_loops else np.full(n, -1))[:, None]


_BOUNDARIES = ("clip", "wrap")


# Random ---------------------------------------------------------------------------------


def random_regular(
    n: int, k: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Exactly `k` random nonzeros in every row and in every column.

    `k` random permutations, with repeated places exchanged away at random (for
    ``k > n/2`` the places left free are drawn so). Close to uniform over all such
    patterns, not exactly so. Self-loops occur as chance has it, `k` of them on average;
    there is no boundary.

    Parameters
    ----------
    n : int
        The number of tokens.
    k : int
        The nonzeros of each row and each column, 1 to `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.random_regular(1000, k=4, gamma=2.0, rng=0)
    >>> set(A.count_nonzero(axis=0).tolist()), set(A.count_nonzero(axis=1).tolist())
    ({4}, {4})
    """
    n = _tokens(n)
    k = _count("k", k, 1, n)
    style = _Style.of(weights, gamma, rng)
    columns = _regular_columns(n, k, style)
    return _weighted(np.arange(0, n * k + 1, k), columns.ravel(), n, style)


def _regular_columns(n: int, k: int, style: _Style) -> NDArray[np.int32]:
    seed = int(style.rng.integers(2**64, dtype=np.uint64))
    return cast("NDArray[np.int32]", _core.random_regular(n, k, seed))


def permutation(
    n: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Each token attends to one other token, each token is attended to once.

    A uniformly random permutation matrix. Self-loops (fixed points) occur, one on
    average; there is no boundary.

    Parameters
    ----------
    n : int
        The number of tokens.
    weights, gamma, rng
        The one weight of a row is 1 whatever they say; `rng` draws the permutation.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.permutation(4, rng=0).toarray().sum(axis=0)
    array([1., 1., 1., 1.])
    """
    n = _tokens(n)
    style = _Style.of(weights, gamma, rng)
    return _weighted(np.arange(n + 1), style.rng.permutation(n), n, style)


# Along the sequence -----------------------------------------------------------------------


def band(
    n: int,
    width: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to itself and to `width` neighbours on each side.

    Row ``i`` holds the columns with ``|i - j| <= width``: ``2 * width + 1`` of them, the
    self-loop among them.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How far a token sees on each side, 0 or more.
    boundary : {"clip", "wrap"}
        At the ends, leave out what lies outside, or go on at the other end (exactly
        ``min(2 * width + 1, n)`` a row and a column).
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.band(4, width=1).toarray().round(2)
    array([[0.5 , 0.5 , 0.  , 0.  ],
           [0.33, 0.33, 0.33, 0.  ],
           [0.  , 0.33, 0.33, 0.33],
           [0.  , 0.  , 0.5 , 0.5 ]])
    """
    return dilated(n, width, 1, boundary=boundary, weights=weights, gamma=gamma, rng=rng)


def causal_band(
    n: int, width: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Each token attends to itself and to the `width` tokens before it.

    Row ``i`` holds the columns with ``0 <= i - j <= width``: the lower half of `band`.
    Clipped at the start of the sequence; every token has its self-loop.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How far back a token sees, 0 or more.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.causal_band(3, width=1).toarray()
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    """
    n = _tokens(n)
    reach = min(_count("width", width, 0), n - 1)
    style = _Style.of(weights, gamma, rng)
    return _from_rows(_reach(n, np.arange(-reach, 1), "clip"), n, style)


def dilated(
    n: int,
    width: int,
    dilation: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """A band with gaps: `width` tokens on each side, `dilation` apart.

    Row ``i`` holds ``i + dilation * m`` for ``|m| <= width``; the self-loop is among them.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How many tokens a token sees on each side, 0 or more.
    dilation : int
        The distance between them, 1 or more; 1 is `band`.
    boundary : {"clip", "wrap"}
        At the ends, leave out what lies outside, or count modulo `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.dilated(9, width=1, dilation=3)[[4]].indices
    array([1, 4, 7], dtype=int32)
    """
    n = _tokens(n)
    width = _count("width", width, 0)
    dilation = _count("dilation", dilation, 1)
    _choice("boundary", boundary, _BOUNDARIES)
    style = _Style.of(weights, gamma, rng)
    # Further steps fall outside, or wrap to where one has been: steps repeat modulo n.
    if boundary == "wrap":
        dilation %= n
        steps = np.arange(-min(width, n // 2), min(width, n // 2) + 1)
    else:
        reach = min(width, (n - 1) // dilation)
        steps = np.arange(-reach, reach + 1)
    return _from_rows(_reach(n, dilation * steps, boundary), n, style)


def circulant(
    n: int,
    offsets: ArrayLike,
    *,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to the tokens at fixed offsets from it, modulo `n`.

    Row ``i`` holds ``(i + offset) % n``. It wraps; a self-loop is there only if an offset
    is 0 modulo `n`. Offsets equal modulo `n` count once; as many nonzeros in every row
    and column as there are different ones.

    Parameters
    ----------
    n : int
        The number of tokens.
    offsets : sequence of int
        At least one, of any sign and size.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.circulant(5, [-1, 2])[[0]].indices
    array([2, 4], dtype=int32)
    """
    n = _tokens(n)
    steps = np.atleast_1d(np.asarray(offsets))
    if steps.ndim != 1 or steps.size == 0 or not np.issubdtype(steps.dtype, np.integer):
        raise InputError(f"offsets: expected one or more integers, got {offsets!r}")
    style = _Style.of(weights, gamma, rng)
    # Modulo n first: for unsigned or huge offsets, i + offset could overflow.
    return _from_rows(_reach(n, (steps % n).astype(np.int64), "wrap"), n, style)


def strided(
    n: int,
    stride: int,
    *,
    window: int | None = None,
    causal: bool = True,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """The strided pattern of sparse transformers: a local window and every stride-th token.

    Row ``i`` holds the columns with ``0 <= i - j <= window``, or with ``j <= i`` and
    ``i - j`` a multiple of `stride` (Child, Gray, Radford and Sutskever, "Generating long
    sequences with sparse transformers", 2019: both of its heads in one pattern). Clipped
    at the ends; every token has its self-loop. Rows and columns hold up to about
    ``window + n / stride`` nonzeros.

    Parameters
    ----------
    n : int
        The number of tokens.
    stride : int
        The distance between the far tokens, 1 or more.
    window : int, optional
        How far back the window reaches, 0 or more; as far as `stride` unless said.
    causal : bool
        With False, the same tokens ahead as well: ``|i - j|`` in place of ``i - j``.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.strided(12, stride=4, window=2)[[11]].indices
    array([ 3,  7,  9, 10, 11], dtype=int32)
    """
    n = _tokens(n)
    stride = _count("stride", stride, 1)
    reach = min(stride if window is None else _count("window", window, 0), n - 1)
    style = _Style.of(weights, gamma, rng)
    back = np.union1d(np.arange(reach + 1), np.arange(0, n, stride))
    offsets = -back if causal else np.union1d(-back, back)
    return _from_rows(_reach(n, offsets, "clip"), n, style)


def block(
    n: int, size: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Tokens attend within blocks of `size` consecutive tokens.

    Each token attends to its whole block, itself included. The last block is smaller
    where `size` does not divide `n`; nothing wraps.

    Parameters
    ----------
    n : int
        The number of tokens.
    size : int
        The tokens of a block, 1 or more.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.block(3, size=2).toarray()
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 1. ]])
    """
    n = _tokens(n)
    size = min(_count("size", size, 1), n)
    style = _Style.of(weights, gamma, rng)
    first = np.arange(n) // size * size
    return _from_rows(first[:, None] + np.arange(size), n, style)


def bigbird(
    n: int,
    window: int,
    n_global: int,
    n_random: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Window, global and random columns together, as in BigBird.

    Row ``i`` holds the columns with ``|i - j| <= window`` (the self-loop among them), the
    columns ``0 ... n_global - 1``, and `n_random` random ones from `random_regular`; where
    they meet they count once. The first `n_global` rows hold every column. (Zaheer et
    al., "Big Bird: transformers for longer sequences", 2020, token by token instead of
    block by block.)

    The global columns ``0 ... n_global - 1`` break the column bound: each has `n`
    nonzeros, and so have the global rows. Everywhere else rows and columns hold at most
    ``2 * window + 1 + n_global + n_random``.

    Parameters
    ----------
    n : int
        The number of tokens.
    window : int
        How far the window reaches on each side, 0 or more.
    n_global, n_random : int
        The global tokens and the random columns a row, 0 to `n`.
    boundary : {"clip", "wrap"}
        At the ends, the window leaves out what lies outside, or counts modulo `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.bigbird(100, window=1, n_global=2, n_random=3, rng=0)
    >>> per_column = A.count_nonzero(axis=0).tolist()
    >>> per_column[:2], max(per_column[2:]) <= 2 * 1 + 1 + 2 + 3
    ([100, 100], True)
    """
    n = _tokens(n)
    reach = min(_count("window", window, 0), n - 1)
    n_global = _count("n_global", n_global, 0, n)
    n_random = _count("n_random", n_random, 0, n)
    _choice("boundary", boundary, _BOUNDARIES)
    style = _Style.of(weights, gamma, rng)
    near = _reach(n, np.arange(-reach, reach + 1), boundary)
    far = _regular_columns(n, n_random, style) if n_random else np.empty((n, 0), np.int32)
    shared = np.broadcast_to(np.arange(n_global), (n, n_global))
    columns = np.hstack([near, shared, far])[n_global:]
    rows = np.repeat(np.arange(n_global, n), columns.shape[1])
    flat = columns.ravel()
    inside = (flat >= 0) & (flat < n)
    all_rows = np.repeat(np.arange(n_global), n)
    all_columns = np.tile(np.arange(n), n_global)
    return _from_edges(
        np.concatenate([all_rows, rows[inside]]),
        np.concatenate([all_columns, flat[inside]]),
        n,
        style,
    )


# Shapes -----------------------------------------------------------------------------------


def grid2d(
    height: int,
    width: int,
    *,
    diagonals: bool = False,
    boundary: Boundary = "clip",
    self_loops: bool = False,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Tokens on a grid attend to their neighbours.

    Token ``r * width + c`` is the cell in row ``r`` and column ``c`` of the picture; it
    attends to the cells above, below, left and right of it.

    Parameters
    ----------
    height, width : int
        The size of the grid; ``n = height * width``.
    diagonals : bool
        Attend to the four diagonal neighbours as well.
    boundary : {"clip", "wrap"}
        At the rim, fewer neighbours, or those on the opposite side (a torus).
    self_loops : bool
        Whether a token attends to itself. A grid of one cell has nothing else.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.grid2d(3, 3)[[4]].indices
    array([1, 3, 5, 7], dtype=int32)
    """
    height = _count("height", height, 1, _MOST_TOKENS)
    width = _count("width", width, 1, _MOST_TOKENS // height)
    _choice("boundary", boundary, _BOUNDARIES)
    style = _Style.of(weights, gamma, rng)
    n = height * width
    steps = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c])
    if not diagonals:
        steps = steps[(steps == 0).any(axis=1)]
    down = np.arange(height).repeat(width)[:, None] + steps[:, 0]
    along = np.tile(np.arange(width), height)[:, None] + steps[:, 1]
    if boundary == "wrap":
        down, along = down % height, along % width
    columns = down * width + along
    # On a torus one cell wide or high, a step comes back to where it started.
    outside = (down < 0) | (down >= height) | (along < 0) | (along >= width)
    columns[outside | (columns == np.arange(n)[:, None])] = -1
    return _from_rows(np.hstack([columns, _diagonal_or_nothing(n, self_loops)]), n, style)


def tree(
    n: int,
    arity: int = 2,
    *,
    self_loops: bool = False,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Tokens in a tree attend to their parent and to their children.

    Token 0 is the root; the children of token ``i`` are ``arity * i + 1`` to
    ``arity * i + arity``, as far as there are so many tokens. At most ``arity + 1``
    nonzeros in a row and in a column.

    Parameters
    ----------
    n : int
        The number of tokens.
    arity : int
        The children of a token, 1 or more; 1 gives a path.
    self_loops : bool
        Whether a token attends to itself. A single token has nothing else.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.tree(7)[[1]].indices
    array([0, 3, 4], dtype=int32)
    """
    n = _tokens(n)
    arity = min(_count("arity", arity, 1), n)
    style = _Style.of(weights, gamma, rng)
    child = np.arange(1, n)
    parent = (child - 1) // arity
    alone = np.arange(n) if self_loops or n == 1 else np.empty(0, np.int64)
    rows = np.concatenate([child, parent, alone])
    return _from_edges(rows, np.concatenate([parent, child, alone]), n, style)


def butterfly(
    n: int,
    *,
    stages: Iterable[int] | None = None,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Tokens attend to themselves and across the strides of a fast Fourier transform.

    Row ``i`` holds ``i`` and ``i XOR 2**s`` for every stage ``s``: the support of the sum
    of the butterfly factors (a "flat butterfly"), ``1 + log2(n)`` nonzeros a row and a
    column. One stage alone is one butterfly factor, two a row. Where `n` is no power of
    two, partners beyond the end are left out.

    Parameters
    ----------
    n : int
        The number of tokens.
    stages : iterable of int, optional
        Which stages, each with ``2**s < n``; all of them unless said.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.butterfly(8)[[5]].indices
    array([1, 4, 5, 7], dtype=int32)
    >>> patterns.butterfly(8, stages=[1])[[5]].indices
    array([5, 7], dtype=int32)
    """
    n = _tokens(n)
    total = (n - 1).bit_length()
    if stages is None:
        chosen = list(range(total))
    else:
        listed = list(stages) if isinstance(stages, Iterable) else [stages]
        chosen = [_count("stages", stage, 0, total - 1) for stage in listed]
    return _flips(n, chosen, True, _Style.of(weights, gamma, rng))


def hypercube(
    n: int,
    *,
    self_loops: bool = False,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Tokens on the corners of a hypercube attend along its edges.

    Row ``i`` holds ``i XOR 2**s`` for every bit ``s``: ``log2(n)`` nonzeros a row and a
    column. Where `n` is no power of two, corners beyond the end are left out.

    Parameters
    ----------
    n : int
        The number of tokens.
    self_loops : bool
        Whether a token attends to itself; `butterfly` then. A single token has nothing
        else.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.hypercube(8)[[5]].indices
    array([1, 4, 7], dtype=int32)
    """
    n = _tokens(n)
    bits = range((n - 1).bit_length())
    return _flips(n, bits, self_loops, _Style.of(weights, gamma, rng))


def _flips(n: int, bits: Sequence[int], self_loops: bool, style: _Style) -> Pattern:
    flipped = np.arange(n)[:, None] ^ (np.int64(1) << np.array(bits, dtype=np.int64))
    return _from_rows(np.hstack([flipped, _diagonal_or_nothing(n, self_loops)]), n, style)


# What heads of real models do -------------------------------------------------------------


def previous_token(
    n: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to the one before it.

    Parameters
    ----------
    n : int
        The number of tokens.
    boundary : {"clip", "wrap"}
        Token 0 has nothing before it: it attends to itself, the only self-loop (and
        column 0 has two nonzeros), or with "wrap" to the last token (a cyclic shift).
    weights, gamma, rng
        The one weight of a row is 1 whatever they say.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.previous_token(4).indices
    array([0, 0, 1, 2], dtype=int32)
    """
    n = _tokens(n)
    _choice("boundary", boundary, _BOUNDARIES)
    style = _Style.of(weights, gamma, rng)
    return _from_rows(_reach(n, np.array([-1]), boundary), n, style)


def induction(
    tokens: ArrayLike,
    *,
    which: Literal["latest", "all"] = "latest",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to what followed the same token before: an induction head.

    Row ``i`` holds ``p + 1`` for the positions ``p < i`` with ``tokens[p] == tokens[i]``.
    A token not seen before attends to itself. Causal: ``p + 1 <= i``, and a token that
    repeats its predecessor attends to itself that way. Columns hold at most two nonzeros
    with "latest"; with "all" there is no column bound.

    Parameters
    ----------
    tokens : sequence
        One label a position: integers, strings, or a string of characters.
    which : {"latest", "all"}
        The latest earlier occurrence, or all of them (a token that occurs ``c`` times
        makes about ``c**2 / 2`` nonzeros).
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.induction("abcab").indices
    array([0, 1, 2, 1, 2], dtype=int32)
    """
    labels = np.asarray(list(tokens) if isinstance(tokens, str) else tokens)
    if labels.ndim != 1 or labels.size == 0:
        raise InputError(
            f"tokens: expected a sequence of one or more labels, got shape {labels.shape}"
        )
    _choice("which", which, ("latest", "all"))
    style = _Style.of(weights, gamma, rng)
    n = labels.size
    try:
        values, ids = np.unique(labels, return_inverse=True)
    except TypeError:
        raise InputError("tokens: expected labels that can be sorted, got mixed types") from None
    order = np.argsort(ids, kind="stable")  # the positions of each token, in turn
    first = _starts(np.bincount(ids, minlength=values.size))[ids[order]]
    seen = np.arange(n) - first  # how often the token at order[a] occurred before
    taken = seen if which == "all" else np.minimum(seen, 1)
    rows = order.repeat(taken)
    # The a-th position in order takes the `taken` entries right before it in order.
    back = np.arange(rows.size) - np.repeat(_starts(taken)[:-1], taken) + 1
    columns = order[np.arange(n).repeat(taken) - back] + 1
    unseen = order[seen == 0]
    return _from_edges(np.concatenate([rows, unseen]), np.concatenate([columns, unseen]), n, style)


# From data --------------------------------------------------------------------------------


def from_graph(
    graph: Any,
    *,
    self_loops: bool | None = None,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to its (out-)neighbours in a graph.

    Nonzero entries of the adjacency are edges; their values and the edge data of a graph
    are ignored, parallel edges count once. (To keep values as weights, normalise the rows
    yourself: any row-stochastic matrix is a target.) There is no boundary.

    Parameters
    ----------
    graph : networkx graph, or sparse or dense square matrix
        A networkx graph, whose nodes are taken in its own order and whose undirected
        edges go both ways; or an adjacency matrix, row ``i`` attending to column ``j``.
    self_loops : bool, optional
        True gives every token a self-loop, False removes all of them; unless said they
        stay as the graph has them.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Raises
    ------
    TargetError
        If a token is left without neighbours; ``self_loops=True`` prevents it.

    Examples
    --------
    >>> import numpy as np
    >>> from headfit import patterns
    >>> patterns.from_graph(np.array([[0, 2, 1], [1, 0, 0], [1, 0, 0]])).toarray()
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ],
           [1. , 0. , 0. ]])
    """
    style = _Style.of(weights, gamma, rng)
    rows, columns, n = _edges_of(graph)
    if self_loops is not None:
        proper = rows != columns
        loops = np.arange(n if self_loops else 0)
        rows = np.concatenate([rows[proper], loops])
        columns = np.concatenate([columns[proper], loops])
    counts = np.bincount(rows, minlength=n)
    if not counts.all():
        raise TargetError(
            f"graph: expected a neighbour for every token, got none in row "
            f"{int(np.argmin(counts))} (self_loops=True gives each token itself)"
        )
    return _from_edges(rows, columns, n, style)


def _edges_of(graph: Any) -> tuple[Ints, Ints, int]:
    adjacency = graph
    if hasattr(graph, "adj") and hasattr(graph, "is_directed"):
        # Only here: nobody without a graph object needs it.
        import networkx  # type: ignore[import-untyped,import-not-found,unused-ignore]

        if len(graph) == 0:
            raise InputError("graph: expected at least one node, got none")
        adjacency = networkx.to_scipy_sparse_array(graph, dtype=np.int64, weight=None)
    if not sparse.issparse(adjacency):
        adjacency = np.asarray(adjacency)
    if adjacency.dtype.kind not in "biuf":
        raise InputError(
            f"graph: expected a networkx graph or a matrix of numbers, got {type(graph).__name__}"
        )
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1] or adjacency.shape[0] == 0:
        raise InputError(f"graph: expected a square matrix, got shape {adjacency.shape}")
    # Summed first: entries at one place that cancel are no edge, as in the dense matrix.
    matrix = sparse.csr_array(adjacency, copy=True)
    matrix.sum_duplicates()
    bad = np.flatnonzero(np.isnan(matrix.data))
    edges = matrix.tocoo()
    if bad.size:
        raise InputError(f"graph: expected numbers, got NaN in row {edges.coords[0][bad[0]]}")
    kept = edges.data != 0
    rows, columns = (place[kept].astype(np.int64) for place in edges.coords)
    return rows, columns, matrix.shape[0]


def digits_knn(*, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None) -> Pattern:
    """The nearest-neighbour graph of 1,797 handwritten digits, shipped with the package.

    The images of ``sklearn.datasets.load_digits``; each attends to 8 others, nearest
    first as in `knn`, and at most 16 attend to it. No self-loops, no boundary. Origin and
    licence are in ``headfit/data/README.md``.

    Parameters
    ----------
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.digits_knn()
    >>> A.shape, A.nnz
    ((1797, 1797), 14376)
    """
    style = _Style.of(weights, gamma, rng)
    file = resources.files("headfit").joinpath("data", "digits_knn.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
        return _weighted(data["indptr"], data["indices"], int(data["shape"][0]), style)


def knn(
    points: ArrayLike,
    k: int,
    per_column: int | None = None,
    *,
    on_short: Literal["raise", "fewer"] = "raise",
    bandwidth: float | None = None,
    weights: Literal["uniform", "random", "gaussian"] | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each point attends to its `k` nearest other points.

    Exact Euclidean neighbours. A point never attends to itself, though it does to others
    at the same place. Equal distances are decided by the smaller column index, so the
    same points give the same pattern. There is no boundary.

    Parameters
    ----------
    points : array_like, shape (n, dimensions) or (n,)
        The points, finite numbers.
    k : int
        The neighbours of each point, 1 to ``n - 1``.
    per_column : int, optional
        How many points may attend to one point; without it, hubs may form. The pairs are
        then taken greedily over all points: the closest pair first (of equal ones the
        smaller row, then column), each taken unless its row has `k` or its column
        `per_column` already. A point whose nearest are taken goes on to further ones.
    on_short : {"raise", "fewer"}
        What to do when the cap leaves a point with fewer than `k` although all others
        were tried: raise a TargetError that names its row, or keep the fewer.
    bandwidth : float, optional
        The standard deviation of the Gaussian weights, in the unit of the points; for
        each point the distance to the furthest neighbour it got, unless said.
    weights : {"uniform", "random", "gaussian"}, optional
        As in the module; "gaussian" is ``exp(-distance**2 / (2 * bandwidth**2))``, never
        below ``1/gamma`` of the largest in its row. With the default ``gamma=1`` that
        makes equal weights: set `gamma` too.
    gamma, rng
        The largest ratio of two weights in a row, and the draw for random ones.

    Raises
    ------
    TargetError
        If a row is left short and `on_short` is "raise", or is left with nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from headfit import patterns
    >>> points = np.array([0.0, 1.0, 3.0, 4.0])
    >>> patterns.knn(points, k=1).indices
    array([1, 0, 3, 2], dtype=int32)
    >>> patterns.knn(points, k=2, gamma=8.0, weights="gaussian")[[0]].data.round(3)
    array([0.609, 0.391])
    """
    places = _points(points)
    n = len(places)
    if n < 2:
        raise InputError(f"points: expected at least 2 of them, got {n}")
    k = _count("k", k, 1, n - 1)
    cap = n if per_column is None else _count("per_column", per_column, 1)
    _choice("on_short", on_short, ("raise", "fewer"))
    style = _Style.of(weights, gamma, rng, ("uniform", "random", "gaussian"))
    if bandwidth is not None:
        _positive("bandwidth", bandwidth)
    if cap < k and on_short == "raise":
        raise InputError(f"per_column: expected at least k = {k}, got {cap} (all rows need k)")
    neighbours = _Neighbours(places)
    pairs = _capped(neighbours, k, cap) if cap < n - 1 else neighbours.nearest(np.arange(n), k)
    return _knn_pattern(pairs, n, k, on_short, bandwidth, style)


def _points(points: ArrayLike) -> Floats:
    try:
        places = np.array(points, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        raise InputError("points: expected an array of numbers") from None
    if places.ndim == 1:
        places = places[:, None]
    if places.ndim != 2 or places.shape[1] == 0:
        raise InputError(f"points: expected shape (n, dimensions), got {places.shape}")
    finite = np.isfinite(places).all(axis=1)
    if not finite.all():
        raise InputError(f"points: expected finite numbers, got row {int(np.argmin(finite))}")
    with np.errstate(over="ignore"):
        if places.size and not np.isfinite(np.square(np.ptp(places, axis=0)).sum()):
            raise InputError("points: expected distances whose squares are finite numbers")
    return places


def _knn_pattern(
    pairs: _Pairs, n: int, k: int, on_short: str, bandwidth: float | None, style: _Style
) -> Pattern:
    counts = np.bincount(pairs.rows, minlength=n)
    short = np.flatnonzero(counts < (k if on_short == "raise" else 1))
    if short.size:
        row = int(short[0])
        raise TargetError(
            f"per_column: row {row} finds {counts[row]} free columns, expected "
            f"{k if on_short == 'raise' else 'at least 1'} ({short.size} rows are short; "
            f"a larger per_column helps" + (', or on_short="fewer")' if counts[row] else ")")
        )
    starts = _starts(counts)
    log_weights = None
    if style.weights == "gaussian":
        log_weights = _gaussian(pairs.squares, starts, bandwidth, style)
    order = np.lexsort((pairs.columns, pairs.rows))
    if log_weights is not None:
        log_weights = log_weights[order]
    return _weighted(starts, pairs.columns[order], n, style, log_weights)


def _gaussian(squares: Floats, starts: Ints, bandwidth: float | None, style: _Style) -> Floats:
    """Logarithms of the weights of pairs grouped by row, from 0 down to -log(gamma)."""
    counts = np.diff(starts)
    least = np.minimum.reduceat(squares, starts[:-1]).repeat(counts)
    if bandwidth is None:
        variance = np.maximum.reduceat(squares, starts[:-1]).repeat(counts)
    else:
        variance = np.full(squares.shape, float(bandwidth) ** 2)
    excess = squares - least
    with np.errstate(over="ignore", divide="ignore"):
        # Points all at one place are equally near, whatever the bandwidth.
        depth = np.divide(excess, 2 * variance, out=np.zeros_like(excess), where=excess > 0)
    return np.asarray(-np.minimum(depth, style.log_cap))


# Nearest neighbours -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a row and a column with their squared distances, grouped by row."""

    rows: Ints
    columns: Ints
    squares: Floats

    def keep(self, mask: NDArray[np.bool_]) -> _Pairs:
        return _Pairs(self.rows[mask], self.columns[mask], self.squares[mask])

    @staticmethod
    def join(parts: Sequence[_Pairs]) -> _Pairs:
        return _Pairs(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.squares for part in parts]),
        )


class _Neighbours:
    """The nearest points of any point, in the order (squared distance, index).

    The squares that decide are those of one function, `_squares`, whatever search brings
    the candidates: ties, and near ties that two formulas would round apart, come out the
    same for every search and every number of candidates.
    """

    def __init__(self, points: Floats) -> None:
        self.points = points
        self.tree: cKDTree | None = None
        if points.shape[1] <= _TREE_DIMENSIONS:
            from scipy.spatial import cKDTree

            self.tree = cKDTree(points)

    def nearest(self, rows: Ints, m: int, limits: _Limits | None = None) -> _Pairs:
        """The `m` nearest of each row, nearest first, without those beyond the limits."""
        m = min(m, len(self.points) - 1)
        asked = min(len(self.points), m + 8)
        parts = []
        for some in self._blocks(rows, asked):
            columns, squares = self._block(some, m, asked)
            part = _Pairs(some.repeat(m), columns.ravel(), squares.ravel())
            parts.append(part if limits is None else part.keep(limits.admit(part)))
        return _Pairs.join(parts)

    def _use_tree(self, asked: int) -> bool:
        # A tree that is asked for much of what it holds only adds to the work.
        return self.tree is not None and asked < max(32, len(self.points) // 16)

    def _blocks(self, rows: Ints, asked: int) -> Iterator[Ints]:
        width = asked if self._use_tree(asked) else len(self.points)
        height = max(1, _BLOCK_ENTRIES // width)
        for start in range(0, len(rows), height):
            yield rows[start : start + height]

    def _block(self, rows: Ints, m: int, asked: int) -> tuple[Ints, Floats]:
        n = len(self.points)
        found, furthest = self._candidates(rows, asked)
        exact = self._squares(rows, found)
        exact[found == rows[:, None]] = np.inf  # oneself, where found at all
        order = np.lexsort((found, exact))[:, :m]
        columns = np.take_along_axis(found, order, axis=1)
        squares = np.take_along_axis(exact, order, axis=1)
        if asked < n:
            # What was not found is at least as far as the furthest found, up to rounding:
            # a row whose last choice is nearer is settled, the others ask for more.
            unsettled = np.flatnonzero(squares[:, -1] * (1 + 1e-9) >= furthest)
            more = min(n, 4 * asked)
            for some in self._blocks(unsettled, more):
                columns[some], squares[some] = self._block(rows[some], m, more)
        return columns, squares

    def _candidates(self, rows: Ints, asked: int) -> tuple[Ints, Floats]:
        """The `asked` nearest of each row, itself mostly among them, and how far they go."""
        n = len(self.points)
        if self.tree is not None and self._use_tree(asked):
            distances, found = map(np.asarray, self.tree.query(self.points[rows], k=asked))
            return found, np.square(distances[:, -1])
        if asked == n:
            return np.broadcast_to(np.arange(n), (len(rows), n)), np.full(len(rows), np.inf)
        from scipy.spatial.distance import cdist

        squares = cdist(self.points[rows], self.points, "sqeuclidean")
        found = np.argpartition(squares, asked - 1, axis=1)[:, :asked]
        return found, np.take_along_axis(squares, found, axis=1).max(axis=1)

    def _squares(self, rows: Ints, columns: Ints) -> Floats:
        """Squared distances, one coordinate after the other: symmetric to the last bit."""
        total = np.zeros(columns.shape)
        for coordinate in self.points.T:
            total += np.square(coordinate[columns] - coordinate[rows, None])
        return total


def _capped(neighbours: _Neighbours, k: int, cap: int) -> _Pairs:
    """The greedy choice of pairs, nearest first, `k` a row and `cap` a column at most.

    Rows and columns rank pairs by one common order, (distance, row, column), and so the
    greedy choice is the one stable matching, which deferred acceptance finds in rounds
    instead of pair by pair: every row proposes its best `k` pairs that are left, every
    column keeps its best `cap` proposals and refuses all that is worse, for ever. Rows
    that run out ask the search for further candidates.
    """
    n = len(neighbours.points)
    asked = np.full(n, min(n - 1, 2 * k))
    pool = neighbours.nearest(np.arange(n), 2 * k)
    while True:
        pool = _settle(pool, n, k, cap)
        counts = np.bincount(pool.rows, minlength=n)
        short = np.flatnonzero((counts < k) & (asked < n - 1))
        if short.size == 0:
            return pool.keep(_rank_in_group(pool.rows) < k)
        more = min(n - 1, 4 * int(asked[short].max()))
        asked[short] = more
        fresh = neighbours.nearest(short, more, _limits(pool, n, k, cap))
        pool = _Pairs.join([pool.keep(~np.isin(pool.rows, short)), fresh])


def _settle(pool: _Pairs, n: int, k: int, cap: int) -> _Pairs:
    """Rounds of proposals and refusals until no column refuses any pair."""
    order = np.lexsort((pool.columns, pool.squares, pool.rows))
    pool = _Pairs(pool.rows[order], pool.columns[order], pool.squares[order])
    by_column = np.lexsort((pool.rows, pool.squares, pool.columns))
    while True:
        proposed = _rank_in_group(pool.rows) < k
        columns = pool.columns[by_column]
        refused = _rank_in_group(columns, proposed[by_column]) >= cap
        if not refused.any():
            return pool
        stays = np.ones(pool.rows.size, dtype=np.bool_)
        stays[by_column[refused]] = False
        pool = pool.keep(stays)
        # The order by column outlives the removal, with places renumbered.
        by_column = (np.cumsum(stays) - 1)[by_column[~refused]]


def _rank_in_group(groups: Ints, counted: NDArray[np.bool_] | None = None) -> Ints:
    """How many counted entries of the same group come before; equal groups are adjacent."""
    before = np.arange(groups.size) if counted is None else np.cumsum(counted) - counted
    new = np.ones(groups.size, dtype=np.bool_)
    new[1:] = groups[1:] != groups[:-1]
    return np.asarray(before - before[new][np.cumsum(new) - 1])


@dataclass(frozen=True)
class _Limits:
    """The worst pair that each full column keeps; infinitely bad where it has room."""

    squares: Floats
    rows: Ints

    def admit(self, pairs: _Pairs) -> NDArray[np.bool_]:
        square, row = self.squares[pairs.columns], self.rows[pairs.columns]
        tied = (pairs.squares == square) & (pairs.rows <= row)
        return np.asarray((pairs.squares < square) | tied)


def _limits(pool: _Pairs, n: int, k: int, cap: int) -> _Limits:
    # Columns only become harder to please: what they refuse now they would refuse later.
    kept = pool.keep(_rank_in_group(pool.rows) < k)
    order = np.lexsort((kept.rows, kept.squares, kept.columns))
    columns = kept.columns[order]
    last = _rank_in_group(columns) == cap - 1
    limits = _Limits(np.full(n, np.inf), np.zeros(n, dtype=np.int64))
    limits.squares[columns[last]] = kept.squares[order][last]
    limits.rows[columns[last]] = kept.rows[order][last]
    return limits
