"""Heads in a narrow format: keys are rounded, then queries so that their errors cancel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from headfit import _core
from headfit._base.arrays import round_to
from headfit._base.tolerances import with_margin
from headfit._fit.head import Head, tightened
from headfit._fit.problem import Problem

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
    met = with_margin(tolerances.leak, tolerances.distortion, problem.logit_step)
    queries = _core.round_queries(
        problem.target.core if target is None else target,
        np.ascontiguousarray(head.Q, dtype=np.float32),
        np.ascontiguousarray(head.K, dtype=np.float32),
        _core.Tolerances(*met, math.inf if limit is None else limit),
        _core.Storage(problem.dtype, problem.scale_for(head.dim), max_norm or 0.0),
        problem.threads,
    )
    return replace(head, Q=queries)


def reserved(problem: Problem, share: float) -> tuple[float, float]:
    """Return leak and distortion with a part of the distortion's logarithm in reserve."""
    leak, distortion = problem.tolerances.leak, problem.tolerances.distortion
    return with_margin(leak, distortion, share * math.log1p(distortion))


def narrowed(problem: Problem, head: Head, max_norm: float | None) -> Head:
    """Return a head whose keys and queries / scale the format of the problem holds exactly.

    Keys are rounded to nearest. Rows that these keys no longer suit get exact queries, and all
    queries are rounded so that their errors cancel. `failed_rows` are those that have no query for
    the rounded keys, or none that bears its rounding; if there are any of the first kind, keys and
    queries are returned as they were before rounding. Logits must be free of a bound.
    """

    def met(*shares: float) -> list[_core.Tolerances]:
        return [_core.Tolerances(*tightened(*reserved(problem, share))) for share in shares]

    k, (stored,) = round_to(head.K, problem.dtype), met(0.0)
    options = _core.NarrowOptions(
        stored=stored,
        rounded=_core.Tolerances(*reserved(problem, 0.0)),
        less=met(*LESS),
        more=met(*MORE),
        storage=_core.Storage(problem.dtype, problem.scale_for(head.dim)),
        max_norm=max_norm or 0.0,
    )
    q = np.ascontiguousarray(head.Q, dtype=np.float32)
    q, failed, fit = _core.narrow_queries(problem.target.core, q, k, options, problem.threads)
    return replace(head, Q=q, K=k if fit else head.K, failed_rows=failed)
