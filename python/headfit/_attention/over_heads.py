"""One result for each head of a stack, with threads over the heads."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.single_heads import single_heads
from headfit._base.arrays import thread_count
from headfit.errors import InputError


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
    found = np.empty(attention.lead, dtype=object)
    workers = 1 if one_at_a_time else max(1, min(threads, len(heads)))

    def work(i: int) -> Any:
        try:
            return function(heads[i], **options, num_threads=max(1, threads // workers))
        except InputError as error:
            where = ", ".join(str(p) for p in places[i])
            raise type(error)(f"head {where}: {error}") from error

    if workers == 1:
        for i, place in enumerate(places):
            found[place] = work(i)
        return found
    pool = ThreadPoolExecutor(workers, thread_name_prefix="headfit")
    try:
        results = [pool.submit(contextvars.copy_context().run, work, i) for i in range(len(heads))]
        for place, result in zip(places, results, strict=True):
            found[place] = result.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found
