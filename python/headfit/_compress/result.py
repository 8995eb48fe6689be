"""What compressing a head gives: maps, and how close they stay on passages not seen before."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.logits import LogitOptions
from headfit._base.arguments import shown
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import FloatArray, as_float_array
from headfit._base.dtypes import round_to
from headfit._base.files import as_path
from headfit._base.frames import data_frame, pandas
from headfit._base.plain import plain_dict
from headfit._base.positions import as_rotary
from headfit._base.shown import Shown, html_table, picture
from headfit._compress.judge import Closeness
from headfit._compress.maps import StoredMaps
from headfit._fit.file_formats import FORMATS
from headfit.errors import InputError

__all__ = ["Compressed", "CompressedCurve"]

# A result overfits where the held-out divergence is so many times that of the fitted passages, and
# so many nats above it.
FAR, ENOUGH = 2.0, 1e-4


@dataclass(frozen=True, eq=False)
class CompressedCurve:
    """Distances from the original on the held-out passages, against head size.

    Attributes
    ----------
    dim : ndarray of int
        Rising.
    tv_mean, tv_95, tv_worst, kl : mapping of str to ndarray, the shape of dim
        Mean total variation, its 95th percentile, its largest value, and mean KL divergence in
        nats; over all rows. Keys: "kq-svd", "centred" and "attended", the closed forms;
        "descent", the maps descended from them (at size D those that change nothing); "taken",
        what `compress` gives at this size. For maps that commute with rotary positions the closed
        forms are "share", the pairs that weigh most as they are, and "eliminated", the pairs that
        are left when the cheapest is left out again and again, with the weights of a quadratic
        model.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> passages = list(np.random.default_rng(0).normal(size=(12, 2, 20, 4)))
    >>> curve = hf.compress(passages, dim=2, effort=1).curve
    >>> curve.dim, curve.tv_mean["taken"].round(1)
    (array([1, 2, 4]), array([0.3, 0.2, 0. ]))
    """

    dim: NDArray[np.int64]
    tv_mean: Mapping[str, NDArray[np.float64]]
    tv_95: Mapping[str, NDArray[np.float64]]
    tv_worst: Mapping[str, NDArray[np.float64]]
    kl: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, found: Mapping[int, Mapping[str, Closeness]]) -> CompressedCurve:
        """Return the curves of what was judged, by size and by the name of the maps."""

        def table(distance: str) -> dict[str, NDArray[np.float64]]:
            return {
                name: np.array([getattr(row[name], distance) for row in found.values()])
                for name in next(iter(found.values()))
            }

        return cls(
            np.array(list(found), dtype=np.int64),
            *(table(name) for name in ("tv_mean", "tv_95", "tv_worst", "kl")),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as lists, for JSON."""
        return plain_dict(vars(self))

    def to_pandas(self) -> Any:
        """Return all as a pandas DataFrame by size, with a column for each (distance, maps).

        Distances are ``tv_mean``, ``tv_95``, ``tv_worst`` and ``kl``.

        Raises
        ------
        ImportError
            Without pandas.
        """
        columns = {
            (distance, name): values
            for distance in ("tv_mean", "tv_95", "tv_worst", "kl")
            for name, values in getattr(self, distance).items()
        }
        frame = data_frame(columns, "dim")
        return frame.set_axis(pandas().Index(self.dim, name="dim"))

    def __repr__(self) -> str:
        points = ", ".join(
            f"{d}: {mean:.3g}" for d, mean in zip(self.dim, self.tv_mean["taken"], strict=True)
        )
        return f"CompressedCurve(mean total variation by size: {points})"

    def _repr_html_(self) -> str:
        means = np.column_stack(list(self.tv_mean.values()))
        rows = [
            (str(d), *(f"{mean:.3g}" for mean in row))
            for d, row in zip(self.dim, means, strict=True)
        ]
        title = "CompressedCurve: mean total variation by size"
        return html_table(title, ("size", *self.tv_mean), rows) + picture(self)


