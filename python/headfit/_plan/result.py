"""What a plan is: the answer, the attempts behind it, and the trend over n that they show."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headfit._base.frames import records_frame
from headfit._base.kernel import Kernel
from headfit._base.plain import plain_dict
from headfit._base.shown import Shown
from headfit._base.text import mask_text
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Obstacle
from headfit._fit.result import Fit
from headfit._plan.attempt import PlanAttempt
from headfit._plan.text import headline, plan_facts, plan_text

if TYPE_CHECKING:
    from headfit.bounds import LowerBound

__all__ = ["Plan", "PlanTrend"]

Verdict = Literal["yes", "not found", "no"]

MOST_TIMES = 4096
"""A trend is not continued to more than so many times the largest n it was seen at."""


@dataclass(frozen=True)
class PlanTrend:
    """The least-squares line of the largest |logit| over log2 n, through certified heads.

    It is what was seen at smaller n, continued, and proves nothing about the plan's n.

    Attributes
    ----------
    sizes : tuple of int
        The n of the heads, in ascending order.
    logits : tuple of float
        Their largest |logit|.
    per_doubling : float
        By how much the largest |logit| grows when n doubles.
    n : int
        The n of the plan.
    at_n : float
        The value of the line there.
    seconds : tuple of float
        The seconds that each of the heads took, with its certificate.
    seconds_at_n : float
        The power of n through the two largest of them, at the plan's n: on this machine, with
        what else it does.

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
    def of(cls, attempts: list[PlanAttempt], n: int) -> PlanTrend | None:
        """Return the trend of the certified smaller n; None for fewer than two of them."""
        certified = {a.n: a for a in attempts if a.purpose == "smaller n" and a.holds}
        sizes = sorted(certified)
        if len(sizes) < 2 or n > MOST_TIMES * sizes[-1]:
            return None
        logits = tuple(certified[size].max_logit for size in sizes)
        seconds = tuple(certified[size].seconds for size in sizes)
        slope, at_n = np.polyfit(np.log2(np.array(sizes) / n), logits, 1)
        power = math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])
        # A scan of all pairs takes the time n**2, and no head less than the time n.
        seconds_at_n = seconds[-1] * (n / sizes[-1]) ** min(max(power, 1.0), 2.0)
        return cls(tuple(sizes), logits, float(slope), n, float(at_n), seconds, seconds_at_n)

    def value(self, n: float) -> float:
        """Return the value of the line at another n."""
        return self.at_n + self.per_doubling * math.log2(n / self.n)


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Shown):
    """Whether a head of a size and format is enough for a pattern, and what is known about it.

    ``print(plan)`` shows one screen; `headfit.plot.plan` draws it.

    Attributes
    ----------
    verdict : "yes", "not found" or "no"
        "yes": such a head is certified, at the n of the question. "no": it is proved that none
        exists. "not found": neither, which proves nothing; `obstacle` and `advice` say why.
    name : str
        The pattern, in words.
    n : int
        The number of tokens of the question.
    nonzeros, per_row : int or None
        The nonzeros of the pattern in all, and the most in a row; None if the pattern does not
        fit in memory at this n.
    mean_per_row : float
        The mean number of nonzeros of the rows that have any; NaN if that is not known.
    global_columns : int
        The columns to which more than half of the rows attend, and far more than to others.
    mask : object
    dim : int
        The head size of the question.
    dtype : str
    kernel : Kernel
        Its formats.
    tolerances : Tolerances
    attempts : tuple of PlanAttempt
        All that was tried, in order.
    fit : Fit or None
        The certified head that answers best: at the n of the question, or else with one demand
        relaxed, or else at the largest smaller n. `best` says which.
    best : PlanAttempt or None
        The attempt that made it.
    smallest : PlanAttempt or None
        The attempt with the smallest certified head at the n, format and tolerances asked for.
    lower_bound : LowerBound or None
        A proved lower bound on the size; None if the pattern is too large to look for one.
    projection_dim : int or None
        A size that is proved to suffice in exact arithmetic (`bounds.projection_dim`).
    least_logit : float
        It is proved that no head of any size keeps every |logit| below this; 0 if nothing is.
    trend : PlanTrend or None
        How the largest logit grew over smaller n, where the n of the question did not certify.
    obstacle : str or None
        What stood in the way, in the words of `Fit.obstacle`, or "memory". None for "yes".
    advice : str
        What that means, what was reached, and what to try.
    time_limit, seconds : float
        What the plan was allowed to take, and what it took.
    """

    verdict: Verdict
    name: str
    n: int
    nonzeros: int | None
    per_row: int | None
    mean_per_row: float
    global_columns: int
    mask: Any
    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    attempts: tuple[PlanAttempt, ...]
    fit: Fit | None
    best: PlanAttempt | None
    smallest: PlanAttempt | None
    lower_bound: LowerBound | None
    projection_dim: int | None
    least_logit: float
    trend: PlanTrend | None
    obstacle: Obstacle | Literal["memory"] | None
    advice: str
    time_limit: float
    seconds: float

    def to_pandas(self) -> Any:
        """Return the attempts as a pandas DataFrame, in the order they were made.

        Columns are the attributes of `PlanAttempt`.

        Raises
        ------
        ImportError
            Without pandas.
        """
        return records_frame(PlanAttempt, self.attempts, "attempt")

    def to_dict(self) -> dict[str, Any]:
        """Return all but the head itself as plain Python values, for JSON."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["fit"]
        values["mask"] = None if self.mask is None else mask_text(self.mask)
        bound = self.lower_bound
        if bound is not None:
            values["lower_bound"] = {"dim": bound.dim, "reason": bound.reason}
        return plain_dict(values)

    def _effort(self) -> str:
        return f"{len(self.attempts)} attempts, {self.seconds:.3g} s"

    def __str__(self) -> str:
        return plan_text(self)

    def __repr__(self) -> str:
        return (
            f"Plan({self.verdict}: dim={self.dim}, {self.dtype}, for {self.name} at n={self.n}, "
            f"{self._effort()})"
        )

    def _headline(self) -> str:
        return headline(self)

    def _facts(self) -> dict[str, str]:
        facts = {**plan_facts(self), "advice": self.advice, "tried": self._effort()}
        return {name: text for name, text in facts.items() if text}
