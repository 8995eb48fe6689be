"""The largest weights of every row: found on this machine, or by the workers of a cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.logits import Rows
from headfit._cluster.cluster import Cluster, hold, row_blocks, run_blocks

if TYPE_CHECKING:
    from headfit._attention.attention import Attention

Lists = tuple[NDArray[np.int64], NDArray[Any]]
"""Columns and their values, each of shape (..., rows, k)."""


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
    blocks = [(rows,) for rows in row_blocks(attention.n, products, cluster.slots)]
    held = hold(cluster, (attention, k, as_logits, cluster.threads))
    columns, values = zip(*run_blocks(cluster, topk_rows, held, blocks, "top-k"), strict=True)
    return np.concatenate(columns, axis=-2), np.concatenate(values, axis=-2)


def as_csr(columns: NDArray[np.int64], values: NDArray[Any], keys: int) -> sp.csr_array:
    """Return the weights that each row keeps as a sparse matrix.

    `columns` holds the columns of each row, largest weight first, and -1 beyond the last one.
    """
    present = columns >= 0
    offsets = np.concatenate(([0], np.cumsum(present.sum(axis=1))))
    matrix = csr_of(values[present], columns[present], offsets, (columns.shape[0], keys))
    matrix.sort_indices()
    return matrix


def csr_of(
    values: NDArray[Any], columns: NDArray[Any], offsets: NDArray[Any], shape: tuple[int, int]
) -> sp.csr_array:
    """Return a matrix in CSR format, whose indices are in int32 where they fit."""
    index = np.int32 if offsets[-1] < 2**31 else np.int64
    parts = (values, columns.astype(index, copy=False), offsets.astype(index, copy=False))
    return sp.csr_array(parts, shape=shape)
