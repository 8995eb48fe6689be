"""What a plan says: the answer on one screen, the figures behind it, and the advice."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headfit._base.arrays import DIGITS
from headfit._base.display import aligned, mask_text
from headfit._base.display import number as number_of
from headfit._base.tolerances import Tolerances

if TYPE_CHECKING:
    from headfit._plan.result import Plan, PlanAttempt

WIDTH, MARGIN, MOST_LINES, MOST_ROWS, ADVICE_LINES = 99, 10, 30, 9, 7

number = partial(number_of, digits=3)


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


def headline(plan: Plan) -> str:
    """Return the answer in a sentence."""
    head = f"head size {plan.dim} in {plan.dtype}"
    where = f"for {plan.name} at n = {plan.n:,}"
    best, limits = plan.best, plan.tolerances
    if plan.verdict == "no":
        why = f"a leak of {limits.leak:g} needs a |logit| of {plan.least_logit:.3g} or more"
        why += " in a head of any size"
        if limits.logit_limit >= plan.least_logit and plan.lower_bound is not None:
            why = f"{plan.lower_bound.claim}, since {plan.lower_bound.reason}"
        return f"No (proved): {head} is not enough {where}: {why}."
    if best is None:
        return f"Not found: {head} {where}; nothing near it was certified in {plan.seconds:.2g} s."
    logits = f"logits up to {number(best.max_logit)}"
    if plan.verdict == "yes":
        return f"Yes: {head} is enough {where}; certified, {logits}."
    if best.purpose == "smaller n":
        at = f"up to n = {best.n:,}"
    else:
        at = f"with {best.change}"
        at += "" if best.n == plan.n else f" at n = {best.n:,}"
    return f"Not found: {head} {where}; certified {at}, {logits}."


def plan_facts(plan: Plan) -> dict[str, str]:
    """Return what is known of the pattern and of heads for it, by label."""
    facts = {"pattern": _pattern(plan)}
    limits = _tolerances(plan.tolerances)
    facts["asked"] = f"d = {plan.dim} in {plan.dtype}, kernel {plan.kernel}; {limits}"
    if plan.best is not None:
        facts["head"] = _head(plan, plan.best)
    smallest, bound, size = plan.smallest, plan.lower_bound, plan.projection_dim
    if smallest is not None and smallest.dim < plan.dim:
        logits = f"with logits up to {number(smallest.max_logit)}"
        seconds = f"(the smallest found, in {plan.seconds:.2g} s in all)"
        facts["smallest"] = f"d = {smallest.dim} is certified too, {logits} {seconds}"
    proved = [
        bound.claim if bound is not None and bound.dim > 1 else "",
        f"some |logit| >= {plan.least_logit:.3g}" if plan.least_logit > 0 else "",
        "" if size is None else f"d = {size:,} always suffices in exact arithmetic",
    ]
    facts["proved"] = "; ".join(filter(None, proved))
    checks = [a for a in plan.attempts if a.purpose.startswith("rounded")]
    words = [f"{a.kernel} {'holds' if a.holds else 'breaks it'} ({_worse(a)})" for a in checks]
    facts["formats"] = f"this head rounded: {'; '.join(words)}" if words else ""
    if trend := plan.trend:
        heads = zip(trend.sizes, trend.logits, trend.seconds, strict=True)
        each = ", ".join(f"{number(x)} at {n:,} in {_duration(s)}" for n, x, s in heads)
        more = f"{trend.per_doubling:+.2g} per doubling of n gives {trend.at_n:.3g} at {trend.n:,}"
        some = f"in some {_duration(trend.seconds_at_n)}"
        facts["trend"] = f"no proof: largest |logit| {each}; {more}, {some}"
    return {label: text for label, text in facts.items() if text}


def _pattern(plan: Plan) -> str:
    target = plan.target
    if target is None:
        return f"{plan.n:,} tokens: it does not fit in memory at this length"
    per_row = f"{target.mean_per_row:.3g} nonzeros per row, at most {target.per_row:,}"
    many = plan.global_columns
    columns = f"{many} global column{'s' * (many > 1)}; " * (many > 0)
    mask = "no mask" if target.mask is None else f"mask {mask_text(target.mask)}"
    return f"{plan.n:,} tokens; {per_row}; {columns}{mask}"


def _head(plan: Plan, best: PlanAttempt) -> str:
    at = "" if best.n == plan.n else f"n = {best.n:,}, "
    used = "" if best.dim_used == best.dim else f" ({best.dim_used} used)"
    exempt = "" if not best.exempt else f", {best.exempt} global columns with their own coordinates"
    return (
        f"{at}d = {best.dim}{used}, {best.dtype}, {best.method}{exempt}: leak "
        f"{number(best.leak)}, distortion {number(best.distortion)}, largest |logit| "
        f"{number(best.max_logit)}, scale max|q| max|k| {number(best.max_norm)}"
    )


def _tolerances(limits: Tolerances) -> str:
    bounded = "" if limits.max_logit is None else f", |logit| <= {limits.max_logit:.4g}"
    return f"leak <= {limits.leak:.3g}, distortion <= {limits.distortion:.3g}{bounded}"


def _worse(attempt: PlanAttempt) -> str:
    """Return the bound, of leak and distortion, that is the larger share of its tolerance."""
    limits = attempt.tolerances
    if attempt.leak / limits.leak > attempt.distortion / limits.distortion:
        return f"leak {number_of(attempt.leak, 2)}"
    return f"distortion {number_of(attempt.distortion, 2)}"


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _table(plan: Plan) -> list[str]:
    """Return the attempts that made a head of their own, as a table."""
    heads = [a for a in plan.attempts if not a.purpose.startswith("rounded")]
    rows: list[Sequence[str]] = [("tried", "n", "d", "dtype", "outcome", "rows", "|logit|", "s")]
    for a in heads[:MOST_ROWS]:
        logit, share = number(a.max_logit) if a.holds else "-", f"{100 * a.share_held:.4g}%"
        sizes, seconds = (f"{a.n:,}", str(a.dim)), f"{a.seconds:.1f}"
        rows.append((a.change, *sizes, a.dtype, a.stopped, share, logit, seconds))
    more = [f"... and {len(heads) - MOST_ROWS} more in plan.attempts"]
    return [*aligned(rows, left=(0, 3, 4)), *more[: len(heads) > MOST_ROWS]] if heads else []


def advice_of(plan: Plan, of_fit: str, has_smaller: bool, certificate: float) -> str:
    """Return what the outcome means and what to try, in a few sentences.

    `of_fit` is the advice of the fit at the size in question, `has_smaller` whether the pattern is
    known at smaller n, and `certificate` the predicted seconds of a certificate.
    """
    parts = []
    if plan.verdict == "no":
        parts = ["Ask for a larger dim or wider tolerances, without max_logit if there was one."]
    elif plan.verdict == "not found":
        if plan.target is None:
            parts = [f"n = {plan.n:,} stood in the way: the pattern does not fit in the free "
                     "memory."]  # fmt: skip
        elif not any(a.purpose == "asked" for a in plan.attempts):
            parts = [
                f"Time stood in the way: a certificate of {plan.n:,} tokens is predicted to take "
                f"{certificate:.2g} s alone. Try a larger time_limit, or hf.fit."
            ]
        elif not has_smaller:
            parts = ["The pattern is known at this n alone, so no smaller n was tried."]
        parts.append(_of_formats(plan) or of_fit)
    target = plan.target
    if target is not None and target.mask is None and target.n > 1 and target.looks_back:
        less = 'with mask="causal" less is required of the head.'
        parts.append(f"No token attends to a later one: {less}")
    return " ".join(part for part in parts if part)


def _of_formats(plan: Plan) -> str:
    """Say what a demand took that was relaxed with success."""
    for a in plan.certified("float32", "float32 logits", "free logits"):
        if a.purpose == "float32 logits":
            return f"The kernel {plan.kernel} stood in the way. Fused kernels keep logits wide."
        if a.purpose == "free logits":
            before = f"a head has {number(a.max_logit)} in place of {plan.tolerances.max_logit:.4g}"
            return f"The bound on logits stood in the way: {before}."
        narrow = [b for b in plan.attempts if b.dtype == plan.dtype and b.n == a.n]
        reached = f" ({_worse(narrow[0])})" if narrow else ""
        return (
            f"The format stood in the way: float32 holds at the same size, while {plan.dtype}, "
            f"of {DIGITS[plan.dtype]} significant bits, was not certified{reached}."
        )
    return ""
