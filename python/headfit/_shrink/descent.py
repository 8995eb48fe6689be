"""Descents to the head of a given size whose attention is closest to a dense one in KL divergence.

What they come close to is the attention of one head, or a matrix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.heads import allowed_entries, core_target_of, head_to_match, target_matrix
from headfit._base.arguments import as_count, as_positive, check_callable, seed_from, thread_count
from headfit._base.arrays import as_array, blocks_of_rows, check_dtype, check_finite, computed_in
from headfit._base.calls import goes_on, interruptible
from headfit._base.machine import require_memory
from headfit._base.masks import core_mask
from headfit._base.types import FloatArray, Seed
from headfit._fit.head import Head
from headfit._fit.learned import effort_steps
from headfit._fit.method import doubled, tried
from headfit._fit.result import Trial
from headfit.errors import NonFiniteError

# The most steps, and the least relative decrease of the loss over ten steps.
EFFORTS = {"low": 100, "medium": 500, "high": 5000}
TOO_LITTLE = {"low": 1e-2, "medium": 1e-3, "high": 1e-5}
# The mean KL divergence of a row, in nats, below which rounding in float32 dominates. The mean
# total variation is then at most sqrt(EXACT / 2) = 7e-4, by Pinsker's inequality and Jensen's.
EXACT = 1e-6

# The mean total variation that is allowed where a call has no bound.
TV = 0.05
# A weight of zero is replaced by this one where a start needs its logarithm.
FLOOR = 1e-6
# Columns that a start lacks are filled with noise of this size, relative to the others.
PADDING = 1e-2

Callback = Callable[..., Any]


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
    """How descents run: the options that `shrink`, `compress` and others share, checked."""

    dtype: str
    effort: str | int
    deadline: float
    callback: Callback | None
    seed: int
    threads: int

    @classmethod
    def of(
        cls, dtype: Any = "float32", effort: str | int = "medium", time_limit: float | None = None,
        callback: Callback | None = None, rng: Any = 0, num_threads: int | None = None,
    ) -> Self:  # fmt: skip
        """Check them. The time limit begins now."""
        dtype = check_dtype(dtype)
        effort_steps(effort, EFFORTS, least=0)
        check_callable(callback, "callback")
        deadline = time.perf_counter() + (as_positive(time_limit, "time_limit") or math.inf)
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
            "progress": None if call is None else lambda *state: goes_on(call(*state)),
        }


class Original(NamedTuple):
    """The attention that smaller heads come close to, and the mask that they get; checked."""

    target: Attention | FloatArray
    mask: Any
    shape: tuple[int, int]
    dim: int  # of a matrix, the size at which any of its shape has a head
    dtype: np.dtype[Any]  # what to compute in

    @classmethod
    def of(cls, target: Any, mask: Any, threads: int) -> Self:
        """Check it. Rotary positions are applied."""
        head = head_to_match(target, "the head")
        if head is None:
            matrix = target_matrix(target)
            _core.check_soft_target(core_target_of(matrix, mask), threads)
            return cls(matrix, mask, matrix.shape, min(matrix.shape), computed_in(matrix))
        head = head.rotated()
        for x, name in zip(head.stored, "QK", strict=True):
            check_finite(x, name)
        return cls(head, head.mask, (head.n, head.m), head.dim, computed_in(*head.stored))

    @property
    def largest(self) -> int:
        """The largest size of a search; at that of a head the truncated SVD has all of Q K^T."""
        return min(self.dim, *self.shape)

    def is_svd(self, dim: int) -> bool:
        """Whether the truncated SVD of a size is the original itself: other options take more."""
        return (
            isinstance(self.target, Attention)
            and dim >= self.largest
            and {"scale", "mask"}.issuperset(self.target.options.non_default())
        )

    def svd(self, dim: int, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the truncated SVD of a size of the logits; of a matrix, of its logarithm."""
        if isinstance(self.target, Attention):
            return truncated_svd(*self.target.stored, dim, scale=self.target.scale)
        return log_svd(self.target, self.mask, dim, seed)


