"""Attention matrices and questions about them, streamed from queries and keys.

Shapes are those of every function here: Q is (..., n, d), K is (..., m, d), V is
(..., m, dv); leading axes are batch and heads. K (and V) may have no leading axes
(shared by all), or the leading axes of Q with a last one that divides Q's: grouped
queries, where query head h reads key head h // group.

The logits are ``softcap(scale * Q @ K.T) + bias``, and attention is their softmax
over the keys that the mask allows. A row with no key allowed gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._arguments import as_choice, as_flag, as_number, shown
from headfit._arithmetic import standard_arithmetic
from headfit._arrays import (
    FloatArray,
    as_array,
    as_count,
    as_items,
    as_shares,
    as_stack,
    as_stored_array,
    check_between,
    computed_in,
    is_sparse,
    thread_count,
    widened,
)
from headfit._masks import core_mask, same_mask
from headfit._memory import require_memory
from headfit._positions import as_positions
from headfit.errors import InputError

__all__ = [
    "Attention",
    "AttentionStats",
    "attention_apply",
    "attention_logits",
    "attention_matrix",
    "attention_stats",
    "attention_topk",
]

Rows = slice | Sequence[int] | NDArray[np.integer[Any]] | None


@dataclass(frozen=True)
class _Problem:
    """Checked inputs: the core's description of the logits and the shapes around it."""

    logits: _core.Logits
    lead: tuple[int, ...]
    rows: int
    keys: int
    kv_lead: tuple[int, ...]
    dtype: np.dtype[Any]
    inputs: tuple[tuple[str, Any], ...]

    def empty(self, cols: int, dtype: Any = None) -> NDArray[Any]:
        return np.empty((*self.lead, self.rows, cols), dtype or self.dtype)

    def stack(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape((math.prod(self.lead), *array.shape[len(self.lead) :]))


def default_scale(dim: int) -> float:
    """Return 1 / sqrt(dim), the scale that None stands for everywhere."""
    return 1.0 / math.sqrt(dim)


def check_scale(scale: float | None, dim: int) -> float:
    """Return the scale as a finite nonzero float; None means 1 / sqrt(dim)."""
    if dim < 1:
        raise InputError(f"Q and K must have a head size of at least 1; got {dim}")
    if scale is None:
        return default_scale(dim)
    value = as_number(scale, "scale", "be a number or None")
    if not math.isfinite(value) or value == 0:
        raise InputError(f"scale must be finite and nonzero; got {shown(scale)}")
    return value


def _group(q_lead: tuple[int, ...], k_lead: tuple[int, ...]) -> int:
    """Return how many query heads read one key head."""
    if not k_lead:
        return max(1, math.prod(q_lead))
    if len(q_lead) == len(k_lead) and q_lead[:-1] == k_lead[:-1]:
        heads, groups = q_lead[-1], k_lead[-1]
        if groups and heads % groups == 0:
            return max(1, heads // groups)
        if heads == groups:
            return 1
    raise InputError(
        "the leading axes of K must be those of Q, with a number of heads that divides Q's, "
        f"or none; got {k_lead} for {q_lead}"
    )


def _row_numbers(rows: Rows, n: int) -> NDArray[np.int64] | None:
    if rows is None:
        return None
    if isinstance(rows, slice):
        try:
            return np.arange(*rows.indices(n), dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise InputError(f"rows must be a slice of integers; got {shown(rows)}") from error
    numbers = np.atleast_1d(as_array(rows, "rows"))
    if numbers.size == 0:
        return np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise InputError(
            "rows must be a slice or a sequence of integers; "
            f"got shape {numbers.shape} of dtype {numbers.dtype}"
        )
    out_of_range = (numbers < -n) | (numbers >= n)
    if out_of_range.any():
        raise InputError(f"rows must lie in {-n} ... {n - 1}; got {numbers[out_of_range][0]}")
    return np.ascontiguousarray(np.where(numbers < 0, numbers + n, numbers), dtype=np.int64)


def _bias(bias: Any, lead: tuple[int, ...], shape: tuple[int, int], dtype: Any) -> Any:
    if bias is None:
        return None
    array = as_stored_array(bias, "bias", ndim=0)
    if array.dtype == np.float64:
        array = array.astype(dtype, copy=False)
    array = as_items(array)
    try:
        broadcast = np.broadcast_to(array, (*lead, *shape))
    except ValueError as error:
        raise InputError(
            f"bias must broadcast to {(*lead, *shape)}; got shape {array.shape}"
        ) from error
    if not lead:
        return broadcast[np.newaxis]
    if len(lead) == 1:
        return broadcast
    if array.ndim <= 2 or math.prod(array.shape[:-2]) == 1:
        one = array.reshape(array.shape[-2:]) if array.ndim > 2 else array
        return np.broadcast_to(one, (math.prod(lead), *shape))
    # A copy where one of several batch axes is broadcast.
    return broadcast.reshape((math.prod(lead), *shape))


@dataclass(frozen=True)
class LogitOptions:
    """What logits are made with beside queries and keys, as users pass it: `attention_matrix`."""

    scale: float | None = None
    mask: Any = None
    key_lengths: Any = None
    bias: Any = None
    softcap: float | None = None
    position: Any = None


def _problem(Q: Any, K: Any, options: LogitOptions, rows: Rows = None) -> _Problem:
    q, k = as_stored_array(Q, "Q"), as_stored_array(K, "K")
    dtype = computed_in(q, k)
    if q.shape[-1] != k.shape[-1]:
        raise InputError(
            f"Q and K must have the same head size; got {q.shape[-1]} and {k.shape[-1]}"
        )
    if q.shape[-1] == 0:
        raise InputError("Q and K must have a head size of at least 1; got 0")
    if max(q.shape[-2], k.shape[-2]) >= 2**31:
        raise InputError("Q and K must have fewer than 2**31 rows")
    softcap = 0.0
    if options.softcap is not None:
        softcap = check_between(options.softcap, "softcap", 0, math.inf)
    lead, kv_lead = q.shape[:-2], k.shape[:-2]
    group = _group(lead, kv_lead)
    shape = (q.shape[-2], k.shape[-2])
    positions = as_positions(options.position, lead, shape, q.shape[-1], dtype)
    if positions.bias is not None and options.bias is not None:
        raise InputError("bias and the position alibi exclude each other: alibi is a bias")
    numbers = _row_numbers(rows, shape[0])
    logits = _core.Logits(
        as_stack(q),
        as_stack(k),
        group,
        check_scale(options.scale, q.shape[-1]),
        softcap,
        core_mask(options.mask, lead, shape, options.key_lengths),
        _bias(options.bias, lead, shape, dtype) if positions.bias is None else positions.bias,
        numbers,
        positions.table,
        positions.halves,
    )
    count = shape[0] if numbers is None else numbers.size
    read = {"Q": q, "K": k, "bias": options.bias, "mask": options.mask}
    inputs = tuple((name, _memory_of(x, name)) for name, x in read.items())
    return _Problem(logits, lead, count, shape[1], kv_lead, dtype, inputs)


def _memory_of(x: Any, name: str) -> Any:
    """Return an argument as an array on its own memory; None if it is none."""
    return None if x is None or isinstance(x, (str, tuple)) or is_sparse(x) else as_array(x, name)


def _check_out(out: NDArray[Any] | None, problem: _Problem, cols: int) -> NDArray[Any]:
    shape = (*problem.lead, problem.rows, cols)
    if out is None:
        require_memory(math.prod(shape) * problem.dtype.itemsize, f"a result of shape {shape}")
        return problem.empty(cols)
    if (
        not isinstance(out, np.ndarray)
        or out.shape != shape
        or out.dtype != problem.dtype
        or not out.flags.c_contiguous
        or not out.flags.aligned
        or not out.flags.writeable
    ):
        found = f"{type(out).__name__}"
        if isinstance(out, np.ndarray):
            found = (
                f"shape {out.shape} of {out.dtype}, C-contiguous: {out.flags.c_contiguous}, "
                f"aligned: {out.flags.aligned}"
            )
        raise InputError(
            f"out must be a writable, aligned C-contiguous array of shape {shape} and "
            f"{problem.dtype}; got {found}"
        )
    for name, array in problem.inputs:
        if isinstance(array, np.ndarray) and np.may_share_memory(out, array):
            raise InputError(f"out must not share memory with {name}")
    return out


@standard_arithmetic()
def attention_matrix(
    Q: Any,
    K: Any,
    *,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    position: Any = None,
    rows: Rows = None,
    out: NDArray[Any] | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Return the attention matrix softmax(scale * Q @ K.T), or some of its rows.

    Parameters
    ----------
    Q : array_like, shape (..., n, d)
        Queries. float32 is computed in float32, and so are float16 and bfloat16 (of torch,
        ml_dtypes or JAX), which are widened as their rows are read; other real dtypes in
        float64.
    K : array_like, shape (..., m, d)
        Keys; see the module's notes for fewer heads than queries.
    scale : float, optional
        What the products are multiplied by; 1 / sqrt(d) when None.
    mask : optional
        Where attention is allowed. None: everywhere. ``"causal"``: key j for query i where
        j <= i + m - n (bottom-right aligned: the last query sees every key).
        ``("window", w)``: the last w keys up to the causal one; ``("window", (left, right))``:
        that many before and after position i + m - n. A boolean array that broadcasts to
        (..., n, m) or a sparse boolean (n, m) matrix: True where allowed (as in
        ``scaled_dot_product_attention``; ``MultiheadAttention`` has it the other way round).
    key_lengths : array_like of int, optional
        For padded batches: only the first so many keys exist. Broadcasts over the leading
        axes from the left. What lies in padding rows of K is never looked at. "causal" and
        windows stay aligned to m, not to the lengths.
    bias : array_like, optional
        Added to the logits; broadcasts to (..., n, m); -inf masks a position.
    softcap : float, optional
        Logits become softcap * tanh(logits / softcap), before bias and mask.
    position : optional
        Positions that Q and K do not hold yet; key j stands at j, query i at i + m - n.
        ``"rope"`` or ``("rope", base)``: rotary embeddings (Su et al. 2021), neighbouring
        entries as pairs, base 10000; ``"rope-half"``: entries p and p + d/2 as pairs (Llama).
        ``("alibi", slope)`` or one slope for each head: the bias -slope * distance (Press et
        al. 2022); ``"alibi"``: their slopes 2**(-8 h / H) for head h = 1 ... H. For reading
        only: `fit` and `certify` speak of stored queries and keys and know no positions.
    rows : slice or sequence of int, optional
        The rows to compute; nothing else is.
    out : ndarray, optional
        Where to write: C-contiguous, of the result's shape and dtype.
    num_threads : int, optional
        None uses every core. The result does not depend on it.

    Returns
    -------
    ndarray, shape (..., rows, m)
        Rows sum to 1, or are zero where the mask leaves nothing. Given the logits in the
        arrays' dtype, weights are within 4 units in the last place of their exact softmax; 5 where
        the CPU level has no fused multiply-add (`config`: v2).

    Raises
    ------
    InputError
        For shapes, dtypes, masks or arguments that do not fit.
    NonFiniteError
        For NaN or infinity in Q, K or bias, or where a product overflows; names the place.

    Notes
    -----
    Time O(n m d); memory beside the result O(m d) for one key head, plus a block of rows
    for each thread.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q = np.array([[0.0], [1.0]])
    >>> hf.attention_matrix(Q, np.array([[0.0], [np.log(3)]]), scale=1.0)
    array([[0.5 , 0.5 ],
           [0.25, 0.75]])
    """
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position)
    problem = _problem(Q, K, options, rows)
    made = _check_out(out, problem, problem.keys)
    threads = thread_count(num_threads)
    _core.attention_matrix(problem.logits, problem.stack(made), out is None, threads)
    return made


@standard_arithmetic()
def attention_logits(
    Q: Any,
    K: Any,
    *,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    position: Any = None,
    rows: Rows = None,
    out: NDArray[Any] | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Return the logits themselves, -inf where masked: exactly what the softmax sees.

    Parameters, errors and costs are those of `attention_matrix`.

    Returns
    -------
    ndarray, shape (..., rows, m)
        In the arrays' dtype. Each logit differs from the exact scale * q.k by at most
        g |scale| ||q|| ||k|| with g = (d + 2) u / (1 - (d + 2) u), u the unit roundoff
        (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1).

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> hf.attention_logits(np.ones((2, 4)), np.ones((2, 4)), mask="causal")
    array([[  2., -inf],
           [  2.,   2.]])
    """
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position)
    problem = _problem(Q, K, options, rows)
    out = _check_out(out, problem, problem.keys)
    _core.attention_logits(problem.logits, problem.stack(out), thread_count(num_threads))
    return out


@standard_arithmetic()
def attention_topk(
    Q: Any,
    K: Any,
    k: int,
    *,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    position: Any = None,
    values: Literal["weights", "logits"] = "weights",
    renormalize: bool = False,
    num_threads: int | None = None,
) -> sp.csr_array | tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the k largest attention weights of every row, without the matrix.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, num_threads
        As in `attention_matrix`.
    k : int
        How many weights to keep in each row, 1 ... m. Ties go to the lower column.
    values : {"weights", "logits"}
        What is returned of each key that is kept. Logits need no sum over the row: a fifth less
        time.
    renormalize : bool, default False
        Scale what is kept to sum to 1. By default the weights are those of the whole row.

    Returns
    -------
    csr_array, shape (n, m)
        When Q and K are matrices; fewer than k entries where the mask leaves fewer keys.
    indices, values : ndarray, shape (..., n, k)
        When there are leading axes: largest first; where a row has fewer keys, -1 and a weight
        of 0 or a logit of -inf.

    Raises
    ------
    InputError
        If k, `values` or another argument is not as described, or logits are to be renormalized.

    Notes
    -----
    Time O(n m d); memory O((n + m) d + n k), never n m.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> X = np.eye(3) * 4
    >>> hf.attention_topk(X, X, 1, scale=1.0).indices
    array([0, 1, 2], dtype=int32)
    """
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position)
    problem = _problem(Q, K, options)
    k = as_count(k, "k", 1, problem.keys)
    as_choice(values, "values", ("weights", "logits"))
    if as_flag(renormalize, "renormalize") and values == "logits":
        raise InputError("renormalize scales weights; got values='logits'")
    kept = math.prod(problem.lead) * problem.rows * k
    require_memory(kept * (24 if problem.lead else 60), f"the {k} largest weights of every row (k)")
    columns = problem.empty(k, np.int64)
    found = problem.empty(k)
    _core.attention_topk(
        problem.logits,
        problem.stack(columns),
        problem.stack(found),
        values == "logits",
        thread_count(num_threads),
    )
    if renormalize:
        total = found.sum(axis=-1, keepdims=True)
        np.divide(found, total, out=found, where=total > 0)
    if problem.lead:
        return columns, found
    present = columns >= 0
    order = np.argsort(np.where(present, columns, problem.keys), axis=1)
    present = np.take_along_axis(present, order, axis=1)
    offsets = np.concatenate(([0], np.cumsum(present.sum(axis=1))))
    index_dtype = np.int32 if offsets[-1] < 2**31 else np.int64
    return sp.csr_array(
        (
            np.take_along_axis(found, order, axis=1)[present],
            np.take_along_axis(columns, order, axis=1)[present].astype(index_dtype),
            offsets.astype(index_dtype),
        ),
        shape=(problem.rows, problem.keys),
    )


@standard_arithmetic()
def attention_apply(
    Q: Any,
    K: Any,
    V: Any,
    *,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    position: Any = None,
    rows: Rows = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Return attention times values, without the matrix.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, rows, num_threads
        As in `attention_matrix`.
    V : array_like, shape (..., m, dv)
        Values, with the leading axes and rows of K.

    Returns
    -------
    ndarray, shape (..., rows, dv)

    Notes
    -----
    Time O(n m (d + dv)); memory O((n + m) (d + dv)) for one key head. The running softmax is that
    of Milakov and Gimelshein (2018).

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q = K = np.zeros((2, 1))
    >>> hf.attention_apply(Q, K, np.array([[1.0], [3.0]]))
    array([[2.],
           [2.]])
    """
    v = as_stored_array(V, "V")
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position)
    problem = _problem(Q, K, options, rows)
    if v.shape[:-2] != problem.kv_lead or v.shape[-2] != problem.keys:
        raise InputError(
            f"V must have the leading axes and rows of K, {(*problem.kv_lead, problem.keys)}; "
            f"got {v.shape[:-1]}"
        )
    if np.promote_types(computed_in(v), problem.dtype) != problem.dtype:
        raise InputError(f"V must not be wider than Q and K, {problem.dtype}; got {v.dtype}")
    out = _check_out(None, problem, v.shape[-1])
    _core.attention_apply(
        problem.logits, as_stack(v), problem.stack(out), thread_count(num_threads)
    )
    return out


@dataclass(frozen=True, repr=False)
class AttentionStats:
    """What `attention_stats` measures; arrays have shape (..., n), float64.

    Attributes
    ----------
    entropy : ndarray
        Of each row's weights, in nats.
    max_weight : ndarray
        The largest weight of each row.
    effective_support : ndarray
        exp(entropy): among how many keys a row attends, in effect.
    log_sum : ndarray
        log of the sum of exp(logit); -inf for a row with no key.
    shares : tuple of float
        The shares that were asked for.
    keys_for_share : ndarray of int64, shape (..., n, len(shares))
        The fewest keys that hold each share of a row's mass.
    """

    entropy: NDArray[np.float64]
    max_weight: NDArray[np.float64]
    effective_support: NDArray[np.float64]
    log_sum: NDArray[np.float64]
    shares: tuple[float, ...]
    keys_for_share: NDArray[np.int64]

    def __repr__(self) -> str:
        if self.entropy.size == 0:
            return "AttentionStats(no rows)"
        held = ", ".join(
            f"{share:.0%} of the mass in {np.median(self.keys_for_share[..., i]):g}"
            for i, share in enumerate(self.shares)
        )
        return (
            f"AttentionStats({self.entropy.size} rows; medians: entropy "
            f"{np.median(self.entropy):.3g} nats, largest weight {np.median(self.max_weight):.3g}, "
            f"effective support {np.median(self.effective_support):.3g} keys"
            + (f", {held} keys)" if held else ")")
        )


@standard_arithmetic()
def attention_stats(
    Q: Any,
    K: Any,
    *,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    position: Any = None,
    shares: float | Sequence[float] = (0.9,),
    num_threads: int | None = None,
) -> AttentionStats:
    """Return entropy, largest weight and effective support of every row.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, num_threads
        As in `attention_matrix`.
    shares : float or sequence of float in (0, 1], default (0.9,)
        For each share, count the fewest keys that hold it; empty to save that work.

    Returns
    -------
    AttentionStats
        Zeros (and log_sum -inf) for a row that the mask leaves empty.

    Notes
    -----
    Time O(n m d); memory O((n + m) d) and a few rows of logits for each thread.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> stats = hf.attention_stats(np.zeros((1, 2)), np.zeros((4, 2)), shares=(0.5, 0.9))
    >>> stats.effective_support.round(6), stats.keys_for_share
    (array([4.]), array([[2, 4]]))
    """
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position)
    problem = _problem(Q, K, options)
    wanted = as_shares(shares, "shares")
    entropy, max_weight, log_sum, counts = _core.attention_stats(
        problem.logits, wanted, thread_count(num_threads)
    )
    shape = (*problem.lead, problem.rows)
    entropy = entropy.reshape(shape)
    return AttentionStats(
        entropy=entropy,
        max_weight=max_weight.reshape(shape),
        effective_support=np.where(max_weight.reshape(shape) > 0, np.exp(entropy), 0.0),
        log_sum=log_sum.reshape(shape),
        shares=tuple(float(s) for s in wanted),
        keys_for_share=counts.reshape((*shape, wanted.size)),
    )


@dataclass(frozen=True, repr=False, eq=False)
class Attention:
    """Attention that is computed when asked for: queries, keys, scale and mask.

    Parameters
    ----------
    Q, K : array_like, shape (..., n, d) and (..., m, d)
        Queries and keys, kept as given; as attributes, float16 and bfloat16 are float32.
    scale : float, optional
        1 / sqrt(d) when None.
    mask : optional
        As in `attention_matrix`.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> attention = hf.Attention(np.zeros((2, 3)), np.zeros((2, 3)), mask="causal")
    >>> attention.matrix()
    array([[1. , 0. ],
           [0.5, 0.5]])
    """

    # Q and K as they are stored, 16 bits or more.
    stored: tuple[NDArray[Any], NDArray[Any]]
    scale: float
    mask: Any
    # Bounds of the Euclidean errors of the rows of Q and K against the exact products
    # they stand for, when a module computed them; None: Q and K are exact.
    errors: tuple[NDArray[np.float64], ...] | None

    @standard_arithmetic()
    def __init__(
        self,
        Q: Any,
        K: Any,
        *,
        scale: float | None = None,
        mask: Any = None,
    ) -> None:
        q, k = as_stored_array(Q, "Q"), as_stored_array(K, "K")
        object.__setattr__(self, "stored", (q, k))
        object.__setattr__(self, "scale", check_scale(scale, q.shape[-1]))
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "errors", None)
        _problem(q, k, LogitOptions(self.scale, mask))  # they fit, or an error now

    @classmethod
    def _of_products(
        cls,
        Q: FloatArray,
        K: FloatArray,
        scale: float,
        mask: Any,
        errors: tuple[NDArray[np.float64], ...],
    ) -> Attention:
        """Return the attention of products that a module rounded, with bounds of their errors."""
        for array in (Q, K, *errors):  # the bounds are those of these numbers
            array.flags.writeable = False
        attention = cls(Q, K, scale=scale, mask=mask)
        object.__setattr__(attention, "errors", errors)
        return attention

    def __repr__(self) -> str:
        from headfit._text import mask_text

        q, k = self.stored
        return (
            f"Attention(Q {q.shape}, K {k.shape}, {computed_in(q, k)}, "
            f"scale={self.scale:.6g}, mask={mask_text(self.mask)})"
        )

    @cached_property
    def Q(self) -> FloatArray:
        """The queries, as float32 or float64."""
        return widened(self.stored[0])

    @cached_property
    def K(self) -> FloatArray:
        """The keys, as float32 or float64."""
        return widened(self.stored[1])

    @property
    def dim(self) -> int:
        """The head size d."""
        return int(self.stored[0].shape[-1])

    def matrix(
        self,
        *,
        rows: Rows = None,
        out: NDArray[Any] | None = None,
        num_threads: int | None = None,
    ) -> NDArray[Any]:
        """Return the dense attention matrix, see `attention_matrix`."""
        return attention_matrix(
            *self.stored,
            scale=self.scale,
            mask=self.mask,
            rows=rows,
            out=out,
            num_threads=num_threads,
        )

    def logits(self, *, rows: Rows = None, num_threads: int | None = None) -> NDArray[Any]:
        """Return the logits, see `attention_logits`."""
        return attention_logits(
            *self.stored, scale=self.scale, mask=self.mask, rows=rows, num_threads=num_threads
        )

    def topk(
        self,
        k: int,
        *,
        values: Literal["weights", "logits"] = "weights",
        renormalize: bool = False,
        num_threads: int | None = None,
    ) -> sp.csr_array | tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the k largest weights of every row, see `attention_topk`."""
        return attention_topk(
            *self.stored,
            k,
            scale=self.scale,
            mask=self.mask,
            values=values,
            renormalize=renormalize,
            num_threads=num_threads,
        )

    def stats(
        self, *, shares: float | Sequence[float] = (0.9,), num_threads: int | None = None
    ) -> AttentionStats:
        """Return row statistics, see `attention_stats`."""
        return attention_stats(
            *self.stored, scale=self.scale, mask=self.mask, shares=shares, num_threads=num_threads
        )

    def apply(self, V: Any, *, num_threads: int | None = None) -> NDArray[Any]:
        """Return attention times values, see `attention_apply`."""
        return attention_apply(
            *self.stored, V, scale=self.scale, mask=self.mask, num_threads=num_threads
        )

    def same_settings(self, scale: float | None, mask: Any) -> bool:
        """Whether a scale and a mask, where given, are those of this attention."""
        return (scale is None or as_number(scale, "scale") == self.scale) and (
            mask is None or same_mask(mask, self.mask)
        )
