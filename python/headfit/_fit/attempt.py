"""One attempt at a head size: the method runs within the time limit, and the result is judged."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

import numpy as np

from headfit._attention.attention import Attention
from headfit._base.deadline import calls_until
from headfit._fit.ending import Ending
from headfit._fit.exempt import with_exempt_columns
from headfit._fit.head import Head
from headfit._fit.method import Method, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Trial
from headfit._target.certificate import Certificate
from headfit._target.certify import certify
from headfit.errors import InputError, NonFiniteError


def make_head(method: Method, problem: Problem, dim: int, patience: Patience = "full") -> Head:
    """Run a method at one size. If it has no head at the time limit, return a head of zeros."""
    run = partial(_run, method, patience)
    try:
        if problem.exempt_columns.size:
            return with_exempt_columns(problem, dim, run)
        return run(problem, dim)
    except TimeoutError:
        zeros = np.zeros((problem.target.n, dim), problem.working_dtype)
        rows = np.arange(problem.target.n)
        return Head(zeros, zeros, failed_rows=rows, ended="time limit")
    except NonFiniteError as error:
        if not problem.is_narrow:
            raise
        # Rounding gave infinity, and the steps after it made no number of that.
        raise InputError(
            f"Q and K do not fit {problem.dtype} at the scale {problem.scale_for(dim):.3g}: they "
            "go beyond its largest number; try another scale or dtype, or a max_norm"
        ) from error


def _run(method: Method, patience: Patience, problem: Problem, dim: int) -> Head:
    """Return the method's head, padded to `dim` columns; raise an InputError if it is not valid."""
    if problem.kernel.rounds_logits:  # by how much depends on the scale
        problem = replace(problem, scale=problem.scale_for(dim))
    head = method.head(problem, dim, patience)
    if not isinstance(head, Head):
        raise InputError(
            f"method must return a Head; {method.name} returned a {type(head).__name__}"
        )
    shapes = np.shape(head.Q), np.shape(head.K)
    if shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != problem.target.n:
        raise InputError(
            f"method must return Q and K of equal shape with {problem.target.n} rows; "
            f"{method.name} returned shapes {shapes[0]} and {shapes[1]}"
        )
    if not 1 <= shapes[0][1] <= dim:
        raise InputError(
            f"method must return Q and K of 1 to {dim} columns; {method.name} returned "
            f"{shapes[0][1]}"
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
