"""Heads in a narrow format: keys are rounded, then queries so that their errors cancel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._base.dtypes import round_to
from headfit._base.tolerances import Tolerances, with_margin
from headfit._fit.head import Head, tightened
from headfit._fit.learned import learned
from headfit._fit.problem import Problem
from headfit._fit.row_solver import only_rows, polish_rows

__all__ = ["FIRST_RESERVE", "narrowed", "reserved", "with_narrow_queries"]

Rows = NDArray[np.intp]

# The part of the distortion's logarithm that the descent keeps in reserve for rounding.
FIRST_RESERVE = 0.4
# What exact queries keep, in turn: less for rows that have no query otherwise, and more for rows
# whose queries do not bear their rounding.
LESS, MORE = (FIRST_RESERVE, 0.25, 0.1), (0.6, 0.8)


def with_narrow_queries(
    problem: Problem,
    head: Head,
    target: _core.Target | None = None,
    max_norm: float | None = None,
) -> Head:
    """Round queries to the format of the problem, so that the errors of their coordinates cancel.

    They keep to the tolerances for `target`, that of the problem when None, and to a bound on
    max ||q|| max ||k||.
    """
    tolerances, limit = problem.tolerances, problem.logit_limit
    queries = _core.round_queries(
        problem.target.core if target is None else target,
        np.ascontiguousarray(head.Q, dtype=np.float32),
        np.ascontiguousarray(head.K, dtype=np.float32),
        _core.Tolerances(
            *with_margin(tolerances.leak, tolerances.distortion, problem.logit_step),
            math.inf if limit is None else limit,
        ),
        _core.Storage(problem.dtype, problem.scale_for(head.dim), max_norm or 0.0),
        problem.threads,
    )
    return replace(head, Q=queries)


def reserved(problem: Problem, share: float) -> tuple[float, float]:
    """Return leak and distortion with a part of the distortion's logarithm in reserve."""
    leak, distortion = problem.tolerances.leak, problem.tolerances.distortion
    return with_margin(leak, distortion, share * math.log1p(distortion))


def narrowed(problem: Problem, head: Head, max_norm: float) -> Head:
    """Return a head whose keys and queries / scale the format of the problem holds exactly.

    Keys are rounded to nearest. Rows that these keys no longer suit get exact queries, and all
    queries are rounded so that their errors cancel. `failed_rows` are those that have no query for
    the rounded keys, or none that bears its rounding; if there are any of the first kind, keys and
    queries are returned as they were before rounding.
    """
    target, scale = problem.target, np.float32(problem.scale_for(head.dim))
    k = round_to(head.K, problem.dtype)
    max_query = max_norm / float(np.linalg.norm(k.astype(np.float64), axis=1).max())
    exact = np.array(head.Q, dtype=np.float32)

    def solve(rows: Rows, share: float) -> Rows:
        tolerances = tightened(*reserved(problem, share))
        return polish_rows(target, exact, k, rows, tolerances, max_query, problem.threads)

    failed = _failing(problem, exact, k, FIRST_RESERVE)
    for share in LESS:
        failed = solve(failed, share)
    if failed.size:
        return replace(head, Q=exact, failed_rows=failed)
    rounded = np.zeros_like(exact)
    rows = np.arange(target.n, dtype=np.intp)
    for more in (None, *MORE):
        if more is not None:  # rows without a query for this reserve are not rounded again
            rows = np.setdiff1d(rows, solve(rows, more))
        of_rows = with_narrow_queries(problem, Head(exact, k), only_rows(target, rows))
        rounded[rows] = of_rows.Q[rows]
        # As `fit` will store them: queries for which no good rounding was found go to the nearest.
        stored = round_to(rounded / scale, problem.dtype) * scale
        rows = failed = _failing(problem, stored, k, 0.0)
        if not failed.size:
            break
    return replace(head, Q=rounded, K=k, failed_rows=failed)


def _failing(problem: Problem, q: FloatArray, k: FloatArray, share: float) -> Rows:
    """Return the rows that miss the tolerances less a reserve, by a scan without steps."""
    tolerances = Tolerances(*reserved(problem, share))
    scan = replace(problem, tolerances=tolerances, deadline=math.inf, cluster=None)
    failed = learned(scan, q.shape[1], init=(q, k), most_steps=0, polished_share=0.0).failed_rows
    return np.empty(0, dtype=np.intp) if failed is None else failed
