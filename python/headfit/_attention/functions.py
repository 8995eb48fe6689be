"""The methods of `Attention` as plain functions of queries and keys, for a single call each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.logits import Rows
from headfit._attention.stats import AttentionStats
from headfit._base.types import ArrayLike, MaskLike, PositionLike

__all__ = [
    "attention_apply",
    "attention_logits",
    "attention_matrix",
    "attention_stats",
    "attention_topk",
]


def attention_matrix(
    Q: ArrayLike,
    K: ArrayLike,
    *,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
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
        Keys. They may have no leading axes (all heads share them), or the leading axes of Q where
        the number of key heads divides that of query heads: grouped queries, where query head h
        reads key head h // group.
    scale : float, optional
        The factor that the products are multiplied by; 1 / sqrt(d) when None.
    mask : optional
        Where attention is allowed. None: everywhere. ``"causal"``: query i may attend to the
        keys j <= i + m - n (bottom-right aligned: the last query to every key).
        ``("window", w)``: to the last w of those keys. ``("window", (left, right))``: to the key
        at position i + m - n, `left` keys before and `right` keys after it. A boolean array that
        broadcasts to (..., n, m), or a sparse boolean (n, m) matrix: True where attention is
        allowed (as in ``scaled_dot_product_attention``; in ``MultiheadAttention`` True means the
        opposite). An array of floats is an additive mask, with 0 where attention is allowed and
        -inf (or the lowest finite number of its dtype) where it is not.
    key_lengths : array_like of int, optional
        For padded batches: how many keys exist; the rows of K after those are never read.
        Broadcasts over the leading axes from the left. "causal" and windows stay aligned to m,
        not to these lengths.
    bias : array_like, optional
        Added to the logits; broadcasts to (..., n, m). Minus infinity masks an entry.
    softcap : float, optional
        Logits become softcap * tanh(logits / softcap), before bias and mask.
    position : optional
        A positional encoding that is not yet part of Q and K. Key j is at position j, query i at
        i + m - n. ``"rope"`` or ``("rope", base)``: rotary embeddings (Su et al. 2021) that
        rotate entries 2p and 2p + 1 together, base 10000; ``"rope-half"``: entries p and
        p + d/2 together (Llama). ``("rope", frequencies)``: by frequencies of your own, one for
        each pair, in radians per token. ``("alibi", slope)``, with one slope or one for each
        head: the bias -slope * distance (Press et al. 2022); ``"alibi"``: their slopes
        2**(-8 h / H) for head h = 1 ... H. Only for computing attention: `fit` and `certify` work
        with stored queries and keys and accept no positions.
    key_mask : array_like of bool or of 0 and 1, optional
        Which keys may be attended to (1) and which are padding (0), besides what `mask` says: one
        entry for each key, shape (m,), (batch, m) or (batch, heads, m), so that it broadcasts over
        the leading axes from the left (the ``attention_mask`` of Hugging Face tokenizers). Keys
        are still read, and must be finite. "causal" stays aligned to m, for padding on either
        side; a query that is left without keys gives zeros.
    sinks : array_like, optional
        A logit for each query head that is added to the denominator of the softmax alone (GPT-OSS):
        weights are exp(logit) / (exp(sink) + sum of exp(logits)), and rows sum to less than 1.
        Broadcasts to the leading axes; rounded to the dtype of the logits; -inf for a head without
        a sink.
    rows : slice or sequence of int, optional
        The rows to compute; all when None.
    out : ndarray, optional
        The array to write to: C-contiguous, of the result's shape and dtype.
    num_threads : int, optional
        None uses every core. The result does not depend on it.

    Returns
    -------
    ndarray, shape (..., rows, m)
        Rows sum to 1, or to less with sinks, or are zero where the mask leaves no key. Compared
        with the exact softmax of the logits (as rounded to the arrays' dtype), weights are accurate
        to 4 units in the last place, or 5 on CPU levels without fused multiply-add (v2, see
        `show_config`).

    Raises
    ------
    InputError
        For shapes, dtypes, masks or other arguments that are not as described.
    NonFiniteError
        For NaN or infinity in Q, K or bias, or if a product overflows; the message names the
        entry.

    Notes
    -----
    Takes O(n m d) time per head; besides the result, O(m d) memory for one key head and a block
    of rows for each thread.

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
        key_mask=key_mask,
        sinks=sinks,
    )
    return attention.matrix(rows=rows, out=out, num_threads=num_threads)


def attention_logits(
    Q: ArrayLike,
    K: ArrayLike,
    *,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    rows: Rows = None,
    out: NDArray[Any] | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Return the logits that the softmax is taken of, -inf where they are masked.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, rows, out, num_threads
        As in `attention_matrix`. There are no sinks: they belong to the softmax, and are not among
        the logits of keys.

    Returns
    -------
    ndarray, shape (..., rows, m)
        In the arrays' dtype. Without bias, softcap and position, each logit differs from the
        exact scale * q.k by at most g |scale| ||q|| ||k|| with g = (d + 2) u / (1 - (d + 2) u),
        where u is the unit roundoff (Higham, *Accuracy and Stability of Numerical Algorithms*,
        section 3.1).

    Raises
    ------
    InputError, NonFiniteError
        As `attention_matrix` does.

    Notes
    -----
    Takes O(n m d) time per head; besides the result, O(m d) memory for one key head and a block
    of rows for each thread.

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
        key_mask=key_mask,
    )
    return attention.logits(rows=rows, out=out, num_threads=num_threads)


def attention_topk(
    Q: ArrayLike,
    K: ArrayLike,
    k: int,
    *,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    values: Literal["weights", "logits"] = "weights",
    renormalize: bool = False,
    client: Any = None,
    progress: bool = False,
    num_threads: int | None = None,
) -> sp.csr_array | tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the k largest attention weights of every row, without the matrix.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, sinks
        As in `attention_matrix`.
    k : int
        How many weights to keep in each row, 1 ... m. Ties go to the lower column.
    values : {"weights", "logits"}
        Whether to return the attention weights or the logits of the keys that are kept. Logits
        need no sum over the row, and take a fifth less time.
    renormalize : bool, default False
        Whether to scale the weights that are kept so that they sum to 1 in each row. By default
        they are the weights in the whole row.
    client : dask.distributed.Client, optional
        The workers that compute the logits, split by rows. The result is that of one machine with
        their CPU level, bit for bit. docs/cluster.md says more.
    progress : bool, default False
        Show a tqdm bar of the blocks of rows that a `client` has done (needs tqdm).
    num_threads : int, optional
        None uses every core; with a `client`, one thread for each block of rows. The result does
        not depend on it.

    Returns
    -------
    csr_array, shape (n, m)
        If Q and K are matrices. Rows in which the mask allows fewer than k keys have fewer
        entries.
    indices, values : ndarray, shape (..., n, k)
        If Q has leading axes: columns and their values, largest first. In rows with fewer than k
        keys the remaining indices are -1, with weight 0 or logit -inf.

    Raises
    ------
    InputError
        If k, `values` or another argument is not as described, if `renormalize` is asked for
        with logits, or if the workers of a client differ in CPU level or version.
    NonFiniteError
        For NaN or infinity in Q, K or bias.

    Notes
    -----
    Takes O(n m d) time per head and O((n + m) d + n k) memory, never n m.

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
        key_mask=key_mask,
        sinks=sinks,
    )
    return attention.topk(
        k,
        values=values,
        renormalize=renormalize,
        client=client,
        progress=progress,
        num_threads=num_threads,
    )


def attention_apply(
    Q: ArrayLike,
    K: ArrayLike,
    V: ArrayLike,
    *,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    rows: Rows = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Return attention times values, without the matrix.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, sinks, rows, num_threads
        As in `attention_matrix`.
    V : array_like, shape (..., m, dv)
        Values: one row for each key, with the leading axes of K. Their dtype must not be wider
        than that of Q and K.

    Returns
    -------
    ndarray, shape (..., rows, dv)
        In the dtype in which attention is computed.

    Raises
    ------
    InputError
        For shapes, dtypes or other arguments that are not as described.
    NonFiniteError
        For NaN or infinity in Q, K or bias.

    Notes
    -----
    Takes O(n m (d + dv)) time per head and O((n + m) (d + dv)) memory for one key head. Maxima
    and sums are updated while keys are visited (online softmax, Milakov and Gimelshein 2018).

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
        key_mask=key_mask,
        sinks=sinks,
    )
    return attention.apply(V, rows=rows, num_threads=num_threads)


def attention_stats(
    Q: ArrayLike,
    K: ArrayLike,
    *,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    shares: float | Sequence[float] = (0.9,),
    num_threads: int | None = None,
) -> AttentionStats:
    """Return the entropy, the largest weight and the effective support of every row.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, sinks, num_threads
        As in `attention_matrix`.
    shares : float or sequence of float in (0, 1], default (0.9,)
        For each share, the fewest keys of a row that hold it are counted. Pass an empty sequence
        to save that work.

    Returns
    -------
    AttentionStats
        Rows in which the mask allows no key have zeros, and a `log_sum` of -inf.

    Raises
    ------
    InputError
        For shapes, dtypes or other arguments that are not as described.
    NonFiniteError
        For NaN or infinity in Q, K or bias.

    Notes
    -----
    Takes O(n m d) time per head, and O((n + m) d) memory and a few rows of logits for each
    thread.

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
        key_mask=key_mask,
        sinks=sinks,
    )
    return attention.stats(shares=shares, num_threads=num_threads)
