"""The loss of maps in the core, against an explicit reference in NumPy."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit import _core

D = 6
LENGTHS = ((9, 9), (40, 40), (13, 17), (600, 600))
RNG = np.random.default_rng


def dense(rng: np.random.Generator, n: int, m: int) -> Any:
    allowed = rng.random((n, m)) < 0.6
    allowed[:, 0] = True
    allowed[0] = False  # a row that attends to nothing
    return allowed


OPTIONS: dict[str, Any] = {
    "open": lambda rng, n, m: {},
    "causal": lambda rng, n, m: {"mask": "causal"},
    "window": lambda rng, n, m: {"mask": ("window", (3, 2))},
    "dense": lambda rng, n, m: {"mask": dense(rng, n, m)},
    "sparse": lambda rng, n, m: {"mask": sp.csr_array(dense(rng, n, m))},
    "lengths": lambda rng, n, m: {"mask": "causal", "key_lengths": m - 2},
    "key mask": lambda rng, n, m: {"mask": "causal", "key_mask": dense(rng, 2, m)[1]},
    "bias": lambda rng, n, m: {"bias": rng.normal(size=(n, m)), "scale": -0.4},
    "softcap": lambda rng, n, m: {"softcap": 1.5, "mask": "causal", "scale": 1.0},
    "softcap and bias": lambda rng, n, m: {"softcap": 2.0, "bias": masking_bias(rng, n, m)},
    "sinks": lambda rng, n, m: {"mask": "causal", "sinks": 0.7},
    "large sinks": lambda rng, n, m: {
        "softcap": 2.0,
        "sinks": 12.0,
        "bias": masking_bias(rng, n, m),
    },
    "alibi": lambda rng, n, m: {"position": "alibi"},
}


def masking_bias(rng: np.random.Generator, n: int, m: int) -> Any:
    return np.where(dense(rng, n, m), rng.normal(size=(n, m)), -np.inf)


def passages(name: str, dtype: str, lead: tuple[int, ...], lengths: Any = LENGTHS) -> Any:
    found = []
    for i, (n, m) in enumerate(lengths):
        rng = RNG(i)
        q, k = rng.normal(size=(*lead, n, D)), rng.normal(size=(m, D)) + 1
        found.append(hf.Attention(q.astype(dtype), k.astype(dtype), **OPTIONS[name](rng, n, m)))
    return found


def maps(dim: int, heads: int) -> Any:
    return RNG(9).normal(size=((heads + 1) * D, dim)) * 0.5


def reference(attentions: Any, x: Any) -> tuple[float, Any]:
    """Return mean KL and its gradient, in float64, with whole matrices."""
    total, rows, gradient = 0.0, 0, np.zeros_like(x)
    p_k = x[-D:]
    for a in attentions:
        q, k = a.Q.astype(float), a.K.astype(float)
        target = hf.Attention(q, k, **vars(a.options)).matrix()
        for h in range(q.shape[0] if q.ndim == 3 else 1):
            one = q[h] if q.ndim == 3 else q
            A = target[h] if q.ndim == 3 else target
            p_q = x[h * D : (h + 1) * D]
            products = (one @ p_q) @ (k @ p_k).T
            cap = a.softcap
            capped = products if cap is None else cap * np.tanh(products / cap)
            plain = {**vars(a.options), "scale": 1.0, "softcap": None, "sinks": None}
            zero = hf.Attention(np.zeros_like(q), k, **plain).logits()
            sink = -np.inf if a.sinks is None else a.sinks
            logits = capped + (zero[h] if q.ndim == 3 else zero)
            asks = np.isfinite(logits).any(axis=1)
            M = np.zeros_like(A)
            # What the sink takes is one more class of both.
            top = np.maximum(logits[asks].max(axis=1, keepdims=True), sink)
            e = np.exp(logits[asks] - top)
            whole = e.sum(axis=1, keepdims=True) + np.exp(sink - top)
            M[asks] = e / whole
            at = A > 0
            total += float((A[at] * np.log(A[at] / M[at])).sum())
            left, of_sink = 1 - A[asks].sum(axis=1), np.exp(sink - top - np.log(whole))[:, 0]
            if np.isfinite(sink):
                total += float((left * np.log(left / of_sink)).sum())
            rows += int(asks.sum())
            slope = 1.0 if cap is None else 1 - (capped / cap) ** 2
            g = (M - A) * slope
            gradient[h * D : (h + 1) * D] += one.T @ g @ (k @ p_k)
            gradient[-D:] += k.T @ g.T @ (one @ p_q)
    return total / rows, gradient / rows


@pytest.mark.parametrize("lead", [(), (3,)], ids=["one", "grouped"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradient(name: str, dtype: str, lead: tuple[int, ...]) -> None:
    attentions = passages(name, dtype, lead)
    x = maps(3, 3 if lead else 1)
    expected, slope = reference(attentions, x)
    rtol = 2e-5 if dtype == "float32" else 1e-11
    one = None
    for threads in (1, 2, 5):
        loss = _core.CompressLoss([a.core for a in attentions], threads)
        value, gradient = loss.evaluate(x, threads)
        np.testing.assert_allclose(value, expected, rtol=rtol)
        np.testing.assert_allclose(gradient, slope, atol=rtol * np.abs(slope).max())
        assert loss.value(x, threads) == value
        one = one or (value, gradient.tobytes())
        assert one == (value, gradient.tobytes())  # bit for bit with any number of threads


def test_what_keys_have_in_common_does_not_cost_precision() -> None:
    attentions = [
        hf.Attention(a.Q, a.K + np.float32(100), mask="causal")
        for a in passages("causal", "float32", ())
    ]
    x = np.vstack([0.4 * np.eye(D), np.eye(D)]) + 0.01 * maps(D, 1)  # nearly the head itself
    expected, slope = reference(attentions, x)
    value, gradient = _core.CompressLoss([a.core for a in attentions], 1).evaluate(x, 1)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, slope, atol=1e-4 * np.abs(slope).max())


@pytest.mark.parametrize("name", ["causal", "softcap and bias", "large sinks"])
def test_gradient_is_the_finite_difference(name: str) -> None:
    attentions = passages(name, "float64", (2,), LENGTHS[:3])
    loss = _core.CompressLoss([a.core for a in attentions], 1)
    x, step = maps(5, 2), RNG(3).normal(size=(3 * D, 5))
    _, gradient = loss.evaluate(x, 1)
    h = 1e-5
    slope = (loss.value(x + h * step, 1) - loss.value(x - h * step, 1)) / (2 * h)
    np.testing.assert_allclose((gradient * step).sum(), slope, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["open", "causal", "dense", "bias", "sinks"])
def test_moments(name: str, dtype: str) -> None:
    attentions = passages(name, dtype, (2,))
    queries, keys = np.zeros((2, D, D)), np.zeros((D, D))
    rows = 0
    for a in attentions:
        q, k = a.Q.astype(float), a.K.astype(float)
        for h, A in enumerate(hf.Attention(q, k, **vars(a.options)).matrix()):
            asks = A.sum(axis=1) > 0
            rows += int(asks.sum())
            queries[h] += q[h][asks].T @ q[h][asks]
            mean = A @ k
            keys += k.T @ (A.sum(axis=0)[:, None] * k) - mean.T @ mean
    for threads in (1, 3):
        loss = _core.CompressLoss([a.core for a in attentions], threads)
        found, attended = loss.moments()
        atol = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(found, queries / rows, atol=atol)
        np.testing.assert_allclose(attended, keys / rows, atol=atol)


def test_compared_rows_are_those_of_compare() -> None:
    attentions = passages("causal", "float32", (2,))
    others = [hf.Attention(a.Q, a.K + 0.3 * a.K**2, mask="causal") for a in attentions]
    kl, tv, asks = _core.compare_heads([a.core for a in attentions], [a.core for a in others], 2)
    expected = [
        hf.compare(
            hf.Attention(a.Q[h], a.K, mask="causal"), hf.Attention(b.Q[h], b.K, mask="causal")
        )
        for a, b in zip(attentions, others, strict=True)
        for h in range(2)
    ]
    np.testing.assert_allclose(kl, np.concatenate([c.row_kl for c in expected]))
    np.testing.assert_allclose(tv, np.concatenate([c.row_tv for c in expected]))
    assert asks.all()


def test_the_core_checks_what_it_reads() -> None:
    head = hf.Attention(np.eye(3), np.eye(3))
    other = hf.Attention(np.eye(4), np.eye(4))
    with pytest.raises(hf.errors.InputError, match="one size"):
        _core.CompressLoss([head.core, other.core], 1)
    with pytest.raises(hf.errors.InputError, match="there must be a passage"):
        _core.CompressLoss([], 1)
    loss = _core.CompressLoss([head.core], 1)
    with pytest.raises(hf.errors.InputError, match="6 rows"):
        loss.value(np.zeros((5, 2)), 1)
    with pytest.raises(hf.errors.NonFiniteError, match="maps must be finite"):
        loss.value(np.full((6, 2), np.nan), 1)
    turned = hf.Attention(np.eye(4), np.eye(4), position="rope")
    with pytest.raises(hf.errors.InputError, match="without positions"):
        _core.CompressLoss([turned.core], 1)
