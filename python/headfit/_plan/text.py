"""A plan as one screen of text: the answer first, then the figures behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headfit._base.shown import aligned
from headfit._base.text import mask_text, number
from headfit._base.tolerances import Tolerances
from headfit._plan.attempt import PlanAttempt

if TYPE_CHECKING:
    from headfit._plan.result import Plan

WIDTH, MOST_ROWS, ADVICE_LINES = 99, 9, 7
_MARGIN = 10

# How an attempt that changes what was asked is named in the table.
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
        lines += _entry(label, text)
    table = _table(plan)
    lines += ["", *table, ""] if table else [""]
    room = min(ADVICE_LINES, 30 - len(lines))
    lines += textwrap.wrap(plan.advice, WIDTH, max_lines=max(1, room), placeholder=" ...")
    return "\n".join(lines).rstrip()


def plan_facts(plan: Plan) -> dict[str, str]:
    """Return what is known of the pattern and of heads for it, by label; no text where nothing."""
    facts = {"pattern": _pattern(plan), "asked": _asked(plan)}
    if plan.best is not None:
        facts["head"] = _head(plan.best, plan)
    if plan.smallest is not None and plan.smallest.dim < plan.dim:
        facts["smallest"] = _smallest(plan.smallest, plan)
    facts |= {"proved": _proved(plan), "formats": _formats(plan)}
    if plan.trend is not None:
        facts["trend"] = _trend(plan)
    return facts


def headline(plan: Plan) -> str:
    """Return the answer in a sentence."""
    head = f"head size {plan.dim} in {plan.dtype}"
    where = f"for {plan.name} at n = {plan.n:,}"
    best, trend = plan.best, plan.trend
    if plan.verdict == "yes" and best is not None:
        return (
            f"Yes: {head} is enough {where}; certified, logits up to {number(best.max_logit, 3)}."
        )
    if plan.verdict == "no":
        return f"No (proved): {head} is not enough {where}: {_why_not(plan)}."
    said = f"Not found: {head} {where}"
    if best is None:
        return f"{said}; nothing near it was certified in {plan.seconds:.2g} s."
    logits = f"logits up to {number(best.max_logit, 3)}"
    at = "" if best.n == plan.n else f" at n = {best.n:,}"
    if best.purpose == "looser":
        return f"{said}; certified with {_tolerances(best.tolerances)}{at}, {logits}."
    if best.purpose != "smaller n":
        return f"{said}; certified with {_CHANGED[best.purpose]}{at}, {logits}."
    if trend is None:
        return f"{said}; certified{at}, {logits}."
    return (
        f"{said}; certified up to n = {best.n:,}, {logits}. The trend, which is no proof, has "
        f"{trend.at_n:.3g} at {plan.n:,}."
    )


def _why_not(plan: Plan) -> str:
    if plan.tolerances.logit_limit < plan.least_logit:
        return (
            f"a leak of {plan.tolerances.leak:g} needs a |logit| of {plan.least_logit:.3g} or more "
            "in a head of any size"
        )
    bound = plan.lower_bound
    assert bound is not None
    what = "no size suffices" if bound.impossible else f"d >= {bound.dim}"
    return f"{what}, since {bound.reason}"


def _entry(label: str, text: str) -> list[str]:
    """Return a labelled paragraph; empty text gives no line."""
    if not text:
        return []
    indent = " " * _MARGIN
    return textwrap.wrap(text, WIDTH, initial_indent=label.ljust(_MARGIN), subsequent_indent=indent)


def _pattern(plan: Plan) -> str:
    if plan.nonzeros is None:
        return f"{plan.n:,} tokens: it does not fit in memory at this length"
    words = [
        f"{plan.n:,} tokens",
        f"{plan.mean_per_row:.3g} nonzeros per row, at most {plan.per_row:,}",
    ]
    if plan.global_columns:
        words.append(f"{plan.global_columns} global column{'s' * (plan.global_columns > 1)}")
    words.append("no mask" if plan.mask is None else f"mask {mask_text(plan.mask)}")
    return "; ".join(words)


def _asked(plan: Plan) -> str:
    return f"d = {plan.dim} in {plan.dtype}, kernel {plan.kernel}; {_tolerances(plan.tolerances)}"


def _tolerances(asked: Tolerances) -> str:
    bounded = "" if asked.max_logit is None else f", |logit| <= {asked.max_logit:.4g}"
    return f"leak <= {asked.leak:.3g}, distortion <= {asked.distortion:.3g}{bounded}"


def _head(best: PlanAttempt, plan: Plan) -> str:
    at = "" if best.n == plan.n else f"n = {best.n:,}, "
    used = "" if best.dim_used == best.dim else f" ({best.dim_used} used)"
    exempt = "" if not best.exempt else f", {best.exempt} global columns with their own coordinates"
    return (
        f"{at}d = {best.dim}{used}, {best.dtype}, {best.method}{exempt}: leak "
        f"{number(best.leak, 3)}, distortion {number(best.distortion, 3)}, largest |logit| "
        f"{number(best.max_logit, 3)}, scale max|q| max|k| {number(best.max_norm, 3)}"
    )


def _smallest(smallest: PlanAttempt, plan: Plan) -> str:
    return (
        f"d = {smallest.dim} is certified too, with logits up to "
        f"{number(smallest.max_logit, 3)} (the smallest found, in {plan.seconds:.2g} s in all)"
    )


def _proved(plan: Plan) -> str:
    bound, words = plan.lower_bound, []
    if bound is not None and bound.dim > 1:
        words.append("no size suffices" if bound.impossible else f"d >= {bound.dim}")
    if plan.least_logit > 0:
        words.append(f"some |logit| >= {plan.least_logit:.3g}")
    if plan.projection_dim is not None:
        words.append(f"d = {plan.projection_dim:,} always suffices in exact arithmetic")
    return "; ".join(words)


def _formats(plan: Plan) -> str:
    """Say what rounding does to the head that was found."""
    words = []
    for attempt in plan.attempts:
        if attempt.purpose.startswith("rounded"):
            outcome = "holds" if attempt.holds else "breaks it"
            words.append(f"{attempt.kernel} {outcome} ({worse(attempt)})")
    return f"this head rounded: {'; '.join(words)}" if words else ""


def worse(attempt: PlanAttempt) -> str:
    """Return the bound, of leak and distortion, that is the larger share of its tolerance."""
    asked = attempt.tolerances
    if attempt.leak / asked.leak > attempt.distortion / asked.distortion:
        return f"leak {number(attempt.leak, 2)}"
    return f"distortion {number(attempt.distortion, 2)}"


def _trend(plan: Plan) -> str:
    trend = plan.trend
    assert trend is not None
    seen = ", ".join(
        f"{number(x, 3)} at {n:,}" for n, x in zip(trend.sizes, trend.logits, strict=True)
    )
    return (
        f"no proof: largest |logit| {seen}; {trend.per_doubling:+.2g} per doubling of n gives "
        f"{trend.at_n:.3g} at {trend.n:,}"
    )


def _what(attempt: PlanAttempt) -> str:
    """Say in what an attempt differs from what was asked."""
    asked = attempt.tolerances
    if attempt.purpose == "looser":
        return f"leak {asked.leak:.2g}, distortion {asked.distortion:.2g}"
    if attempt.purpose == "smaller logits":
        return f"|logit| <= {asked.max_logit:.3g}"
    return _CHANGED[attempt.purpose]


def _table(plan: Plan) -> list[str]:
    """Return the attempts that made a head of their own, as a table."""
    tried = [a for a in plan.attempts if not a.purpose.startswith("rounded")]
    if not tried:
        return []
    rows: list[Sequence[str]] = [("tried", "n", "d", "dtype", "outcome", "rows", "|logit|", "s")]
    for a in tried[:MOST_ROWS]:
        logit = number(a.max_logit, 3) if a.holds else "-"
        share = f"{100 * a.share_held:.4g}%"
        rows.append((
            _what(a), f"{a.n:,}", str(a.dim), a.dtype, a.stopped, share, logit,
            f"{a.seconds:.1f}",
        ))  # fmt: skip
    lines = aligned(rows, left=(0, 3, 4))
    if len(tried) > MOST_ROWS:
        lines.append(f"... and {len(tried) - MOST_ROWS} more in plan.attempts")
    return lines
