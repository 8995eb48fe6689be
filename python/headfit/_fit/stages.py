"""Tolerances that are tightened from stage to stage, each of which starts from the last one's head.

A head that meets loose tolerances is found sooner, and is often close to one that meets tighter
ones. docs/learned-method.md in the repository has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headfit._base.arrays import FloatArray
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Ending
from headfit._fit.head import Head

LOOSEST = Tolerances(leak=0.5, distortion=2.0)
"""Those of the first stage, unless looser ones are asked for."""

ADDED = ("steps", "scans", "starts", "quenches", "reheats", "roundings", "seconds")
"""What a report of the core says of one stage, and adds up over all."""

Callback = Callable[[int, int, float], Any]
Start = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Stage:
    """What one stage of a learned fit is asked for, and the most steps that it may take.

    `start` has the queries and keys of the last stage, and `before` counts the steps until then.
    """

    leak: float
    distortion: float
    most_steps: int
    start: Start | None
    callback: Callback | None
    before: int = 0
    is_last: bool = True


class UntilFalse:
    """A callback of several stages, which is not called again after it has returned False."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.is_over = False

    def __call__(self, *scan: Any) -> bool:
        if not self.is_over:
            self.is_over = self.callback(*scan) is False
        return not self.is_over


def tightening(asked: Tolerances, stages: int) -> tuple[tuple[float, float], ...]:
    """Return the leak and the distortion of every stage, from loose ones to those asked for.

    -log(leak) and log(1 + distortion), to which logits have to keep, form geometric sequences. One
    that is looser than that of the first stage already stays as it is; where both are, there is
    one stage.
    """
    tightens_leak = asked.leak < LOOSEST.leak
    tightens_distortion = asked.distortion < LOOSEST.distortion
    last = asked.leak, asked.distortion
    if not (tightens_leak or tightens_distortion):
        return (last,)
    gaps = -math.log(LOOSEST.leak), -math.log(asked.leak)
    deltas = math.log1p(LOOSEST.distortion), math.log1p(asked.distortion)
    shares = [i / (stages - 1) for i in range(stages - 1)]
    looser = [
        (
            math.exp(-between(*gaps, share)) if tightens_leak else asked.leak,
            math.expm1(between(*deltas, share)) if tightens_distortion else asked.distortion,
        )
        for share in shares
    ]
    return (*looser, last)


def between(first: float, last: float, share: float) -> float:
    """Return a member of the geometric sequence from `first` to `last`."""
    return float(first ** (1 - share) * last**share)


def joined(heads: Sequence[Head], ended: Ending | None = None) -> Head:
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
