"""Compressing a head: maps of queries and keys that make it smaller for every input."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headfit._attention.attention import HeadLike
from headfit._attention.logits import LogitOptions
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_array, as_count, check_between
from headfit._base.types import ArrayLike, MaskLike, PositionLike, Seed
from headfit._compress.arguments import Request
from headfit._compress.finish import compressed
from headfit._compress.passages import Passages
from headfit._compress.result import Compressed
from headfit.errors import InputError

__all__ = ["compress"]

# The mean total variation that is allowed where nothing is asked.
TV = 0.05


@standard_arithmetic()
def compress(
    passages: Sequence[HeadLike | tuple[ArrayLike, ArrayLike]] | ArrayLike,
    K: ArrayLike | None = None,
    *,
    dim: int | None = None,
    tv: float | None = None,
    held_out: float = 0.25,
    validation: float = 0.25,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    commute: bool | PositionLike = False,
    dtype: str = "float32",
    effort: str | int = "medium",
    curve_dims: Sequence[int] | None = None,
    time_limit: float | None = None,
    callback: Callable[[int, float], Any] | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Compressed:
    """Find maps that make a head smaller for every input.

    `shrink` finds queries and keys for one passage. A deployed head meets others: `compress` finds
    maps P_q and P_k, of shape (D, d), such that the attention of ``Q @ P_q`` and ``K @ P_k`` stays
    close to that of Q and K in passages that it has not seen. Some passages are held out to judge
    that, and read once, at the end.

    Parameters
    ----------
    passages : sequence of (Q, K) or of Attention, or array_like, shape (passages, n, D)
        Queries and keys of one head in at least two passages, which may differ in length. Query
        heads that share keys have queries of shape (heads, n, D): each gets a P_q of its own. An
        array has the queries of all passages, with K beside it.
    K : array_like, shape (passages, m, D), optional
    dim : int, optional
        The size d to fit.
    tv : float in (0, 1), optional
        The mean total variation that rows may have from the original, on the validation passages:
        the smallest size found that keeps it. 0.05 where neither `dim` nor `tv` is given.
    held_out : float in (0, 1), default 0.25
        The share of the passages that judge the result; at least one passage.
    validation : float in [0, 1), default 0.25
        The share of the others that choose: the size for `tv`, how long to descend, and whether
        a closed form is better. With 0, or of a single passage, the fitted ones choose.
    scale, mask, key_lengths, bias, softcap, position, key_mask, sinks : optional
        Of the original head, as in `attention_matrix`, for passages that are not an `Attention`.
        `mask` and `bias` with three axes and as many entries as passages are divided among them,
        and so are a `key_mask` of two axes (that of a tokenizer) and a vector of `key_lengths`.
        What a sink takes counts as the weight of one more key, whose logit maps do not change.
    commute : bool or rotary position, default False
        Whether maps must commute with the rotary positions of the passages, so that they may act
        before these: then ``W_Q @ P_q`` and ``W_K @ P_k`` are the weights of the smaller head,
        whose rotary positions have some of the frequencies; see the notes. Sizes are even. For
        queries and keys that have been rotated, such as those of `headfit.torch.capture`, the
        position that did so: "rope-half", ("rope-half", inv_freq), ...
    dtype : "float32", "float64", "bfloat16" or "float16"
        Of the maps and of mapped queries and keys. What is reported is about the stored numbers.
    effort : "low", "medium", "high" or int, default "medium"
        As in `shrink`; with 0, the closed forms alone.
    curve_dims : sequence of int, optional
        Sizes for the curves, besides those that are fitted anyway. Powers of two up to D when
        None; () for none.
    time_limit : float, optional
        Seconds; checked after every step of a descent, and before a size is fitted.
    callback : callable, optional
        Called before every step of a descent with (step, mean KL); returning False ends it.
    rng : seed or Generator, default 0
        Which passages are held out, and which choose.
    num_threads : int, optional
        The result does not depend on it, as long as no time limit ends the search.

    Returns
    -------
    Compressed
        ``result.apply(Q, K)`` is the smaller head in a passage.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts.

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
    Rotary positions are applied first, so the cache holds rotated keys; such maps do not fold into
    W_Q and W_K. With `commute` they do: rotary positions turn pairs of entries, each at its own
    frequency, and what commutes with that keeps some of the pairs, times a complex number each.
    So the keys of the smaller head are some pairs of the keys, and P_q has d unknowns for each
    query head. Which pairs: the ones that are left when the cheapest is left out again and again,
    in a quadratic model of the loss (Hassibi and Stork 1993), and then exchanges that lower the
    divergence. For chosen pairs it is convex in the unknowns, without a soft-cap.

    A step costs O(n m (D + d)) time for each passage. Memory is that of the passages, twice.

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

    Maps that fold into the weights of a head with rotary positions:

    >>> early = hf.compress(passages, dim=8, position="rope", commute=True, curve_dims=())
    >>> early.position[0], len(early.position[1]), early.pairs.size
    ('rope', 4, 4)
    >>> small = early.apply(Q, K, position="rope")
    >>> small.Q.shape, small.position == early.position
    ((40, 8), True)
    """
    start = time.perf_counter()
    if dim is not None and tv is not None:
        raise InputError("tv must not be given beside dim: the size decides how close")
    request = Request.of(
        LogitOptions(scale, mask, key_lengths, bias, softcap, position, key_mask, sinks),
        held_out=held_out,
        validation=validation,
        commute=commute,
        dtype=dtype,
        effort=effort,
        time_limit=time_limit,
        callback=callback,
        rng=rng,
        num_threads=num_threads,
    )
    asked = None
    if dim is None:
        asked = TV if tv is None else check_between(tv, "tv", 0, 1)
    whole = Passages.of(passages, K, request.options)
    step = 1 if request.positions(whole) is None else 2
    if dim is not None:
        dim = _size(dim, "dim", whole.dim, step)
    more = _curve_sizes(curve_dims, whole.dim, step)
    parts = request.parts(whole)
    sizes = request.sizes(whole, parts)
    stopped = "one size"
    if asked is not None:
        dim, stopped = sizes.smallest(asked)
    assert dim is not None
    for size in sorted({*more, dim}):  # larger sizes start from smaller ones
        if size == dim or sizes.seconds_left > 0:
            sizes.fit(size)
    return compressed(
        whole,
        parts,
        sizes.found,
        dim,
        request,
        asked=asked,
        stopped=stopped,
        begun=start,
    )


def _curve_sizes(curve_dims: Any, largest: int, step: int) -> list[int]:
    if curve_dims is None:
        powers = {2**e for e in range(largest.bit_length())}
        return sorted({dim for dim in powers if dim >= step} | {largest})
    asked = np.atleast_1d(as_array(curve_dims, "curve_dims"))
    return [_size(d, "curve_dims", largest, step) for d in asked.tolist()]


def _size(value: Any, name: str, largest: int, step: int) -> int:
    size = as_count(value, name, 1, largest)
    if size % step:
        raise InputError(f"{name} must be even for maps that commute with rotations; got {size}")
    return size
