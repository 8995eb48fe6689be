"""What a plan tries where the head asked for does not certify, to tell what stood in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headfit._base.dtypes import NARROW
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances
from headfit._target.target import Target
from headfit.errors import InputError

if TYPE_CHECKING:
    from headfit._plan.search import Planner

STEP, SIZES = 4, 4
"""A pattern that does not certify is tried at `SIZES` smaller n, each `STEP` times the last."""

LOOSER, LEAST_LOOSE, LOOSEST, LOOSEST_LEAK = 6, 2, 10, 0.5
"""Leak and distortion that are not met are multiplied by `LOOSER`: if that certifies, by
`LEAST_LOOSE` too, and by `LOOSEST` otherwise. The leak is widened to `LOOSEST_LEAK` at most."""

FEWEST_TOKENS, SPARSE = 32, 4
"""A smaller n is worth a try if it is at least this, and so many times the nonzeros of a row."""


def relax(planner: Planner, target: Target) -> None:
    """Take back one demand at a time, to tell which one stood in the way."""
    question = planner.question
    if question.dtype in NARROW:
        kernel = question.kernel.of_wide_head()
        wide = replace(question, dtype="float32", kernel=kernel)
        planner.attempt("float32", wide, target, planner.clock.part("relaxed"))
    if question.kernel.rounds_logits:
        unrounded = replace(question, kernel=Kernel.named("float32"))
        planner.attempt("float32 logits", unrounded, target, planner.clock.part("relaxed"))
    if question.tolerances.max_logit is not None:
        planner.attempt(
            "free logits", question.with_max_logit(None), target, planner.clock.part("relaxed")
        )


def loosen(planner: Planner, target: Target) -> None:
    """Try wider tolerances; if they certify, narrower ones, and otherwise still wider ones."""
    asked = planner.question.tolerances

    def holds(times: int) -> bool:
        wide = Tolerances(
            max(asked.leak, min(LOOSEST_LEAK, times * asked.leak)),
            times * asked.distortion,
            asked.max_logit,
        )
        question = replace(planner.question, tolerances=wide)
        return planner.attempt("looser", question, target, planner.clock.part("looser"))

    holds(LEAST_LOOSE if holds(LOOSER) else LOOSEST)


def smaller_n(planner: Planner) -> Target | None:
    """Climb from small n, where certificates are quick, to the first that does not certify.

    Return the target of that one, or None when there is none.
    """
    if not planner.source.has_smaller:
        return None
    for n in _sizes(planner):
        try:
            target = planner.source.at(n)
        except InputError:  # a pattern that exists for some n only, such as powers of two
            continue
        if SPARSE * target.mean_per_row > n:
            continue
        if not planner.attempt(
            "smaller n", planner.question, target, planner.clock.part("smaller n")
        ):
            return target
    return None


def _sizes(planner: Planner) -> list[int]:
    """Return the smaller n to try, in ascending order, whose certificates the time allows."""
    top = planner.source.n // STEP
    while top >= FEWEST_TOKENS and not planner.clock.affords(top):
        top //= STEP
    sizes = [top // STEP**by for by in reversed(range(SIZES))]
    return [size for size in sizes if size >= FEWEST_TOKENS]
