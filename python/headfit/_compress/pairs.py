"""Maps that commute with rotary positions: some pairs of entries, with a complex weight for each.

Rotary positions turn each pair of entries, read as a complex number, by an angle that grows with
the position at a frequency of the pair's own. All frequencies differ, so that a linear map commutes
with the rotations of both sizes if and only if each pair of the smaller head is one pair of the
whole head, times a complex number. A logit is the sum over pairs of the real part of
conj(q a) (k b): only the product of the weights of queries and keys matters. So the keys keep their
pairs as they are, and the queries take the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headfit._base.positions import Rotary
from headfit._compress.maps import Maps, split

# Multiplying a pair (x, y) by re + i im, from the right: re * TURNS[0] + im * TURNS[1].
TURNS = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]])


@dataclass(frozen=True)
class PairWeights:
    """Maps of some pairs.

    Attributes
    ----------
    pairs : ndarray of int
        Which pairs of the whole head are kept, rising.
    weights : ndarray, shape (query heads, 2 * pairs)
        For each pair the real and the imaginary part of its weight.
    """

    pairs: NDArray[np.intp]
    weights: NDArray[np.float64]

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

    Attributes
    ----------
    hessians : ndarray, shape (query heads, 2 * pairs, 2 * pairs)
    scale : float
    """

    hessians: Floats
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
        blocks = self._diagonal(self.hessians)
        found: Floats = self.scale**2 * blocks[:, :, 0, 0].sum(axis=0) / 2
        return found

    def costs(self, kept: PairWeights) -> Floats:
        """Return by how much the loss rises without each pair, with the best weights of the others.

        This is the saliency of Hassibi and Stork (1993, optimal brain surgeon) for pairs.
        """
        inverse = inverted(self._diagonal(inverted(self.part(kept.pairs))))
        parts = kept.weights.reshape(len(kept.weights), -1, 2)
        found: Floats = np.einsum("hpa,hpab,hpb->p", parts, inverse, parts) / 2
        return found

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
        steps = -(inverted(self._diagonal(own)) @ slope[..., np.newaxis])[..., 0]
        gains: Floats = -(steps * slope).sum(axis=(0, 2)) / 2
        return gains, steps.reshape(slopes.shape)

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
        split = matrices.reshape(heads, size // 2, 2, size // 2, 2)
        found: Floats = np.einsum("hpapb->hpab", split)
        return found


def inverted(matrices: Floats) -> Floats:
    """Return the inverses of a stack of matrices."""
    return np.asarray(np.linalg.inv(matrices), np.float64)
