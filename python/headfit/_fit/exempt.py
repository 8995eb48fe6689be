"""A head with exempt columns: the method's head for the others, and a coordinate for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headfit._base import dtypes
from headfit._fit.ending import Ending
from headfit._fit.head import Head
from headfit._fit.problem import Problem
from headfit._target.append_columns import appended, in_two_parts


def with_exempt_columns(problem: Problem, dim: int, run: Callable[[Problem, int], Head]) -> Head:
    """Return a head of size `dim` for the whole problem.

    ``run(problem, size)`` makes the head for the problem of the other columns.
    """
    scale, columns = problem.scale_for(dim), problem.exempt_columns
    limit = math.inf if problem.logit_limit is None else problem.logit_limit
    head = run(problem.without_exempt(dim), dim - problem.exempt_dims)
    q, k = appended(problem.target, head.Q, head.K, columns, problem.tolerances.leak, limit)
    if problem.is_narrow:
        q = in_two_parts(
            q, columns.size, lambda x: dtypes.round_to(x / scale, problem.dtype) * scale
        )
        k = np.hstack([k, k[:, -columns.size :]])
    settings = {**head.settings, "exempt_columns": columns.tolist()}
    settings["dim_used"] = settings.get("dim_used", head.dim) + problem.exempt_dims
    # A proof for the pattern without the exempt columns is no proof for the whole pattern.
    ended: Ending = "stalled" if head.ended == "infeasible" else head.ended
    return replace(
        head,
        Q=q.astype(problem.working_dtype),
        K=k.astype(problem.working_dtype),
        witnesses=None,
        settings=settings,
        ended=ended,
    )
