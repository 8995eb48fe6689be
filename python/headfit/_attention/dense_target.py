"""Dense targets of soft fits: checks of what users pass, and conversion to the core's form."""

from typing import Any

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention, attention_in
from headfit._base.arrays import FloatArray, as_array, as_stack, as_stored_array, is_sparse, widened
from headfit._base.masks import core_mask
from headfit.errors import InputError


def check_one_head(attention: Attention, name: str) -> None:
    """Raise an InputError unless an attention is a single head with queries and keys."""
    q, k = (x.shape for x in attention.stored)
    if len(q) != 2 or len(k) != 2:
        raise InputError(f"{name} must be one head, Q and K matrices; got shapes {q} and {k}")
    if 0 in (q[0], k[0]):
        raise InputError(f"{name} must not be empty; got Q and K of shapes {q} and {k}")


def allowed_entries(shape: tuple[int, int], *, sparse: bool = False, **masks: Any) -> Any:
    """Return where masks of one head allow attention, those of keys and -inf in a bias included.

    With `sparse`, for a sparse mask, this is a sparse matrix, and no array has the whole shape.
    """
    flat: Any = Attention(*(np.zeros((rows, 1), np.float32) for rows in shape), **masks)
    logits = flat.logits(sparse=sparse)
    if not sparse:
        return logits > -np.inf
    logits.data = logits.data > -np.inf
    logits.eliminate_zeros()
    return logits


def head_to_match(target: Any, name: str) -> Attention | None:
    """Return the head that a new head is to come close to, checked; None for what is no head.

    A new head has a mask alone. So that it attends to the same keys, key_lengths, key_mask and -inf
    in the bias become part of the mask, which is an array then, or stays sparse.
    """
    attention = attention_in(target)
    if attention is None:
        return None
    check_one_head(attention, name)
    if attention.sinks is not None:
        raise InputError(
            f"{name} must have no sinks: they take a part of every row, and the rows of the head "
            f"that is looked for sum to 1; got {attention!r}"
        )
    options = vars(attention.options)
    more = {key: options[key] for key in ("key_lengths", "key_mask", "bias")}
    if more["bias"] is not None and np.isfinite(widened(as_array(more["bias"], "bias"))).all():
        more["bias"] = None
    if all(x is None for x in more.values()):
        return attention
    shape, mask = (attention.n, attention.m), attention.mask
    whole = allowed_entries(shape, sparse=is_sparse(mask), mask=mask, **more)
    keys = {"mask": whole, "key_lengths": None, "key_mask": None}
    return Attention(*attention.stored, **{**options, **keys})


def target_matrix(target: Any) -> FloatArray:
    """Return a target that is a dense matrix in a form that the core reads, or raise an error."""
    if is_sparse(target):
        raise InputError("the target must be an Attention or a dense array; got a sparse matrix")
    matrix = as_stored_array(target, "the target")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(f"the target must be a matrix and not empty; got shape {matrix.shape}")
    rows: FloatArray = as_stack(matrix)[0]
    return rows


def core_target_of(target: Any, mask: Any) -> _core.SoftTarget:
    """Return the core's form of a target: an `Attention`, or a matrix from `target_matrix`."""
    if isinstance(target, Attention):
        return _core.SoftTarget(attention=target.core)
    return _core.SoftTarget(matrix=target, mask=core_mask(mask, (), target.shape))
