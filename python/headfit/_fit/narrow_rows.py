"""A learned head in a narrow format: rounded keys, then queries for each row with its own room."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base import dtypes
from headfit._base.arrays import FloatArray
from headfit._base.tolerances import Tolerances
from headfit._fit.given_keys import only_rows
from headfit._fit.head import Head, tightened
from headfit._fit.learned import learned, polish_rows
from headfit._fit.problem import Problem
from headfit._target.target import Target

__all__ = ["FIRST_RESERVE", "narrowed"]

# The parts of the distortion's logarithm that exact queries keep in reserve for their rounding.
# The first is that of the descent; rows that fail with one are tried with the next.
FIRST_RESERVE = 0.4
RESERVES = (FIRST_RESERVE, 0.6, 0.25, 0.75)


def reserved(asked: Tolerances, share: float) -> tuple[float, float]:
    """Return leak and distortion with a part of the distortion's logarithm in reserve."""
    spare = share * math.log1p(asked.distortion)
    return asked.leak * math.exp(-spare), math.expm1(math.log1p(asked.distortion) - spare)


def narrowed(problem: Problem, target: Target, head: Head, max_norm: float) -> Head:
    """Return a head whose keys and queries / scale the format of the problem holds exactly.

    Keys are rounded to nearest. Rows that these keys no longer suit get exact queries with some
    reserve, which are rounded so that errors cancel; rows that fail then are tried with another
    reserve. `failed_rows` are those that no reserve helps.
    """
    asked, scale = problem.tolerances, problem.scale_for(head.dim)
    k = dtypes.round_to(head.K, problem.dtype)
    longest = float(np.linalg.norm(k.astype(np.float64), axis=1).max())
    exact = np.array(head.Q, dtype=np.float32)
    failed = _failing(problem, target, exact, k, FIRST_RESERVE)
    rounded = np.zeros_like(exact)
    rows = np.arange(target.n, dtype=np.intp)
    for share in RESERVES:
        tolerances = tightened(*reserved(problem.tolerances, share))
        polish_rows(target, exact, k, failed, tolerances, max_norm / longest, problem.threads)
        trial = _core.round_queries(
            only_rows(target, rows),
            exact,
            k,
            _core.Tolerances(asked.leak, asked.distortion, math.inf),
            _core.Storage(problem.dtype, scale),
            problem.threads,
        )
        rounded[rows] = trial[rows]
        # As `fit` will store them: rows for which no good rounding was found go to the nearest.
        q = dtypes.round_to(rounded / np.float32(scale), problem.dtype) * np.float32(scale)
        rows = failed = _failing(problem, target, q, k, 0.0)
        if not failed.size:
            break
    return replace(head, Q=rounded, K=k, failed_rows=failed)


def _failing(
    problem: Problem, target: Target, q: FloatArray, k: FloatArray, share: float
) -> NDArray[np.intp]:
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
        patience=0.0,  # no steps: a scan alone
        polished_share=0.0,
    )
    return np.empty(0, dtype=np.intp) if found.failed_rows is None else found.failed_rows
