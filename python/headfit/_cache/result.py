"""Keys and values of layers in few bytes: what is stored and read, and how close layers stay."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arguments import as_count, shown, thread_count
from headfit._base.arrays import as_float_array, check_finite, round_to
from headfit._base.calls import standard_arithmetic
from headfit._base.display import named, plain_dict
from headfit._cache.packing import Packing, latents_per_step
from headfit._cache.stored import Stored, StoredByName, check_position
from headfit._compress.maps import check_same, warn_beyond
from headfit._compress.passages import FromPassages
from headfit._shrink.result import Each
from headfit.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class Latents(FromPassages, Stored):
    """What results of keys and of values share: maps to latents of a few bits, and back."""

    _tensors = ("encode", "decode", "mean")

    encode: NDArray[np.float32]
    decode: NDArray[np.float32]
    mean: NDArray[np.float32]
    bits: tuple[int, ...] | None
    key_heads: int
    position: tuple[str, tuple[float, ...]] | None
    step: str | int = field(default="token", kw_only=True)
    length: int | None = field(default=None, kw_only=True)

    _what: ClassVar[str]
    _quality: ClassVar[str]  # what the passages that judge say, a text to format

    @property
    def packing(self) -> Packing:
        """How tokens become bytes."""
        kind, frequencies = (self.length is None and self.position) or ("", None)
        encode, decode, mean = (np.atleast_2d(getattr(self, x)).copy() for x in self._tensors)
        together = latents_per_step(self.step)
        store = _core.TokenStore((encode, decode, mean), self.bits or (), together, self.key_heads)
        return Packing(
            store, decode, mean[0],
            None if frequencies is None else np.array(frequencies), kind == "rope-half",
            self.bits, together, self.key_heads,
        )  # fmt: skip

    @property
    def bytes(self) -> float:
        """What is stored of a token, in bytes for each key head."""
        return self.packing.core.token_bytes / self.key_heads

    @property
    def whole_bytes(self) -> int:
        """The same for numbers in 16 bits."""
        return 2 * len(self.mean) // self.key_heads

    @standard_arithmetic()
    @np.errstate(over="ignore")
    def store(
        self, states: Any, first: int = 0, *, num_threads: int | None = None
    ) -> NDArray[np.uint8]:
        """Return the bytes that a cache holds for the keys, or values, of some tokens.

        Parameters
        ----------
        states : array_like, shape (key heads, n, D), or (n, D) of a single head
            Keys with their positions applied, or values.
        first : int, default 0
            The position of the first of them. Values have none.
        num_threads : int, optional

        Returns
        -------
        ndarray, shape (n, bytes of a token)
            The bits of the latents of each token: first the lowest bit of every latent, then the
            next one of those that have more, and so on; and where a token has steps, these in
            float16, at most 65,504. Latents in float16 where they have no bits.

        Raises
        ------
        InputError, NonFiniteError
            For those of another shape, or such as float32 does not hold.
        """
        given, first = as_float_array(states, "states"), as_count(first, "first", 0)
        n, size = given.shape[-2], len(self.mean) // self.key_heads
        of_heads = (given if given.ndim > 2 else given[np.newaxis]).astype(np.float32)
        if of_heads.shape != (self.key_heads, n, size):
            raise InputError(
                f"states must have shape ({self.key_heads}, n, {size}); got {given.shape}"
            )
        check_finite(of_heads, "states in float32")
        packing = self.packing
        table = packing.table(np.arange(first, first + n))
        return np.asarray(packing.pack(of_heads, table, thread_count(num_threads)))

    @standard_arithmetic()
    def read(
        self, stored: NDArray[np.uint8], first: int = 0, *, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the keys, or values, that stored bytes stand for, shape (key heads, n, D).

        `first` is the position of the first of them.

        Raises
        ------
        InputError
            For what `store` does not return.
        """
        first, packing = as_count(first, "first", 0), self.packing
        width = packing.core.token_bytes
        is_bytes = isinstance(stored, np.ndarray) and stored.dtype == np.uint8
        if not is_bytes or stored.ndim != 2 or stored.shape[1] != width:
            raise InputError(f"stored must be uint8 of shape (n, {width}); got {shown(stored)}")
        table = packing.table(np.arange(first, first + len(stored)))
        return np.asarray(packing.unpack(stored, table, thread_count(num_threads)))

    def tensors(self, weights: Any = None) -> dict[str, NDArray[Any]]:
        """Return the maps by name, and folded into the weights of the layer if these come.

        Parameters
        ----------
        weights : array_like, shape (width, D times key heads), optional
            Those of the layer: its keys before positions, or its values, are ``x @ weights``.

        Returns
        -------
        dict
            "encode", "decode", "mean", and "bits" if latents have them; with weights "W_latent"
            and "b_latent": the latents are ``x @ W_latent + b_latent``.

        Raises
        ------
        InputError
            For weights of another shape, such as float32 does not hold, or with a `length`.
        """
        tensors = named(self, *self._tensors)
        if self.bits is not None:
            tensors["bits"] = np.array(self.bits, np.int8)
        if weights is not None:
            if self.length is not None:
                raise InputError("weights must not be given: maps act after rotary positions")
            w = as_float_array(weights, "weights")
            size = len(self.mean)
            if w.ndim != 2 or w.shape[1] != size:
                raise InputError(f"weights must have shape (width, {size}); got {w.shape}")
            tensors["W_latent"] = round_to(w.astype(float) @ self.encode, "float32", "W_latent")
            tensors["b_latent"] = -self.mean @ self.encode
        return tensors

    def save(self, path: Any, weights: Any = None) -> None:
        """Write the tensors to a ``.safetensors`` or ``.npz`` file, from which `load` reads them.

        `weights` is as in `tensors`.

        Raises
        ------
        InputError
            For another suffix, or weights that `tensors` refuses.
        ImportError
            Without the package safetensors, where the suffix asks for it.
        """
        self._write(path, self.tensors(weights), self._about)

    def _check(self) -> None:
        width, rank = self.mean.size, len(self.decode)
        shapes = {"encode": (width, rank), "decode": (rank, width), "mean": (width,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape or not all(shape):
                raise ValueError(f"{name} must have shape {shape}")
        bits = (2,) * rank if self.bits is None else self.bits
        within = [8, *bits, 1]
        if len(bits) != rank or within != sorted(within, reverse=True):
            raise ValueError(f"bits must be {rank} of 1 to 8 that do not rise; got {shown(bits)}")
        latents_per_step(self.step)
        as_count(self.key_heads, "key_heads", 1)
        if width % self.key_heads or (self.position and self._what == "value"):
            raise ValueError(f"key_heads must divide {width}, and values have no position")
        check_position(self.position, width // self.key_heads)
        if self.length is not None and as_count(self.length, "length", 1) and not self.position:
            raise ValueError("length must go with a position")

    def to_dict(self) -> dict[str, Any]:
        """Return all but the maps as plain Python values, for JSON."""
        return plain_dict({"bytes": self.bytes, "rank": len(self.decode), **self._about})

    def _facts(self) -> dict[str, str]:
        bits = "float16" if self.bits is None else f"{sum(self.bits)} bits"
        return {
            "sizes": f"{self.whole_bytes} -> {self.bytes:.3g} bytes per {self._what} and "
            f"head: {len(self.decode)} latents, {bits}",
            f"on {self.held_out.size} held-out passages"
            if self.held_out.size
            else "on the passage itself": self._quality.format(self),
            "time": f"{self.seconds:.3g} s",
        }


@dataclass(frozen=True, repr=False, eq=False)
class CompressedKeys(Latents):
    """How the keys of a layer are stored in few bytes, and how close attention stays.

    Attributes
    ----------
    encode : ndarray, shape (D times key heads, rank)
    decode : ndarray, shape (rank, D times key heads)
    mean : ndarray, shape (D times key heads,)
        The latent of keys k, those of all heads side by side, before rotary positions unless there
        is a `length`, is
        ``(k - mean) @ encode``; what is read from a rounded one ``z @ decode + mean``.
    bits : tuple of int, or None
        Of each latent, not rising; None for latents in float16.
    key_heads : int
    position : tuple, or None
        The rotary positions of the keys, with their frequencies, as an `Attention` takes them.
    calibration, validation, held_out : ndarray of int
        Which passages the maps were fitted to, chosen by, and judged on.
    start_kl, validation_kl : float
        The mean KL divergence of some rows of the passages that choose: of the principal
        components, and of what is taken.
    kl, tv_mean, tv_95, tv_worst : float
        On the held-out passages, over the rows of all query heads: the mean KL divergence of
        attention with stored keys from the original, in nats; total variation as mean, 95th
        percentile and largest.
    step : "token", "latent" or int
        What has a step by which latents of a few bits are multiplied: each token, in float16; each
        latent, which is 1, with maps that suit it; or in a token so many latents together.
    kl_by_position : ndarray, shape (8,)
        The mean KL divergence of rows in each eighth of the longest passage's keys; NaN without.
    length : int, or None
        Where maps act after rotary positions, up to how many tokens they are meant.
    seconds : float

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q, K = np.random.default_rng(0).normal(size=(2, 6, 2, 30, 8))  # 6 passages, 2 heads
    >>> layer = [hf.Attention(q, k, mask="causal") for q, k in zip(Q, K)]
    >>> small = hf.compress_keys({"a layer": layer}, rank=8, bits=4, effort=0)["a layer"]
    >>> small.bits, small.bytes, small.store(K[0]).shape
    ((4, 4, 4, 4, 4, 4, 4, 4), 3.0, (30, 6))
    """

    _what = "key"
    _quality = (
        "KL mean {0.kl:.3g}; total variation mean {0.tv_mean:.3g}, 95% {0.tv_95:.3g}, worst "
        "{0.tv_worst:.3g}"
    )

    start_kl: float
    validation_kl: float
    kl: float = math.nan
    tv_mean: float = math.nan
    tv_95: float = math.nan
    tv_worst: float = math.nan
    kl_by_position: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @standard_arithmetic()
    def apply(
        self, Q: Any, K: Any = None, *, num_threads: int | None = None, **options: Any
    ) -> Attention:
        """Return the attention of queries with stored keys.

        Parameters
        ----------
        Q, K : array_like, shape (heads, n, D) and (key heads, m, D)
            Of the original; or Q an `Attention`. The first key has position 0.
        num_threads : int, optional
        **options
            Those of `Attention`.

        Returns
        -------
        Attention
            With rotary positions applied.

        Raises
        ------
        InputError
            For arguments that do not fit.

        Warns
        -----
        UserWarning
            For more keys than `length`.
        """
        given = Attention.of(Q, K, **options)
        check_same(given, self.position)
        warn_beyond(given.m, self.length)
        attention = given.rotated()
        stored = self.store(attention.K, num_threads=num_threads)
        keys = self.read(stored, num_threads=num_threads).reshape(attention.K.shape)
        return Attention(attention.Q, keys, **vars(attention.options))


@dataclass(frozen=True, repr=False, eq=False)
class CompressedValues(Latents):
    """How the values of a layer are stored in few bytes, and how close its outputs stay.

    Attributes
    ----------
    encode : ndarray, shape (dv times key heads, rank)
    decode : ndarray, shape (rank, dv times key heads)
    mean : ndarray, shape (dv times key heads,)
        The latent of the values v of a token, those of all heads side by side, is
        ``(v - mean) @ encode``; what is read from a rounded one ``z @ decode + mean``.
    bits : tuple of int, or None
        Of each latent, not rising; None for latents in float16.
    step : "token"
        What has a step by which latents of a few bits are multiplied, in float16.
    key_heads : int
    position : None
        Values are not turned to positions.
    length : None
    calibration, validation, held_out : ndarray of int
        Which passages the maps were fitted to, chosen by (none), and judged on.
    error : float
        On the held-out passages, by how much the outputs of attention change, before the layer's
        output projection: the root of the sum of the squares, as a share of that of the outputs
        (as it is where all outputs are 0).
    error_of_4_bits : float
        The same with values that are rounded to 4 bits by themselves, those of each token and head
        between their least and largest number, which takes dv / 2 + 4 bytes.
    seconds : float

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q, K, V = np.random.default_rng(0).normal(size=(3, 6, 2, 30, 8))  # 6 passages, 2 heads
    >>> layer = [(hf.Attention(q, k, mask="causal"), v) for q, k, v in zip(Q, K, V)]
    >>> small = hf.compress_values({"a layer": layer}, rank=8, bits=4)["a layer"]
    >>> small.bits, small.bytes, small.store(V[0]).shape
    ((4, 4, 4, 4, 4, 4, 4, 4), 3.0, (30, 6))
    """

    _what = "value"
    _quality = "error of outputs {0.error:.3g}, with 4 bits {0.error_of_4_bits:.3g}"

    error: float = math.nan
    error_of_4_bits: float = math.nan


class _Layers(StoredByName[Each]):
    """Layers by name. `_figure` is what says how close they stay."""

    _field = "layers"
    _figure: ClassVar[str]

    def _facts(self) -> dict[str, str]:
        layers, figure = getattr(self, self._field).values(), self._figure
        whole = max(x.whole_bytes for x in layers)
        worst = max(getattr(x, figure.lower()) for x in layers)
        return {
            "sizes": f"{len(layers)} layers: {whole} -> {self.bytes:.3g} bytes per "
            f"{self._kind._what} and head",
            "on held-out passages": f"{figure} mean {self._mean(figure.lower()):.3g}, of the "
            f"worst layer {worst:.3g}",
            "time": f"{self.seconds:.3g} s",
        }


@dataclass(frozen=True, repr=False, eq=False)
class CompressedLayers(_Layers[CompressedKeys]):
    """How the keys of the layers of a model are stored.

    Attributes
    ----------
    layers : dict
        A `CompressedKeys` for each layer, by the names of the call.
    seconds : float
        Of the whole call.
    """

    layers: dict[Any, CompressedKeys]
    seconds: float
    _kind, _figure, _spent = CompressedKeys, "KL", ("bytes", "validation_kl", 1)

    @property
    def kl(self) -> float:
        """The mean over layers of their KL divergence on held-out passages."""
        return self._mean("kl")


@dataclass(frozen=True, repr=False, eq=False)
class CompressedLayerValues(_Layers[CompressedValues]):
    """How the values of the layers of a model are stored.

    Attributes
    ----------
    layers : dict
        A `CompressedValues` for each layer, by the names of the call.
    seconds : float
        Of the whole call.
    """

    layers: dict[Any, CompressedValues]
    seconds: float
    _kind, _figure, _spent = CompressedValues, "error", ("bytes", "error", 2)

    @property
    def error(self) -> float:
        """The mean over layers of the error of their outputs on held-out passages."""
        return self._mean("error")
