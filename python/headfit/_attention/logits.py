"""The logits of queries and keys: the user's options, checked once, in the form the core reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arguments import as_number, shown
from headfit._base.arrays import (
    as_array,
    as_contiguous,
    as_float_array,
    as_items,
    as_stack,
    as_stored_array,
    check_between,
    computed_in,
    is_sparse,
)
from headfit._base.machine import require_memory
from headfit._base.masks import core_mask
from headfit._base.positions import as_positions
from headfit.errors import InputError

Rows = slice | Sequence[int] | NDArray[np.integer[Any]] | None


@dataclass(frozen=True)
class LogitOptions:
    """How logits are made from queries and keys; the fields are those of `Attention`."""

    scale: float | None = None
    mask: Any = None
    key_lengths: Any = None
    bias: Any = None
    softcap: float | None = None
    position: Any = None
    key_mask: Any = None
    sinks: Any = None

    def given(self) -> tuple[str, ...]:
        """Return the names of the options that are not None."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)


@dataclass(frozen=True)
class Logits:
    """Checked logits that are computed when asked for: the core's object and the shapes.

    Attributes
    ----------
    core : _core.Logits
    stored : tuple of ndarray
        The queries and keys that the core reads: the caller's arrays if their rows are
        contiguous, else copies.
    lead : tuple of int
        The leading axes, batch and heads, of Q and of every result.
    rows, keys : int
        The number of queries whose logits are computed, and the number of keys.
    kv_lead : tuple of int
        The leading axes of K, and of the values that belong to it.
    dtype : dtype
        The dtype in which logits are computed.
    inputs : tuple of (name, array)
        The arrays that are read; an output must not share memory with them.
    """

    core: _core.Logits
    stored: tuple[NDArray[Any], NDArray[Any]]
    lead: tuple[int, ...]
    rows: int
    keys: int
    kv_lead: tuple[int, ...]
    dtype: np.dtype[Any]
    inputs: tuple[tuple[str, Any], ...]

    def of_rows(self, rows: Rows) -> Logits:
        """Return the logits of some rows, as users number them; all else is shared."""
        queries = self.stored[0].shape[-2]
        numbers = _row_numbers(rows, queries)
        count = queries if numbers is None else numbers.size
        return replace(self, core=self.core.of_rows(numbers), rows=count)

    def empty(self, columns: int, dtype: Any = None) -> NDArray[Any]:
        """Return an uninitialised array with one row of `columns` entries for each query."""
        return np.empty((*self.lead, self.rows, columns), dtype or self.dtype)

    def stack(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array that `empty` made with its leading axes flattened into one."""
        return array.reshape((math.prod(self.lead), *array.shape[len(self.lead) :]))

    def output(self, out: NDArray[Any] | None, columns: int) -> NDArray[Any]:
        """Return `out` if it can hold a result with `columns` columns; None makes a new array."""
        shape = (*self.lead, self.rows, columns)
        if out is None:
            require_memory(math.prod(shape) * self.dtype.itemsize, f"a result of shape {shape}")
            return self.empty(columns)
        if (
            not isinstance(out, np.ndarray)
            or out.shape != shape
            or out.dtype != self.dtype
            or not out.flags.c_contiguous
            or not out.flags.aligned
            or not out.flags.writeable
        ):
            found = f"{type(out).__name__}"
            if isinstance(out, np.ndarray):
                found = (
                    f"shape {out.shape} of {out.dtype}, C-contiguous: {out.flags.c_contiguous}, "
                    f"aligned: {out.flags.aligned}"
                )
            raise InputError(
                f"out must be a writable, aligned C-contiguous array of shape {shape} and "
                f"{self.dtype}; got {found}"
            )
        for name, array in self.inputs:
            if isinstance(array, np.ndarray) and np.may_share_memory(out, array):
                raise InputError(f"out must not share memory with {name}")
        return out


def default_scale(dim: int) -> float:
    """Return 1 / sqrt(dim), the scale that ``scale=None`` means everywhere."""
    return 1.0 / math.sqrt(dim)


def check_scale(scale: float | None, dim: int) -> float:
    """Return the scale as a finite nonzero float; None means 1 / sqrt(dim)."""
    if dim < 1:
        raise InputError(f"Q and K must have a head size of at least 1; got {dim}")
    if scale is None:
        return default_scale(dim)
    value = as_number(scale, "scale", "be a number or None")
    if not math.isfinite(value) or value == 0:
        raise InputError(f"scale must be finite and nonzero; got {shown(scale)}")
    return value


def _group(q_lead: tuple[int, ...], k_lead: tuple[int, ...]) -> int:
    """Return how many query heads read one key head."""
    if not k_lead:
        return max(1, math.prod(q_lead))
    if len(q_lead) == len(k_lead) and q_lead[:-1] == k_lead[:-1]:
        heads, groups = q_lead[-1], k_lead[-1]
        if groups and heads % groups == 0:
            return max(1, heads // groups)
        if heads == groups:
            return 1
    raise InputError(
        "the leading axes of K must be those of Q, with a number of heads that divides Q's, "
        f"or none; got {k_lead} for {q_lead}"
    )


def _row_numbers(rows: Rows, n: int) -> NDArray[np.int64] | None:
    """Return the numbers of the rows that a user asks for; None for all."""
    if rows is None:
        return None
    if isinstance(rows, slice):
        try:
            return np.arange(*rows.indices(n), dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise InputError(f"rows must be a slice of integers; got {shown(rows)}") from error
    numbers = np.atleast_1d(as_array(rows, "rows"))
    if numbers.size == 0:
        return np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise InputError(
            "rows must be a slice or a sequence of integers; "
            f"got shape {numbers.shape} of dtype {numbers.dtype}"
        )
    out_of_range = (numbers < -n) | (numbers >= n)
    if out_of_range.any():
        raise InputError(f"rows must lie in {-n} ... {n - 1}; got {numbers[out_of_range][0]}")
    return np.ascontiguousarray(np.where(numbers < 0, numbers + n, numbers), dtype=np.int64)


def _bias(bias: Any, lead: tuple[int, ...], shape: tuple[int, int], dtype: Any) -> Any:
    """Return a bias as an array of shape (heads, n, m), broadcast without a copy if possible."""
    if bias is None:
        return None
    array = as_stored_array(bias, "bias", ndim=0)
    if array.dtype == np.float64:
        array = array.astype(dtype, copy=False)
    array = as_items(array)
    try:
        broadcast = np.broadcast_to(array, (*lead, *shape))
    except ValueError as error:
        raise InputError(
            f"bias must broadcast to {(*lead, *shape)}; got shape {array.shape}"
        ) from error
    if not lead:
        return broadcast[np.newaxis]
    if len(lead) == 1:
        return broadcast
    if array.ndim <= 2 or math.prod(array.shape[:-2]) == 1:
        one = array.reshape(array.shape[-2:]) if array.ndim > 2 else array
        return np.broadcast_to(one, (math.prod(lead), *shape))
    # This copies the bias if some of several batch axes are broadcast and others are not.
    return broadcast.reshape((math.prod(lead), *shape))


def as_sinks(sinks: Any) -> NDArray[np.float64]:
    """Return sinks as float64 numbers that are finite, or -inf for none."""
    array = np.asarray(as_float_array(sinks, "sinks", ndim=0), np.float64)
    bad = ~(np.isfinite(array) | (array == -np.inf))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" at {place}" if place else ""
        raise InputError(f"sinks must be finite, or -inf for none; got {array[place]}{where}")
    return array


def _sinks(sinks: Any, lead: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Return one sink for each head, with the leading axes flattened."""
    if sinks is None:
        return None
    array = as_sinks(sinks)
    try:
        return np.ascontiguousarray(np.broadcast_to(array, lead).reshape(-1))
    except ValueError as error:
        raise InputError(
            f"sinks must broadcast to the leading axes {lead}; got shape {array.shape}"
        ) from error


def checked_logits(Q: Any, K: Any, options: LogitOptions) -> Logits:
    """Check queries, keys and options, and return their logits.

    Raises an InputError for shapes, dtypes or options that do not fit together.
    """
    q, q_stack = _readable(as_stored_array(Q, "Q"))
    k, k_stack = _readable(as_stored_array(K, "K"))
    dtype = computed_in(q, k)
    if q.shape[-1] != k.shape[-1]:
        raise InputError(
            f"Q and K must have the same head size; got {q.shape[-1]} and {k.shape[-1]}"
        )
    if q.shape[-1] == 0:
        raise InputError("Q and K must have a head size of at least 1; got 0")
    if max(q.shape[-2], k.shape[-2]) >= 2**31:
        raise InputError("Q and K must have fewer than 2**31 rows")
    softcap = 0.0
    if options.softcap is not None:
        softcap = check_between(options.softcap, "softcap", 0, math.inf)
    lead, kv_lead = q.shape[:-2], k.shape[:-2]
    group = _group(lead, kv_lead)
    shape = (q.shape[-2], k.shape[-2])
    positions = as_positions(options.position, lead, shape, q.shape[-1], dtype)
    if positions.bias is not None and options.bias is not None:
        raise InputError("bias and the position alibi exclude each other: alibi is a bias")
    core_options = _core.LogitOptions(
        group=group,
        scale=check_scale(options.scale, q.shape[-1]),
        softcap=softcap,
        mask=core_mask(options.mask, lead, shape, options.key_lengths, options.key_mask),
        bias=_bias(options.bias, lead, shape, dtype) if positions.bias is None else positions.bias,
        rotary=positions.table,
        rotary_halves=positions.halves,
        sinks=_sinks(options.sinks, lead),
    )
    logits = _core.Logits(q_stack, k_stack, core_options)
    read = {"Q": q, "K": k, "bias": options.bias, "mask": options.mask}
    inputs = tuple((name, _memory_of(x, name)) for name, x in read.items())
    return Logits(logits, (q, k), lead, *shape, kv_lead, dtype, inputs)


def _memory_of(x: Any, name: str) -> Any:
    """Return an argument as an array that shares its memory; None if it is not a dense array."""
    return None if x is None or isinstance(x, (str, tuple)) or is_sparse(x) else as_array(x, name)


def _readable(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return an array that the core can read, and the same memory as a stack of matrices.

    The array is copied only if it cannot be read in place. This ensures that the attributes of an
    `Attention` are the numbers that the core computes with.
    """
    stack = as_stack(array)
    if array.size == 0 or np.may_share_memory(stack, array):
        return array, stack
    array = as_contiguous(array)
    return array, as_stack(array)