@dataclass(frozen=True, repr=False, eq=False)
class Compressed(Shown):
    """One smaller head for every input: maps of its queries and keys.

    The logits of the smaller head are ``(Q @ P_q) @ (K @ P_k).T``: the scale is part of `P_q`. Its
    mask, soft-cap and bias are those of the original. With weights W_Q and W_K and no rotary
    positions, ``W_Q @ P_q`` and ``W_K @ P_k`` are those of the smaller head; with rotary positions
    queries and keys are mapped after they are rotated, unless the maps commute with rotations.

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
    rotary : bool
        Whether the head has rotary positions. The maps act after them, or also before them where
        they commute with rotations.
    pairs : ndarray of int, or None
        For maps that commute with rotations: which pairs of entries the smaller head keeps.
    position, original_position : tuple, or None
        The rotary positions of the smaller head and of the original then, with their frequencies,
        as an `Attention` takes them.
    tv_mean, tv_95, tv_worst : float
        Total variation from the original over the rows of the held-out passages, for what is
        stored: mean, 95th percentile and largest.
    kl : float
        The mean of KL(original || smaller) on the held-out passages, in nats.
    calibration_kl, validation_kl : float
        The same on the passages that the maps were fitted to, and on those that chose them (NaN
        if there are none).
    taken : str
        Which maps did best on the validation passages: "descent"; a closed form, "kq-svd",
        "centred" or "attended"; or "size k", those of a smaller size, with zeros.
    reached : bool
        Whether the mean total variation on the validation passages is what was asked.
    stopped : str
        Why the search ended.
    curve : CompressedCurve
    calibration, validation, held_out : ndarray of int
        Which passages the maps were fitted to, chosen by, and judged on.
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
    rotary: bool
    tv_mean: float
    tv_95: float
    tv_worst: float
    kl: float
    calibration_kl: float
    validation_kl: float
    taken: str
    reached: bool
    stopped: str
    curve: CompressedCurve
    calibration: NDArray[np.intp]
    validation: NDArray[np.intp]
    held_out: NDArray[np.intp]
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    pairs: NDArray[np.intp] | None = None
    position: tuple[str, tuple[float, ...]] | None = None
    original_position: tuple[str, tuple[float, ...]] | None = None

    @property
    def frequencies(self) -> NDArray[np.float64] | None:
        """The frequencies of `position`, in radians per token: the smaller head's ``inv_freq``."""
        return None if self.position is None else np.array(self.position[1])

    @property
    def overfits(self) -> bool:
        """Whether the divergence on held-out passages is more than twice that on fitted ones.

        More passages help then, or a smaller size.
        """
        return self.kl > FAR * self.calibration_kl and self.kl - self.calibration_kl > ENOUGH

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
            Of scale 1 and head size d. Rotary positions have been applied; but maps that commute
            with them act first, and the result has the `position` of the smaller head.

        Raises
        ------
        InputError
            For arguments that do not fit, or a head of another size.
        """
        if "scale" in options:
            raise InputError("scale must not be given: it is part of P_q")
        attention = Attention.of(Q, K, LogitOptions(**options))
        if attention_in(Q) is not None:
            self.check_scale(attention.scale)
        lead = self.P_q.shape[:-2]
        if attention.dim != self.original_dim or attention.lead != lead:
            raise InputError(
                f"Q must have head size {self.original_dim} and leading axes {lead}; "
                f"got {attention.dim} and {attention.lead}"
            )
        maps = StoredMaps(self.P_q, self.P_k, self.dtype)
        if self.position is None or attention.position is None:
            return maps.smaller(attention)
        given = as_rotary(attention.position, self.original_dim)
        if given is None or given.position != self.original_position:
            raise InputError(
                "position must be that of the passages, which the maps commute with: "
                f"{shown(self.original_position)}; got {shown(attention.position)}"
            )
        return maps.mapped(attention, self.position)

    def check_scale(self, scale: float) -> None:
        """Raise an InputError unless a scale is that of the passages, up to rounding."""
        if not math.isclose(scale, self.original_scale, rel_tol=1e-6):
            raise InputError(
                f"scale must be that of the passages, {self.original_scale:g}, which is part of "
                f"P_q; got {scale:g}"
            )

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
            "P_q" and "P_k", and for maps that commute with rotary positions "pairs" and
            "inv_freq", the frequencies of the smaller head; with weights "W_Q_P_q" and
            "W_K_P_k", their products, rounded to the dtype of the maps.

        Raises
        ------
        InputError
            For weights of other shapes, or of a head with rotary positions, unless maps commute
            with them: others act after the rotation, and do not fold into weights.
        """
        found: dict[str, NDArray[Any]] = {"P_q": self.P_q, "P_k": self.P_k}
        if self.pairs is not None:
            found |= {"pairs": self.pairs.astype(np.int64)}
            found |= {"inv_freq": np.asarray(self.frequencies)}
        for name, weights, maps in (("W_Q", W_Q, self.P_q), ("W_K", W_K, self.P_k)):
            if weights is None:
                continue
            if self.rotary and self.pairs is None:
                raise InputError(
                    f"{name} must not be given: maps act after rotary positions; those of "
                    "compress(commute=True) act before them"
                )
            w = as_float_array(weights, name)
            if w.shape[-1] != self.original_dim or w.shape[:-2] != maps.shape[:-2]:
                raise InputError(
                    f"{name} must have shape (..., width, {self.original_dim}) with leading axes "
                    f"{maps.shape[:-2]}; got {w.shape}"
                )
            product = w.astype(np.float64) @ maps
            found[f"{name}_P_{name[-1].lower()}"] = round_to(product, self.dtype)
        return found

    def save(self, path: Any, W_Q: Any = None, W_K: Any = None) -> None:
        """Write the tensors to a file that other tools read, in the dtype of the maps.

        Parameters
        ----------
        path : str or path
            The exact name, which ends in ``.safetensors``.
        W_Q, W_K : array_like, optional
            As in `tensors`.

        Raises
        ------
        InputError
            For another suffix, or weights that `tensors` refuses.
        ImportError
            Without the package safetensors.
        """
        name = Path(as_path(path, "path"))
        if name.suffix != ".safetensors":
            raise InputError(f"path must end in .safetensors; got {name.name!r}")
        write, _ = FORMATS[".safetensors"]
        about = {
            "compressed": 1,
            "dim": self.dim,
            "original_dim": self.original_dim,
            "tv_mean": self.tv_mean,
            "rotary": self.rotary,
            "position": None if self.position is None else self.position[0],
        }
        write(name, self.tensors(W_Q, W_K), json.dumps(about), self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the maps as plain Python values, for JSON."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("P_q", "P_k")]
        return plain_dict(
            {**{name: getattr(self, name) for name in names}, "overfits": self.overfits}
        )

    def _facts(self) -> dict[str, str]:
        size = f"{self.original_dim} -> {self.dim}, {self.dtype}"
        if not self.reached:
            size = f"NOT within what was asked: size {size}"
        facts = {
            "size": size,
            f"on {self.held_out.size} held-out passages": f"total variation mean "
            f"{self.tv_mean:.3g}, 95% {self.tv_95:.3g}, worst {self.tv_worst:.3g}; "
            f"KL mean {self.kl:.3g}",
            "taken": self.taken,
        }
        if self.overfits:
            facts["OVERFITS:"] = f"KL {self.calibration_kl:.3g} on the fitted passages"
        return {**facts, "ended": f"{self.stopped}, {self.seconds:.3g} s"}

    def __repr__(self) -> str:
        unnamed = ("taken", "ended") if self.reached else ("size", "taken", "ended")
        said = (text if name in unnamed else f"{name} {text}" for name, text in
                self._facts().items())  # fmt: skip
        return f"Compressed({'; '.join(said)})"
