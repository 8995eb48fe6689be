"""Masks: conversion of the forms that users may pass to the core's, and their comparison."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arguments import shown
from headfit._base.arrays import BFLOAT16, as_array, as_items, is_sparse, widened
from headfit._base.sparse import checked_csr
from headfit.errors import InputError

FORMS = (
    'None, "causal", ("window", w), ("window", (left, right)), a boolean array, an additive one of '
    "0 and -inf, or a sparse boolean matrix"
)
LOWEST_BFLOAT16 = np.float32(-3.3895313892515355e38)


def _window_of(mask: Any) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after itself a row sees, None for all; None for arrays."""
    if mask is None:
        return None, None
    if isinstance(mask, str) and mask == "causal":
        return None, 0
    is_pair = isinstance(mask, tuple) and len(mask) == 2 and isinstance(mask[0], str)
    if is_pair and mask[0] == "window":
        return _window(mask[1])
    if not is_pair and not isinstance(mask, str):
        return None
    raise InputError(f"mask must be {FORMS}; got {shown(mask)}")


def _window(spec: Any) -> tuple[int, int]:
    try:
        if isinstance(spec, tuple):
            left, right = (_keys(s) for s in spec)
        else:
            left, right = _keys(spec) - 1, 0
    except (TypeError, ValueError) as error:
        raise InputError(
            f'mask ("window", w) takes a positive integer or (left, right); got {shown(spec)}'
        ) from error
    if left < 0 or right < 0:
        raise InputError(f'mask ("window", w) needs at least one key; got {shown(spec)}')
    return left, right


def _keys(count: Any) -> int:
    if isinstance(count, (bool, np.bool_)):
        raise TypeError("a truth value is no number of keys")
    return min(operator.index(count), 2**31)  # larger windows mean the same: there are fewer keys


def as_allowed(mask: Any) -> NDArray[np.bool_]:
    """Return a mask that is a dense array as booleans, True where attention is allowed.

    Floats are additive masks: 0 allows, while -inf and the dtype's lowest finite number forbid.
    """
    array = as_array(mask, "mask")
    if array.ndim == 0:
        raise InputError(f"mask must be {FORMS}; got {shown(mask)}")
    if array.dtype.kind == "f" or array.dtype == BFLOAT16:
        return _zeros_of_additive(array)
    if array.dtype != np.bool_:
        hint = (
            "; if it tells which keys exist, pass it as key_mask"
            if array.dtype.kind in "iu"
            else ""
        )
        raise InputError(
            f"mask must be boolean, True where attention is allowed; got dtype {array.dtype}{hint}"
        )
    return array


