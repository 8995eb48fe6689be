"""Masks: conversion of the forms that users may pass to the core's, and their comparison."""

import math
import operator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arguments import shown
from headfit._base.arrays import BFLOAT16, as_array, as_items, by_heads, is_sparse, widened
from headfit._base.sparse import checked_csr
from headfit.errors import InputError

FORMS = (
    'None, "causal", ("window", w), ("window", (left, right)), a boolean array, an additive one of '
    "0 and -inf, or a sparse boolean matrix"
)
NOT_BOOLEAN = "mask must be boolean, True where attention is allowed; got dtype"
FOR_KEYS = "; which keys exist is said by key_mask, in functions that take one"
LOWEST_BFLOAT16 = np.float32(-3.3895313892515355e38)


def _window_of(mask: Any) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after itself a row sees, None for all; None for arrays."""
    if mask is None:
        return None, None
    if isinstance(mask, str) and mask == "causal":
        return None, 0
    is_named = isinstance(mask, tuple) and mask != () and isinstance(mask[0], str)
    if not is_named and not isinstance(mask, str):
        return None
    if not is_named or mask[0] != "window" or len(mask) != 2:
        raise InputError(f"mask must be {FORMS}; got {shown(mask)}")
    sides = mask[1] if isinstance(mask[1], tuple) else (mask[1], 1)
    own = 0 if isinstance(mask[1], tuple) else 1  # a width counts the row's own key
    try:
        if any(isinstance(side, (bool, np.bool_)) for side in sides):
            raise TypeError("a truth value is no number of keys")
        # Larger windows than this mean the same: there are fewer keys.
        left, right = (min(operator.index(side), 2**31) - own for side in sides)
        if min(left, right) < 0:
            raise ValueError("no key is left")
    except (TypeError, ValueError) as error:
        raise InputError(
            'mask ("window", w) takes a positive integer or (left, right), which must leave at '
            f"least one key; got {shown(mask[1])}"
        ) from error
    return left, right


def as_allowed(mask: Any) -> NDArray[np.bool_]:
    """Return a mask that is a dense array as booleans, True where attention is allowed.

    Floats are additive masks: 0 allows, while -inf and the dtype's lowest finite number forbid.
    """
    array = as_array(mask, "mask")
    if array.ndim == 0:
        raise InputError(f"mask must be {FORMS}; got {shown(mask)}")
    if array.dtype.kind == "f" or array.dtype == BFLOAT16:
        # Axes that are broadcast are read once, and stay without memory.
        distinct = array[tuple(slice(0, 1 if s == 0 else None) for s in array.strides)]
        allowed, other = additive_entries(distinct)
        if other.any():
            place = tuple(int(i) for i in np.argwhere(other)[0])
            raise InputError(
                "mask must be boolean, or additive with no values but 0 and -inf (or the lowest of "
                f"its dtype); got {widened(distinct)[place]} at {place}: pass terms of the logits "
                "as bias="
            )
        return np.broadcast_to(allowed, array.shape)
    if array.dtype != np.bool_:
        raise InputError(f"{NOT_BOOLEAN} {array.dtype}{FOR_KEYS}")
    return array


def additive_entries(values: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which entries of an additive mask allow attention, and which are no mask's at all."""
    lowest = LOWEST_BFLOAT16 if values.dtype == BFLOAT16 else np.finfo(values.dtype).min
    wide = widened(values)
    allowed = wide == 0
    return allowed, ~(allowed | (wide <= lowest))


def by_first_axes(
    array: NDArray[Any], lead: tuple[int, ...], name: str, keys: int | None = None
) -> NDArray[Any]:
    """Broadcast what belongs to each head, with an axis of keys at the end or not.

    There may be fewer axes than leading ones, such as one entry for each batch entry: axes are
    added after those that there are, so that all heads of a batch entry share it.
    """
    own = () if keys is None else (keys,)
    if keys is not None and array.shape[-1] == 1 != keys:  # else one entry would speak for all
        raise InputError(f"{name} must have an entry for each of {keys} keys; got {array.shape}")
    batch = array.shape[: array.ndim - len(own)]
    whole = array.reshape((*batch, *[1] * (len(lead) - len(batch)), *array.shape[len(batch) :]))
    try:
        return np.ascontiguousarray(by_heads(whole, lead, own, name))
    except InputError as error:
        first = f", or have the first of the axes {lead}" if lead else ""
        raise InputError(
            f"{name} must broadcast to {(*lead, *own)}{first}; got shape {array.shape}"
        ) from error


