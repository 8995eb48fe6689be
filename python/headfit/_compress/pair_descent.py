"""The descent of the weights of pairs: L-BFGS of SciPy on the loss of the core."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.family import Descended, Limits
from headfit._compress.maps import Maps
from headfit._compress.pair_metric import PairMetric
from headfit._compress.pair_weights import PairWeights

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
