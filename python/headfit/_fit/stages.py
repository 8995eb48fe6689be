"""Tolerances that are tightened from stage to stage, each of which starts from the last one's head.

A head that meets loose tolerances is found sooner, and is often close to one that meets tighter
ones. docs/learned-method.md in the repository has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headfit._base.arrays import FloatArray
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Ending
from headfit._fit.head import Head

LOOSEST = Tolerances(leak=0.5, distortion=2.0)
"""Those of the first stage, unless looser ones are asked for."""

ADDED = ("steps", "scans", "starts", "quenches", "reheats", "roundings", "seconds")
"""What a report of the core says of one stage, and adds up over all."""

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
    before: int = 0
    is_last: bool = True


def tightening(asked: Tolerances, stages: int) -> tuple[tuple[float, float], ...]:
    """Return the leak and the distortion of every stage, from loose ones to those asked for.

    -log(leak) and log(1 + distortion), to which logits have to keep, form geometric sequences.
    Stages that would ask for the same are one.
    """
    gap, delta = -math.log(asked.leak), math.log1p(asked.distortion)
    first_gap = min(gap, -math.log(LOOSEST.leak))
    first_delta = max(delta, math.log1p(LOOSEST.distortion))
    shares = [i / (stages - 1) for i in range(stages - 1)]
    looser = [
        (math.exp(-between(first_gap, gap, share)), math.expm1(between(first_delta, delta, share)))
        for share in shares
        if (first_gap, first_delta) != (gap, delta)
    ]
    return (*looser, (asked.leak, asked.distortion))


def between(first: float, last: float, share: float) -> float:
    """Return a member of the geometric sequence from `first` to `last`."""
    return first ** (1 - share) * last**share


def joined(heads: Sequence[Head], ended: Ending | None = None) -> Head:
    """Return the last stage's head, with the steps of all stages and the end of a stopped one."""
    last = heads[-1]
    reports = [head.settings["learned"] for head in heads]
    report = {**reports[-1], **{name: sum(r[name] for r in reports) for name in ADDED}}
    if ended is not None:
        report["status"] = reports[-2]["status"]
    return replace(
        last,
        settings={**last.settings, "learned": report},
        ended=last.ended if ended is None else ended,
        steps=report["steps"],
        restarts=sum(head.restarts for head in heads),
    )
