"""`LayerMaps`: the maps of the heads of one layer, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from headfit._compress.result import Compressed
from headfit.errors import CaptureError, InputError


class LayerMaps:
    """The maps of some key heads of a layer, with those of the query heads that share each.

    Parameters
    ----------
    layer : str
    heads : mapping of int to Compressed
        By the number of the key head.
    """

    def __init__(self, layer: str, heads: Mapping[int, Compressed]) -> None:
        self.layer, self.heads = layer, dict(heads)
        self._tensors: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def apply(self, query: Any, key: Any, scale: float | None) -> tuple[Any, Any]:
        """Return smaller queries and keys, whose products are logits.

        Parameters
        ----------
        query : Tensor, shape (..., heads, n, D)
        key : Tensor, shape (..., key heads, m, D)
        scale : float or None
            That of the layer, for heads without maps; None means 1 / sqrt(D).
        """
        if query.dim() < 3 or key.dim() < 3:
            raise CaptureError(f"{self.layer}: queries and keys must have an axis of heads")
        shape = (query.shape[-3], key.shape[-3], query.shape[-1])
        scale = shape[2] ** -0.5 if scale is None else float(scale)
        place = (shape, scale, query.dtype, query.device)
        if place not in self._tensors:
            maps = self._numbers(shape, scale)
            p_q, p_k = (
                torch.from_numpy(x).to(dtype=query.dtype, device=query.device) for x in maps
            )
            self._tensors[place] = (p_q, p_k)
        for_queries, for_keys = self._tensors[place]
        return query @ for_queries, key @ for_keys

    def _numbers(self, shape: tuple[int, int, int], scale: float) -> tuple[Any, Any]:
        """Return maps of all query heads and of all key heads, padded with zeros to one size."""
        heads, key_heads, size = shape
        if heads % key_heads:
            raise CaptureError(f"{self.layer}: {key_heads} key heads do not divide {heads} heads")
        group = heads // key_heads
        for at, found in self.heads.items():
            p_q = found.P_q if found.P_q.ndim == 3 else found.P_q[np.newaxis]
            if not 0 <= at < key_heads or found.original_dim != size or len(p_q) != group:
                raise InputError(
                    f"the maps of key head {at} of {self.layer} must be for one of its "
                    f"{key_heads} key heads, of size {size}, with {group} query heads each; got "
                    f"maps for size {found.original_dim} and {len(p_q)} query heads"
                )
            found.check_scale(scale)
        every = range(key_heads)
        dims = [self.heads[at].dim if at in self.heads else size for at in every]
        p_q = np.zeros((heads, size, max(dims)))
        p_k = np.zeros((key_heads, size, max(dims)))
        for at, dim in zip(every, dims, strict=True):
            own = slice(at * group, (at + 1) * group)
            head = self.heads.get(at)
            p_q[own, :, :dim] = scale * np.eye(size) if head is None else head.P_q
            p_k[at, :, :dim] = np.eye(size) if head is None else head.P_k
        return p_q, p_k
