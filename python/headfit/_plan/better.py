"""What a plan tries where the head asked for certifies: smaller logits, and smaller heads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headfit._base.dtypes import NARROW
from headfit._plan.attempt import PlanAttempt
from headfit._plan.clock import Clock
from headfit._target.target import Target

if TYPE_CHECKING:
    from headfit._plan.search import Planner

MOST_LIMITS = 5
"""The most smaller bounds on logits that are tried."""

MOST_DIMS = 8
"""The most smaller head sizes that are tried."""

PATIENCE, LEAST_PATIENCE = 10, 1.0
"""A smaller head, or one of smaller logits, may take so many times the first one's seconds."""


def smaller_logits(planner: Planner, target: Target) -> None:
    """Halve the bound on logits while it certifies, in a part of the time that is left."""
    first, proved = planner.found.attempts[-1], planner.found.proved
    least = 0.0 if proved is None else proved.least_logit
    clock = Clock(planner.clock.part("smaller logits"))
    limit = first.max_logit / 2
    for _ in range(MOST_LIMITS):
        if limit <= least or clock.left < first.seconds:
            return
        asked = planner.question.with_max_logit(limit)
        if not planner.attempt("smaller logits", asked, target, _patience(clock, first)):
            return
        limit = planner.found.attempts[-1].max_logit / 2


def smaller_dims(planner: Planner, target: Target) -> None:
    """Halve the size while it certifies, then bisect, in a part of the time that is left."""
    question, proved, first = planner.question, planner.found.proved, planner.found.attempts[0]
    taken = first.exempt * (2 if question.dtype in NARROW else 1)
    lower = 1 if proved is None or proved.lower is None else proved.lower.dim
    holds, fails = question.dim, max(lower - 1, taken)
    clock = Clock(planner.clock.part("smaller dims"))
    for _ in range(MOST_DIMS):
        if holds - fails <= 1 or clock.left < first.seconds:
            return
        used = min(a.dim_used for a in planner.found.attempts if a.holds)
        middle = used if fails < used < holds else (holds + fails) // 2
        smaller = replace(question, dim=middle)
        if planner.attempt("smaller dim", smaller, target, _patience(clock, first)):
            holds = middle
        else:
            fails = middle


def _patience(clock: Clock, first: PlanAttempt) -> float:
    """Return the seconds for a head that is better than the first one that certified."""
    return min(clock.part("one of these"), max(PATIENCE * first.seconds, LEAST_PATIENCE))
