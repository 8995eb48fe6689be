"""Shrinking: a smaller head whose attention stays close to that of a larger one, or to a matrix."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Unpack, overload

from headfit._attention.attention import Attention, HeadLike, OneHead, attention_in
from headfit._attention.heads import over_heads
from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention
from headfit._base.arguments import as_count, check_between
from headfit._base.arrays import check_dtype
from headfit._base.calls import standard_arithmetic
from headfit._base.types import ArrayLike, MaskLike, Seed
from headfit._fit.head import Head, check_module, placed
from headfit._shrink import descent
from headfit._shrink.descent import Callback, SizeKeywords
from headfit._shrink.result import Comparison, ShrinkResult, TvCurve, compare
from headfit.errors import InputError, input_errors


class _Options(SizeKeywords, total=False):
    tv_worst: float | None
    scale: float | None
    mask: MaskLike
    module: SelfAttention | None


@overload
def shrink(Q: OneHead, K: ArrayLike | None = None, **options: Unpack[_Options]) -> ShrinkResult: ...


@overload
def shrink(Q: HeadLike, K: ArrayLike | None = None, **options: Unpack[_Options]) -> Any: ...


@standard_arithmetic()
def shrink(
    Q: HeadLike,
    K: ArrayLike | None = None,
    *,
    dim: int | None = None,
    tv: float | None = None,
    tv_worst: float | None = None,
    scale: float | None = None,
    mask: MaskLike = None,
    module: SelfAttention | None = None,
    dtype: str = "float32",
    effort: str | int = "medium",
    curve_dims: Sequence[int] | None = None,
    time_limit: float | None = None,
    callback: Callback | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Any:
    """Find a smaller head whose attention stays close to that of this one, for this input.

    New queries and keys are found for the passage that Q and K come from, and say nothing about
    other inputs; `compress` finds maps that make the head smaller for every input. No sparsity is
    assumed, and nothing is proved: ``fit(sparsify(Q, K, per_row=8))`` keeps the heaviest entries
    of every row instead, with a certificate.

    Parameters
    ----------
    Q, K : array_like, shape (..., n, D) and (..., m, D)
        One head, or heads with leading axes as in `Attention`, each of which is shrunk by
        itself. Or Q an `Attention` or a result with one. Or Q a dense matrix of attention, of shape
        (n, m) with rows that sum to 1, and no K.
    dim : int, optional
        The size to fit, without a search; then `tv` and `tv_worst` must not be given.
    tv : float in (0, 1), optional
        The total variation from the original, half the sum of |difference|, that rows may have
        on average; 0.05 when none of `dim`, `tv` and `tv_worst` is given.
    tv_worst : float in (0, 1), optional
        The total variation that any row may have.
    scale : float, optional
        The scale of the logits of Q and K; 1 / sqrt(D) when None. The new head has 1 / sqrt(dim).
    mask : optional
        As in `Attention`; for a matrix, where its rows may attend.
    module : SelfAttention, optional
        The fixed module whose input is sought; its size and scale hold.
    dtype : "float32", "float64", "bfloat16" or "float16"
        The dtype of the new head; what is reported is about the stored numbers.
    effort : "low", "medium", "high" or int, default "medium"
        How long to descend at each size: at most 100, 500 or 5000 steps, or as many as given. With
        0 the truncated SVD of the row-centred logits is the head, of every size.
    curve_dims : sequence of int, optional
        Sizes for both curves, besides those that the search tries: fitted with low effort, if the
        time allows, and left out where `dtype` does not hold a head. Powers of two up to
        min(n, m, D), and that, when None; none for a matrix; () for none.
    time_limit : float, optional
        The time limit in seconds, for each head.
    callback : callable, optional
        Called before every step of a descent with (step, mean KL); returning False ends it.
    rng : seed or Generator, default 0
    num_threads : int, optional
        The result does not depend on it, as long as no time limit ends the search.

    Returns
    -------
    ShrinkResult, or ndarray of them
        The head, whose ``shrunk`` tells whether it is a smaller one within the bounds. For a stack
        of heads, an array of objects in the shape of the leading axes, with what single calls in
        this order return for each head.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts.
    TargetError
        When a matrix has negative entries, rows that do not sum to 1, or mass where its mask
        forbids attention; it names row and column.

    See Also
    --------
    compress : for every input, from several passages.
    compare : how far one attention is from another.

    Notes
    -----
    Sizes 1, 2, 4, ... are fitted until one is close enough, then bisected. At each, the mean KL
    divergence of the rows is descended from the truncated SVD of the row-centred logits (Eckart and
    Young 1936; of a matrix, of its logarithm), and once more from a smaller head where that is
    closer. The SVD itself is kept where it is closer still, and so is a smaller head. Among the
    sizes tried total variation does not rise with the size, up to rounding; that no smaller size
    would do is not proved. A step costs O(n m (d + D)), and memory is O((n + m) (d**2 + D)). Few
    entries in a sparse mask take the place of n m.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> Q, K = rng.normal(size=(2, 60, 16)) * 2.0 ** -np.arange(16) * 8
    >>> small = hf.shrink(Q, K, mask="causal", tv=0.05, curve_dims=())
    >>> small.shrunk, small.tv_mean <= 0.05, small.dim < 8
    (True, True, True)

    A dense matrix, and the truncated SVD of its logits:

    >>> A = hf.attention_matrix(Q, K)
    >>> fitted, svd = (hf.shrink(A, dim=2, effort=e) for e in ("low", 0))
    >>> fitted.tv_mean < 0.5 * svd.tv_mean
    True
    """
    size = None if dim is None else as_count(dim, "dim", 1)
    check_module(module, size, check_dtype(dtype), None)
    size = module.dim if module is not None else size
    for name, value in {"tv": tv, "tv_worst": tv_worst}.items():
        if value is not None and size is not None:
            raise InputError(
                f"{name} must not be given beside dim or module: the size decides how close"
            )
    tv = descent.TV if tv is None and tv_worst is None else tv
    most, worst = (math.inf if x is None else check_between(x, name, 0, 1)
                   for x, name in ((tv, "tv"), (tv_worst, "tv_worst")))  # fmt: skip

    def one(head: Any, num_threads: int | None) -> ShrinkResult:
        start = time.perf_counter()
        running = descent.Running.of(dtype, effort, time_limit, callback, rng, num_threads)
        kinds = () if isinstance(head, Attention) else (InputError,)
        with input_errors("Q without K is a matrix of attention", *kinds):
            original = descent.Original.of(head, mask, running.threads)
        if size is not None:
            as_count(size, "dim" if module is None else "module.dim", 1, min(original.shape))
        search = Search(original, running, module, most, worst)
        is_head = isinstance(original.target, Attention)
        more = descent.curve_sizes(curve_dims, original.largest, is_head)
        if size is None:
            chosen, stopped = search.smallest()
        else:
            chosen, stopped = size, "one size"
            search.fit(size, descent.EXACT)
        if chosen not in search.tried:
            raise InputError(f"dtype must hold a head of size {chosen}; {dtype!r} does not")
        search.extend(more)
        made, comparison, best = search.tried[chosen]
        return ShrinkResult(
            **made,
            original_dim=original.dim,
            comparison=comparison,
            curve=TvCurve.of({d: c.comparison for d, c in search.tried.items()}),
            baseline=TvCurve.of({d: c.comparison for d, of in search.svds.items() for c in of}),
            reached=size is not None or search.is_close(comparison),
            stopped=stopped,
            seconds=time.perf_counter() - start,
            settings={"effort": effort, "descent": best.settings.get("descent")},
        )

    if K is None and attention_in(Q) is None:
        if scale is not None:
            raise InputError("scale must be given beside Q and K: a matrix of attention has none")
        return one(Q, num_threads)
    attention = Attention.of(Q, K, scale=scale, mask=mask)
    if attention.lead:
        return over_heads(attention, one, num_threads, one_at_a_time=True)
    return one(attention, num_threads)


# A descent may end where total variation is this many times below its bound.
FAR = 10.0


class Candidate(NamedTuple):
    """A head of some size as it is stored, and how far it is from the original."""

    fields: dict[str, Any]  # those of a `FittedHead`
    comparison: Comparison
    head: Head


@dataclass
class Search:
    """Smaller heads of one attention: the closest of each size that was tried, so far."""

    original: descent.Original
    running: descent.Running
    module: SelfAttention | None
    tv: float  # bounds on total variation, infinite where there is none
    tv_worst: float
    tried: dict[int, Candidate] = field(default_factory=dict)
    svds: dict[int, list[Candidate]] = field(default_factory=dict)

    @property
    def enough(self) -> float:
        """The mean KL divergence at which total variation is surely far below its bound."""
        if math.isinf(self.tv) or math.isfinite(self.tv_worst):
            return descent.EXACT
        return max(descent.EXACT, 2 * (self.tv / FAR) ** 2)

    def is_close(self, comparison: Comparison) -> bool:
        """Whether a head is within the bounds."""
        return comparison.tv_mean <= self.tv and comparison.tv_worst <= self.tv_worst

    def svd(self, dim: int) -> list[Candidate]:
        """Return the truncated SVD of a size, stored and judged as every other head is."""
        if dim not in self.svds:
            self.svds[dim] = self._judged(Head(*self.original.svd(dim, self.running.seed)))
        return self.svds[dim]

    def _judged(self, head: Head) -> list[Candidate]:
        """Return a head as it is stored; nothing where the dtype does not hold its numbers."""
        dtype, mask = self.running.dtype, self.original.mask
        module = self.module if self.module and self.module.dim == head.dim else None
        scale = check_scale(None, head.dim) if module is None else module.scale
        try:
            Q, K = head.stored(scale, dtype)
        except InputError:
            return []
        attention, made = placed(Q, K, scale=scale, dtype=dtype, mask=mask, module=module)
        distances = compare(self.original.target, attention, num_threads=self.running.threads)
        return [Candidate(made, distances, head)]

    def fit(self, dim: int, enough: float, running: descent.Running | None = None) -> None:
        """Keep the closest head of a size, by descents from its SVD and from a smaller head.

        The second descent is made where the smaller head is closer, since more columns must not
        do worse. KL divergence and total variation may disagree, and a descent ends where it is
        close enough, so the SVD and the smaller head themselves are kept where they are closer in
        total variation.
        """
        running = running or self.running
        if dim in self.tried:
            return
        if self.original.is_svd(dim) or running.effort == 0:
            self.tried.update((dim, head) for head in self.svd(dim))
            return
        closest = partial(descent.closest, self.original, dim, running, enough=enough)
        heads = [*self._judged(closest()), *self.svd(dim)]
        smaller = max((d for d in self.tried if d < dim), default=0)
        before = self.tried.get(smaller)
        if before and all(before.comparison.kl_mean < x.comparison.kl_mean for x in heads[:1]):
            fields = before.fields
            heads += self._judged(closest(start=(fields["Q"] * fields["scale"], fields["K"])))
        if heads:
            self.tried[dim] = min(heads, key=self._distance)
            if before:
                self._not_worse(dim, smaller)

    def _not_worse(self, dim: int, smaller: int) -> None:
        """Replace a head by a smaller one with zero columns if that is closer."""
        head, before = self.tried[dim], self.tried[smaller]
        if self._distance(before) < self._distance(head):
            padded = self._judged(before.head.padded(dim))
            self.tried[dim] = min([head, *padded], key=self._distance)

    def _distance(self, head: Candidate) -> tuple[bool, float]:
        return not self.is_close(head.comparison), head.comparison.tv_mean

    def smallest(self) -> tuple[int, str]:
        """Return the smallest size that is close enough, and why the search ended.

        Where there is no time for one, it is the size of the original, if that is an SVD away.
        """
        largest = self.original.largest

        def holds(dim: int) -> bool:
            self.fit(dim, self.enough)
            return dim in self.tried and self.is_close(self.tried[dim].comparison)

        size, last, stopped = descent.smallest_size(holds, largest, self.running)
        if size is None:
            size = largest if self.original.is_svd(largest) else last
            self.fit(size, descent.EXACT)
        return size, stopped

    def extend(self, dims: Iterable[int]) -> None:
        """Try further sizes with low effort, after which no size is worse than a smaller one."""
        quick = replace(self.running, effort=0 if self.running.effort == 0 else "low")
        for dim in sorted(dims):
            if self.running.seconds_left > 0:
                self.fit(dim, self.enough, running=quick)
        for smaller, dim in itertools.pairwise(sorted(self.tried)):
            self._not_worse(dim, smaller)
