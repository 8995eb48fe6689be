"""Shrinking: the smallest head found that attends as a larger one does."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from headfit._attention.attention import Attention
from headfit._attention.dense_target import check_one_head
from headfit._attention.logits import LogitOptions
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import (
    as_array,
    as_count,
    check_between,
    check_finite,
    seed_from,
    thread_count,
)
from headfit._base.dtypes import check_dtype
from headfit._fit.fit import _check_distortion
from headfit._fit.learned import check_effort
from headfit._shrink import to_attention as dense
from headfit._shrink import to_pattern as pattern
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit._soft.descent import check_effort as check_soft_effort
from headfit.errors import InputError

__all__ = ["shrink"]

TV = 0.05
LEAK, DISTORTION = 0.05, 0.1
PATTERN_SECONDS = 60.0


def _the_head(Q: Any, K: Any, scale: float | None, mask: Any) -> Attention:
    attention = Attention.of(Q, K, LogitOptions(scale, mask)).turned()
    check_one_head(attention, "the head")
    for x, name in zip(attention.stored, "QK", strict=True):
        check_finite(x, name)
    return attention


def _one_question(keeps: dict[str, Any], close: dict[str, Any], only: dict[str, Any]) -> bool:
    """Return whether a pattern is to be kept; raise for arguments of the other question."""
    asked = [name for name, x in keeps.items() if x is not None]
    near = [name for name, x in close.items() if x is not None]
    if asked and near:
        raise InputError(
            f"{near[0]} must not be given beside {asked[0]}: either attention stays close, or its "
            "pattern is kept"
        )
    if "dim" in near and len(near) > 1:
        raise InputError(f"{near[0]} must not be given beside dim: the size decides how close")
    lost = [name for name, x in only.items() if x is not None]
    if lost and not asked:
        raise InputError(f"{lost[0]} is of a pattern: give per_row or mass too")
    return bool(asked)


@standard_arithmetic()
def shrink(
    Q: Any,
    K: Any = None,
    *,
    tv: float | None = None,
    tv_worst: float | None = None,
    dim: int | None = None,
    per_row: int | None = None,
    mass: float | None = None,
    per_column: int | None = None,
    exempt_columns: Any = None,
    leak: float | None = None,
    distortion: float | None = None,
    scale: float | None = None,
    mask: Any = None,
    dtype: str = "float32",
    effort: str | int | None = None,
    curve_dims: Sequence[int] | None = None,
    time_limit: float | None = None,
    rng: Any = 0,
    num_threads: int | None = None,
) -> ShrinkResult:
    """Find a smaller head that attends as this one does.

    Two questions, told apart by what is given:

    - `tv`, `tv_worst` or `dim`: no sparsity is assumed. The smallest head whose attention stays
      within a total variation of this head's, or the closest of a size.
    - `per_row` or `mass`: the smallest head that is certified to keep the heaviest entries of
      every row.

    Parameters
    ----------
    Q, K : array_like, shape (n, D) and (m, D)
        One head; a pattern needs m = n. Or Q an `Attention`.
    tv : float in (0, 1), optional
        The total variation from the original, half the sum of |difference|, that rows may have
        on average; 0.05 when nothing else is asked.
    tv_worst : float in (0, 1), optional
        The total variation that any row may have.
    dim : int, optional
        The size to fit; no search.
    per_row : int, optional
        Keep this many entries of a row, the heaviest.
    mass : float in (0, 1], optional
        Keep the fewest entries that hold this share of a row. Entries that weigh next to nothing
        cost as much as others, so this may well be the better bound; `per_row` still holds.
    per_column : int, optional
        Keep at most this many entries of a column that is not exempt.
    exempt_columns : sequence of int or "auto", optional
        Columns without that bound, which may have a coordinate of their own (`append_columns`).
        "auto", the default: sinks, the columns that more than half of the rows keep; see
        `sparsify`. () for none.
    leak, distortion : float, optional
        Tolerances of the pattern, see `Certificate`; 0.05 and 0.1.
    scale : float, optional
        Of the logits of Q and K; 1 / sqrt(D) when None. The new head has 1 / sqrt(dim).
    mask : optional
        As in `attention_matrix`.
    dtype : "float32", "float64", "bfloat16" or "float16"
        Of the new head; what is reported is about the stored numbers.
    effort : "low", "medium", "high" or int, optional
        As in `fit_soft` ("medium") or, for a pattern, in `fit` ("low").
    curve_dims : sequence of int, optional
        Sizes for both curves, besides those that the search tries: fitted with low effort. Powers
        of two up to the original size when None; () for none. The baseline of a pattern has
        these sizes too.
    time_limit : float, optional
        Seconds; without one, a pattern has 60.
    rng : seed or Generator, default 0
    num_threads : int, optional
        The result does not depend on it, as long as no time limit ends the search.

    Returns
    -------
    ShrinkResult
        ``result.shrunk`` tells whether there is a smaller head, ``result.fit`` is the head.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts.

    See Also
    --------
    fit_soft, svd_head, sparsify, append_columns

    Notes
    -----
    Close: sizes 1, 2, 4, ... until one is close enough, then bisection; each by `fit_soft`, from
    the truncated SVD of the row-centred logits, and once more from a smaller head where that is
    closer. The SVD itself is kept where it is closer still. Total variation falls with the size
    in practice, not provably: the smallest size found, not a proof.

    A pattern: `sparsify`; then three ways, of which the smallest certified head is kept. The
    whole pattern, learned from random starts; the pattern without its exempt columns, to
    which these are appended; and one size less, learned from the truncated SVD. Where
    no learned head certifies in time, max-margin queries for the keys of that SVD. Measured on
    nine patterns of heads of 256 tokens, up to 4 or 8 entries a row, the learned method reaches the
    same sizes (3 to 9) from the SVD as from random starts, in as much time; max-margin needs 13
    to 24 dimensions for keys of the SVD, and 16 to 45 for random keys.

    Every certificate is about the sparsified matrix; `tv_mean` and `tv_worst` are about the
    original. What leaks adds up: ask for the leak that bounds it, `bounds.leak_for_stray`.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> Q, K = rng.normal(size=(2, 60, 16)) * 2.0 ** -np.arange(16) * 8
    >>> small = hf.shrink(Q, K, mask="causal", tv=0.05, curve_dims=())
    >>> small.shrunk, small.tv_mean <= 0.05, small.dim < 8
    (True, True, True)
    >>> kept = hf.shrink(Q, K, mask="causal", mass=0.5, per_row=2, time_limit=2)
    >>> kept.fit.certificate.holds, kept.dim < 16
    (True, True)
    """
    start = time.perf_counter()
    attention = _the_head(Q, K, scale, mask)
    only = {
        "per_column": per_column,
        "exempt_columns": exempt_columns,
        "leak": leak,
        "distortion": distortion,
    }
    keeps = _one_question(
        {"per_row": per_row, "mass": mass}, {"tv": tv, "tv_worst": tv_worst, "dim": dim}, only
    )
    seconds = PATTERN_SECONDS if keeps and time_limit is None else time_limit
    if seconds is not None:
        seconds = check_between(seconds, "time_limit", 0, math.inf)
    if effort is None:
        effort = "low" if keeps else "medium"
    (check_effort if keeps else check_soft_effort)(effort)
    dtype = check_dtype(dtype)
    wanted = dense.Wanted(
        attention,
        tv=TV if tv is None and tv_worst is None else _share(tv, "tv"),
        tv_worst=_share(tv_worst, "tv_worst"),
        effort=effort,
        deadline=math.inf if seconds is None else start + seconds,
        storage=dtype,
        seed=seed_from(rng),
        threads=thread_count(num_threads),
    )
    if dim is not None:
        dim = as_count(dim, "dim", 1, wanted.largest)
    sizes = dense.Sizes(wanted)
    if curve_dims is None:
        more = dense.powers_of_two(wanted.largest)
    else:
        sizes_asked = np.atleast_1d(as_array(curve_dims, "curve_dims"))
        more = [as_count(d, "curve_dims", 1, wanted.largest) for d in sizes_asked.tolist()]
    if keeps:
        kept = pattern.Keeping.of(
            wanted,
            leak=LEAK if leak is None else check_between(leak, "leak", 0, 1),
            distortion=_check_distortion(DISTORTION if distortion is None else distortion, dtype),
            exempt="auto" if exempt_columns is None else exempt_columns,
            per_column=per_column,
            per_row=per_row,
            mass=mass,
        )
        found = kept.answer()
        sizes.start_all({*more, min(found["fit"].dim, wanted.largest)})
    else:
        found = sizes.answer(dim)
        sizes.fill(more)
        found["curve"] = {d: head.comparison for d, head in sizes.found.items()}
    comparison, curve = found["comparison"], TvCurve.of(found.pop("curve"))
    return ShrinkResult(
        tv_mean=comparison.tv_mean,
        tv_worst=comparison.tv_worst,
        baseline=TvCurve.of({d: head.comparison for d, head in sizes.svd.items()}),
        curve=curve,
        original_dim=attention.dim,
        seconds=time.perf_counter() - start,
        **found,
    )


def _share(value: float | None, name: str) -> float:
    return math.inf if value is None else check_between(value, name, 0, 1)
