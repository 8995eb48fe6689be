"""Maps that commute with rotary positions: pairs chosen by a quadratic model, weights descended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.family import Descended, Limits
from headfit._compress.maps import Maps
from headfit._compress.pair_descent import PairDescent
from headfit._compress.pair_metric import PairMetric
from headfit._compress.pair_weights import PairWeights
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
