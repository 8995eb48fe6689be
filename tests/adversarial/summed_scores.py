"""What kernels in float32 may compute for an index of the form "sum", operation by operation.

A score is log sum_h softmax_j(q_h . k_j). Kernels differ in how they find the logarithm of the sum
of a head (any order, blocks of 16 keys with a rescaled sum), in what they compute of it
(``KINDS``), in the base of their exponentials, and in whether subnormal numbers are flushed.
Exponentials, quotients and logarithms are as wrong as the certificate allows, and half of the
products, and some sums, as wrong as a bound for any order of summation: the sums in directions that
a call draws, and the rest in either direction, key by key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.adversarial.float32_results import results

UNIT = 2.0**-24
LOG2_E = np.float32(np.log2(np.e))
KINDS = ("log of logs", "two differences", "quotients", "log of quotients", "mean", "stored sums")
ORDERS = ("forward", "backward", "shuffled", "tree", "blocks", "worst")


class Arithmetic:
    """Operations in float32 whose results are off by nearly as much as is assumed."""

    def __init__(self, flush: bool, base_2: bool) -> None:
        self.flush, self.base_2 = flush, base_2

    def clean(self, x: Any) -> np.ndarray:
        x = np.asarray(x, np.float32)
        return np.where(np.abs(x) < np.float32(2.0**-126), np.float32(0), x) if self.flush else x

    def exp(self, x: np.ndarray, sign: Any) -> np.ndarray:
        """7 units of 2^-24 off, and rounded; 1 for 0."""
        if self.base_2:
            exact = np.exp2(np.asarray(x * LOG2_E, np.float32).astype(float))
        else:
            exact = np.exp(x.astype(float))
        return self.clean(np.where(x == 0, 1.0, exact * (1 + 7 * UNIT * np.asarray(sign))))

    def log(self, x: np.ndarray, sign: Any) -> np.ndarray:
        exact = np.log(x.astype(float))
        off = 7 * UNIT * (1 + np.abs(exact)) * np.asarray(sign)
        return self.clean(np.where(np.isfinite(off), exact + off, exact))

    def quotient(self, x: np.ndarray, y: Any, sign: Any) -> np.ndarray:
        return self.clean(x.astype(float) / float(y) * (1 + 7 * UNIT * np.asarray(sign)))

    def total(self, x: np.ndarray, order: str, rng: np.random.Generator) -> np.float32:
        """The sum of terms, each partial sum rounded."""
        if order == "tree":
            while len(x) > 1:
                odd = x[-1:] if len(x) % 2 else x[:0]
                x = np.concatenate([self.clean(x[:-1:2] + x[1::2]), odd])
            return np.float32(x[0])
        x = {"backward": x[::-1], "shuffled": rng.permutation(x)}.get(order, x)
        return np.float32(self.clean(np.add.accumulate(x, dtype=np.float32)[-1]))

    def log_sum(self, x: np.ndarray, order: str, sign: float, rng: np.random.Generator) -> Any:
        """The shift of a head, the sum of exponentials of its products, and its logarithm."""
        if order != "blocks":
            # A product with log2(e) may be rounded here, and in the differences not.
            shift = np.float32(float(x.max()) * (1 + rng.choice([-2, 0, 2]) * UNIT))
            terms = self.exp(x - shift, sign)
            if order == "worst":
                total = np.float32(terms.astype(float).sum() * (1 + 0.9 * len(x) * UNIT * sign))
            else:
                total = self.total(terms, order, rng)
        else:
            shift, total = np.float32(-np.inf), np.float32(0)
            for block in np.split(x, range(16, len(x), 16)):
                larger = max(shift, block.max())
                factor = self.exp(np.float32(shift - larger), sign)
                part = self.total(self.exp(block - larger, sign), "forward", rng)
                total, shift = np.float32(self.clean(total * factor) + part), larger
        return shift, total, self.log(total, sign)


def scores_of_row(
    low: np.ndarray, high: np.ndarray, of_sums: np.ndarray, kind: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest scores of the keys of one row, from the least and largest products.

    Products have shape (heads, keys) and are in float32; `of_sums` are those that the sums are made
    of. The operations for one key are wrong in one direction.
    """
    a = Arithmetic(bool(rng.random() < 0.5), bool(rng.random() < 0.3))
    orders = ORDERS if rng.random() < 0.5 else ("worst",)
    shifts, sums, logs = zip(
        *(a.log_sum(row, str(rng.choice(orders)), rng.choice([-1, 1]), rng) for row in of_sums),
        strict=True,
    )
    shift, log = np.float32(shifts)[:, None], np.float32(logs)[:, None]
    step = rng.choice([-1, 1])

    def scores_of(x: np.ndarray, sign: int) -> np.ndarray:
        if kind in ("log of logs", "two differences"):
            y = x - (shift + log) if kind == "log of logs" else (x - shift) - log
            most = y.max(axis=0)
            terms = [a.exp(row, sign) for row in y - most]
            return np.float32(most + a.log(_sum_of(a, terms), sign))
        if kind == "stored sums":
            terms = [a.exp(row, sign) for row in x - (shift + log)]
        else:
            terms = [
                a.quotient(a.exp(row, sign), s, sign)
                for row, s in zip(x - shift, sums, strict=True)
            ]  # fmt: skip
        score = _sum_of(a, terms[::step])
        if kind == "log of quotients":
            return a.log(score, sign)
        return a.quotient(score, len(x), 0) if kind == "mean" else score

    ends = scores_of(low, -1), scores_of(high, 1)
    return np.minimum(*ends), np.maximum(*ends)


def _sum_of(a: Arithmetic, terms: list[np.ndarray]) -> np.ndarray:
    total = terms[0]
    for term in terms[1:]:
        total = a.clean(total + term)
    return total


def scores(
    q: np.ndarray, k: np.ndarray, scales: Any, allowed: np.ndarray, rng: np.random.Generator,
    count: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """Yield the least and the largest scores (rows, keys) of `count` kernels; -inf where masked.

    q has shape (heads, rows, d); `scales` are those of stored numbers, which kernels may multiply
    in last, or None.
    """
    each = [results(one, k, 1.0, powers_of_two=False) for one in q]
    if scales is not None:
        of_q, of_k = (np.asarray(x, np.float32) for x in scales)
        for found, one, scale in zip(each, q, of_q, strict=True):
            for low, high in results(one / scale, k / of_k, 1.0, False):
                found.append((low * of_k.T * scale, high * of_k.T * scale))
    exact = q @ k.T
    sizes = np.abs(q) @ np.abs(k).T
    # Two roundings of each term, and others of partial sums, which terms of one sign bound.
    off = UNIT * (2 * sizes + (q.shape[-1] - 1) * (sizes + np.abs(exact)) / 2)
    for _ in range(count):
        ends = [found[rng.integers(len(found))] for found in each]
        low, high = (np.stack(side) for side in zip(*ends, strict=True))
        if rng.random() < 0.5:
            low, high = (np.asarray(exact + side * off, np.float32) for side in (-1, 1))
        made = np.full((2, *allowed.shape), -np.inf)
        kind = str(rng.choice(KINDS))
        for i, seen in enumerate(allowed):
            if not seen.any():
                continue
            of_row = low[:, i, seen], high[:, i, seen]
            side = rng.random(len(q)) < 0.5
            of_sums = np.where(side[:, None], *of_row)
            made[:, i, seen] = scores_of_row(*of_row, of_sums, kind, rng)
        yield made[0], made[1]
