"""Maps that commute with rotary positions: pairs chosen by a quadratic model, weights descended."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.maps import Descended, Maps
from headfit._compress.pairs import PairMetric, PairWeights
from headfit._compress.passages import Passages
from headfit._shrink.descent import Running

# How often a descent may exchange a pair for another, and how many exchanges are tried before it
# ends with those that it has.
MOST_SWAPS, MOST_TRIALS = 16, 4


class CommutingMaps:
    """Maps of a head that commute with its rotary positions, as `FreeMaps` are without these.

    For chosen pairs the divergence is convex in their weights, unless logits are soft-capped.
    """

    def __init__(
        self, passages: Passages, loss: _core.CompressLoss, rotary: Rotary, threads: int
    ) -> None:
        self.rotary, self.loss, self.threads = rotary, loss, threads
        self.metric = PairMetric.of(*loss.moments(), rotary, passages.scale)
        self.order = self.metric.order()

    def closed(self, dim: int) -> dict[str, Maps]:
        """Return the pairs of most weight as they are, and the last ones to be left out."""
        count = dim // 2
        by_share = np.argsort(-self.metric.shares(), kind="stable")
        return {
            "share": self.metric.unchanged(np.sort(by_share[:count])).maps(self.rotary),
            "eliminated": self.metric.best(np.sort(self.order[-count:])).maps(self.rotary),
        }

    def extended(self, maps: Maps, dim: int) -> dict[str, Maps]:
        """Return descended maps with the pairs of the largest gain, and with pairs of weight 0."""
        kept = PairWeights.of_maps(maps, self.rotary)
        others, gains, weights = self._gains(kept)
        best = np.sort(np.argsort(-gains, kind="stable")[: dim // 2 - len(kept.pairs)])
        parts = weights.reshape(len(weights), -1, 2)[:, best].reshape(len(weights), -1)
        return {
            "extended": kept.and_others(others[best], parts).maps(self.rotary),
            "silent": self.padded(maps, dim),
        }

    def padded(self, maps: Maps, dim: int) -> Maps:
        """Return maps with further pairs, whose queries are zero."""
        kept = PairWeights.of_maps(maps, self.rotary)
        others = self.order[::-1][~np.isin(self.order[::-1], kept.pairs)]
        return kept.and_others(others[: dim // 2 - len(kept.pairs)]).maps(self.rotary)

    def descend(self, start: Maps, judge: _core.CompressLoss | None, running: Running) -> Descended:
        """Descend the weights, and exchange pairs as long as that lowers the loss."""
        descent = PairDescent(self, judge, running.limits())
        best = descent.run(PairWeights.of_maps(start, self.rotary))
        swaps = 0
        while not descent.status and swaps < MOST_SWAPS:
            found = self._exchanged(best, descent)
            if found is None:
                break
            best, swaps = found, swaps + 1
        return descent.result(best, swaps)

    def _exchanged(self, kept: PairWeights, descent: PairDescent) -> PairWeights | None:
        """Return better pairs, one of them exchanged; None if no exchange that is tried is better.

        Those are tried first that the quadratic model says most of.
        """
        value = descent.value
        others, gains, weights = self._gains(kept)
        better = gains[:, np.newaxis] - self.metric.costs(kept)
        order = np.argsort(-better, axis=None, kind="stable")[:MOST_TRIALS]
        for other, own in zip(*np.unravel_index(order, better.shape), strict=True):
            start = kept.without(int(own)).and_others(
                others[other : other + 1], weights[:, 2 * other : 2 * other + 2]
            )
            found = descent.run(start)
            if descent.value < value:
                return found
            if descent.status:
                break
        descent.value = value
        return None

    def _gains(
        self, kept: PairWeights
    ) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        """Return the other pairs, the loss that each would take away, and their weights."""
        others = np.setdiff1d(np.arange(self.metric.pairs), kept.pairs)
        whole = kept.and_others(others)
        _, by_maps = self.loss.evaluate(whole.maps(self.rotary), self.threads)
        slopes = whole.gradient(by_maps, self.rotary).reshape(len(whole.weights), -1, 2)
        own = slopes[:, others].reshape(len(slopes), -1)
        return others, *self.metric.gains(kept, others, own)


# A descent ends where a step lowers the loss by less than this share of the tolerance, relative to
# the loss at its start. The tolerance itself is about ten steps.
STEP_SHARE = 1e-2
MEMORY = 20


@dataclass
class PairDescent:
    """Descents of weights one after the other, within one set of limits."""

    family: CommutingMaps
    judge: _core.CompressLoss | None
    limits: dict[str, Any]
    first: float = math.nan  # the loss at the start of the first
    value: float = math.inf  # the loss where the last one ended
    status: str = ""  # the limit that has been reached, if any
    steps: int = 0
    evaluations: int = 0
    judged: tuple[float, Maps] | None = None
    begun: float = field(default_factory=time.perf_counter)

    def run(self, start: PairWeights) -> PairWeights:
        """Return the weights of least loss of some pairs."""
        rotary, threads = self.family.rotary, self.family.threads
        # With these factors the quadratic model of the loss is a sum of squares.
        factors = np.linalg.cholesky(self.family.metric.part(start.pairs))

        def solved(parts: NDArray[np.float64], trans: Literal["N", "T"]) -> NDArray[np.float64]:
            pairs = zip(factors, parts, strict=True)
            return np.stack([solve_triangular(f, x, trans=trans, lower=True) for f, x in pairs])

        def weights(x: NDArray[np.float64]) -> PairWeights:
            return PairWeights(start.pairs, solved(x.reshape(start.weights.shape), "T"))

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            at = weights(x)
            value, by_maps = self.family.loss.evaluate(at.maps(rotary), threads)
            self.evaluations += 1
            return value * unit, unit * solved(at.gradient(by_maps, rotary), "N").ravel()

        def look(intermediate_result: Any) -> None:
            self.steps += 1
            self._look(weights(intermediate_result.x), float(intermediate_result.fun) / unit)
            if self.status:
                raise StopIteration

        first = self.family.loss.value(start.maps(rotary), threads)
        unit = 1 / max(first, np.finfo(np.float64).tiny)  # SciPy's tolerance is absolute below 1
        self.first = self.first if np.isfinite(self.first) else first
        self._look(start, first)
        if self.status:
            self.value = first
            return start
        x = np.concatenate(
            [factor.T @ part for factor, part in zip(factors, start.weights, strict=True)]
        )
        from scipy.optimize import minimize  # takes long to import

        found = minimize(
            loss,
            x,
            jac=True,
            method="L-BFGS-B",
            callback=look,
            options={
                "maxiter": max(1, self.limits["max_steps"] - self.steps),
                "maxcor": MEMORY,
                "ftol": STEP_SHARE * self.limits["tolerance"],
                "gtol": 0.0,
            },
        )
        best = weights(np.asarray(found.x))
        self.value = float(found.fun) / unit
        self._judge_of(best)
        return best

    def _look(self, at: PairWeights, value: float) -> None:
        """Note how well weights do on other passages, and which limit has been reached."""
        self._judge_of(at)
        limits = self.limits
        if limits["progress"] is not None and not limits["progress"](self.steps, value):
            self.status = "stopped"
        elif value <= limits["enough"]:
            self.status = "enough"
        elif self.steps >= limits["max_steps"]:
            self.status = "step limit"
        elif time.perf_counter() - self.begun > limits["time_limit"]:
            self.status = "time limit"

    def _judge_of(self, at: PairWeights) -> None:
        if self.judge is None:
            return
        maps = at.maps(self.family.rotary)
        value = self.judge.value(maps, self.family.threads)
        if self.judged is None or value < self.judged[0]:
            self.judged = (value, maps)

    def result(self, best: PairWeights, swaps: int) -> Descended:
        """Return what was found, with weights that did best."""
        maps = best.maps(self.family.rotary)
        report = {"status": self.status or "converged", "steps": self.steps,
                  "evaluations": self.evaluations, "swaps": swaps,
                  "seconds": time.perf_counter() - self.begun}  # fmt: skip
        judged = maps if self.judged is None else self.judged[1]
        return Descended(maps, judged, self.first, self.value, report)
