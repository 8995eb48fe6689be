"""Maps that commute with rotary positions: pairs chosen by a quadratic model, weights descended."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.maps import Descended, Limits, Maps
from headfit._compress.pairs import PairMetric, PairWeights
from headfit._compress.passages import Passages

# How often a descent may exchange a pair for another, and how many exchanges are tried before it
# ends with those that it has.
MOST_SWAPS, MOST_TRIALS = 16, 4


@dataclass(frozen=True)
class CommutingMaps:
    """Maps of a head that commute with its rotary positions; a `Family`.

    For chosen pairs the divergence is convex in their weights, unless logits are soft-capped.
    """

    rotary: Rotary
    loss: _core.CompressLoss
    threads: int
    metric: PairMetric
    order: NDArray[np.intp]
    step = 2

    @classmethod
    def of(
        cls, passages: Passages, loss: _core.CompressLoss, rotary: Rotary, threads: int
    ) -> CommutingMaps:
        """Measure the moments of the calibration passages."""
        metric = PairMetric.of(*loss.moments(), rotary, passages.scale)
        return cls(rotary, loss, threads, metric, metric.order())

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

    def descend(self, start: Maps, judge: _core.CompressLoss | None, limits: Limits) -> Descended:
        """Descend the weights, and exchange pairs as long as that lowers the loss."""
        descent = PairDescent(self.rotary, self.loss, judge, limits, self.threads)
        best = descent.run(PairWeights.of_maps(start, self.rotary), self.metric)
        swaps = 0
        while descent.goes_on and swaps < MOST_SWAPS:
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
            found = descent.run(start, self.metric)
            if descent.value < value:
                return found
            if not descent.goes_on:
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


class PairDescent:
    """Descents of weights one after the other, within one set of limits.

    Attributes
    ----------
    value : float
        The loss where the last descent ended.
    goes_on : bool
        Whether no limit has been reached yet.
    """

    def __init__(
        self,
        rotary: Rotary,
        loss: _core.CompressLoss,
        judge: _core.CompressLoss | None,
        limits: Limits,
        threads: int,
    ) -> None:
        self._rotary, self._loss, self._judge = rotary, loss, judge
        self._limits, self._threads = limits, threads
        self._begun = time.perf_counter()
        self._steps = self._evaluations = 0
        self._status = ""
        self._judged: tuple[float, Maps] | None = None
        self._first = math.nan
        self.value = math.inf

    @property
    def goes_on(self) -> bool:
        """Whether no limit has been reached yet."""
        return not self._status

    def run(self, start: PairWeights, metric: PairMetric) -> PairWeights:
        """Return the weights of least loss of some pairs."""
        # With these factors the quadratic model of the loss is a sum of squares.
        factors = np.linalg.cholesky(metric.part(start.pairs))

        def weights(x: NDArray[np.float64]) -> PairWeights:
            parts = x.reshape(start.weights.shape)
            found = [
                solve_triangular(factor, part, trans="T", lower=True)
                for factor, part in zip(factors, parts, strict=True)
            ]
            return PairWeights(start.pairs, np.stack(found))

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            at = weights(x)
            value, by_maps = self._loss.evaluate(at.maps(self._rotary), self._threads)
            self._evaluations += 1
            slopes = [
                solve_triangular(factor, slope, lower=True)
                for factor, slope in zip(
                    factors, at.gradient(by_maps, self._rotary), strict=True
                )
            ]  # fmt: skip
            return value * unit, unit * np.concatenate(slopes)

        def look(intermediate_result: Any) -> None:
            self._steps += 1
            self._look(weights(intermediate_result.x), float(intermediate_result.fun) / unit)
            if self._status:
                raise StopIteration

        first = self._loss.value(start.maps(self._rotary), self._threads)
        unit = 1 / max(first, np.finfo(np.float64).tiny)  # SciPy's tolerance is absolute below 1
        self._first = self._first if np.isfinite(self._first) else first
        self._look(start, first)
        if self._status:
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
                "maxiter": max(1, self._limits.max_steps - self._steps),
                "maxcor": MEMORY,
                "ftol": STEP_SHARE * self._limits.tolerance,
                "gtol": 0.0,
            },
        )
        best = weights(np.asarray(found.x))
        self.value = float(found.fun) / unit
        if self._judge is not None:
            self._judge_of(best)
        return best

    def _look(self, at: PairWeights, value: float) -> None:
        """Note how well weights do on other passages, and which limit has been reached."""
        self._judge_of(at)
        limits = self._limits
        if limits.progress is not None and not limits.progress(self._steps, value):
            self._status = "stopped"
        elif value <= limits.enough:
            self._status = "enough"
        elif self._steps >= limits.max_steps:
            self._status = "step limit"
        elif time.perf_counter() - self._begun > limits.time_limit:
            self._status = "time limit"

    def _judge_of(self, at: PairWeights) -> None:
        if self._judge is None:
            return
        maps = at.maps(self._rotary)
        value = self._judge.value(maps, self._threads)
        if self._judged is None or value < self._judged[0]:
            self._judged = (value, maps)

    def result(self, best: PairWeights, swaps: int) -> Descended:
        """Return what was found, with weights that did best."""
        maps = best.maps(self._rotary)
        report = {
            "status": self._status or "converged",
            "steps": self._steps,
            "evaluations": self._evaluations,
            "swaps": swaps,
            "seconds": time.perf_counter() - self._begun,
        }
        judged = maps if self._judged is None else self._judged[1]
        return Descended(maps, judged, self._first, self.value, report)
