"""`Call`: queries and keys of one call of an attention layer, with all that makes its logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit.torch.visibility import Passage, Visible


@dataclass(frozen=True)
class Call:
    """One call of an attention layer for a batch.

    Attributes
    ----------
    q : ndarray, shape (batch, heads, n, d)
        Queries as the layer's attention sees them: after rotary positions and norms.
    k : ndarray, shape (batch, key heads, m, d)
        Keys, with those of the cache, before they are repeated for the heads that share them.
    scale : float
    softcap : float or None
    sinks : ndarray, shape (heads,), or None
    bias : ndarray that broadcasts to (batch, heads, n, m), or None
        Of four axes.
    visible : Visible
    tokens : ndarray of int, shape (batch, n), or None
        The tokens at the places of the queries, if they are known.
    """

    q: NDArray[Any]
    k: NDArray[Any]
    scale: float
    softcap: float | None
    sinks: NDArray[Any] | None
    bias: NDArray[Any] | None
    visible: Visible
    tokens: NDArray[Any] | None = None

    def attention(self) -> Attention:
        """Return the attention of the whole batch, with the leading axes batch and heads.

        The axis of the batch is left out for a batch of one.
        """
        one = len(self.q) == 1
        mask, bias, keys = self.visible.mask, self.bias, self.visible.key_mask
        options = self._others()
        if keys is not None:
            options["key_mask"] = keys[0] if one else keys
        return Attention(
            self.q[0] if one else self.q,
            self.k[0] if one else self.k,
            mask=mask[0] if one and isinstance(mask, np.ndarray) else mask,
            bias=bias[0] if one and bias is not None else bias,
            **options,
        )

    def head(self, at: int) -> Attention:
        """Return the attention of one head, whose only leading axis is the batch."""
        whole = self.only(np.array([at])).attention()
        options = vars(whole.options).copy()
        for name in ("mask", "bias"):
            if isinstance(options[name], np.ndarray):
                options[name] = options[name][..., 0, :, :]
        if options.get("sinks") is not None:
            options["sinks"] = options["sinks"][0]
        q, k = whole.stored
        return Attention(q[..., 0, :, :], k[..., 0, :, :], **options)

    def only(self, heads: NDArray[np.int64]) -> Call:
        """Return the same call with some query heads, and the key heads that they read."""
        group = self.q.shape[1] // self.k.shape[1]
        mask, bias = self.visible.mask, self.bias
        if isinstance(mask, np.ndarray) and mask.shape[1] > 1:
            mask = mask[:, heads]
        key_heads = heads // group
        if len(np.unique(key_heads)) < len(heads) < self.q.shape[1]:
            keep = key_heads  # a key head for each query head: the groups may be of any size
        else:
            keep = np.unique(key_heads)
        return replace(
            self,
            q=self.q[:, heads],
            k=self.k[:, keep],
            sinks=None if self.sinks is None else self.sinks[heads],
            bias=bias[:, heads] if bias is not None and bias.shape[1] > 1 else bias,
            visible=replace(self.visible, mask=mask, passages=None),
        )

    def parts(self) -> Iterator[tuple[Attention, Any, Any]]:
        """Yield attentions without padding, their tokens, and what they are of the batch.

        The last is None for the whole batch, or the number of the entry and its `Passage`.
        """
        if self.visible.passages is None:
            yield self.attention(), self.tokens if len(self.q) > 1 else _first(self.tokens), None
            return
        for b, passage in enumerate(self.visible.passages):
            if passage is not None:
                tokens = None if self.tokens is None else self.tokens[b][passage.rows]
                yield self._part(b, passage), tokens, (b, passage)

    def passages(self) -> Iterator[Attention]:
        """Yield the attention of each entry of the batch, without padding.

        Its leading axis is heads. An entry that is padding alone is left out.
        """
        for b in range(len(self.q)):
            passage = self._passage(b)
            if passage is not None:
                yield self._part(b, passage)

    def first_passage(self) -> Attention | None:
        """Return the attention of the first passage, without padding; its leading axis is heads."""
        return next(self.passages(), None)

    def _passage(self, b: int) -> Passage | None:
        if self.visible.passages is not None:
            return self.visible.passages[b]
        mask = self.visible.mask
        if isinstance(mask, np.ndarray):
            mask = mask[b % len(mask)]
        return Passage(slice(None), slice(None), mask)

    def _part(self, b: int, passage: Passage) -> Attention:
        rows, keys, mask = passage
        bias = None
        if self.bias is not None:
            bias = self.bias[b % len(self.bias)]
            # A bias may have one row or one key that stands for all.
            bias = bias[:, rows] if bias.shape[1] > 1 else bias
            bias = bias[..., keys] if bias.shape[2] > 1 else bias
        q, k = self.q[b][:, rows], self.k[b][:, keys]
        return Attention(q, k, mask=mask, bias=bias, **self._others())

    def _others(self) -> dict[str, Any]:
        given: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap}
        return given if self.sinks is None else {**given, "sinks": self.sinks}


def key_head(attention: Attention, at: int) -> Attention:
    """Return one key head of an attention whose leading axis is heads.

    The leading axis is that of the query heads that read it, or none if there is only one.
    """
    q, k = attention.stored
    group = len(q) // len(k)
    own = slice(at * group, (at + 1) * group) if group > 1 else at
    options = vars(attention.options).copy()
    for name in ("mask", "bias", "sinks"):
        value = options[name]
        if isinstance(value, np.ndarray) and (name == "sinks" or value.ndim == 3):
            # One entry may stand for all heads.
            options[name] = value[own] if len(value) == len(q) else value[0]
    return Attention(q[own], k[at], **options)


def _first(array: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if array is None else array[0]
