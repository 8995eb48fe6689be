"""Families of inputs that attack a certificate, each aimed at one weakness of arithmetic.

A `Head` is everything but the tolerances. Its queries are drawn near 2**a, its keys near 2**b,
and the scale is chosen such that logits come near 2**t: the families differ in a, b and t, in the
shape of the significands and in what is masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from tests.adversarial import dyadic
from tests.adversarial.oracle import allowed_matrix

READINGS = (
    "exact", "accumulate", "float32", "bfloat16", "float16", "module", "matrix",
    "module-accumulate", "eager-bfloat16", "eager-float16",
)  # fmt: skip
DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass
class Head:
    """Stored numbers (as float64, exactly those of `dtype`) and the settings of a certificate."""

    family: str
    dtype: str
    reading: str
    A: np.ndarray
    mask: Any = None
    Q: np.ndarray | None = None
    K: np.ndarray | None = None
    scale: float | None = None
    X: np.ndarray | None = None
    W_Q: np.ndarray | None = None
    W_K: np.ndarray | None = None
    weights_dtype: str = ""  # the dtype of a module's weights
    k_dtype: str = ""  # the dtype of the keys, where it is not that of the queries
    M: np.ndarray | None = None
    accumulate: str = "exact"
    logits_dtype: str | None = None
    eager: str = ""  # the dtype of a kernel that rounds products, logits and sums with a bias
    softcap: float | None = None
    bias: np.ndarray | None = None
    flush: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> dict[str, Any]:
        """The options of the kernel that the statement is about."""
        if self.eager:
            rounds = dict.fromkeys(("operands", "product", "logits", "bias"), self.eager)
            return {"accumulate": "float32", **rounds}
        return {"accumulate": self.accumulate, "logits": self.logits_dtype}

    @property
    def is_module(self) -> bool:
        """Whether the logits are those of a module and its input."""
        return self.X is not None

    @property
    def computed(self) -> str:
        """The dtype in which the arrays are multiplied."""
        dtypes = self.dtype, self.weights_dtype, self.k_dtype
        return "float64" if "float64" in dtypes else "float32"


@dataclass
class Plan:
    """What a family asks for: exponents of queries, keys and logits, and how they look."""

    a: float = 0
    b: float = 0
    t: float = 1
    look: str = "normal"
    n: int = 0
    d: int = 0
    weights: str = ""
    mask: bool | None = None
    scale: float | None = None
    poison: bool = False
    constant: bool = False


# Significands ------------------------------------------------------------------------------


def _boundary(rng, shape, digits):
    u = 2.0**-digits
    values = np.array([1 - u, 1, 1 + 2 * u, 2 - 2 * u, 1.5, 1 + 4 * u, 1 - 2 * u])
    return rng.choice(values, shape) * rng.choice([-1.0, 1.0], shape)


def significands(rng, n: int, d: int, look: str, digits: int):
    """Return queries (n, d) and keys (n, d) of order 1."""
    q, k = rng.standard_normal((n, d)), rng.standard_normal((n, d))
    if look == "boundary":
        return _boundary(rng, (n, d), digits), _boundary(rng, (n, d), digits)
    if look == "integers":
        return rng.integers(-3, 4, (n, d)).astype(float), rng.integers(-3, 4, (n, d)).astype(float)
    if look == "ones":
        return np.ones((n, d)), np.ones((n, d))
    if look == "near":  # keys that differ only in their last digits
        base = rng.standard_normal(d)
        return q, base * (1 + k * 2.0 ** -rng.integers(1, digits + 2))
    if look == "repeated":
        return q, k[rng.integers(0, max(1, n // 2), n)]
    if look == "spread":  # entries of very different sizes
        return q * 2.0 ** rng.integers(-40, 1, (n, d)), k * 2.0 ** rng.integers(-40, 1, (n, d))
    if look == "cancelling" and d > 1:
        # The products of each pair of columns cancel up to the last digits.
        u = 2.0 ** (1 - digits) * 2.0 ** rng.integers(0, 5)
        for p in range(0, d - 1, 2):
            size = rng.uniform(1, 1.9, (n, 1)) if rng.random() < 0.5 else np.ones((n, 1))
            q[:, p : p + 2] = size * np.sign(q[:, :1])
            base = rng.uniform(1, 1.9, (n, 1)) if rng.random() < 0.5 else 1.0
            steps = rng.integers(-3, 4, (n, 2))
            k[:, p : p + 2] = base * np.array([1.0, -1.0]) + steps * u
    return q, k


# Families: plans ---------------------------------------------------------------------------


class Limits(NamedTuple):
    """Exponents of the format that numbers are stored in, and of the one they are multiplied in."""

    digits: int
    low: int  # exponent of the least number
    least: int  # exponent of the least normal number
    high: int  # exponent of the largest binade
    bottom: int  # `bottom` and `top` are least and high of the format to multiply in
    top: int


def _limits(stored: str, computed: str) -> Limits:
    digits, least, largest = dyadic.FORMATS[stored]
    _, bottom, top = dyadic.FORMATS[computed]
    return Limits(digits, least - digits + 1, least, largest, bottom, top)


def _split(rng, total: float, low: float, high: float):
    """Return two exponents within bounds that have this sum, if the bounds allow it."""
    a = total / 2 + rng.uniform(-1, 1) * min(20, high - low)
    a = min(max(a, low), high)
    return a, min(max(total - a, low), high)


def plain(rng, limits, reading):
    return Plan(rng.uniform(-2, 2), rng.uniform(-2, 2), rng.uniform(-1, 3))


def large(rng, limits, reading):
    return Plan(rng.uniform(-2, 5), rng.uniform(-2, 5), rng.uniform(3, 12), look="near")


def overflowing_products(rng, limits, reading):
    a, b = _split(
        rng, rng.uniform(limits.top - 6, limits.top + 60), max(limits.low, -20), limits.high
    )
    look = rng.choice(["normal", "near", "cancelling", "ones", "boundary"])
    return Plan(
        a, b, rng.choice([rng.uniform(-2, 6), rng.uniform(limits.top - 8, limits.top)]), look=look
    )


def overflowing_norms(rng, limits, reading):
    a = rng.uniform(min(limits.top / 2 - 3, limits.high - 4), limits.high)
    b = max(limits.low, rng.uniform(-6, 6) - a)
    a, b = (a, b) if rng.random() < 0.5 else (b, a)
    return Plan(a, b, rng.uniform(-2, 5), look=rng.choice(["normal", "near", "cancelling"]))


def overflowing_scaled_queries(rng, limits, reading):
    a = rng.uniform(0, limits.high)
    scale = 2.0 ** min(1023, limits.top - a + rng.uniform(-4, 12))
    b = max(limits.low, rng.uniform(-2, 6) - math.log2(scale) - a)
    return Plan(a, b, scale=scale, look=rng.choice(["normal", "near"]))


def underflowing_scaled_queries(rng, limits, reading):
    """Make scaled queries subnormal, and keys so large that the products are moderate again."""
    a = rng.uniform(max(limits.least, -30), min(limits.high, 30))
    scale = 2.0 ** max(-1022.0, limits.bottom - a - rng.uniform(0, 12))
    scale = max(scale, 2.0**limits.bottom) * rng.choice([1.0, 1.3])
    b = limits.high - rng.uniform(0, 4)
    return Plan(a, b, scale=scale, look=rng.choice(["normal", "near", "boundary"]))


def overflowing_exponentials(rng, limits, reading):
    return Plan(rng.uniform(-1, 3), rng.uniform(-1, 3), rng.uniform(6, 30))


def overflowing_logits(rng, limits, reading):
    a, b = _split(rng, rng.uniform(0, limits.top), max(limits.low, -20), limits.high)
    return Plan(
        a, b, rng.uniform(limits.top - 4, limits.top + 2), look=rng.choice(["normal", "near"])
    )


def underflowing_products(rng, limits, reading):
    a, b = _split(
        rng,
        rng.uniform(limits.bottom - limits.digits - 4, limits.bottom + limits.digits + 4),
        limits.low,
        20,
    )
    look = rng.choice(["normal", "near", "boundary", "cancelling", "ones"])
    return Plan(a, b, rng.uniform(-4, 6), look=look, d=int(rng.integers(1, 4)))


def subnormal(rng, limits, reading):
    a = rng.uniform(limits.low, limits.least + 2)
    b = rng.uniform(0, limits.high) if rng.random() < 0.7 else rng.uniform(limits.low, 0)
    a, b = (a, b) if rng.random() < 0.5 else (b, a)
    t = rng.uniform(-2, 6)
    scale = None if rng.random() < 0.5 else 2.0 ** min(max(0, t - a - b), 1000)
    return Plan(a, b, t, scale=scale, look=rng.choice(["normal", "near", "ones", "boundary"]))


def cancellation(rng, limits, reading):
    digits = limits.digits
    t = rng.uniform(-2, 4) + rng.choice([0, digits - 4, 20])
    d = int(rng.choice([2, 3, 4, 6, 8]))
    return Plan(rng.uniform(-2, 4), rng.uniform(-2, 4), t, look="cancelling", d=d)


def cancelling_overflow(rng, limits, reading):
    a, b = _split(
        rng, rng.uniform(limits.top - 2, limits.top + 10), max(limits.low, -20), limits.high
    )
    t = rng.uniform(-2, 6) + rng.choice([0, limits.digits - 3])
    return Plan(a, b, t, look="cancelling", d=int(rng.choice([2, 4, 5])))


def ties(rng, limits, reading):
    look = rng.choice(["integers", "repeated", "ones"])
    return Plan(0, 0, rng.uniform(0, 4), look=look, weights=rng.choice(["uniform", "softmax"]))


def boundaries(rng, limits, reading):
    t = rng.integers(-2, 9)
    return Plan(rng.integers(-3, 4), rng.integers(-3, 4), t, look="boundary", constant=True)


def format_edges(rng, limits, reading):
    """Make logits near the largest number of a format, or half way between two of its numbers."""
    name = reading if reading in dyadic.FORMATS else rng.choice(["float16", "bfloat16", "float32"])
    largest = dyadic.FORMATS[name][2]
    if rng.random() < 0.5:
        t = min(largest + 1, limits.top - 1) + rng.uniform(-0.02, 0.01) * rng.choice([1, 20])
    else:
        t = rng.uniform(-2, 4)
    look = rng.choice(["ones", "boundary", "near", "normal"])
    return Plan(rng.integers(-2, 7), rng.integers(-2, 7), t, look=look, d=1)


def extreme_weights(rng, limits, reading):
    kind = rng.choice(["huge ratios", "huge ratios", "fitted"])
    t = rng.uniform(4, 9.5) if kind == "fitted" else rng.uniform(-1, 5)
    return Plan(rng.uniform(-1, 2), rng.uniform(-1, 2), t, weights=kind)


def edges(rng, limits, reading):
    n, d = (int(x) for x in rng.choice([1, 1, 2, 3], 2))
    look = rng.choice(["normal", "zero keys", "zero queries", "ones"])
    return Plan(0, 0, rng.uniform(-2, 5), n=n, d=d, look=look, mask=bool(rng.random() < 0.5))


def wide(rng, limits, reading):
    d = int(rng.choice([9, 12, 17, 33, 64]))
    return Plan(rng.uniform(-6, 1), rng.uniform(-6, 1), rng.uniform(-1, 4), n=3, d=d)


def scales(rng, limits, reading):
    c = rng.choice([rng.uniform(-1074, -1000), rng.uniform(-160, 160), rng.uniform(900, 1023)])
    a, b = _split(rng, rng.uniform(-2, 5) - c, limits.low, limits.high)
    return Plan(
        a, b, scale=2.0**c * rng.choice([1, 1.5, 1.999]), look=rng.choice(["normal", "near"])
    )


def poisoned_masks(rng, limits, reading):
    return Plan(rng.uniform(-2, 2), rng.uniform(-2, 2), rng.uniform(0, 5), poison=True, mask=True)


def masks(rng, limits, reading):
    return Plan(0, 0, rng.uniform(0, 5), mask=True, n=int(rng.integers(2, 9)))


def spread_sizes(rng, limits, reading):
    return Plan(rng.uniform(0, 4), rng.uniform(0, 4), rng.uniform(0, 6), look="spread")


def tiles(rng, limits, reading):
    """Take more tokens than fit into the registers, or into one block of a scan."""
    n = int(rng.choice([9, 9, 15, 16, 17, 17, 33, 67]))
    look = rng.choice(["normal", "near", "repeated", "cancelling"])
    return Plan(0, 0, rng.uniform(0, 6), look=look, n=n, d=int(rng.integers(1, 6)))


FAMILIES = {
    f.__name__: f
    for f in (
        plain, large, overflowing_products, overflowing_norms, overflowing_scaled_queries,
        underflowing_scaled_queries,
        overflowing_exponentials, overflowing_logits, underflowing_products, subnormal,
        cancellation, cancelling_overflow, ties, boundaries, format_edges, extreme_weights,
        edges, wide, scales, poisoned_masks, masks, spread_sizes, tiles,
    )
}  # fmt: skip


# Masks and targets -------------------------------------------------------------------------


def random_mask(rng, n: int) -> Any:
    kind = rng.integers(0, 6)
    if kind == 0:
        return "causal"
    if kind == 1:
        return "window", int(rng.integers(1, n + 2))
    if kind == 2:
        return "window", (int(rng.integers(0, n + 1)), int(rng.integers(0, n + 1)))
    dense = rng.random((n, n)) < rng.choice([0.4, 0.7, 0.9])
    if kind == 3:
        return sp.csr_array(dense)
    return dense


def _support(rng, row: list, allowed: np.ndarray, most: int, honest: bool) -> np.ndarray:
    places = np.flatnonzero(allowed)
    count = int(min(len(places), rng.integers(1, most + 1)))
    if honest or rng.random() < 0.7:  # the keys with the largest logits
        chosen = sorted(places.tolist(), key=lambda j: -row[j])[:count]
        return np.array(sorted(chosen), int)
    return np.sort(rng.choice(places, count, replace=False))


def _weights(rng, kind: str, exponents: np.ndarray) -> np.ndarray:
    """Return positive weights with a sum of about 1; `exponents` are logits minus the largest."""
    count = len(exponents)
    if kind == "uniform" or count == 1:
        return np.full(count, 1.0 / count)
    if kind == "random":
        w = rng.random(count) + 0.05
    elif kind == "huge ratios":
        w = 2.0 ** -rng.uniform(0, 1080, count)
        w[rng.integers(count)] = 1.0
    else:
        w = np.exp(np.maximum(exponents, -743.0))
        if kind == "softmax" and rng.random() < 0.8:
            w *= np.exp(rng.choice([1e-12, 1e-6, 0.02, 0.05]) * rng.standard_normal(count))
    w = np.maximum(w / w.sum(), 5e-324)
    if w.sum() != 1 and rng.random() < 0.2:
        w[np.argmax(w)] += rng.choice([-5e-7, 5e-7])
    return w


def target_for(rng, logits: list, e: int, allowed: np.ndarray, kind: str) -> np.ndarray:
    """Return a target whose supports are mostly the largest logits, with weights like a softmax."""
    n = len(logits)
    A = np.zeros((n, n))
    most = int(rng.integers(1, 4))
    honest = rng.random() < 0.6
    for i in range(n):
        if not allowed[i].any():
            continue
        on = _support(rng, logits[i], allowed[i], most, honest)
        top = max(logits[i][j] for j in on)
        exponents = np.array([dyadic.to_float(logits[i][j] - top, e) for j in on])
        A[i, on] = _weights(rng, kind, exponents)
    return A


# Heads -------------------------------------------------------------------------------------


def exact_product(Q: np.ndarray, K: np.ndarray, scale: float) -> tuple[list, int]:
    """Return scale * Q K^T as integers times 2**e."""
    (q, f), (k, g) = dyadic.integers(Q), dyadic.integers(K)
    s, h = math.frexp(scale)
    whole = int(s * 2.0**53)
    return dyadic.product([[whole * x for x in row] for row in q], k), f + g + h - 53


def _bias(rng, logits: list, e: int, fmt: str) -> np.ndarray:
    """Return a bias in a format, of the size of the logits or far above or below it."""
    most = max(abs(dyadic.to_float(x, e)) for row in logits for x in row)
    look = rng.standard_normal((len(logits), len(logits)))
    with np.errstate(over="ignore", under="ignore"):
        size = min(most * 2.0 ** rng.choice([-8, -2, 0, 0, 4]), largest_number(fmt))
        return stored_numbers(look * size, fmt)


def with_bias(logits: list, e: int, bias: np.ndarray) -> tuple[list, int]:
    """Return exact logits plus a bias, as integers times 2**e."""
    b, f = dyadic.integers(bias)
    least = min(e, f)
    return [
        [(x << (e - least)) + (y << (f - least)) for x, y in zip(row, other, strict=True)]
        for row, other in zip(logits, b, strict=True)
    ], least


def _scale_for(rng, plan: Plan, d: int) -> float:
    if abs(plan.t - plan.a - plan.b) < 5 and rng.random() < 0.2:
        return 1 / math.sqrt(d)  # what None stands for
    if plan.scale is not None:
        return plan.scale * rng.choice([1.0, 1.0, 1.0, -1.0])
    exponent = min(max(plan.t - plan.a - plan.b, -1073.0), 1023.0)
    if plan.constant:
        exponent = float(round(exponent))
    significand = rng.choice([1.0, 1.0, rng.uniform(1, 2), 1 + 2.0**-52, 2 - 2.0**-52])
    sign = -1.0 if rng.random() < 0.1 else 1.0
    scale = sign * math.ldexp(significand * 2.0 ** (exponent % 1), math.floor(exponent))
    if not math.isfinite(scale):
        return sign * float(np.finfo(float).max)
    return scale or 5e-324


def largest_number(fmt: str) -> float:
    digits, _, largest = dyadic.FORMATS[fmt]
    return float(np.ldexp(2 - 2.0 ** (1 - digits), largest))


def stored_numbers(x: np.ndarray, fmt: str) -> np.ndarray:
    """Return numbers of a format near x: the largest one where x is beyond it."""
    top = largest_number(fmt)
    return np.clip(dyadic.round_array(np.clip(x, -top, top), fmt), -top, top)


def _queries_and_keys(rng, plan: Plan, fmt: str, digits: int):
    n, d = plan.n, plan.d
    look = plan.look if plan.look not in ("zero keys", "zero queries") else "normal"
    q, k = significands(rng, n, d, look, digits)
    with np.errstate(over="ignore", under="ignore"):
        q, k = (
            np.ldexp(x * 2.0 ** (s % 1 if not plan.constant else 0), math.floor(s))
            for x, s in ((q, plan.a), (k, plan.b))
        )
        q, k = (stored_numbers(x, fmt) for x in (q, k))
    if plan.look == "zero keys":
        k[rng.random(n) < 0.6] = 0
    if plan.look == "zero queries":
        q[rng.random(n) < 0.6] = 0
    return q, k


def _poison(rng, q, k, allowed, top):
    """Make products overflow at masked entries, and only there."""
    n = len(q)
    if rng.random() < 0.5:
        j = int(rng.integers(n))
        allowed[:, j] = False
        k[j] = top * rng.choice([-1.0, 1.0], k.shape[1])
        return allowed
    k[n - 1] = top * rng.choice([-1.0, 1.0], k.shape[1])
    allowed = np.tril(np.ones((n, n), bool))
    q[n - 1] = 0
    return allowed


def _settings(rng, reading: str) -> dict[str, Any]:
    accumulate, logits_dtype = "exact", None
    if reading.startswith("eager"):
        return {"accumulate": "float32", "eager": reading.removeprefix("eager-")}
    if reading == "accumulate":
        accumulate = "float32"
    elif reading in dyadic.FORMATS:
        logits_dtype = reading
        accumulate = "float32" if rng.random() < 0.4 else "exact"
    return {"accumulate": accumulate, "logits_dtype": logits_dtype}


def _options(rng) -> dict[str, Any]:
    return {
        "certificate_mass": bool(rng.random() < 0.5),
        "num_threads": 2 if rng.random() < 0.02 else 1,
    }


def head(
    rng, family: str, dtype: str, reading: str, n: int = 0, d: int = 0
) -> tuple[Head, list, int]:
    """Return a random head of a family, and its exact logits as integers times 2**e.

    n and d, if given, are the sizes of heads that are not made by a module.
    """
    if reading == "matrix":
        return matrix_head(rng, family, dtype), [], 0
    if reading in ("module", "module-accumulate"):
        return module_head(rng, family, dtype, reading)
    settings = _settings(rng, reading)
    # For accumulation in float32, most cases have numbers that float32 holds.
    narrow = settings["accumulate"] == "float32" and rng.random() < 0.7
    fmt = "float32" if narrow and dtype == "float64" else dtype
    computed = "float64" if dtype == "float64" else "float32"
    digits = dyadic.FORMATS[fmt][0]
    plan = FAMILIES[family](rng, _limits(fmt, computed if fmt == dtype else "float32"), reading)
    plan.n, plan.d = n or plan.n, d or plan.d
    _sizes(rng, plan)
    q, k = _queries_and_keys(rng, plan, fmt, digits)
    scale = _scale_for(rng, plan, plan.d)
    mask, allowed = _masked(rng, plan)
    if plan.poison:
        allowed = _poison(rng, q, k, allowed.copy(), largest_number(fmt))
        mask = "causal" if np.array_equal(allowed, np.tril(np.ones_like(allowed))) else allowed
    k_dtype = ""
    if rng.random() < 0.05:
        k_dtype = str(rng.choice(DTYPES))
        k = stored_numbers(k, k_dtype)
    logits, e = exact_product(q, k, scale)
    if not settings.get("logits_dtype") and rng.random() < 0.2:
        settings["bias"] = _bias(rng, logits, e, fmt)
        logits, e = with_bias(logits, e, settings["bias"])
    elif "eager" in settings and rng.random() < 0.3:
        most = max(abs(dyadic.to_float(x, e)) for row in logits for x in row)
        settings["softcap"] = float(np.clip(most * rng.uniform(0.3, 3), 2.0**-100, 2.0**100))
    A = target_for(rng, logits, e, allowed, _kind(rng, plan))
    flush = bool(rng.random() < (0.5 if family in ("subnormal", "underflowing_products") else 0.1))
    made = Head(
        family, dtype, reading, A, mask, q, k, scale, k_dtype=k_dtype, flush=flush,
        options=_options(rng), **settings,
    )  # fmt: skip
    return made, logits, e


def _sizes(rng, plan: Plan) -> None:
    plan.n = plan.n or int(rng.integers(2, 7))
    plan.d = plan.d or int(rng.integers(1, 5))


def _kind(rng, plan: Plan) -> str:
    return plan.weights or rng.choice(["softmax", "softmax", "softmax", "uniform", "random"])


def _masked(rng, plan: Plan) -> tuple[Any, np.ndarray]:
    wanted = plan.mask if plan.mask is not None else rng.random() < 0.15
    mask = random_mask(rng, plan.n) if wanted else None
    return mask, np.array(allowed_matrix(mask, plan.n))


# Modules -----------------------------------------------------------------------------------

MODULE_LOOKS = ("normal", "cancelling", "near", "ones", "integers", "repeated")


def module_head(rng, family: str, dtype: str, reading: str) -> tuple[Head, list, int]:
    """Return a module and its input: X has exponent a, weights have exponent w, logits t."""
    weights_dtype = dtype if rng.random() < 0.7 else rng.choice(["float32", "float64"])
    accumulates = reading == "module-accumulate"
    # For accumulation in float32, most cases have products of numbers that float32 holds.
    narrow = accumulates and rng.random() < 0.7
    formats = ["float32" if narrow and f == "float64" else f for f in (dtype, weights_dtype)]
    computed = "float64" if "float64" in formats else "float32"
    limits = _limits(formats[0], computed)
    plan = FAMILIES[family](rng, limits, "module")
    _sizes(rng, plan)
    d, D = plan.d, int(rng.integers(1, 5))
    n = plan.n
    high = min(dyadic.FORMATS[formats[1]][2], dyadic.FORMATS[computed][2])
    digits = dyadic.FORMATS[formats[0]][0]
    x, w = significands(rng, max(n, 2 * d), D, rng.choice(MODULE_LOOKS), digits)
    x, w = x[:n], w[: 2 * d]
    # X is near 2**a, and X W_Q and X W_K are near 2**b.
    inner = Plan(plan.a, min(max(plan.b - plan.a, -1040), high), look="given", n=n, d=D)
    stored = []
    for values, exponent, fmt in ((x, inner.a, formats[0]), (w, inner.b, formats[1])):
        with np.errstate(over="ignore", under="ignore"):
            stored.append(stored_numbers(np.ldexp(values, math.floor(exponent)), fmt))
    X, W = stored
    plan.a = plan.b = max(min(plan.a + inner.b, 1023.0), -1074.0)
    scale = _scale_for(rng, plan, d)
    mask, allowed = _masked(rng, plan)
    logits, e = module_logits(X, W[:d].T, W[d:].T, scale)
    A = target_for(rng, logits, e, allowed, _kind(rng, plan))
    made = Head(
        family, dtype, reading, A, mask, scale=scale, X=X, W_Q=W[:d].T, W_K=W[d:].T,
        weights_dtype=weights_dtype, accumulate="float32" if accumulates else "exact",
        logits_dtype=_module_format(rng),
        flush=bool(rng.random() < 0.2), options=_options(rng),
    )  # fmt: skip
    return made, logits, e


def _module_format(rng) -> str | None:
    return None if rng.random() < 0.7 else str(rng.choice(["float32", "bfloat16", "float16"]))


def module_product(X, W) -> tuple[list, int]:
    """Return X W as integers times 2**e."""
    (x, f), (w, g) = dyadic.integers(X), dyadic.integers(W.T)
    return dyadic.product(x, w), f + g


def module_logits(X, W_Q, W_K, scale) -> tuple[list, int]:
    """Return scale * (X W_Q) (X W_K)^T as integers times 2**e."""
    (q, f), (k, g) = module_product(X, W_Q), module_product(X, W_K)
    s, h = math.frexp(scale)
    whole = int(s * 2.0**53)
    return dyadic.product([[whole * y for y in row] for row in q], k), f + g + h - 53


# Matrices ----------------------------------------------------------------------------------


def matrix_head(rng, family: str, dtype: str) -> Head:
    """Return an attention matrix: rows of a softmax, of tiny or huge numbers, or with zeros."""
    limits = _limits(dtype, dtype)
    plan = FAMILIES[family](rng, limits, "matrix")
    _sizes(rng, plan)
    n = plan.n
    mask, allowed = _masked(rng, plan)
    logits = rng.standard_normal((n, n)) * 2.0 ** min(plan.t, 9)
    if plan.look in ("ones", "integers", "repeated"):
        logits = np.round(logits)
    e = np.exp(np.clip(logits - logits.max(1, keepdims=True), -800, 0))
    M = e / e.sum(1, keepdims=True)
    size = math.floor(plan.a) if rng.random() < 0.5 else 0
    with np.errstate(over="ignore", under="ignore"):
        M = np.ldexp(M, size)
        M = stored_numbers(M, dtype)
    if rng.random() < 0.1:
        M[rng.random((n, n)) < 0.3] = 0
    M[~allowed] = rng.choice([0.0, -0.0])
    wholes, exponent = dyadic.integers(np.round(np.maximum(logits, -1e15) * 2**10))
    A = target_for(rng, wholes, exponent - 10, allowed, _kind(rng, plan))
    if plan.look in ("ones", "repeated") and rng.random() < 0.5:  # exactly the target
        M = dyadic.round_array(A, dtype)
    flush = bool(rng.random() < 0.2)
    return Head(family, dtype, "matrix", A, mask, M=M, flush=flush, options=_options(rng))


# Bad numbers -------------------------------------------------------------------------------


def spoiled(rng, made: Head) -> Head | None:
    """Return the head with NaN or infinity in one place that matters, if there is such a place."""
    names = [n for n in ("Q", "K", "X", "W_Q", "W_K", "M") if getattr(made, n) is not None]
    name = str(rng.choice(names))
    array = getattr(made, name).copy()
    places = np.argwhere(np.ones(array.shape))
    if name == "M":
        places = np.argwhere(allowed_matrix(made.mask, len(array)))
    elif not name.startswith("W"):
        allowed = allowed_matrix(made.mask, len(array))
        seen = allowed.any(axis=0 if name == "K" else 1)
        places = places[seen[places[:, 0]]]
    if not len(places):
        return None
    array[tuple(places[rng.integers(len(places))])] = rng.choice([np.nan, np.inf, -np.inf])
    return replace(made, **{name: array})
