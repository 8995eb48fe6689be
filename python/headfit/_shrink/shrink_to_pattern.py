"""Shrinking to a pattern: the smallest head certified to keep the heaviest entries of a head."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, overload

from headfit._attention.attention import Attention, HeadLike, OneHead
from headfit._attention.logits import LogitOptions
from headfit._attention.over_heads import over_heads
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import check_between
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._base.types import ArrayLike, Columns, MaskLike, Seed
from headfit._fit.learned import check_effort
from headfit._shrink.original import Original
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit._shrink.to_pattern import PatternToKeep, smallest

__all__ = ["shrink_to_pattern"]


class _Options(TypedDict, total=False):
    """The options of `shrink_to_pattern`, for type checkers."""

    per_row: int | None
    mass: float | None
    per_column: int | None
    exempt_columns: Columns
    leak: float | None
    distortion: float | None
    max_logit: float | None
    tolerances: Tolerances | None
    scale: float | None
    mask: MaskLike
    dtype: str
    effort: str | int
    curve_dims: Sequence[int] | None
    time_limit: float
    rng: Seed
    num_threads: int | None


@overload
def shrink_to_pattern(
    Q: OneHead, K: ArrayLike | None = None, **options: Unpack[_Options]
) -> ShrinkResult: ...


@overload
def shrink_to_pattern(
    Q: HeadLike, K: ArrayLike | None = None, **options: Unpack[_Options]
) -> Any: ...


@standard_arithmetic()
def shrink_to_pattern(
    Q: HeadLike,
    K: ArrayLike | None = None,
    *,
    per_row: int | None = None,
    mass: float | None = None,
    per_column: int | None = None,
    exempt_columns: Columns = "auto",
    leak: float | None = None,
    distortion: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    scale: float | None = None,
    mask: MaskLike = None,
    dtype: str = "float32",
    effort: str | int = "low",
    curve_dims: Sequence[int] | None = None,
    time_limit: float = 60.0,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Any:
    """Find a smaller head that is certified to keep the heaviest entries of every row.

    `shrink` stays close to the attention as a whole instead, and assumes no sparsity.

    Parameters
    ----------
    Q, K : array_like, shape (..., n, D)
        One head, or heads with leading axes as in `attention_matrix`, each of which is shrunk by
        itself, with the same `exempt_columns`. Or Q an `Attention` or a fit.
    per_row : int, optional
        Keep this many entries per row, the heaviest. `per_row` or `mass` must be given.
    mass : float in (0, 1], optional
        Keep the fewest entries that hold this share of a row. Entries that weigh next to nothing
        cost as much as others, so this may well be the better bound; `per_row` still holds.
    per_column : int, optional
        Keep at most this many entries of a column that is not exempt.
    exempt_columns : "auto" or sequence of int, default "auto"
        Columns without that bound, which may have a coordinate of their own (`append_dims`).
        "auto": sinks, the columns that more than half of the rows keep; see `sparsify`. None
        for none.
    leak, distortion, max_logit : float, optional
        What the certificate of the pattern asks: see `Tolerances`, which has the defaults.
    tolerances : Tolerances, optional
        The same three as one object, in their place.
    scale : float, optional
        The scale of the logits of Q and K; 1 / sqrt(D) when None. The new head has 1 / sqrt(dim).
    mask : optional
        As in `attention_matrix`.
    dtype : "float32", "float64", "bfloat16" or "float16"
        The dtype of the new head; what is reported is about the stored numbers.
    effort : "low", "medium", "high" or int, default "low"
        As in `Learned`.
    curve_dims : sequence of int, optional
        Sizes for the baseline, besides that of the new head. Powers of two up to the original
        size when None; () for none.
    time_limit : float, default 60
        The time limit in seconds, for each head.
    rng : seed or Generator, default 0
    num_threads : int, optional
        The result does not depend on it, as long as no time limit ends the search.

    Returns
    -------
    ShrinkResult, or ndarray of them
        ``result.shrunk`` tells whether there is a smaller head, ``result.fit`` is the head, and
        ``result.sparsified`` the pattern. For a stack of heads, an array of objects in the shape
        of the leading axes, with what single calls in this order return for each head.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts.

    See Also
    --------
    shrink, sparsify, methods.append_dims

    Notes
    -----
    `sparsify` makes the pattern; then there are three ways, of which the smallest certified head
    is kept. The whole pattern, learned from random starts; the pattern without its exempt
    columns, to which these are appended; and one size less, learned from the truncated SVD. Where
    no learned head certifies in time, max-margin queries for the keys of that SVD are tried. On
    nine patterns of heads of 256 tokens, up to 4 or 8 entries per row, the learned method reaches
    the same sizes (3 to 9) from the SVD as from random starts, in as much time; max-margin needs
    13 to 24 dimensions for keys of the SVD, and 16 to 45 for random keys.

    The certificate is about the sparsified matrix; `tv_mean` and `tv_worst` are about the
    original. The leaks of all entries of a row add up; `bounds.leak_for_stray` gives the leak that
    bounds their sum.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> Q, K = rng.normal(size=(2, 60, 16)) * 2.0 ** -np.arange(16) * 8
    >>> kept = hf.shrink_to_pattern(Q, K, mask="causal", mass=0.5, per_row=2, time_limit=2)
    >>> kept.fit.certificate.holds, kept.dim < 16
    (True, True)
    """
    start = time.perf_counter()
    check_effort(effort)
    time_limit = check_between(time_limit, "time_limit", 0, math.inf)
    asked = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    attention = Attention.of(Q, K, LogitOptions(scale, mask))
    if attention.lead:
        options: dict[str, Any] = {
            "per_row": per_row,
            "mass": mass,
            "per_column": per_column,
            "exempt_columns": exempt_columns,
            "tolerances": asked,
            "dtype": dtype,
            "effort": effort,
            "curve_dims": curve_dims,
            "time_limit": time_limit,
            "rng": rng,
        }
        return over_heads(attention, shrink_to_pattern, options, num_threads, one_at_a_time=True)
    original = Original.of(
        attention,
        dtype=dtype,
        time_limit=time_limit,
        rng=rng,
        num_threads=num_threads,
    )
    asked.check_storable(original.dtype)
    more = original.sizes(curve_dims)
    pattern = PatternToKeep.of(
        original,
        tolerances=asked,
        effort=effort,
        exempt=exempt_columns,
        per_column=per_column,
        per_row=per_row,
        mass=mass,
    )
    ways, stopped = pattern.ways()
    best = smallest(ways)
    head = list(ways.values())[-1] if best is None else best
    curve = {h.dim: pattern.distance(h) for h in ways.values() if h.certificate.holds}
    comparison = curve[head.dim] = pattern.distance(head)
    return ShrinkResult(
        fit=head,
        tv_mean=comparison.tv_mean,
        tv_worst=comparison.tv_worst,
        baseline=original.baseline({*more, min(head.dim, original.largest)}),
        curve=TvCurve.of(curve),
        original_dim=original.attention.dim,
        reached=best is not None,
        stopped=stopped,
        comparison=comparison,
        sparsified=pattern.sparsified,
        appended=tuple(head.settings.get("exempt_columns", ())),
        ways={w: h.dim if h.certificate.holds else None for w, h in ways.items()},
        seconds=time.perf_counter() - start,
    )