def additive_entries(values: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which entries of an additive mask allow attention, and which are no mask's at all."""
    lowest = LOWEST_BFLOAT16 if values.dtype == BFLOAT16 else np.finfo(values.dtype).min
    wide = widened(values)
    allowed = wide == 0
    return allowed, ~(allowed | (wide == -np.inf) | (wide == lowest))


def _zeros_of_additive(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where an additive mask allows attention; broadcast axes stay without memory."""
    distinct = array[tuple(slice(0, 1 if s == 0 else None) for s in array.strides)]
    allowed, other = additive_entries(distinct)
    if other.any():
        place = tuple(int(i) for i in np.argwhere(other)[0])
        raise InputError(
            "mask must be boolean, or additive with no values but 0 and -inf (or the lowest of its "
            f"dtype); got {widened(distinct)[place]} at {place}: pass terms of the logits as bias="
        )
    return np.broadcast_to(allowed, array.shape)


def _dense(mask: Any, lead: tuple[int, ...], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    array = as_items(as_allowed(mask))
    try:
        broadcast = np.broadcast_to(array, (*lead, *shape))
    except ValueError as error:
        of_keys = array.shape[-1] == shape[1] and array.shape[:-1] == lead[: array.ndim - 1]
        hint = "; if it tells which keys exist, pass it as key_mask" if of_keys else ""
        raise InputError(
            f"mask must broadcast to {(*lead, *shape)}; got shape {array.shape}{hint}"
        ) from error
    if array.ndim <= 2 or not lead:
        flat = np.broadcast_to(np.broadcast_to(array, shape), (math.prod(lead), *shape))
        return flat
    return broadcast.reshape((math.prod(lead), *shape))


def _by_head(
    array: NDArray[Any], lead: tuple[int, ...], name: str, keys: int | None = None
) -> NDArray[Any]:
    """Broadcast what belongs to each head, with an axis of keys at the end or not.

    There may be fewer axes than leading ones, such as one entry for each batch entry: axes are
    added after those that there are, so that all heads of a batch entry share it.
    """
    own = () if keys is None else array.shape[-1:]
    batch = array.shape[: array.ndim - len(own)]
    missing = (1,) * (len(lead) - len(batch)) if batch else ()
    try:
        if keys is not None and own != (keys,):
            raise ValueError
        whole = np.broadcast_to(array.reshape((*batch, *missing, *own)), (*lead, *own))
    except ValueError as error:
        of_keys = "" if keys is None else f", and then one entry for each of {keys} keys"
        raise InputError(
            f"{name} must have the leading axes {lead}, or the first of them{of_keys}; "
            f"got shape {array.shape}"
        ) from error
    return np.ascontiguousarray(whole.reshape((math.prod(lead), *own)))


def _key_lengths(lengths: Any, lead: tuple[int, ...], keys: int) -> NDArray[np.int64]:
    array = as_array(lengths, "key_lengths")
    if array.dtype.kind not in "iu":
        raise InputError(f"key_lengths must be integers; got dtype {array.dtype}")
    if array.size and not (array.min() >= 0 and array.max() <= keys):
        bad = array[(array < 0) | (array > keys)][0]
        raise InputError(f"key_lengths must lie in 0 ... {keys}, the number of keys; got {bad}")
    return _by_head(array.astype(np.int64), lead, "key_lengths")


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
    key_lengths: Any = None,
    key_mask: Any = None,
) -> _core.Mask:
    """Return the core's mask for logits of shape (*lead, *shape), or raise an InputError."""
    about_keys: dict[str, Any] = {}
    if key_lengths is not None:
        about_keys["key_lengths"] = _key_lengths(key_lengths, lead, shape[1])
    if key_mask is not None:
        keys = as_key_mask(key_mask)
        by_head = _by_head(keys, lead, "key_mask", shape[1])
        about_keys["keys"] = None if keys.all() else by_head
    window = _window_of(mask)
    if window is not None:
        return _core.Mask(left=window[0], right=window[1], **about_keys)
    if is_sparse(mask):
        if mask.shape != shape:
            raise InputError(f"mask must have shape {shape}; got {mask.shape}")
        if mask.dtype != np.bool_:
            raise InputError(
                f"mask must be boolean, True where attention is allowed; got dtype {mask.dtype}"
            )
        csr = allowed_places(mask)
        return _core.Mask(
            sparse_offsets=csr.indptr.astype(np.int64),
            sparse_columns=csr.indices.astype(np.int32),
            **about_keys,
        )
    return _core.Mask(dense=_dense(mask, lead, shape), **about_keys)


class FrozenMask(sp.csr_array):
    """A sparse mask that was checked: canonical, without stored zeros, in memory of `frozen`."""

    @property
    def is_frozen(self) -> bool:
        """Whether this is still so: what SciPy derives from a mask has memory of its own."""
        return all(is_frozen(x) for x in (self.data, self.indices, self.indptr))


def is_frozen(array: Any) -> bool:
    """Whether nobody can change an array, since its memory is that of a bytes object."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, bytes)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that nobody can change: a copy, unless it is such an array already."""
    if is_frozen(array):
        return array
    return np.ndarray(array.shape, array.dtype, array.tobytes())


def allowed_places(mask: Any) -> sp.csr_array:
    """Return a sparse mask as a canonical csr_array that stores the allowed entries only."""
    if isinstance(mask, FrozenMask) and mask.is_frozen:
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
        parts = tuple(frozen(x) for x in (csr.data, csr.indices, csr.indptr))
        made = FrozenMask(parts, shape=csr.shape)
        made.data, made.indices, made.indptr = parts
        return made
    return frozen(as_allowed(mask))


def same_mask(a: Any, b: Any) -> bool:
    """Return whether two masks, as users pass them, are equal as written.

    "causal" and the array of the same mask are not; see `masks_agree`.
    """
    if a is b:
        return True
    if a is None or b is None or isinstance(a, (str, tuple)) or isinstance(b, (str, tuple)):
        return type(a) is type(b) and bool(a == b)
    if is_sparse(a) or is_sparse(b):
        one, other = (x if is_sparse(x) else as_allowed(x) for x in (a, b))
        if one.shape != other.shape:
            return False
        one, other = (allowed_places(x if is_sparse(x) else sp.coo_array(x)) for x in (one, other))
        return np.array_equal(one.indptr, other.indptr) and np.array_equal(
            one.indices, other.indices
        )
    return bool(np.array_equal(as_allowed(a), as_allowed(b)))


def masks_agree(a: Any, b: Any, n: int) -> bool:
    """Return whether two masks, as users pass them, allow the same entries of an n x n matrix.

    Takes O(1) time if both are windows or None, O(n + nonzeros) if one is a window or None and the
    other sparse, else O(n**2) time and O(n) memory.
    """
    if same_mask(a, b):
        return True
    windows = [as_window(mask, n) for mask in (a, b)]
    if None not in windows:
        return windows[0] == windows[1]
    if is_sparse(a) and is_sparse(b):  # compared entry by entry above
        return False
    a, b = (frozen_mask(mask) if is_sparse(mask) else mask for mask in (a, b))
    for mask, window in ((a, windows[1]), (b, windows[0])):
        if window is not None and is_sparse(mask):
            return _is_window(mask, window, n)
    return all(
        np.array_equal(allowed_columns(a, row, n), allowed_columns(b, row, n)) for row in range(n)
    )


def _is_window(csr: sp.csr_array, window: tuple[int, int], n: int) -> bool:
    """Return whether the rows of a canonical n x n matrix are those of a window."""
    left, right = window
    row = np.arange(n)
    first, end = np.maximum(row - left, 0), np.minimum(row + right + 1, n)
    starts, ends = csr.indptr[:-1], csr.indptr[1:]
    # Columns ascend, so that a row of the right length between the right ends has no gap.
    return np.array_equal(ends - starts, end - first) and bool(
        np.all(csr.indices[starts] == first) and np.all(csr.indices[ends - 1] == end - 1)
    )


def as_window(mask: Any, n: int) -> tuple[int, int] | None:
    """Return how many of n keys before and after its own position a row may attend to.

    None for masks that are arrays.
    """
    window = _window_of(mask)
    if window is None:
        return None
    left, right = (n - 1 if side is None else min(side, n - 1) for side in window)
    return left, right


def allowed_columns(mask: Any, row: int, n: int) -> NDArray[np.bool_]:
    """Return which of n columns a row of an n x n attention matrix may attend to."""
    window, columns = as_window(mask, n), np.arange(n)
    if window is not None:
        return (columns >= row - window[0]) & (columns <= row + window[1])
    if is_sparse(mask):
        csr, allowed = allowed_places(mask), np.zeros(n, dtype=np.bool_)
        allowed[csr.indices[csr.indptr[row] : csr.indptr[row + 1]]] = True
        return allowed
    dense: NDArray[np.bool_] = np.broadcast_to(as_allowed(mask), (n, n))[row]
    return dense
