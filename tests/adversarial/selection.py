"""An attack on `headfit.certify_selection`: kernels that select as they like, and exact masses.

Run it from the root of the repository: ``python -m tests.adversarial.selection --cases 20000``, and
with ``--form sum`` or ``--narrow``.

A case is one call. In the form "dot" its scores are computed in float32 by the kernels of
`float32_results.py`, with and without flushing, by kernels that multiply the scales of stored
numbers in last, and by tensor cores whose sums keep fewer bits; each score is the least or the
largest of what some order of summation gives, rounded to 16 bits in some cases. In the form "sum"
they are those of the kernels of `summed_scores.py`. Ties are broken for or against
heavy keys. The mass of what is selected is computed from exact logits with 250 bits. Lies are

- ``not sure``: a key that is called surely selected, and that a kernel leaves out;
- ``false bound``: a bound of the mass that the mass of a selection exceeds, or a wrong count;
- ``false holds``, ``false fails``: against the mass of a selection;
- ``crash``: an exception that is no HeadfitError, or one for a case that is finite.

Rows are "away" where all selections found are on one side of the mass asked for by 1% or more, and
"missed" where the certificate calls these undecided. They are "clear" where the same holds for all
selections that a textbook's bound of rounding allows, whether a kernel is known that makes them or
not; "unseen" are those that the certificate calls undecided.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mpmath
import numpy as np
import scipy.sparse as sp
from tests.adversarial import dyadic, float32_results, summed_scores
from tests.adversarial.attack import stored
from tests.adversarial.generators import exact_product, stored_numbers

import headfit as hf

BITS = 250
UNIT = 2.0**-24
LIES = ("not sure", "false bound", "false holds", "false fails", "crash")
DTYPES = ("float64", "float32", "bfloat16", "float16")
FAMILIES = (
    "normal", "ties", "equal keys", "zeros", "near", "cancelling", "subnormal", "tiny products",
    "float8", "int4", "large scales", "overflowing", "spread",
)  # fmt: skip
FORMS = {"dot": (*FAMILIES, "long"), "sum": (*FAMILIES, "deep", "mirrored", "many")}


@dataclass
class Case:
    family: str
    dtype: str
    Q: np.ndarray  # (heads, n, D), as float64
    K: np.ndarray  # of one key head, or of as many as Q has
    scale: float
    form: str
    small: tuple[np.ndarray, np.ndarray]  # of several heads in the form "sum"
    scales: tuple[np.ndarray, np.ndarray] | None  # of the rows of the index, where it has some
    options: dict[str, Any]
    asks: dict[str, Any]
    allowed: np.ndarray

    def code(self) -> str:
        """Return what makes the case again."""
        said = (f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"Case({', '.join(said)})"


# Cases -------------------------------------------------------------------------------------


def numbers_of_index(rng, family: str, n: int, m: int, d: int, narrow: bool) -> tuple[Any, Any]:
    """Return the stored queries and keys of an index, and their scales or None."""
    close = (1, 12) if narrow else (8, 26)  # how many bits keys have in common that are near
    q, k = rng.standard_normal((n, d)), rng.standard_normal((m, d))
    if family == "ties":
        q, k = rng.integers(-2, 3, (n, d)), rng.integers(-1, 2, (m, d))
    elif family == "equal keys":
        k = k[rng.integers(0, max(1, m // 3), m)]
    elif family == "zeros":
        q[rng.random(n) < 0.5] = 0
        k[rng.random(m) < 0.5] = 0
        k = k * rng.choice([-0.0, 1.0], (m, d))
    elif family == "near":
        k = rng.standard_normal(d) * (1 + k * 2.0 ** -rng.integers(*close))
    elif family == "cancelling":  # large terms that cancel, beside keys that are nearly equal
        k = rng.standard_normal(d) * (1 + k * 2.0 ** -rng.integers(*close))
        terms = rng.standard_normal((m, 1)) * np.resize([1.0, -1.0], 2 * d)
        q = np.hstack([q, np.full((n, 2 * d), 2.0 ** rng.integers(0, 8))])
        k = np.hstack([k, terms * rng.uniform(1, 2)])
    elif family == "subnormal":
        q, k = np.ldexp(q, -rng.integers(60, 140)), np.ldexp(k, -rng.integers(0, 70))
    elif family == "tiny products":
        q, k = np.ldexp(q, -70), np.ldexp(k, -rng.integers(50, 80))
    elif family in ("float8", "int4"):
        return with_scales(rng, family, q, k)
    elif family == "large scales":
        q, k = np.ldexp(q, rng.integers(20, 62)), np.ldexp(k, rng.integers(20, 62))
    elif family == "overflowing":
        q, k = np.ldexp(q, 63), np.ldexp(k, rng.integers(60, 66))
    elif family == "spread":
        k = np.ldexp(k, rng.integers(-20, 1, (m, d)))
    elif family == "long":  # one term, to which adding others always errs in one direction
        q = np.ones((n, 24 + 8 * d)) * rng.choice([-1, 1], (n, 1))
        step = 2.0 ** -rng.choice([22, 13, 8]) if narrow else 2.0**-23
        lost = step if narrow else step / 2  # of a sum that is truncated, or rounded
        k = np.repeat(rng.choice([0.9, 1.1], (m, 1)), q.shape[1], axis=1) * lost
        k[:, 0] = 1 + rng.integers(0, q.shape[1] // (1 if narrow else 2), m) * step
    elif family == "deep":  # softmaxes that underflow
        q = q * rng.choice([20, 60, 200])
    single = (stored_numbers(np.asarray(x, float), "float32") for x in (q, k))
    q, k = single
    if narrow and rng.random() < 0.1:  # a score that float16 does not hold
        k[-1] *= 2.0**20
    return (q, k), None


def mirrored(rng, family: str, heads: int, n: int, m: int, d: int) -> tuple[Any, Any]:
    """Return queries (heads, n, d) and keys of which pairs have nearly the same sums of softmaxes.

    Every second head has the coordinates of the others in reverse, and so has the second key of a
    pair. Terms that cancel make products wrong; many equal keys make the sums of softmaxes wrong.
    """
    half = (m + 1) // 2
    q, k = rng.standard_normal((n, d)), rng.standard_normal((min(half, 6), d))
    if family == "many":  # of a pair each head finds another key, so that errors of sums matter
        apart = q[0] - q[0, ::-1]
        equal = apart * rng.uniform(1, 3) / (apart @ apart)
        k = np.vstack([k, np.broadcast_to(equal, (half - len(k), d))])
    k = np.vstack([k, k[:, ::-1]])
    q = np.stack([q if h % 2 == 0 else q[:, ::-1] for h in range(heads)])
    products = np.abs(k @ q[0, 0])
    if family == "mirrored":
        terms = rng.standard_normal((len(k), 1)) * np.resize([1.0, -1.0], 2 * d)
        q = np.concatenate([q, np.full((heads, n, 2 * d), 2.0 ** rng.integers(0, 12))], axis=2)
        k = np.hstack([k, terms * rng.uniform(1, 2)])
    # Pairs are as far apart as the bound of a score is, up to a few times.
    norms = np.sqrt((q[0, 0] @ q[0, 0]) * (k**2).sum(axis=1))
    bound = 2.0**-24 * (2 * (q.shape[2] + 9) * norms + 112 + 2 * m)
    k = k * (1 + rng.uniform(-1.5, 1.5, len(k)) * bound / products)[:, None]
    return np.float32(q).astype(float), np.float32(k[rng.permutation(len(k))[:m]]).astype(float)


def with_scales(rng, family: str, q: np.ndarray, k: np.ndarray) -> tuple[Any, Any]:
    """Round rows to float8 (e4m3) or to four bits, each with a scale that bfloat16 holds."""
    rows, scales = [], []
    for x in (q, k):
        x = x * 2.0 ** rng.integers(-6, 7, (len(x), 1))
        largest = 448.0 if family == "float8" else 7.0
        scale = dyadic.round_array(np.abs(x).max(axis=1, keepdims=True) / largest, "bfloat16")
        y = np.clip(x / scale, -largest, largest)
        step = np.exp2(np.maximum(np.floor(np.log2(np.abs(y) + 1e-30)), -6) - 3)
        y = np.round(y) if family == "int4" else np.round(y / step) * step
        rows.append(y * scale)
        scales.append(scale)
    return tuple(rows), tuple(scales)


def a_mask(rng, n: int, m: int) -> tuple[dict[str, Any], np.ndarray]:
    """Return options that mask, and where they allow attention."""
    back = np.arange(n)[:, None] + m - n - np.arange(m)
    some = rng.random((n, m)) < rng.uniform(0.2, 1)
    keys = rng.random(m) < 0.7
    length = int(rng.integers(m + 1))
    width = int(rng.integers(1, m + 1))
    kinds: list[tuple[dict[str, Any], np.ndarray]] = [
        ({}, np.ones((n, m), bool)),
        ({"mask": "causal"}, back >= 0),
        ({"mask": ("window", width)}, (back >= 0) & (back < width)),
        ({"mask": some}, some),
        ({"mask": sp.csr_array(some)}, some),
        ({"mask": "causal", "key_mask": keys}, (back >= 0) & keys),
        ({"key_lengths": length}, np.broadcast_to(np.arange(m) < length, (n, m))),
    ]
    return kinds[int(rng.choice(len(kinds), p=[0.3, 0.3, 0.08, 0.08, 0.08, 0.08, 0.08]))]


def a_narrow_kernel(rng, form: str) -> hf.Kernel:
    """Return one whose sums keep fewer bits than float32, or whose scores have 16 bits, or both."""
    few = [23, 14, 9, int(rng.integers(2, 13))]
    bits = int(rng.choice([24, *few] if form == "dot" else few))
    rounds: dict[str, Any] = {}
    if form == "dot" and (bits == 24 or rng.random() < 0.5):
        rounds = {
            "logits": str(rng.choice(["bfloat16", "float16"])),
            "fused": bool(rng.random() < 0.3),
        }
    return hf.Kernel(accumulate="float32", sum_bits=bits, **rounds)


def a_case(rng, family: str, form: str = "dot", narrow: bool = False) -> Case:
    n, m, d = (int(rng.integers(1, most)) for most in ((4, 40, 40) if narrow else (7, 13, 6)))
    if family == "many":
        n, d = 1, d + 1
        m = int(rng.choice([rng.integers(40, 120), 1500], p=[0.85, 0.15]))
    if family == "mirrored":
        m = min(m, 12)
    heads, dim = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    dtype = str(rng.choice(DTYPES))
    size = rng.choice([0.3, 1, 1, 3, 30])
    Q, K = rng.standard_normal((heads, n, dim)) * size, rng.standard_normal((m, dim))
    if rng.random() < 0.15:
        Q, K = np.round(Q), np.round(K)
    Q, K = (stored_numbers(x.reshape(-1, dim), dtype).reshape(x.shape) for x in (Q, K))
    many = int(rng.integers(1, 4)) if form == "sum" else 1  # heads of the index
    many = 2 if family == "many" else many
    if family in ("mirrored", "many"):
        small, scales = mirrored(rng, family, many, n, m, d), None
    else:
        small, scales = numbers_of_index(rng, family, many * n, m, d, narrow)
    if form == "sum":
        scales = scales and (scales[0].reshape(many, n, 1), scales[1])
    small = small[0].reshape((many, n, -1) if form == "sum" else (n, -1)), small[1]
    options, allowed = a_mask(rng, n, m)
    if rng.random() < 0.2:
        options["sinks"] = float(np.float16(rng.normal()))
    if rng.random() < 0.2:
        options["softcap"] = float(rng.choice([0.5, 2.0, 20.0]))
    window, first = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    edge = [window + first + 1, max(window + first + 1, m), m + window + first, m - 1]
    keys = int(rng.choice([*edge, rng.integers(window + first + 1, window + first + 6)]))
    asks = {"keys": max(keys, window + first + 1), "window": window, "first": first}
    if narrow or family in ("mirrored", "many"):  # the last key that is selected is near others
        asks = {"keys": int(rng.integers(2, max(3, m))), "window": 1, "first": 0}
    asks["kernel"] = a_narrow_kernel(rng, form) if narrow else hf.Kernel.named("float32")
    scale = float(rng.choice([dim**-0.5, 1.0, -0.7, 3.0]))
    if heads > 1 and rng.random() < 0.3:
        others = [stored_numbers(rng.standard_normal((m, dim)), dtype) for _ in range(heads - 1)]
        K = np.stack([K, *others])
    return Case(family, dtype, Q, K, scale, form, small, scales, options, asks, allowed)


# The truth ---------------------------------------------------------------------------------


def kernels(case: Case, rng) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the least and the largest score of each pair, for each kind of kernel."""
    q, k = case.small
    if case.form == "sum":
        made = partial(products, rng=rng, bits=case.asks["kernel"].sum_bits, few=True)
        yield from summed_scores.scores(q, k, case.scales, case.allowed, rng, 10, made)
        return
    for ends in products_of_stored(case, rng):
        for low, high in rounded_scores(ends, case.asks["kernel"]):
            # A mask that adds -inf makes NaN of an infinite score, of keys that are read.
            read = np.arange(low.shape[1]) < case.options.get("key_lengths", low.shape[1])
            hidden = read & ~case.allowed & (np.isposinf(low) | np.isposinf(high))
            row = hidden.any(axis=1, keepdims=True)
            yield np.where(row, np.nan, low), np.where(row, np.nan, high)