def as_key_mask(key_mask: Any) -> NDArray[np.bool_]:
    """Return a mask of keys as booleans; integers must be 0 or 1."""
    array = as_array(key_mask, "key_mask")
    if array.dtype.kind not in "biu":
        raise InputError(
            "key_mask must hold booleans or integers, 1 for keys that may be attended to; "
            f"got dtype {array.dtype}"
        )
    if array.ndim == 0:
        raise InputError(f"key_mask must have an entry for each key; got {shown(key_mask)}")
    other = (array != 0) & (array != 1)
    if other.any():
        place = tuple(int(i) for i in np.argwhere(other)[0])
        raise InputError(f"key_mask must be 0 or 1; got {array[place]} at {place}")
    return array.astype(np.bool_, copy=False)


def core_mask(
    mask: Any,
    lead: tuple[int, ...],
    shape: tuple[int, int],
    key_lengths: NDArray[Any] | None = None,
    key_mask: NDArray[np.bool_] | None = None,
) -> _core.Mask:
    """Return the core's mask for logits of shape (*lead, *shape), or raise an InputError."""
    about_keys: dict[str, Any] = {}
    if key_lengths is not None:
        if key_lengths.dtype.kind not in "iu":
            raise InputError(f"key_lengths must be integers; got dtype {key_lengths.dtype}")
        # The core checks in what range they lie.
        about_keys["key_lengths"] = by_first_axes(key_lengths.astype(np.int64), lead, "key_lengths")
    if key_mask is not None:
        by_head = by_first_axes(key_mask, lead, "key_mask", shape[1])
        about_keys["keys"] = None if key_mask.all() else by_head
    window = _window_of(mask)
    if window is not None:
        return _core.Mask(left=window[0], right=window[1], **about_keys)
    if is_sparse(mask):
        if mask.shape != shape:
            raise InputError(f"mask must have shape {shape}; got {mask.shape}")
        csr = allowed_places(mask)
        if csr.dtype != np.bool_:
            raise InputError(f"{NOT_BOOLEAN} {csr.dtype}")
        return _core.Mask(
            sparse_offsets=csr.indptr.astype(np.int64, copy=False),
            sparse_columns=csr.indices.astype(np.int32, copy=False),
            **about_keys,
        )
    array = as_items(as_allowed(mask))
    of_keys = array.shape[-1] == shape[1] and array.shape[:-1] == lead[: array.ndim - 1]
    return _core.Mask(dense=by_heads(array, lead, shape, "mask", FOR_KEYS * of_keys), **about_keys)


class FrozenMask(sp.csr_array):
    """A sparse mask that was checked: canonical, without stored zeros, in memory of `frozen`.

    What SciPy derives from it is of this class too, but has memory of its own.
    """


def is_frozen(array: Any) -> bool:
    """Whether nobody can change an array, since its memory is that of a bytes object."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, bytes)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that nobody can change: a copy, unless it is such an array already."""
    if is_frozen(array):
        return array
    # Broadcast axes stay so.
    once = array[(*(slice(0, None if step else 1) for step in array.strides), ...)]
    return np.broadcast_to(np.ndarray(once.shape, once.dtype, once.tobytes()), array.shape)


def allowed_places(mask: Any) -> sp.csr_array:
    """Return a sparse mask as a canonical csr_array that stores the allowed entries only."""
    if isinstance(mask, FrozenMask) and all(
        is_frozen(x) for x in (mask.data, mask.indices, mask.indptr)
    ):
        return mask
    return checked_csr(mask, "mask", keep_zeros=False)


def frozen_mask(mask: Any) -> Any:
    """Return a mask that cannot be changed afterwards: arrays become read-only copies."""
    if mask is None or isinstance(mask, (str, tuple)):
        return mask
    if is_sparse(mask):
        csr = allowed_places(mask)
        if isinstance(csr, FrozenMask):
            return csr
        return FrozenMask(tuple(map(frozen, (csr.data, csr.indices, csr.indptr))), shape=csr.shape)
    return frozen(as_allowed(mask))


def mask_from_json(mask: Any) -> Any:
    """Return a mask in words or as a window; JSON has lists in the place of tuples."""
    if not isinstance(mask, list):
        return mask
    kind, width = mask
    return kind, tuple(width) if isinstance(width, list) else width


def masks_agree(a: Any, b: Any, shape: tuple[int, int], lead: tuple[int, ...] = ()) -> bool:
    """Return whether two masks allow the same entries of logits of shape (*lead, *shape)."""
    if a is b:
        return True
    one, other = (core_mask(mask, lead, shape) for mask in (a, b))
    return _core.masks_agree(one, other, math.prod(lead), *shape)


def as_window(mask: Any, n: int) -> tuple[int, int] | None:
    """Return how many of n keys before and after its own position a row may attend to.

    None for masks that are arrays.
    """
    window = _window_of(mask)
    if window is None:
        return None
    left, right = (n - 1 if side is None else min(side, n - 1) for side in window)
    return left, right
