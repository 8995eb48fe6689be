"""`Call`: one call of an attention layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit.torch.visibility import Passage, Read


@dataclass(frozen=True)
class Call:
    """One call of an attention layer for a batch.

    Attributes
    ----------
    q : ndarray, shape (batch, heads, n, d)
        Queries as the layer's attention sees them: after rotary positions and norms.
    k : ndarray, shape (batch, key heads, m, d)
        Keys, with those of the cache, before they are repeated for the heads that share them.
    options : dict
        The scale, softcap and sinks of an `Attention`.
    masks : Read
        What mask and bias say, and which parts are no padding.
    """

    q: NDArray[Any]
    k: NDArray[Any]
    options: dict[str, Any]
    masks: Read

    def attention(self) -> Attention:
        """Return the attention of the whole batch, with the leading axes batch and heads.

        The axis of the batch is left out for a batch of one.
        """
        arrays = {name: getattr(self.masks, name) for name in ("mask", "bias", "key_mask")}
        q, k = self.q, self.k
        if len(q) == 1:
            q, k = q[0], k[0]
            arrays = {n: x[0] if isinstance(x, np.ndarray) else x for n, x in arrays.items()}
        return Attention(q, k, **arrays, **self.options)

    def head(self, at: int) -> Attention:
        """Return the attention of one head, whose only leading axis is the batch."""
        return _some_heads(self.attention(), at, at // (self.q.shape[1] // self.k.shape[1]))

    def parts(self) -> Iterator[tuple[Attention, Any, Any, Any]]:
        """Yield attentions without padding, each with its entries of the batch, queries and keys.

        These are indices of its arrays, such as ``q[entries][..., queries, :]``.
        """
        if self.masks.passages is None:
            every = slice(None)
            yield self.attention(), 0 if len(self.q) == 1 else every, every, every
            return
        for b, passage in enumerate(self.masks.passages):
            if passage is not None:
                yield self._part(b, passage), b, passage.rows, passage.keys

    def entries(self) -> Iterator[tuple[int, Passage, Attention]]:
        """Yield the number, the place and the attention of each entry of the batch.

        The attention is without padding, and its leading axis is heads. An entry that is padding
        alone is left out.
        """
        mask = self.masks.mask
        for b in range(len(self.q)):
            own = mask[b % len(mask)] if isinstance(mask, np.ndarray) else mask
            passage: Passage | None = Passage(slice(None), slice(None), own)
            if self.masks.passages is not None:
                passage = self.masks.passages[b]
            if passage is not None:
                yield b, passage, self._part(b, passage)

    def passages(self) -> Iterator[Attention]:
        """Yield the attention of each entry of the batch, without padding."""
        return (attention for *_, attention in self.entries())

    def _part(self, b: int, passage: Passage) -> Attention:
        rows, keys, mask = passage
        bias = self.masks.bias
        if bias is not None:
            bias = bias[b % len(bias)]
            # A bias may have one row or one key that stands for all.
            bias = bias[:, rows] if bias.shape[1] > 1 else bias
            bias = bias[..., keys] if bias.shape[2] > 1 else bias
        q, k = self.q[b][:, rows], self.k[b][:, keys]
        return Attention(q, k, mask=mask, bias=bias, **self.options)


def key_head(attention: Attention, at: int) -> Attention:
    """Return one key head of an attention whose leading axis is heads.

    The leading axis is that of the query heads that read it, or none if there is only one.
    """
    q, k = attention.stored
    group = len(q) // len(k)
    return _some_heads(attention, slice(at * group, (at + 1) * group) if group > 1 else at, at)


def _some_heads(attention: Attention, heads: Any, key: int) -> Attention:
    """Return the attention of some query heads, which share a key head."""
    q, k = attention.stored
    options = vars(attention.options).copy()
    for name in ("mask", "bias"):
        x = options[name]
        if isinstance(x, np.ndarray) and x.ndim > 2:  # one entry may stand for all heads
            options[name] = x[..., heads if x.shape[-3] == q.shape[-3] else 0, :, :]
    if options["sinks"] is not None:
        options["sinks"] = options["sinks"][heads]
    return Attention(q[..., heads, :, :], k[..., key, :, :], **options)
