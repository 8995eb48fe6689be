"""Maps of queries and keys: as users get them, what they are for, how far they leave attention."""

import inspect
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arguments import shown
from headfit._base.arrays import FloatArray, as_float_array, check_finite, round_to
from headfit._base.positions import as_rotary
from headfit.errors import InputError

# P_q of each query head, D rows each, and below them P_k: one matrix of d columns.
Maps = NDArray[np.float64]

INSIDE = ("headfit", "contextlib", "torch", "transformers")  # not who is warned
PARTS = 8  # of the positions of a passage, for which means are reported


def split(maps: NDArray[Any], heads: int, key_heads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return P_q, shape (heads, D, d), and P_k, shape (D, d), or of several heads as P_q."""
    stacked = maps.reshape(heads + key_heads, -1, maps.shape[1])
    return stacked[:heads], stacked[-1] if key_heads == 1 else stacked[heads:]


class StoredMaps(NamedTuple):
    """Maps in the dtype of the result: P_q of shape (D, d) or (heads, D, d), and P_k."""

    P_q: FloatArray
    P_k: FloatArray
    dtype: str

    def smaller(self, attention: Attention) -> Attention:
        """Return the smaller head in a passage.

        Products are computed in the wider of the dtypes, and rounded to that of the maps. The scale
        is part of P_q.
        """
        q = round_to(attention.Q @ self.P_q, self.dtype, "Q")
        k = round_to(attention.K @ self.P_k, self.dtype, "K")
        return Attention(q, k, **{**vars(attention.options), "scale": 1.0})

    def tensors(self, W_Q: Any, W_K: Any, rotary: bool) -> dict[str, NDArray[Any]]:
        """Return the maps by name, and their products with the weights of a head that are given."""
        tensors: dict[str, NDArray[Any]] = {"P_q": self.P_q, "P_k": self.P_k}
        for name, weights, maps in (("W_Q", W_Q, self.P_q), ("W_K", W_K, self.P_k)):
            if weights is None:
                continue
            if rotary:
                raise InputError(
                    f"{name} must not be given: maps act after rotary positions; those of "
                    "compress_keys act before them"
                )
            w = as_float_array(weights, name)
            check_finite(w, name)
            if w.shape[-1] != maps.shape[-2] or w.shape[:-2] != maps.shape[:-2]:
                raise InputError(
                    f"{name} must have shape (..., width, {maps.shape[-2]}) with leading axes "
                    f"{maps.shape[:-2]}; got {w.shape}"
                )
            product = w.astype(np.float64) @ maps
            if name == "W_K" and product.ndim == 3:  # the latents of all key heads of a layer
                product = product.sum(axis=0)
            tensors[f"{name}_P_{name[-1].lower()}"] = round_to(product, self.dtype, f"{name} P")
        return tensors


def check_same_scale(scale: float, fitted: float | None, place: str = "") -> None:
    """Raise an InputError unless a scale is that of the passages of a result, up to rounding."""
    if fitted is not None and not math.isclose(scale, fitted, rel_tol=1e-6):
        raise InputError(
            f"scale must be that of the passages, {fitted:g}, part of P_q; got {scale:g}{place}"
        )


def check_same(given: Attention, position: Any, scale: Any = None, place: str = "") -> None:
    """Raise an error where the rotary position or the scale of an attention is not a result's."""
    check_same_scale(given.scale, scale, place)
    own = as_rotary(given.position, given.dim)
    if own is not None and own.position != position:
        fitted, got = shown(position), shown(own.position)
        raise InputError(f"position must be that of the result, {fitted}; got {got}{place}")


def warn_beyond(count: int, length: int | None) -> None:
    """Warn of more tokens than what maps after rotary positions are meant for, if they are such."""
    if length is not None and count > length:
        what = f"a passage has more than the {length} tokens that the maps are meant for"
        warn_caller(f"{what}: they have not seen such positions")


def warn_caller(text: str) -> None:
    """Warn whoever called this package, or a model that it watches."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


class Closeness(NamedTuple):
    """How close attention is to the original, over all rows of all passages that attend at all.

    Total variation, half the sum of |difference|, as mean, 95th percentile and largest; and the
    mean of KL(original || smaller), in nats, of all rows and `by_eighths` of the positions.
    """

    tv_mean: float
    tv_95: float
    tv_worst: float
    kl: float
    kl_by_position: NDArray[np.float64]

    @property
    def kl_mean(self) -> float:
        """The divergence, by its name in curves."""
        return self.kl

    @classmethod
    def of(cls, whole: Sequence[Attention], smaller: Iterable[Attention], threads: int) -> Self:
        """Compare heads in passages; nothing is lost where no row attends."""
        of_smaller = [attention.core for attention in smaller]
        kl, tv, attends = _core.compare_heads([a.core for a in whole], of_smaller, threads)
        kl, tv = kl[attends], tv[attends]
        shapes = [(a.n, a.m) for a in whole for _ in range(math.prod(a.lead))]
        figures = (tv.mean(), np.quantile(tv, 0.95), tv.max(), kl.mean()) if tv.size else (0,) * 4
        mean, high, worst, divergence = map(float, figures)
        return cls(mean, high, worst, divergence, by_eighths(kl, attends, shapes))


def by_eighths(x: FloatArray, chosen: Any, shapes: list[tuple[int, int]]) -> NDArray[np.float64]:
    """Return the mean of x in each eighth of the positions; NaN where there is none.

    It is of chosen rows of passages of shapes (n, m), whose last rows are at their ends.
    """
    places = np.concatenate([np.arange(m - n, m) for n, m in shapes]).clip(0)
    part = places[chosen] * PARTS // (places.max() + 1)
    with np.errstate(invalid="ignore"):
        return np.bincount(part, x, PARTS) / np.bincount(part, minlength=PARTS)
