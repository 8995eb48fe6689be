"""Values of a layer as latents of a few bits, against slow sums over whole attention matrices."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit import _core
from headfit.errors import InputError, NonFiniteError

D, DV, HEADS, KEY_HEADS = 8, 6, 4, 2
WIDTH = DV * KEY_HEADS


@lru_cache
def passages(count: int = 8, dtype: str = "float32") -> Any:
    """Queries, keys and values; those of both heads come from a few numbers of the token.

    The first token gets much attention, and its value is like no other, but the same in all.
    """
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(14, KEY_HEADS, DV))
    fall, first = 1.6 ** -np.arange(14), 5 * rng.normal(size=(KEY_HEADS, DV))
    found = []
    for i in range(count):
        n = 30 + 5 * (i % 3)
        q, k = rng.normal(size=(HEADS, n, D)), rng.normal(size=(KEY_HEADS, n, D))
        q[..., 0], k[:, 0, 0] = 2, 3
        v = np.einsum("nw,whd->hnd", rng.normal(size=(n, 14)) * fall, mix)
        v[:, 0] = first
        found.append(tuple(x.astype(dtype) for x in (q, k, v)))
    return tuple(found)


def compressed(given: Any = None, options: Any = None, **settings: Any) -> Any:
    """The values of one layer."""
    logits = {"mask": "causal", **(options or {})}
    triples = passages() if given is None else given
    layer = [(hf.Attention(q, k, **logits), v) for q, k, v in triples]
    return hf.compress_values({"it": layer}, **{"num_threads": 2, **settings})["it"]


@pytest.mark.parametrize("size", [0.0, 1e4])
def test_padding_has_no_part_in_what_is_found(size: float) -> None:
    n = 25
    cut = compressed([(q, k[:, :n], v[:, :n]) for q, k, v in passages()], {"mask": None})
    longer = [(q, k, np.hstack([v[:, :n], 0 * v[:, n:] + size])) for q, k, v in passages()]
    found = compressed(longer, {"mask": None, "key_lengths": n})
    np.testing.assert_array_equal(found.bits, cut.bits)
    np.testing.assert_allclose(found.mean, cut.mean, rtol=1e-3, atol=1e-3)
    assert found.error == pytest.approx(cut.error, rel=1e-3)


def attention(q: Any, k: Any, allowed: Any = None, sinks: Any = None, softcap: Any = None) -> Any:
    """The weights of all query heads, by definition, in float64."""
    k = np.repeat(np.asarray(k, float), HEADS // KEY_HEADS, axis=0)
    s = np.asarray(q, float) @ k.swapaxes(1, 2) / np.sqrt(D)
    s = s if softcap is None else softcap * np.tanh(s / softcap)
    s = np.exp(np.where(np.tri(s.shape[1], dtype=bool) if allowed is None else allowed, s, -np.inf))
    sink = 0 if sinks is None else np.exp(np.asarray(sinks, float))[:, None, None]
    total = s.sum(-1, keepdims=True) + sink
    return np.divide(s, total, out=np.zeros_like(s), where=total > 0)


def outputs(p: Any, v: Any) -> Any:
    """Attention times values, each query head with those of its key head."""
    return np.einsum("hij,hjd->hid", p, np.repeat(np.asarray(v, float), HEADS // KEY_HEADS, axis=0))


def flat(v: Any) -> Any:
    return np.asarray(v, float).swapaxes(0, 1).reshape(-1, WIDTH)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"sinks": [0.5, -1, 0, 2], "softcap": 5.0}])
def test_squared_mass_is_the_sum_of_squared_weights(few: bool, dtype: str, options: Any) -> None:
    q, k, _ = passages(dtype=dtype)[2]
    n = q.shape[1]
    allowed = np.tri(n, dtype=bool)
    if few:  # some rows have no key at all
        allowed &= np.random.default_rng(1).random((n, n)) < 0.1
        assert not allowed.any(axis=1).all()
    masks: Any = (allowed, sp.csr_array(allowed)) if few else ("causal",)
    expected = (attention(q, k, allowed, **options) ** 2).sum(axis=1)
    for mask in masks:
        given = hf.Attention(q, k, mask=mask, **options)
        for threads in (1, 3):
            got = _core.squared_mass(given.core, threads)
            np.testing.assert_allclose(got, expected, atol=1e-5 if dtype == "float32" else 1e-12)


def principal(chosen: Any, rank: int) -> Any:
    """The mean of values and their first components, weighted by squares of attention, slowly."""
    x, w = [], []
    for i in chosen:
        q, k, v = passages()[i]
        p = attention(q, k)
        x.extend(flat(v))
        of_tokens = [
            sum(p[h, i, j] ** 2 for h in range(HEADS) for i in range(v.shape[1]))
            for j in range(v.shape[1])
        ]
        w.extend(np.array(of_tokens) + 0.001 * np.mean(of_tokens))
    x, w = np.array(x), np.array(w)
    w /= w.sum()
    mean = w @ x
    cov = sum(a * np.outer(b - mean, b - mean) for a, b in zip(w, x, strict=True))
    return mean, np.linalg.eigh(cov)[1][:, ::-1][:, :rank]


def test_maps_are_those_of_weighted_principal_components() -> None:
    found = compressed(rank=4)
    mean, components = principal(found.calibration, 4)
    np.testing.assert_allclose(found.mean, mean, atol=1e-4)
    # Latents are turned at random: what they span, and what is read, is that of the components.
    np.testing.assert_allclose(found.encode @ found.decode, components @ components.T, atol=1e-4)
    v = passages()[0][2]
    read = (flat(v) - mean) @ components @ components.T + mean
    np.testing.assert_allclose(flat(found.read(found.store(v))), read, atol=0.05)


@pytest.mark.parametrize("sizes", [{"bytes": 4}, {"rank": 4, "bits": 4}, {"rank": 6}, {"bits": 3}])
@pytest.mark.parametrize("options", [{}, {"sinks": [0.5, -1, 0, 2]}])
def test_reported_errors_are_those_of_what_is_read(sizes: Any, options: Any) -> None:
    found = compressed(options=options, **sizes)
    squares = np.zeros(3)
    for i in found.held_out:
        q, k, v = passages()[i]
        p = attention(q, k, **options)
        whole = outputs(p, v)
        low, high = v.min(-1, keepdims=True), v.max(-1, keepdims=True)
        in_4_bits = low + np.round((v - low) / (high - low) * 15) / 15 * (high - low)
        read = found.read(found.store(v))
        squares += [
            (x**2).sum() for x in (whole, outputs(p, read) - whole, outputs(p, in_4_bits) - whole)
        ]
    for got, square in zip((found.error, found.error_of_4_bits), squares[1:], strict=True):
        assert got == pytest.approx(np.sqrt(square / squares[0]), rel=1e-3)
    assert f"error of outputs {found.error:.3g}" in repr(found)


@pytest.mark.parametrize(
    ("sizes", "bytes_of_token"),
    [
        ({"bytes": 4}, 8),
        ({"bytes": 100}, 2 + WIDTH),
        ({"rank": 4, "bits": 4}, 2 + 2),
        ({"rank": 5}, 10),
        ({"bits": 8}, 2 + WIDTH),
        ({}, 4),
    ],
)
def test_a_token_takes_the_bytes_that_are_reported(sizes: Any, bytes_of_token: int) -> None:
    found = compressed(**sizes)
    stored = found.store(passages()[1][2])
    assert stored.shape == (passages()[1][2].shape[1], bytes_of_token)
    assert (found.bytes, found.whole_bytes) == (bytes_of_token / KEY_HEADS, 2 * DV)


def test_weights_and_bytes_lower_the_error() -> None:
    """The value of a token that gets all attention takes nothing from the others."""
    assert compressed(bytes=6).error < 0.5 * compressed(bytes=3).error
    assert compressed(rank=WIDTH).error < 1e-3
    # Rows that attend to few tokens: the others, whose values are larger, need not be kept.
    rng = np.random.default_rng(3)
    given, alike = [], []
    for _ in range(6):
        q, k = np.zeros((HEADS, 40, D)), np.zeros((KEY_HEADS, 40, D))
        q[..., 0], k[:, ::2, 0] = 9, 9
        v = np.zeros((KEY_HEADS, 40, DV))
        v[:, ::2, :2] = rng.normal(size=(KEY_HEADS, 20, 2))
        v[:, 1::2, 2:] = 5 * rng.normal(size=(KEY_HEADS, 20, DV - 2))
        given.append((q, k, v))
        alike.append((0 * q, k, v))
    assert compressed(given, {"mask": None}, rank=4).error < 0.01
    few = compressed(alike, {"mask": None}, rank=4)  # all tokens count alike
    np.testing.assert_allclose(few.decode.reshape(-1, KEY_HEADS, DV)[..., :2], 0, atol=0.02)


@pytest.mark.parametrize("sizes", [{}, {"bits": 4}, {"rank": WIDTH}])
def test_other_tokens_count_beside_one_with_all_attention(sizes: Any) -> None:
    rng, given = np.random.default_rng(4), []
    for _ in range(8):
        q, k, v = rng.normal(size=(3, KEY_HEADS, 30, DV))
        q, k = np.repeat(q, HEADS // KEY_HEADS, axis=0), k.copy()
        q[..., 0], k[:, 0, 0], v[:, 0] = 8, 40, 1
        given.append((hf.Attention(q, k, mask="causal"), v))
    found = hf.compress_values({0: given}, **sizes)[0]
    v = given[0][1]
    errors = np.linalg.norm(flat(found.read(found.store(v)) - v), axis=1)
    assert errors.mean() < 0.7 * np.linalg.norm(flat(v), axis=1).mean()
    assert found.error < 0.2


def test_layers_threads_and_seeds() -> None:
    def layer(count: int) -> Any:
        return [(hf.Attention(q, k, mask="causal"), v) for q, k, v in passages()[:count]]

    found = hf.compress_values({"a": layer(8), ("b", 1): layer(5)}, bytes=4, num_threads=2)
    alone = hf.compress_values({("b", 1): layer(5)}, bytes=4, num_threads=1)["b", 1]
    np.testing.assert_array_equal(alone.encode, found["b", 1].encode)
    assert alone.error == found["b", 1].error
    assert found.error == np.mean([x.error for x in found.layers.values()])
    assert found.bytes == 4
    assert "2 layers: 12 -> 4 bytes per value and head" in repr(found)
    assert json.loads(json.dumps(found.to_dict()))["layers"]["a"]["bytes"] == 4
    other = hf.compress_values({"a": layer(8)}, bytes=4, rng=1)["a"]
    assert other.held_out.tolist() != found["a"].held_out.tolist()


def test_other_forms_of_passages() -> None:
    q, k, v = passages()[0]
    single = compressed([(q, k, v)], bytes=4)
    assert single.held_out.size == 0
    assert "on the passage itself" in repr(single)
    pairs = hf.compress_values({0: [((q, k), v), ((q, k), v)]}, bytes=4)[0]
    assert pairs.error < 1
    # What the other function takes is not read as something else.
    with pytest.raises(InputError, match=r"passages must be pairs \(heads, V\)"):
        hf.compress_values({0: [(q[:, 0], k[:, 0])] * 2})
    with pytest.raises(InputError, match="passages must be "):
        hf.compress_keys({0: [((q[0], k[0]), v[0])] * 2}, effort=0)
    one = hf.compress_values({0: [((q[0], k[0]), v[0])] * 2}, bytes=4)[0]
    assert one.key_heads == 1
    assert one.read(one.store(v[0])).shape == (1, v.shape[1], DV)
    # Rotary positions turn queries and keys alone.
    rope = {"position": ("rope", 100.0)}
    turned = [
        (a.Q, a.K, v)
        for a, v in ((hf.Attention(q, k, **rope).rotated(), v) for q, k, v in passages())
    ]
    assert compressed(options=rope, bytes=4).error == compressed(turned, bytes=4).error


def test_nothing_that_varies_or_attends() -> None:
    q, k, v = passages()[0]
    for value in (0.0, 3.0):
        found = compressed([(q, k, np.full_like(v, value))] * 3)
        assert found.error < 1e-3
        np.testing.assert_allclose(
            found.read(found.store(np.full_like(v, value))), value, atol=1e-3
        )
    nowhere = compressed([(q, k, v)] * 3, {"mask": np.zeros((q.shape[1],) * 2, bool)}, rank=WIDTH)
    assert nowhere.error == 0
    np.testing.assert_allclose(nowhere.read(nowhere.store(v)), v, atol=0.05)


def test_weights_of_a_layer_fold() -> None:
    found = compressed(bytes=4)
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(20, 24)), rng.normal(size=(24, WIDTH))
    tensors = found.tensors(w)
    np.testing.assert_allclose(
        x @ tensors["W_latent"] + tensors["b_latent"],
        (x @ w - found.mean) @ found.encode,
        atol=1e-2,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bytes": 1}, "layer 'it': bytes must be at least 1.5 for 2 key heads"),
        ({"bytes": 5, "rank": 4}, "bytes must not be given beside rank or bits"),
        ({"rank": 13}, "rank must"),
        ({"bits": 9}, "bits must"),
        ({"held_out": 1.5}, "held_out must"),
        ({"rng": "x"}, "rng must"),
        ({"num_threads": -1}, "num_threads must"),
    ],
)
def test_bad_options(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compressed(**settings)


def test_bad_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = passages()[0]
    heads = hf.Attention(q, k, mask="causal")
    for layer, message in [
        ([], "at least; got none"),
        ([heads, heads], r"must be pairs \(heads, V\)"),
        (heads, r"must be pairs \(heads, V\)"),
        ([(heads, v, v)], r"must be pairs \(heads, V\)"),
        ([(heads, None)], "V of passage 0"),
        ([(heads, v), (heads, v[:1])], r"V of passage 1 must be \(2, 30, 6\)"),
        ([(heads, v), (heads, v[..., :5])], r"V of passage 1 must be \(2, 30, 6\)"),
        ([(heads, v[:, :29])], r"V of passage 0 must be \(2, 30, 6\)"),
        ([(heads, v[..., :0])], "not empty"),
        ([(heads, v), (hf.Attention(q, k[:1]), v[:1])], "must be of one layer"),
    ]:
        with pytest.raises(InputError, match=f"layer 'it': .*{message}"):
            hf.compress_values({"it": layer})  # type: ignore[dict-item]
    broken = v.copy()
    broken[1, 2, 3] = np.nan
    with pytest.raises(NonFiniteError, match="V of passage 1, in float32, must be finite"):
        compressed([(q, k, v), (q, k, broken)])
    with pytest.raises(NonFiniteError, match="V of passage 0, in float32"):
        compressed([(q, k, 1e300 * v.astype(float))])
    monkeypatch.setattr("headfit._cache.compress_values._judged", None)  # no work has been done
    for bad, options in (([(heads, v[:1])], {}), ([(heads, v[..., :2])], {"rank": 5})):
        with pytest.raises(InputError, match="layer 'b': "):
            hf.compress_values({"a": [(heads, v)], "b": bad}, **options)
    monkeypatch.undo()
    for bad in ({}, [(heads, v)], None):
        with pytest.raises(InputError, match="layers must be a mapping"):
            hf.compress_values(bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"states must have shape \(2, n, 6\)"):
        compressed().store(v[:1])
