"""From a head to the truth about it, and to the errors that a careful certificate may make."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from tests.adversarial import dyadic, float32_results, generators, oracle
from tests.adversarial.generators import Head, module_product

WIDE = np.longdouble  # magnitudes only: no verdict depends on them


def truth_of(head: Head, logits: list, e: int) -> oracle.Truth:
    """Return the truth about a head whose exact logits are integers times 2**e."""
    allowed = np.array(oracle.allowed_matrix(head.mask, len(head.A)))
    pattern = oracle.Pattern(head.A, allowed)
    if head.reading == "matrix":
        return oracle.Truth(oracle.matrix_rows(pattern, head.M), _matrix_radii(head))
    if head.eager:
        rows = _rows_between(pattern, _eager_logits(head))
    elif head.accumulate == "float32":
        rows = _rows_between(pattern, _float32_logits(head))
    elif head.logits_dtype:
        rows = oracle.rounded_rows(pattern, logits, e, head.logits_dtype)
    else:
        rows = oracle.exact_rows(pattern, logits, e)
    return oracle.Truth(rows, radii(head, allowed))


def kernel_inputs(head: Head) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries and keys that a kernel in float32 starts from.

    A statement about a module starts from the exact X W_Q and X W_K: they are rounded to float32
    once, straight from integers.
    """
    if not head.is_module:
        return head.Q, head.K
    products = (module_product(head.X, w) for w in (head.W_Q, head.W_K))
    q, k = (
        np.array([[dyadic.rounded(m, e, "float32") for m in row] for row in rows])
        for rows, e in products
    )
    return q, k


Extremes = Iterator[tuple[np.ndarray, np.ndarray]]


def _float32_logits(head: Head) -> Extremes:
    """Yield the lowest and the highest logits of kernels that work in float32."""
    q, k = kernel_inputs(head)
    # Powers of two would be of the sum with a bias.
    fused = head.logits_dtype is None and head.bias is None
    for low, high in float32_results.results(q, k, head.scale, fused):
        if head.bias is not None:
            with np.errstate(all="ignore"):
                low, high = (np.float32(x) + np.float32(head.bias) for x in (low, high))
        if head.logits_dtype:
            low, high = (dyadic.round_array(x, head.logits_dtype) for x in (low, high))
        yield np.float64(low), np.float64(high)


def _eager_logits(head: Head) -> Extremes:
    """Yield the lowest and the highest logits of code that rounds after every operation."""

    def rounded(x: np.ndarray) -> np.ndarray:
        return np.float32(dyadic.round_array(x, head.eager))

    q, k = (np.float64(rounded(x)) for x in (head.Q, head.K))
    with np.errstate(all="ignore"):
        scale, inverse = np.float32(head.scale), np.float32(1 / head.scale)
        for ends in float32_results.results(q, k, 1.0, powers_of_two=False):
            products = [rounded(x) for x in ends]
            for scaled in ([x * scale for x in products], [x / inverse for x in products]):
                x = [rounded(s) for s in scaled]
                if head.softcap is not None:
                    cap = np.float32(head.softcap)
                    x = [rounded(rounded(np.tanh(rounded(y / cap))) * cap) for y in x]
                if head.bias is not None:
                    x = [rounded(y + rounded(head.bias)) for y in x]
                yield np.float64(np.minimum(*x)), np.float64(np.maximum(*x))


def _rows_between(pattern: oracle.Pattern, found: Extremes) -> list[list[oracle.Row]]:
    """Return the different rows of logits between each pair of extremes."""
    rows: list[list[oracle.Row]] = [[] for _ in range(pattern.n)]
    seen: list[set] = [set() for _ in range(pattern.n)]
    for low, high in found:
        low, high = np.where(pattern.allowed, (low, high), 0).tolist()
        for i in range(pattern.n):
            key = (*low[i], *high[i])
            if key not in seen[i]:
                seen[i].add(key)
                rows[i].append(oracle.narrow_row(pattern, i, high[i], low[i]))
    return rows


def _norms(x: np.ndarray) -> np.ndarray:
    wide = x.astype(WIDE)
    with np.errstate(all="ignore"):
        return np.sqrt((wide * wide).sum(axis=1))


def _sizes(head: Head) -> tuple[np.ndarray, float, float, float]:
    """Return each query's norm, the largest key norm, their absolute error, and terms per product.

    A module's products may be computed by a library that flushes subnormal numbers, inputs too.
    """
    if not head.is_module:
        return _norms(head.Q), float(_norms(head.K).max()), 0.0, head.Q.shape[1]
    x = _norms(head.X)
    w_q, w_k = (np.sqrt((w.astype(WIDE) ** 2).sum()) for w in (head.W_Q, head.W_K))
    terms = sum(head.W_Q.shape)
    if max(x.max(), w_q, w_k) > WIDE(2) ** 1000:
        return x, math.inf, 0.0, terms
    error = 64 * terms * 2.0**-1022 * (1 + x.max() + w_q + w_k)
    if head.computed == "float32":
        error += 4 * terms * 2.0**-126
    return x * w_q, x.max() * w_k, error, terms


