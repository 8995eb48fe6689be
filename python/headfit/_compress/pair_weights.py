"""Maps that commute with rotary positions: some pairs of entries, with a complex weight for each.

Rotary positions turn each pair of entries, read as a complex number, by an angle that grows with
the position at a frequency of the pair's own. All frequencies differ, so that a linear map commutes
with the rotations of both sizes if and only if each pair of the smaller head is one pair of the
whole head, times a complex number. A logit is the sum over pairs of the real part of
conj(q a) (k b): only the product of the weights of queries and keys matters. So the keys keep their
pairs as they are, and the queries take the weight.
"""

from __future__ import annotations

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
