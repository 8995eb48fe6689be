"""Maps that commute with rotary positions: some pairs of entries, with a complex weight for each.

Rotary positions turn each pair of entries, read as a complex number, by an angle that grows with
the position at a frequency of the pair's own. All frequencies differ, so that a linear map commutes
with the rotations of both sizes if and only if each pair of the smaller head is one pair of the
whole head, times a complex number. A logit is the sum over pairs of the real part of
conj(q a) (k b): only the product of the weights of queries and keys matters. So the keys keep their
pairs as they are, and the queries take the weight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.maps import Descended, Maps, split
from headfit._compress.passages import Passages
from headfit._shrink.descent import Running

# Multiplying a pair (x, y) by re + i im, from the right: re * TURNS[0] + im * TURNS[1].
TURNS = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]])


@dataclass(frozen=True)
class PairWeights:
    """Maps of some pairs."""

    pairs: NDArray[np.intp]  # which pairs of the whole head are kept, rising
    weights: NDArray[np.float64]  # real and imaginary parts, shape (query heads, 2 * pairs)

    @classmethod
    def of_maps(cls, maps: Maps, rotary: Rotary) -> PairWeights:
        """Return the pairs and weights that maps consist of."""
        p_q, p_k = split(maps, len(maps) // (2 * len(rotary.frequencies)) - 1)
        small = _entries(rotary, p_k.shape[1] // 2)
        entries = p_k[:, small[:, 0]].argmax(axis=0)  # the first entry of each pair
        pairs = np.array([np.flatnonzero(rotary.pairs()[:, 0] == e)[0] for e in entries])
        parts = p_q[:, entries[:, np.newaxis], small]
        return cls(pairs.astype(np.intp), parts.reshape(len(p_q), -1))

    def maps(self, rotary: Rotary) -> Maps:
        """Return the maps as one matrix."""
        whole, small = rotary.pairs()[self.pairs], _entries(rotary, len(self.pairs))
        made = np.zeros((len(self.weights) + 1, 2 * len(rotary.frequencies), small.size))
        rows, columns = whole[:, :, np.newaxis], small[:, np.newaxis, :]
        parts = self.weights.reshape(len(self.weights), -1, 2)
        made[:-1, rows, columns] = np.einsum("hpc,cab->hpab", parts, TURNS)
        made[-1, whole, small] = 1
        return made.reshape(-1, small.size)

    def gradient(self, by_maps: Maps, rotary: Rotary) -> NDArray[np.float64]:
        """Return a gradient by the weights, from that by the maps."""
        whole, small = rotary.pairs()[self.pairs], _entries(rotary, len(self.pairs))
        p_q, _ = split(by_maps, len(self.weights))
        blocks = p_q[:, whole[:, :, np.newaxis], small[:, np.newaxis, :]]
        found: NDArray[np.float64] = np.einsum("hpab,cab->hpc", blocks, TURNS)
        return found.reshape(self.weights.shape)

    def without(self, pair: int) -> PairWeights:
        """Return the others, without the pair at this place."""
        kept = np.delete(np.arange(len(self.pairs)), pair)
        return PairWeights(self.pairs[kept], self.weights[:, coordinates(kept)])

    def and_others(
        self, pairs: NDArray[np.intp], weights: NDArray[np.float64] | None = None
    ) -> PairWeights:
        """Return these and other pairs, of weight zero if none are given."""
        if weights is None:
            weights = np.zeros((len(self.weights), 2 * len(pairs)))
        together = np.concatenate([self.pairs, pairs])
        order = np.argsort(together)
        both = np.hstack([self.weights, weights])
        return PairWeights(together[order], both[:, coordinates(order)])


def coordinates(pairs: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the places of the real and imaginary parts of some pairs."""
    return (2 * pairs[:, np.newaxis] + np.arange(2)).ravel()


def _entries(rotary: Rotary, pairs: int) -> NDArray[np.intp]:
    """Return the entries of each pair of a head with so many pairs."""
    return rotary.of_pairs(np.arange(pairs)).pairs()


