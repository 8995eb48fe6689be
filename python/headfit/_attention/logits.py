"""The options of logits: their names and types, their checks, and what the core makes of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, TypedDict, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base import arrays
from headfit._base.arguments import as_number, as_positive, shown
from headfit._base.masks import as_allowed, as_key_mask, core_mask, frozen, frozen_mask
from headfit._base.positions import as_positions
from headfit._base.types import ArrayLike, MaskLike, PositionLike
from headfit.errors import InputError

Rows = slice | Sequence[int] | NDArray[np.integer[Any]] | None
Function = TypeVar("Function", bound=Callable[..., Any])


class LogitKeywords(TypedDict, total=False):
    """The options of logits as keyword arguments; `Attention` describes each of them."""

    scale: float | None
    mask: MaskLike
    key_lengths: ArrayLike | None
    bias: ArrayLike | None
    softcap: float | None
    position: PositionLike
    key_mask: ArrayLike | None
    sinks: ArrayLike | None


def names_logit_options(*without: str) -> Callable[[Function], Function]:
    """Let the signature of a function with ``**options: Unpack[LogitKeywords]`` name them all.

    Options that the function lacks are left out of its signature, and refused like any other
    unknown keyword.
    """
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _KEYWORDS.items()
        if name not in without
    ]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        whole = signature.replace(parameters=sorted([*added, *own], key=lambda p: p.kind))

        @wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            for name in options:
                if name not in whole.parameters:
                    named = function.__qualname__.removesuffix(".__init__")
                    raise TypeError(f"{named}() has no option {name!r}")
            return function(*arguments, **options)

        vars(checked)["__signature__"] = whole
        return cast(Function, checked)

    return decorate


_KEYWORDS = {name: kind.__forward_arg__ for name, kind in LogitKeywords.__annotations__.items()}


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

    def non_default(self) -> tuple[str, ...]:
        """Return the names of the options that are not None."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)

    def frozen(self) -> LogitOptions:
        """Return the options with arrays that are checked each by itself.

        The core keeps copies of sparse masks and of small arrays. They are frozen, here and in
        `core_logits`, so that the attributes of an `Attention` always show what it computes with.
        """
        mask, counts, keys, sinks = self.mask, self.key_lengths, self.key_mask, self.sinks
        bias = None if self.bias is None else arrays.as_array(self.bias, "bias")
        if bias is not None and bias.dtype.kind == "b":
            raise InputError("bias must hold numbers; pass truth values as a mask")
        if bias is not None:
            bias = arrays.as_stored_array(bias, "bias", ndim=0)
        if sinks is not None:
            sinks = arrays.as_float_array(sinks, "sinks", ndim=0).astype(np.float64)
        if mask is not None and not isinstance(mask, (str, tuple)):
            mask = frozen_mask(mask) if arrays.is_sparse(mask) else as_allowed(mask)
        return replace(
            self, mask=mask, bias=bias, sinks=None if sinks is None else frozen(sinks),
            key_lengths=None if counts is None else frozen(arrays.as_array(counts, "key_lengths")),
            key_mask=None if keys is None else frozen(as_key_mask(keys)),
        )  # fmt: skip


