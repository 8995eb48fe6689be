"""The search for a small head: what is tried next, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from headfit._fit.result import Search, Trial

Attempt = Callable[[int], Trial]

TIME_LIMIT = "the time limit"


def _cut(trial: Trial) -> str | None:
    """Return what cut an attempt short, which then says nothing about its size."""
    return {"time limit": TIME_LIMIT, "callback": "the callback"}.get(trial.reason or "")


def double_and_bisect(
    attempt: Attempt,
    first: int,
    largest: int,
    limit: str,
    step: int = 1,
    deadline: float = math.inf,
    beside: int = 0,
) -> Search:
    """Double from `first` until a size certifies, then bisect.

    Sizes are multiples of `step`, and `beside` more, the coordinates of exempt columns.
    """
    largest = max(largest // step, 1)
    units = min(-(-first // step), largest)
    trials: list[Trial] = []

    def size(units: int) -> int:
        return units * step + beside

    def holds(units: int) -> bool:
        trials.append(attempt(size(units)))
        return trials[-1].holds

    low = 0
    while not holds(units):
        why = _cut(trials[-1])
        if units == largest:
            why = why or f"stopped at {size(largest)}, {limit}"
        elif time.perf_counter() >= deadline:
            why = why or TIME_LIMIT
        if why:
            return Search(tuple(trials), None, why)
        low, units = units, min(2 * units, largest)
    while units - low > 1:
        if time.perf_counter() >= deadline:
            return Search(tuple(trials), size(units), TIME_LIMIT)
        middle = (low + units) // 2
        if holds(middle):
            units = middle
        elif why := _cut(trials[-1]):
            return Search(tuple(trials), size(units), why)
        else:
            low = middle
    return Search(tuple(trials), size(units), "bisected to neighbouring sizes")


PROVED = "is proved necessary"
TAKEN = "is what the exempt columns and one dimension beside them take"


def gallop_down(
    attempt: Callable[[int, bool], Trial],
    first: int,
    lowest: int,
    largest: int,
    deadline: float,
    why_lowest: str = PROVED,
) -> Search:
    """Find a small size near a guess: failures cost far more than successes.

    From `first` upwards, by halves, until a size certifies. The second argument of an attempt is
    whether to make haste: so on the way up, where a larger size will do. Then bisection down to
    what failed in haste, which is tried again; and where nothing failed, down by 1, 2, 4, ...
    until a size fails, and bisection of what is between. No size below `lowest`, for the reason
    `why_lowest`. An attempt that the time limit or a callback cut short ends the search: it is no
    failure.
    """
    trials: list[Trial] = []

    def holds(size: int, haste: bool = False) -> bool:
        trials.append(attempt(size, haste))
        return trials[-1].holds

    def out_of_time() -> bool:
        return time.perf_counter() >= deadline

    size = min(max(first, lowest), largest)
    below = lowest - 1
    doubtful = below  # failed in haste
    failed = below
    while not holds(size, haste=size < largest):
        why = _cut(trials[-1])
        if size == largest:
            why = why or f"stopped at {largest}"
        elif out_of_time():
            why = why or TIME_LIMIT
        if why:
            return Search(tuple(trials), None, why)
        doubtful, size = size, min(size + (size + 1) // 2, largest)
    stride = 1
    while size - failed > 1:
        if out_of_time():
            return Search(tuple(trials), size, TIME_LIMIT)
        known = max(failed, doubtful)
        if known > below and size - known > 1:
            lower = (size + known) // 2
        elif doubtful > failed:
            lower = doubtful
        else:  # nothing has failed yet: gallop
            lower = max(size - stride, lowest)
            stride *= 2
        if holds(lower):
            size = lower
            if size <= doubtful:
                doubtful = below
        elif why := _cut(trials[-1]):
            return Search(tuple(trials), size, why)
        else:
            failed = lower
    if failed == below:
        return Search(tuple(trials), size, f"the bracket closed: {lowest} {why_lowest}")
    return Search(tuple(trials), size, "bisected to neighbouring sizes")


def ample_dim(n: int, k: float) -> int:
    """Return a head size at which more columns no longer make the learned method quicker."""
    return likely_dim(n, k) + 4


def likely_dim(n: int, k: float) -> int:
    """Return a head size that the learned method is likely to certify at once.

    `k` is the mean number of nonzeros of a row: a few full rows ask for little.
    Measured for random k-regular patterns at gamma 2, leak 0.05 and log distortion 0.1: a size
    or two above the smallest found, about 2.3 + 1.2 k at n = 512 and 0.23 k more a doubling.
    Structured patterns need less.
    """
    doublings = math.log2(max(n, 2)) - 9
    guess = 2.4 + 1.17 * k + 0.225 * k * doublings
    return max(2, min(n, math.ceil(guess)))