def truncated_svd(
    Q: Any, K: Any, dim: int, *, scale: float | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the head of a size whose plain products are closest to the logits, in sum of squares.

    Softmax ignores a constant added to a row, so the rows of the logits are centred first:
    scale Q (K - mean K)^T. Masks are not taken into account. At the size of Q and K or above the
    attention is reproduced exactly, with zero columns. Q and K are finite: `Original.of` checks it.

    With Q = U R and K - mean K = V T (QR decompositions, R and T from blocks of rows) and
    R T^T = W S Z^T, the queries are Q T^T Z S^(-1/2) and the keys (K - mean K) R^T W S^(-1/2),
    restricted to the largest singular values (Eckart and Young 1936). Neither the n x m logits nor
    U and V are formed, and Q and K are read in blocks, in float64: O((n + m) D^2) time, and O(D^2)
    memory beside the result, which is in float64 if Q or K is, else in float32.
    """
    attention = Attention(Q, K, scale=scale)
    q, k = attention.stored
    total = sum(block.sum(axis=0, dtype=np.float64) for _, block in blocks_of_rows(k))
    none, mean = np.zeros(q.shape[1]), total / k.shape[0]
    [q_factor], _, [k_factor] = _core.triangular_factors(attention.core, 0, 1, 1)
    q_factor *= attention.scale
    with np.errstate(over="ignore", invalid="ignore"):
        square = q_factor @ k_factor.T
        if not np.isfinite(np.linalg.norm(square)):
            raise NonFiniteError("Q and K must have logits whose squares float64 holds")
    left, size, right = interruptible(
        10.0 * len(square) ** 3, np.linalg.svd, square, full_matrices=False
    )
    # Smaller singular values are rounding errors of this product.
    noise = np.finfo(np.float64).eps * np.linalg.norm(q_factor) * np.linalg.norm(k_factor)
    rank = min(dim, int(np.count_nonzero(size > noise)))
    root, dtype = np.sqrt(size[:rank]), computed_in(q, k)
    return (
        _product(q, none, attention.scale * k_factor.T @ right[:rank].T / root, dim, dtype),
        _product(k, mean, q_factor.T @ left[:, :rank] / root, dim, dtype),
    )


def _product(
    x: FloatArray, mean: FloatArray, factor: FloatArray, dim: int, dtype: Any
) -> FloatArray:
    """Return the product of a stored matrix, its rows centred, with `factor`; then zeros."""
    out = np.zeros((x.shape[0], dim), dtype)
    for rows, block in blocks_of_rows(x):
        out[rows, : factor.shape[1]] = (block - mean) @ factor
    return out


def log_svd(matrix: FloatArray, mask: Any, dim: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return `truncated_svd` for a matrix: of its logarithm, centred over what the mask allows.

    A randomised SVD (Halko, Martinsson and Tropp 2011) of one n x m array of float32.
    """
    n, m = matrix.shape
    require_memory(9 * n * m, f"the start of a fit to a matrix of shape {matrix.shape}")
    logits = np.empty((n, m), np.float32)
    for rows, block in blocks_of_rows(matrix):
        np.log(np.maximum(block, FLOOR, dtype=np.float32), out=logits[rows])
    if mask is not None:
        allowed = allowed_entries((n, m), mask=mask)
        count = np.maximum(allowed.sum(axis=1, keepdims=True), 1)
        logits -= (logits * allowed).sum(axis=1, keepdims=True) / count
        logits *= allowed
    else:
        logits -= logits.mean(axis=1, keepdims=True)
    few = min(dim + 8, n, m)
    operations = float(n * m * few)
    basis = logits @ np.random.default_rng(seed).standard_normal((m, few), dtype=np.float32)
    for _ in range(4):
        basis = interruptible(
            2 * operations, lambda x: logits @ (logits.T @ np.linalg.qr(x)[0]), basis
        )
    basis = interruptible(2.0 * n * few**2, np.linalg.qr, basis)[0]
    left, size, right = interruptible(
        operations + 10.0 * m * few**2,
        lambda x: np.linalg.svd(x.T @ logits, full_matrices=False),
        basis,
    )
    rank = min(dim, size.size)
    root = np.sqrt(size[:rank])
    pad = ((0, 0), (0, dim - rank))
    return np.pad((basis @ left[:, :rank]) * root, pad), np.pad(right[:rank].T * root, pad)


def padded_with_noise(x: FloatArray, dim: int, rng: np.random.Generator) -> FloatArray:
    """Return the columns that a start lacks filled with noise: zero columns would never move."""
    wide = x.astype(np.float64)
    size = PADDING * (math.sqrt(float(np.mean(wide * wide))) if wide.any() else 1.0)
    return np.hstack([wide, size * rng.standard_normal((len(x), dim - x.shape[1]))])


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
    rng = np.random.default_rng(running.seed)
    first = start or original.svd(dim, running.seed)
    if isinstance(original.target, Attention) and not (start or original.is_svd(original.largest)):
        first = [x[:, first[0].any(axis=0)] for x in first]
    first_q, first_k = (
        np.ascontiguousarray(padded_with_noise(x, dim, rng), dtype=dtype) for x in first
    )
    q, k, kl, report = _core.fit_soft(
        core_target_of(original.target, original.mask),
        core_mask(original.mask, (), shape),
        first_q,
        first_k,
        _core.DescentLimits(**running.limits(enough)),
        running.threads,
    )
    # The divergence at the start, at steps 1, 2, 5, 10, 20, 50 ..., and at the end.
    rounds = {m * 10**e for e in range(len(str(kl.size))) for m in (1, 2, 5)}
    steps = sorted({0, kl.size - 1, *(s for s in rounds if s < kl.size)})
    return Head(q, k, settings={"descent": {**report, "kl": [(s, float(kl[s])) for s in steps]}})


def smallest_size(
    is_close: Callable[[int], bool], largest: int, running: Running
) -> tuple[int | None, int, str]:
    """Return the smallest size found that is close enough, the last one tried, and why it ended.

    Sizes are doubled from the least, which is the cheapest to fit, and then bisected.
    """

    def attempt(dim: int, _brief: bool) -> Trial:
        return Trial(dim, is_close(dim), math.nan, math.nan, math.nan)

    search = tried(doubled(1, largest, "of all sizes"), attempt, running.deadline)
    failed = search.dim is None and not search.was_cut
    ended = "no size is close enough" if failed else search.stopped
    return search.dim, search.trials[-1].dim, ended


def checked_sizes(sizes: Any, name: str, most: int | None, least: int = 1) -> list[int]:
    """Return the sizes of a user."""
    return [as_count(x, name, least, most) for x in np.atleast_1d(as_array(sizes, name)).tolist()]


def curve_sizes(curve_dims: Any, largest: int, has_usual: bool) -> list[int]:
    """Return the sizes of a curve: a user's, or else, where it `has_usual` ones, powers of two."""
    if curve_dims is not None:
        return checked_sizes(curve_dims, "curve_dims", largest)
    return sorted({2**e for e in range(largest.bit_length())} | {largest}) if has_usual else []
