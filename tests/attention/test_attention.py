"""`Attention` and its functions, compared with slow references in extended precision."""

from __future__ import annotations

import copy
import math
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import headfit as hf
from headfit.errors import InputError, NonFiniteError

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

Real = np.longdouble
Options = dict[str, Any]
DTYPES = ["float32", "float64"]
THREADS = (1, 2, 3)
RNG = np.random.default_rng


SOFTMAX_ULPS = 4
"""What is promised."""


# References ---------------------------------------------------------------------------


def unit(dtype: Any) -> float:
    """The unit roundoff u."""
    return float(np.finfo(dtype).eps) / 2


def gamma(terms: int, dtype: Any) -> float:
    return terms * unit(dtype) / (1 - terms * unit(dtype))


def expand(K: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
    """Keys or values repeated so that there is one for each query head."""
    if K.ndim == 2 or not lead:
        return np.broadcast_to(K, (*lead, *K.shape[-2:]))
    return np.repeat(K, lead[-1] // K.shape[-3], axis=-3)


def allowed(
    lead: tuple[int, ...],
    n: int,
    m: int,
    mask: Any = None,
    key_lengths: Any = None,
    key_mask: Any = None,
) -> np.ndarray:
    """Return where attention is allowed, decided entry by entry."""
    position = np.arange(n)[:, None] + m - n
    column = np.arange(m)[None, :]
    if mask is None:
        open_ = np.ones((n, m), bool)
    elif isinstance(mask, str):
        open_ = column <= position
    elif isinstance(mask, tuple):
        left, right = mask[1] if isinstance(mask[1], tuple) else (mask[1] - 1, 0)
        open_ = (column >= position - left) & (column <= position + right)
    else:
        open_ = mask.toarray() if sp.issparse(mask) else np.asarray(mask)
    open_ = np.broadcast_to(open_, (*lead, n, m)).copy()
    if key_lengths is not None:
        lengths = np.asarray(key_lengths)
        lengths = lengths.reshape(lengths.shape + (1,) * (len(lead) - lengths.ndim))
        open_ &= column < np.broadcast_to(lengths, lead)[..., None, None]
    if key_mask is not None:
        keys = np.asarray(key_mask) == 1
        for i in np.ndindex(lead):
            own = keys[i[: keys.ndim - 1]]
            for j in range(m):
                if not own[j]:
                    open_[(*i, slice(None), j)] = False
    return open_


def reference(Q: np.ndarray, K: np.ndarray, **options: Any) -> np.ndarray:
    """The exact logits, -inf where masked."""
    lead, n, m, d = Q.shape[:-2], Q.shape[-2], K.shape[-2], Q.shape[-1]
    k = expand(K, lead)
    wide = Real if math.prod(lead) * n * m * d < 3e6 else np.float64
    scale = options.get("scale")
    s = np.einsum("...id,...jd->...ij", Q.astype(wide), k.astype(wide), optimize=wide != Real)
    s = s.astype(Real) * Real(1 / math.sqrt(d) if scale is None else scale)
    if options.get("softcap"):
        s = options["softcap"] * np.tanh(s / options["softcap"])
    if options.get("bias") is not None:
        s = s + np.asarray(options["bias"]).astype(Real)
    masks = (options.get(name) for name in ("mask", "key_lengths", "key_mask"))
    open_ = allowed(lead, n, m, *masks)
    return np.where(open_, s, Real("-inf"))


def softmax(logits: np.ndarray, sinks: Any = None) -> np.ndarray:
    """The exact softmax of each row; zeros where nothing is allowed."""
    s = logits.astype(Real)
    sink = np.full((*logits.shape[:-2], 1, 1), Real("-inf"))
    if sinks is not None:  # they are rounded to the dtype of the logits
        sink[...] = np.asarray(sinks).astype(logits.dtype).astype(Real)[..., None, None]
    top = np.maximum(s.max(axis=-1, keepdims=True, initial=Real("-inf")), sink)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - top)
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink - top)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The worst distance in units of the last place of the exact values."""
    info = np.finfo(got.dtype)
    _, exponent = np.frexp(exact.astype(Real))
    place = np.ldexp(Real(1), exponent - (info.nmant + 1))
    distance = np.abs(got.astype(Real) - exact) / np.maximum(place, Real(info.smallest_subnormal))
    return float(distance.max(initial=0))


def logit_bound(Q: np.ndarray, K: np.ndarray, **options: Any) -> np.ndarray:
    """Return the largest allowed error of the logits of each row, shape (..., n, 1)."""
    d, dtype = Q.shape[-1], np.result_type(Q, K)
    scale = 1 / math.sqrt(d) if options.get("scale") is None else abs(options["scale"])
    q = np.linalg.norm(Q.astype(np.float64), axis=-1)[..., None]
    k = np.linalg.norm(expand(K, Q.shape[:-2]).astype(np.float64), axis=-1)
    k = k.max(axis=-1, initial=0.0)[..., None, None]
    bound = gamma(d + 2, dtype) * scale * q * k
    if options.get("softcap"):
        bound = bound + 16 * unit(dtype) * options["softcap"]
    if options.get("bias") is not None:
        bias = np.asarray(options["bias"], np.float64)
        bound = bound + unit(dtype) * 3 * (
            scale * q * k + np.abs(bias[np.isfinite(bias)]).max(initial=0)
        )
    if Q.size * K.shape[-2] >= 3e6:  # then the reference is in float64 only
        bound = bound + gamma(d + 2, np.float64) * scale * q * k
    return bound


# Problems -----------------------------------------------------------------------------


def random_bias(rng: Any, *shape: int) -> np.ndarray:
    bias = rng.standard_normal(shape)
    bias[rng.random(shape) < 0.3] = -np.inf
    return bias


def sparse_mask(rng: Any, n: int, m: int) -> sp.csr_array:
    return sp.csr_array(rng.random((n, m)) < 0.3)


# Each function returns the options of a call for logits of shape (*lead, n, m).
OPTIONS: dict[str, Callable[[Any, tuple[int, ...], int, int], Options]] = {
    "plain": lambda rng, lead, n, m: {},
    "scale": lambda rng, lead, n, m: {"scale": -0.37},
    "causal": lambda rng, lead, n, m: {"mask": "causal"},
    "window": lambda rng, lead, n, m: {"mask": ("window", 3)},
    "window2": lambda rng, lead, n, m: {"mask": ("window", (2, 5))},
    "dense": lambda rng, lead, n, m: {"mask": rng.random((n, m)) < 0.4},
    "dense-broadcast": lambda rng, lead, n, m: {"mask": rng.random((1, m)) < 0.6},
    "dense-batched": lambda rng, lead, n, m: {"mask": rng.random((*lead, n, m)) < 0.4},
    "sparse": lambda rng, lead, n, m: {"mask": sparse_mask(rng, n, m)},
    "lengths": lambda rng, lead, n, m: {"key_lengths": rng.integers(0, m + 1, lead)},
    "bias": lambda rng, lead, n, m: {"bias": random_bias(rng, n, m)},
    "bias-batched": lambda rng, lead, n, m: {"bias": random_bias(rng, *lead, n, m)},
    "bias-row": lambda rng, lead, n, m: {"bias": rng.standard_normal(m)},
    "softcap": lambda rng, lead, n, m: {"softcap": 1.5},
    "keys": lambda rng, lead, n, m: {"key_mask": rng.random((*lead[:1], m)) < 0.6},
    "keys-left": lambda rng, lead, n, m: {
        "key_mask": (np.arange(m) >= rng.integers(0, m + 1, (*lead, 1))).astype(np.int64),
        "mask": "causal",
    },
    "keys-dense": lambda rng, lead, n, m: {
        "key_mask": rng.random(m) < 0.7,
        "mask": rng.random((*lead, n, m)) < 0.6,
        "key_lengths": rng.integers(0, m + 1, lead),
    },
    "keys-sparse": lambda rng, lead, n, m: {
        "key_mask": rng.random((*lead, m)) < 0.7,
        "mask": sparse_mask(rng, n, m),
    },
    "sinks": lambda rng, lead, n, m: {"sinks": 3 * rng.standard_normal(lead[-1:])},
    "sinks-all": lambda rng, lead, n, m: {
        "sinks": np.where(rng.random(lead) < 0.3, -np.inf, 8 * rng.standard_normal(lead)),
        "mask": ("window", (30, 2)),
        "key_mask": rng.random((*lead, m)) < 0.8,
        "bias": random_bias(rng, n, m),
    },
    "sinks-causal": lambda rng, lead, n, m: {"sinks": np.float32(2.5), "mask": "causal"},
    "all": lambda rng, lead, n, m: {
        "mask": "causal",
        "bias": random_bias(rng, *lead, n, m),
        "softcap": 2.5,
        "key_lengths": rng.integers(0, m + 1, lead[:1]),
        "scale": 0.6,
    },
    "window-all": lambda rng, lead, n, m: {
        "mask": ("window", (3, 1)),
        "bias": rng.standard_normal((n, 1)),
        "key_lengths": m // 2,
    },
}
SIZES = [
    (1, 1, 1),
    (1, 64, 3),
    (2, 3, 64),
    (63, 1, 1),
    (63, 65, 3),
    (64, 63, 64),
    (65, 64, 1),
    (65, 1000, 3),
    (1000, 65, 64),
]
# Leading axes of Q and of K.
LEADS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (1,)),
    ((3,), (3,)),
    ((4,), (2,)),
    ((4,), ()),
    ((2, 4), (2, 4)),
    ((2, 4), (2, 1)),
    ((2, 4), (2, 2)),
    ((2, 1, 4), (2, 1, 2)),
    ((2, 3), ()),
]


def problem(
    dtype: str,
    size: tuple[int, int, int],
    lead: tuple[int, ...] = (),
    kv_lead: tuple[int, ...] = (),
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, m, d = size
    rng = RNG((seed, *size, *lead))
    make = lambda *shape: (2 * rng.standard_normal(shape)).astype(dtype)  # noqa: E731
    return make(*lead, n, d), make(*kv_lead, m, d), make(*kv_lead, m, 5)


def check_everything(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, options: Options, shares: bool = True
) -> None:
    """Compare every function with the exact answer, and bit for bit between numbers of threads."""
    dtype = np.result_type(Q, K)
    lead, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    exact = reference(Q, K, **options)
    bound = logit_bound(Q, K, **options)
    sinks = options.get("sinks")
    without = {name: value for name, value in options.items() if name != "sinks"}

    logits = hf.attention_logits(Q, K, num_threads=1, **without)
    assert logits.dtype == dtype
    assert logits.shape == (*lead, n, m)
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(np.isfinite(logits), finite)
    error = np.where(finite, np.abs(np.where(finite, logits, 0) - np.where(finite, exact, 0)), 0)
    assert (error <= bound).all(), float((error - bound).max())

    matrix = hf.attention_matrix(Q, K, num_threads=1, **options)
    assert matrix.dtype == dtype
    of_stored = softmax(logits, sinks)
    assert ulps(matrix, of_stored) <= SOFTMAX_ULPS
    truth = softmax(exact, None if sinks is None else np.asarray(sinks).astype(dtype))
    allowance = np.expm1(2 * bound) + 4 * 2 * unit(dtype)
    assert (np.abs(matrix - truth) <= allowance * truth + np.finfo(dtype).smallest_subnormal).all()
    assert (matrix[~finite] == 0).all()

    k = min(3, m)
    top = hf.attention_topk(Q, K, k, num_threads=1, **options)
    columns, weights = dense_topk(top, k) if not lead else top
    check_topk(columns, weights, logits, of_stored, ordered=bool(lead))
    scores = hf.attention_topk(Q, K, k, values="logits", num_threads=1, **options)
    check_topk_logits(scores, top, logits)

    applied = hf.attention_apply(Q, K, V, num_threads=1, **options)
    assert applied.dtype == dtype
    v = expand(V, lead).astype(Real)
    size = np.einsum("...ij,...jc->...ic", of_stored, np.abs(v))
    want = np.einsum("...ij,...jc->...ic", of_stored, v)
    assert (np.abs(applied - want) <= (m + 16) * 2 * unit(dtype) * size).all()

    stats = hf.attention_stats(Q, K, num_threads=1, shares=(0.3, 0.9), **options)
    check_stats(stats, of_stored, dtype, logits, sinks)

    for threads in THREADS[1:]:
        again = {"num_threads": threads, **options}
        np.testing.assert_array_equal(
            logits, hf.attention_logits(Q, K, num_threads=threads, **without)
        )
        np.testing.assert_array_equal(matrix, hf.attention_matrix(Q, K, **again))
        np.testing.assert_array_equal(applied, hf.attention_apply(Q, K, V, **again))
        same_topk(top, hf.attention_topk(Q, K, k, **again))
        same_topk(scores, hf.attention_topk(Q, K, k, values="logits", **again))
        more = hf.attention_stats(Q, K, shares=(0.3, 0.9), **again)
        for name in vars(stats):
            np.testing.assert_array_equal(getattr(stats, name), getattr(more, name))


def same_topk(a: Any, b: Any) -> None:
    if sp.issparse(a):
        a, b = ((x.indptr, x.indices, x.data) for x in (a, b))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def dense_topk(top: sp.csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a csr result as padded arrays; checks its structure on the way."""
    assert isinstance(top, sp.csr_array)
    top.check_format(full_check=True)
    assert top.has_canonical_format
    columns = np.full((top.shape[0], k), -1)
    weights = np.zeros((top.shape[0], k), top.dtype)
    for i in range(top.shape[0]):
        row = slice(top.indptr[i], top.indptr[i + 1])
        count = row.stop - row.start
        assert count <= k
        assert (np.diff(top.indices[row]) > 0).all()
        columns[i, :count] = top.indices[row]
        weights[i, :count] = top.data[row]
    return columns, weights


