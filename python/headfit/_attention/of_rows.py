"""What is kept of each row of attention: `AttentionStats`, and its largest weights.

The weights are found on this machine, or by the workers of a cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.logits import Rows
from headfit._base.display import Figures, Shown, Tabular, named
from headfit._base.sparse import csr_of
from headfit._cluster.cluster import Cluster, hold, run_blocks


@dataclass(frozen=True, repr=False, eq=False)
class AttentionStats(Figures, Shown, Tabular):
    """Statistics of each row of attention, in float64 arrays of shape (..., n).

    A table of them has a row for each, by its leading axes (``axis0``, ...) and ``row``; columns
    are the attributes, with ``keys50`` and the like for each share.

    Attributes
    ----------
    entropy : ndarray
        The entropy of each row's weights, in nats; with sinks, of the weights divided by
        `key_mass`: how the row spreads what it gives to keys.
    max_weight : ndarray
        The largest weight of each row, that of `attention_matrix` up to rounding.
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

    def _table(self) -> tuple[dict[Any, Any], list[str]]:
        shape, keys = self.entropy.shape, self.keys_for_share
        names = [*(f"axis{at}" for at in range(len(shape) - 1)), "row"]
        columns = {
            **dict(zip(names, np.indices(shape), strict=True)),
            **named(self, "entropy", "max_weight", "effective_support", "log_sum", "key_mass"),
            **{f"keys{s * 100:.12g}": keys[..., i] for i, s in enumerate(self.shares)},
        }
        return {name: column.ravel() for name, column in columns.items()}, names

    def _facts(self) -> dict[str, str]:
        facts = {"rows": str(self.entropy.size)}
        if self.entropy.size:
            facts |= {
                "median entropy": f"{np.median(self.entropy):.3g} nats",
                "largest weight": f"{np.median(self.max_weight):.3g}",
                "effective support": f"{np.median(self.effective_support):.3g} keys",
            }
            for i, share in enumerate(self.shares):
                keys = np.median(self.keys_for_share[..., i])
                facts[f"{share * 100:.12g}% of the mass in"] = f"{keys:g} keys"
        return facts


if TYPE_CHECKING:
    from headfit._attention.attention import Attention

# Columns and their values, each of shape (..., rows, k).
Lists = tuple[NDArray[np.int64], NDArray[Any]]


def topk_rows(how: tuple[Attention, int, bool, int], rows: Rows) -> Lists:
    """Return the k largest entries of some rows: their columns and values.

    `how` is the attention, k, whether logits or weights are wanted, and the number of threads.
    """
    attention, k, as_logits, threads = how
    logits, count = attention._of_rows(rows)
    shape = (*attention.lead, count, k)
    columns, values = np.empty(shape, np.int64), np.empty(shape, attention.dtype)
    stacks = attention._stack(columns), attention._stack(values)
    _core.attention_topk(logits, *stacks, as_logits, threads)
    return columns, values


def topk_blocks(cluster: Cluster, attention: Attention, k: int, as_logits: bool) -> Lists:
    """Return what `topk_rows` does for all rows, computed by the workers of a cluster."""
    products = math.prod(attention.lead) * attention.m * attention.dim
    held = hold(cluster, (attention, k, as_logits, cluster.threads))
    parts = run_blocks(cluster, topk_rows, held, products, "top-k", range(attention.n))
    columns, values = zip(*parts, strict=True)
    return np.concatenate(columns, axis=-2), np.concatenate(values, axis=-2)


def as_csr(columns: NDArray[Any], values: NDArray[Any], keys: int) -> sp.csr_array:
    """Return what each row keeps, weights or whether it does, as a sparse matrix.

    `columns` holds the columns of each row in any order, and -1 beyond the last one.
    """
    present = columns >= 0
    offsets = np.concatenate(([0], np.cumsum(present.sum(axis=1))))
    matrix = csr_of(values[present], columns[present], offsets, (columns.shape[0], keys))
    matrix.sort_indices()
    return matrix
