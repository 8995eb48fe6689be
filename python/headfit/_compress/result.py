"""What compressing a head gives: maps, and how close they stay on passages not seen before."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._base.arrays import FloatArray
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Tabular, named, plain_dict
from headfit._base.files import write_head
from headfit._compress.maps import StoredMaps, check_same, warn_beyond
from headfit._compress.passages import FromPassages
from headfit._shrink.result import Result, ResultByName, TvCurve
from headfit.errors import InputError

# A result overfits where the held-out divergence is so many times that of the fitted passages, and
# so many nats above it.
FAR, ENOUGH = 2.0, 1e-4


@dataclass(frozen=True, repr=False, eq=False)
class Compressed(FromPassages, Result):
    """One smaller head for every input: maps of its queries and keys.

    The logits of the smaller head are ``(Q @ P_q) @ (K @ P_k).T``: the scale is part of `P_q`. Its
    mask, soft-cap and bias are those of the original. With weights W_Q and W_K and no rotary
    positions, ``W_Q @ P_q`` and ``W_K @ P_k`` are those of the smaller head; with rotary positions
    queries and keys are mapped after they are rotated.

    Attributes
    ----------
    P_q : ndarray, shape (D, d) or (heads, D, d)
        One map for each query head that shares the keys.
    P_k : ndarray, shape (D, d)
        float64 or float32; for "float16" and "bfloat16" rounded to their numbers.
    dim, original_dim : int
        The sizes d and D.
    original_scale : float
        The scale of the passages' logits.
    dtype : str
        Of the maps, and of the mapped queries and keys.
    position : tuple, or None
        The rotary positions of the passages, with their frequencies. The maps act after them.
    length : int
        Of the longest passage; with rotary positions up to how many tokens passages were moved.
    tv_mean, tv_95, tv_worst : float
        Total variation from the original over the rows of the held-out passages, wherever they
        stand, for what is stored: mean, 95th percentile and largest.
    kl : float
        The mean of KL(original || smaller) on the held-out passages, in nats.
    kl_by_position : ndarray, shape (8,)
        The same of rows in each eighth of the longest passage's keys; NaN without. The last row
        stands at the last key (so do all pieces of a single passage that is not causal).
    calibration_kl, validation_kl : float
        The same on the passages that the maps were fitted to, and on those that chose them (NaN
        if there are none).
    taken : str
        Which maps did best on the validation passages: "descent"; a closed form, "kq-svd",
        "centred" or "attended"; or "size k", those of a smaller size, with zeros.
    reached : bool
        Whether the mean total variation on the validation passages is within the bound of the call.
    stopped : str
        Why the search ended.
    curves : mapping of str to TvCurve
        Distances from the original on the held-out passages for every size that was fitted, by the
        name of the maps: "kq-svd", "centred" and "attended", the closed forms; "descent", the maps
        descended from them (at size D those that change nothing); "taken", what is taken at this
        size.
    closed_forms : mapping of str to (P_q, P_k)
        The maps "kq-svd", "centred" and "attended" of this size, in the dtype of the result.
    calibration, validation, held_out : ndarray of int
        Which passages, or eighths of a single one, the maps were fitted to, chosen by, and judged
        on.
    seconds : float
    settings : dict
        ``settings["descents"]`` says of every size how its descent went.
    """

    P_q: FloatArray
    P_k: FloatArray
    dim: int
    original_dim: int
    original_scale: float
    dtype: str
    position: tuple[str, tuple[float, ...]] | None
    length: int
    tv_mean: float
    tv_95: float
    tv_worst: float
    kl: float
    kl_by_position: NDArray[np.float64]
    calibration_kl: float
    validation_kl: float
    taken: str
    reached: bool
    stopped: str
    curves: Mapping[str, TvCurve]
    closed_forms: Mapping[str, tuple[FloatArray, FloatArray]]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def curve(self) -> TvCurve:
        """The curve of what is taken at each size."""
        return self.curves["taken"]

    @property
    def baseline(self) -> TvCurve:
        """The curve of the first closed form, KQ-SVD."""
        return next(iter(self.curves.values()))

    @property
    def overfits(self) -> bool:
        """Whether a smaller head loses more than twice as much on held-out passages as on fitted.

        And 1e-4 nats more. More passages help then, or a smaller size.
        """
        is_far = self.kl > max(FAR * self.calibration_kl, self.calibration_kl + ENOUGH)
        return is_far and self.dim < self.original_dim

    @standard_arithmetic()
    def apply(self, Q: Any, K: Any = None, **options: Any) -> Attention:
        """Return the smaller head in a passage.

        Parameters
        ----------
        Q, K : array_like, shape (n, D) and (m, D)
            Queries and keys of the original; or Q an `Attention`.
        **options
            Those of `Attention`, for the original: mask, softcap, bias, position, ... Its scale
            is that of the passages, part of `P_q`, and must not be given; an `Attention` must
            have it.

        Returns
        -------
        Attention
            Of scale 1 and head size d. Rotary positions have been applied.

        Raises
        ------
        InputError
            For arguments that do not fit, or a head of another size.

        Warns
        -----
        UserWarning
            With rotary positions, for more keys than `length`.
        """
        if "scale" in options:
            raise InputError("scale must not be given: it is part of P_q")
        attention = Attention.of(Q, K, **options)
        known = self.original_scale if attention_in(Q) is not None else None
        check_same(attention, self.position, known)
        lead, keys = self.P_q.shape[:-2], attention.stored[1].shape
        if (attention.dim, attention.lead) != (self.original_dim, lead) or math.prod(keys[:-2]) > 1:
            raise InputError(
                f"Q must have head size {self.original_dim} and leading axes {lead}, and K be of "
                f"one key head; got {attention.dim} and {attention.lead}, and K of shape {keys}"
            )
        warn_beyond(attention.m, self.length if self.position else None)
        return StoredMaps(self.P_q, self.P_k, self.dtype).smaller(attention.rotated())

    @standard_arithmetic()
    def tensors(self, W_Q: Any = None, W_K: Any = None) -> dict[str, NDArray[Any]]:
        """Return the maps by name, and the weights of the smaller head if those of the head come.

        Parameters
        ----------
        W_Q, W_K : array_like, shape (width, D), optional
            The head's weights: its queries are ``x @ W_Q``. For several query heads W_Q has shape
            (heads, width, D).

        Returns
        -------
        dict
            "P_q" and "P_k"; with weights "W_Q_P_q" and "W_K_P_k", their products, rounded to the
            dtype of the maps.

        Raises
        ------
        InputError
            For weights of other shapes, or of a head with rotary positions: maps act after the
            rotation, and do not fold into weights.
        """
        return StoredMaps(self.P_q, self.P_k, self.dtype).tensors(W_Q, W_K, bool(self.position))

    def save(self, path: Any, W_Q: Any = None, W_K: Any = None) -> None:
        """Write the tensors to a file that other tools read, in the dtype of the maps.

        Parameters
        ----------
        path : str or path
            The exact name, which ends in ``.safetensors`` or ``.npz``.
        W_Q, W_K : array_like, optional
            As in `tensors`.

        Raises
        ------
        InputError
            For another suffix, or weights that `tensors` refuses.
        ImportError
            Without the package safetensors, where the suffix asks for it.
        """
        about = named(self, "dim", "original_dim", "length", "tv_mean", "position")
        write_head(path, self.tensors(W_Q, W_K), json.dumps({"compressed": 1, **about}), self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the maps as plain Python values, for JSON."""
        kept = {k: x for k, x in vars(self).items() if k not in ("P_q", "P_k", "closed_forms")}
        return plain_dict({**kept, "overfits": self.overfits})

    def _facts(self) -> dict[str, str]:
        size = f"size {self.original_dim} -> {self.dim}, {self.dtype}"
        fitted = {"OVERFITS:": f"KL {self.calibration_kl:.3g} on the fitted passages"}
        return {
            "size": size if self.reached else f"NOT within the bound: {size}",
            f"on {self.held_out.size} held-out passages": f"total variation mean "
            f"{self.tv_mean:.3g}, 95% {self.tv_95:.3g}, worst {self.tv_worst:.3g}; "
            f"KL mean {self.kl:.3g}; {self.taken}",
            **(fitted if self.overfits else {}),
            "ended": f"{self.stopped}, {self.seconds:.3g} s",
        }


