"""Tolerances that are tightened from stage to stage; docs/learned-method.md has the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headfit._base.arrays import FloatArray
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Ending
from headfit._fit.head import Head
from headfit._fit.problem import Problem

FIRST = Tolerances(leak=0.5, distortion=2.0)
"""Those of the first stage, unless the tolerances are looser."""

ADDED = ("steps", "scans", "starts", "quenches", "reheats", "roundings", "seconds")
"""What a report of the core says of one stage, and adds up over all."""

Callback = Callable[[int, int, float], Any]
Start = tuple[FloatArray, FloatArray]


@dataclass
class AfterScan:
    """What is called after every scan of a fit: its progress, and a user's callback.

    `before`, the number of steps of the stages that are done, is added to those of this one.
    `is_over` tells whether the callback has returned False.
    """

    watch: Callable[..., Any] | None
    callback: Callback | None
    before: int = 0
    is_over: bool = False

    @classmethod
    def of(cls, problem: Problem, callback: Callback | None = None) -> AfterScan | None:
        """Return what to call, or None if nobody wants to know."""
        none = problem.watch is None and callback is None
        return None if none else cls(problem.watch, callback)

    def __call__(self, step: int, left: int, deficit: float) -> bool:
        """Return whether the fit goes on."""
        step += self.before
        if self.watch is not None:
            self.watch(left, step=step, worst=f"{deficit:.2g}")
        if self.callback is not None and self.callback(step, left, deficit) is False:
            self.is_over = True
        return not self.is_over


def tightening(tolerances: Tolerances, stages: int) -> tuple[tuple[float, float], ...]:
    """Return the leak and the distortion of every stage, from loose ones to the tolerances.

    -log(leak) and log(1 + distortion), to which logits have to keep, form geometric sequences. One
    that is looser than that of the first stage already stays as it is; where both are, there is
    one stage.
    """
    leak, distortion = last = tolerances.leak, tolerances.distortion
    if leak >= FIRST.leak and distortion >= FIRST.distortion:
        return (last,)

    def looser(share: float) -> tuple[float, float]:
        gap = _between(-math.log(FIRST.leak), -math.log(leak), share)
        delta = _between(math.log1p(FIRST.distortion), math.log1p(distortion), share)
        return (
            math.exp(-gap) if leak < FIRST.leak else leak,
            math.expm1(delta) if distortion < FIRST.distortion else distortion,
        )

    return (*(looser(i / (stages - 1)) for i in range(stages - 1)), last)


def _between(first: float, last: float, share: float) -> float:
    """Return a member of the geometric sequence from `first` to `last`."""
    return float(first ** (1 - share) * last**share)


def joined(heads: Sequence[Head], ended: Ending | None) -> Head:
    """Return the last stage's head, with the steps of all stages.

    `ended` says why a stage was stopped; the last head is then one that took no steps.
    """
    last = heads[-1]
    reports = [head.settings["learned"] for head in heads]
    counted = reports if ended is None else reports[:-1]
    report = {**reports[-1], **{name: sum(r[name] for r in counted) for name in ADDED}}
    if ended is not None:
        report["status"] = "time limit" if ended == "time limit" else "stopped"
    return replace(
        last,
        settings={**last.settings, "learned": report},
        ended=last.ended if ended is None else ended,
        steps=report["steps"],
        restarts=sum(head.restarts for head in heads),
    )
