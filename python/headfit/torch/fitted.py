"""`to_multihead_attention`: a PyTorch module, and the input that gives the attention of fits."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from headfit._attention.heads import allowed_entries
from headfit._attention.module import SelfAttention
from headfit._base.arguments import as_count, as_flag, as_generator
from headfit._base.arrays import FloatArray, as_float_array
from headfit._base.display import mask_text
from headfit._base.machine import require_memory
from headfit._base.masks import masks_agree
from headfit._fit.result import Fit
from headfit.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class FittedAttention:
    """A PyTorch module, and the input for which its heads have the attention of fits.

    Attributes
    ----------
    module : torch.nn.MultiheadAttention
        The module, in evaluation mode. Its weights depend on the sizes of the fits (and `rng`)
        alone.
    X : torch.Tensor, shape (n, 1, E), or (1, n, E) with batch_first
        The input, which serves as query, key and value of the module.
    attn_mask : torch.Tensor of bool, shape (n, n), or None
        True where attention is not allowed: the opposite of a fit's mask.
    fitted_dims : tuple of int
        The sizes of the fitted heads.
    head_dim, embed_dim : int
        The size of every head in the module, and E = heads * head_dim.
    rotation : ndarray, shape (E, E), or None
        The rotation R of the input, if an `rng` was given; see `to_multihead_attention`.
    """

    module: torch.nn.MultiheadAttention
    X: torch.Tensor
    attn_mask: torch.Tensor | None
    fitted_dims: tuple[int, ...]
    head_dim: int
    embed_dim: int
    rotation: FloatArray | None

    def weights(self) -> FloatArray:
        """Return the attention that the module computes, shape (heads, n, n).

        X is converted to the module's current dtype and device first. Takes O(n**2 E) time.
        """
        X = self.X.to(self.module.out_proj.weight)
        mask = None if self.attn_mask is None else self.attn_mask.to(X.device)
        with torch.no_grad():
            _, weights = self.module(X, X, X, attn_mask=mask, average_attn_weights=False)
        return as_float_array(weights[0].cpu(), "weights")

    def with_fits(self, fits: Any) -> Self:
        """Return the same module with the input and the mask of other fits.

        Parameters
        ----------
        fits : Fit or sequence of Fit
            One for each head, of at most its size in `fitted_dims`, and of the module's dtype or
            a narrower one.

        Returns
        -------
        FittedAttention
            It shares this object's `module`.

        Raises
        ------
        InputError
            For another number of fits, fits that are too large, or fits that differ in n or in
            their mask.
        """
        heads = _checked(fits)
        if len(heads) != len(self.fitted_dims):
            raise InputError(f"fits must be {len(self.fitted_dims)}, one a head; got {len(heads)}")
        for h, (head, size) in enumerate(zip(heads, self.fitted_dims, strict=True)):
            if head.dim > size:
                raise InputError(f"fits[{h}] must have a size of at most {size}; got {head.dim}")
        x = _input(heads, self.fitted_dims, self.head_dim)
        if self.rotation is not None:
            x = x @ self.rotation
        first = self.module.batch_first
        X = torch.from_numpy(np.expand_dims(x, 0 if first else 1)).to(self.module.out_proj.weight)
        not_allowed, mask = None, heads[0].mask
        if mask is not None:
            not_allowed = torch.from_numpy(~allowed_entries((len(x), len(x)), mask=mask))
        return dataclasses.replace(self, X=X, attn_mask=not_allowed)

    def __repr__(self) -> str:
        dtype, n = str(self.X.dtype).removeprefix("torch."), self.X.shape[:2].numel()
        return (
            f"FittedAttention({len(self.fitted_dims)} heads of sizes {self.fitted_dims} in heads "
            f"of {self.head_dim}, embedding {self.embed_dim}, n={n}, {dtype})"
        )


def to_multihead_attention(
    fits: Any, *, head_dim: int | None = None, batch_first: bool = False, rng: Any = None
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
    One input holds the queries and keys of all heads, which are independent of each other:
    [W_Q1 W_K1 W_Q2 ...] has rank 2 (d_1 + ... + d_H), for which head_dim >= 2 max d leaves room.

    In the canonical module, head h reads its own head_dim columns of X, which hold
    [c Q_h / t, t K_h, 0]. Here c = scale_h sqrt(head_dim) makes up for the scale of the module, and
    t is the power of two that makes queries and keys about equally long. The projections of
    values and of the output are identities, so that the output of head h, in the same columns, is
    its attention times these columns: it moves data in the columns of zeros between tokens. With
    `rng`, X becomes X R for a rotation R of the embedding, another rotation for each head mixes its
    queries and keys, and the output is that of the canonical module times R.

    Takes O(E**2 + n E) time and memory, O(E**3) time for the rotation, and n x n booleans for a
    mask.

    Examples
    --------
    >>> import headfit as hf, headfit.torch
    >>> head = hf.fit(hf.patterns.causal_band(12, 2), 4, mask="causal")
    >>> model = hf.torch.to_multihead_attention(head, batch_first=True, rng=0)
    >>> model.X.shape, model.head_dim, model.fitted_dims
    (torch.Size([1, 12, 8]), 8, (4,))
    >>> hf.certify(hf.patterns.causal_band(12, 2), matrix=model.weights()[0], mask="causal").holds
    True
    >>> other = model.with_fits(hf.fit(hf.patterns.previous_token(12), 4))  # only the input changes
    >>> other.module is model.module
    True
    """
    heads = _checked(fits)
    batch_first = as_flag(batch_first, "batch_first")
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
    dtype = torch.float64 if wide == np.float64 else torch.float32
    module = torch.nn.MultiheadAttention(
        width, len(heads), bias=False, batch_first=batch_first, dtype=dtype
    ).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(np.concatenate([w_q, w_k, w_v])))
        module.out_proj.weight.copy_(torch.from_numpy(np.ascontiguousarray(w_out)))
    empty = FittedAttention(module, torch.empty(0), None, sizes, size, width, rotation)
    return empty.with_fits(heads)


