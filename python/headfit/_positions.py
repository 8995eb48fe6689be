"""Positions: what rotary embeddings and ALiBi do to queries, keys and logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._arrays import FloatArray, as_float_array, check_between
from headfit.errors import InputError

FORMS = (
    'None, "rope", ("rope", base), "rope-half", ("rope-half", base), "alibi" or ("alibi", slopes)'
)
ROPE_BASE = 10000.0


def apply_position(
    position: Any, q: FloatArray, k: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[Any] | None]:
    """Return queries and keys with rotary positions, and the bias of ALiBi.

    Positions are those of masks: key j stands at j, query i at i + m - n.

    Parameters
    ----------
    position : None, str or tuple
        ``"rope"`` or ``("rope", base)``: rotary embeddings of Su et al. (2021, RoFormer), base
        10000 by default: entries 2p and 2p + 1 at position t are turned by the angle
        t * base**(-2p / d), so that products depend on differences of positions only.
        ``"rope-half"``: the same with entries p and p + d/2 as pairs (GPT-NeoX, Llama).
        ``("alibi", slopes)``: the bias -slope * abs(position - j) of Press, Smith and Lewis
        (2022), a number or one for each head (the last leading axis); ``"alibi"``: their slopes
        2**(-8 h / H), h = 1 ... H.
    q, k : ndarray, shape (..., n, d) and (..., m, d)
        Of one dtype, which is kept.

    Returns
    -------
    q, k : ndarray
    bias : ndarray, shape (heads, n, m), or None
        A view of n + m - 1 numbers a head; leading axes flattened.
    """
    if position is None:
        return q, k, None
    kind, value = (
        position if isinstance(position, tuple) and len(position) == 2 else (position, None)
    )
    if kind == "alibi" and isinstance(kind, str):
        return q, k, _alibi(value, q.shape[:-2], q.shape[-2], k.shape[-2], q.dtype)
    if isinstance(kind, str) and kind in ("rope", "rope-half"):
        base = ROPE_BASE if value is None else check_between(value, "the base of rope", 1, math.inf)
        if q.shape[-1] % 2:
            raise InputError(f"position {kind!r} needs an even head size; got {q.shape[-1]}")
        halves = kind == "rope-half"
        return (
            _rotate(q, k.shape[-2] - q.shape[-2], base, halves),
            _rotate(k, 0, base, halves),
            None,
        )
    raise InputError(f"position must be {FORMS}; got {position!r}")


def _rotate(x: FloatArray, first: int, base: float, halves: bool) -> FloatArray:
    n, d = x.shape[-2:]
    frequency = base ** (-np.arange(0, d, 2) / d)
    angle = (first + np.arange(n))[:, np.newaxis] * frequency
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    one = np.s_[..., : d // 2] if halves else np.s_[..., 0::2]
    two = np.s_[..., d // 2 :] if halves else np.s_[..., 1::2]
    turned = np.empty(x.shape, x.dtype)
    turned[one] = x[one] * cos - x[two] * sin
    turned[two] = x[one] * sin + x[two] * cos
    return turned


def _alibi(value: Any, lead: tuple[int, ...], n: int, m: int, dtype: Any) -> NDArray[Any]:
    heads = lead[-1] if lead else 1
    if value is None:
        slopes: NDArray[Any] = np.exp2(-8 * np.arange(1, heads + 1) / heads)
        slopes = slopes if lead else slopes[0]
    else:
        slopes = np.asarray(as_float_array(value, "the slopes of alibi", ndim=0), np.float64)
    if not np.isfinite(slopes).all():
        raise InputError(f"the slopes of alibi must be finite; got {value!r}")
    if slopes.ndim > 1 or (slopes.ndim == 1 and (not lead or slopes.size != heads)):
        raise InputError(
            f"the slopes of alibi must be one number or one for each of {heads} heads; "
            f"got shape {slopes.shape}"
        )
    # Entry (i, j) lies at i + m - 1 - j of a line over the differences: no n x m array.
    distance = np.abs(np.arange(1 - n, m, dtype=np.float64))
    lines = (-slopes[..., np.newaxis] * distance).astype(dtype)
    lines = np.broadcast_to(lines, (*lead, n + m - 1)).reshape(-1, n + m - 1)
    return np.lib.stride_tricks.sliding_window_view(lines, m, axis=-1)[..., ::-1]