def check_topk_logits(scores: Any, top: Any, logits: np.ndarray) -> None:
    """`topk` with logits has the same keys as with weights, and those of `attention_logits`."""
    if sp.issparse(scores):
        for name in ("indptr", "indices"):
            np.testing.assert_array_equal(getattr(scores, name), getattr(top, name))
        rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
        np.testing.assert_array_equal(scores.data, logits[rows, scores.indices])
    else:
        np.testing.assert_array_equal(scores[0], top[0])
        there = np.take_along_axis(logits, np.maximum(scores[0], 0), axis=-1)
        np.testing.assert_array_equal(scores[1], np.where(scores[0] < 0, -np.inf, there))
        scores = scores[1]
    assert scores.dtype == logits.dtype


def check_topk(
    columns: np.ndarray,
    weights: np.ndarray,
    logits: np.ndarray,
    exact: np.ndarray,
    *,
    ordered: bool,
    limit: float = 4,
) -> None:
    k, m = columns.shape[-1], logits.shape[-1]
    # Largest first, ties to the lower column.
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :k]
    hidden = np.isneginf(np.take_along_axis(logits, order, axis=-1))
    order = np.where(hidden, -1, order)
    if not ordered:
        order = np.where(hidden, m, order)
        order = np.sort(order, axis=-1)
        order = np.where(order == m, -1, order)
    np.testing.assert_array_equal(columns, order)
    want = np.take_along_axis(exact, np.maximum(order, 0), axis=-1)
    assert ulps(weights, np.where(order < 0, 0, want)) <= limit