@dataclass(frozen=True, repr=False, eq=False)
class CompressedHeads(ResultByName[Compressed], Tabular):
    """Smaller heads for every input, for all heads of a model.

    A table has a row for each head; columns are attributes of `Compressed`: its sizes, distances,
    and how the search ended.

    Attributes
    ----------
    heads : dict
        A `Compressed` for each head, by the names of the call.
    seconds : float
        Of the whole call. Those of a head are what its own fits and its distances took.
    """

    heads: dict[Any, Compressed]
    seconds: float
    _figures: ClassVar = ("seconds", "total", "tv_mean")
    _spent: ClassVar = ("dim", "validation_kl", 1)

    @property
    def dims(self) -> dict[Any, int]:
        """The size of each head."""
        return {name: head.dim for name, head in self.heads.items()}

    @property
    def total(self) -> int:
        """The number of dimensions of all heads: what a token takes in the cache of keys."""
        return sum(self.dims.values())

    @property
    def tv_mean(self) -> float:
        """The mean over heads of their mean total variation on held-out passages."""
        return self._mean("tv_mean")

    def _table(self) -> tuple[dict[Any, Any], list[str]]:
        columns = {
            name: [getattr(head, name) for head in self.heads.values()]
            for name in ("dim", "original_dim", "tv_mean", "tv_95", "tv_worst", "kl", "taken",
                         "reached", "stopped", "seconds")
        }  # fmt: skip
        columns["head"] = [str(name) if isinstance(name, tuple) else name for name in self.heads]
        return columns, ["head"]

    def _facts(self) -> dict[str, str]:
        before = sum(head.original_dim for head in self.heads.values())
        worst = max(head.tv_mean for head in self.heads.values())
        return {
            "heads": f"{len(self.heads)} heads: {before} -> {self.total} dimensions",
            "on held-out passages": f"total variation mean {self.tv_mean:.3g}, of the worst head "
            f"{worst:.3g}",
            "time": f"{self.seconds:.3g} s",
        }
