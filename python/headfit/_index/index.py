"""The smallest head that finds the keys a trained head attends to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headfit import _core
from headfit._base.arguments import as_choice, as_count, check_between, shown
from headfit._base.calls import standard_arithmetic
from headfit._base.types import PositionLike, Seed
from headfit._compress.maps import split, warn_caller
from headfit._compress.passages import checked_shares, given_alone, of_each
from headfit._fit.learned import effort_steps
from headfit._index.group import Group, of_one_group
from headfit._index.indexes import Indexes
from headfit._index.quality import DTYPES, IndexCurve
from headfit._index.quest import judge_pages
from headfit._index.result import Index
from headfit._selection.certify_selection import FORMS
from headfit._shrink.descent import Running, checked_sizes
from headfit.errors import InputError

EFFORTS = {"low": 100, "medium": 250, "high": 1000}
ROWS = 64  # of one passage in every step
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@standard_arithmetic()
def index(
    passages: Any,
    *,
    dim: int | None = None,
    mass: float | None = None,
    keys: int = 64,
    window: int = 32,
    first: int = 4,
    dtype: str = "float8_e4m3fn",
    form: str = "sum",
    rotated: PositionLike = None,
    length: int | None = None,
    held_out: float = 0.25,
    validation: float = 0.25,
    effort: str | int = "medium",
    curve_dims: Sequence[int] = (),
    curve_keys: Sequence[int] | None = None,
    curve_dtypes: Sequence[str] | None = None,
    callback: Callable[[Any, float], Any] | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Index | Indexes:
    """Find a few numbers of each key by which the keys are found that a head attends to.

    Sparse attention scores all keys with a small head, and attends to the best in full. This finds
    the small head for a trained one, or for all of a layer: a map P_k of the keys, and P_q of the
    queries of each head, of shape (D, d). Some passages are held out to judge what it finds.

    Parameters
    ----------
    passages : sequence of (Q, K) or of Attention, or mapping
        Queries and keys of one key head in some passages: Q of shape (n, D), or (heads, n, D) for
        query heads that share K, of shape (m, D). With K of shape (key heads, m, D) they are of a
        layer, whose heads get one index. Or a mapping with such passages by any names:
        ``heads.passages()`` of a capture for its key heads, ``heads.layer_passages()`` for its
        layers. Masks and sinks are those of each `Attention`.
    dim : int, optional
        The numbers d of a key: 16, or all of a smaller one, without `dim` and `mass`.
    mass : float in (0, 1), optional
        In place of `dim`: the smallest of some sizes with which the keys found have this share of
        the attention that the best keys have, in the mean over rows of the passages that choose. A
        warning tells where not even the largest has.
    keys : int, default 64
        How many keys a row attends to, with those that are kept anyway. Only the choice of a size
        and what is reported depend on it.
    window : int, default 32
        Every row attends to this many tokens up to its own anyway.
    first : int, default 4
        Every row attends to this many of the first keys that it sees anyway.
    dtype : str
        In which mapped queries and keys are stored: "float32", "float16", "bfloat16",
        "float8_e4m3fn", "int8" or "int4". The last three have a scale for each key, in bfloat16;
        with "-unscaled" behind the name none, which float8 hardly needs, and whole numbers do where
        some keys are far larger than the others.
    form : "sum" or "dot", default "sum"
        The score of a key: the logarithm of the sum over query heads of the softmax of
        ``Q[h] @ P_q[h] @ (K @ P_k).T`` over visible keys; or the sum over query heads of these
        products, which is one product of a query with a key. With several key heads, K @ P_k stands
        for the sum of all K[g] @ P_k[g].
    rotated : rotary position, optional
        The position by which queries and keys have been rotated already, as those that
        `headfit.torch.capture` reads: ("rope-half", inv_freq), ... Passages with a `position` of
        their own need none. With either, passages are moved in the fit.
    length : int, optional
        With rotary positions, the number of tokens for which the index is meant: passages are moved
        so far that the last one is at this position. Twice that of the longest passage when None.
    held_out, validation : float, default 0.25
        The shares of the passages that judge the result, and of the others that choose among the
        steps of the descent; as in `compress`. A single passage does all three.
    effort : "low", "medium", "high" or int, default "medium"
        The steps of the descent: 100, 250 or 1000. 0 takes the closed form.
    curve_dims : sequence of int, optional
        Sizes that are fitted besides, for ``result.curve``: what each finds in the passages that
        judge.
    curve_keys, curve_dtypes : sequence of int and of str, optional
        For how many keys the curve is judged, and in which dtypes each of its sizes is fitted;
        `keys` and `dtype` alone when None.
    callback : callable, optional
        Called after each fit with the name of its passages and the loss on those that choose.
        What it returns is not used.
    rng : seed or Generator, default 0
        For the division of the passages, and the rows and moves of each step.
    num_threads : int, optional
        Key heads are fitted side by side. The result does not depend on it.

    Returns
    -------
    Index or Indexes
        ``result.select(Q, K)`` are the keys of each row. For a mapping, a result with an `Index`
        for each name.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, before any work starts; those of a key head name it. In the
        fit, for passages that are fitted to, or that choose, without a key to find, or for `mass`
        without a row to judge.

    See Also
    --------
    compress : smaller heads that reproduce the attention itself, which takes more.
    compress_keys : the whole keys in few bytes.
    spend : of several calls, the size and dtype of each head with which all miss least.

    Notes
    -----
    The start is KQ-SVD (arXiv 2512.05916) of the group with keys centred within their passage. With
    p the mean attention of the query heads, s the scores and F the keys of a row that are not kept
    anyway, Adam descends the cross-entropy -sum_F p log softmax_F(s) of a few rows of one passage
    per step, summed and divided by the sum of p, with the rounding inside. The number of keys does
    not enter. Maps act after the rotation, so that they know only the angles that they have seen:
    every step moves its passage by a random number of tokens, and the moments of the start are
    averaged over such moves. Queries and keys move together: passages should be as long as the
    texts that the index is for, since keys further away than any of theirs are not fitted.

    A step costs O(rows m heads D) time, whatever the mask leaves within the range of a row. The
    start costs O(heads D W^2) time, with W the numbers of a key, of all its heads.
    Memory is that of the passages, and O(heads (n d + 64 m)) for each thread.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> mix = rng.normal(size=(2, 16, 16)) * 1.5 ** -np.arange(16) * 2
    >>> passages = [hf.Attention(*(rng.normal(size=(150, 16)) @ mix), mask="causal")
    ...             for _ in range(8)]
    >>> found = hf.index(passages, dim=4, keys=24, window=8, first=2)
    >>> found.bytes, found.quality.share_mean > found.others["loki"].share_mean
    (6.0, True)
    >>> found.select(*passages[0].stored, mask="causal").shape
    (150, 24)
    """
    begun = time.perf_counter()
    if dim is not None and mass is not None:
        raise InputError("dim must not be given beside mass, which decides it")
    bound = None if mass is None else check_between(mass, "mass", 0, 1)
    window, first = as_count(window, "window", 1), as_count(first, "first", 0)
    least = window + first + 1
    keys = as_count(keys, "keys", least)
    dtype, form = as_choice(dtype, "dtype", tuple(DTYPES)), as_choice(form, "form", FORMS)
    shares = checked_shares(held_out, validation)
    run = Running.of(effort=effort, callback=callback, rng=rng, num_threads=num_threads)
    descent = _core.IndexDescent(steps := effort_steps(effort, EFFORTS, least=0), ROWS, run.seed)
    counts = checked_sizes(keys if curve_keys is None else curve_keys, "curve_keys", None, least)
    kinds = np.ravel(np.array(dtype if curve_dtypes is None else curve_dtypes, object)).tolist()
    dtypes = [as_choice(kind, "curve_dtypes", tuple(DTYPES)) for kind in kinds]
    dims = checked_sizes(curve_dims, "curve_dims", None)
    places = [(size, kind, count) for kind in dtypes for size in dims for count in counts]
    if not places and (dims or curve_keys is not None or curve_dtypes is not None):
        raise InputError("curve_dims, curve_keys and curve_dtypes must not be empty beside another")

    def checked(own: Any) -> Group:
        given = [of_one_group(a, i) for i, a in enumerate(given_alone(own))]
        group = Group.divided(given, rotated, length, shares, run.seed)
        if dim is not None:
            as_count(dim, "dim", 1, group.width)
        checked_sizes(curve_dims, "curve_dims", group.width)
        return group

    groups = of_each(passages, "passages of", checked)
    closed = {name: group.closed_forms(form) for name, group in groups.items()}
    called = {name: "passages" if name is None else f"passages of {shown(name)}" for name in groups}
    cores = {name: group.core(called[name]) for name, group in groups.items()}

    # The last size is tried where no smaller one suffices.
    sizes = (*SIZES, max(group.width for group in groups.values()))
    tried = [(x, dtype) for x in ((16 if dim is None else int(dim),) if bound is None else sizes)]
    found: dict[Any, Index] = {}
    curves: dict[Any, dict[tuple[int, str, int], Index]] = {name: {} for name in groups}
    for size, kind in dict.fromkeys([*tried, *(at[:2] for at in places)]):
        counted = [at[2] for at in places if at[:2] == (size, kind)]
        left = [name for name in groups if counted or name not in found]
        starts = [
            {way: groups[name].start(maps, size, kind, first) for way, maps in closed[name].items()}
            for name in left
        ]
        done = None if callback is None else lambda at, loss, n=left: callback(n[at], loss)
        fits = _core.fit_indexes(
            [cores[name] for name in left], [start["kq-svd"] for start in starts],
            _core.IndexOptions(form, kind, first, window), descent, done, run.threads,
        )  # fmt: skip
        for name, start, (maps, start_loss, loss, seconds) in zip(left, starts, fits, strict=True):
            group, of = groups[name], called[name]
            result = Index(
                *split(maps, group.heads, group.key_heads), form, kind, keys, window, first,
                group.length, group.position, scale=group.attentions[0].scale, **vars(group.parts),
                start_loss=start_loss, loss=loss, seconds=seconds,
            )  # fmt: skip
            fitted, judge = group.fitted[: group.parts.calibration.size], _core.judge_index
            free = (judge(x, *result._for_core, least - 1, run.threads)[1] for x in fitted)
            if steps and loss == start_loss and not any(x.any() for x in free):
                raise InputError(
                    f"{of} that are fitted see no key besides those of `first` and `window`"
                )
            for count in counted:
                own = replace(result, keys=count)
                curves[name][size, kind, count] = _judged(own, group, start, run.threads)
            if name in found:
                continue
            if bound is not None:
                quality = result.judge(group.part(group.parts.choosing), num_threads=run.threads)
                if not quality.rows:
                    raise InputError(f"{of}: mass needs rows that see more than {keys} keys")
                if quality.share_mean < bound:
                    if size < group.width:
                        continue
                    warn_caller(
                        f"{of}: mass={mass} is not reached: all {result.dim} numbers in {kind} "
                        f"reach {quality.share_mean:.9g}"
                    )
                    result = replace(result, reached=False)
            at = curves[name].get((size, kind, keys)) or _judged(result, group, start, run.threads)
            quest = judge_pages(group, keys, window, first, run.threads)
            found[name] = replace(at, reached=result.reached, others={**at.others, "quest": quest})
    for name, curve in curves.items():
        points = {at: {"finds": curve[at].quality, **curve[at].others} for at in places}
        found[name] = replace(found[name], curve=IndexCurve(points) if points else None)
    several = Indexes({name: found[name] for name in groups}, time.perf_counter() - begun)
    return several if isinstance(passages, Mapping) else found[None]


def _judged(result: Index, group: Group, starts: Mapping[str, Any], threads: int) -> Index:
    """Judge an index and the closed forms on the held-out passages, or on the only one."""
    passages = group.part(group.parts.judging)
    others = {
        name: replace(result, P_q=p_q, P_k=p_k).judge(passages, num_threads=threads)
        for name, maps in starts.items()
        for p_q, p_k in [split(maps, group.heads, group.key_heads)]
    }
    return replace(result, quality=result.judge(passages, num_threads=threads), others=others)