def products_of_stored(case: Case, rng) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    (q, k), bits = case.small, case.asks["kernel"].sum_bits
    yield from products(q, k, rng, bits)
    if case.scales is None:
        return
    of_q, of_k = (np.float32(x) for x in case.scales)
    for low, high in products(q / case.scales[0], k / case.scales[1], rng, bits):
        if case.asks["kernel"].logits is None:  # scores that are rounded have both scales
            yield low * of_k.T, high * of_k.T
        yield low * of_k.T * of_q, high * of_k.T * of_q
        yield low * (of_k.T * of_q), high * (of_k.T * of_q)


def rounded_scores(
    ends: tuple[np.ndarray, np.ndarray], kernel: hf.Kernel
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield scores in the type in which they are compared, subnormal numbers kept and flushed."""
    dtype = kernel.logits or "float32"
    kept = tuple(dyadic.round_array(x, dtype) for x in ends)
    yield kept
    if kernel.fused:
        yield ends
    least = {"bfloat16": 2.0**-126, "float16": 2.0**-14}.get(dtype, 0.0)
    for sizes in (kept, ends):  # flushed after numbers are rounded, or before
        if any(((np.abs(x) < least) & (x != 0)).any() for x in sizes):
            low, high = (
                np.where(np.abs(x) < least, 0, y) for x, y in zip(sizes, kept, strict=True)
            )
            yield low, high


def products(
    q: np.ndarray, k: np.ndarray, rng, bits: int, few: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the least and the largest products in more orders, subnormals kept and flushed.

    Partial sums are largest in the order of the terms of one product. Below 24 bits also those of
    tensor cores. With `few` only the orders of `float32_results`.
    """
    kinds = products_in_float32(q, k, rng, few)
    if bits < 24:
        each = []
        for order in (np.arange(q.shape[1]), rng.permutation(q.shape[1])):
            step, down = int(rng.choice([4, 8, 32])), bool(rng.random() < 0.5)
            single = (np.float32(x)[:, order] for x in (q, k))
            each.append(float32_results.truncated_dot(*single, bits, step, down))
        kinds.append((np.minimum(*each), np.maximum(*each)))
    return kinds


def products_in_float32(
    q: np.ndarray, k: np.ndarray, rng, few: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    if few:
        return float32_results.results(q, k, 1.0, powers_of_two=False)
    d = q.shape[1]
    order = np.argsort(q[0] * k[0])
    orders = [order, order[::-1], rng.permutation(d), rng.permutation(d)]
    found = []
    for order in orders if d > 2 else orders[:1]:
        each = float32_results.results(q[:, order], k[:, order], 1.0, powers_of_two=False)
        found.append((each[0], each[-1]))
    return [
        (np.min([low for low, _ in kind], axis=0), np.max([high for _, high in kind], axis=0))
        for kind in zip(*found, strict=True)
    ]


def by_the_textbook(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of scores that hold for sums in any order (Higham 2002, section 3.1).

    Each term of a product passes at most m roundings, and with u = 2^-24 the product is wrong by
    m u / (1 - m u) times the sum of the sizes of its terms. Nothing is known, NaN, where it may
    overflow. In the form "sum" errors of products count twice: the sum of a head has some too.
    """
    (q, k), kernel = case.small, case.asks["kernel"]
    d, few = q.shape[-1], 2.0 ** (25 - kernel.sum_bits) if kernel.sum_bits < 24 else 0
    roundings = d + 4 + few * (d + 2 * np.ceil(d / 4))
    size, score = np.abs(q) @ np.abs(k).T, q @ k.T
    reach = np.linalg.norm(q, axis=-1, keepdims=True), np.linalg.norm(k, axis=-1)
    lost = 2.0**-126 * d * (2 + 3 * (reach[0] + reach[1].max()))
    off = size * roundings * UNIT / np.maximum(0, 1 - roundings * UNIT) + lost
    off = np.where(reach[0] * reach[1].max() + off < 2.0**127, off, np.nan)
    if case.form == "sum":
        hidden = np.where(case.allowed, 0, -np.inf)
        count = case.allowed.sum(axis=1, keepdims=True)
        total = np.logaddexp.reduce(score + hidden, axis=2, keepdims=True)
        score = np.logaddexp.reduce(score - total, axis=0)
        # Each exponential, quotient and logarithm is wrong by 2^-21 and its own share of that.
        assumed = 8 * UNIT * (6 + np.log(np.maximum(1, count)) + 2 * np.abs(score))
        most = np.where(case.allowed, off, 0).max(axis=(0, 2))[:, None]
        off = off.max(axis=0) + most + (count + len(q)) * UNIT + assumed
    ends = score - off, score + off
    if case.form == "dot":
        kept = list(rounded_scores(ends, kernel))
        ends = np.min([low for low, _ in kept], axis=0), np.max([high for _, high in kept], axis=0)
    unknown = np.isnan(off) | np.isinf(ends[0]) | np.isinf(ends[1])
    return tuple(np.where(unknown.any(axis=1, keepdims=True), np.nan, x) for x in ends)


def kept_and_free(case: Case, i: int) -> tuple[list[int], list[int]]:
    n, m = case.allowed.shape
    seen = np.flatnonzero(case.allowed[i]).tolist()
    position = i + m - n
    last = range(position - case.asks["window"] + 1, position + 1)
    kept = [j for at, j in enumerate(seen) if at < case.asks["first"] or j in last]
    return kept, [j for j in seen if j not in kept]


def weights(case: Case) -> tuple[list[list[list[Any]]], list[Any]]:
    """Return the weights of all keys in each row of each head and those of sinks, unnormalised.

    The exponentials of the logits themselves, at a precision that leaves room for their sums.
    """
    found = []
    cap = case.options.get("softcap")
    for q, k in zip(
        case.Q, np.broadcast_to(case.K, (len(case.Q), *case.K.shape[-2:])), strict=True
    ):
        whole, e = exact_product(q, k, case.scale)
        x = [[mpmath.ldexp(mpmath.mpf(s), e) for s in row] for row in whole]
        if cap is not None:
            x = [[mpmath.tanh(s / mpmath.mpf(cap)) * mpmath.mpf(cap) for s in row] for row in x]
        found.append([[mpmath.exp(s) for s in row] for row in x])
    sink = case.options.get("sinks")
    return found, [mpmath.mpf(0) if sink is None else mpmath.exp(mpmath.mpf(sink))] * len(case.Q)


def selections(
    low: np.ndarray, high: np.ndarray, free: list[int], budget: int, w: list[Any], sure: set[int]
) -> Iterator[list[int]]:
    """Yield free keys that a kernel may select in a row, the lightest and the heaviest of these.

    Every score may be its least or its largest; NaN may be anywhere, and a comparison with it may
    select nothing. With t the least score of a selected key, a key whose score is larger is
    selected, and of those that may have t any are. Then the selections that leave out a key called
    sure, which is as badly off as it may be.
    """
    if len(free) <= budget:
        yield free
        return
    if np.isnan([low[free], high[free]]).any():
        yield []
    low, high = (np.where(np.isnan(x), bad, x) for x, bad in ((low, -np.inf), (high, np.inf)))
    light = sorted(free, key=lambda j: w[j])
    best = sorted(free, key=lambda j: -high[j])
    least = sorted((low[j] for j in free), reverse=True)[budget]
    ends = sorted({high[j] for j in free if least <= high[j] <= high[best[budget - 1]]})
    for t in ends[:: max(1, len(ends) // 20)]:
        above = [j for j in light if low[j] > t]
        some = [j for j in light if low[j] <= t <= high[j]]
        more = budget - len(above)
        yield above + some[:more]
        yield above + some[len(some) - more :]
    for key in sure.intersection(free):
        others = [j for j in best[: budget + 1] if j != key][:budget]
        if high[others[-1]] >= low[key]:
            yield others


# Judging -----------------------------------------------------------------------------------


@dataclass
class Tally:
    counts: dict[str, Counter] = field(default_factory=dict)
    lies: list[tuple[str, str, str]] = field(default_factory=list)

    def lie(self, case: Case, kind: str, sentence: str) -> None:
        self.counts[case.family][kind] += 1
        if sum(kind == known for known, _, _ in self.lies) < 3:
            self.lies.append((kind, sentence, case.code()))

    @property
    def number_of_lies(self) -> int:
        return sum(counts[kind] for counts in self.counts.values() for kind in LIES)

    def table(self) -> str:
        columns = ("cases", "rows", "holds", "fails", "undecided", "away", "missed", "clear",
                   "unseen", *LIES)  # fmt: skip
        lines = [" " * 14 + " ".join(f"{c:>11}" for c in columns) + "  missed/away unseen/clear"]
        total: Counter = sum(self.counts.values(), Counter())
        for name, n in [*self.counts.items(), ("all", total)]:
            shares = (n[a] / max(1, n[b]) for a, b in (("missed", "away"), ("unseen", "clear")))
            cells = " ".join(f"{n[c]:>11}" for c in columns)
            lines.append(f"{name:<14}{cells}" + "".join(f"{x:>13.2%}" for x in shares))
        return "\n".join(lines)


def judge(case: Case, rng, tally: Tally) -> None:
    """Call `certify_selection` twice: for the bounds, and for a mass close to or far from these."""
    counts = tally.counts.setdefault(case.family, Counter())
    arrays = [
        stored(x.reshape(-1, x.shape[-1]), case.dtype).reshape(x.shape) for x in (case.Q, case.K)
    ]
    small = [np.asarray(x, np.float32) for x in case.small]
    mass = 0.9
    for again in (False, True):
        try:
            c = hf.certify_selection(
                *arrays, *small, scale=case.scale, mass=mass, form=case.form, columns=True,
                num_threads=1, **case.options, **case.asks,
            )  # fmt: skip
        except Exception as error:
            tally.lie(case, "crash", f"{type(error).__name__}: {error}")
            return
        if not again:
            near = rng.choice(c.row_mass.ravel())
            step = rng.choice([0, 1e-16, -1e-16, 1e-9, -1e-9, 0.011, -0.011, 0.1, -0.2])
            mass = float(np.clip(near + step, 1e-6, 1 - 1e-9))
    counts["cases"] += 1
    with mpmath.workprec(BITS):
        judge_rows(case, c, mass, rng, tally)


def mass_of(keys: Iterable[int], w: list[Any], total: Any) -> Any:
    return mpmath.fsum(w[j] for j in keys) / total


def judge_rows(case: Case, c: Any, mass: float, rng, tally: Tally) -> None:
    counts = tally.counts[case.family]
    found, sinks = weights(case)
    known = list(kernels(case, rng))
    widest = by_the_textbook(case)
    any_fails = any_holds_not = False
    for i in range(len(case.allowed)):
        kept, free = kept_and_free(case, i)
        budget = case.asks["keys"] - case.asks["window"] - case.asks["first"]
        sure = set(c.columns[i][c.columns[i] >= 0].tolist())
        selected = len(kept) + min(budget, len(free))
        if len(sure) != c.sure[i] or c.selected[i] != selected or not set(kept) <= sure:
            tally.lie(case, "false bound", f"row {i} counts or keeps other keys")
        for h, (rows, sink) in enumerate(zip(found, sinks, strict=True)):
            w = rows[i]
            seen = bool(kept or free)
            total = mpmath.fsum(w[j] for j in (*kept, *free)) + sink
            sets = set()
            for low, high in known:
                for one in selections(low[i], high[i], free, budget, w, sure):
                    sets.add(frozenset((*kept, *one)))
            for one in sets:
                if not sure <= one:
                    tally.lie(case, "not sure", f"row {i}: {sure - one} are left out")
            masses = [mass_of(one, w, total) if seen else mpmath.mpf(1) for one in sets]
            least, most = min(masses), max(masses)
            room = mpmath.ldexp(1, 40 - BITS)
            low, high = float(c.row_mass[h, i]), float(c.row_most[h, i])
            if not (0 <= low <= least + room and most - room <= high <= 1):
                said = f"row {h, i}: {low!r}, {high!r}, not {least}, {most}"
                tally.lie(case, "false bound", said)
            status = int(c.row_status[h, i])
            any_fails |= least < mass - room
            any_holds_not |= status == 1
            if status == 0 and least < mass - room:
                tally.lie(case, "false holds", f"row {h, i} keeps {least}, not {mass!r}")
            if status == 1 and most >= mass + room:
                tally.lie(case, "false fails", f"row {h, i} may keep {most}")
            counts["rows"] += 1
            counts[("holds", "fails", "undecided")[status]] += 1
            away = least >= mass + 0.01 or most < mass - 0.01
            counts["away"] += away
            counts["missed"] += away and status == 2
            if away:
                for one in selections(*(x[i] for x in widest), free, budget, w, set()):
                    masses.append(mass_of((*kept, *one), w, total) if seen else mpmath.mpf(1))
                clear = min(masses) >= mass + 0.01 or max(masses) < mass - 0.01
                counts["clear"] += clear
                counts["unseen"] += clear and status == 2
    if (c.status == "holds") and any_fails:
        tally.lie(case, "false holds", "as a whole")
    if (c.status == "fails") != any_holds_not:
        tally.lie(case, "false fails", "as a whole")


def attack(
    cases: int, seed: int, families: tuple[str, ...] = (), form: str = "dot", narrow: bool = False
) -> Tally:
    """Make cases, all families of the form in turn if none are named, and judge them."""
    tally, rng, families = Tally(), np.random.default_rng(seed), families or FORMS[form]
    with np.errstate(all="ignore"):
        for index in range(cases):
            judge(a_case(rng, families[index % len(families)], form, narrow), rng, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial.selection")
    parser.add_argument("--cases", type=int, default=5000, help="of two calls each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=FORMS, default="dot")
    parser.add_argument("--narrow", action="store_true", help="sums or scores of fewer bits")
    parser.add_argument("--family", choices={*FORMS["dot"], *FORMS["sum"]}, action="append")
    arguments = parser.parse_args()
    begun = time.monotonic()
    families = tuple(arguments.family or ())
    tally = attack(arguments.cases, arguments.seed, families, arguments.form, arguments.narrow)
    print(tally.table())
    print(f"\n{tally.number_of_lies} lies, {time.monotonic() - begun:.0f} s")
    for kind, sentence, code in tally.lies:
        print(f"\n# {kind}: {sentence}\n{code}")
    return 1 if tally.number_of_lies else 0


if __name__ == "__main__":
    sys.exit(main())
