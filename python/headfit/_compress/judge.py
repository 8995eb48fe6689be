"""How far maps leave the attention of passages, row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._compress.maps import StoredMaps
from headfit._compress.passages import Passages

__all__ = ["Closeness"]


@dataclass(frozen=True)
class Closeness:
    """How close attention is to the original, over all rows of all passages that attend at all.

    Attributes
    ----------
    tv_mean, tv_95, tv_worst : float
        Total variation, half the sum of |difference|: mean, 95th percentile, largest.
    kl : float
        The mean of KL(original || smaller), in nats.
    """

    tv_mean: float
    tv_95: float
    tv_worst: float
    kl: float

    @classmethod
    def of(
        cls, kl: NDArray[np.float64], tv: NDArray[np.float64], asks: NDArray[np.bool_]
    ) -> Closeness:
        """Summarise rows."""
        if not asks.any():
            return cls(0.0, 0.0, 0.0, 0.0)
        kl, tv = kl[asks], tv[asks]
        return cls(
            float(tv.mean()), float(np.quantile(tv, 0.95)), float(tv.max()), float(kl.mean())
        )


def judged(passages: Passages, maps: StoredMaps, threads: int) -> Closeness:
    """Return how close the smaller head of stored maps is, computed in float64."""
    smaller = maps.all_smaller(passages)
    return Closeness.of(
        *_core.compare_heads(
            [a.core for a in passages.attentions], [a.core for a in smaller], threads
        )
    )
