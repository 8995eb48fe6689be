"""`Call`: one call of an attention layer; `Keep`: the calls that stay in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._base.arguments import shown
from headfit._base.arrays import as_count
from headfit.errors import InputError
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
    scale : float
    softcap : float or None
    sinks : ndarray, shape (heads,), or None
    masks : Read
        What mask and bias say, and which parts are no padding.
    """

    q: NDArray[Any]
    k: NDArray[Any]
    scale: float
    softcap: float | None
    sinks: NDArray[Any] | None
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
        return Attention(q, k, **arrays, **self._others())

    def head(self, at: int) -> Attention:
        """Return the attention of one head, whose only leading axis is the batch."""
        return _some_heads(self.attention(), at, at // (self.q.shape[1] // self.k.shape[1]))

    def only(self, heads: NDArray[np.int64]) -> Call:
        """Return the same call with some query heads, and the key heads that they read."""
        count = self.q.shape[1]
        key_heads = heads // (count // self.k.shape[1])
        if len(heads) == count or len(np.unique(key_heads)) == len(heads):
            key_heads = np.unique(key_heads)  # else a key head for each query head

        def of_heads(x: Any) -> Any:  # with the axes heads, queries and keys at the end
            return x[..., heads, :, :] if isinstance(x, np.ndarray) and x.shape[-3] > 1 else x

        passages = self.masks.passages and tuple(
            passage and passage._replace(mask=of_heads(passage.mask))
            for passage in self.masks.passages
        )
        return replace(
            self,
            q=self.q[:, heads],
            k=self.k[:, key_heads],
            sinks=None if self.sinks is None else self.sinks[heads],
            masks=self.masks._replace(
                mask=of_heads(self.masks.mask), bias=of_heads(self.masks.bias), passages=passages
            ),
        )

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

    def passages(self) -> Iterator[Attention]:
        """Yield the attention of each entry of the batch, without padding.

        Its leading axis is heads. An entry that is padding alone is left out.
        """
        mask = self.masks.mask
        for b in range(len(self.q)):
            own = mask[b % len(mask)] if isinstance(mask, np.ndarray) else mask
            passage: Passage | None = Passage(slice(None), slice(None), own)
            if self.masks.passages is not None:
                passage = self.masks.passages[b]
            if passage is not None:
                yield self._part(b, passage)

    def _part(self, b: int, passage: Passage) -> Attention:
        rows, keys, mask = passage
        bias = self.masks.bias
        if bias is not None:
            bias = bias[b % len(bias)]
            # A bias may have one row or one key that stands for all.
            bias = bias[:, rows] if bias.shape[1] > 1 else bias
            bias = bias[..., keys] if bias.shape[2] > 1 else bias
        q, k = self.q[b][:, rows], self.k[b][:, keys]
        return Attention(q, k, mask=mask, bias=bias, **self._others())

    def _others(self) -> dict[str, Any]:
        return {"scale": self.scale, "softcap": self.softcap, "sinks": self.sinks}


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


@dataclass(frozen=True)
class Keep:
    """Which queries and keys `capture` keeps.

    Parameters
    ----------
    layers : sequence of str or int, optional
        The layers, by name or by their number in the order of their first calls; all when None.
    heads : sequence of int, optional
        The query heads of each layer; all when None.
    tokens : int, default 4096
        Calls of a layer are kept as long as their keys, batch times m, add up to at most so many.
        A call that does not fit is not kept, while smaller ones after it may be. In float32,
        4096 tokens of a layer of 768 dimensions take 25 MB.

    Raises
    ------
    InputError
        For arguments of the wrong kind, and for lists without layers or heads.

    Examples
    --------
    >>> import headfit as hf, headfit.torch
    >>> hf.torch.Keep(layers=[0, 1], tokens=100_000)
    Keep(layers=(0, 1), heads=None, tokens=100000)
    """

    layers: Sequence[str | int] | None = None
    heads: Sequence[int] | None = None
    tokens: int = 4096

    def __post_init__(self) -> None:
        for name, given in (("layers", self.layers), ("heads", self.heads)):
            if given is None:
                continue
            if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
                raise InputError(f"keep.{name} must be a sequence; got {shown(given)}")
            items: Any = tuple(
                x if isinstance(x, str) and name == "layers" else as_count(x, f"keep.{name}", 0)
                for x in given
            )
            if not items:
                raise InputError(f"keep.{name} must name at least one; got {shown(given)}")
            vars(self)[name] = items if name == "layers" else tuple(sorted(set(items)))
        vars(self)["tokens"] = as_count(self.tokens, "keep.tokens", 0)
