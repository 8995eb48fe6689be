"""The heads of a stack: each as an `Attention` of its own, and a function over all of them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._base.arrays import as_array, is_sparse, thread_count
from headfit._base.positions import alibi_slopes
from headfit.errors import InputError


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


def over_heads(
    attention: Attention,
    function: Callable[..., Any],
    options: Mapping[str, Any],
    num_threads: int | None,
    *,
    one_at_a_time: bool,
) -> NDArray[np.object_]:
    """Return ``function(head, **options)`` for each head, in the shape of the leading axes.

    Heads are worked on at the same time, each with its share of the threads, or one after the
    other, each with all of them: then a Generator is read in the order of the heads, and Ctrl-C
    ends the head that is being worked on. Errors name the head. Where heads are worked on at the
    same time, no further head is started after Ctrl-C; those that other threads are working on go
    on to their end, and their results are dropped.
    """
    threads = thread_count(num_threads)
    heads, places = single_heads(attention), list(np.ndindex(attention.lead))
    results = np.empty(attention.lead, dtype=object)
    workers = 1 if one_at_a_time else max(1, min(threads, len(heads)))

    def work(i: int) -> Any:
        try:
            return function(heads[i], **options, num_threads=max(1, threads // workers))
        except InputError as error:
            where = ", ".join(str(p) for p in places[i])
            raise type(error)(f"head {where}: {error}") from error

    if workers == 1:
        for i, place in enumerate(places):
            results[place] = work(i)
        return results
    pool = ThreadPoolExecutor(workers, thread_name_prefix="headfit")
    try:
        jobs = [pool.submit(contextvars.copy_context().run, work, i) for i in range(len(heads))]
        for place, job in zip(places, jobs, strict=True):
            results[place] = job.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results
