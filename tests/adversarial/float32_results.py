"""What kernels may compute for scale * Q K^T in float32, simulated operation by operation.

The scale may be applied to the queries, to the keys, to the product, or as its square root to
both, and log2(e) with it; sums run in several orders, with and without fused multiply-add;
subnormal numbers are kept or flushed to zero. For each placement of the scale, with and without
flushing, the results are the smallest and the largest logit over the orders, entry by entry:
kernels may sum different entries in different orders, for example at the edges of blocks.
"""

from __future__ import annotations

import math
import random

import numpy as np

TINY = np.float32(2.0**-126)
ZERO = np.float32(0)
LOG2_E = math.log2(math.e)


def _clean(x: np.ndarray, flush: bool) -> np.ndarray:
    return np.where(np.abs(x) < TINY, ZERO, x) if flush else x


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a b + c of float32 arrays with one rounding.

    The product is exact in float64. The sum is rounded to odd there, and then to float32.
    """
    p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = p + c
    part = total - p
    error = (p - (total - part)) + (c - part)
    even = (np.ascontiguousarray(total).view(np.int64) & 1) == 0
    other = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0)
    return np.where(inexact & even, other, total).astype(np.float32)


def _scaled(Q: np.ndarray, K: np.ndarray, scale: float, flush: bool):
    """Yield queries, keys and a function to apply to products, for every placement of the scale.

    Heads of one or two coordinates are also scaled in float64; for larger ones this makes little
    difference.
    """
    single = _clean(np.float32(scale), flush)
    q, k = _clean(Q, flush), _clean(K, flush)
    yield _clean(q * single, flush), k, None
    yield q, _clean(k * single, flush), None
    yield q, k, lambda x: _clean(x * single, flush)
    root = _clean(np.float32(math.sqrt(abs(scale))), flush)
    yield _clean(q * np.copysign(root, np.float32(scale)), flush), _clean(k * root, flush), None
    if q.shape[1] > 2:
        return
    yield _clean((q.astype(np.float64) * scale).astype(np.float32), flush), k, None
    yield q, k, lambda x: _clean((x.astype(np.float64) * scale).astype(np.float32), flush)


def _orders(d: int, seed: float) -> list[tuple[str, list[int]]]:
    forward = list(range(d))
    if d == 1:
        return [("sum", forward)]
    if d == 2:
        return [("sum", forward), ("fused", forward), ("fused", forward[::-1])]
    rng = random.Random(seed)
    shuffled, again = rng.sample(forward, d), rng.sample(forward, d)
    orders = [("sum", forward), ("fused", again), ("tree", again)]
    if d <= 8:
        orders += [("sum", shuffled), ("fused", forward)]
    return orders


def _dot(q: np.ndarray, k: np.ndarray, kind: str, order: list[int], flush: bool) -> np.ndarray:
    rows = [q[:, p, np.newaxis] for p in order]
    columns = [k[np.newaxis, :, p] for p in order]
    if kind == "fused":
        total = _clean(rows[0] * columns[0], flush)
        for a, b in zip(rows[1:], columns[1:], strict=True):
            total = _clean(fused(a, b, total), flush)
        return total
    terms = [_clean(a * b, flush) for a, b in zip(rows, columns, strict=True)]
    while len(terms) > 1:
        if kind == "sum":
            terms[:2] = [_clean(terms[0] + terms[1], flush)]
        else:
            pairs = [_clean(a + b, flush) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + (terms[-1:] if len(terms) % 2 else [])
    return terms[0]


def results(
    Q: np.ndarray, K: np.ndarray, scale: float, powers_of_two: bool = True
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs (lowest, highest) of logits, without repetition.

    Q and K are rounded to float32 first, where it does not hold them. An entry is NaN where some
    order gives NaN.
    """
    with np.errstate(all="ignore"):
        q, k = np.asarray(Q, np.float32), np.asarray(K, np.float32)
        orders = _orders(q.shape[1], scale)
        found: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        for flush in (False, True) if _may_flush(q, k, scale) else (False,):
            for low, high in _extremes(q, k, scale, orders, flush):
                found[low.tobytes() + high.tobytes()] = low, high
            if not powers_of_two:
                continue
            # Fused kernels compute powers of 2, of logits that are multiplied by log2(e).
            low, high = next(_extremes(q, k, scale * LOG2_E, orders, flush))
            low, high = _inward(low, 1), _inward(high, -1)
            found[low.tobytes() + high.tobytes()] = low, high
    return list(found.values())


def truncated_dot(q: np.ndarray, k: np.ndarray, bits: int, step: int, down: bool) -> np.ndarray:
    """Return products of rows, as tensor cores add them up: `step` terms at a time, in a few bits.

    Terms and the accumulator are truncated to multiples of the last of so many bits of the largest
    one, towards zero or downwards, and so is the sum.
    """
    towards = np.floor if down else np.trunc

    def cut(x: np.ndarray, largest: np.ndarray) -> np.ndarray:
        unit = np.ldexp(1.0, np.maximum(np.frexp(largest)[1] - bits, -1000))
        return towards(x / unit) * unit

    terms = q.astype(np.float64)[:, np.newaxis] * k.astype(np.float64)
    total = np.zeros(terms.shape[:2])
    for first in range(0, q.shape[1], step):
        parts = np.concatenate([terms[..., first : first + step], total[..., np.newaxis]], axis=-1)
        parts = cut(parts, np.abs(parts).max(axis=-1, keepdims=True))
        total = parts.sum(axis=-1)  # exact in float64
        total = cut(total, np.abs(total))
    return total.astype(np.float32)


def _extremes(q, k, scale, orders, flush):
    for one, other, after in _scaled(q, k, scale, flush):
        low = high = None
        for kind, order in orders:
            x = _dot(one, other, kind, order, flush)
            if after is not None:
                x = after(x)
            low = x if low is None else np.minimum(low, x)
            high = x if high is None else np.maximum(high, x)
        yield low, high


def _inward(x: np.ndarray, sign: int) -> np.ndarray:
    """Return a multiple of 2**-149 just above log(2) x for sign = 1, just below for sign = -1."""
    exact = x.astype(np.float64) * math.log(2)
    moved = np.ldexp(exact + sign * 2.0**-50 * np.abs(exact), 149)
    whole = np.ldexp(np.ceil(moved) if sign > 0 else np.floor(moved), -149)
    return np.where(np.isfinite(exact), whole, exact)


def _may_flush(q: np.ndarray, k: np.ndarray, scale: float) -> bool:
    """Whether an intermediate result may be subnormal, so that flushing matters."""
    floor = 2.0**-60  # far above subnormal, since terms that cancel leave small sums
    sizes = [np.abs(x[x != 0]).min(initial=np.inf) for x in (q, k)]
    a, b = (float(x) for x in sizes)
    s = abs(scale)
    return min(a, b, s, a * b, a * b * s, a * s, b * s) < floor
