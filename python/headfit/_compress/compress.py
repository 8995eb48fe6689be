"""Compressing heads: maps of queries and keys that make them smaller for every input."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import HeadLike
from headfit._attention.logits import LogitKeywords, LogitOptions, names_logit_options
from headfit._base.arguments import as_count, check_between
from headfit._base.arrays import round_to
from headfit._base.calls import standard_arithmetic
from headfit._base.types import ArrayLike, PositionLike, Seed
from headfit._compress.free_maps import FORMS, FreeMaps
from headfit._compress.maps import Closeness, Maps, StoredMaps, split
from headfit._compress.passages import Passages, attentions_of, checked_shares, of_each
from headfit._compress.result import Compressed, CompressedHeads
from headfit._shrink import descent
from headfit._shrink.descent import Callback, Running, SizeKeywords
from headfit._shrink.result import TvCurve
from headfit.errors import InputError

DESCENT, SMALLER = "descent", "size "


@dataclass(frozen=True)
class MapsOfSize:
    """The maps of one size."""

    descended: Maps  # of the least loss on the calibration passages: where larger sizes may start
    kl: float  # that loss
    maps: Maps  # the candidate of the least mean total variation where maps are chosen
    taken: str  # its name
    candidates: dict[str, Maps]  # closed forms, the descent, and what is taken at a smaller size
    judged: Closeness  # how close it is there
    report: dict[str, Any]


class Sizes:
    """Maps of one head, of every size looked at so far.

    Every head with as many passages is divided in the same way into those that maps are fitted to,
    those that choose, and those that judge.
    """

    def __init__(self, passages: Passages, running: Running) -> None:
        self.passages, self.parts, self.running = passages, passages.parts, running
        self.tried: dict[int, MapsOfSize] = {}
        self.dims: list[int] = []  # the sizes of the curves
        self.dim, self.stopped, self.seconds = 0, "one size", 0.0

    @cached_property
    def judge(self) -> _core.CompressLoss | None:
        """The mean divergence on the validation passages, where there are any."""
        return self._loss(self.parts.validation) if self.parts.validation.size else None

    @cached_property
    def family(self) -> FreeMaps:
        """Closed forms, and the descent from them, for the calibration passages."""
        return FreeMaps(self.passages, self._loss(self.parts.calibration))

    def _loss(self, places: NDArray[np.intp]) -> _core.CompressLoss:
        passages = [attention.core for attention in self.passages.part(places)]
        return _core.CompressLoss(passages, self.running.threads)

    def fit(self, dim: int) -> MapsOfSize:
        """Return the maps of a size.

        The calibration loss never rises with the size: where a smaller size that is fitted later
        does better, larger ones are descended again from it.
        """
        if dim not in self.tried:
            self.tried[dim] = self._fit(dim)
            for larger in sorted(d for d in self.tried if d > dim):
                if self.tried[larger].kl > self.tried[dim].kl:
                    self.tried[larger] = self._fit(larger)
        return self.tried[dim]

    def search(self, tv: float | None) -> None:
        """Find the smallest size that is close enough, and fit those of the curves.

        Without a bound the size is that of the call. It is fitted in any case, and others as long
        as there is time; larger ones start from smaller ones.
        """
        begun, largest = time.perf_counter(), self.passages.dim
        if tv is not None:
            size, _, self.stopped = descent.smallest_size(
                lambda dim: self.fit(dim).judged.tv_mean <= tv, largest, self.running
            )
            self.dim = size or largest
        for dim in sorted({*self.dims, self.dim}):
            if dim == self.dim or self.running.seconds_left > 0:
                self.fit(dim)
        self.seconds += time.perf_counter() - begun

    def _fit(self, dim: int) -> MapsOfSize:
        passages, family = self.passages, self.family
        closed = {name: form.maps(family.whole, dim) for name, form in family.forms.items()}
        if dim == passages.dim:  # these maps leave every logit as it is
            maps = np.vstack([*family.whole, np.eye(dim)])
            each, report = {**closed, DESCENT: maps}, {"status": "exact"}
            return MapsOfSize(maps, 0.0, maps, DESCENT, each, self._judged(maps), report)
        starts, smaller = dict(closed), dict[str, Maps]()
        if before := max((d for d in self.tried if d < dim), default=0):
            last = self.tried[before]
            starts |= family.extended(last.descended, dim)
            smaller[f"{SMALLER}{before}"] = np.pad(last.maps, ((0, 0), (0, dim - before)))
        loss, threads = family.loss, self.running.threads
        first = min(starts, key=lambda name: loss.value(starts[name], threads))
        limits = _core.DescentLimits(**self.running.limits())
        # The maps of the least loss, and of all steps those with the least loss of the judge.
        maps, chosen, kl, report = loss.fit(self.judge, starts[first], limits, threads)
        candidates = {**closed, DESCENT: family.nearest.balanced(chosen), **smaller}
        distances = {name: self._judged(maps) for name, maps in candidates.items()}
        taken = min(distances, key=lambda name: distances[name].tv_mean)
        report |= {"start": first, "kl": kl[[0, -1]].tolist()}
        best = candidates[taken], taken, candidates, distances[taken]
        return MapsOfSize(maps, float(kl[-1]), *best, report)

    def _judged(self, maps: Maps, places: NDArray[np.intp] | None = None) -> Closeness:
        """Return how close stored maps are in float64, by default on the passages that choose."""
        passages = self.passages.part(self.parts.choosing if places is None else places)
        smaller = map(self._stored(maps).smaller, passages)
        return Closeness.of(passages, smaller, self.running.threads)

    def _stored(self, maps: Maps) -> StoredMaps:
        dtype = self.running.dtype
        p_q, p_k = split(maps, self.passages.heads)
        p_q = p_q if self.passages.attentions[0].lead else p_q[0]
        return StoredMaps(round_to(p_q, dtype, "P_q"), round_to(p_k, dtype, "P_k"), dtype)

    def result(self, tv: float | None) -> Compressed:
        """Read the held-out passages, and return the maps with curves of all sizes."""
        begun, dim, parts, size = time.perf_counter(), self.dim, self.parts, self.tried[self.dim]
        curves: dict[str, dict[int, Closeness]] = {}
        for d, of_size in sorted(self.tried.items()):
            for name, maps in {**of_size.candidates, "taken": of_size.maps}.items():
                if not name.startswith(SMALLER):
                    curves.setdefault(name, {})[d] = self._judged(maps, parts.held_out)
        reports = {d: self.tried[d].report for d in sorted(self.tried)}
        return Compressed(
            **self._stored(size.maps)._asdict(),
            dim=dim,
            original_dim=self.passages.dim,
            original_scale=self.passages.attentions[0].scale,
            position=self.passages.position,
            length=self.passages.length,
            **curves["taken"][dim]._asdict(),
            calibration_kl=self._judged(size.maps, parts.calibration).kl,
            validation_kl=size.judged.kl if parts.validation.size else math.nan,
            taken=size.taken,
            reached=tv is None or size.judged.tv_mean <= tv,
            stopped=self.stopped,
            curves={name: TvCurve.of(curve) for name, curve in curves.items()},
            closed_forms={form: self._stored(size.candidates[form])[:2] for form in FORMS},
            **vars(parts),
            seconds=self.seconds + time.perf_counter() - begun,
            settings={"dim": dim, "tv": tv, "effort": self.running.effort, "descents": reports},
        )


class _Options(LogitKeywords, SizeKeywords, total=False):
    """The options of `compress`, for type checkers."""

    rotated: PositionLike
    length: int | None
    held_out: float
    validation: float


@overload
def compress(
    passages: Mapping[Any, Any], K: None = None, **options: Unpack[_Options]
) -> CompressedHeads: ...


@overload
def compress(
    passages: Sequence[HeadLike | tuple[ArrayLike, ArrayLike]] | ArrayLike,
    K: ArrayLike | None = None,
    **options: Unpack[_Options],
) -> Compressed: ...


@names_logit_options()
@standard_arithmetic()
def compress(
    passages: Any,
    K: ArrayLike | None = None,
    *,
    dim: int | None = None,
    tv: float | None = None,
    rotated: PositionLike = None,
    length: int | None = None,
    held_out: float = 0.25,
    validation: float = 0.25,
    dtype: str = "float32",
    effort: str | int = "medium",
    curve_dims: Sequence[int] | None = None,
    time_limit: float | None = None,
    callback: Callback | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> Compressed | CompressedHeads:
    """Find maps that make a head, or all heads of a model, smaller for every input.

    `shrink` finds queries and keys for one passage. A deployed head meets others: `compress` finds
    maps P_q and P_k, of shape (D, d), such that the attention of ``Q @ P_q`` and ``K @ P_k`` stays
    close to that of Q and K in passages that it has not seen. Some passages are held out to judge
    that, and read once, at the end.

    Parameters
    ----------
    passages : sequence of (Q, K) or of Attention, or array_like, shape (passages, n, D)
        Queries and keys of one head in at least two passages, which may differ in length. Query
        heads that share keys have queries of shape (heads, n, D): each gets a P_q of its own. An
        array has the queries of all passages, with K beside it. Or a mapping with such passages
        for each of several heads, by any names.
    K : array_like, shape (passages, m, D), optional
    dim : int, optional
        The size d to fit, one for all heads.
    tv : float in (0, 1), optional
        The mean total variation that rows may have from the original, on the validation passages:
        the smallest size found that keeps it. 0.05 where neither `dim` nor `tv` is given.
    rotated : rotary position, optional
        The position by which queries and keys have been rotated already, as those that
        `headfit.torch.capture` reads: ("rope-half", inv_freq), ...
    length : int, optional
        With rotary positions, up to which number of tokens the maps are meant: passages are moved
        as far, queries and keys alike, and longer ones warn. Twice the longest when None.
    held_out : float in (0, 1), default 0.25
        The share of the passages that judge the result; at least one passage. They are drawn at
        random: parts of one text, which share keys, do not judge each other.
    validation : float in [0, 1), default 0.25
        The share of the others that choose: the size for `tv`, how long to descend, and whether
        a closed form is better. With 0 the fitted ones choose.
    scale, mask, key_lengths, bias, softcap, position, key_mask, sinks : optional
        Of the original head, as in `Attention`, for passages that are not an `Attention`.
        `mask` and `bias` with three axes and as many entries as passages are divided among them,
        and so are a `key_mask` of two axes (that of a tokenizer) and a vector of `key_lengths`.
        What a sink takes counts as the weight of one more key, whose logit maps do not change.
    dtype : "float32", "float64", "bfloat16" or "float16"
        Of the maps and of mapped queries and keys. What is reported is about the stored numbers.
    effort : "low", "medium", "high" or int, default "medium"
        As in `shrink`; with 0, the closed forms alone.
    curve_dims : sequence of int, optional
        Sizes for the curves, besides those that are fitted anyway; () for none. When None, powers
        of two up to D for one head, and none for several.
    time_limit : float, optional
        Seconds, of all heads; checked after every step of a descent, and before a size is fitted.
    callback : callable, optional
        Called before every step of a descent with (step, mean KL), of a mapping with the name of
        the head before them; returning False ends the descent.
    rng : seed or Generator, default 0
        For the division of the passages, the same for heads with as many, and for their moves.
    num_threads : int, optional
        The result does not depend on it, as long as no time limit ends the search.

    Returns
    -------
    Compressed or CompressedHeads
        ``result.apply(Q, K)`` is the smaller head in a passage. For a mapping, a result with a
        `Compressed` for each head.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts. Those of one head of several name it.

    See Also
    --------
    shrink, spend : for one passage; one budget for several heads.

    Notes
    -----
    Starts are closed forms: KQ-SVD (arXiv 2512.05916), the same with keys centred within their
    passage, and with keys centred under the attention of each row. From the best of them, or from
    the next smaller size with more columns where that is better, the mean KL divergence over the
    rows of the calibration passages is descended: limited-memory BFGS around a Kronecker model
    of the Hessian. The descent keeps the step with the least KL divergence on the validation
    passages. Of it, the closed forms and smaller sizes the one with the least mean total variation
    on the validation passages is taken, so that on these the result is never worse than any.

    The soft-cap, the mask and the bias are those of the original: maps only replace the product.
    Rotary positions are applied first, so the cache holds rotated keys, and maps do not fold into
    W_Q and W_K. They know only the angles that they have seen: every passage is fitted, and judged,
    at four random positions up to `length`. To store keys in fewer bytes, `compress_keys` acts
    before them.

    The rows of a single passage of at least 8, with no mask but "causal", no bias and no missing
    keys, are cut into eight. Those held out see the same keys then: several passages say more.

    Several heads are fitted one after the other, each by all threads. A step costs O(n m (D + d))
    time for each passage wherever it stands; few entries in a sparse mask take the place of n m.
    Memory is that of the passages, twice, and six times where they are moved.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> mix = rng.normal(size=(2, 16, 16)) * 2.0 ** -np.arange(16) * 6
    >>> passages = [rng.normal(size=(40, 16)) @ mix for _ in range(12)]
    >>> small = hf.compress(passages, dim=4, mask="causal", curve_dims=())
    >>> small.P_q.shape, small.P_k.shape, small.tv_mean < 0.1
    ((16, 4), (16, 4), True)
    >>> Q, K = passages[0]
    >>> small.apply(Q, K, mask="causal").matrix().shape
    (40, 40)
    """
    begun = time.perf_counter()
    if dim is not None and tv is not None:
        raise InputError("tv must not be given beside dim: the size decides how close")
    several = isinstance(passages, Mapping)
    if K is not None and several:
        raise InputError("K must not be given beside a mapping of heads, which have their own")
    bound = None if dim is not None else check_between(descent.TV if tv is None else tv, "tv", 0, 1)
    shares = checked_shares(held_out, validation)
    running = Running.of(dtype, effort, time_limit, callback, rng, num_threads)
    of_heads = LogitOptions(**options)

    def checked(own: Any) -> Sizes:
        given = attentions_of(own, K, of_heads)
        head = Sizes(Passages.of(given, rotated, length, shares, running.seed), running)
        head.dims = descent.curve_sizes(curve_dims, head.passages.dim, has_usual=not several)
        if dim is not None:
            head.dim = as_count(dim, "dim", 1, head.passages.dim)
        return head

    heads = of_each(passages, "head", checked, str)
    for name, head in heads.items():
        if several and callback:
            head.running = replace(running, callback=partial(callback, name))
        head.search(bound)
    results = {name: head.result(bound) for name, head in heads.items()}
    return CompressedHeads(results, time.perf_counter() - begun) if several else results[None]
