"""Slow, explicit definitions that the tests of several rooms compare with, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp


def allowed_by(mask: Any, n: int, m: int | None = None) -> np.ndarray:
    """Return a mask of any form as a full boolean table, of n queries at the end of m keys."""
    m = n if m is None else m
    i, j = np.indices((n, m))
    i += m - n
    if mask is None:
        return np.ones((n, m), bool)
    if isinstance(mask, str):
        return j <= i
    if isinstance(mask, tuple):
        left, right = mask[1] if isinstance(mask[1], tuple) else (mask[1] - 1, 0)
        return (j >= i - left) & (j <= i + right)
    if sp.issparse(mask):
        return mask.toarray()
    return np.broadcast_to(mask, (n, m))


def logits_of(head: Any, mask: Any = None) -> np.ndarray:
    """Return the logits of the stored numbers of a head, -inf where a mask hides the key."""
    logits = head.scale * head.Q.astype(float) @ head.K.astype(float).T
    return np.where(allowed_by(mask, len(logits)), logits, -np.inf)


def softmax(logits: Any) -> np.ndarray:
    """Return the weights of each row, zeros where it sees nothing."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.nan_to_num(weights / weights.sum(axis=1, keepdims=True))


def leak_and_distortion(A: Any, logits: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the leak and the distortion of each row of a pattern, by their definitions."""
    A, logits = np.asarray(A), np.asarray(logits, float)
    on = A > 0
    leak = np.where(on, -np.inf, logits).max(axis=1) - np.where(on, logits, np.inf).min(axis=1)
    shift = logits - np.log(np.where(on, A, 1))
    spread = np.where(on, shift, -np.inf).max(axis=1) - np.where(on, shift, np.inf).min(axis=1)
    return np.exp(leak), np.expm1(np.maximum(spread, 0))


def total_variation(A: Any, M: Any) -> np.ndarray:
    """Return how far each row of one matrix is from that of another."""
    return np.abs(A - M).sum(axis=1) / 2


def sharp_parts(n: int, size: int) -> tuple[np.ndarray, ...]:
    """Return what heads like those of trained models consist of, each of shape (n, size).

    These are codes of positions, contents of 20 kinds, and two arrays of noise; and the spectrum of
    contents, by which these and their noise are multiplied.
    """
    rng = np.random.default_rng(11)
    place = np.arange(n)[:, None] / 40.0 ** (np.arange(size // 2) / (size // 2))
    codes = np.hstack([np.sin(place), np.cos(place)])
    noise = rng.standard_normal((2, n, size))
    content = rng.standard_normal((20, size))[rng.integers(0, 20, n)] + 0.4 * noise[0]
    return codes, content, *noise, np.exp(-np.arange(size) / 8) ** 0.5


def core_arrays(target: Any) -> tuple[np.ndarray, ...]:
    """Return the matrix of a target as the core holds it."""
    return target.core.offsets, target.core.columns, target.core.weights


def assert_same(found: Any, expected: Any, at: str = "it") -> None:
    """Check that two values are of one type and hold the same, bit for bit; any NaN is NaN."""
    assert type(found) is type(expected), at
    if isinstance(found, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), at
        if found.dtype == object:
            assert_same(found.tolist(), expected.tolist(), at)
        else:
            assert _bits(found) == _bits(expected), at
    elif sp.issparse(found):
        for part in ("shape", "data", "indices", "indptr"):
            assert_same(getattr(found, part), getattr(expected, part), f"{at}.{part}")
    elif isinstance(found, Mapping):
        assert list(found) == list(expected), at
        for name in found:
            assert_same(found[name], expected[name], f"{at}.{name}")
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), at
        for place, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, f"{at}[{place}]")
    elif isinstance(found, float):
        assert _bits(np.array(found)) == _bits(np.array(expected)), at
    elif "__reduce__" in vars(type(found)):
        assert_same(found.__reduce__()[1:], expected.__reduce__()[1:], at)
    elif isinstance(kept := getattr(found, "__getstate__", lambda: None)(), dict) and kept:
        assert_same(kept, expected.__getstate__(), at)
    else:
        assert found == expected, at


def _bits(x: np.ndarray) -> bytes:
    return (np.where(x == x, x, np.nan) if x.dtype.kind == "f" else x).tobytes()