def check_stats(
    stats: hf.results.AttentionStats,
    exact: np.ndarray,
    dtype: Any,
    logits: np.ndarray,
    sinks: Any = None,
) -> None:
    near = 128 * unit(dtype)
    some = exact.sum(axis=-1) > 0
    np.testing.assert_allclose(
        stats.key_mass, exact.sum(axis=-1).astype(float), atol=near, rtol=near
    )
    wide = logits.astype(Real)
    top = wide.max(axis=-1, keepdims=True, initial=Real("-inf"))
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        sums = np.log(np.exp(wide - top).sum(axis=-1)) + top[..., 0]
    if sinks is not None:
        sink = np.asarray(sinks).astype(dtype).astype(Real)[..., None]
        sums = np.where(some, np.logaddexp(sums, sink), Real("-inf"))
    np.testing.assert_allclose(stats.log_sum, sums.astype(float), atol=near, rtol=near)
    largest = exact.max(axis=-1, initial=0).astype(float)
    np.testing.assert_allclose(stats.max_weight, largest, atol=near, rtol=0)
    # The rest is about the keys alone.
    exact = softmax(logits)
    logs = np.log(np.where(exact > 0, exact, 1))
    entropy = -(exact * logs).sum(axis=-1)
    np.testing.assert_allclose(stats.entropy, entropy.astype(float), atol=near, rtol=0)
    np.testing.assert_allclose(
        stats.effective_support, np.where(some, np.exp(stats.entropy), 0), rtol=1e-14
    )
    np.testing.assert_array_equal(np.isneginf(stats.log_sum), ~some)
    assert stats.keys_for_share.shape == (*exact.shape[:-1], len(stats.shares))
    mass = np.cumsum(-np.sort(-exact, axis=-1), axis=-1)
    mass = np.concatenate([np.zeros_like(mass[..., :1]), mass], axis=-1)
    for position, share in enumerate(stats.shares):
        count = stats.keys_for_share[..., position]
        assert ((count >= 0) & (count <= exact.shape[-1])).all()
        assert (count[~some] == 0).all()
        held = np.take_along_axis(mass, count[..., None], axis=-1)[..., 0]
        fewer = np.take_along_axis(mass, np.maximum(count - 1, 0)[..., None], axis=-1)[..., 0]
        assert (held[some] >= share - near).all()
        assert (fewer[some] < share + near).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matrices(size: tuple[int, int, int], kind: str, dtype: str) -> None:
    Q, K, V = problem(dtype, size)
    check_everything(Q, K, V, OPTIONS[kind](RNG(1), (), size[0], size[1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("leads", LEADS, ids=str)
def test_batches_and_heads(leads: Any, kind: str, dtype: str) -> None:
    size = (27, 70, 6)
    Q, K, V = problem(dtype, size, *leads)
    check_everything(Q, K, V, OPTIONS[kind](RNG(2), leads[0], size[0], size[1]))


@pytest.mark.parametrize("kind", ["plain", "all"])
def test_a_thousand_by_a_thousand(kind: str) -> None:
    Q, K, V = problem("float32", (1000, 1000, 64))
    check_everything(Q, K, V, OPTIONS[kind](RNG(3), (), 1000, 1000))


@given(
    n=st.integers(0, 40),
    m=st.integers(1, 90),
    d=st.integers(1, 20),
    kind=st.sampled_from(sorted(OPTIONS)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_any_size(n: int, m: int, d: int, kind: str, dtype: str, seed: int) -> None:
    Q, K, V = problem(dtype, (n, m, d), seed=seed)
    options = OPTIONS[kind](RNG(seed), (), n, m)
    if kind == "bias" and not np.isfinite(options["bias"]).any():
        return
    if kind in ("all", "bias-batched") and n == 0:
        return
    check_everything(Q, K, V, options)


def test_mixed_dtypes_take_the_wider() -> None:
    Q, K, V = problem("float32", (9, 11, 4))
    wide = hf.attention_matrix(Q, K.astype(np.float64))
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(
        wide, hf.attention_matrix(Q.astype(np.float64), K.astype(np.float64))
    )
    assert hf.attention_apply(Q.astype(np.float64), K, V).dtype == np.float64
    with pytest.raises(InputError, match="V must not be wider"):
        hf.attention_apply(Q, K, V.astype(np.float64))


# Extreme logits -----------------------------------------------------------------------

# In units of the last place; without a fused multiply-add there are more roundings.
PLACES = 5 if hf.show_config().cpu in ("v2", "generic") else 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sink", [-3e38, -1e4, -90.0, 0.0, 90.0, 2047.9, 2049.3, 1e4, 3e30, 3e38])
@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_sinks_far_from_the_logits(size: float, sink: float, dtype: str) -> None:
    """Whichever of sink and logits is larger, weights are as accurate as without a sink."""
    Q, K, V = problem(dtype, (70, 300, 3), (2,), (2,))
    head = hf.Attention(size * Q, K, mask="causal", sinks=[sink, -sink])
    exact = softmax(head.logits(), [sink, -sink])
    tiny = np.finfo(dtype).tiny
    assert ulps(head.matrix(), exact) <= PLACES
    want = np.einsum("hij,hjc->hic", exact, V.astype(Real))
    allowance = 700 * unit(dtype) * np.einsum("hij,hjc->hic", exact, abs(V).astype(Real))
    assert (np.abs(head.apply(V) - want) <= allowance + 300 * tiny).all()
    columns, weights = head.topk(3)
    assert ulps(weights, np.take_along_axis(exact, np.maximum(columns, 0), -1)) <= PLACES
    stats = head.stats()
    mass = exact.sum(axis=-1).astype(float)
    near = max(300 * unit(dtype), 1e-10)  # they come from logarithms in float64
    np.testing.assert_allclose(stats.key_mass, mass, rtol=near, atol=tiny)
    np.testing.assert_allclose(stats.max_weight, exact.max(-1).astype(float), rtol=near, atol=tiny)


def test_a_sink_of_minus_infinity_is_none() -> None:
    Q, K, V = problem("float32", (70, 300, 3), (2,), (2,))
    plain, none = hf.Attention(Q, K), hf.Attention(Q, K, sinks=-np.inf)
    np.testing.assert_array_equal(plain.matrix(), none.matrix())
    np.testing.assert_array_equal(plain.apply(V), none.apply(V))
    for one, other in zip(plain.topk(5), none.topk(5), strict=True):
        np.testing.assert_array_equal(one, other)
    for name, value in vars(plain.stats()).items():
        np.testing.assert_array_equal(value, getattr(none.stats(), name))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("lowest", [True, False])
def test_additive_masks_are_read_as_booleans(dtype: str, lowest: bool) -> None:
    Q, K, _ = problem("float32", (20, 30, 3), (2, 2), (2, 2))
    allow = RNG(0).random((2, 1, 20, 30)) < 0.5
    hidden = np.finfo(dtype).min if lowest else -np.inf
    mask = np.where(allow, 0, hidden).astype(dtype)
    head = hf.Attention(Q, K, mask=mask)
    assert head.mask.dtype == np.bool_
    np.testing.assert_array_equal(head.matrix(), hf.attention_matrix(Q, K, mask=allow))
    wide = np.broadcast_to(mask, (2, 2, 20, 30))
    assert 0 in hf.Attention(Q, K, mask=wide).mask.strides
    np.testing.assert_array_equal(head.matrix(), hf.attention_matrix(Q, K, mask=wide))
    assert hf.describe(head, mask=mask).n == 20
    with pytest.raises(InputError, match=r"mask .* 1.5 at \(0, 0, 0, 1\): pass .* as bias="):
        hf.Attention(Q, K, mask=np.where(np.arange(30) == 1, 1.5, mask))


@needs_torch
@pytest.mark.parametrize("lowest", [True, False])
def test_additive_masks_in_bfloat16(lowest: bool) -> None:
    allow = RNG(0).random((20, 30)) < 0.5
    hidden = torch.finfo(torch.bfloat16).min if lowest else -torch.inf
    mask = torch.where(torch.from_numpy(allow), 0.0, hidden).to(torch.bfloat16)
    Q, K, _ = problem("float32", (20, 30, 3))
    np.testing.assert_array_equal(
        hf.attention_matrix(Q, K, mask=mask), hf.attention_matrix(Q, K, mask=allow)
    )


def test_masks_of_keys_given_as_mask_are_told_where_they_belong() -> None:
    Q, K, _ = problem("float32", (5, 6, 3), (2, 3), (2, 3))
    for mask in (np.ones((2, 6), int), np.ones((2, 6), bool), np.zeros((2, 6))):
        with pytest.raises(InputError, match="is said by key_mask"):
            hf.attention_matrix(Q, K, mask=mask)


def test_logits_know_no_sinks() -> None:
    Q, K, _ = problem("float32", (5, 6, 3))
    with pytest.raises(TypeError, match="sinks"):
        hf.attention_logits(Q, K, sinks=1.0)
    head = hf.Attention(Q, K, sinks=1.0)
    np.testing.assert_array_equal(head.logits(), hf.attention_logits(Q, K))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 50.0, 200.0, 1e3, 1e4])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_softmax_within_4_ulp(size: float, shift: float, dtype: str) -> None:
    rng = RNG(int(size))
    # Logits between -size and size, many close to the largest, so that several weights count.
    K = np.concatenate([rng.uniform(-1, 1, 700), 1 - rng.uniform(0, 20, 300) / size])
    K = (size * (K + 0.3 * shift))[:, None].astype(dtype)
    Q = np.array([[1.0], [-1.0], [0.5], [0.01]], dtype)
    logits = hf.attention_logits(Q, K, scale=1.0)
    exact = softmax(logits)
    matrix = hf.attention_matrix(Q, K, scale=1.0)
    assert ulps(matrix, exact) <= PLACES
    assert np.isfinite(matrix).all()
    if size >= 1e3:  # some entries underflow to zero; subnormal ones are kept
        assert (matrix[exact == 0] == 0).all()
        assert (matrix == 0).any()
    stats = hf.attention_stats(Q, K, scale=1.0, shares=(0.5, 0.99))
    np.testing.assert_allclose(stats.max_weight, exact.max(axis=1).astype(float), rtol=1e-5)
    applied = hf.attention_apply(Q, K, np.ones((1000, 2), dtype), scale=1.0)
    np.testing.assert_allclose(applied, 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_within_4_ulp_however_many_rows(dtype: str) -> None:
    logits = (10 * RNG(0).standard_normal((4000, 63))).astype(dtype)
    matrix = hf.attention_matrix(logits, np.eye(63, dtype=dtype), scale=1.0)
    assert ulps(matrix, softmax(logits)) <= PLACES


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *(("float32", size) for size in (1.0, 10.0, 100.0, 2000.0, 1e4)),
        *(("float64", size) for size in (1.0, 1e4)),
        *(("float64", size) for size in (10.0, 100.0, 2000.0)),
    ],
)
def test_topk_weights_within_4_ulp(dtype: str, size: float) -> None:
    K = (size - RNG(9).uniform(0, 3, 300))[:, None].astype(dtype)
    columns, weights = hf.attention_topk(np.ones((1, 1, 1), dtype), K, 300, scale=1.0)
    logits = hf.attention_logits(np.ones((1, 1, 1), dtype), K, scale=1.0)
    check_topk(columns, weights, logits, softmax(logits), ordered=True)


STEPS = [(-3000, 5), (200, 300), (-300, -200), (-1e4, 0), (-1e4, 1e4), (1e30, 2e30)]
# Here exp(-2050) * 2**2885 is 0 * inf when the shift of a running sum moves.
FAR_STEPS = [(2000, 2050), (-3000, -1000), (2000, 1e4)]


@pytest.mark.parametrize(
    ("dtype", "steps"),
    [
        *((dtype, steps) for dtype in DTYPES for steps in STEPS),
        *(("float32", steps) for steps in FAR_STEPS),
        *(("float64", steps) for steps in FAR_STEPS),
    ],
    ids=str,
)
def test_later_tiles_may_be_much_larger(dtype: str, steps: tuple[float, float]) -> None:
    K = np.repeat(np.array(steps, dtype), 512)[:, None]
    Q, half = np.ones((1, 1), dtype), np.repeat([0.0, 1 / 512], 512)
    for keys, want in ((K, half), (K[::-1], half[::-1])):
        matrix = hf.attention_matrix(Q, keys, scale=1.0)
        np.testing.assert_allclose(matrix[0], want, rtol=1e-5, atol=1e-20)
        applied = hf.attention_apply(Q, keys, np.eye(1024, dtype=dtype)[:, ::100], scale=1.0)
        np.testing.assert_allclose(applied[0], want[::100], rtol=1e-5, atol=1e-20)
        np.testing.assert_allclose(
            hf.attention_topk(Q, keys, 1, scale=1.0).data, 1 / 512, rtol=1e-5
        )
        stats = hf.attention_stats(Q, keys, scale=1.0)
        np.testing.assert_allclose(stats.entropy, math.log(512), rtol=1e-5)
        np.testing.assert_allclose(stats.log_sum, steps[1] + math.log(512), rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_denormal_weights(dtype: str) -> None:
    info = np.finfo(dtype)
    low, high = math.log(float(info.smallest_subnormal)), math.log(float(info.tiny))
    K = np.concatenate([[0.0], np.linspace(low - 3, high + 1, 500)])[:, None].astype(dtype)
    for top in (0.0, 100.0, -100.0):
        logits = hf.attention_logits(np.ones((1, 2), dtype), np.hstack([K, K * 0 + top]), scale=1.0)
        matrix = hf.attention_matrix(np.ones((1, 2), dtype), np.hstack([K, K * 0 + top]), scale=1.0)
        assert ulps(matrix, softmax(logits)) <= PLACES
        denormal = (matrix > 0) & (matrix < info.tiny)
        assert denormal.sum() > 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_near_the_largest_number(dtype: str) -> None:
    big = float(np.finfo(dtype).max)
    root = math.sqrt(big) * 0.99
    Q = np.array([[root, 0], [-root, 0], [root, 1], [0, 0]], dtype)
    K = np.array([[root, 0], [-root, 0], [root / 2, 1], [0, 1]], dtype)
    matrix = hf.attention_matrix(Q, K, scale=1.0)
    np.testing.assert_array_equal(
        matrix, [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]]
    )
    stats = hf.attention_stats(Q, K, scale=1.0)
    np.testing.assert_array_equal(stats.entropy[:3], 0)
    np.testing.assert_array_equal(stats.keys_for_share[:, 0], [1, 1, 1, 4])
    np.testing.assert_array_equal(hf.attention_topk(Q, K, 1, scale=1.0).indices, [0, 1, 0, 0])
    V = np.arange(8, dtype=dtype).reshape(4, 2)
    np.testing.assert_array_equal(
        hf.attention_apply(Q, K, V, scale=1.0), [[0, 1], [2, 3], [0, 1], [3, 4]]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_near_the_largest_number(dtype: str) -> None:
    # An average of finite values is finite: it may not come out as inf.
    big = float(np.finfo(dtype).max)
    for share, m in ((0.9, 300), (1.0, 7), (1.0, 14), (-1.0, 15), (1.0, 105), (-1.0, 117)):
        Q, K, _ = problem(dtype, (4, m, 3))
        for q in (Q, np.zeros_like(Q)):
            applied = hf.attention_apply(q, K, np.full((m, 2), share * big, dtype))
            np.testing.assert_allclose(applied, share * big, rtol=1e-4)


# Masks --------------------------------------------------------------------------------


def test_fully_masked_rows_are_zero() -> None:
    Q, K, V = problem("float32", (5, 4, 3))
    mask = np.ones((5, 4), bool)
    mask[2] = False
    for options in (
        {"mask": mask},
        {"mask": sp.csr_array(mask)},
        {"bias": np.where(mask, 0, -np.inf)},
    ):
        assert (hf.attention_matrix(Q, K, **options)[2] == 0).all()
        assert (hf.attention_apply(Q, K, V, **options)[2] == 0).all()
        assert np.isneginf(hf.attention_logits(Q, K, **options)[2]).all()
        assert hf.attention_topk(Q, K, 2, **options)[[2]].nnz == 0
        stats = hf.attention_stats(Q, K, **options)
        assert (stats.entropy[2], stats.max_weight[2], stats.effective_support[2]) == (0, 0, 0)
        assert stats.log_sum[2] == -np.inf
        assert (stats.keys_for_share[2] == 0).all()
    # With fewer keys than queries, a causal mask allows the first query no key.
    causal = hf.attention_matrix(Q, K, mask="causal")
    np.testing.assert_array_equal(causal > 0, np.tril(np.ones((5, 4)), -1) > 0)


def test_causal_is_aligned_to_the_last_query() -> None:
    Q, K, _ = problem("float64", (2, 4, 3))
    np.testing.assert_array_equal(
        hf.attention_matrix(Q, K, mask="causal") > 0, [[1, 1, 1, 0], [1, 1, 1, 1]]
    )
    np.testing.assert_array_equal(
        hf.attention_matrix(Q, K, mask=("window", 2)) > 0, [[0, 1, 1, 0], [0, 0, 1, 1]]
    )
    np.testing.assert_array_equal(
        hf.attention_matrix(Q, K, mask=("window", (0, 1))) > 0, [[0, 0, 1, 1], [0, 0, 0, 1]]
    )


def test_no_keys_and_no_rows() -> None:
    Q, K, V = problem("float32", (3, 4, 2))
    assert hf.attention_matrix(Q, K[:0]).shape == (3, 0)
    assert (hf.attention_apply(Q, K[:0], V[:0]) == 0).all()
    assert hf.attention_matrix(Q[:0], K).shape == (0, 4)
    assert hf.attention_topk(Q[:0], K, 2).shape == (0, 4)
    assert repr(hf.attention_stats(Q[:0], K)) == "AttentionStats(rows 0)"


def test_no_heads() -> None:
    assert hf.attention_matrix(np.zeros((0, 3, 2)), np.zeros((0, 4, 2))).shape == (0, 3, 4)


@pytest.mark.parametrize("option", ["mask", "bias"])
def test_no_rows_in_a_batch(option: str) -> None:
    Q, K = np.zeros((2, 3, 0, 4)), np.zeros((2, 3, 5, 4))
    values = np.ones((2, 3, 0, 5), bool if option == "mask" else float)
    assert hf.attention_matrix(Q, K, **{option: values}).shape == (2, 3, 0, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": "lower"}, "mask must be None"),
        ({"mask": ("band", 2)}, "mask must be None"),
        ({"mask": ("window", 0)}, "at least one key"),
        ({"mask": ("window", 1.5)}, "positive integer"),
        ({"mask": ("window", (1, 2, 3))}, "positive integer"),
        ({"mask": ("window", (-1, 0))}, "at least one key"),
        ({"mask": np.ones((5, 6))}, "mask must be boolean"),
        ({"mask": sp.csr_array(np.ones((5, 6)))}, "mask must be boolean"),
        ({"mask": np.ones((6, 5), bool)}, "mask must broadcast"),
        ({"mask": sp.csr_array(np.ones((1, 6), bool))}, "mask must have shape"),
        ({"bias": np.zeros((6, 5))}, "bias must broadcast"),
        ({"bias": np.zeros((2, 5, 6))}, "bias must broadcast"),
        ({"bias": "high"}, "bias must hold real numbers"),
        ({"bias": np.eye(5, 6, dtype=bool)}, "bias must hold numbers; pass truth values as a mask"),
        ({"key_lengths": 7}, "key_lengths must lie in 0 ... 6"),
        ({"key_lengths": -1}, "key_lengths must lie"),
        ({"key_lengths": 2.5}, "key_lengths must be integers"),
        ({"key_lengths": [1, 2]}, "key_lengths must broadcast to"),
        ({"key_mask": np.ones(5)}, "key_mask must hold booleans or integers"),
        ({"key_mask": np.ones(5, bool)}, r"key_mask must broadcast to \(6,\); got shape \(5,\)"),
        ({"key_mask": np.ones((2, 6), int)}, "key_mask must broadcast to"),
        ({"key_mask": [1, 1, 0, 0, -1, 0]}, r"key_mask must be 0 or 1; got -1 at \(4,\)"),
        ({"key_mask": True}, "key_mask must have an entry for each key"),
        ({"sinks": [0.0, 1.0]}, r"sinks must broadcast to \(\)"),
        ({"sinks": np.nan}, "sinks must be finite in .* or -inf for none; got nan"),
        ({"sinks": np.inf}, "sinks must be finite in .* or -inf for none; got inf"),
        ({"sinks": 1e300}, "sinks must be finite in the arrays' dtype"),
        ({"sinks": "high"}, "sinks must hold real numbers"),
        ({"mask": np.eye(5, 6, dtype=int)}, "mask must be boolean.*is said by key_mask"),
        ({"mask": np.full((5, 6), -1e9)}, r"mask must be boolean, or additive.*-1000000000.0 at"),
        ({"mask": np.full((5, 6), np.nan)}, "mask must be boolean, or additive"),
        ({"mask": 0.0}, "mask must be None"),
        ({"softcap": 0}, "softcap must lie strictly"),
        ({"softcap": float("nan")}, "softcap must lie strictly"),
        ({"softcap": 1e-60}, "softcap must be .* a normal number of the arrays' dtype; got 1e-60"),
        ({"softcap": 1e-40}, "softcap must be .* a normal number"),
        ({"softcap": 1e60}, r"softcap must be .* a normal number .* got 1e\+60"),
        ({"scale": 0}, "scale must be finite and nonzero"),
        ({"scale": 1e-310}, "a normal number of the arrays' dtype; got 1e-310"),
        ({"scale": float("inf")}, "scale must be finite"),
        ({"scale": 1e-300}, "scale must be"),
        ({"scale": "large"}, "scale must be a number"),
        ({"num_threads": 0}, "num_threads must lie"),
        ({"num_threads": 1.5}, "num_threads must be an integer in"),
        ({"rows": [5]}, "rows must lie in -5 ... 4; got 5"),
        ({"rows": [-6]}, "rows must lie"),
        ({"rows": [0.5]}, "rows must be a sequence of integers"),
        ({"rows": [True] * 5}, "rows must be a sequence of integers"),
        ({"rows": [[0, 1]]}, "rows must be a sequence of integers"),
    ],
)
def test_bad_options(options: Options, message: str) -> None:
    Q, K, _ = problem("float32", (5, 6, 3))
    with pytest.raises(InputError, match=message):
        hf.attention_matrix(Q, K, **options)


@pytest.mark.parametrize(
    "options",
    [{"softcap": "high"}, {"num_threads": "many"}, {"num_threads": 10**10}],
    ids=str,
)
def test_options_of_a_wrong_type(options: Options) -> None:
    Q, K, _ = problem("float32", (5, 6, 3))
    with pytest.raises(InputError):
        hf.attention_matrix(Q, K, **options)


@pytest.mark.parametrize(
    ("q_shape", "k_shape", "message"),
    [
        ((5, 3), (6, 4), "same head size"),
        ((5, 0), (6, 0), "head size of at least 1"),
        ((3,), (6, 3), "at least 2 axes"),
        ((4, 5, 3), (3, 6, 3), "leading axes of K"),
        ((2, 4, 5, 3), (4, 6, 3), "leading axes of K"),
        ((2, 4, 5, 3), (3, 4, 6, 3), "leading axes of K"),
        ((2, 5, 3), (4, 6, 3), "leading axes of K"),
        ((4, 5, 3), (0, 6, 3), "leading axes of K"),
        ((5, 3), (2, 6, 3), "leading axes of K"),
    ],
)
def test_shapes_that_do_not_fit(q_shape: Any, k_shape: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hf.attention_matrix(np.zeros(q_shape), np.zeros(k_shape))


@pytest.mark.parametrize("q_shape", [(0, 3, 2), (2, 0, 3, 2), (0, 2, 3, 2)])
def test_no_heads_read_shared_keys(q_shape: Any) -> None:
    for k_shape in ((4, 2), (*q_shape[:-3], min(1, q_shape[-3]), 4, 2)):
        head = hf.Attention(np.zeros(q_shape), np.zeros(k_shape), mask="causal")
        assert head.matrix().shape == head.logits().shape == (*q_shape[:-1], 4)
        assert head.stats().entropy.shape == q_shape[:-1]
        assert hf.describe(head).shape == q_shape[:-2]
    assert hf.attention_apply(np.zeros(q_shape), *np.zeros((2, 4, 2))).shape == q_shape


def test_values_that_do_not_fit() -> None:
    Q, K, V = problem("float32", (5, 6, 3))
    for bad in (V[:5], V[None], np.zeros((7, 2), "f4")):
        with pytest.raises(InputError, match="V must have the leading axes and rows of K"):
            hf.attention_apply(Q, K, bad)


# Rows and out -------------------------------------------------------------------------

ROWS = [
    slice(0, 10),
    slice(None, None, -3),
    slice(-5, None),
    slice(70, 200),
    slice(9, 3),
    [3],
    [5, 5, -1, 0, 5],
    [],
    np.arange(64)[::-2],
    np.array([1, 60], np.uint64),
    2,
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("lead", [(), (2, 2)])
def test_rows(rows: Any, lead: tuple[int, ...]) -> None:
    Q, K, V = problem("float32", (64, 33, 5), lead, lead)
    options = OPTIONS["all"](RNG(4), lead, 64, 33)
    picked = np.arange(64)[rows if isinstance(rows, slice) else np.atleast_1d(rows).astype(int)]
    for function in (
        hf.attention_matrix,
        hf.attention_logits,
        lambda *args, **kw: hf.attention_apply(*args, V, **kw),
    ):
        whole = function(Q, K, **options)
        for threads in THREADS:
            some = function(Q, K, rows=rows, num_threads=threads, **options)
            np.testing.assert_array_equal(some, whole[..., picked, :])


def test_out() -> None:
    Q, K, _ = problem("float32", (7, 6, 3), (2,), (2,))
    for function in (hf.attention_matrix, hf.attention_logits):
        out = np.full((2, 3, 6), np.nan, np.float32)
        result = function(Q, K, rows=slice(1, 4), out=out)
        assert result is out
        np.testing.assert_array_equal(out, function(Q, K)[:, 1:4])


@pytest.mark.parametrize(
    "out",
    [
        np.empty((7, 5), np.float32),
        np.empty((1, 7, 6), np.float32),
        np.empty((7, 6), np.float64),
        np.empty((7, 6), ">f4"),
        np.empty((7, 6), np.float32, order="F"),
        np.empty((7, 12), np.float32)[:, ::2],
        np.broadcast_to(np.float32(0), (7, 6)),
        np.zeros(169, np.uint8)[1:].view(np.float32).reshape(7, 6),
        [[0.0] * 6] * 7,
    ],
)
def test_out_that_does_not_fit(out: Any) -> None:
    Q, K, _ = problem("float32", (7, 6, 3))
    message = r"out must be a writable, aligned C-contiguous .* \(7, 6\)"
    with pytest.raises(InputError, match=message):
        hf.attention_matrix(Q, K, out=out)


def test_out_may_not_overwrite_what_is_read_later() -> None:
    Q, K, _ = problem("float32", (300, 300, 300))
    rows = [1, 0] * 150
    want = hf.attention_matrix(Q, K, rows=rows)
    try:
        got = hf.attention_matrix(Q, K, rows=rows, out=Q)
    except InputError:
        return  # refusing such an output is fine too
    np.testing.assert_array_equal(got, want)


# What cannot be computed --------------------------------------------------------------


def every_thread_says(
    message: str, call: Callable[..., Any], *args: np.ndarray, **options: Any
) -> None:
    said = set()
    for threads in THREADS:
        with pytest.raises(NonFiniteError, match=message) as caught:
            call(*args, num_threads=threads, **options)
        said.add(str(caught.value))
    assert len(said) == 1, said


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matrix": lambda Q, K, V, **kw: hf.attention_matrix(Q, K, **kw),
    "logits": lambda Q, K, V, **kw: hf.attention_logits(Q, K, **kw),
    "topk": lambda Q, K, V, **kw: hf.attention_topk(Q, K, 2, **kw),
    "apply": hf.attention_apply,
    "stats": lambda Q, K, V, **kw: hf.attention_stats(Q, K, **kw),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_non_finite_input_names_the_place(name: str, dtype: str) -> None:
    call = FUNCTIONS[name]
    big = float(np.finfo(dtype).max)
    root = math.sqrt(big) * 2

    def problem_with(**bad: Any) -> tuple[np.ndarray, ...]:
        arrays = dict(zip("QKV", problem(dtype, (150, 140, 3)), strict=True))
        for key, (place, value) in bad.items():
            for at in place if isinstance(place, list) else [place]:
                arrays[key[0]][at] = value
        return tuple(arrays.values())

    for value, word in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")):
        args = problem_with(Q=([(120, 2), (77, 1), (149, 0)], value))
        every_thread_says(f"Q must be finite; got {word} at row 77, column 1", call, *args)
        args = problem_with(K=([(139, 0), (101, 2)], value))
        every_thread_says(f"K must be finite; got {word} at row 101, column 2", call, *args)
    args = problem_with(Q=([(99, 1), (120, 1)], root), K=([(70, 1), (139, 1)], root))
    every_thread_says("got inf at row 99, column 70", call, *args)
    args = problem_with()
    bias = np.zeros((150, 140), dtype)
    bias[88, 33] = bias[149, 1] = np.inf
    for by_columns in (bias, np.asfortranarray(bias)):
        every_thread_says(r"bias .* got inf at row 88, column 33", call, *args, bias=by_columns)
    bias[88, 33] = np.nan
    every_thread_says(r"bias .* got nan at row 88, column 33", call, *args, bias=bias)
    large = math.sqrt(big) * 0.99
    args = problem_with(Q=((5, 0), large), K=((6, 0), large))
    bias = np.full((150, 140), big / 2, dtype)
    message = r"logits .* bias .* inf at row 5, column 6"
    every_thread_says(message, call, *args, bias=bias, scale=1.0)
    if name == "apply":
        args = problem_with(V=([(100, 4), (139, 0)], np.nan))
        every_thread_says("V must be finite; got nan at row 100, column 4", call, *args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_non_finite_input_names_the_head(name: str) -> None:
    Q, K, V = problem("float32", (30, 40, 3), (2, 3), (2, 3))
    call = FUNCTIONS[name]
    bad = Q.copy()
    bad[1, 1, 7, 2] = np.nan
    every_thread_says("head 4, row 7, column 2", call, bad, K, V)
    bad = K.copy()
    bad[0, 2, 9, 1] = np.inf
    every_thread_says("head 2, row 9, column 1", call, Q, bad, V)
    queries, keys = Q.copy(), K.copy()
    queries[1, 2, 3] = keys[1, 2, 5] = 3e30
    every_thread_says("head 5, row 3, column 5", call, queries, keys, V)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_masked_may_overflow(name: str) -> None:
    call = FUNCTIONS[name]
    Q, K, V = problem("float32", (60, 60, 3))
    Q[50:] = 0  # the rows that may attend to key 50
    tame = call(Q, K, V, mask="causal")
    Q[10], K[50] = 1e30, 1e30
    bias = np.zeros((60, 60))
    bias[0, 1] = np.nan
    for threads in THREADS:
        got = call(Q, K, V, mask="causal", bias=bias, num_threads=threads)
        if name in ("matrix", "apply"):
            np.testing.assert_array_equal(got[:10], tame[:10])
    with pytest.raises(NonFiniteError):
        call(Q, K, V)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("leads", [((2,), (2,)), ((2, 4), (2, 2))], ids=str)
def test_padding_is_never_read(name: str, leads: Any) -> None:
    Q, K, V = problem("float32", (20, 90, 3), *leads)
    lengths = np.array([55, 0])
    clean = FUNCTIONS[name](Q, K, V, key_lengths=lengths)
    for b, length in enumerate(lengths):
        K[b, ..., length:, :] = np.nan
        V[b, ..., length:, :] = np.inf
    for threads in THREADS:
        dirty = FUNCTIONS[name](Q, K, V, key_lengths=lengths, num_threads=threads)
        if name == "stats":
            np.testing.assert_array_equal(clean.entropy, dirty.entropy)
        else:
            np.testing.assert_array_equal(clean, dirty)
    with pytest.raises(NonFiniteError):
        FUNCTIONS[name](Q, K, V, key_lengths=56)


# Kinds of input -----------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=-1), 3, axis=-2)[..., ::3, ::2],
    "rows-apart": lambda x: np.repeat(x, 3, axis=-2)[..., ::3, :],
    "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "rows-reversed": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "transposed": lambda x: np.moveaxis(np.moveaxis(x, -2, 0).copy(), 0, -2),
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "unaligned": lambda x: (
        np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    ),
    "in-records": lambda x: in_records(x),
}


def in_records(x: np.ndarray) -> np.ndarray:
    records = np.zeros(x.shape, [("pad", np.uint8), ("value", x.dtype)])
    records["value"] = x
    return records["value"]


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("lead", [(), (2, 2)])
def test_layouts(layout: str, dtype: str, lead: tuple[int, ...]) -> None:
    rng = RNG(5)
    arrays = [
        (rng.standard_normal((*lead, rows, d)) * 3).astype(dtype)
        for rows, d in ((10, 4), (12, 4), (12, 3))
    ]
    plain = "float32" if dtype in ("float32", "float16") else "float64"
    Q, K, V = (read_only(LAYOUTS[layout](x)) for x in arrays)
    before = [x.tobytes() for x in (Q, K, V)]
    for function, args, clean in (
        (hf.attention_matrix, (Q, K), arrays[:2]),
        (hf.attention_apply, (Q, K, V), arrays),
    ):
        got = function(*args)
        np.testing.assert_allclose(got, function(*(x.astype(plain) for x in clean)), rtol=1e-4)
        if layout != "byte-swapped":  # see test_byte_swapped_floats_stay_narrow
            assert got.dtype == plain
            np.testing.assert_array_equal(got, function(*(x.astype(plain) for x in clean)))
    assert before == [x.tobytes() for x in (Q, K, V)]


@pytest.mark.parametrize("dtype", [">f4", ">f2"])
def test_byte_swapped_floats_stay_narrow(dtype: str) -> None:
    x = np.ones((3, 2), dtype)
    assert hf.attention_matrix(x, x).dtype == np.float32


@pytest.mark.parametrize(
    "layout",
    [name for name in LAYOUTS],
)
@pytest.mark.parametrize("lead", [(), (2,), (2, 2)])
def test_layouts_of_bias_and_mask(layout: str, lead: tuple[int, ...]) -> None:
    Q, K, _ = problem("float32", (10, 12, 4), lead, lead)
    rng = RNG(6)
    bias = rng.standard_normal((*lead, 10, 12)).astype(np.float32)
    mask = rng.random((*lead, 10, 12)) < 0.5
    want = hf.attention_matrix(Q, K, bias=bias, mask=mask)
    got = hf.attention_matrix(Q, K, bias=LAYOUTS[layout](bias), mask=LAYOUTS[layout](mask))
    np.testing.assert_array_equal(got, want)


def test_broadcast_inputs() -> None:
    Q, K, V = problem("float32", (10, 12, 4))
    want = hf.attention_matrix(Q, K)
    many = hf.attention_matrix(np.broadcast_to(Q, (3, 10, 4)), np.broadcast_to(K, (3, 12, 4)))
    np.testing.assert_array_equal(many, np.broadcast_to(want, (3, 10, 12)))
    one = hf.attention_apply(np.broadcast_to(Q[0], Q.shape), K, np.broadcast_to(V[0], V.shape))
    np.testing.assert_allclose(one, np.broadcast_to(V[0], (10, 5)), rtol=1e-5)


def test_lists() -> None:
    Q, K, _ = problem("float64", (3, 4, 2))
    want = hf.attention_matrix(Q, K)
    np.testing.assert_array_equal(hf.attention_matrix(Q.tolist(), K.tolist()), want)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_numpy_matrix() -> None:
    Q, K, _ = problem("float64", (3, 4, 2))
    want = hf.attention_matrix(Q, K)
    np.testing.assert_array_equal(hf.attention_matrix(Q.view(np.matrix), K), want)


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((3, 2), complex),
        np.ones((3, 2), object),
        np.array([["a", "b"]]),
        np.ones((3, 2), np.longdouble),
        None,
        sp.csr_array(np.ones((3, 2))),
    ],
    ids=["complex", "object", "text", "longdouble", "none", "sparse"],
)
def test_inputs_that_are_no_real_matrices(bad: Any) -> None:
    with pytest.raises(InputError):
        hf.attention_matrix(bad, np.ones((3, 2)))
    with pytest.raises(InputError):
        hf.attention_matrix(np.ones((3, 2)), bad)


class Exporter:
    """An array of another library, which supports DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Elsewhere(Exporter):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("on some device")


def test_dlpack() -> None:
    Q, K, V = problem("float32", (6, 7, 3))
    want = hf.attention_apply(Q, K, V)
    np.testing.assert_array_equal(hf.attention_apply(Exporter(Q), Exporter(K), Exporter(V)), want)
    with pytest.raises(InputError, match="K must be an array on the CPU"):
        hf.attention_matrix(Q, Elsewhere(K))


@needs_torch
def test_torch_tensors() -> None:
    Q, K, V = problem("float32", (6, 7, 4), (2, 4), (2, 2))
    tensors = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    mask = torch.rand(6, 7) < 0.7
    got = hf.attention_apply(*tensors, mask=mask)
    np.testing.assert_array_equal(got, hf.attention_apply(Q, K, V, mask=mask.numpy()))
    want = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, enable_gqa=True
    )
    some = mask.any(dim=1).numpy()
    np.testing.assert_allclose(got[:, :, some], want.detach().numpy()[:, :, some], atol=1e-5)
    # Views with a bit that says to take the opposite numbers.
    opposite = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    for x in (opposite, opposite.bfloat16(), -opposite.bfloat16()._neg_view()):
        np.testing.assert_array_equal(hf.Attention(x, x).Q, x.resolve_neg().float().numpy())
    with pytest.raises(InputError, match="Q must be an array: Can't call numpy"):
        hf.attention_matrix([*tensors[0]], K)
    half = tensors[0].detach().half()
    assert hf.attention_matrix(half, half).dtype == np.float32
    assert hf.attention_matrix(tensors[0].double(), K).dtype == np.float64
    moved = tensors[0].detach().transpose(-1, -2).contiguous().transpose(-1, -2)
    np.testing.assert_array_equal(hf.attention_matrix(moved, K), hf.attention_matrix(Q, K))


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_elsewhere_are_refused(dtype: str) -> None:
    x = torch.zeros(3, 2, dtype=getattr(torch, dtype), device="meta")
    with pytest.raises(InputError, match="Q must be an array on the CPU"):
        hf.attention_matrix(x, x)


# Top-k --------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, "causal", ("window", 90)])
def test_topk_by_tiles_is_topk_by_hits(mask: Any) -> None:
    """With a dense mask, even one that allows everything, the scan cannot work in registers."""
    rng = np.random.default_rng(0)
    Q, K = (5 * rng.normal(size=(1, 700, 9)).astype("f4") for _ in range(2))
    whole = hf.attention_topk(Q, K, 5, mask=mask)
    dense = hf.attention_logits(Q[0], K[0], mask=mask) > -np.inf
    for a, b in zip(whole, hf.attention_topk(Q, K, 5, mask=dense), strict=True):
        np.testing.assert_array_equal(a, b)
    if mask is None:  # this changes the blocks of rows
        for a, b in zip(whole, hf.attention_topk(Q[:, 13:], K, 5), strict=True):
            np.testing.assert_array_equal(a[:, 13:], b)
    scores = hf.attention_topk(Q, K, 5, values="logits", mask=mask)
    check_topk_logits(scores, whole, hf.attention_logits(Q, K, mask=mask))
    for a, b in zip(scores, hf.attention_topk(Q, K, 5, values="logits", mask=dense), strict=True):
        np.testing.assert_array_equal(a, b)


def test_topk_ties_go_to_the_lower_column() -> None:
    Q, K = np.zeros((5, 2), np.float32), np.ones((600, 2), np.float32)
    for k in (1, 7, 300, 600):
        top = hf.attention_topk(Q, K, k)
        np.testing.assert_array_equal(top.indices.reshape(5, k), np.tile(np.arange(k), (5, 1)))
        columns, weights = hf.attention_topk(Q[None], K, k)
        np.testing.assert_array_equal(columns[0], np.tile(np.arange(k), (5, 1)))
        same_topk((columns, np.zeros((1, 5, k))), hf.attention_topk(Q[None], K, k, values="logits"))
        assert ulps(weights, np.full(weights.shape, Real(1) / 600)) <= 4
    # Equal values in different tiles, with larger ones between.
    K = RNG(7).integers(0, 4, (600, 1)).astype(np.float32)
    check_topk(
        *hf.attention_topk(np.ones((1, 1, 1), "f4"), K, 250),
        K.T[None],
        softmax(K.T[None]),
        ordered=True,
    )


def test_topk_of_fewer_keys_than_k() -> None:
    Q, K, _ = problem("float64", (6, 6, 3))
    top = hf.attention_topk(Q, K, 4, mask="causal")
    np.testing.assert_array_equal(np.diff(top.indptr), [1, 2, 3, 4, 4, 4])
    columns, weights = hf.attention_topk(Q[None], K[None], 4, mask="causal")
    assert columns.shape == weights.shape == (1, 6, 4)
    np.testing.assert_array_equal(columns[0, 0], [0, -1, -1, -1])
    np.testing.assert_array_equal(weights[0, 0], [1, 0, 0, 0])
    assert (np.diff(weights, axis=-1) <= 0).all()
    scores = hf.attention_topk(Q, K, 4, values="logits", mask="causal")
    np.testing.assert_array_equal(np.diff(scores.indptr), [1, 2, 3, 4, 4, 4])
    columns, logits = hf.attention_topk(Q[None], K[None], 4, values="logits", mask="causal")
    np.testing.assert_array_equal(columns[0, 0], [0, -1, -1, -1])
    np.testing.assert_array_equal(logits[0, 0, 1:], [-np.inf] * 3)


def test_topk_values_of_another_kind() -> None:
    Q, K, _ = problem("float64", (6, 6, 3))
    with pytest.raises(InputError, match="values must be 'weights' or 'logits'; got 'scores'"):
        hf.attention_topk(Q, K, 2, values="scores")
    with pytest.raises(InputError, match="renormalize scales weights; got values='logits'"):
        hf.attention_topk(Q, K, 2, values="logits", renormalize=True)


def test_topk_weights_are_of_the_whole_row_unless_renormalized() -> None:
    Q, K, _ = problem("float32", (50, 70, 3))
    matrix = hf.attention_matrix(Q, K)
    top = hf.attention_topk(Q, K, 5)
    np.testing.assert_allclose(
        top.toarray()[top.toarray() > 0], matrix[top.toarray() > 0], rtol=1e-6
    )
    assert (np.asarray(top.sum(axis=1)) < 1).all()
    scaled = hf.attention_topk(Q, K, 5, renormalize=True)
    np.testing.assert_array_equal(scaled.indices, top.indices)
    np.testing.assert_allclose(np.asarray(scaled.sum(axis=1)), 1, rtol=1e-6)
    _, weights = hf.attention_topk(Q[None], K, 5, mask=np.zeros((50, 70), bool), renormalize=True)
    assert (weights == 0).all()
    assert scaled.dtype == top.dtype == np.float32


@pytest.mark.parametrize(
    "k",
    [
        *(0, 8, -1, 1.5),
        *(k for k in (np.inf, np.nan, None, "two")),
    ],
    ids=str,
)
def test_topk_k_out_of_range(k: Any) -> None:
    Q, K, _ = problem("float32", (5, 7, 3))
    with pytest.raises(InputError, match=r"k must (lie|be an integer) in 1 ... 7"):
        hf.attention_topk(Q, K, k)


# Statistics ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *(("float32", size) for size in (0.01, 1.0, 30.0, 3000.0)),
        *(("float64", size) for size in (0.01, 1.0, 30.0, 3000.0)),
    ],
)
def test_stats(dtype: str, size: float) -> None:
    Q, K, _ = problem(dtype, (70, 530, 3))
    Q = (Q * size).astype(dtype)
    shares = (0.01, 0.25, 0.5, 0.9, 0.999)
    stats = hf.attention_stats(Q, K, shares=shares)
    assert stats.shares == shares
    logits = hf.attention_logits(Q, K)
    check_stats(stats, softmax(logits), dtype, logits)
    wide = logits.astype(Real)
    top = wide.max(axis=1, keepdims=True)
    log_sum = (np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0]).astype(float)
    np.testing.assert_allclose(stats.log_sum, log_sum, rtol=8 * unit(dtype), atol=1e-6)
    assert "median entropy" in repr(stats)


def test_stats_without_shares() -> None:
    Q, K, _ = problem("float32", (4, 5, 3), (2,), (2,))
    stats = hf.attention_stats(Q, K, shares=())
    assert stats.keys_for_share.shape == (2, 4, 0)
    assert stats.entropy.shape == (2, 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [20, 100])  # a row that is compared at once, and one in bins
def test_a_share_that_equal_weights_hold_exactly(m: int, dtype: str) -> None:
    for logit in np.linspace(-3, 3, 41):
        q, k = np.full((1, 1), logit, dtype), np.ones((m, 1), dtype)
        for shares in ((0.05, 0.25, 0.5, 0.75, 0.95), (0.5, 1.0)):
            stats = hf.attention_stats(q, k, scale=1, shares=shares)
            expected = np.rint(m * np.array(shares))
            np.testing.assert_array_equal(stats.keys_for_share[0], expected)


@pytest.mark.parametrize("n", [5, 999, 1000])
def test_a_full_share_is_at_most_all_keys(n: int) -> None:
    x = RNG(8).standard_normal((n, 8)).astype(np.float32)
    counts = hf.attention_stats(x, x, shares=(1.0,)).keys_for_share
    assert counts.max() <= n


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, np.nan])
def test_shares_out_of_range(share: float) -> None:
    with pytest.raises(InputError, match="shares must lie in"):
        hf.attention_stats(np.ones((2, 2)), np.ones((2, 2)), shares=(0.5, share))


# Attention ----------------------------------------------------------------------------


def test_attention_is_the_functions_with_settings() -> None:
    Q, K, V = problem("float32", (9, 11, 4))
    attention = hf.Attention(Q, K, scale=0.3, mask="causal")
    options = {"scale": 0.3, "mask": "causal"}
    np.testing.assert_array_equal(attention.matrix(), hf.attention_matrix(Q, K, **options))
    np.testing.assert_array_equal(attention.logits(), hf.attention_logits(Q, K, **options))
    np.testing.assert_array_equal(attention.apply(V), hf.attention_apply(Q, K, V, **options))
    for values in ("weights", "logits"):
        top = hf.attention_topk(Q, K, 2, values=values, **options)
        same_topk(attention.topk(2, values=values), top)
    np.testing.assert_array_equal(
        attention.stats().entropy, hf.attention_stats(Q, K, **options).entropy
    )
    out = np.empty((2, 11), np.float32)
    assert attention.matrix(rows=[1, 2], out=out, num_threads=2) is out
    np.testing.assert_array_equal(out, attention.matrix()[1:3])
    assert attention.dim == 4
    assert (
        repr(attention) == "Attention(Q (9, 4), K (11, 4), dtype float32, scale 0.3, mask 'causal')"
    )
    assert hf.Attention(Q, K).scale == 0.5
    with pytest.raises(AttributeError):
        attention.scale = 1.0  # type: ignore[misc]


CHANGED: dict[str, Options] = {
    "a bias in a wider dtype": {"bias": np.zeros((6, 6))},
    "a bias of some axes": {"bias": np.zeros((2, 1, 6, 6), np.float32)},
    "a mask of some axes": {"mask": np.ones((2, 1, 6, 6), bool)},
    "a mask whose axes are not in order": {"mask": np.ones((3, 2, 6, 6), bool).swapaxes(0, 1)},
    "slopes": {"position": ("alibi", np.ones(3))},
    "a slope": {"position": ("alibi", np.array(1.0))},
    "frequencies": {"position": ("rope", [1.0, 0.5])},
    "sinks": {"sinks": np.zeros(3)},
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_the_core_copied_does_not_change(name: str) -> None:
    options = copy.deepcopy(CHANGED[name])
    Q, K, _ = problem("float32", (6, 6, 4), (2, 3), (2, 3))
    attention = hf.Attention(Q, K, **options)
    before = attention.matrix()
    ((option, value),) = options.items()
    array = value[1] if isinstance(value, tuple) else value
    if np.ndim(array):
        array[0] = 1 - array[0]
    else:
        array[()] = 7
    assert (hf.Attention(Q, K, **options).matrix() != before).any()
    for own in (attention, copy.copy(attention), pickle.loads(pickle.dumps(attention))):
        np.testing.assert_array_equal(own.matrix(), before)
    with pytest.raises(InputError, match=f"{option} must not be given beside an Attention"):
        hf.Attention.of(attention, **options)


def test_statistics_are_compared_and_hashed_by_identity() -> None:
    first, second = (hf.attention_stats(np.eye(3), np.eye(3)) for _ in range(2))
    assert first != second
    assert len({first, first, second}) == 2


def test_attention_refuses_at_once() -> None:
    with pytest.raises(InputError, match="same head size"):
        hf.Attention(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(InputError, match="mask must"):
        hf.Attention(np.ones((2, 3)), np.ones((2, 3)), mask="diagonal")
    with pytest.raises(InputError, match="scale must"):
        hf.Attention(np.ones((2, 3)), np.ones((2, 3)), scale=0)


# Resources ----------------------------------------------------------------------------


@pytest.mark.full
def test_topk_memory_is_not_quadratic() -> None:
    script = """
        import resource
        import numpy as np, headfit as hf
        n = 20000
        x = np.random.default_rng(0).standard_normal((n, 4)).astype("f4")
        hf.attention_topk(x[:50], x[:50], 4)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        hf.attention_topk(x, x, 4, mask="causal")
        hf.attention_apply(x, x, x)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 100e6, grown  # an n x n array of float32 would take 1.6e9


@pytest.mark.full
def test_ctrl_c_interrupts_within_a_second() -> None:
    script = """
        import signal, time
        import numpy as np, headfit as hf
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even where it is ignored
        x = np.ones((400_000, 64), "f4")
        print("ready", flush=True)
        try:
            hf.attention_stats(x, x)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(1)
            assert child.poll() is None, "done too soon for this test"
            start = time.perf_counter()
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            assert time.perf_counter() - start < 30  # takes a second on a machine that is not busy
        finally:
            child.kill()
