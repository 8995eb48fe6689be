"""A learned head in a narrow format: rounded keys, then queries for each row with its own room."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base import dtypes
from headfit._base.arrays import FloatArray
from headfit._base.tolerances import Tolerances, with_margin
from headfit._fit.given_keys import only_rows
from headfit._fit.head import Head, tightened
from headfit._fit.learned import learned, polish_rows
from headfit._fit.problem import Problem
from headfit._target.target import Target

__all__ = ["FIRST_RESERVE", "narrowed", "reserved"]

Rows = NDArray[np.intp]

# The part of the distortion's logarithm that the descent keeps in reserve for rounding.
FIRST_RESERVE = 0.4
# What exact queries keep, in turn: less for rows that have no query otherwise, and more for rows
# whose queries do not bear their rounding.
LESS, MORE = (FIRST_RESERVE, 0.25, 0.1), (0.6, 0.8)


def reserved(asked: Tolerances, share: float) -> tuple[float, float]:
    """Return leak and distortion with a part of the distortion's logarithm in reserve."""
    spare = share * math.log1p(asked.distortion)
    return with_margin(asked.leak, asked.distortion, spare)


def narrowed(problem: Problem, target: Target, head: Head, max_norm: float, scale: float) -> Head:
    """Return a head whose keys and queries / scale the format of the problem holds exactly.

    Keys are rounded to nearest. Rows that these keys no longer suit get exact queries, and all
    queries are rounded so that their errors cancel. `failed_rows` are those that have no query for
    the rounded keys, or none that bears its rounding; if there are any of the first kind, keys and
    queries are returned as they were before rounding.
    """
    threads = problem.threads
    k = dtypes.round_to(head.K, problem.dtype)
    max_query = max_norm / float(np.linalg.norm(k.astype(np.float64), axis=1).max())
    exact = np.array(head.Q, dtype=np.float32)

    def solve(rows: Rows, share: float) -> Rows:
        tolerances = tightened(*reserved(problem.tolerances, share))
        return polish_rows(target, exact, k, rows, tolerances, max_query, threads)

    failed = _failing(problem, target, exact, k, FIRST_RESERVE)
    for share in LESS:
        failed = solve(failed, share)
    if failed.size:
        return replace(head, Q=exact, failed_rows=failed)
    rounded = np.zeros_like(exact)
    rows = np.arange(target.n, dtype=np.intp)
    for more in (None, *MORE):
        if more is not None:  # rows without a query for this reserve are not rounded again
            rows = np.setdiff1d(rows, solve(rows, more))
        rounded[rows] = _core.round_queries(
            only_rows(target, rows),
            exact,
            k,
            _core.Tolerances(*reserved(problem.tolerances, 0.0), math.inf),
            _core.Storage(problem.dtype, scale),
            threads,
        )[rows]
        # As `fit` will store them: queries for which no good rounding was found go to the nearest.
        stored = dtypes.round_to(rounded / np.float32(scale), problem.dtype) * np.float32(scale)
        rows = failed = _failing(problem, target, stored, k, 0.0)
        if not failed.size:
            break
    return replace(head, Q=rounded, K=k, failed_rows=failed)


def _failing(problem: Problem, target: Target, q: FloatArray, k: FloatArray, share: float) -> Rows:
    """Return the rows that miss the tolerances less a reserve."""
    leak, distortion = reserved(problem.tolerances, share)
    found = learned(
        target,
        q.shape[1],
        leak=leak,
        distortion=distortion,
        seed=0,
        threads=problem.threads,
        init=(q, k),
        most_steps=0,  # a scan alone
        polished_share=0.0,
    )
    return np.empty(0, dtype=np.intp) if found.failed_rows is None else found.failed_rows
