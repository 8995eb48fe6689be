"""One attempt at a head size: the method runs within the time limit, and the result is judged."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from headfit._attention.attention import Attention
from headfit._base.arrays import round_to
from headfit._base.calls import calls_until
from headfit._fit.ending import Ending
from headfit._fit.head import Head
from headfit._fit.method import Method, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Trial
from headfit._target.append_dims import appended, in_two_parts
from headfit._target.certificate import Certificate
from headfit._target.certify import certify
from headfit.errors import InputError, NonFiniteError


def make_head(method: Method, problem: Problem, dim: int, patience: Patience = "full") -> Head:
    """Run a method at one size. If it has no head at the time limit, return a head of zeros."""
    try:
        if problem.exempt.size:
            return _with_exempt_columns(method, problem, dim, patience)
        return _run(method, problem, dim, patience)
    except TimeoutError:
        return Head.of_zeros(problem.target.n, dim, "time limit")
    except NonFiniteError as error:
        if not problem.is_narrow:
            raise
        # Rounding gave infinity, and the steps after it made no number of that.
        raise InputError(
            f"Q and K do not fit {problem.dtype} at the scale {problem.scale_for(dim):.3g}: they "
            "go beyond its largest number; try another scale or dtype, or a max_norm"
        ) from error


def _with_exempt_columns(method: Method, problem: Problem, dim: int, patience: Patience) -> Head:
    """Return the method's head for the other columns, with a coordinate for each exempt one."""
    scale, columns = problem.scale_for(dim), problem.exempt
    limit = math.inf if problem.logit_limit is None else problem.logit_limit
    head = _run(method, problem.without_exempt(dim), dim - problem.exempt_dims, patience)
    q, k = appended(problem.target, head.Q, head.K, columns, problem.tolerances.leak, limit)
    if problem.is_narrow:
        q = in_two_parts(q, columns.size, lambda x: round_to(x / scale, problem.dtype) * scale)
        k = np.hstack([k, k[:, -columns.size :]])
    settings = {**head.settings, "exempt_columns": columns.tolist()}
    settings["dim_used"] = settings.get("dim_used", head.dim) + problem.exempt_dims
    # A proof for the pattern without the exempt columns is no proof for the whole pattern.
    ended: Ending = "stalled" if head.ended == "infeasible" else head.ended
    q, k = q.astype(problem.working_dtype), k.astype(problem.working_dtype)
    return replace(head, Q=q, K=k, witnesses=None, settings=settings, ended=ended)


def _run(method: Method, problem: Problem, dim: int, patience: Patience) -> Head:
    """Return the method's head, padded to `dim` columns; raise an InputError if it is not valid."""
    if problem.kernel.rounds_logits:  # by how much depends on the scale
        problem = replace(problem, scale=problem.scale_for(dim))
    head = method.head(problem, dim, patience)
    if not isinstance(head, Head):
        raise InputError(
            f"method must return a Head; {method.name} returned a {type(head).__name__}"
        )
    n, shape = problem.target.n, np.shape(head.Q)
    if np.shape(head.K) != shape or len(shape) != 2 or shape[0] != n or not 1 <= shape[1] <= dim:
        raise InputError(
            f"method must return Q and K of equal shape, {n} rows and 1 to {dim} columns; "
            f"{method.name} returned shapes {shape} and {np.shape(head.K)}"
        )
    return head.padded(dim)


def judge(
    problem: Problem, attention: Attention, certificate_mass: bool, deadline: float = math.inf
) -> Certificate:
    """Certify an attention against the target, for the dtypes of the problem."""
    certificate = certify(
        problem.target,
        attention,
        tolerances=problem.tolerances,
        kernel=problem.kernel,
        certificate_mass=certificate_mass,
        client=problem.cluster and problem.cluster.until(deadline),
        num_threads=problem.threads,
    )
    if problem.watch is not None:
        problem.watch(int(np.count_nonzero(certificate.row_status)))
    return certificate


def try_size(method: Method, problem: Problem, dim: int, brief: bool = False) -> tuple[Trial, Head]:
    """Run a method at one size of a search, and judge what would be stored without a module."""
    begin = time.perf_counter()
    head = make_head(method, problem, dim, "brief" if brief else "search")
    used = problem.scale_for(dim)
    q, k = head.stored(used, problem.dtype)
    try:
        with calls_until(problem.deadline):
            attention = Attention(q, k, scale=used, mask=problem.target.mask)
            c = judge(problem, attention, False, problem.deadline)
        judged = (c.holds, c.leak, c.distortion)
        reason: Ending = "certified" if c.holds else head.ended
    except TimeoutError:
        judged, reason = (False, math.inf, math.inf), "time limit"
    seconds = time.perf_counter() - begin
    return Trial(dim, *judged, seconds, head.restarts, reason), head
