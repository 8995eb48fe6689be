"""The heads of a stack, each as an `Attention` of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from headfit._attention.attention import Attention
from headfit._base.arrays import as_array, is_sparse
from headfit._base.positions import alibi_slopes


def single_heads(attention: Attention) -> list[Attention]:
    """Return the heads of a stack in order; each computes the bits that the stack computes.

    Queries and keys are views. The order is that of the leading axes, the last one fastest.
    """
    lead, options = attention.lead, vars(attention.options)
    if not lead:
        return [attention]
    q, k = attention.stored
    # Consecutive query heads share a key head.
    group = lead[-1] // k.shape[-3] if k.ndim > 2 and k.shape[:-2] != lead else 1
    shape = (attention.n, attention.m)
    mask, bias = options["mask"], options["bias"]
    if mask is not None and not isinstance(mask, (str, tuple)) and not is_sparse(mask):
        mask = np.broadcast_to(mask, (*lead, *shape))
    if bias is not None:
        bias = np.broadcast_to(as_array(bias, "bias"), (*lead, *shape))
    lengths, key_mask = (
        None if x is None else _from_the_left(x, lead, own)
        for x, own in ((options["key_lengths"], 0), (options["key_mask"], 1))
    )
    sinks = None if options["sinks"] is None else np.broadcast_to(options["sinks"], lead)

    def at(i: tuple[int, ...]) -> Attention:
        key = i if group == 1 else (*i[:-1], i[-1] // group)
        return Attention(
            q[i],
            k if k.ndim == 2 else k[key],
            scale=options["scale"],
            mask=mask[i] if isinstance(mask, np.ndarray) else mask,
            key_lengths=None if lengths is None else lengths[i],
            bias=None if bias is None else bias[i],
            softcap=options["softcap"],
            position=_position(options["position"], lead, i),
            key_mask=None if key_mask is None else key_mask[i],
            sinks=None if sinks is None else sinks[i],
        )

    return [at(i) for i in np.ndindex(lead)]


def _from_the_left(array: Any, lead: tuple[int, ...], own: int) -> Any:
    """Broadcast an array with `own` last axes of its own over the leading axes from the left."""
    split = max(0, array.ndim - own)
    missing = len(lead) - split
    whole = array.reshape((*array.shape[:split], *(1,) * missing, *array.shape[split:]))
    return np.broadcast_to(whole, (*lead, *array.shape[split:]))


def _position(position: Any, lead: tuple[int, ...], i: tuple[int, ...]) -> Any:
    """Return the positional encoding of one head; slopes of alibi belong to the last axis."""
    kind = position[0] if isinstance(position, tuple) else position
    if kind != "alibi":
        return position
    if not isinstance(position, tuple):
        slopes = alibi_slopes(lead[-1])
        return ("alibi", float(slopes[i[-1]]))
    slopes = as_array(position[1], "the slopes of alibi")
    return ("alibi", float(slopes[i[-1]] if slopes.ndim else slopes))