# Added to the diagonal, relative to its mean, so that directions that no passage has can be solved.
DAMPING = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairMetric:
    """The loss near the whole head, 1/2 (w - s)^T G (w - s), where all weights s are the scale.

    G is the Hessian of the mean divergence at s, if queries were independent of the keys that
    they attend to.
    """

    hessians: Floats  # shape (query heads, 2 * pairs, 2 * pairs)
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

        found = []
        for moment in queries:
            hessian = np.einsum(
                "cab,fagA,eAB,fbgB->fcge", TURNS, blocks(moment), TURNS, blocks(keys), optimize=True
            ).reshape(size, size)
            damping = DAMPING * hessian.trace() / size + np.finfo(np.float64).tiny
            found.append((hessian + hessian.T) / 2 + damping * np.eye(size))
        return cls(np.stack(found), scale)

    @property
    def pairs(self) -> int:
        """The number of pairs of the whole head."""
        return int(self.hessians.shape[1]) // 2

    def part(self, pairs: NDArray[np.intp]) -> Floats:
        """Return the Hessian by the weights of some pairs."""
        at = coordinates(pairs)
        return self.hessians[:, at[:, np.newaxis], at]

    def unchanged(self, pairs: NDArray[np.intp]) -> PairWeights:
        """Return pairs with the weights that they have in the whole head."""
        weights = np.tile([self.scale, 0.0], (len(self.hessians), len(pairs)))
        return PairWeights(pairs, weights)

    def best(self, pairs: NDArray[np.intp]) -> PairWeights:
        """Return pairs with the weights of least loss."""
        kept, left = self.unchanged(pairs), np.setdiff1d(np.arange(self.pairs), pairs)
        cross = self.hessians[:, coordinates(pairs)[:, np.newaxis], coordinates(left)]
        slope = cross @ self.unchanged(left).weights[..., np.newaxis]
        return PairWeights(pairs, kept.weights + np.linalg.solve(self.part(pairs), slope)[..., 0])

    def shares(self) -> Floats:
        """Return the loss that each pair alone would cause if it were left out."""
        own = self._diagonal(self.hessians)[:, :, 0, 0]
        return np.asarray(self.scale**2 * own.sum(axis=0) / 2)

    def costs(self, kept: PairWeights) -> Floats:
        """Return by how much the loss rises without each pair, with the best weights of the others.

        This is the saliency of Hassibi and Stork (1993, optimal brain surgeon) for pairs.
        """
        inverse: Any = np.linalg.inv(self.part(kept.pairs))
        inverse = np.linalg.inv(self._diagonal(inverse))
        parts = kept.weights.reshape(len(kept.weights), -1, 2)
        return np.asarray(np.einsum("hpa,hpab,hpb->p", parts, inverse, parts) / 2)

    def gains(
        self, kept: PairWeights, others: NDArray[np.intp], slopes: Floats
    ) -> tuple[Floats, Floats]:
        """Return by how much the loss falls with each other pair, and its weight then.

        `slopes` is the gradient by the weights of the others, shape (query heads, 2 * others).
        """
        cross = self.hessians[:, coordinates(kept.pairs)[:, np.newaxis], coordinates(others)]
        own = self.part(others) - cross.swapaxes(1, 2) @ np.linalg.solve(
            self.part(kept.pairs), cross
        )
        slope = slopes.reshape(len(slopes), -1, 2)
        steps = -(np.linalg.inv(self._diagonal(own)) @ slope[..., np.newaxis])[..., 0]
        return np.asarray(-(steps * slope).sum(axis=(0, 2)) / 2), steps.reshape(slopes.shape)

    def order(self) -> NDArray[np.intp]:
        """Return all pairs in the order in which they are left out, always the cheapest next."""
        kept, left_out = np.arange(self.pairs), []
        while len(kept) > 1:
            cheapest = int(np.argmin(self.costs(self.best(kept))))
            left_out.append(kept[cheapest])
            kept = np.delete(kept, cheapest)
        return np.array([*left_out, *kept], dtype=np.intp)

    @staticmethod
    def _diagonal(matrices: Floats) -> Floats:
        """Return the 2 x 2 blocks of pairs on the diagonal, shape (query heads, pairs, 2, 2)."""
        heads, size, _ = matrices.shape
        blocks = matrices.reshape(heads, size // 2, 2, size // 2, 2)
        return np.asarray(np.einsum("hpapb->hpab", blocks))


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
