"""The heads of a stack: each as an `Attention` of its own, and a function over all of them."""

import contextvars
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._base.arguments import thread_count
from headfit._base.arrays import as_array, by_heads, is_sparse
from headfit._base.masks import by_first_axes
from headfit._base.positions import alibi_slopes
from headfit.errors import InputError


def single_heads(attention: Attention) -> list[Attention]:
    """Return the heads of a stack in order; each computes the bits that the stack computes.

    Queries and keys are views. The order is that of the leading axes, the last one fastest.
    """
    lead, options = attention.lead, dict(vars(attention.options))
    if not lead:
        return [attention]
    q, k = attention.stored
    # Consecutive query heads share a key head.
    group = math.prod(lead) // max(1, math.prod(k.shape[:-2]))
    stacked: dict[str, NDArray[Any]] = {}  # options that heads may have of their own, by head
    shape = attention.n, attention.m
    for name, own in (("mask", shape), ("bias", shape), ("sinks", ())):
        value = options[name]
        if not (value is None or isinstance(value, (str, tuple)) or is_sparse(value)):
            stacked[name] = by_heads(as_array(value, name), lead, own, name)
    for name, keys in {"key_lengths": None, "key_mask": attention.m}.items():
        if options[name] is not None:
            stacked[name] = by_first_axes(as_array(options[name], name), lead, name, keys)
    position = options["position"]
    kind, slopes = position if isinstance(position, tuple) else (position, None)
    if kind == "alibi":
        slopes = (
            alibi_slopes(lead[-1]) if slopes is None else as_array(slopes, "the slopes of alibi")
        )
        stacked["position"] = by_heads(slopes, lead, (), "the slopes of alibi")
    heads = []
    for at, i in enumerate(np.ndindex(lead)):
        options |= {name: array[at] for name, array in stacked.items()}
        if kind == "alibi":
            options["position"] = ("alibi", float(options["position"]))
        heads.append(Attention(q[i], k[np.unravel_index(at // group, k.shape[:-2])], **options))
    return heads


def over_heads(
    attention: Attention,
    function: Callable[..., Any],
    num_threads: int | None,
    *,
    one_at_a_time: bool,
) -> NDArray[np.object_]:
    """Return ``function(head)`` for each head, in the shape of the leading axes.

    Heads are worked on at the same time, each with its share of the threads, or one after the
    other, each with all of them: then a Generator is read in the order of the heads, and Ctrl-C
    ends the head that is being worked on. Errors name the head. After Ctrl-C no further head is
    started; what other threads are working on goes on to its end, and is dropped.
    """
    threads = thread_count(num_threads)
    heads, places = single_heads(attention), list(np.ndindex(attention.lead))
    workers = 1 if one_at_a_time else max(1, min(threads, len(heads)))

    def work(place: tuple[int, ...], head: Attention) -> Any:
        try:
            return function(head, num_threads=max(1, threads // workers))
        except InputError as error:
            where = ", ".join(str(p) for p in place)
            raise type(error)(f"head {where}: {error}") from error

    results = np.empty(attention.lead, dtype=object)
    if workers == 1:
        for place, head in zip(places, heads, strict=True):
            results[place] = work(place, head)
        return results
    pool = ThreadPoolExecutor(workers, thread_name_prefix="headfit")
    try:
        jobs = [
            pool.submit(contextvars.copy_context().run, work, place, head)
            for place, head in zip(places, heads, strict=True)
        ]
        for place, job in zip(places, jobs, strict=True):
            results[place] = job.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results
