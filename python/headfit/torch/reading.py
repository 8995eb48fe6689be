"""`from_projections` and `from_module`: the queries and keys of PyTorch attention layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headfit._attention.logits import check_scale
from headfit._base.arrays import (
    FloatArray,
    as_count,
    as_stored_array,
    blocks_of_rows,
    check_finite,
    computed_in,
    widened,
)
from headfit.errors import InputError

__all__ = ["Projected", "from_module", "from_projections"]


class Projected(NamedTuple):
    """The queries, keys and scale of an attention layer, in the form that `Attention` takes.

    Attributes
    ----------
    Q : ndarray, shape (..., heads, n, d)
        The queries.
    K : ndarray, shape (..., key heads, m, d)
        The keys.
    scale : float
        The factor that the products of queries and keys are multiplied by.
    """

    Q: FloatArray
    K: FloatArray
    scale: float


def _array(x: Any, name: str, ndim: int) -> NDArray[Any]:
    """Return a tensor on any device, or an array, as a NumPy array; check that it is finite."""
    array = as_stored_array(x.detach().cpu() if isinstance(x, torch.Tensor) else x, name, ndim=ndim)
    if array.size:
        check_finite(array.reshape(-1, array.shape[-1]), name)
    return array


def _project(X: Any, W: Any, b: Any, heads: int, names: tuple[str, str, str]) -> FloatArray:
    """Return X W^T + b, split into heads: shape (..., heads, n, d)."""
    x, w = _array(X, names[0], 2), _array(W, names[1], 2)
    if w.ndim != 2 or w.shape[0] % heads or not w.size:
        raise InputError(
            f"{names[1]} must be a matrix (out, in) with rows for {heads} heads; got {w.shape}"
        )
    if x.shape[-1] != w.shape[1]:
        raise InputError(
            f"{names[0]} must have {w.shape[1]} columns, as {names[1]} has; got shape {x.shape}"
        )
    flat, w = x.reshape(-1, x.shape[-1]), widened(w)
    y = np.empty((*x.shape[:-1], w.shape[0]), computed_in(x, w))
    for rows, block in blocks_of_rows(flat):
        np.matmul(block, w.T, out=y.reshape(-1, w.shape[0])[rows])
    if b is not None:
        bias = widened(_array(b, names[2], 1))
        if bias.shape != w.shape[:1]:
            raise InputError(f"{names[2]} must have shape {w.shape[:1]}; got {bias.shape}")
        y = y + bias
    split: FloatArray = y.reshape(*y.shape[:-1], heads, w.shape[0] // heads)
    return np.ascontiguousarray(np.moveaxis(split, -2, -3))


def from_projections(
    X: Any,
    W_q: Any,
    W_k: Any,
    b_q: Any = None,
    b_k: Any = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    scale: float | None = None,
    X_k: Any = None,
) -> Projected:
    """Return the queries and keys of an attention layer, given its input and projections.

    Parameters
    ----------
    X : tensor or array_like, shape (..., n, E)
        The input of the projections. Apply a layer norm before them yourself; layer norms of
        queries and keys, and rotary positions, are not applied either.
    W_q : tensor or array_like, shape (num_heads * d, E)
        The weights of the queries as `torch.nn.Linear` stores them, one head after the other:
        ``q_proj.weight`` of Llama, ``query.weight`` of BERT. (GPT-2 stores the transpose.)
    W_k : tensor or array_like, shape (num_kv_heads * d, E)
        The weights of the keys.
    b_q, b_k : tensor or array_like, shape (num_heads * d,) and (num_kv_heads * d,), optional
        The biases of queries and keys.
    num_heads : int
        The number of query heads.
    num_kv_heads : int, optional
        The number of key heads, a divisor of num_heads; num_heads when None.
    scale : float, optional
        1 / sqrt(d) when None.
    X_k : tensor or array_like, shape (..., m, E_k), optional
        The input of the keys in cross attention; X when None. `W_k` then has E_k columns.

    Returns
    -------
    Projected
        Q of shape (..., num_heads, n, d), K of shape (..., num_kv_heads, m, d), and the scale:
        NumPy arrays for `attention_matrix` and others, and for `certify` one head at a time.

    Raises
    ------
    InputError
        For shapes that do not fit together.
    NonFiniteError
        For NaN or infinity in an array.

    Notes
    -----
    Tensors on any device are copied to the CPU, without their gradients. float16 and bfloat16
    are widened to float32, exactly, and products are not rounded back. Takes
    O(n E num_heads d) time.

    Examples
    --------
    >>> import numpy as np, headfit as hf, headfit.torch
    >>> rng = np.random.default_rng(0)
    >>> X, W_q, W_k = (rng.normal(size=(rows, 32)) for rows in (10, 32, 16))
    >>> Q, K, scale = hf.torch.from_projections(X, W_q, W_k, num_heads=4, num_kv_heads=2)
    >>> Q.shape, K.shape, hf.attention_matrix(Q, K, scale=scale, mask="causal").shape
    ((4, 10, 8), (2, 10, 8), (4, 10, 10))
    """
    heads = as_count(num_heads, "num_heads", 1)
    kv_heads = heads if num_kv_heads is None else as_count(num_kv_heads, "num_kv_heads", 1)
    if heads % kv_heads:
        raise InputError(f"num_kv_heads must divide num_heads, {heads}; got {kv_heads}")
    Q = _project(X, W_q, b_q, heads, ("X", "W_q", "b_q"))
    if X_k is None:
        K = _project(X, W_k, b_k, kv_heads, ("X", "W_k", "b_k"))
    else:
        K = _project(X_k, W_k, b_k, kv_heads, ("X_k", "W_k", "b_k"))
    if Q.shape[-1] != K.shape[-1]:
        raise InputError(
            f"W_q and W_k must give heads of one size; got {Q.shape[-1]} and {K.shape[-1]}"
        )
    return Projected(Q, K, check_scale(scale, Q.shape[-1]))


def from_module(mha: torch.nn.MultiheadAttention, X: Any, X_k: Any = None) -> Projected:
    """Return the queries and keys that a `torch.nn.MultiheadAttention` computes from an input.

    Parameters
    ----------
    mha : torch.nn.MultiheadAttention
        The module.
    X : tensor or array_like, shape (n, E), (B, n, E) with batch_first, or (n, B, E) without
        The query input of the module. Apply a layer norm before the module yourself.
    X_k : tensor or array_like, optional
        The key input of the module in cross attention; X when None.

    Returns
    -------
    Projected
        Q of shape (heads, n, d), K of shape (heads, m, d), and the scale. A batched X gives
        shapes (B, heads, n, d) and (B, heads, m, d).

    Raises
    ------
    InputError
        For shapes that do not fit together, and modules with add_bias_kv or add_zero_attn, which
        attend to more keys than there are tokens.
    NonFiniteError
        For NaN or infinity in an array.

    Notes
    -----
    See `from_projections`. Padding of keys is not part of Q and K: pass it on as `key_lengths`
    or as a mask.

    Examples
    --------
    >>> import torch, headfit as hf, headfit.torch
    >>> mha = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    >>> X = torch.randn(2, 10, 32)
    >>> Q, K, scale = hf.torch.from_module(mha, X)
    >>> M = hf.attention_matrix(Q, K, scale=scale)
    >>> _, want = mha(X, X, X, average_attn_weights=False)
    >>> M.shape, bool(abs(torch.from_numpy(M) - want).max() < 1e-5)
    ((2, 4, 10, 10), True)
    """
    if not isinstance(mha, torch.nn.MultiheadAttention):
        raise InputError(f"mha must be a torch.nn.MultiheadAttention; got {type(mha).__name__}")
    if mha.bias_k is not None or mha.add_zero_attn:
        raise InputError(
            "mha must attend to tokens alone; got one with add_bias_kv or add_zero_attn"
        )
    if mha.in_proj_weight is not None:
        W_q, W_k, _ = mha.in_proj_weight.chunk(3)
    else:
        W_q, W_k = mha.q_proj_weight, mha.k_proj_weight
    b_q, b_k, _ = (None,) * 3 if mha.in_proj_bias is None else mha.in_proj_bias.chunk(3)
    x = _batch_first(X, "X", mha.batch_first)
    x_k = None if X_k is None else _batch_first(X_k, "X_k", mha.batch_first)
    return from_projections(x, W_q, W_k, b_q, b_k, num_heads=mha.num_heads, X_k=x_k)


def _batch_first(x: Any, name: str, already: bool) -> FloatArray:
    """Return an input with the batch, if there is one, as its first axis."""
    array = _array(x, name, 2)
    if array.ndim > 3:
        raise InputError(f"{name} must have two or three axes; got shape {array.shape}")
    return array if array.ndim == 2 or already else array.swapaxes(0, 1)
