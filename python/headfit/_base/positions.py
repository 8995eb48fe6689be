"""Positional encodings of attention: rotary embeddings and ALiBi."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import check_between, shown
from headfit._base.arrays import as_array, as_float_array, by_heads
from headfit.errors import InputError

FORMS = (
    'None, "rope" or "rope-half", alone or with a base or frequencies, as in ("rope", base), '
    '"alibi" or ("alibi", slopes)'
)
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class Positions:
    """A positional encoding as the core applies it: a bias of the logits, or rotation angles.

    The core rotates the rows of Q and K as it reads them. `bias` has shape (heads, n, m), and is a
    view of n + m - 1 numbers per head. `table`, shape (max(n, m), d), has for each position up to
    that of the last query and key the d/2 cosines of its angles and then the d/2 sines. `halves`
    says whether entries p and p + d/2 are rotated together, instead of 2p and 2p + 1.
    """

    bias: NDArray[Any] | None = None
    table: NDArray[Any] | None = None
    halves: bool = False


def as_positions(
    position: Any, lead: tuple[int, ...], shape: tuple[int, int], dim: int, dtype: Any
) -> Positions:
    """Return the checked positional encoding of logits of shape (*lead, *shape).

    `Attention` says what positions there are. They are aligned as in masks: key j is at position j,
    query i at i + m - n. `dtype` is that of the bias or of the table of cosines and sines.
    """
    if position is None:
        return Positions()
    kind, value = _parts(position)
    if kind == "alibi":
        return Positions(bias=_alibi(value, lead, *shape, dtype))
    rotary = as_rotary(position, dim)
    if rotary is None:
        raise InputError(f"position must be {FORMS}; got {shown(position)}")
    angles = np.arange(shape[1] - max(shape), shape[1])[:, np.newaxis] * rotary.frequencies
    table = np.hstack([np.cos(angles), np.sin(angles)]).astype(dtype)
    return Positions(table=table, halves=rotary.halves)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions of a head size: pair p at position t is rotated by t * frequencies[p].

    `halves` says which entries are pair p: p and p + d/2, or 2p and 2p + 1.
    """

    halves: bool
    frequencies: NDArray[np.float64]

    @property
    def position(self) -> tuple[str, tuple[float, ...]]:
        """The same as an argument `position`."""
        return "rope-half" if self.halves else "rope", tuple(self.frequencies.tolist())


def as_rotary(position: Any, dim: int) -> Rotary | None:
    """Return checked rotary positions for a head size; None for positions of another kind."""
    kind, value = _parts(position)
    if kind not in ("rope", "rope-half"):
        return None
    if dim % 2:
        raise InputError(f"position {kind!r} needs an even head size; got {dim}")
    if np.iterable(value) and not isinstance(value, str):
        frequencies = as_frequencies(value, "the frequencies of rope")
        if frequencies.size != dim // 2:
            raise InputError(
                f"the frequencies of rope must be one for each of the {dim // 2} pairs of the head "
                f"size {dim}; got {frequencies.size}"
            )
    else:
        base = ROPE_BASE if value is None else check_between(value, "the base of rope", 1, math.inf)
        frequencies = rope_frequencies(dim, base)
    return Rotary(kind == "rope-half", frequencies)


def as_frequencies(value: Any, name: str) -> NDArray[np.float64]:
    """Return a new vector of checked frequencies, in radians per position."""
    given = as_array(value, name)
    if given.dtype.kind == "b":
        raise InputError(f"{name} must be numbers, in radians per position; got truth values")
    array = np.array(as_float_array(given, name, ndim=0), np.float64)
    if array.ndim != 1:
        raise InputError(f"{name} must be a vector; got shape {array.shape}")
    if array.size == 0 or not (np.abs(array) < 2.0**64).all():  # so that angles are finite
        raise InputError(f"{name} must be finite and below 2**64, one at least; got {shown(value)}")
    return array


def _parts(position: Any) -> tuple[str | None, Any]:
    """Return the kind of a position and what it comes with; None for what is no position."""
    whole = position if isinstance(position, tuple) and len(position) == 2 else (position, None)
    return (whole[0] if isinstance(whole[0], str) else None), whole[1]


def rotate(x: NDArray[Any], positions: Positions) -> NDArray[Any]:
    """Return queries or keys, shape (..., n, d), with their rows rotated by their angles.

    The last row of x and the last row of the table belong to the same position.
    """
    assert positions.table is not None
    cosines, sines = np.hsplit(positions.table[len(positions.table) - x.shape[-2] :], 2)
    return np.asarray(turn(x, cosines, sines, positions.halves, np.empty_like(x)))


def turn(x: Any, cosines: Any, sines: Any, halves: bool, out: Any) -> Any:
    """Turn pairs of entries of x into `out`, and return it: arrays of NumPy or of PyTorch."""
    d = x.shape[-1]
    first, second = np.s_[: d // 2, d // 2 :] if halves else np.s_[::2, 1::2]
    out[..., first] = x[..., first] * cosines - x[..., second] * sines
    out[..., second] = x[..., second] * cosines + x[..., first] * sines
    return out


def rope_frequencies(dim: int, base: float) -> NDArray[np.float64]:
    """Return the angles in radians by which pairs of entries are rotated per position."""
    return np.asarray(base ** (-np.arange(0, dim, 2) / dim))


def alibi_slopes(heads: int) -> NDArray[np.float64]:
    """Return the slopes 2**(-8 h / heads) of heads h = 1 ... heads."""
    return np.asarray(np.exp2(-8 * np.arange(1, heads + 1) / heads))


def _alibi(value: Any, lead: tuple[int, ...], n: int, m: int, dtype: Any) -> NDArray[Any]:
    """Return the bias of ALiBi, shape (heads, n, m): a view that takes O(n + m) memory per head."""
    if value is None:
        slopes: NDArray[Any] = alibi_slopes(lead[-1] if lead else 1).reshape(lead[-1:])
    else:
        slopes = np.asarray(as_float_array(value, "the slopes of alibi", ndim=0), np.float64)
    if not np.isfinite(slopes).all():
        raise InputError(f"the slopes of alibi must be finite; got {shown(value)}")
    slopes = by_heads(slopes, lead, (), "the slopes of alibi")
    # The bias depends on the difference i - j alone, so entry (i, j) is entry i + m - 1 - j of a
    # vector over the differences, and the n x m matrix is a view of that vector.
    lines = (-slopes[:, np.newaxis] * np.abs(np.arange(1 - n, m, dtype=np.float64))).astype(dtype)
    return np.lib.stride_tricks.sliding_window_view(lines, m, axis=-1)[..., ::-1]
