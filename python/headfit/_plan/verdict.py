"""What a plan concludes from its attempts: the verdict, what stood in the way, and the advice."""

from __future__ import annotations

from typing import Literal

import numpy as np

from headfit._base.dtypes import DIGITS, NARROW
from headfit._base.text import number
from headfit._fit.ending import Obstacle
from headfit._plan.attempt import PlanAttempt
from headfit._plan.result import Verdict
from headfit._plan.search import Planner
from headfit._plan.text import worse
from headfit._target.heavy import heavy_notes


def verdict_of(planner: Planner) -> Verdict:
    """Return "yes" for a certificate, "no" for a proof, and "not found" for neither."""
    question, asked = planner.question, planner.asked
    if planner.best is not None and planner.best.purpose in ("asked", "smaller logits"):
        return "yes"
    if planner.proved.refutes(question.dim, question.tolerances):
        return "no"
    late = None if asked is None or asked.obstacle != "bound" else asked.lower_bound
    return "no" if late is not None and late.dim > question.dim else "not found"


def _certified(planner: Planner, *purposes: str) -> list[PlanAttempt]:
    """Return the certified attempts that were made for some purposes."""
    return [a for a in planner.attempts if a.purpose in purposes and a.holds]


def obstacle_of(planner: Planner, verdict: Verdict) -> Obstacle | Literal["memory"] | None:
    """Return what stood in the way: a demand without which a head certifies, or else the fit's."""
    if verdict != "not found":
        return None if verdict == "yes" else "bound"
    if _certified(planner, "float32", "float32 logits"):
        return "format"
    if _certified(planner, "free logits"):
        return "logits"
    if planner.target is None:
        return "memory"
    return next((a.obstacle for a in planner.attempts if a.purpose == "asked"), "time")


def advice_of(planner: Planner, verdict: Verdict) -> str:
    """Return what the outcome means and what to try, in a few sentences."""
    parts = {
        "yes": [],
        "no": ["Ask for a larger dim or wider tolerances, without max_logit if there was one."],
        "not found": [_of_size(planner), _of_formats(planner), _of_fit(planner)],
    }[verdict]
    target = planner.target
    if target is not None and target.mask is None and target.n > 1 and target.looks_back:
        parts.append(
            'No token attends to a later one: with mask="causal" the head is asked for less.'
        )
    return " ".join(part for part in parts if part)


def _of_size(planner: Planner) -> str:
    """Say why no head was tried at the n of the question, or at a smaller one."""
    n = planner.source.n
    if planner.target is None:
        return f"n = {n:,} stood in the way: the pattern does not fit in the free memory."
    if not any(a.purpose == "asked" for a in planner.attempts):
        return (
            f"Time stood in the way: a certificate of {n:,} tokens is predicted to take "
            f"{planner.clock.certificate(n):.2g} s alone. Try a larger time_limit, or hf.fit."
        )
    if not planner.source.has_smaller:
        return "The pattern is known at this n alone, so no smaller n was tried."
    return ""


def _of_formats(planner: Planner) -> str:
    """Say what a demand took that was relaxed with success."""
    question = planner.question
    if wide := _certified(planner, "float32"):
        narrow = [a for a in planner.attempts if a.dtype == question.dtype and a.n == wide[0].n]
        reached = f" ({worse(narrow[0])})" if narrow else ""
        return (
            f"The format stood in the way: float32 holds at the same size, while {question.dtype}, "
            f"of {DIGITS[question.dtype]} significant bits, was not certified{reached}."
        )
    if _certified(planner, "float32 logits"):
        return f"The kernel {question.kernel} stood in the way. Fused kernels keep logits wide."
    if free := _certified(planner, "free logits"):
        limit, logit = question.tolerances.max_logit, number(free[0].max_logit, 3)
        return f"The bound on logits stood in the way: a head has {logit} in place of {limit:.4g}."
    return ""


def _of_fit(planner: Planner) -> str:
    """Say how the fit of the question ended, and what it reached."""
    head, dtype = planner.asked, planner.question.dtype
    if head is None:
        return ""
    if head.obstacle == "bound":
        return head.advice
    words = [_ENDED[head.obstacle or "method"].format(dtype=dtype)]
    float32 = [a.holds for a in planner.attempts if a.purpose == "float32"]
    if dtype in NARROW and float32 == [False]:
        words.append("float32 was not certified at this size either.")
    words.append(f"Reached as asked: {head.certificate.reached}.")
    exempt = np.array(head.settings.get("exempt_columns", []), dtype=np.int64)
    if planner.target is not None:
        notes = heavy_notes(planner.target, exempt)
        words += [f"{note[0].upper()}{note[1:]}." for note in notes]
    return " ".join(words)


_ENDED: dict[Obstacle, str] = {
    "time": "The fit as asked ran out of time, which proves nothing: try a larger time_limit, or a "
    "larger dim, which takes fewer steps.",
    "steps": "The fit as asked spent all steps of its effort, which proves nothing: try a larger "
    'dim, or method=hf.methods.Learned(effort="high").',
    "logits": "Storing the head took its logits past max_logit: try a larger max_logit or dim.",
    "format": "Rounding to {dtype} took what the method had found: try a larger dim or distortion.",
    "callback": "The method's callback ended the fit as asked, which proves nothing.",
    "method": "The method gave up, which proves nothing: try a larger dim or wider tolerances.",
}
