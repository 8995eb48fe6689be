"""Dense targets: what a user may pass, and the form the core takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from headfit import _core
from headfit._arrays import FloatArray, as_float_array, as_stack, is_sparse
from headfit._masks import core_mask
from headfit.attention import Attention
from headfit.errors import InputError


def check_one_head(attention: Attention, name: str) -> None:
    if attention.Q.ndim != 2 or attention.K.ndim != 2:
        raise InputError(
            f"{name} must be one head, Q and K matrices; "
            f"got shapes {attention.Q.shape} and {attention.K.shape}"
        )
    if 0 in (attention.Q.shape[0], attention.K.shape[0]):
        raise InputError(
            f"{name} must not be empty; got Q and K of shapes "
            f"{attention.Q.shape} and {attention.K.shape}"
        )


def core_logits(attention: Attention, dtype: Any) -> _core.Logits:
    q, k = (as_stack(np.asarray(x, dtype=dtype)) for x in (attention.Q, attention.K))
    shape = (q.shape[1], k.shape[1])
    return _core.Logits(q, k, 1, attention.scale, 0.0, core_mask(attention.mask, (), shape))


def target_matrix(target: Any) -> FloatArray:
    if is_sparse(target):
        raise InputError("a soft target must be an Attention or a dense array; got a sparse matrix")
    matrix = as_float_array(target, "the target")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(f"the target must be a matrix and not empty; got shape {matrix.shape}")
    rows: FloatArray = as_stack(matrix)[0]
    return rows


def core_target_of(target: Any, mask: Any, dtype: Any) -> _core.SoftTarget:
    if isinstance(target, Attention):
        return _core.SoftTarget(attention=core_logits(target, dtype))
    return _core.SoftTarget(matrix=target, mask=core_mask(mask, (), target.shape))
