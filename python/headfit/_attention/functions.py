"""Questions about the attention of queries and keys, as plain functions.

Each is the method of `Attention` of that name, for those who ask once: shapes, options and costs
are described there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.logits import Rows
from headfit._attention.stats import AttentionStats

__all__ = [
    "attention_apply",
    "attention_logits",
    "attention_matrix",
    "attention_stats",
    "attention_topk",
]


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
    attention = Attention(
        Q,
        K,
        scale=scale,
        mask=mask,
        key_lengths=key_lengths,
        bias=bias,
        softcap=softcap,
        position=position,
    )
    return attention.matrix(rows=rows, out=out, num_threads=num_threads)


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
    attention = Attention(
        Q,
        K,
        scale=scale,
        mask=mask,
        key_lengths=key_lengths,
        bias=bias,
        softcap=softcap,
        position=position,
    )
    return attention.logits(rows=rows, out=out, num_threads=num_threads)


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
    attention = Attention(
        Q,
        K,
        scale=scale,
        mask=mask,
        key_lengths=key_lengths,
        bias=bias,
        softcap=softcap,
        position=position,
    )
    return attention.topk(k, values=values, renormalize=renormalize, num_threads=num_threads)


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
    attention = Attention(
        Q,
        K,
        scale=scale,
        mask=mask,
        key_lengths=key_lengths,
        bias=bias,
        softcap=softcap,
        position=position,
    )
    return attention.apply(V, rows=rows, num_threads=num_threads)


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
    attention = Attention(
        Q,
        K,
        scale=scale,
        mask=mask,
        key_lengths=key_lengths,
        bias=bias,
        softcap=softcap,
        position=position,
    )
    return attention.stats(shares=shares, num_threads=num_threads)
