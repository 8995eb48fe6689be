"""The search for a small head: what is tried next, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from headfit import bounds
from headfit._base.memory import available_memory
from headfit._fit.problem import Problem
from headfit._fit.result import Search, Trial

TIME_LIMIT = "the time limit"


def _cut(trial: Trial) -> str | None:
    """Return what cut an attempt short, which then says nothing about its size."""
    return {"time limit": TIME_LIMIT, "callback": "the callback"}.get(trial.reason or "")


def double_and_bisect(
    attempt: Callable[[int], Trial],
    first: int,
    largest: int,
    why_largest: str,
    step: int = 1,
    deadline: float = math.inf,
    offset: int = 0,
) -> Search:
    """Double from `first` until a size certifies, then bisect.

    Sizes are multiples of `step` up to `largest`, to each of which `offset` is added: the
    coordinates that exempt columns take. `why_largest` says why there is no larger size.
    """
    largest = max(largest // step, 1)
    units = min(-(-first // step), largest)
    trials: list[Trial] = []

    def size(units: int) -> int:
        return units * step + offset

    def holds(units: int) -> bool:
        trials.append(attempt(size(units)))
        return trials[-1].holds

    low = 0
    while not holds(units):
        why = _cut(trials[-1])
        if units == largest:
            why = why or f"stopped at {size(largest)}, {why_largest}"
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


def largest_dim(problem: Problem) -> tuple[int, str]:
    """Return the size at which a search ends, exempt columns not counted, and why it does.

    It is the size that is proved to suffice for the projection, or what memory allows.
    """
    target, asked = problem.other_columns, problem.tolerances
    proved = bounds.projection_dim(
        target.n, target.per_row, target.gamma, problem.other_leak, asked.distortion
    )
    free = available_memory()
    # Q and K, and the packed copies that a scan makes of them, must fit in half of the free memory.
    number = problem.working_dtype.itemsize
    affordable = 2**20 if free is None else free // (8 * target.n * number)
    if proved <= affordable:
        return proved, "the size that is proved to suffice"
    return max(1, int(affordable)), "what fits in memory"


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
    """Find a small size near a guess, for a method whose failures cost far more than successes.

    The search goes up from `first`, each size half as large again, until one certifies. These
    attempts are brief (the second argument of `attempt` is True), since a larger size is tried
    next. Then it bisects down to the size that failed in a brief attempt, and tries that one
    again, fully. Where nothing failed, it goes down by 1, 2, 4, ... until a size fails, and
    bisects what lies between. It tries no size below `lowest`, for the reason `why_lowest`.
    An attempt that the time limit or a callback cut short ends the search and counts as no
    failure.
    """
    trials: list[Trial] = []

    def holds(size: int, brief: bool = False) -> bool:
        trials.append(attempt(size, brief))
        return trials[-1].holds

    def out_of_time() -> bool:
        return time.perf_counter() >= deadline

    size = min(max(first, lowest), largest)
    below = lowest - 1
    doubtful = below  # failed in a brief attempt
    failed = below
    while not holds(size, brief=size < largest):
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
