"""The index of a key head or of a layer: what it finds, and how much of the attention that is."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from headfit import _core
from headfit._attention.attention import Attention, attention_in
from headfit._attention.of_rows import as_csr
from headfit._base.arguments import as_choice, as_count, shown, thread_count
from headfit._base.arrays import as_float_array, check_finite
from headfit._base.calls import standard_arithmetic
from headfit._base.display import plain_dict
from headfit._base.machine import require_memory
from headfit._base.tolerances import KernelLike
from headfit._base.types import Seed
from headfit._cache.stored import Stored, check_position
from headfit._compress.maps import StoredMaps, check_same, warn_beyond
from headfit._compress.passages import FromPassages, as_dtype, given_alone, rotated_float32
from headfit._fit.fit import fit
from headfit._fit.result import Fit
from headfit._index.group import of_one_group
from headfit._index.quality import DTYPES, IndexCurve, IndexQuality, key_bytes
from headfit._selection.certify_selection import FORMS, SelectionCertificate, certify_selection
from headfit.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class Index(FromPassages, Stored):
    """A small head that finds the keys which query heads of a key head, or of a layer, attend to.

    Attributes
    ----------
    P_q : ndarray, shape (heads, D, d)
    P_k : ndarray, shape (D, d), or (key heads, D, d) of a layer
        What is stored of keys K, with positions applied, is ``K @ P_k``, the sum over key heads,
        and of queries ``Q[h] @ P_q[h]``, both rounded to `dtype`. P_q has the scale of the head.
    form, dtype, keys, window, first, length : str or int
        As in the call of `index`.
    position : tuple, or None
        The rotary positions of queries and keys, with their frequencies.
    scale : float or None
        That of the logits of the passages; None in files of older versions.
    reached : bool
        Whether the share that `mass` asks for was reached.
    calibration, validation, held_out : ndarray of int
        Which passages the maps were fitted to, chosen by, and judged on.
    start_loss, loss : float
        Cross-entropy of rows of the passages that choose, in nats: of the closed form, and found.
    seconds : float
        Of the fit.
    quality : IndexQuality
        On the held-out passages.
    others : dict
        The same of closed forms of this size and dtype, "kq-svd" (the start) and "loki"; and of
        the best pages of 16 keys, "quest", by bounds of their products: the least and the largest
        of each number, D / 4 bytes of a key of each key head in 16 bits, in the form "sum".
    curve : IndexCurve or None
        The same of the sizes of `curve_dims`; files do not have it.
    certificate : dict or None
        What the certificate says with which a loaded index was saved.
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
    start_loss: float
    loss: float
    quality: IndexQuality = field(default_factory=IndexQuality)
    others: dict[str, IndexQuality] = field(default_factory=dict)
    curve: IndexCurve | None = None
    certificate: dict[str, Any] | None = None
    scale: float | None = None
    reached: bool = True

    @property
    def _about(self) -> dict[str, Any]:
        return {name: x for name, x in super()._about.items() if name != "curve"}

    @property
    def dim(self) -> int:
        """The numbers d of a key."""
        return int(self.P_k.shape[-1])

    @property
    def bytes(self) -> float:
        """What is stored of a key, in bytes, its scale included."""
        return key_bytes(self.dim, self.dtype)

    @property
    def missed(self) -> float:
        """What the keys found lack of the mass of as many best keys, on the held-out passages."""
        return self.quality.exact_mass - self.quality.mass

    @standard_arithmetic()
    @np.errstate(over="ignore")
    def store(self, K: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what is stored of keys with positions applied, in the shape that `index` takes.

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
        keys = as_float_array(K, "K").astype(np.float32)
        *lead, size, _ = self.P_k.shape
        if [*keys.shape[:-2], *keys.shape[-1:]] != [*lead, size] or keys.ndim != self.P_k.ndim:
            shape = ", ".join(map(str, (*lead, "m", size)))
            raise InputError(f"K must have shape ({shape}); got {keys.shape}")
        check_finite(keys, "K in float32")
        heads = np.ascontiguousarray(keys).reshape(math.prod(lead), *keys.shape[-2:])
        x, scales = _core.map_index_keys(heads, self.P_k.reshape(-1, self.dim).copy(), self.dtype)
        return x / scales[:, np.newaxis], scales

    @standard_arithmetic()
    def scores(
        self, Q: Any, K: Any = None, *, num_threads: int | None = None, **options: Any
    ) -> NDArray[np.float32]:
        """Return the scores of all keys, shape (n, m); -inf where they are masked.

        Parameters
        ----------
        Q, K : array_like, in the shapes that `index` takes
            Of the original head or layer; or Q an `Attention`.
        num_threads : int, optional
        **options
            Those of `Attention`. The scale is that of the passages, which is part of `P_q`.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.
        """
        own = self._passage(Q, K, options)
        require_memory(4 * own.n * own.m, "the scores of all keys")
        return _core.score_keys(own.core, *self._for_core, thread_count(num_threads))

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
            How many: the first and the last ones, and the best `keys` - `first` - `window` of the
            others. That of the index when None.

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
        mask = as_csr(columns, columns >= 0, attention.m)
        alone = {"mask": mask, "key_mask": None, "key_lengths": None}
        return Attention(attention.Q, attention.K, **{**vars(attention.options), **alone})

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
        read = (self._passage(x, None, {}, at) for at, x in enumerate(given_alone(passages)))
        judged = [(_core.judge_index(x.core, *self._for_core, count, threads), x.m) for x in read]
        measured, lengths = zip(*judged, strict=True)
        return IndexQuality.of(measured, lengths, count - self.window - self.first)

    @standard_arithmetic()
    def limits(
        self,
        passage: Any,
        *,
        keys: int | None = None,
        time_limit: float | None = 30.0,
        rng: Seed = 0,
        num_threads: int | None = None,
    ) -> Fit:
        """Bound how small any index could be that finds the best keys of one passage.

        The best keys of each row, by the mean attention of the query heads and beside the first and
        the last ones, are a pattern. `fit` looks for the smallest head whose queries and keys, free
        for this passage, score these above all others. An index of the form "dot" that does so,
        with the best of a row at most 131 times as far apart as above the others (the tolerances),
        needs as many numbers at least as `lower_bound` of the result says; of the form "sum", whose
        scores are no products, this is proved for one query head alone.

        Parameters
        ----------
        passage : Attention
            Causal, with as many queries as keys, and without padding.
        keys : int, optional
            As in `select`.
        time_limit, rng, num_threads
            As in `fit`: a search that was cut short proves nothing about smaller heads.

        Returns
        -------
        Fit
            Its head is about rows after the first ``window + first`` ones, and the keys that these
            may select: rows and columns of the pattern.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.

        Notes
        -----
        Takes O(heads n^2) memory.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> passages = [*map(tuple, np.random.default_rng(0).normal(size=(4, 2, 40, 8)))]
        >>> given = [hf.Attention(q, k, mask="causal") for q, k in passages]
        >>> found = hf.index(given, dim=4, keys=12, window=8, first=2, effort=0)
        >>> least = found.limits(given[0])
        >>> least.certificate.holds, least.lower_bound.dim <= least.dim
        (True, True)
        """
        [given], kept = given_alone([passage]), self.window + self.first
        own, count = self._passage(given, None, {}), self._count(keys) - kept
        n, is_causal = own.n - kept, isinstance(own.mask, str)
        is_whole = own.n == own.m and own.key_mask is None and own.key_lengths is None
        if n < 1 or not is_causal or not is_whole:
            raise InputError(
                f"passage must be causal, with more than {kept} queries, as many keys, and no "
                f"padding; got {shown(passage)}"
            )
        # Logarithms of weights, which may be too small for numbers themselves.
        wide = as_dtype(own, np.float64)
        logs = wide.logits(num_threads=num_threads).reshape(-1, own.n, own.n)
        sums = wide.stats(shares=(), num_threads=num_threads).log_sum.reshape(-1, own.n, 1)
        free = logsumexp(logs - sums, axis=0)
        # Row r of these sees columns 0 to r.
        free = np.where(np.tri(n), free[kept:, self.first : own.n - self.window], -np.inf)
        best = np.argsort(-free, axis=1, kind="stable")[:, :count].astype(np.int32)
        best = np.where(np.take_along_axis(free, best, axis=1) == -np.inf, -1, best)
        pattern = as_csr(best, best >= 0, n)
        return fit(
            pattern.astype(np.float64) / pattern.sum(axis=1)[:, np.newaxis], leak=0.9,
            distortion=1e6, mask="causal", time_limit=time_limit, rng=rng, num_threads=num_threads,
        )  # fmt: skip

    @standard_arithmetic()
    def certify(
        self,
        Q: Any,
        K: Any = None,
        *,
        keys: int | None = None,
        mass: float = 0.9,
        kernel: KernelLike = "float32",
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
        mass, kernel, columns
            As in `certify_selection`.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit.
        """
        own, threads = self._passage(Q, K, options), thread_count(num_threads)
        of_q, of_k = _core.index_numbers(own.core, *self._for_core, threads)
        if self.form == "sum":
            of_q = of_q.reshape(len(self.P_q), own.n, self.dim)
        found = certify_selection(
            own, None, of_q, of_k, keys=self._count(keys), window=self.window, first=self.first,
            mass=mass, form=self.form, kernel=kernel, columns=columns, num_threads=threads,
        )  # fmt: skip
        return replace(found, index=self._digest)

    @standard_arithmetic()
    def tensors(self, W_Q: Any = None, W_K: Any = None) -> dict[str, NDArray[np.float32]]:
        """Return the maps by name, and the weights of the index if those of the heads come.

        Parameters
        ----------
        W_Q, W_K : array_like, shapes (heads, width, D) and (width, D), optional
            The weights of the heads: their queries are ``x @ W_Q[h]``, their keys ``x @ W_K``, or
            of a layer ``x @ W_K[g]``.

        Returns
        -------
        dict
            "P_q" and "P_k"; with weights "W_Q_P_q" and "W_K_P_k": what is rounded to `dtype` and
            stored of a token x is ``x @ W_K_P_k``.

        Raises
        ------
        InputError
            For weights of other shapes, or of heads with rotary positions: maps act after the
            rotation, and do not fold into weights.
        """
        return StoredMaps(self.P_q, self.P_k, "float32").tensors(W_Q, W_K, bool(self.position))

    def save(
        self,
        path: Any,
        certificate: SelectionCertificate | None = None,
        W_Q: Any = None,
        W_K: Any = None,
    ) -> None:
        """Write the tensors to a ``.safetensors`` or ``.npz`` file, from which `load` reads them.

        With a certificate of a passage, as `certify` returns it, the file has its ``to_dict()``.
        Weights are as in `tensors`.

        Raises
        ------
        InputError
            For another suffix, for what is no certificate by `certify` of this index, and for
            weights that `tensors` refuses.
        ImportError
            Without the package safetensors, where the suffix asks for it.
        """
        about = self._about
        if certificate is not None:
            if getattr(certificate, "index", None) != self._digest:
                raise InputError(
                    f"certificate must be of a selection by this index; got {shown(certificate)}"
                )
            about["certificate"] = certificate.to_dict()
        self._write(path, self.tensors(W_Q, W_K), about)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the maps as plain Python values, for JSON."""
        return plain_dict({"dim": self.dim, "bytes": self.bytes, **self._about})

    def _check(self) -> None:
        of_q, of_k = self.P_q.shape, self.P_k.shape
        fits = len(of_q) == 3 and of_q[1:] == of_k[-2:] and all(of_q) and len(of_k) < 4
        if not fits or of_k[:-2] in ((0,), (1,)) or of_q[0] % math.prod(of_k[:-2]):
            raise ValueError(f"P_q and P_k do not fit: {of_q} and {of_k}")
        as_choice(self.dtype, "dtype", tuple(DTYPES))
        as_choice(self.form, "form", FORMS)
        as_count(self.window, "window", 1)
        as_count(self.first, "first", 0)
        self._count(self.keys)
        check_position(self.position, of_q[1])
        if (self.certificate or {}).get("index", self._digest) != self._digest:
            raise ValueError("its certificate is of another index")

    @property
    def _digest(self) -> str:
        settings = self.form, self.dtype, self.window, self.first, self.position
        numbers = self.P_q.tobytes() + self.P_k.tobytes()
        return hashlib.sha256(numbers + repr((self.P_k.shape, settings)).encode()).hexdigest()

    @property
    def _for_core(self) -> tuple[NDArray[np.float32], Any]:
        options = _core.IndexOptions(self.form, self.dtype, self.first, self.window)
        return np.vstack([x.reshape(-1, self.dim) for x in (self.P_q, self.P_k)]), options

    def _count(self, keys: int | None) -> int:
        return as_count(self.keys if keys is None else keys, "keys", self.window + self.first + 1)

    def _select(self, attention: Attention, count: int, threads: int | None) -> NDArray[np.int32]:
        require_memory(4 * attention.n * count, f"a result with keys={count}")
        return _core.select_keys(attention.core, *self._for_core, count, thread_count(threads))

    def _passage(self, Q: Any, K: Any, options: dict[str, Any], place: int = 0) -> Attention:
        """Return a passage in float32, with positions applied; warn where it is too long."""
        default = {"scale": self.scale} if attention_in(Q) is None else {}
        given = of_one_group(Attention.of(Q, K, **{**default, **options}), place)
        own = math.prod(given.lead), given.dim, math.prod(given.stored[1].shape[:-2])
        wanted = (*self.P_q.shape[:2], math.prod(self.P_k.shape[:-2]))
        if own != wanted:
            named = "{} heads of size {}, and K {}".format
            raise InputError(f"Q must have {named(*wanted)}; got {named(*own)}")
        check_same(given, self.position, self.scale, f" in passage {place}")
        warn_beyond(given.m, self.length if self.position else None)
        return rotated_float32(given, place)

    def _facts(self) -> dict[str, str]:
        size = " x ".join(map(str, self.P_k.shape[:-1]))
        return {
            "index": f"size {size} -> {self.dim}, {self.dtype}, form {self.form!r}: "
            f"{self.bytes:g} bytes per key" + ", NOT the mass asked for" * (not self.reached),
            "keys": f"{self.keys} a row, the last {self.window} and the first {self.first} always",
            **{name: of.sentence for name, of in {"finds": self.quality, **self.others}.items()},
            "time": f"{self.seconds:.3g} s",
        }
