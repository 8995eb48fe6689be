"""Shrinking: the smallest head found whose attention stays close to that of a larger one."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, overload

from headfit._attention.attention import Attention, HeadLike, OneHead
from headfit._attention.logits import LogitOptions
from headfit._attention.over_heads import over_heads
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_count, check_between
from headfit._base.types import ArrayLike, MaskLike, Seed
from headfit._shrink.original import Original
from headfit._shrink.result import ShrinkResult
from headfit._shrink.to_attention import CloseHeads, Closeness
from headfit._soft.descent import check_effort
from headfit.errors import InputError

__all__ = ["shrink"]

# The mean total variation that is allowed where nothing is asked.
TV = 0.05


class _Options(TypedDict, total=False):
    """The options of `shrink`, for type checkers."""

    tv: float | None
    tv_worst: float | None
    dim: int | None
    scale: float | None
    mask: MaskLike
    dtype: str
    effort: str | int
    curve_dims: Sequence[int] | None
    time_limit: float | None
    rng: Seed
    num_threads: int | None


@overload
def shrink(Q: OneHead, K: ArrayLike | None = None, **options: Unpack[_Options]) -> ShrinkResult: ...


@overload
def shrink(Q: HeadLike, K: ArrayLike | None = None, **options: Unpack[_Options]) -> Any: ...


@standard_arithmetic()
def shrink(
    Q: HeadLike,
    K: ArrayLike | None = None,
    *,
    tv: float | None = None,
    tv_worst: float | None = None,
    dim: int | None = None,
    scale: float | None = None,
    mask: MaskLike = None,
    dtype: str = "float32",
    effort: str | int = "medium",
    curve_dims: Sequence[int] | None = None,
    time_limit: float | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Any:
    """Find a smaller head whose attention stays close to that of this one, for this input.

    New queries and keys are found for the passage that Q and K come from, and say nothing about
    other inputs; `compress` finds maps that make the head smaller for every input.

    No sparsity is assumed. The result is the smallest head found whose attention stays within a
    total variation of this head's, or the closest head of a given size. `shrink_to_pattern` keeps
    the heaviest entries of every row instead, with a certificate.

    Parameters
    ----------
    Q, K : array_like, shape (..., n, D) and (..., m, D)
        One head, or heads with leading axes as in `attention_matrix`, each of which is shrunk by
        itself. Or Q an `Attention` or a fit.
    tv : float in (0, 1), optional
        The total variation from the original, half the sum of |difference|, that rows may have
        on average; 0.05 when none of `tv`, `tv_worst` and `dim` is given.
    tv_worst : float in (0, 1), optional
        The total variation that any row may have.
    dim : int, optional
        The size to fit, without a search; then `tv` and `tv_worst` must not be given.
    scale : float, optional
        The scale of the logits of Q and K; 1 / sqrt(D) when None. The new head has 1 / sqrt(dim).
    mask : optional
        As in `attention_matrix`.
    dtype : "float32", "float64", "bfloat16" or "float16"
        The dtype of the new head; what is reported is about the stored numbers.
    effort : "low", "medium", "high" or int, default "medium"
        As in `fit_soft`.
    curve_dims : sequence of int, optional
        Sizes for both curves, besides those that the search tries: fitted with low effort. Powers
        of two up to the original size when None; () for none.
    time_limit : float, optional
        The time limit in seconds, for each head.
    rng : seed or Generator, default 0
    num_threads : int, optional
        The result does not depend on it, as long as no time limit ends the search.

    Returns
    -------
    ShrinkResult, or ndarray of them
        ``result.shrunk`` tells whether there is a smaller head, ``result.fit`` is the head. For a
        stack of heads, an array of objects in the shape of the leading axes, with what single
        calls in this order return for each head.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts.

    See Also
    --------
    compress : for every input, from several passages.
    shrink_to_pattern, fit_soft, svd_head

    Notes
    -----
    Sizes 1, 2, 4, ... are fitted until one is close enough, then bisected; each by `fit_soft`,
    from the truncated SVD of the row-centred logits, and once more from a smaller head where that
    is closer. The SVD itself is kept where it is closer still, and so is a smaller head. Among the
    sizes tried total variation does not rise with the size, up to rounding; that no smaller size
    would do is not proved.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> Q, K = rng.normal(size=(2, 60, 16)) * 2.0 ** -np.arange(16) * 8
    >>> small = hf.shrink(Q, K, mask="causal", tv=0.05, curve_dims=())
    >>> small.shrunk, small.tv_mean <= 0.05, small.dim < 8
    (True, True, True)
    """
    start = time.perf_counter()
    for name, value in {"tv": tv, "tv_worst": tv_worst}.items():
        if value is not None and dim is not None:
            raise InputError(f"{name} must not be given beside dim: the size decides how close")
    check_effort(effort)
    attention = Attention.of(Q, K, LogitOptions(scale, mask))
    if attention.lead:
        options: dict[str, Any] = {
            "tv": tv,
            "tv_worst": tv_worst,
            "dim": dim,
            "dtype": dtype,
            "effort": effort,
            "curve_dims": curve_dims,
            "time_limit": time_limit,
            "rng": rng,
        }
        return over_heads(attention, shrink, options, num_threads, one_at_a_time=True)
    original = Original.of(
        attention,
        dtype=dtype,
        time_limit=time_limit,
        rng=rng,
        num_threads=num_threads,
    )
    closeness = Closeness(
        TV if tv is None and tv_worst is None else _share(tv, "tv"),
        _share(tv_worst, "tv_worst"),
    )
    if dim is not None:
        dim = as_count(dim, "dim", 1, original.largest)
    more = original.sizes(curve_dims)
    heads = CloseHeads(original, closeness, effort)
    fit, stopped, reached = heads.answer(dim)
    curve = heads.curve(more)
    fit = heads.found.get(fit.dim, fit)  # a smaller head may have turned out to be closer
    return ShrinkResult(
        fit=fit,
        tv_mean=fit.comparison.tv_mean,
        tv_worst=fit.comparison.tv_worst,
        baseline=original.baseline({*more, *heads.found}),
        curve=curve,
        original_dim=original.attention.dim,
        reached=reached,
        stopped=stopped,
        comparison=fit.comparison,
        seconds=time.perf_counter() - start,
    )


def _share(value: float | None, name: str) -> float:
    return math.inf if value is None else check_between(value, name, 0, 1)
