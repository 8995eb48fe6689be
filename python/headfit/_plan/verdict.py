"""What a plan concludes from its attempts: the verdict, what stood in the way, and the advice."""

from __future__ import annotations

from typing import Literal

import numpy as np

from headfit._base.dtypes import DIGITS, NARROW
from headfit._base.text import number
from headfit._fit.ending import Obstacle
from headfit._plan.attempt import PlanAttempt, Question
from headfit._plan.clock import Clock
from headfit._plan.result import Verdict
from headfit._plan.search import Findings
from headfit._plan.source import Source
from headfit._plan.text import worse
from headfit._plan.trend import PlanTrend
from headfit._target.heavy import heavy_notes


def verdict_of(found: Findings, question: Question) -> Verdict:
    """Return "yes" for a certificate, "no" for a proof, and "not found" for neither."""
    if found.best is not None and found.best.purpose in ("asked", "smaller logits"):
        return "yes"
    if found.proved is not None and found.proved.refutes(question.dim, question.tolerances):
        return "no"
    if found.asked is not None and found.asked.obstacle == "bound" and _is_proved(found, question):
        return "no"
    return "not found"


def _is_proved(found: Findings, question: Question) -> bool:
    """Return whether the fit itself found a proof about every head of this size."""
    bound = None if found.asked is None else found.asked.lower_bound
    return bound is not None and bound.dim > question.dim


def held(found: Findings, *purposes: str) -> PlanAttempt | None:
    """Return the first certified attempt that was made for one of these purposes."""
    return next((a for a in found.attempts if a.purpose in purposes and a.holds), None)


def tried(found: Findings, purpose: str) -> bool:
    """Return whether there was an attempt for this purpose."""
    return any(a.purpose == purpose for a in found.attempts)


def obstacle_of(found: Findings, verdict: Verdict) -> Obstacle | Literal["memory"] | None:
    """Return what stood in the way: a demand without which a head certifies, or else the fit's."""
    if verdict == "yes":
        return None
    if verdict == "no":
        return "bound"
    if held(found, "float32", "float32 logits"):
        return "format"
    if held(found, "free logits"):
        return "logits"
    if found.target is None:
        return "memory"
    asked = [a for a in found.attempts if a.purpose == "asked"]
    return asked[0].obstacle if asked else "time"


def advice_of(
    found: Findings,
    source: Source,
    question: Question,
    clock: Clock,
    verdict: Verdict,
    trend: PlanTrend | None,
) -> str:
    """Return what the outcome means and what to try, in a few sentences."""
    parts = [
        _of_verdict(found, source, clock, verdict),
        _of_formats(found, question),
        _of_logits(found),
        _of_looser(found),
        _of_smaller_n(found, source, trend, verdict),
        _of_mask(found),
        _of_asked(found, question, verdict),
    ]
    return " ".join(part for part in parts if part)


def _of_verdict(found: Findings, source: Source, clock: Clock, verdict: Verdict) -> str:
    if verdict == "yes":
        return ""
    if verdict == "no":
        return "Ask for a larger dim or wider tolerances, and without max_logit if there was one."
    if found.target is None:
        return f"n = {source.n:,} stood in the way: the pattern does not fit in the free memory."
    if not tried(found, "asked"):
        return (
            f"Time stood in the way: a certificate of {source.n:,} tokens is predicted to take "
            f"{clock.certificate(source.n):.2g} s alone. Try a larger time_limit, or hf.fit."
        )
    return ""


def _of_formats(found: Findings, question: Question) -> str:
    wide = held(found, "float32")
    if wide is not None:
        narrow = [
            a for a in found.attempts if a.purpose in ("asked", "smaller n") and a.n == wide.n
        ]
        reached = f" ({worse(narrow[-1])})" if narrow else ""
        return (
            f"The format stood in the way: float32 holds at the same size with logits up to "
            f"{number(wide.max_logit, 3)}, while {question.dtype}, of {DIGITS[question.dtype]} "
            f"significant bits, was not certified{reached}."
        )
    if held(found, "float32 logits") is not None:
        return (
            f"The kernel {question.kernel} stood in the way: with logits in float32 the head is "
            "certified. Fused kernels keep them so."
        )
    return ""


def _of_logits(found: Findings) -> str:
    free = held(found, "free logits")
    if free is None:
        return ""
    limit = next(a for a in found.attempts if a.purpose == "asked").tolerances.max_logit
    return (
        f"The bound on logits stood in the way: without max_logit = {limit:.4g} a head is "
        f"certified with logits up to {number(free.max_logit, 3)}."
    )


def _of_looser(found: Findings) -> str:
    loose = [a for a in found.attempts if a.purpose == "looser" and a.holds]
    if not loose:
        return ""
    asked = loose[-1].tolerances
    return f"Tolerances in reach: leak {asked.leak:.3g} and distortion {asked.distortion:.3g}."


def _of_smaller_n(
    found: Findings, source: Source, trend: PlanTrend | None, verdict: Verdict
) -> str:
    sizes = [a.n for a in found.attempts if a.purpose == "smaller n" and a.holds]
    if sizes:
        more = "" if trend is None else "; the trend over n is an extrapolation, and proves nothing"
        return f"Certified up to n = {max(sizes):,}{more}.{_of_time(found, trend)}"
    if verdict == "not found" and not source.has_smaller:
        return "The pattern is known at this n alone, so no smaller n was tried."
    return ""


def _of_time(found: Findings, trend: PlanTrend | None) -> str:
    """Say what the n asked for may take, where time stood in the way."""
    asked = [a for a in found.attempts if a.purpose == "asked"]
    if trend is None or (asked and asked[0].obstacle != "time"):
        return ""
    seen = zip(trend.sizes[-2:], trend.seconds[-2:], strict=True)
    took = " and ".join(f"{_rough(seconds)} s at n = {n:,}" for n, seconds in seen)
    return f" Fits took {took}: continued, some {_rough(trend.seconds_at_n)} s at {trend.n:,}."


def _rough(seconds: float) -> str:
    """Return a duration with about two digits."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _of_mask(found: Findings) -> str:
    target = found.target
    if target is None or target.mask is not None or target.n == 1 or not target.looks_back:
        return ""
    return 'No token attends to a later one: with mask="causal" the head is asked for less.'


def _of_asked(found: Findings, question: Question, verdict: Verdict) -> str:
    """Say how the fit of what was asked ended, and what it reached."""
    head = found.asked
    if verdict != "not found" or head is None:
        return ""
    if head.obstacle == "bound":
        return head.advice
    words = [_ENDED[head.obstacle or "method"].format(dtype=question.dtype)]
    if question.dtype in NARROW and tried(found, "float32") and not held(found, "float32"):
        words.append("float32 was not certified at this size either.")
    words.append(f"Reached as asked: {head.certificate.reached}.")
    exempt = np.array(head.settings.get("exempt_columns", []), dtype=np.int64)
    if found.target is not None:
        words += [f"{note[0].upper()}{note[1:]}." for note in heavy_notes(found.target, exempt)]
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