def core_logits(
    Q: Any, K: Any, options: LogitOptions
) -> tuple[Any, Any, LogitOptions, _core.Logits]:
    """Return checked queries, keys and options, and the logits that the core computes from them.

    The arrays are the caller's if their rows are contiguous, else copies: they hold the numbers
    that the core computes with. Raises an InputError for shapes, dtypes or options that do not
    fit together.
    """
    q, q_stack = _readable(arrays.as_stored_array(Q, "Q"))
    k, k_stack = _readable(arrays.as_stored_array(K, "K"))
    dtype, dim = arrays.computed_in(q, k), q.shape[-1]
    if max(q.shape[-2], k.shape[-2]) >= 2**31:
        raise InputError("Q and K must have fewer than 2**31 rows")
    softcap = as_positive(options.softcap, "softcap") or 0.0
    lead, shape = q.shape[:-2], (q.shape[-2], k.shape[-2])
    mask, bias, position = options.mask, options.bias, options.position
    positions = as_positions(position, lead, shape, dim, dtype)
    value = position[1] if isinstance(position, tuple) else None
    if hasattr(value, "__len__") and not isinstance(value, tuple):  # nobody can change a tuple
        position = position[0], frozen(arrays.as_array(value, "position"))
    if positions.bias is not None and bias is not None:
        raise InputError("bias and the position alibi exclude each other: alibi is a bias")
    sinks = options.sinks
    if sinks is not None:
        sinks = np.ascontiguousarray(arrays.by_heads(sinks, lead, (), "sinks"), np.float64)
    # The caller may change an array that the core has copied: the attribute becomes a copy too.
    if isinstance(mask, np.ndarray) and (batch := math.prod(mask.shape[:-2])) != 1:
        mask = mask if mask.flags.c_contiguous and batch == math.prod(lead) else frozen(mask)
    core_bias = positions.bias
    if bias is not None:
        core_bias = bias.astype(dtype, copy=False) if bias.dtype == np.float64 else bias
        core_bias = arrays.by_heads(arrays.as_items(core_bias), lead, shape, "bias")
        bias = bias if np.may_share_memory(bias, core_bias) else frozen(bias)
    scale = check_scale(options.scale, dim)
    options = replace(options, scale=scale, mask=mask, bias=bias, position=position)
    core_options = _core.LogitOptions(
        group=_group(lead, k.shape[:-2]),
        scale=scale,
        softcap=softcap,
        mask=core_mask(mask, lead, shape, options.key_lengths, options.key_mask),
        bias=core_bias,
        rotary=positions.table,
        rotary_halves=positions.halves,
        sinks=sinks,
    )
    # No heads read no keys.
    return q, k, options, _core.Logits(q_stack, k_stack[:0] if 0 in lead else k_stack, core_options)


def _readable(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return an array that the core can read, and the same memory as a stack of matrices."""
    if array.size and not np.may_share_memory(arrays.as_stack(array), array):
        array = arrays.as_contiguous(array)
    return array, arrays.as_stack(array)


def check_scale(scale: float | None, dim: int) -> float:
    """Return the scale as a finite nonzero float; None means 1 / sqrt(dim)."""
    if dim < 1:
        raise InputError(f"Q and K must have a head size of at least 1; got {dim}")
    if scale is None:
        return 1.0 / math.sqrt(dim)
    value = as_number(scale, "scale", "be a number or None")
    if not math.isfinite(value) or value == 0:
        raise InputError(f"scale must be finite and nonzero; got {shown(scale)}")
    return value


def row_numbers(rows: Rows, n: int) -> NDArray[np.int64] | None:
    """Return the numbers, 0 ... n - 1, of the rows that a user selects; None for all."""
    if rows is None:
        return None
    try:
        numbers = np.arange(n)[rows] if isinstance(rows, slice) else rows
    except (TypeError, ValueError) as error:
        raise InputError(f"rows must be a slice of integers; got {shown(rows)}") from error
    indices = arrays.as_indices(numbers, "rows", -n, n)
    return np.where(indices < 0, indices + n, indices)


def _group(q_lead: tuple[int, ...], k_lead: tuple[int, ...]) -> int:
    """Return how many query heads read one key head."""
    if not k_lead or k_lead == q_lead:
        return 1 if k_lead else max(1, math.prod(q_lead))
    if len(q_lead) == len(k_lead) and q_lead[:-1] == k_lead[:-1]:
        heads, groups = q_lead[-1], k_lead[-1]
        if groups and heads % groups == 0:
            return max(1, heads // groups)
    raise InputError(
        "the leading axes of K must be those of Q, with a number of heads that divides Q's, "
        f"or none; got {k_lead} for {q_lead}"
    )


def is_same(a: Any, b: Any, name: str) -> bool:
    """Return whether two values of an option are equal as written, whatever objects they are."""
    if isinstance(a, tuple) and isinstance(b, tuple):  # such as ("rope", base)
        return len(a) == len(b) and all(is_same(x, y, name) for x, y in zip(a, b, strict=True))
    if b is None or isinstance(a, (str, tuple)) or isinstance(b, (str, tuple)):
        return type(a) is type(b) and bool(a == b)
    one, other = (arrays.widened(arrays.as_array(x, name)) for x in (a, b))
    return np.array_equal(one, other)