def _checked(fits: Any) -> list[Fit]:
    """Return fits as a list; raise an InputError unless they have the same n and mask."""
    if not isinstance(fits, (Fit, Iterable)):
        raise InputError(f"fits must be a Fit or a sequence of them; got {type(fits).__name__}")
    heads = [fits] if isinstance(fits, Fit) else list(fits)
    if not heads:
        raise InputError("fits must hold at least one Fit; got none")
    for h, head in enumerate(heads):
        if not isinstance(head, Fit):
            raise InputError(f"fits[{h}] must be a Fit; got {type(head).__name__}")
        n, first = len(head.Q), len(heads[0].Q)
        if n != first:
            raise InputError(f"fits[{h}] must have the {first} tokens of fits[0]; got {n}")
        if not masks_agree(head.mask, heads[0].mask, (n, n)):
            raise InputError(
                f"fits[{h}] must have the mask of fits[0], {mask_text(heads[0].mask)}, which the "
                f"module applies to every head; got {mask_text(head.mask)}"
            )
    return heads


def _input(heads: Sequence[Fit], sizes: Sequence[int], head_dim: int) -> FloatArray:
    """Return the canonical input, where head h has the columns [c Q_h / t, t K_h, 0]."""
    x = np.zeros((len(heads[0].Q), len(heads) * head_dim))
    for h, (head, size) in enumerate(zip(heads, sizes, strict=True)):
        own = x[:, h * head_dim : (h + 1) * head_dim]
        # The module divides by sqrt(head_dim); the fit multiplies by its scale.
        factor = head.scale * math.sqrt(head_dim)
        # The power of two for which rows of q / t and t k are as nearly as long as possible: a
        # rotation mixes them, with a rounding error in proportion to the longer of the two.
        # Multiplying by a power of two is exact.
        pair = np.float64(factor) * head.Q, head.K.astype(np.float64)
        longest = [float(np.linalg.norm(y, axis=1).max()) for y in pair]
        ratio = longest[0] / longest[1] if min(longest) > 0 else 1.0
        t = 2.0 ** round(math.log2(ratio) / 2)
        own[:, : head.dim] = head.Q * np.float64(factor / t)
        own[:, size : size + head.dim] = head.K * np.float64(t)
    return x
