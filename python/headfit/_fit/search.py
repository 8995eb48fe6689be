"""The search for a small head: what is tried next, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from headfit import bounds
from headfit._base.machine import available_memory
from headfit._fit.problem import Problem
from headfit._fit.result import Search, Trial

Sizes = Generator[tuple[int, bool], bool, str]
"""Yields a size to try, and whether to try it briefly; gets whether it certifies; and returns why
there is no other size to try."""

TIME_LIMIT = "the time limit"
BISECTED = "bisected to neighbouring sizes"
PROVED = "is proved necessary"
TAKEN = "is what the exempt columns and one dimension beside them take"
# What cut an attempt short, which then says nothing about its size.
CUT = {"time limit": TIME_LIMIT, "callback": "the callback"}


def tried(sizes: Sizes, attempt: Callable[[int, bool], Trial], deadline: float) -> Search:
    """Try one size after the other, until an attempt is cut short or the deadline comes."""
    trials: list[Trial] = []
    smallest = None
    dim, brief = next(sizes)
    while True:
        trial = attempt(dim, brief)
        trials.append(trial)
        if trial.holds:
            smallest = dim
        elif trial.reason in CUT:
            return Search(tuple(trials), smallest, CUT[trial.reason])
        try:
            dim, brief = sizes.send(trial.holds)
        except StopIteration as end:
            return Search(tuple(trials), smallest, end.value)
        if time.perf_counter() >= deadline:
            return Search(tuple(trials), smallest, TIME_LIMIT)


def doubled(first: int, largest: int, why_largest: str, step: int = 1, offset: int = 0) -> Sizes:
    """Double from `first` until a size certifies, then bisect.

    Sizes are multiples of `step` up to `largest`, to each of which `offset` is added: the
    coordinates that exempt columns take. `why_largest` says why there is no larger size.
    """
    most = max(largest // step, 1)
    low, high = 0, min(-(-first // step), most)
    while not (yield high * step + offset, False):
        if high == most:
            return f"stopped at {most * step + offset}, {why_largest}"
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        holds = yield middle * step + offset, False
        low, high = (low, middle) if holds else (middle, high)
    return BISECTED


def bisected(
    problem: Problem, attempt: Callable[[int, bool], Trial], first: int, step: int = 1
) -> Search:
    """Double from a size for the other columns until one certifies, then bisect.

    The largest size is what is proved to suffice for the projection, what memory allows, or what
    the module holds.
    """
    target, taken = problem.other_columns, problem.exempt_dims
    enough = bounds.projection_dim(
        target.n, target.per_row, target.gamma, problem.other_leak, problem.tolerances.distortion
    )
    largest, why = enough, "the size that is proved to suffice"
    free = available_memory()
    # Q and K, and the packed copies that a scan makes of them, must fit in half of the free memory.
    number = problem.working_dtype.itemsize
    affordable = 2**20 if free is None else free // (8 * target.n * number)
    if affordable < largest:
        largest, why = max(1, int(affordable)), "what fits in memory"
    if problem.module is not None and problem.module.dim - taken < largest:
        largest, why = problem.module.dim - taken, "the size of the module"
    return tried(doubled(first, largest, why, step, taken), attempt, problem.deadline)


def galloping(first: int, lowest: int, largest: int, why_lowest: str = PROVED) -> Sizes:
    """Find a small size near a guess, for a method whose failures cost far more than successes.

    The search goes up from `first`, each size half as large again, until one certifies. These
    attempts are brief, since a larger size is tried next. Then it bisects down to the size that
    failed in a brief attempt, and tries that one again, fully. Where nothing failed, it goes down
    by 1, 2, 4, ... until a size fails, and bisects what lies between. It tries no size below
    `lowest`, for the reason `why_lowest`.
    """
    size = min(max(first, lowest), largest)
    # `doubtful` is the largest size that failed in a brief attempt alone.
    doubtful = failed = below = lowest - 1
    while not (yield size, size < largest):
        if size == largest:
            return f"stopped at {largest}"
        doubtful, size = size, min(size + (size + 1) // 2, largest)
    stride = 1
    while size - failed > 1:
        known = max(failed, doubtful)
        if known > below and size - known > 1:
            lower = (size + known) // 2
        elif doubtful > failed:
            lower = doubtful
        else:  # nothing has failed yet: gallop
            lower = max(size - stride, lowest)
            stride *= 2
        if not (yield lower, False):
            failed = lower
            continue
        size = lower
        if size <= doubtful:
            doubtful = below
    return BISECTED if failed > below else f"the bracket closed: {lowest} {why_lowest}"
