"""Indexes: what they find, and how much of the attention that is."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arguments import as_choice, as_count, thread_count
from headfit._base.arrays import as_float_array, check_finite
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Shown, plain_dict
from headfit._base.machine import require_memory
from headfit._cache.stored import (
    Stored,
    StoredByName,
    check_position,
    check_same_position,
    write,
)
from headfit._compress.maps import PARTS, by_eighths
from headfit._compress.passages import given_alone, rotated_float32
from headfit._index.group import of_one_group
from headfit._selection.certify_selection import SelectionCertificate, certify_selection
from headfit.errors import InputError

FORMS = ("sum", "dot")
DTYPES = {"float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8, "int4": 4}
"""The bits of a number; with 8 and fewer a key has a scale of 16 bits."""


@dataclass(frozen=True, repr=False, eq=False)
class IndexQuality(Shown):
    """How much of the attention the keys that an index finds have, over all rows of some passages.

    Masses are shares of the mean attention of the query heads. Rows whose keys are all attended to
    are left out.

    Attributes
    ----------
    rows : int
    mass, exact_mass, kept_mass : float
        The mean mass of the keys found; of as many best keys; and of those that are kept anyway.
    share_mean, share_05, share_01, share_worst : float
        The mass found as a share of that of the best keys: mean, 5th and 1st percentile, least.
    gain : float
        The same of the mass beyond what is kept anyway, summed over rows.
    recall : float
        The mean share of the best keys that were found, those that are kept anyway left out.
    heaviest : float
        In how many rows the heaviest of these was found, as a share.
    kl : float
        The mean of -log of the mass found: the KL divergence of attention to the keys found from
        the whole, in nats.
    share_by_position : ndarray, shape (8,)
        The mean share in each eighth of the longest passage; NaN without rows.
    """

    rows: int = 0
    mass: float = math.nan
    exact_mass: float = math.nan
    kept_mass: float = math.nan
    share_mean: float = math.nan
    share_05: float = math.nan
    share_01: float = math.nan
    share_worst: float = math.nan
    gain: float = math.nan
    recall: float = math.nan
    heaviest: float = math.nan
    kl: float = math.nan
    share_by_position: NDArray[np.float64] = field(default_factory=lambda: np.full(PARTS, np.nan))

    @classmethod
    def of(
        cls, judged: Sequence[tuple[NDArray[np.float64], ...]], lengths: Sequence[int], keys: int
    ) -> Self:
        """Summarise what the core measured of the rows of passages that have more free keys."""
        places = [m + np.arange(-len(rows[0]), 0) for rows, m in zip(judged, lengths, strict=True)]
        place = np.concatenate(places).clip(0)
        columns = [np.concatenate(column) for column in zip(*judged, strict=True)]
        chosen = (columns[1] > keys) & (columns[3] > 0)
        if not chosen.any():
            return cls()
        kept, _, found, exact, recall, heaviest = (column[chosen] for column in columns)
        share, beyond = found / exact, (exact - kept).sum()
        low = np.quantile(share, (0.05, 0.01, 0)).tolist()
        with np.errstate(divide="ignore"):
            kl = -np.log(found).mean()
        figures = {
            "mass": found.mean(), "exact_mass": exact.mean(), "kept_mass": kept.mean(),
            "share_mean": share.mean(), "share_05": low[0], "share_01": low[1],
            "share_worst": low[2], "gain": (found - kept).sum() / beyond if beyond > 0 else 1,
            "recall": recall.mean(), "heaviest": heaviest.mean(), "kl": kl,
        }  # fmt: skip
        return cls(
            rows=share.size,
            **{name: float(value) for name, value in figures.items()},
            share_by_position=by_eighths(share, place[chosen], place.max() + 1),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all as plain Python values, for JSON."""
        return plain_dict(vars(self))

    def _facts(self) -> dict[str, str]:
        return {
            "finds": f"{self.share_mean:.4f} of the best keys' mass (5% {self.share_05:.3f}, 1% "
            f"{self.share_01:.3f}, worst {self.share_worst:.2f}), {self.gain:.3f} of what is not "
            "kept anyway",
            "mass": f"{self.mass:.4f}, of the best keys {self.exact_mass:.4f}",
            "the heaviest key": f"in {self.heaviest:.1%} of the rows",
        }


