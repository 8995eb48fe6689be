"""Rotary and ALiBi positions of `Attention`, compared with explicit NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headfit as hf
from headfit.errors import InputError

RNG = np.random.default_rng
READERS = {
    "matrix": lambda Q, K, **o: hf.attention_matrix(Q, K, **o),
    "logits": lambda Q, K, **o: hf.attention_logits(Q, K, **o),
    "topk": lambda Q, K, **o: hf.attention_topk(Q, K, 3, **o)[1],
    "apply": lambda Q, K, **o: hf.attention_apply(Q, K, np.cos(K), **o),
    "stats": lambda Q, K, **o: hf.attention_stats(Q, K, **o).entropy,
    "describe": lambda Q, K, **o: hf.describe(Q, K, **o).top_mass,
}


def distances(n: int, m: int) -> np.ndarray:
    return np.abs(np.arange(n)[:, None] + m - n - np.arange(m))


def rotated(x: np.ndarray, first: int, base: float, halves: bool) -> np.ndarray:
    """Rotate pairs of entries as complex numbers, one by one."""
    n, d = x.shape[-2:]
    out = np.empty(x.shape)
    for t in range(n):
        for p in range(d // 2):
            a, b = (p, p + d // 2) if halves else (2 * p, 2 * p + 1)
            turn = np.exp(1j * (first + t) * base ** (-2 * p / d))
            z = (x[..., t, a] + 1j * x[..., t, b]) * turn
            out[..., t, a], out[..., t, b] = z.real, z.imag
    return out


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(("n", "m"), [(9, 9), (5, 12), (12, 5)])
def test_alibi_is_its_bias(reader, dtype, mask, n, m):
    rng = RNG(0)
    Q = rng.standard_normal((2, 4, n, 6)).astype(dtype)
    K = rng.standard_normal((2, 2, m, 6)).astype(dtype)
    slopes = [0.5, 0.25, 1.0, 0.0]
    bias = -np.array(slopes)[:, None, None] * distances(n, m)
    read = READERS[reader]
    got = read(Q, K, mask=mask, position=("alibi", slopes))
    np.testing.assert_array_equal(got, read(Q, K, mask=mask, bias=bias.astype(dtype)))
    one = read(Q[0, 0], K[0, 0], mask=mask, position=("alibi", 0.5)) if reader != "topk" else None
    if one is not None:
        np.testing.assert_array_equal(one, got[0, 0])


def test_alibi_alone_has_the_slopes_of_the_paper():
    zero = np.zeros((8, 4, 2))
    logits = hf.attention_logits(zero, zero, position="alibi")
    for head in range(8):
        np.testing.assert_allclose(logits[head], -(2.0 ** -(head + 1)) * distances(4, 4))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["rope", "rope-half"])
@pytest.mark.parametrize(("n", "m"), [(9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("base", [10000.0, 37.0])
def test_rope_turns_queries_and_keys(reader, kind, n, m, base):
    rng = RNG(1)
    Q, K = rng.standard_normal((4, n, 6)), rng.standard_normal((2, m, 6))
    halves = kind == "rope-half"
    position = kind if base == 10000.0 else (kind, base)
    turned = rotated(Q, m - n, base, halves), rotated(K, 0, base, halves)
    read = READERS[reader]
    if reader == "apply":
        got = hf.attention_apply(Q, K, np.cos(K), position=position)
        np.testing.assert_allclose(got, hf.attention_apply(*turned, np.cos(K)), atol=1e-12)
    else:
        np.testing.assert_allclose(read(Q, K, position=position), read(*turned), atol=1e-12)


@given(st.integers(1, 12), st.integers(0, 2**32), st.sampled_from(["rope", "rope-half"]))
def test_rope_logits_depend_on_differences_only(n, seed, kind):
    rng = RNG(seed)
    q, k = rng.standard_normal((2, 1, 8))
    logits = hf.attention_logits(np.repeat(q, n, 0), np.repeat(k, n, 0), position=kind)
    for offset in range(1 - n, n):
        line = np.diagonal(logits, offset)
        np.testing.assert_allclose(line, line[0], atol=1e-12)


def test_rope_stays_float32_and_leaves_the_inputs():
    Q = RNG(2).standard_normal((5, 4)).astype(np.float32)
    before = Q.copy()
    assert hf.attention_matrix(Q, Q, position="rope").dtype == np.float32
    np.testing.assert_array_equal(Q, before)
    # With as many queries as keys, the first query is at position 0 and is not rotated.
    rows = hf.attention_logits(Q, Q, position="rope")[0, 0]
    assert rows == pytest.approx(float(Q[0] @ Q[0]) / 2, rel=1e-6)


@pytest.mark.parametrize("kind", ["rope", "rope-half"])
def test_rope_of_given_frequencies(kind):
    """Those of a base are that base; other pairs are turned one by one."""
    rng = RNG(4)
    Q, K = rng.standard_normal((2, 3, 7, 6))
    frequencies = 37.0 ** (-np.arange(3) / 3)
    for form in (frequencies, tuple(frequencies), list(frequencies)):
        got = hf.attention_logits(Q, K, position=(kind, form))
        np.testing.assert_array_equal(got, hf.attention_logits(Q, K, position=(kind, 37.0)))
    pair = [0, 3] if kind == "rope-half" else [0, 1]
    x = Q[..., pair], K[..., pair]
    z, w = (a[..., 0] + 1j * a[..., 1] for a in x)
    turn = np.exp(0.3j * np.arange(7))
    expected = ((z * turn)[..., :, None].conj() * (w * turn)[..., None, :]).real
    got = hf.attention_logits(*x, position=(kind, [0.3]), scale=1.0)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_sparsify_takes_positions():
    rng = RNG(3)
    Q, K = rng.standard_normal((2, 40, 6))
    for position in ("rope", ("alibi", 0.3)):
        streamed = hf.sparsify(Q, K, position=position, per_row=3, per_column=4)
        matrix = hf.attention_matrix(Q, K, position=position)
        dense = hf.sparsify(matrix, per_row=3, per_column=4)
        np.testing.assert_array_equal(streamed.matrix.indices, dense.matrix.indices)


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("learned", "position must be"),
        (("rope", 10.0, 2), "position must be"),
        (("rope", -1.0), "the base of rope"),
        (("rope", "big"), "the base of rope"),
        (("rope", [1.0, 0.5]), "the frequencies of rope must be one for each of the 1 pairs"),
        (("rope-half", [np.nan]), "the frequencies of rope must be finite"),
        (("rope", ["a"]), "the frequencies of rope"),
        (("alibi", [1.0, 2.0]), "slopes of alibi must broadcast to"),
        (("alibi", np.nan), "finite"),
        (3, "position must be"),
    ],
)
def test_bad_positions_are_named(position, message):
    Q = np.ones((4, 2))
    with pytest.raises(InputError, match=message):
        hf.attention_matrix(Q, Q, position=position)


def test_positions_that_cannot_be():
    with pytest.raises(InputError, match="even head size; got 3"):
        hf.attention_matrix(np.ones((4, 3)), np.ones((4, 3)), position="rope")
    with pytest.raises(InputError, match="exclude each other"):
        hf.attention_matrix(np.ones((4, 2)), np.ones((4, 2)), position="alibi", bias=np.ones(4))
