"""What a plan is and says: the answer, the attempts behind it, the trend over n, the advice."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn, Self

import numpy as np

from headfit._base.arrays import DIGITS
from headfit._base.display import (
    Pictured,
    Tabular,
    aligned,
    columns_of,
    mask_text,
    number,
    plain_dict,
)
from headfit._base.tolerances import Kernel, Tolerances
from headfit._fit.head import Ending
from headfit._fit.result import Fit, Obstacle
from headfit._lower.lower import LowerBound
from headfit._target.target import Target

Verdict = Literal["yes", "not found", "no"]

# What stood in the way where an attempt with one demand relaxed certifies.
OBSTACLES: dict[str, Obstacle] = {
    "float32": "format", "float32 logits": "format", "free logits": "logits"
}  # fmt: skip

MOST_TIMES = 4096  # A trend is not continued to more times the largest n it was seen at
WIDTH, MARGIN, MOST_LINES, MOST_ROWS, ADVICE_LINES = 99, 10, 30, 9, 7

short = partial(number, digits=3)


@dataclass(frozen=True)
class PlanAttempt:
    """One head that a plan tried, or one way to store a head that it already had.

    Attributes
    ----------
    purpose : str
        Why it was tried. "asked": the question as it is. "float32", "float32 logits" (not
        rounded to fewer bits), "free logits" (not bounded) and "looser" tolerances: the same with
        one demand relaxed. "smaller n", "smaller logits", "smaller dim". "rounded",
        "rounded logits": the best head, its Q and K rounded to 16 bits, read by a kernel that
        keeps logits in float32 or by an eager one.
    n, dim, dtype, kernel, tolerances : int, int, str, Kernel, Tolerances
        The size of the head, the format of its Q and K, and what its certificate is about.
    method : str
        The name of the method that made the head.
    holds, leak, distortion, share_held, max_logit, max_norm : bool, float, ...
        As of its `Certificate`, whether it holds or not; infinite without one.
    exempt, dim_used : int
        How many global columns got a coordinate of their own, and the size that the method worked
        with; further columns are zeros.
    seconds : float
    stopped, obstacle : str
        Why it ended, and what stood in the way (or None), in the words of `Fit`, or "memory".
    """

    purpose: str
    n: int
    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    method: str = ""
    holds: bool = False
    leak: float = math.inf
    distortion: float = math.inf
    share_held: float = 0.0
    max_logit: float = math.inf
    max_norm: float = math.inf
    exempt: int = 0
    dim_used: int = 0
    seconds: float = 0.0
    stopped: Ending | Literal["memory"] = "memory"
    obstacle: Obstacle | Literal["memory"] | None = "memory"

    @property
    def change(self) -> str:
        """What it changed of the question, in words."""
        limits = self.tolerances
        words = {"asked": "as asked", "float32": "float32 instead", "smaller dim": "smaller head",
                 "float32 logits": "logits in float32", "free logits": "logits not bounded",
                 "looser": f"leak <= {limits.leak:.3g}, distortion <= {limits.distortion:.3g}",
                 "smaller logits": f"|logit| <= {limits.max_logit or 0:.3g}"}  # fmt: skip
        return words.get(self.purpose, self.purpose)


@dataclass(frozen=True)
class PlanTrend:
    """The least-squares line of the largest |logit| over log2 n, through certified heads.

    It is what was seen at smaller n, continued, and proves nothing about the plan's n.

    Attributes
    ----------
    sizes, logits, seconds : tuple of int or float
        The n of the heads, ascending, their largest |logit|, and what they took.
    per_doubling : float
        By how much the largest |logit| grows when n doubles.
    n : int
        The n of the plan.
    at_n, seconds_at_n : float
        The value of the line there; and that of the power of n through the two longest times.

    Examples
    --------
    >>> import headfit as hf
    >>> graph = lambda n: hf.patterns.random_regular(n, 3, rng=0)
    >>> hf.plan(graph, n=4096, dim=6, time_limit=4).trend.at_n  # doctest: +SKIP
    140.7
    """

    sizes: tuple[int, ...]
    logits: tuple[float, ...]
    per_doubling: float
    n: int
    at_n: float
    seconds: tuple[float, ...]
    seconds_at_n: float

    @classmethod
    def of(cls, attempts: tuple[PlanAttempt, ...], n: int) -> Self | None:
        """Return the trend of the certified smaller n; None for fewer than two of them."""
        certified = {a.n: a for a in attempts if a.purpose == "smaller n" and a.holds}
        if len(certified) < 2 or n > MOST_TIMES * max(certified):
            return None
        heads = [certified[size] for size in sorted(certified)]
        sizes, logits, seconds = zip(*((a.n, a.max_logit, a.seconds) for a in heads), strict=True)
        slope, at_n = np.polyfit(np.log2(np.array(sizes) / n), logits, 1)
        power = math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])
        # A scan of all pairs takes the time n**2, and no head less than the time n.
        seconds_at_n = seconds[-1] * (n / sizes[-1]) ** min(max(power, 1.0), 2.0)
        return cls(sizes, logits, float(slope), n, float(at_n), seconds, seconds_at_n)

    def value(self, n: float) -> float:
        """Return the value of the line at another n."""
        return self.at_n + self.per_doubling * math.log2(n / self.n)


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Pictured, Tabular):
    """Whether a head of a size and format is enough for a pattern, and what is known about it.

    ``print(plan)`` shows one screen; `headfit.plot.plan` draws it. A table has a row for each
    attempt, in the order they were made, with the attributes of `PlanAttempt`.

    Attributes
    ----------
    name, n : str, int
        The pattern, in words, and the number of tokens of the question.
    target : Target or None
        The pattern; None if it does not fit in memory at this n.
    global_columns : int
        The columns to which more than half of the rows attend, and far more than to others.
    dim, dtype, kernel, tolerances : int, str, Kernel, Tolerances
        Those of the question.
    attempts : tuple of PlanAttempt
        All that was tried, in order.
    fit, best : Fit, PlanAttempt or None
        The certified head that answers best, and the attempt that made it: at the n of the
        question, or else with one demand relaxed, or else at the largest smaller n.
    lower_bound : LowerBound or None
        A proved lower bound on the size; None if the pattern is too large to look for one.
    projection_dim : int or None
        A size proved to suffice in exact arithmetic, logits not bounded (`bounds.projection_dim`).
    least_logit : float
        It is proved that no head of any size keeps every |logit| below this; 0 if nothing is.
    advice : str
        What the outcome means, what was reached, and what to try.
    time_limit, seconds : float
        What the plan was allowed to take, and what it took.
    """

    name: str
    n: int
    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    time_limit: float
    target: Target | None = None
    global_columns: int = 0
    attempts: tuple[PlanAttempt, ...] = ()
    fit: Fit | None = None
    best: PlanAttempt | None = None
    lower_bound: LowerBound | None = None
    projection_dim: int | None = None
    least_logit: float = 0.0
    advice: str = ""
    seconds: float = 0.0

    def __bool__(self) -> NoReturn:
        raise TypeError("a plan has no truth value: ask for .verdict")

    @property
    def verdict(self) -> Verdict:
        """The answer: "yes" for a certified head, "no" for a proof that none exists.

        "not found" is neither, and proves nothing; `obstacle` and `advice` say why.
        """
        if self.best is not None and self.best.purpose in ("asked", "smaller logits"):
            return "yes"
        too_small = self.lower_bound is not None and self.lower_bound.dim > self.dim
        return "no" if too_small or self.tolerances.logit_limit < self.least_logit else "not found"

    @property
    def obstacle(self) -> Obstacle | Literal["memory"] | None:
        """What stood in the way, in the words of `Fit.obstacle`, or "memory"; None for "yes"."""
        if self.verdict != "not found":
            return None if self.verdict == "yes" else "bound"
        if relaxed := self.certified(*OBSTACLES):
            return OBSTACLES[relaxed[0].purpose]
        if self.target is None:
            return "memory"
        return next((a.obstacle for a in self.attempts if a.purpose == "asked"), "time")

    @property
    def smallest(self) -> PlanAttempt | None:
        """The attempt with the smallest certified head at the n, format and tolerances wanted."""
        return min(self.certified("asked", "smaller dim"), key=lambda a: a.dim, default=None)

    @property
    def trend(self) -> PlanTrend | None:
        """How logits grew over smaller n, if the verdict is "not found"."""
        return PlanTrend.of(self.attempts, self.n) if self.verdict == "not found" else None

    def certified(self, *purposes: str) -> list[PlanAttempt]:
        """Return the certified attempts that were made for some purposes."""
        return [a for a in self.attempts if a.purpose in purposes and a.holds]

    def _table(self) -> tuple[dict[Any, Any], str]:
        return columns_of(PlanAttempt, self.attempts), "attempt"

    def to_dict(self) -> dict[str, Any]:
        """Return all but the head itself as plain Python values, for JSON."""
        known = ("verdict", "obstacle", "smallest", "trend", *vars(self))
        of_target = ("nonzeros", "per_row", "mean_per_row")
        bound, mask = self.lower_bound, getattr(self.target, "mask", None)
        return plain_dict({
            **{name: getattr(self, name) for name in known if name not in ("target", "fit")},
            **{name: getattr(self.target, name, None) for name in of_target},
            "lower_bound": bound and {"dim": bound.dim, "reason": bound.reason},
            "mask": None if mask is None else mask_text(mask),
        })  # fmt: skip

    def __repr__(self) -> str:
        head = f"dim={self.dim}, {self.dtype}, for {self.name} at n={self.n}"
        return f"Plan({self.verdict}: {head}, {len(self.attempts)} attempts, {self.seconds:.3g} s)"

    def __str__(self) -> str:
        """Return the answer on one screen: at most 30 lines of 100 characters."""
        lines = [*textwrap.wrap(self._headline(), WIDTH), ""]
        for label, text in plan_facts(self).items():
            first, others = label.ljust(MARGIN), " " * MARGIN
            lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others)
        table = _table(self)
        lines += ["", *table, ""] if table else [""]
        room = max(1, min(ADVICE_LINES, MOST_LINES - len(lines)))
        lines += textwrap.wrap(self.advice, WIDTH, max_lines=room, placeholder=" ...")
        return "\n".join(lines).rstrip()

    def _headline(self) -> str:
        head = f"head size {self.dim} in {self.dtype}"
        where = f"for {self.name} at n = {self.n:,}"
        best, limits = self.best, self.tolerances
        if self.verdict == "no":
            why = (
                f"a leak of {limits.leak:g} needs a |logit| of "
                f"{number(self.least_logit, 3, 'ROUND_FLOOR')} or more in a head of any size"
            )
            if limits.logit_limit >= self.least_logit and self.lower_bound is not None:
                why = f"{self.lower_bound.claim}, since {self.lower_bound.reason}"
            return f"No (proved): {head} is not enough {where}: {why}."
        if best is None:
            return (
                f"Not found: {head} {where}; nothing near it was certified in {self.seconds:.2g} s."
            )
        logits = f"logits up to {short(best.max_logit)}"
        if self.verdict == "yes":
            return f"Yes: {head} is enough {where}; certified, {logits}."
        moved = "" if best.n == self.n else f" at n = {best.n:,}"
        is_shorter = best.purpose == "smaller n"
        at = f"up to n = {best.n:,}" if is_shorter else f"with {best.change}{moved}"
        return f"Not found: {head} {where}; certified {at}, {logits}."


def plan_facts(plan: Plan) -> dict[str, str]:
    """Return what is known of the pattern and of heads for it, by label."""
    limits = plan.tolerances
    bounded = "" if limits.max_logit is None else f", |logit| <= {limits.max_logit:.4g}"
    smallest, bound, size = plan.smallest, plan.lower_bound, plan.projection_dim
    free = bounded and ", logits not bounded"
    proved = [
        bound.claim if bound is not None and bound.dim > 1 else "",
        f"some |logit| >= {number(plan.least_logit, 3, 'ROUND_FLOOR')}" * (plan.least_logit > 0),
        "" if size is None else f"d = {size:,} always suffices in exact arithmetic{free}",
    ]
    checks = [a for a in plan.attempts if a.purpose.startswith("rounded")]
    words = [f"{a.kernel} {'holds' if a.holds else 'breaks it'} ({_worse(a)})" for a in checks]
    facts = {
        "pattern": _pattern(plan),
        "asked": f"d = {plan.dim} in {plan.dtype}, kernel {plan.kernel}; leak <= {limits.leak:.3g},"
        f" distortion <= {limits.distortion:.3g}{bounded}",
        "head": "" if plan.best is None else _head(plan, plan.best),
        "smallest": "" if smallest is None or smallest.dim >= plan.dim else
        f"d = {smallest.dim} is certified too, with logits up to {short(smallest.max_logit)} "
        f"(the smallest found, in {plan.seconds:.2g} s in all)",
        "proved": "; ".join(filter(None, proved)),
        "formats": f"this head rounded: {'; '.join(words)}" if words else "",
    }  # fmt: skip
    if trend := plan.trend:
        heads = zip(trend.sizes, trend.logits, trend.seconds, strict=True)
        each = ", ".join(f"{short(x)} at {n:,} in {_duration(s)}" for n, x, s in heads)
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
        f"{short(best.leak)}, distortion {short(best.distortion)}, largest |logit| "
        f"{short(best.max_logit)}, scale max|q| max|k| {short(best.max_norm)}"
    )


def _worse(attempt: PlanAttempt) -> str:
    """Return the bound, of leak and distortion, that is the larger share of its tolerance."""
    limits = attempt.tolerances
    if attempt.leak / limits.leak > attempt.distortion / limits.distortion:
        return f"leak {number(attempt.leak, 2)}"
    return f"distortion {number(attempt.distortion, 2)}"


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _table(plan: Plan) -> list[str]:
    heads = [a for a in plan.attempts if not a.purpose.startswith("rounded")]
    rows: list[Sequence[str]] = [("tried", "n", "d", "dtype", "outcome", "rows", "|logit|", "s")]
    for a in heads[:MOST_ROWS]:
        logit, share = short(a.max_logit) if a.holds else "-", f"{100 * a.share_held:.4g}%"
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
            before = f"a head has {short(a.max_logit)} in place of {plan.tolerances.max_logit:.4g}"
            return f"The bound on logits stood in the way: {before}."
        narrow = [b for b in plan.attempts if b.dtype == plan.dtype and b.n == a.n]
        reached = f" ({_worse(narrow[0])})" if narrow else ""
        return (
            f"The format stood in the way: float32 holds at the same size, while {plan.dtype}, "
            f"of {DIGITS[plan.dtype]} significant bits, was not certified{reached}."
        )
    return ""
