"""Single heads: those of a stack, and one (or a dense matrix) that another is to come close to."""

import contextvars
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, attention_in
from headfit._base.arguments import thread_count
from headfit._base.arrays import as_array, as_stack, as_stored_array, by_heads, is_sparse, widened
from headfit._base.masks import by_first_axes, core_mask
from headfit._base.positions import alibi_slopes
from headfit._base.types import FloatArray
from headfit.errors import InputError, input_errors


def existing_keys(attention: Attention) -> NDArray[np.bool_]:
    """Return which keys are no padding for at least one head."""
    exist = np.ones((1, attention.m), bool)
    if attention.key_mask is not None:
        exist = attention.key_mask.reshape(-1, attention.m)
    if attention.key_lengths is not None:
        exist = exist & (np.arange(attention.m) < np.reshape(attention.key_lengths, (-1, 1)))
    return np.asarray(exist.any(axis=0))


def single_heads(attention: Attention) -> list[Attention]:
    """Return the heads of a stack in order; each computes the bits that the stack computes.

    Queries and keys are views. The order is that of the leading axes, the last one fastest.
    """
    lead, options = attention.lead, dict(vars(attention.options))
    if not lead:
        return [attention]
    q, k = attention.stored
    # Consecutive query heads share a key head.
    group = math.prod(lead) // max(1, math.prod(k.shape[:-2]))
    stacked: dict[str, Any] = {}  # options that heads may have of their own, by head
    shape = attention.n, attention.m
    for name, own in (("mask", shape), ("bias", shape), ("sinks", ())):
        value = options[name]
        if not (value is None or isinstance(value, (str, tuple)) or is_sparse(value)):
            stacked[name] = by_heads(as_array(value, name), lead, own, name)
    for name, keys in {"key_lengths": None, "key_mask": attention.m}.items():
        if options[name] is not None:
            stacked[name] = by_first_axes(as_array(options[name], name), lead, name, keys)
    position = options["position"]
    kind, slopes = position if isinstance(position, tuple) else (position, None)
    if kind == "alibi":
        name = "the slopes of alibi"
        slopes = alibi_slopes(lead[-1]) if slopes is None else as_array(slopes, name)
        stacked["position"] = [(kind, float(x)) for x in by_heads(slopes, lead, (), name)]
    heads = []
    for at, i in enumerate(np.ndindex(lead)):
        options |= {name: array[at] for name, array in stacked.items()}
        heads.append(Attention(q[i], k[np.unravel_index(at // group, k.shape[:-2])], **options))
    return heads


def over_heads(
    attention: Attention,
    function: Callable[..., Any],
    num_threads: int | None,
    *,
    one_at_a_time: bool,
) -> NDArray[np.object_]:
    """Return ``function(head)`` for each head, in the shape of the leading axes.

    Heads are worked on at the same time, each with its share of the threads, or one after the
    other, each with all of them: then a Generator is read in the order of the heads, and Ctrl-C
    ends the head that is being worked on. Errors name the head. After Ctrl-C no further head is
    started; what other threads are working on goes on to its end, and is dropped.
    """
    threads = thread_count(num_threads)
    calls: list[Any] = list(zip(np.ndindex(attention.lead), single_heads(attention), strict=True))
    workers = 1 if one_at_a_time else max(1, min(threads, len(calls)))

    def work(place: tuple[int, ...], head: Attention) -> Any:
        with input_errors(f"head {', '.join(map(str, place))}", InputError):
            return function(head, num_threads=max(1, threads // workers))

    results = np.empty(attention.lead, dtype=object)
    if workers == 1:
        for place, head in calls:
            results[place] = work(place, head)
        return results
    pool = ThreadPoolExecutor(workers, thread_name_prefix="headfit")
    try:
        jobs = [pool.submit(contextvars.copy_context().run, work, *call) for call in calls]
        for (place, _), job in zip(calls, jobs, strict=True):
            results[place] = job.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results


def one_head(head: Any, name: str) -> Attention:
    """Return a single head with queries and keys, or raise an InputError."""
    attention = attention_in(head)
    if attention is None:
        raise InputError(f"{name} must be an Attention or a fit; got {type(head).__name__}")
    q, k = (x.shape for x in attention.stored)
    if len(q) != 2 or len(k) != 2:
        raise InputError(f"{name} must be one head, Q and K matrices; got shapes {q} and {k}")
    if 0 in (q[0], k[0]):
        raise InputError(f"{name} must not be empty; got Q and K of shapes {q} and {k}")
    return attention


def allowed_entries(shape: tuple[int, int], *, sparse: bool = False, **masks: Any) -> Any:
    """Return where masks of one head allow attention, those of keys and -inf in a bias included.

    With `sparse`, for a sparse mask, this is a sparse matrix, and no array has the whole shape.
    """
    flat: Any = Attention(*(np.zeros((rows, 1), np.float32) for rows in shape), **masks)
    logits = flat.logits(sparse=sparse)
    if not sparse:
        return logits > -np.inf
    logits.data = logits.data > -np.inf
    logits.eliminate_zeros()
    return logits


def head_to_match(target: Any, name: str) -> Attention | None:
    """Return the head that a new head is to come close to, checked; None for what is no head.

    A new head has a mask alone. So that it attends to the same keys, key_lengths, key_mask and -inf
    in the bias become part of the mask, which is an array then, or stays sparse.
    """
    if attention_in(target) is None:
        return None
    attention = one_head(target, name)
    if attention.sinks is not None:
        raise InputError(
            f"{name} must have no sinks: they take a part of every row, and the rows of the head "
            f"that is looked for sum to 1; got {attention!r}"
        )
    options = vars(attention.options)
    more = {key: options[key] for key in ("key_lengths", "key_mask", "bias")}
    if more["bias"] is not None and np.isfinite(widened(as_array(more["bias"], "bias"))).all():
        more["bias"] = None
    if all(x is None for x in more.values()):
        return attention
    shape, mask = (attention.n, attention.m), attention.mask
    whole = allowed_entries(shape, sparse=is_sparse(mask), mask=mask, **more)
    keys = {"mask": whole, "key_lengths": None, "key_mask": None}
    return Attention(*attention.stored, **{**options, **keys})


def target_matrix(target: Any) -> FloatArray:
    """Return a target that is a dense matrix in a form that the core reads, or raise an error."""
    if is_sparse(target):
        raise InputError("the target must be an Attention or a dense array; got a sparse matrix")
    matrix = as_stored_array(target, "the target")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(f"the target must be a matrix and not empty; got shape {matrix.shape}")
    return np.asarray(as_stack(matrix)[0])


def core_target_of(target: Any, mask: Any) -> _core.SoftTarget:
    """Return the core's form of a target: an `Attention`, or a matrix from `target_matrix`."""
    if isinstance(target, Attention):
        return _core.SoftTarget(attention=target.core)
    return _core.SoftTarget(matrix=target, mask=core_mask(mask, (), target.shape))
