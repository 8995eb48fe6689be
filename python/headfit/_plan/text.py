"""What a plan says: the answer on one screen, the figures behind it, and the advice."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headfit._base.dtypes import DIGITS, NARROW
from headfit._base.shown import aligned
from headfit._base.text import mask_text, number
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Obstacle
from headfit._plan.attempt import PlanAttempt
from headfit._target.heavy import heavy_notes

if TYPE_CHECKING:
    from headfit._plan.result import Plan
    from headfit._plan.search import Planner

WIDTH, MARGIN = 99, 10
MOST_LINES, MOST_ROWS, ADVICE_LINES = 30, 9, 7

# How an attempt that changes the question is named.
_CHANGED = {
    "asked": "as asked",
    "float32": "float32 instead",
    "float32 logits": "logits in float32",
    "free logits": "logits not bounded",
    "smaller n": "smaller n",
    "smaller dim": "smaller head",
}


def plan_text(plan: Plan) -> str:
    """Return the text of a plan: at most 30 lines of 100 characters."""
    lines = [*textwrap.wrap(headline(plan), WIDTH), ""]
    for label, text in plan_facts(plan).items():
        first, others = label.ljust(MARGIN), " " * MARGIN
        lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others)
    table = _table(plan)
    lines += ["", *table, ""] if table else [""]
    room = max(1, min(ADVICE_LINES, MOST_LINES - len(lines)))
    lines += textwrap.wrap(plan.advice, WIDTH, max_lines=room, placeholder=" ...")
    return "\n".join(lines).rstrip()


def plan_facts(plan: Plan) -> dict[str, str]:
    """Return what is known of the pattern and of heads for it, by label."""
    kernel, tolerances = plan.kernel, _tolerances(plan.tolerances)
    facts = {
        "pattern": _pattern(plan),
        "asked": f"d = {plan.dim} in {plan.dtype}, kernel {kernel}; {tolerances}",
        "head": _head(plan),
        "smallest": _smallest(plan),
        "proved": _proved(plan),
        "formats": _formats(plan),
        "trend": _trend(plan),
    }
    return {label: text for label, text in facts.items() if text}


def headline(plan: Plan) -> str:
    """Return the answer in a sentence."""
    head = f"head size {plan.dim} in {plan.dtype}"
    where = f"for {plan.name} at n = {plan.n:,}"
    if plan.verdict == "no":
        return f"No (proved): {head} is not enough {where}: {_why_not(plan)}."
    best = plan.best
    if best is None:
        return f"Not found: {head} {where}; nothing near it was certified in {plan.seconds:.2g} s."
    logits = f"logits up to {number(best.max_logit, 3)}"
    if plan.verdict == "yes":
        return f"Yes: {head} is enough {where}; certified, {logits}."
    if best.purpose == "smaller n":
        at = f"up to n = {best.n:,}"
    else:
        loose = best.purpose == "looser"
        at = f"with {_tolerances(best.tolerances) if loose else _CHANGED[best.purpose]}"
        at += "" if best.n == plan.n else f" at n = {best.n:,}"
    return f"Not found: {head} {where}; certified {at}, {logits}."


def _why_not(plan: Plan) -> str:
    if plan.tolerances.logit_limit < plan.least_logit or plan.lower_bound is None:
        return (
            f"a leak of {plan.tolerances.leak:g} needs a |logit| of {plan.least_logit:.3g} or more "
            "in a head of any size"
        )
    return f"{plan.lower_bound.claim}, since {plan.lower_bound.reason}"


def _pattern(plan: Plan) -> str:
    target = plan.target
    if target is None:
        return f"{plan.n:,} tokens: it does not fit in memory at this length"
    per_row = f"{target.mean_per_row:.3g} nonzeros per row, at most {target.per_row:,}"
    words = [f"{plan.n:,} tokens", per_row]
    if plan.global_columns:
        words.append(f"{plan.global_columns} global column{'s' * (plan.global_columns > 1)}")
    words.append("no mask" if target.mask is None else f"mask {mask_text(target.mask)}")
    return "; ".join(words)


def _tolerances(limits: Tolerances) -> str:
    bounded = "" if limits.max_logit is None else f", |logit| <= {limits.max_logit:.4g}"
    return f"leak <= {limits.leak:.3g}, distortion <= {limits.distortion:.3g}{bounded}"


def _head(plan: Plan) -> str:
    best = plan.best
    if best is None:
        return ""
    at = "" if best.n == plan.n else f"n = {best.n:,}, "
    used = "" if best.dim_used == best.dim else f" ({best.dim_used} used)"
    exempt = "" if not best.exempt else f", {best.exempt} global columns with their own coordinates"
    return (
        f"{at}d = {best.dim}{used}, {best.dtype}, {best.method}{exempt}: leak "
        f"{number(best.leak, 3)}, distortion {number(best.distortion, 3)}, largest |logit| "
        f"{number(best.max_logit, 3)}, scale max|q| max|k| {number(best.max_norm, 3)}"
    )


def _smallest(plan: Plan) -> str:
    smallest = plan.smallest
    if smallest is None or smallest.dim >= plan.dim:
        return ""
    return (
        f"d = {smallest.dim} is certified too, with logits up to "
        f"{number(smallest.max_logit, 3)} (the smallest found, in {plan.seconds:.2g} s in all)"
    )


def _proved(plan: Plan) -> str:
    words = []
    if plan.lower_bound is not None and plan.lower_bound.dim > 1:
        words.append(plan.lower_bound.claim)
    if plan.least_logit > 0:
        words.append(f"some |logit| >= {plan.least_logit:.3g}")
    if plan.projection_dim is not None:
        words.append(f"d = {plan.projection_dim:,} always suffices in exact arithmetic")
    return "; ".join(words)


def _formats(plan: Plan) -> str:
    """Say what rounding does to the best head."""
    words = [
        f"{a.kernel} {'holds' if a.holds else 'breaks it'} ({_worse(a)})"
        for a in plan.attempts
        if a.is_check
    ]
    return f"this head rounded: {'; '.join(words)}" if words else ""


def _worse(attempt: PlanAttempt) -> str:
    """Return the bound, of leak and distortion, that is the larger share of its tolerance."""
    limits = attempt.tolerances
    if attempt.leak / limits.leak > attempt.distortion / limits.distortion:
        return f"leak {number(attempt.leak, 2)}"
    return f"distortion {number(attempt.distortion, 2)}"


def _trend(plan: Plan) -> str:
    trend = plan.trend
    if trend is None:
        return ""
    heads = zip(trend.sizes, trend.logits, trend.seconds, strict=True)
    each = ", ".join(f"{number(x, 3)} at {n:,} in {_duration(s)}" for n, x, s in heads)
    return (
        f"no proof: largest |logit| {each}; {trend.per_doubling:+.2g} per doubling of n gives "
        f"{trend.at_n:.3g} at {trend.n:,}, in some {_duration(trend.seconds_at_n)}"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _what(attempt: PlanAttempt) -> str:
    """Say in what an attempt differs from the question."""
    limits = attempt.tolerances
    if attempt.purpose == "looser":
        return f"leak {limits.leak:.2g}, distortion {limits.distortion:.2g}"
    if attempt.purpose == "smaller logits":
        return f"|logit| <= {limits.max_logit:.3g}"
    return _CHANGED[attempt.purpose]


def _table(plan: Plan) -> list[str]:
    """Return the attempts that made a head of their own, as a table."""
    heads = [a for a in plan.attempts if not a.is_check]
    if not heads:
        return []
    rows: list[Sequence[str]] = [("tried", "n", "d", "dtype", "outcome", "rows", "|logit|", "s")]
    for a in heads[:MOST_ROWS]:
        logit = number(a.max_logit, 3) if a.holds else "-"
        share = f"{100 * a.share_held:.4g}%"
        sizes, seconds = (f"{a.n:,}", str(a.dim)), f"{a.seconds:.1f}"
        rows.append((_what(a), *sizes, a.dtype, a.stopped, share, logit, seconds))
    lines = aligned(rows, left=(0, 3, 4))
    if len(heads) > MOST_ROWS:
        lines.append(f"... and {len(heads) - MOST_ROWS} more in plan.attempts")
    return lines


def advice_of(planner: Planner, plan: Plan) -> str:
    """Return what the outcome means and what to try, in a few sentences."""
    parts = []
    if plan.verdict == "no":
        parts = ["Ask for a larger dim or wider tolerances, without max_logit if there was one."]
    elif plan.verdict == "not found":
        parts = [_of_size(planner), _of_formats(plan), _of_fit(planner, plan)]
    target = plan.target
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


def _of_formats(plan: Plan) -> str:
    """Say what a demand took that was relaxed with success."""
    if wide := plan.certified("float32"):
        narrow = [a for a in plan.attempts if a.dtype == plan.dtype and a.n == wide[0].n]
        reached = f" ({_worse(narrow[0])})" if narrow else ""
        return (
            f"The format stood in the way: float32 holds at the same size, while {plan.dtype}, "
            f"of {DIGITS[plan.dtype]} significant bits, was not certified{reached}."
        )
    if plan.certified("float32 logits"):
        return f"The kernel {plan.kernel} stood in the way. Fused kernels keep logits wide."
    if free := plan.certified("free logits"):
        limit, logit = plan.tolerances.max_logit, number(free[0].max_logit, 3)
        return f"The bound on logits stood in the way: a head has {logit} in place of {limit:.4g}."
    return ""


def _of_fit(planner: Planner, plan: Plan) -> str:
    """Say how the fit of the question ended, and what it reached."""
    head, dtype = planner.asked, plan.dtype
    if head is None:
        return ""
    if head.obstacle == "bound":
        return head.advice
    words = [_ENDED[head.obstacle or "method"].format(dtype=dtype)]
    float32 = [a.holds for a in plan.attempts if a.purpose == "float32"]
    if dtype in NARROW and float32 == [False]:
        words.append("float32 was not certified at this size either.")
    words.append(f"Reached as asked: {head.certificate.reached}.")
    exempt = np.array(head.settings.get("exempt_columns", []), dtype=np.int64)
    if plan.target is not None:
        notes = heavy_notes(plan.target, exempt)
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
