"""`to_multihead_attention`: a `torch.nn.MultiheadAttention` made of fitted heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from headfit._attention.module import SelfAttention
from headfit._base.arguments import as_flag, as_generator
from headfit._base.arrays import FloatArray, as_count
from headfit._base.machine import require_memory
from headfit.errors import InputError
from headfit.torch.fitted import FittedAttention, checked

__all__ = ["to_multihead_attention"]


def to_multihead_attention(
    fits: Any,
    *,
    head_dim: int | None = None,
    batch_first: bool = False,
    bias: bool = False,
    rng: Any = None,
) -> FittedAttention:
    """Build a `torch.nn.MultiheadAttention` with the attention of fitted heads, and its input.

    Parameters
    ----------
    fits : Fit or sequence of Fit
        One for each head, all with the same n and mask; their sizes d may differ.
    head_dim : int, optional
        The size of every head in the module, a multiple of 8 and at least 2 max d; the least
        such number when None.
    batch_first : bool, default False
        Whether the module takes inputs of shape (1, n, E) rather than (n, 1, E).
    bias : bool, default False
        Whether the module has biases, which are zeros.
    rng : seed or Generator, optional
        A source of random rotations that make the weights dense and leave the attention
        unchanged. None gives the canonical weights below.

    Returns
    -------
    FittedAttention
        In the widest dtype of the fits, float32 or float64, on the CPU.

    Raises
    ------
    InputError
        For fits that differ in n or in their mask, and for a head_dim that is too small or not a
        multiple of 8.

    Notes
    -----
    One input holds the queries and keys of all heads, which are independent of each other. So
    [W_Q1 W_K1 W_Q2 ...] needs rank 2 (d_1 + ... + d_H), and the embedding H * head_dim must be
    at least that; head_dim >= 2 max d always suffices.

    In the canonical module, head h reads its own head_dim columns of X, which hold
    [c Q_h / t, t K_h, 0]. Here c = scale_h sqrt(head_dim) compensates the module's scale
    1 / sqrt(head_dim), and t is the power of two that makes queries and keys about equally long.
    The projections of queries and keys select these columns; products with zeros and ones are
    exact. The projections of values and of the output are identities, so that the output of head
    h, in the same columns, is its attention times these columns: a user can put data into the
    columns of zeros for the head to move between tokens. With `rng`, X becomes X R for a rotation
    R of the embedding, and another rotation for each head mixes its queries and keys; the output
    is that of the canonical module times R.

    Takes O(E**2 + n E) time and memory, and O(E**3) time for the rotation. The mask, if there is
    one, is stored as n x n booleans.

    Examples
    --------
    >>> import headfit as hf, headfit.torch
    >>> head = hf.fit(hf.patterns.causal_band(12, 2), 4, mask="causal")
    >>> model = hf.torch.to_multihead_attention(head, batch_first=True, rng=0)
    >>> model.X.shape, model.head_dim, model.fitted_dims
    (torch.Size([1, 12, 8]), 8, (4,))
    >>> hf.certify(hf.patterns.causal_band(12, 2), matrix=model.weights()[0], mask="causal").holds
    True

    The same module with another pattern: only the input changes.

    >>> other = model.with_fits(hf.fit(hf.patterns.previous_token(12), 4))
    >>> other.module is model.module
    True
    >>> hf.certify(hf.patterns.previous_token(12), matrix=other.weights()[0]).holds
    True
    """
    heads = checked(fits)
    batch_first, bias = as_flag(batch_first, "batch_first"), as_flag(bias, "bias")
    sizes = tuple(head.dim for head in heads)
    least = 8 * math.ceil(2 * max(sizes) / 8)
    size = least if head_dim is None else as_count(head_dim, "head_dim", least)
    if size % 8:
        raise InputError(f"head_dim must be a multiple of 8; got {size}")
    width = len(heads) * size
    require_memory(10 * 8 * width**2, f"a module of {len(heads)} heads of head_dim = {size}")
    w_q, w_k = np.zeros((2, width, width))
    for h, d in enumerate(sizes):
        own = h * size + np.arange(d)
        w_q[own, own] = w_k[own, own + d] = 1
    w_v = w_out = np.eye(width)
    rotation: FloatArray | None = None
    if rng is not None:
        generator = as_generator(rng)
        rotation = SelfAttention.random(width // 2, generator, dtype=np.float64).weights
        for h in range(len(heads)):
            rows = slice(h * size, (h + 1) * size)
            turn = SelfAttention.random(size // 2, generator, dtype=np.float64).weights
            w_q[rows], w_k[rows] = turn @ w_q[rows], turn @ w_k[rows]
        w_q, w_k, w_v, w_out = w_q @ rotation, w_k @ rotation, rotation, rotation.T
    wide = np.result_type(*(head.Q for head in heads), *(head.K for head in heads))
    module = torch.nn.MultiheadAttention(
        width,
        len(heads),
        bias=bias,
        batch_first=batch_first,
        dtype=torch.float64 if wide == np.float64 else torch.float32,
    ).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(np.concatenate([w_q, w_k, w_v])))
        module.out_proj.weight.copy_(torch.from_numpy(np.ascontiguousarray(w_out)))
        for zeros in (module.in_proj_bias, module.out_proj.bias):
            if zeros is not None:
                zeros.zero_()
    empty = FittedAttention(module, torch.empty(0), None, sizes, size, width, rotation)
    return empty.with_fits(heads)
