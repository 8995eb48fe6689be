"""`AttentionStats`: the entropy, largest weight and effective support of attention rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, repr=False)
class AttentionStats:
    """Statistics of each row of attention, in float64 arrays of shape (..., n).

    Attributes
    ----------
    entropy : ndarray
        The entropy of each row's weights, in nats; with sinks, of the weights divided by
        `key_mass`: how the row spreads what it gives to keys.
    max_weight : ndarray
        The largest weight of each row, as `attention_matrix` has it.
    effective_support : ndarray
        exp(entropy): the effective number of keys that each row attends to.
    log_sum : ndarray
        The logarithm of the sum of exp(logit), the sink's included; -inf for a row without keys.
    shares : tuple of float
        The shares that were asked for.
    keys_for_share : ndarray of int64, shape (..., n, len(shares))
        The fewest keys that hold each share of a row's mass; with sinks, of `key_mass`.
    key_mass : ndarray
        The sum of each row's weights: 1 without sinks, 0 for a row without keys.
    """

    entropy: NDArray[np.float64]
    max_weight: NDArray[np.float64]
    effective_support: NDArray[np.float64]
    log_sum: NDArray[np.float64]
    shares: tuple[float, ...]
    keys_for_share: NDArray[np.int64]
    key_mass: NDArray[np.float64]

    def __repr__(self) -> str:
        if self.entropy.size == 0:
            return "AttentionStats(no rows)"
        held = ", ".join(
            f"{share:.0%} of the mass in {np.median(self.keys_for_share[..., i]):g}"
            for i, share in enumerate(self.shares)
        )
        return (
            f"AttentionStats({self.entropy.size} rows; medians: entropy "
            f"{np.median(self.entropy):.3g} nats, largest weight {np.median(self.max_weight):.3g}, "
            f"effective support {np.median(self.effective_support):.3g} keys"
            + (f", {held} keys)" if held else ")")
        )
