"""Compressing heads: maps of queries and keys that make them smaller for every input."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, overload

import numpy as np

from headfit._attention.attention import HeadLike
from headfit._attention.logits import LogitKeywords, LogitOptions, names_logit_options
from headfit._base.arguments import as_count, check_between
from headfit._base.calls import standard_arithmetic
from headfit._base.types import ArrayLike, Seed
from headfit._compress.maps import Closeness
from headfit._compress.passages import Passages, checked_shares, of_each
from headfit._compress.result import Compressed, CompressedHeads
from headfit._compress.sizes import Sizes
from headfit._shrink.descent import TV, Callback, Running, SizeKeywords, checked_sizes
from headfit._shrink.result import TvCurve
from headfit.errors import InputError


class _Options(LogitKeywords, SizeKeywords, total=False):
    """The options of `compress`, for type checkers."""

    total: int | None
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
    total: int | None = None,
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
        the smallest size found that keeps it. 0.05 where none of `dim`, `tv` and `total` is given.
    total : int, optional
        The number of dimensions of several heads together. Heads get them where they lower total
        variation most.
    held_out : float in (0, 1), default 0.25
        The share of the passages that judge the result; at least one passage.
    validation : float in [0, 1), default 0.25
        The share of the others that choose: the size for `tv`, how long to descend, and whether
        a closed form is better. With 0, or of a single passage, the fitted ones choose.
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
        of two up to D for one head, and none for several. With `total` the sizes that heads may
        have, multiples of an eighth of D when None.
    time_limit : float, optional
        Seconds, of all heads; checked after every step of a descent, and before a size is fitted.
    callback : callable, optional
        Called before every step of a descent with (step, mean KL); returning False ends it.
    rng : seed or Generator, default 0
        Which passages are held out, and which choose: the same for heads with as many passages.
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
        For arguments that do not fit, or a `total` of fewer dimensions than the heads must have,
        before any work starts. Errors of one head of several name it.

    See Also
    --------
    shrink : for one passage.

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
    Rotary positions are applied first, so the cache holds rotated keys; maps do not fold into W_Q
    and W_K then, and know only the positions of the passages. To store keys in fewer bytes,
    `compress_keys` acts before them.

    Several heads are fitted one after the other, each by all threads. With `total`, every head is
    fitted at all of `curve_dims`, and dimensions are given out greedily over the convex hulls of
    the curves. A step costs O(n m (D + d)) time for each passage; few entries in a sparse mask take
    the place of n m. Memory is that of the passages, twice.

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

    Several heads with one budget:

    >>> def passages(falls):
    ...     mix = rng.normal(size=(2, 8, 8)) * falls ** -np.arange(8) * 3
    ...     return [rng.normal(size=(30, 8)) @ mix for _ in range(8)]
    >>> found = hf.compress({"easy": passages(3.0), "hard": passages(1.2)}, total=8)
    >>> found.total, found.dims["easy"] < found.dims["hard"]
    (8, True)
    """
    begun = time.perf_counter()
    sizes_by = {"dim": dim, "tv": tv, "total": total}
    first, *more = [name for name, value in sizes_by.items() if value is not None] or ["tv"]
    if more:
        raise InputError(f"{more[0]} must not be given beside {first}: the size decides how close")
    several = isinstance(passages, Mapping)
    if total is not None and not several:
        raise InputError("total must be given beside a mapping of heads: these are passages of one")
    if K is not None and several:
        raise InputError("K must not be given beside a mapping of heads, which have their own")
    bound = check_between(TV if tv is None else tv, "tv", 0, 1) if first == "tv" else None
    shares = checked_shares(held_out, validation)
    running = Running.of(dtype, effort, time_limit, callback, rng, num_threads)
    of_heads = LogitOptions(**options)

    def checked(own: Any) -> Sizes:
        head = Sizes(Passages.of(own, K, of_heads), shares, running)
        head.dims = head.curve_sizes(curve_dims, several, total is not None)
        head.dim = min(head.dims) if total is not None else 0
        if dim is not None:
            (head.dim,) = checked_sizes([dim], "dim", head.passages.dim)
        return head

    heads = of_each(passages, "head", checked, str)
    if total is not None:
        total = as_count(total, "total", sum(head.dim for head in heads.values()))
    for head in heads.values():
        head.search(bound)
    curve = None
    if total is not None:
        judged = {name: {d: size.judged for d, size in head.tried.items()}
                  for name, head in heads.items()}  # fmt: skip
        chosen, curve = shared_out(judged, total)
        for name, head in heads.items():
            head.dim, head.stopped = chosen[name], "the budget"
    results = {name: head.result(bound) for name, head in heads.items()}
    if not several:
        return results[None]
    return CompressedHeads(results, curve, time.perf_counter() - begun)


def shared_out(
    curves: Mapping[Any, Mapping[int, Closeness]], total: float
) -> tuple[dict[Any, int], TvCurve]:
    """Return a size for each head with at most `total` dimensions, and the path to all of them.

    Every head begins at its least size; the step that lowers total variation most for each
    dimension it takes is made next, over any number of sizes of one head. So a head is always at
    a corner of the convex hull of its curve, and no other sizes with as many dimensions as a
    point of the path have less total variation. Steps that do not fit `total` any more are left
    out for good.
    """
    sizes = {name: min(curve) for name, curve in curves.items()}
    path, chosen = [dict(sizes)], dict(sizes)
    while True:
        steps = [
            ((curve[sizes[name]].tv_mean - curve[dim].tv_mean) / (dim - sizes[name]),
             -place, -dim, name)
            for place, (name, curve) in enumerate(curves.items())
            for dim in curve
            if dim > sizes[name] and curve[dim].tv_mean < curve[sizes[name]].tv_mean
        ]  # fmt: skip
        if not steps:
            break
        _, _, dim, name = max(steps, key=lambda step: step[:3])
        left = total - sum(chosen.values())
        if chosen[name] == sizes[name] and -dim - sizes[name] <= left:
            chosen[name] = -dim
        sizes[name] = -dim
        path.append(dict(sizes))
    return chosen, TvCurve.of({sum(s.values()): _of_all(curves, s) for s in path})


def _of_all(curves: Mapping[Any, Mapping[int, Closeness]], sizes: Mapping[Any, int]) -> Closeness:
    """Return the means over heads, and the largest total variation of any row."""
    each = [curves[name][dim] for name, dim in sizes.items()]
    means = Closeness(*np.mean(each, axis=0).tolist())
    return means._replace(tv_worst=max(closeness.tv_worst for closeness in each))
