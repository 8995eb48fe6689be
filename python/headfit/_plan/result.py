"""What a plan is: the answer, the attempts behind it, and the figures of both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headfit._base.frames import records_frame
from headfit._base.kernel import Kernel
from headfit._base.plain import plain_dict
from headfit._base.shown import page, picture
from headfit._base.text import mask_text
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Obstacle
from headfit._fit.result import Fit
from headfit._plan.attempt import PlanAttempt
from headfit._plan.text import headline, plan_facts, plan_text
from headfit._plan.trend import PlanTrend

if TYPE_CHECKING:
    from headfit._lower import LowerBound

__all__ = ["Plan"]

Verdict = Literal["yes", "not found", "no"]


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """Whether a head of a size and format is enough for a pattern, and what is known about it.

    ``print(plan)`` shows one screen; `headfit.plot.plan` draws it.

    Attributes
    ----------
    verdict : "yes", "not found" or "no"
        "yes": such a head is certified, at the n asked for. "no": it is proved that none exists.
        "not found": neither, which proves nothing; `obstacle` and `advice` say why.
    name : str
        The pattern, in words.
    n : int
        The number of tokens that was asked for.
    nonzeros, per_row : int or None
        The nonzeros of the pattern in all, and the most in a row; None if the pattern does not
        fit in memory at this n.
    mean_per_row : float
        The mean number of nonzeros of the rows that have any; NaN if that is not known.
    global_columns : int
        The columns to which more than half of the rows attend, and far more than to others.
    mask : object
    dim : int
        The head size that was asked for.
    dtype : str
    kernel : Kernel
        The formats that were asked for.
    tolerances : Tolerances
    attempts : tuple of PlanAttempt
        All that was tried, in order.
    fit : Fit or None
        The certified head that answers best: at the n asked for, or else with one demand relaxed,
        or else at the largest smaller n. `best` says which.
    best : PlanAttempt or None
        The attempt that found it.
    smallest : PlanAttempt or None
        The attempt with the smallest certified head at the n, format and tolerances asked for.
    lower_bound : LowerBound or None
        A proved lower bound on the size; None if the pattern is too large to look for one.
    projection_dim : int or None
        A size that is proved to suffice in exact arithmetic (`bounds.projection_dim`).
    least_logit : float
        It is proved that no head of any size keeps every |logit| below this; 0 if nothing is.
    trend : PlanTrend or None
        How the largest logit grew over smaller n, where the n asked for did not certify.
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

    def _repr_html_(self) -> str:
        facts = {name: text for name, text in plan_facts(self).items() if text}
        if self.advice:
            facts["advice"] = self.advice
        facts["tried"] = self._effort()
        return page(headline(self), facts=facts, picture=picture(self))

    def __str__(self) -> str:
        return plan_text(self)

    def _effort(self) -> str:
        return f"{len(self.attempts)} attempts, {self.seconds:.3g} s"

    def __repr__(self) -> str:
        return (
            f"Plan({self.verdict}: dim={self.dim}, {self.dtype}, for {self.name} at n={self.n}, "
            f"{self._effort()})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all but the head itself as plain Python values, for JSON."""
        names = [field.name for field in dataclasses.fields(self)]
        found = {name: getattr(self, name) for name in names if name != "fit"}
        found["mask"] = None if self.mask is None else mask_text(self.mask)
        if self.lower_bound is not None:
            found["lower_bound"] = {
                "dim": self.lower_bound.dim,
                "reason": self.lower_bound.reason,
            }
        return plain_dict(found)
