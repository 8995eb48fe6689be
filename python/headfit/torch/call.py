"""`Call`: one call of an attention layer, and what its mask and its bias say (`read_masks`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._base.arrays import as_stored_array
from headfit._base.masks import masks_agree
from headfit.errors import CaptureError
from headfit.torch.observed import ObservedCall

Bools = NDArray[np.bool_]


class Passage(NamedTuple):
    """The part of one batch entry that is no padding: its queries, its keys, and their mask.

    The mask is None, "causal", a window, or a boolean array of shape (1 or heads, rows, keys).
    """

    rows: Any
    keys: slice
    mask: Any


class Read(NamedTuple):
    """What a mask and a bias say of the queries and keys of a batch.

    Attributes
    ----------
    mask : object
        For the whole batch: None, "causal", a window, or a boolean array that broadcasts to
        (batch, heads, n, m).
    key_mask : ndarray of bool, shape (batch, m), or None
        Where the keys are that are no padding, if `mask` does not say it.
    passages : tuple of (Passage or None), or None
        One for each entry of the batch, None for an entry that is padding alone. None if no entry
        has padding and all have the same mask.
    bias : ndarray that broadcasts to (batch, heads, n, keys), or None
        What is added to the logits. It has four axes.
    keys : int
        The number of keys; those after them are empty places of a cache.
    """

    mask: Any
    key_mask: Bools | None
    passages: tuple[Passage | None, ...] | None
    bias: NDArray[Any] | None
    keys: int


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
    v : ndarray, shape (batch, key heads, m, dv), or None
        Values, if they are wanted.
    """

    q: NDArray[Any]
    k: NDArray[Any]
    options: dict[str, Any]
    masks: Read
    v: NDArray[Any] | None = None

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
            yield self.attention(), slice(None) if len(self.q) > 1 else 0, slice(None), slice(None)
            return
        for b, passage, attention in self.entries():
            yield attention, b, passage.rows, passage.keys

    def entries(self) -> Iterator[tuple[int, Passage, Attention]]:
        """Yield the number, the place and the attention of each entry of the batch.

        The attention is without padding, and its leading axis is heads. An entry that is padding
        alone is left out.
        """
        mask, passages = self.masks.mask, self.masks.passages
        for b in range(len(self.q)):
            own = mask[b % len(mask)] if isinstance(mask, np.ndarray) else mask
            passage = Passage(slice(None), slice(None), own) if passages is None else passages[b]
            if passage is not None:
                yield b, passage, self._part(b, passage)

    def passages(self) -> Iterator[Attention]:
        """Yield the attention of each entry of the batch, without padding."""
        return (attention for *_, attention in self.entries())

    def with_values(self) -> Iterator[tuple[Attention, NDArray[Any]]]:
        """Yield the same, each with its values, shape (key heads, keys, dv)."""
        if self.v is None:
            raise CaptureError("no values were kept: capture(model, values=True) does")
        return ((one, self.v[b][:, place.keys]) for b, place, one in self.entries())

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


def read_masks(
    seen: ObservedCall, rows: Bools | None, shape: tuple[int, int, int], own: bool
) -> Read:
    """Return what the mask and the bias of an attention of some shape (batch, n, m) say.

    `rows`, (batch, n), says which queries are no padding. If None, queries at the places of keys
    that no query sees are taken for padding. `own` says that queries and keys belong to the same
    tokens, the last query to the last key.
    """
    batch, n, m = shape
    allowed: Any = None
    bias = None
    for name in ("mask", "bias"):
        here, added = _read(getattr(seen, name), name, seen, shape)
        if here is not None:
            allowed = here if allowed is None else allowed & here
        if added is not None:
            bias = added if bias is None else bias + added
    if seen.causal:
        allowed = "causal" if allowed is None else allowed & np.tri(n, m, m - n, dtype=bool)
    if isinstance(allowed, np.ndarray):
        allowed = np.broadcast_to(allowed, (*allowed.shape[:2], n, m))
        if own and m > n:
            # Keys at the end that nobody sees are the empty places of a cache of fixed size.
            some = np.flatnonzero(allowed.any(axis=(0, 1, 2)))
            m = max(n, int(some[-1]) + 1) if some.size else m
            allowed = allowed[..., :m]
            bias = bias if bias is None or bias.shape[-1] == 1 else bias[..., :m]
    mask, key_mask, passages = _visible(allowed, rows, (batch, n, m), own)
    return Read(mask, key_mask, passages, bias, m)


