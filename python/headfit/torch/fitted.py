"""`FittedAttention`: a PyTorch module, and the input that gives the attention of fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headfit._attention.functions import attention_matrix
from headfit._base.arrays import FloatArray, as_float_array
from headfit._base.masks import same_mask
from headfit._base.text import mask_text
from headfit._fit.result import Fit
from headfit.errors import InputError

__all__ = ["FittedAttention"]


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
            _, weights = self.module(
                X, X, X, attn_mask=mask, need_weights=True, average_attn_weights=False
            )
        return as_float_array(weights[0].cpu(), "weights")

    def with_fits(self, fits: Any) -> FittedAttention:
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
        heads = checked(fits)
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
        return dataclasses.replace(self, X=X, attn_mask=_not_allowed(heads[0]))

    def __repr__(self) -> str:
        dtype, n = str(self.X.dtype).removeprefix("torch."), self.X.shape[:2].numel()
        return (
            f"FittedAttention({len(self.fitted_dims)} heads of sizes {self.fitted_dims} in heads "
            f"of {self.head_dim}, embedding {self.embed_dim}, n={n}, {dtype})"
        )


def checked(fits: Any) -> list[Fit]:
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
        if not same_mask(head.mask, heads[0].mask):
            raise InputError(
                f"fits[{h}] must have the mask of fits[0], {mask_text(heads[0].mask)}, which the "
                f"module applies to every head; got {mask_text(head.mask)}"
            )
    return heads


def _not_allowed(head: Fit) -> torch.Tensor | None:
    """Return the mask of a fit as PyTorch wants it: True where attention is not allowed."""
    if head.mask is None:
        return None
    zeros = np.zeros((len(head.Q), 1), np.float32)  # all logits are 0: weights show the mask
    return torch.from_numpy(attention_matrix(zeros, zeros, mask=head.mask) == 0)


def _input(heads: Sequence[Fit], sizes: Sequence[int], head_dim: int) -> FloatArray:
    """Return the canonical input, where head h has the columns [c Q_h / t, t K_h, 0]."""
    x = np.zeros((len(heads[0].Q), len(heads) * head_dim))
    for h, (head, size) in enumerate(zip(heads, sizes, strict=True)):
        own = x[:, h * head_dim : (h + 1) * head_dim]
        # The module divides by sqrt(head_dim); the fit multiplies by its scale.
        factor = head.scale * math.sqrt(head_dim)
        t = _balance(abs(factor) * _longest(head.Q), _longest(head.K))
        own[:, : head.dim] = head.Q * np.float64(factor / t)
        own[:, size : size + head.dim] = head.K * np.float64(t)
    return x


def _longest(rows: FloatArray) -> float:
    """Return the largest Euclidean norm of a row."""
    return float(np.linalg.norm(rows.astype(np.float64, copy=False), axis=1).max())


def _balance(q: float, k: float) -> float:
    """Return the power of two t for which q / t and t k are as nearly equal as possible.

    A rotation mixes queries and keys, so that the rounding error of both is proportional to the
    longer of the two; it is least if they are equally long. Multiplying by a power of two is exact.
    """
    return 2.0 ** round(math.log2(q / k) / 2) if q > 0 and k > 0 else 1.0
