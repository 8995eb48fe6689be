"""Maps that commute with rotary positions: some pairs of entries, with a complex weight for each.

Rotary positions turn each pair of entries, read as a complex number, by an angle that grows with
the position at a frequency of the pair's own. All frequencies differ, so that a linear map commutes
with the rotations of both sizes if and only if each pair of the smaller head is one pair of the
whole head, times a complex number. A logit is the sum over pairs of the real part of
conj(q a) (k b): only the product of the weights of queries and keys matters. So the keys keep their
pairs as they are, and the queries take the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.maps import Descended, Maps, split
from headfit._shrink.descent import Running

Floats = NDArray[np.float64]
Pairs = NDArray[np.intp]

# Multiplying a pair (x, y) by re + i im, from the right: re * TURNS[0] + im * TURNS[1].
TURNS = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]])


@dataclass(frozen=True)
class PairWeights:
    """Maps of some pairs."""

    pairs: Pairs  # which pairs of the whole head are kept, rising
    weights: Floats  # real and imaginary parts, shape (query heads, pairs, 2)

    @classmethod
    def of_maps(cls, maps: Maps, rotary: Rotary) -> PairWeights:
        """Return the pairs and weights that maps consist of."""
        p_q, p_k = split(maps, len(maps) // (2 * len(rotary.frequencies)) - 1)
        small = _entries(rotary, p_k.shape[1] // 2)
        entries = p_k[:, small[:, 0]].argmax(axis=0)  # the first entry of each pair
        pairs = np.array([np.flatnonzero(rotary.pairs()[:, 0] == e)[0] for e in entries])
        return cls(pairs, p_q[:, entries[:, np.newaxis], small])

    def maps(self, rotary: Rotary) -> Maps:
        """Return the maps as one matrix."""
        whole, small = rotary.pairs()[self.pairs], _entries(rotary, len(self.pairs))
        made = np.zeros((len(self.weights) + 1, 2 * len(rotary.frequencies), small.size))
        rows, columns = whole[:, :, np.newaxis], small[:, np.newaxis, :]
        made[:-1, rows, columns] = np.einsum("hpc,cab->hpab", self.weights, TURNS)
        made[-1, whole, small] = 1
        return made.reshape(-1, small.size)

    def gradient(self, by_maps: Maps, rotary: Rotary) -> Floats:
        """Return a gradient by the weights, from that by the maps."""
        whole, small = rotary.pairs()[self.pairs], _entries(rotary, len(self.pairs))
        p_q, _ = split(by_maps, len(self.weights))
        blocks = p_q[:, whole[:, :, np.newaxis], small[:, np.newaxis, :]]
        return np.asarray(np.einsum("hpab,cab->hpc", blocks, TURNS))

    def without(self, pair: int) -> PairWeights:
        """Return the others, without the pair at this place."""
        return PairWeights(np.delete(self.pairs, pair), np.delete(self.weights, pair, axis=1))

    def and_others(self, pairs: Pairs, weights: Floats | None = None) -> PairWeights:
        """Return these and other pairs, of weight zero if none are given."""
        if weights is None:
            weights = np.zeros((len(self.weights), len(pairs), 2))
        together = np.concatenate([self.pairs, pairs])
        order = np.argsort(together)
        return PairWeights(together[order], np.hstack([self.weights, weights])[:, order])


def _entries(rotary: Rotary, pairs: int) -> Pairs:
    """Return the entries of each pair of a head with so many pairs."""
    return rotary.of_pairs(np.arange(pairs)).pairs()


# Added to the diagonal, relative to its mean, so that directions that no passage has can be solved.
DAMPING = 1e-6


@dataclass(frozen=True)
class PairMetric:
    """The loss near the whole head, 1/2 (w - s)^T G (w - s), where all weights s are the scale.

    G is the Hessian of the mean divergence at s, if queries were independent of the keys that
    they attend to.
    """

    hessians: Floats  # shape (query heads, pairs, 2, pairs, 2)
    scale: float

    @classmethod
    def of(
        cls, queries: Sequence[Floats], keys: Floats, rotary: Rotary, scale: float
    ) -> PairMetric:
        """Make it of second moments of queries and of the covariance of attended keys."""
        entries = rotary.pairs()
        size = entries.size

        def blocks(moment: Floats) -> Floats:
            return moment[entries][:, :, entries]

        hessians = []
        for moment in queries:
            hessian = np.einsum(
                "cab,fagA,eAB,fbgB->fcge", TURNS, blocks(moment), TURNS, blocks(keys), optimize=True
            ).reshape(size, size)
            damping = DAMPING * hessian.trace() / size + np.finfo(np.float64).tiny
            hessians.append((hessian + hessian.T) / 2 + damping * np.eye(size))
        return cls(np.reshape(hessians, (-1, len(entries), 2, len(entries), 2)), scale)

    @property
    def pairs(self) -> Pairs:
        """All pairs of the whole head."""
        return np.arange(self.hessians.shape[1])

    def block(self, pairs: Pairs, others: Pairs) -> Floats:
        """Return the Hessian by the weights of some pairs and of others, for each query head."""
        parts = self.hessians[:, pairs][:, :, :, others]
        return np.ascontiguousarray(parts).reshape(len(parts), 2 * len(pairs), -1)

    def unchanged(self, pairs: Pairs) -> PairWeights:
        """Return pairs with the weights that they have in the whole head."""
        return PairWeights(pairs, np.tile([self.scale, 0.0], (len(self.hessians), len(pairs), 1)))

    def best(self, pairs: Pairs) -> PairWeights:
        """Return pairs with the weights of least loss."""
        kept, left = self.unchanged(pairs), np.setdiff1d(self.pairs, pairs)
        weights_left = self.unchanged(left).weights.reshape(len(self.hessians), -1, 1)
        slope = self.block(pairs, left) @ weights_left
        steps = np.linalg.solve(self.block(pairs, pairs), slope)
        return PairWeights(pairs, kept.weights + steps.reshape(kept.weights.shape))

    def shares(self) -> Floats:
        """Return the loss that each pair alone would cause if it were left out."""
        own = np.einsum("hpp->p", self.hessians[:, :, 0, :, 0])
        return np.asarray(self.scale**2 * own / 2)

    def costs(self, kept: PairWeights) -> Floats:
        """Return by how much the loss rises without each pair, with the best weights of the others.

        This is the saliency of Hassibi and Stork (1993, optimal brain surgeon) for pairs.
        """
        inverse = np.linalg.inv(self.block(kept.pairs, kept.pairs))
        own = np.linalg.inv(_diagonal(inverse))
        return np.asarray(np.einsum("hpa,hpab,hpb->p", kept.weights, own, kept.weights) / 2)

    def gains(self, kept: PairWeights, others: Pairs, slopes: Floats) -> tuple[Floats, Floats]:
        """Return by how much the loss falls with each other pair, and its weight then.

        `slopes` is the gradient by the weights of the others, shape (query heads, others, 2).
        """
        cross = self.block(kept.pairs, others)
        among_kept = self.block(kept.pairs, kept.pairs)
        own = self.block(others, others) - cross.swapaxes(1, 2) @ np.linalg.solve(among_kept, cross)
        steps = -(np.linalg.inv(_diagonal(own)) @ slopes[..., np.newaxis])[..., 0]
        return np.asarray(-(steps * slopes).sum(axis=(0, 2)) / 2), steps

    def order(self) -> Pairs:
        """Return all pairs in the order in which they are left out, always the cheapest next."""
        kept, left_out = self.pairs, []
        while len(kept) > 1:
            cheapest = int(np.argmin(self.costs(self.best(kept))))
            left_out.append(kept[cheapest])
            kept = np.delete(kept, cheapest)
        return np.array([*left_out, *kept])


def _diagonal(matrices: NDArray[np.floating]) -> Floats:
    """Return the 2 x 2 blocks of pairs on the diagonal, shape (query heads, pairs, 2, 2)."""
    heads, size, _ = matrices.shape
    return np.asarray(np.einsum("hpapb->hpab", matrices.reshape(heads, size // 2, 2, -1, 2)))


# How often a descent may exchange a pair for another, and how many exchanges are tried before it
# ends with those that it has.
MOST_SWAPS, MOST_TRIALS = 16, 4
# A descent ends where a step lowers the loss by less than this share of the tolerance, which is
# about ten steps.
STEP_SHARE = 1e-2


class CommutingMaps:
    """Maps of a head that commute with its rotary positions, as `FreeMaps` are without these.

    For chosen pairs the divergence is convex in their weights, unless logits are soft-capped.
    """

    def __init__(
        self, scale: float, loss: _core.CompressLoss, rotary: Rotary, threads: int
    ) -> None:
        self.rotary, self.loss, self.threads = rotary, loss, threads
        self.metric = PairMetric.of(*loss.moments(), rotary, scale)
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
        return {
            "extended": kept.and_others(others[best], weights[:, best]).maps(self.rotary),
            "silent": self.padded(maps, dim),
        }

    def padded(self, maps: Maps, dim: int) -> Maps:
        """Return maps with further pairs, whose queries are zero."""
        kept = PairWeights.of_maps(maps, self.rotary)
        others = self.order[::-1][~np.isin(self.order[::-1], kept.pairs)]
        return kept.and_others(others[: dim // 2 - len(kept.pairs)]).maps(self.rotary)

    def descend(self, start: Maps, judge: _core.CompressLoss | None, running: Running) -> Descended:
        """Descend the weights, and exchange pairs as long as that lowers the loss."""
        runs: list[Descended] = []

        def descended(maps: Maps) -> Descended:
            done = sum(run.report["steps"] for run in runs)
            runs.append(self._descended(maps, judge, running, done))
            return runs[-1]

        best, swaps = descended(start), 0
        while swaps < MOST_SWAPS and (better := self._exchanged(best, descended)):
            best, swaps = better, swaps + 1
        report = {key: sum(run.report[key] for run in runs)
                  for key in ("steps", "evaluations", "seconds")}  # fmt: skip
        report |= {"status": runs[-1].report["status"], "swaps": swaps}
        judged = [run.judged for run in runs] if judge else [best.maps]
        if judge:
            judged.sort(key=lambda maps: judge.value(maps, self.threads))
        return replace(best, judged=judged[0], first=runs[0].first, report=report)

    def _descended(
        self, start: Maps, judge: _core.CompressLoss | None, running: Running, done: int
    ) -> Descended:
        """Descend the weights of some pairs by the core, after so many steps with others."""
        limits = running.limits()
        limits["max_steps"] = max(0, limits["max_steps"] - done)
        limits["tolerance"] *= STEP_SHARE
        if call := limits["progress"]:
            limits["progress"] = lambda step, value: call(done + step, value)
        pairs = PairWeights.of_maps(start, self.rotary).pairs
        entries = np.hstack([self.rotary.pairs()[pairs], _entries(self.rotary, len(pairs))])
        return Descended.of(
            self.loss, judge, start, _core.DescentLimits(**limits, window=1), self.threads,
            (entries, self.metric.block(pairs, pairs)),
        )  # fmt: skip

    def _exchanged(
        self, best: Descended, descended: Callable[[Maps], Descended]
    ) -> Descended | None:
        """Return better pairs, one of them exchanged; None if no exchange that is tried is better.

        Those are tried first that the quadratic model says most of.
        """
        kept, last = PairWeights.of_maps(best.maps, self.rotary), best
        others, gains, weights = self._gains(kept)
        better = gains[:, np.newaxis] - self.metric.costs(kept)
        order = np.argsort(-better, axis=None, kind="stable")[:MOST_TRIALS]
        for other, own in zip(*np.unravel_index(order, better.shape), strict=True):
            if last.report["status"] != "converged":
                break
            start = kept.without(int(own)).and_others(others[[other]], weights[:, [other]])
            last = descended(start.maps(self.rotary))
            if last.last < best.last:
                return last
        return None

    def _gains(self, kept: PairWeights) -> tuple[Pairs, Floats, Floats]:
        """Return the other pairs, the loss that each would take away, and their weights."""
        others = np.setdiff1d(self.metric.pairs, kept.pairs)
        whole = kept.and_others(others)
        _, by_maps = self.loss.evaluate(whole.maps(self.rotary), self.threads)
        slopes = whole.gradient(by_maps, self.rotary)[:, others]
        return others, *self.metric.gains(kept, others, slopes)