def _visible(allowed: Any, rows: Bools | None, shape: tuple[int, int, int], own: bool) -> Any:
    """Return `mask`, `key_mask` and `passages` of None, "causal" or an array of four axes.

    "causal" aligns the last query with the last key.
    """
    batch, n, m = shape
    if not isinstance(allowed, np.ndarray):
        if rows is None or rows.all():
            return allowed, None, None
        allowed = np.tri(n, m, m - n if allowed else m, dtype=bool)[np.newaxis, np.newaxis]
    if rows is None:
        rows = np.ones((batch, n), bool)
        if own:
            rows = rows & allowed.any(axis=(1, 2))[:, m - n :]
    # All entries of the batch are alike: one mask for them, read once.
    if len(allowed) == 1 and rows.all():
        mask = _form_of(allowed[0])
        return allowed if isinstance(mask, np.ndarray) else mask, None, None
    parts = [_passage(allowed[b % len(allowed)], rows[b], own) for b in range(batch)]
    longest = max((part.mask for part in parts if part), key=np.size, default=None)
    common = None if longest is None else _form_of(longest)

    def named(part: Passage) -> Passage:
        heads, *own = part.mask.shape
        alike = not isinstance(common, np.ndarray) and masks_agree(part.mask, common, own, (heads,))
        return part._replace(mask=common if alike else _form_of(part.mask))

    passages = tuple(part and named(part) for part in parts)
    key_mask = np.zeros((batch, m), bool)
    for b, passage in enumerate(passages):
        if passage is not None:
            key_mask[b, passage.keys] = True
    whole = bool(key_mask.all())
    padded = None if whole and rows.all() else passages
    # A name aligns the last query of a passage with its last key. In a padded entry other tokens
    # come last, which belong together only where keys are those of the queries.
    unlike = isinstance(common, np.ndarray) or any(x and x.mask is not common for x in passages)
    if unlike or (common and padded and not own):
        return allowed, None, passages
    return common, None if whole else key_mask, padded


def _passage(allowed: Bools, rows: Bools, own: bool) -> Passage | None:
    """Return the part of an entry that is no padding, with its own part of the mask, or None."""
    n, m = allowed.shape[1:]
    at = np.flatnonzero(rows)
    seen = np.flatnonzero(allowed[:, at].any(axis=(0, 1)))
    if not seen.size:  # also where there are no rows
        return None
    first, end = int(seen[0]), int(seen[-1]) + 1
    if own:  # keep the last query of the entry at the place of its last key
        first, end = min(first, int(at[0]) + m - n), max(end, int(at[-1]) + 1 + m - n)
    whole = at.size == at[-1] - at[0] + 1
    queries, keys = slice(int(at[0]), int(at[-1]) + 1) if whole else at, slice(first, end)
    return Passage(queries, keys, allowed[:, queries, keys])


def _form_of(allowed: Bools) -> Any:
    """Return a mask of shape (1 or heads, n, m) as None, "causal" or a window where it is one."""
    n, m = allowed.shape[1:]
    if allowed.all():
        return None
    one = allowed[0]
    if (allowed == one).all() and one.any(axis=-1).all():
        position = np.arange(n) + m - n
        left = int((position - one.argmax(axis=-1)).max())
        right = int((m - 1 - one[:, ::-1].argmax(axis=-1) - position).max())
        window = "window", (left, right)
        if left >= 0 and right >= 0 and masks_agree(one, window, (n, m)):
            return "causal" if right == 0 and left == m - 1 else window
    return allowed


def _read(
    tensor: Any, name: str, seen: ObservedCall, shape: tuple[int, int, int]
) -> tuple[Any, NDArray[Any] | None]:
    """Return where a mask or bias allows attention (None: everywhere), and what it adds, if any.

    Both have four axes, and broadcast to (batch, heads, n, m).
    """
    if tensor is None:
        return None, None
    full = (shape[0], seen.query.shape[1], *shape[1:])
    try:
        tensor.expand(full)
    except RuntimeError as error:
        raise CaptureError(
            f"{seen.layer}: the {name} must broadcast to (batch, heads, n, m) = {full}; got shape "
            f"{tuple(tensor.shape)}"
        ) from error
    mask = tensor.detach()[(None,) * (4 - tensor.dim())].cpu()
    if mask.dtype == torch.bool:
        return (None if bool(mask.all()) else mask.numpy().copy()), None
    # Masked entries are minus infinity, or the least number of the dtype plus some logit.
    closed = mask <= torch.finfo(mask.dtype).min / 2
    added = torch.where(closed, torch.zeros((), dtype=mask.dtype), mask)
    allowed = ~closed.numpy() if bool(closed.any()) else None
    return allowed, as_stored_array(added, "bias") if bool(added.any()) else None
