"""Dense soft targets: the head of a given size whose attention is closest in KL."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike
from headfit._attention.dense_target import (
    core_target_of,
    head_to_match,
    target_matrix,
)
from headfit._base.arrays import as_count, check_between, computed_in, effort_steps
from headfit._base.masks import core_mask
from headfit._base.memory import require_memory
from headfit._base.types import MaskLike
from headfit._fit.head import Head
from headfit._soft.starts import given_start, log_svd, svd_head

__all__ = ["soft", "svd_head"]

# The most steps, and the relative decrease of the loss over ten steps below which the descent
# ends.
EFFORTS = {"low": 100, "medium": 500, "high": 5000}
TOO_LITTLE = {"low": 1e-2, "medium": 1e-3, "high": 1e-5}
# The mean KL divergence of a row, in nats, below which rounding in float32 dominates.
EXACT = 1e-6

Callback = Callable[[int, float], Any]


def check_effort(effort: str | int) -> tuple[int, float]:
    """Return the most steps, and the relative decrease over ten steps that ends the descent."""
    steps = effort_steps(effort, EFFORTS)
    return steps, TOO_LITTLE[effort if isinstance(effort, str) else "high"]


def _history(kl: NDArray[np.float64]) -> list[tuple[int, float]]:
    """Return the divergence at the start, at steps 1, 2, 5, 10, 20, 50 ..., and at the end."""
    last = kl.size - 1
    rounds = {m * 10**e for e in range(len(str(last))) for m in (1, 2, 5)}
    return [(s, float(kl[s])) for s in sorted({0, last} | {s for s in rounds if s < last})]


def soft(
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

    The descent starts from the truncated SVD of the logits. It is limited-memory BFGS around a
    preconditioner, the diagonal blocks of the Hessian, one for each query and each key, which is
    renewed every ten steps. Each evaluation streams the logits of A and of M once; no n x m
    array is stored.

    The descent ends when the mean KL divergence of a row is at most `enough`, when ten steps
    lower the loss by less than the effort asks for, or when no step lowers it. The loss is not
    convex: what is found is a local minimum, and the start decides which one.

    Parameters
    ----------
    target : Attention, a result with one, or array_like, shape (n, m)
        One head, or a matrix whose rows sum to 1. Its dtype is that of the computation.
    dim : int
    mask : optional
        The mask of a target that is a matrix; an Attention has its own. A row with nothing
        allowed asks for nothing.
    seed : int
        Seed of the randomised SVD of a matrix, and of the noise in columns that `init` lacks.
    threads : int
    effort : "low", "medium", "high" or int
        At most 100, 500 or 5000 steps, with a decrease over ten steps of 1e-2, 1e-3 or 1e-5 to go
        on; or steps, with 1e-5.
    enough : float
        Mean KL of a row, in nats, at which to stop. The mean total variation is then at most
        sqrt(enough / 2), by Pinsker's inequality and Jensen's: 7e-4 for the default.
    time_limit : float
        In seconds; checked after every step.
    init : (Q, K), optional
        A start, of `dim` columns or fewer; logits are Q @ K.T.
    callback : callable, optional
        Called before every step with (step, mean KL of a row); returning False ends the descent.

    Returns
    -------
    Head
        `settings["soft"]` says how it went: "status" ("enough", "converged", "step limit", "time
        limit" or "stopped"), steps, evaluations, seconds, and "kl", pairs (step, mean KL of a row
        in nats).

    Raises
    ------
    InputError
        For shapes, sizes and masks that do not fit.
    TargetError
        When a matrix has negative entries, rows that do not sum to 1, or mass where the mask
        forbids attention; it names row and column.

    Notes
    -----
    An evaluation takes O(n m (d + D)) time for a target of head size D, every tenth O(n m d^2).
    Memory is O((n + m)(d^2 + D)), times at most 16 for the sums of the keys.

    Four things were tried and are no better: the annealed momentum of `Learned` from the same
    start, a random start, a start from a larger fitted head, and renewing the curvature more
    often. Damping a tenth or three times as large, or a longer memory, changes little. Without
    the preconditioner the same divergence takes several times the evaluations, where it is
    reached at all.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from headfit._soft.compare import compare
    >>> from headfit._soft.descent import soft, svd_head
    >>> rng = np.random.default_rng(0)
    >>> Q, K = rng.normal(size=(2, 60, 16)) * 2.0 ** -np.arange(16) * 8
    >>> wide = hf.Attention(Q, K, mask="causal")
    >>> def distance(Q, K):
    ...     return compare(wide, hf.Attention(Q, K, scale=1, mask="causal")).tv_mean
    >>> head = soft(wide, 2)
    >>> bool(distance(head.Q, head.K) < 0.6 * distance(*svd_head(Q, K, 2)))
    True
    """
    dim = as_count(dim, "dim", 1, 2**15)
    steps, tolerance = check_effort(effort)
    wide = head_to_match(target, "the target", mask)
    if wide is not None:
        q, k = wide.turned().stored
        target, mask, dtype, shape = wide, wide.mask, computed_in(q, k), (q.shape[0], k.shape[0])
    else:
        target = target_matrix(target)
        dtype, shape = computed_in(target), target.shape
    require_memory(
        dtype.itemsize * sum(shape) * dim * (3 * dim + 40),
        f"a soft fit of size dim = {dim}",
    )
    allowed = core_mask(mask, (), shape)
    core_target = core_target_of(target, mask)
    if init is not None:
        start = given_start(init, shape, dim, seed)
    elif isinstance(target, Attention):
        start = svd_head(q, k, dim, scale=target.scale)
    else:
        _core.check_soft_target(core_target, threads)
        start = log_svd(target, mask, dim, seed)
    first_q, first_k = (np.ascontiguousarray(x, dtype=dtype) for x in start)
    q, k, history, report = _core.fit_soft(
        core_target,
        allowed,
        first_q,
        first_k,
        _core.DescentLimits(
            max_steps=steps,
            tolerance=tolerance,
            enough=check_between(enough, "enough", 0, math.inf),
            time_limit=time_limit,
            progress=None if callback is None else lambda *state: callback(*state) is not False,
        ),
        threads,
    )
    report["kl"] = _history(history)
    return Head(q, k, settings={"effort": effort, "soft": report})
