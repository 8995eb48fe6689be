"""Dense targets of soft fits: checks of what users pass, and conversion to the core's form."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arrays import as_stack, as_stored_array, is_sparse
from headfit._base.masks import core_mask
from headfit.errors import InputError


def check_one_head(attention: Attention, name: str) -> None:
    """Raise an InputError unless an attention is a single head with queries and keys."""
    q, k = (x.shape for x in attention.stored)
    if len(q) != 2 or len(k) != 2:
        raise InputError(f"{name} must be one head, Q and K matrices; got shapes {q} and {k}")
    if 0 in (q[0], k[0]):
        raise InputError(f"{name} must not be empty; got Q and K of shapes {q} and {k}")


def refuse_sinks(attention: Attention, name: str) -> None:
    """Raise an InputError for attention whose rows sum to less than 1 because of sinks."""
    if attention.sinks is not None:
        raise InputError(
            f"{name} must have no sinks: they take a part of every row, and the rows of the head "
            f"that is looked for sum to 1; got {attention!r}"
        )


def target_matrix(target: Any) -> NDArray[Any]:
    """Return a target that is a dense matrix in a form that the core reads, or raise an error."""
    if is_sparse(target):
        raise InputError("a soft target must be an Attention or a dense array; got a sparse matrix")
    matrix = as_stored_array(target, "the target")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(f"the target must be a matrix and not empty; got shape {matrix.shape}")
    rows: NDArray[Any] = as_stack(matrix)[0]
    return rows


def core_target_of(target: Any, mask: Any) -> _core.SoftTarget:
    """Return the core's form of a target: an `Attention`, or a matrix from `target_matrix`."""
    if isinstance(target, Attention):
        return _core.SoftTarget(attention=target.core)
    return _core.SoftTarget(matrix=target, mask=core_mask(mask, (), target.shape))
