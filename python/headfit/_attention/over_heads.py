"""One result for each head of a stack, with threads over the heads."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.single_heads import single_heads
from headfit.errors import InputError


def over_heads(
    attention: Attention, call: Callable[[Attention, int], Any], threads: int, *, at_once: int
) -> NDArray[np.object_]:
    """Return ``call(head, threads_of_the_call)`` for each head, in the shape of the leading axes.

    At most `at_once` heads are worked on at the same time, each with its share of the threads.
    Errors name the head. After Ctrl-C no further head is started; those that other threads are
    working on go on to their end, and their results are dropped.
    """
    heads, places = single_heads(attention), list(np.ndindex(attention.lead))
    found = np.empty(attention.lead, dtype=object)
    workers = max(1, min(threads, at_once, len(heads)))

    def work(i: int) -> Any:
        try:
            return call(heads[i], max(1, threads // workers))
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
