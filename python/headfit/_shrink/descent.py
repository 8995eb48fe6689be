"""The head of a given size whose attention is closest to a dense one in KL divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.dense_target import core_target_of
from headfit._base.arguments import as_count, check_between, check_callable, seed_from, thread_count
from headfit._base.arrays import as_array, check_dtype
from headfit._base.machine import require_memory
from headfit._base.masks import core_mask
from headfit._base.types import Seed
from headfit._fit.head import Head
from headfit._fit.learned import effort_steps
from headfit._shrink.original import Original, padded_with_noise

# The most steps, and the relative decrease of the loss over ten steps below which the descent
# ends.
EFFORTS = {"low": 100, "medium": 500, "high": 5000}
TOO_LITTLE = {"low": 1e-2, "medium": 1e-3, "high": 1e-5}
# The mean KL divergence of a row, in nats, below which rounding in float32 dominates. The mean
# total variation is then at most sqrt(EXACT / 2) = 7e-4, by Pinsker's inequality and Jensen's.
EXACT = 1e-6

# The mean total variation that is allowed where a call has no bound.
TV = 0.05

Callback = Callable[[int, float], Any]


class SizeKeywords(TypedDict, total=False):
    """The options that `shrink` and `compress` share, for type checkers."""

    dim: int | None
    tv: float | None
    dtype: str
    effort: str | int
    curve_dims: Sequence[int] | None
    time_limit: float | None
    callback: Callback | None
    rng: Seed
    num_threads: int | None


@dataclass(frozen=True)
class Running:
    """How descents run: the options that `shrink` and `compress` share, checked."""

    dtype: str
    effort: str | int
    deadline: float
    callback: Callback | None
    seed: int
    threads: int

    @classmethod
    def of(
        cls,
        dtype: Any = "float32",
        effort: str | int = "medium",
        time_limit: float | None = None,
        callback: Callback | None = None,
        rng: Any = 0,
        num_threads: int | None = None,
    ) -> Running:
        """Check them. The time limit begins now."""
        dtype = check_dtype(dtype)
        effort_steps(effort, EFFORTS, least=0)
        check_callable(callback, "callback")
        deadline = math.inf
        if time_limit is not None:
            deadline = time.perf_counter() + check_between(time_limit, "time_limit", 0, math.inf)
        return cls(dtype, effort, deadline, callback, seed_from(rng), thread_count(num_threads))

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit; negative after it."""
        return self.deadline - time.perf_counter()

    def limits(self, enough: float = EXACT) -> dict[str, Any]:
        """Return when a descent ends, as `_core.DescentLimits` takes it."""
        call, effort = self.callback, self.effort
        return {
            "max_steps": effort_steps(effort, EFFORTS, least=0),
            "tolerance": TOO_LITTLE[effort if isinstance(effort, str) else "high"],
            "enough": enough,
            "time_limit": max(self.seconds_left, 0.0),
            "progress": None if call is None else lambda *state: call(*state) is not False,
        }


def closest(
    original: Original, dim: int, running: Running, *, enough: float = EXACT, start: Any = None
) -> Head:
    """Return the head whose attention M has the least sum of KL(A_i || M_i) from the original A.

    The descent starts from the truncated SVD of the logits, or from `start`, queries and keys of as
    many columns or fewer. It is limited-memory BFGS around a preconditioner, the diagonal blocks of
    the Hessian, one for each query and each key, which is renewed every ten steps. Each evaluation
    streams the logits of A and of M once; no n x m array is stored. It takes O(n m (d + D)) time
    for a target of head size D, every tenth O(n m d^2). Memory is O((n + m)(d^2 + D)), times at
    most 16 for the sums of the keys.

    It ends when the mean KL divergence of a row is at most `enough`, when ten steps lower the loss
    by less than the effort asks for, or when no step lowers it. The loss is not convex: the result
    is a local minimum, and the start decides which one. ``settings["descent"]`` says how it went:
    "status" ("enough", "converged", "step limit", "time limit" or "stopped"), steps, evaluations,
    seconds, and "kl", pairs (step, mean KL of a row in nats).

    Without the preconditioner the same divergence takes several times the evaluations. Annealed
    momentum, as in `Learned`, and random starts are no better.
    """
    shape, dtype = original.shape, original.dtype
    need = dtype.itemsize * sum(shape) * dim * (3 * dim + 40)
    require_memory(need, f"a smaller head of size dim = {dim}")
    if start is None:
        start = original.svd(dim, running.seed)
    rng = np.random.default_rng(running.seed)
    first_q, first_k = (
        np.ascontiguousarray(padded_with_noise(x, dim, rng), dtype=dtype) for x in start
    )
    q, k, kl, report = _core.fit_soft(
        core_target_of(original.target, original.mask),
        core_mask(original.mask, (), shape),
        first_q,
        first_k,
        _core.DescentLimits(**running.limits(enough)),
        running.threads,
    )
    return Head(q, k, settings={"descent": {**report, "kl": _history(kl)}})


def _history(kl: NDArray[np.float64]) -> list[tuple[int, float]]:
    """Return the divergence at the start, at steps 1, 2, 5, 10, 20, 50 ..., and at the end."""
    last = kl.size - 1
    rounds = {m * 10**e for e in range(len(str(last))) for m in (1, 2, 5)}
    return [(s, float(kl[s])) for s in sorted({0, last} | {s for s in rounds if s < last})]


def smallest_size(
    is_close: Callable[[int], bool], largest: int, running: Running
) -> tuple[int | None, int, str]:
    """Return the smallest size found that is close enough, the last one tried, and why it ended.

    Sizes are doubled from the least, which is the cheapest to fit, and then bisected.
    """
    low, high = 0, 1
    while not is_close(high):
        if high == largest:
            return None, high, "no size is close enough"
        if running.seconds_left <= 0:
            return None, high, "the time limit"
        low, high = high, min(2 * high, largest)
    while high - low > 1:
        if running.seconds_left <= 0:
            return high, high, "the time limit"
        middle = (low + high) // 2
        low, high = (low, middle) if is_close(middle) else (middle, high)
    return high, high, "bisected to neighbouring sizes"


def checked_sizes(sizes: Any, name: str, largest: int) -> list[int]:
    """Return the sizes of a user."""
    return [as_count(x, name, 1, largest) for x in np.atleast_1d(as_array(sizes, name)).tolist()]


def powers_of_two(largest: int) -> list[int]:
    """Return powers of two up to a size, and the size."""
    return sorted({2**e for e in range(largest.bit_length())} | {largest})
