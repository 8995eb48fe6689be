"""Dense targets: the head of a given size whose attention is closest in KL divergence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike
from headfit._attention.dense_target import core_target_of, head_to_match, target_matrix
from headfit._base.arrays import as_count, check_between, computed_in, effort_steps
from headfit._base.machine import require_memory
from headfit._base.masks import core_mask
from headfit._base.types import MaskLike
from headfit._fit.head import Head
from headfit._shrink.starts import log_svd, padded_start, truncated_svd

# The most steps, and the relative decrease of the loss over ten steps below which the descent
# ends.
EFFORTS = {"low": 100, "medium": 500, "high": 5000}
TOO_LITTLE = {"low": 1e-2, "medium": 1e-3, "high": 1e-5}
# The mean KL divergence of a row, in nats, below which rounding in float32 dominates. The mean
# total variation is then at most sqrt(EXACT / 2) = 7e-4, by Pinsker's inequality and Jensen's.
EXACT = 1e-6

Callback = Callable[[int, float], Any]


def check_effort(effort: str | int) -> tuple[int, float]:
    """Return the most steps, and the relative decrease over ten steps that ends the descent."""
    steps = effort_steps(effort, EFFORTS, least=0)
    return steps, TOO_LITTLE[effort if isinstance(effort, str) else "high"]


def progress_of(callback: Callback | None) -> Callback | None:
    """Return a user's callback as the core calls it: whatever is not False goes on."""
    return None if callback is None else lambda *state: callback(*state) is not False


def svd_start(target: Any, mask: Any, dim: int, seed: int) -> Head:
    """Return the truncated SVD of the logits of a checked target: of a head, or of a matrix."""
    if isinstance(target, Attention):
        return Head(*truncated_svd(*target.stored, dim, scale=target.scale))
    return Head(*log_svd(target, mask, dim, seed))


def closest(
    target: HeadLike,
    dim: int,
    *,
    mask: MaskLike = None,
    seed: int = 0,
    threads: int = 1,
    effort: str | int = "medium",
    enough: float = EXACT,
    time_limit: float = math.inf,
    init: Any = None,
    callback: Callback | None = None,
) -> Head:
    """Return the head whose attention M has the least sum of KL(A_i || M_i) from a dense target A.

    The descent starts from the truncated SVD of the logits, or from the queries and keys of
    `init`. It is limited-memory BFGS around a preconditioner, the diagonal blocks of the Hessian,
    one for each query and each key, which is renewed every ten steps. Each evaluation streams the
    logits of A and of M once; no n x m array is stored. It takes O(n m (d + D)) time for a target
    of head size D, every tenth O(n m d^2). Memory is O((n + m)(d^2 + D)), times at most 16 for the
    sums of the keys.

    It ends when the mean KL divergence of a row is at most `enough`, when ten steps lower the loss
    by less than the effort asks for, or when no step lowers it. The loss is not convex: the result
    is a local minimum, and the start decides which one. ``settings["descent"]`` says how it went:
    "status" ("enough", "converged", "step limit", "time limit" or "stopped"), steps, evaluations,
    seconds, and "kl", pairs (step, mean KL of a row in nats).

    Four things were tried and are no better: the annealed momentum of `Learned` from the same
    start, a random start, a start from a larger fitted head, and renewing the curvature more
    often. Damping a tenth or three times as large, or a longer memory, changes little. Without
    the preconditioner the same divergence takes several times the evaluations, where it is
    reached at all.
    """
    dim = as_count(dim, "dim", 1, 2**15)
    steps, tolerance = check_effort(effort)
    wide = head_to_match(target, "the target", mask)
    if wide is not None:
        target = wide.rotated()
        mask, (q, k) = target.mask, target.stored
        dtype, shape = computed_in(q, k), (q.shape[0], k.shape[0])
    else:
        target = target_matrix(target)
        dtype, shape = computed_in(target), target.shape
    require_memory(
        dtype.itemsize * sum(shape) * dim * (3 * dim + 40), f"a smaller head of size dim = {dim}"
    )
    allowed = core_mask(mask, (), shape)
    core_target = core_target_of(target, mask)
    if init is not None:
        start = padded_start(init, shape, dim, seed)
    else:
        if wide is None:
            _core.check_soft_target(core_target, threads)
        first = svd_start(target, mask, dim, seed)
        start = first.Q, first.K
    first_q, first_k = (np.ascontiguousarray(x, dtype=dtype) for x in start)
    limits = _core.DescentLimits(
        max_steps=steps,
        tolerance=tolerance,
        enough=check_between(enough, "enough", 0, math.inf),
        time_limit=time_limit,
        progress=progress_of(callback),
    )
    q, k, kl, report = _core.fit_soft(core_target, allowed, first_q, first_k, limits, threads)
    return Head(q, k, settings={"descent": {**report, "kl": _history(kl)}})


def _history(kl: NDArray[np.float64]) -> list[tuple[int, float]]:
    """Return the divergence at the start, at steps 1, 2, 5, 10, 20, 50 ..., and at the end."""
    last = kl.size - 1
    rounds = {m * 10**e for e in range(len(str(last))) for m in (1, 2, 5)}
    return [(s, float(kl[s])) for s in sorted({0, last} | {s for s in rounds if s < last})]
