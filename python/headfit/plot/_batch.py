"""Which entry of a batch a picture shows: one meaning of `batch` for all pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headfit._attention.attention import Attention, attention_in
from headfit._attention.single_heads import single_heads
from headfit._base.arguments import shown
from headfit._base.arrays import as_count, as_stored_array, is_sparse
from headfit.errors import InputError
from headfit.plot._source import HELD_MATRICES


def entry_of_batch(
    heads: Attention, batch: Any, axis: int
) -> tuple[tuple[int, ...], list[Attention]]:
    """Return the heads of one entry of a batch: the shape of their axes, and these in order.

    The entries are those of a leading axis of `heads`.
    """
    entry = as_count(batch, "batch", 0, heads.lead[axis] - 1)
    places = np.arange(math.prod(heads.lead)).reshape(heads.lead).take(entry, axis)
    single = single_heads(heads)
    return places.shape, [single[i] for i in places.ravel()]


def has_batch(M: Any) -> bool:
    """Whether `M` is a batch of one head, shape (batch, n, d), or of matrices (batch, n, m)."""
    heads = attention_in(M)
    if heads is not None:
        return len(heads.lead) == 1
    if M is None or isinstance(M, HELD_MATRICES) or is_sparse(M):
        return False
    return as_stored_array(M, "M", ndim=0).ndim == 3


def one_of_batch(batch: Any, *given: Any) -> list[Any]:
    """Return what is to be drawn of matrices or heads: of those with a batch, one entry.

    At least one must be a batch of one head, or a batch of matrices, if `batch` is given.
    """
    if batch is None:
        return list(given)
    batched = [has_batch(M) for M in given]
    if not any(batched):
        what = ", ".join(shown(M) for M in given)
        raise InputError(
            "batch must not be given without an Attention of shape (batch, n, d) or matrices of "
            f"shape (batch, n, m); got {what}"
        )
    return [_entry(M, batch) if own else M for M, own in zip(given, batched, strict=True)]


def _entry(M: Any, batch: Any) -> Any:
    heads = attention_in(M)
    if heads is not None:
        return entry_of_batch(heads, batch, 0)[1][0]
    array = as_stored_array(M, "M", ndim=3)
    return array[as_count(batch, "batch", 0, len(array) - 1)]