@dataclass(frozen=True, repr=False, eq=False)
class Index(Stored):
    """A small head that finds the keys which the query heads of a key head attend to.

    Attributes
    ----------
    P_q : ndarray, shape (heads, D, d)
    P_k : ndarray, shape (D, d)
        What is stored of keys K, with positions applied, is ``K @ P_k``, and of queries
        ``Q[h] @ P_q[h]``, both rounded to `dtype`. The scale of the head is part of P_q.
    form, dtype, keys, window, first, length : str or int
        As in the call of `index`.
    position : tuple, or None
        The rotary positions of queries and keys, with their frequencies.
    calibration, validation, held_out : ndarray of int
        Which passages the maps were fitted to, chosen by, and judged on.
    start_loss, loss : float
        The cross-entropy of some rows of the passages that choose, in nats: of the closed form, and
        of what was found.
    seconds : float
        Of the fit.
    quality : IndexQuality
        On the held-out passages.
    others : dict
        The same of closed forms of this size and dtype: "kq-svd" (the start) and "loki".
    """

    _tensors = ("P_q", "P_k")

    P_q: NDArray[np.float32]
    P_k: NDArray[np.float32]
    form: str
    dtype: str
    keys: int
    window: int
    first: int
    length: int
    position: tuple[str, tuple[float, ...]] | None
    calibration: NDArray[np.intp]
    validation: NDArray[np.intp]
    held_out: NDArray[np.intp]
    start_loss: float
    loss: float
    seconds: float
    quality: IndexQuality = field(default_factory=IndexQuality)
    others: dict[str, IndexQuality] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        """The numbers d of a key."""
        return int(self.P_k.shape[1])

    @property
    def bytes(self) -> float:
        """What is stored of a key, in bytes, its scale included."""
        bits = DTYPES[self.dtype]
        return bits * self.dim / 8 + (2 if bits <= 8 else 0)

    @standard_arithmetic()
    def store(self, K: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what is stored of keys with positions applied, shape (m, D).

        Returns
        -------
        numbers : ndarray, shape (m, d)
            As float32, which holds each number of the dtype; scores are made of these, times the
            scale of their key.
        scales : ndarray, shape (m,)
            1 where the dtype has no scale.

        Raises
        ------
        InputError, NonFiniteError
            For keys of another shape, or such as float32 does not hold.
        """
        with np.errstate(over="ignore"):
            keys = as_float_array(K, "K").astype(np.float32)
        if keys.ndim != 2 or keys.shape[1] != len(self.P_k):
            raise InputError(f"K must have shape (m, {len(self.P_k)}); got {keys.shape}")
        check_finite(keys, "K in float32")
        with np.errstate(over="ignore", invalid="ignore"):
            mapped = keys @ self.P_k
        check_finite(mapped, "K @ P_k")
        rounded, scales = _core.round_index_rows(mapped, self.dtype)
        return rounded / scales[:, np.newaxis], scales

    @standard_arithmetic()
    def scores(
        self, Q: Any, K: Any = None, *, num_threads: int | None = None, **options: Any
    ) -> NDArray[np.float32]:
        """Return the scores of all keys, shape (n, m); -inf where they are masked.

        Parameters
        ----------
        Q, K : array_like, shape (n, D) or (heads, n, D), and (m, D)
            Of the original head; or Q an `Attention`.
        num_threads : int, optional
        **options
            Those of `Attention`.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.
        """
        core = self._passage(Q, K, options).core
        return _core.score_keys(core, self._maps, self._core_options, thread_count(num_threads))

    @standard_arithmetic()
    def select(
        self,
        Q: Any,
        K: Any = None,
        *,
        keys: int | None = None,
        num_threads: int | None = None,
        **options: Any,
    ) -> NDArray[np.int32]:
        """Return the keys that each row attends to, rising; -1 after them where there are fewer.

        Parameters
        ----------
        Q, K, num_threads, **options
            As in `scores`.
        keys : int, optional
            How many, with those that are kept anyway. That of the index when None.

        Returns
        -------
        ndarray, shape (n, keys)

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.
        """
        return self._select(self._passage(Q, K, options), self._count(keys), num_threads)

    @standard_arithmetic()
    def apply(
        self,
        Q: Any,
        K: Any = None,
        *,
        keys: int | None = None,
        num_threads: int | None = None,
        **options: Any,
    ) -> Attention:
        """Return the attention of a passage to the keys that are found alone, by a sparse mask.

        Arguments and errors are those of `select`.
        """
        attention, count = self._passage(Q, K, options), self._count(keys)
        columns = self._select(attention, count, num_threads)
        own: dict[str, Any] = {**vars(attention.options), "key_mask": None, "key_lengths": None}
        own["mask"] = mask_of(columns, attention.m)
        return Attention(attention.Q, attention.K, **own)

    @standard_arithmetic()
    def judge(
        self, passages: Sequence[Any], *, keys: int | None = None, num_threads: int | None = None
    ) -> IndexQuality:
        """Measure how much of the attention is found in other passages.

        Parameters
        ----------
        passages : sequence of Attention or of (Q, K), not empty
        keys : int, optional
            As in `select`.
        num_threads : int, optional

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.
        """
        count, threads = self._count(keys), thread_count(num_threads)
        judged, lengths = [], []
        for place, passage in enumerate(given_alone(passages)):
            own = self._passage(passage, None, {}, place)
            lengths.append(own.m)
            judged.append(
                _core.judge_index(own.core, self._maps, self._core_options, count, threads)
            )
        return IndexQuality.of(judged, lengths, count - self.window - self.first)

    @standard_arithmetic()
    def certify(
        self,
        Q: Any,
        K: Any = None,
        *,
        keys: int | None = None,
        mass: float = 0.9,
        columns: bool = False,
        num_threads: int | None = None,
        **options: Any,
    ) -> SelectionCertificate:
        """Prove how much of its attention each row surely keeps, as `certify_selection` does.

        About queries and keys as they are in float32, with positions applied, and what this index
        stores of them: to the last bit as `select` uses it.

        Parameters
        ----------
        Q, K, keys, num_threads, **options
            As in `select`.
        mass, columns
            As in `certify_selection`.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.
        """
        own, threads = self._passage(Q, K, options), thread_count(num_threads)
        of_q, of_k = _core.index_numbers(own.core, self._maps, self._core_options, threads)
        if self.form == "sum":
            of_q = of_q.reshape(len(self.P_q), own.n, self.dim)
        return certify_selection(
            own, None, of_q, of_k, keys=self._count(keys), window=self.window, first=self.first,
            mass=mass, form=self.form, columns=columns, num_threads=threads,
        )  # fmt: skip

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return the maps by name."""
        return {"P_q": self.P_q, "P_k": self.P_k}

    def save(self, path: Any) -> None:
        """Write the maps to a ``.safetensors`` or ``.npz`` file, from which `load` reads them.

        Raises
        ------
        InputError
            For another suffix.
        ImportError
            Without the package safetensors, where the suffix asks for it.
        """
        write(path, self, self.tensors(), self._about)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the maps as plain Python values, for JSON."""
        return plain_dict({"dim": self.dim, "bytes": self.bytes, **self._about})

    def _check(self) -> None:
        shape = self.P_k.shape
        if not (self.P_q.ndim == 3 and self.P_q.shape[1:] == shape and all(self.P_q.shape)):
            raise ValueError(f"P_q and P_k do not fit: {self.P_q.shape} and {shape}")
        as_choice(self.dtype, "dtype", tuple(DTYPES))
        as_choice(self.form, "form", FORMS)
        as_count(self.window, "window", 1)
        as_count(self.first, "first", 0)
        self._count(self.keys)
        check_position(self.position, shape[0])

    @property
    def _maps(self) -> NDArray[np.float32]:
        return np.vstack([*self.P_q, self.P_k])

    @property
    def _core_options(self) -> Any:
        return _core.IndexOptions(self.form, self.dtype, self.first, self.window)

    def _count(self, keys: int | None) -> int:
        return as_count(self.keys if keys is None else keys, "keys", self.window + self.first + 1)

    def _select(
        self, attention: Attention, count: int, num_threads: int | None
    ) -> NDArray[np.int32]:
        require_memory(4 * attention.n * count, f"a result with keys={count}")
        return _core.select_keys(
            attention.core, self._maps, self._core_options, count, thread_count(num_threads)
        )

    def _passage(self, Q: Any, K: Any, options: dict[str, Any], place: int = 0) -> Attention:
        """Return a passage in float32, with positions applied; warn where it is too long."""
        given = of_one_group(Attention.of(Q, K, **options), place)
        check_same_position(given, self.position, f" in passage {place}")
        attention = rotated_float32(given, place)
        heads = math.prod(attention.lead)
        if (heads, attention.dim) != self.P_q.shape[:2]:
            raise InputError(
                f"Q must have {len(self.P_q)} heads of size {len(self.P_k)}; got {heads} of size "
                f"{attention.dim}"
            )
        if attention.m > self.length and self.position is not None:
            warnings.warn(
                f"a passage has {attention.m} tokens, but the index is meant for {self.length}: "
                "its maps have not seen such positions",
                stacklevel=4,
            )
        return attention

    def _facts(self) -> dict[str, str]:
        qualities = {"finds": self.quality, **self.others}
        return {
            "index": f"size {len(self.P_k)} -> {self.dim}, {self.dtype}, form {self.form!r}: "
            f"{self.bytes:g} bytes per key",
            "keys": f"{self.keys} a row, the last {self.window} and the first {self.first} always",
            **{name: quality._facts()["finds"] for name, quality in qualities.items()},
            "time": f"{self.seconds:.3g} s",
        }


@dataclass(frozen=True, repr=False, eq=False)
class Indexes(StoredByName[Index]):
    """The indexes of several key heads.

    Attributes
    ----------
    heads : dict
        An `Index` for each key head, by the names of the call.
    seconds : float
        Of the whole call.
    """

    heads: dict[Any, Index]
    seconds: float
    _kind = Index

    @property
    def bytes(self) -> float:
        """The mean over key heads of what is stored of a key."""
        return self._mean("bytes")

    def _facts(self) -> dict[str, str]:
        ways = {"finds": [head.quality for head in self.heads.values()]}
        for name in ("kq-svd", "loki"):
            ways[name] = [head.others[name] for head in self.heads.values()]
        shares = {way: [x.share_mean for x in of if x.rows] for way, of in ways.items()}
        return {
            "heads": f"{len(self.heads)} key heads: {self.bytes:.3g} bytes per key",
            **{
                way: f"{np.mean(x):.4f} of the best keys' mass, in the worst head {min(x):.4f}"
                for way, x in shares.items()
                if x
            },
            "time": f"{self.seconds:.3g} s",
        }


def mask_of(columns: NDArray[np.int32], m: int) -> sp.csr_array:
    """Return the mask of the keys of each row, of m keys; places of -1 have none."""
    chosen = columns >= 0
    parts = (chosen[chosen], columns[chosen], np.append(0, chosen.sum(axis=1).cumsum()))
    return sp.csr_array(parts, shape=(len(columns), m))