def radii(head: Head, allowed: np.ndarray) -> list[float]:
    """Return for each row a bound on the errors of a scan in float64, or of what it covers."""
    q, k, error, terms = _sizes(head)
    scale = WIDE(abs(head.scale))
    narrow = head.accumulate == "float32" or (head.is_module and head.computed == "float32")
    unit, tiny, top = 2.0**-50, 2.0**-1018, 2.0**1000
    if narrow:
        unit, tiny, top = 2.0**-22, 2.0**-124, 2.0**118
    if head.is_module and head.accumulate == "exact":
        tiny = 2.0**-1018
    with np.errstate(all="ignore"):
        r = (terms + 8) * unit * scale * q * k
        r += (terms + 8) * tiny * (1 + scale) * (1 + q) * (1 + k)
        r += scale * error * (q + k + error) * 4
        if head.accumulate == "float32":
            root = np.sqrt(scale)
            r += (terms + 8) * tiny * (scale * (q + k) + root * (q + k) + q + k)
        largest = np.maximum(q, k) * np.maximum(1, scale)
        largest = np.maximum(largest, np.maximum(q * k, scale * q * k))
        # Kernels may flush a scale that is subnormal in float32.
        flushed = head.accumulate == "float32" and scale < 2.0**-126
        r = np.where((largest > top) | (scale > top) | flushed, np.inf, r)
        size = scale * q * k
        added = 0.0 if head.bias is None else float(np.abs(head.bias).max())
        r += (2.0**-50 if head.accumulate == "exact" else 2.0**-18) * 8 * added
        if head.bias is not None and head.accumulate == "float32":
            r += 2.0**-16 * size
        if name := head.eager or head.logits_dtype:
            digits, least, largest_exponent = dyadic.FORMATS[name]
            steps = 16 if head.eager else 1
            tiny = 2.0 ** (least - digits + 2) * (1 + scale)
            r += steps * ((size + added) * 2.0 ** (1 - digits) + tiny)
            reached = np.maximum(size + added, q * k) if head.eager else size
            # If a logit may be beyond the format, it is not known whether there is a softmax.
            r = np.where(reached + r > 2.0 ** (largest_exponent - 1), np.inf, r)
    return [float(x) for x in r]


def _matrix_radii(head: Head) -> list[float]:
    """Bound the errors of quotients: small, except where one leaves the range of float64."""
    with np.errstate(all="ignore"):
        parts = np.where(head.A > 0, head.M / head.A, 1.0)
    fine = np.isfinite(parts) & ((parts == 0) | (parts > 2.0**-1000)) & (parts < 2.0**1000)
    fine &= (head.M == 0) | (head.M > 2.0**-1000)
    return [2.0**-50 if ok else math.inf for ok in fine.all(axis=1)]


def may_be_refused(head: Head) -> bool:
    """Whether an error is an acceptable answer.

    This is so if unmasked logits computed in the arrays' dtype may overflow, and if the scale is
    not a normal number of that dtype.
    """
    if head.reading == "matrix":
        return False
    # A kernel's operands of 16 bits are multiplied in float32.
    _, least, largest = dyadic.FORMATS["float32" if head.eager else head.computed]
    if not 2.0**least <= abs(head.scale) < 2.0**largest:
        return True
    allowed = np.array(oracle.allowed_matrix(head.mask, len(head.A)))
    computed = "float32" if head.accumulate == "float32" else head.computed
    if head.eager:
        top = generators.largest_number(head.eager)
        if any(np.abs(x).max() > top for x in (head.Q, head.K, head.bias) if x is not None):
            return True
    if head.logits_dtype and dyadic.FORMATS[head.logits_dtype][2] < 1000:
        limit_logit = 2.0 ** (dyadic.FORMATS[head.logits_dtype][2] - 1)
    else:
        limit_logit = math.inf
    limit = WIDE(2) ** (dyadic.FORMATS[computed][2] - 3)
    scale = WIDE(abs(head.scale))
    with np.errstate(all="ignore"):
        if head.is_module:
            x, wq, wk = (abs(v.astype(WIDE)) for v in (head.X, head.W_Q, head.W_K))
            q, k = x @ wq, x @ wk
        else:
            q, k = (abs(v.astype(WIDE)) for v in (head.Q, head.K))
        if q.max() >= limit or (k.max() >= limit and head.is_module):
            return True
        products = np.where(allowed, q @ k.T, 0).max()
        sizes = (products, products * scale, (q * scale).max(initial=0), scale)
        if head.accumulate == "float32":
            sizes = (*sizes, (k * scale).max(initial=0))
        return bool(max(sizes) >= limit or products * scale >= limit_logit)
