"""float16 and bfloat16 inputs: read as the float32 numbers that they are."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from matplotlib.figure import Figure

import headfit as hf
from headfit._base.arrays import BFLOAT16, widened
from headfit._shrink.descent import Original, Running, closest, truncated_svd
from headfit.errors import NonFiniteError

RNG = np.random.default_rng


def truncated(x: np.ndarray) -> np.ndarray:
    """Return numbers that bfloat16 represents exactly, as float32."""
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def as_float16(x: np.ndarray) -> Any:
    return x.astype(np.float16)


def as_torch_half(x: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_numpy(x.astype(np.float16))


def as_torch(x: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16)


def as_torch_in_graph(x: np.ndarray) -> Any:
    return as_torch(x).requires_grad_()


def as_torch_transposed(x: np.ndarray) -> Any:
    return as_torch(np.swapaxes(x, -1, -2)).transpose(-1, -2)


def as_ml_dtypes(x: np.ndarray) -> Any:
    return x.astype(ml_dtypes.bfloat16)


FORMS = [as_float16, as_torch_half, as_torch, as_torch_in_graph, as_torch_transposed, as_ml_dtypes]
READERS = {
    "matrix": lambda Q, K: hf.attention_matrix(Q, K),
    "logits": lambda Q, K: hf.attention_logits(Q, K),
    "topk": lambda Q, K: hf.attention_topk(Q, K, 3)[1],
    "topk logits": lambda Q, K: hf.attention_topk(Q, K, 3, values="logits")[1],
    "apply": lambda Q, K: hf.attention_apply(Q, K, K),
    "stats": lambda Q, K: hf.attention_stats(Q, K).entropy,
    "describe": lambda Q, K: hf.describe(Q, K).column_mass,
    "sparsify": lambda Q, K: hf.sparsify(Q[0], K[0], per_row=3, per_column=4).matrix.data,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_narrow_numbers_are_read_exactly(form, reader):
    rng = RNG(0)
    # Both formats represent these numbers exactly, since they have few bits.
    Q, K = (np.round(rng.standard_normal((2, 2, 20, 6)) * 16) / 16).astype(np.float32)
    Q, K = truncated(Q), truncated(K)
    expected = READERS[reader](Q, K)
    got = READERS[reader](form(Q), form(K))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("form", [as_torch, as_ml_dtypes])
def test_bfloat16_keeps_its_range(form):
    x = truncated(np.array([[1e-38, -3e38, 0.0, -0.0], [1.5, -2.5, 1e-40, 65536.0]]))
    expected = x.astype(np.float64) @ np.array([1.0, 0, 0, 0])
    got = hf.attention_logits(form(x), np.array([[1.0, 0, 0, 0]], np.float32), scale=1.0)[:, 0]
    np.testing.assert_array_equal(got, expected.astype(np.float32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_named(form, bad):
    Q = np.ones((5, 3), np.float32)
    Q[2, 1] = bad
    with pytest.raises(NonFiniteError, match=r"Q must be finite; got .* at row 2, column 1"):
        hf.attention_matrix(form(Q), np.ones((5, 3), np.float32))


@pytest.mark.parametrize("form", FORMS)
def test_matrices_may_be_narrow(form):
    M = np.round(RNG(1).random((10, 10)) * 64).astype(
        np.float32
    )  # both formats represent them exactly
    got, wide = hf.sparsify(form(M), per_row=3), hf.sparsify(M, per_row=3)
    np.testing.assert_array_equal(got.matrix.indices, wide.matrix.indices)
    np.testing.assert_array_equal(got.matrix.data, wide.matrix.data)


# Other arguments in 16 bits ----------------------------------------------------------------

NARROW = [np.dtype(np.float16), BFLOAT16]


def narrow(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return random numbers that use all bits of the format."""
    x = rng.standard_normal(shape, dtype=np.float32)
    if dtype == BFLOAT16:
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
def test_every_number_of_16_bits_is_read_exactly(dtype):
    every = np.arange(2**16).astype(np.uint16).view(dtype)[:, np.newaxis]
    if dtype == np.float16:
        sign, rest = np.divmod(np.arange(2**16), 2**15)
        exponent, digits = np.divmod(rest, 2**10)
        size = np.ldexp(digits / 2**10 + (exponent > 0), np.maximum(exponent, 1) - 15)
        expected = np.where(sign, -size, size)
        finite = exponent < 31
    else:
        expected = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
        finite = np.isfinite(expected)
    for one in (np.ones((1, 1), np.float32), np.ones((1, 1))):
        got = hf.attention_logits(every[finite], one, scale=1.0)[:, 0]
        assert got.dtype == one.dtype
        np.testing.assert_array_equal(got, expected[finite])


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": "causal"},
    "window": {"mask": ("window", (5, 2)), "position": "rope"},
    "dense": {"mask": np.random.default_rng(3).random((40, 52)) < 0.6},
    "sparse": {"mask": sp.random_array((40, 52), density=0.4, rng=4) > 0},
    "rope": {"position": ("rope", 100.0)},
    "rope-half": {"position": "rope-half", "mask": "causal"},
    "alibi": {"position": ("alibi", 0.1), "softcap": 3.0},
}
BATCH_READERS = {
    "matrix": lambda Q, K, V, **o: hf.attention_matrix(Q, K, **o),
    "some rows": lambda Q, K, V, **o: hf.attention_matrix(Q, K, rows=[7, 0, 39, 7], **o),
    "logits": lambda Q, K, V, **o: hf.attention_logits(Q, K, **o),
    "topk": lambda Q, K, V, **o: hf.attention_topk(Q, K, 3, **o),
    "apply": lambda Q, K, V, **o: hf.attention_apply(Q, K, V, **o),
    "stats": lambda Q, K, V, **o: list(vars(hf.attention_stats(Q, K, **o)).values()),
    "describe": lambda Q, K, V, **o: list(hf.describe(Q, K, **o).columns().values()),
    "sparsify": lambda Q, K, V, **o: hf.sparsify(
        Q[1, 2], K[1, 1], per_row=3, per_column=9, on_empty="keep-max", **o
    ).matrix.toarray(),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("reader", BATCH_READERS)
def test_16_bits_give_what_their_float32_numbers_give(reader, setting, dtype, threads):
    rng = RNG(5)
    Q = narrow(rng, (2, 4, 40, 24), dtype)
    K, V = narrow(rng, (2, 2, 52, 24), dtype), narrow(rng, (2, 2, 52, 21), dtype)
    options = {**SETTINGS[setting], "num_threads": threads}
    read = BATCH_READERS[reader]
    got = read(Q, K, V, **options)
    expected = read(widened(Q), widened(K), widened(V), **options)
    if not isinstance(got, (list, tuple)):
        got, expected = [got], [expected]
    for a, b in zip(got, expected, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("reader", ["matrix", "topk", "apply", "stats"])
def test_padding_and_bias_in_16_bits(reader, dtype):
    rng = RNG(6)
    Q, K, V = (narrow(rng, (3, 2, 20, 8), dtype) for _ in range(3))
    bias = narrow(rng, (3, 1, 20, 20), dtype)
    lengths = [20, 13, 1]
    wild = widened(K).copy()
    for b, length in enumerate(lengths):
        wild[b, :, length:] = np.nan
    padded = wild.astype(np.float16)
    if dtype == BFLOAT16:
        padded = (wild.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    read = BATCH_READERS[reader]
    got = read(Q, padded, V, key_lengths=lengths, bias=bias)
    wide = read(widened(Q), widened(K), widened(V), key_lengths=lengths, bias=widened(bias))
    for a, b in zip(got, wide, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "dtype", [*NARROW, np.dtype(np.float32)], ids=["float16", "bfloat16", "float32"]
)
def test_any_dtypes_may_meet(dtype):
    rng = RNG(7)
    Q, K, V = narrow(rng, (9, 6), dtype), rng.standard_normal((11, 6)), narrow(rng, (11, 5), dtype)
    wide = widened(Q).astype(np.float64), K, widened(V).astype(np.float64)
    np.testing.assert_array_equal(hf.attention_apply(Q, K, V), hf.attention_apply(*wide))
    np.testing.assert_array_equal(hf.attention_logits(K, Q), hf.attention_logits(K, wide[0]))


def narrowed(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Return float32 numbers that the format holds exactly."""
    bits = (x.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    stored = bits if dtype == BFLOAT16 else x.astype(dtype)
    np.testing.assert_array_equal(widened(stored), x)
    return stored


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("mass", [True, False])
def test_certificates_of_16_bits(dtype, mass):
    A = hf.patterns.random_regular(60, 3, rng=0)
    head = hf.fit(A, 8, dtype="bfloat16" if dtype == BFLOAT16 else "float16")
    stored = narrowed(head.Q, dtype), narrowed(head.K, dtype)
    # A leak just below the bound for a row can only be decided by a scan in double.
    leak = np.sort(hf.certify(A, head.Q, head.K).row_leak)[30]
    tolerance = {"leak": float(leak) * (1 - 1e-6), "distortion": 0.1}
    got = hf.certify(A, *stored, **tolerance, certificate_mass=mass)
    wide = hf.certify(A, head.Q, head.K, **tolerance, certificate_mass=mass)
    assert got.rescanned > 0
    assert repr(got) == repr(wide)
    np.testing.assert_array_equal(got.row_leak, wide.row_leak)
    np.testing.assert_array_equal(got.row_distortion, wide.row_distortion)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
def test_matrices_of_16_bits_are_judged(dtype):
    A = hf.patterns.random_regular(60, 3, rng=0)
    M = narrow(RNG(8), (60, 60), dtype)
    M.view(np.uint16)[...] &= 0x7FFF  # no negative entries
    got, wide = hf.certify(A, matrix=M), hf.certify(A, matrix=widened(M))
    assert repr(got) == repr(wide)
    np.testing.assert_array_equal(got.row_leak, wide.row_leak)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
def test_attention_keeps_16_bits_and_shows_float32(dtype):
    Q, K = narrow(RNG(9), (30, 8), dtype), narrow(RNG(10), (30, 8), dtype)
    attention = hf.Attention(Q, K, mask="causal")
    wide = hf.Attention(widened(Q), widened(K), mask="causal")
    np.testing.assert_array_equal(attention.Q, wide.Q)
    np.testing.assert_array_equal(attention.K, wide.K)
    np.testing.assert_array_equal(attention.matrix(), wide.matrix())
    np.testing.assert_array_equal(attention.apply(K), wide.apply(wide.K))
    assert repr(attention) == repr(wide)
    assert hf.compare(attention, wide).tv_worst < 1e-12


@pytest.mark.parametrize("position", [None, "rope", "rope-half"])
@pytest.mark.parametrize("form", [as_float16, np.float32, np.float64])
def test_the_bad_entry_is_named_whatever_turns_it(form, position):
    K = np.ones((5, 8), np.float32)
    K[3, 6] = np.nan
    with pytest.raises(NonFiniteError, match="K must be finite; got nan at row 3, column 6"):
        hf.attention_matrix(np.ones((5, 8)), form(K), position=position)


# Memory -----------------------------------------------------------------------------------

MEMORY_READERS = {
    "matrix": lambda Q, K, o: hf.attention_matrix(Q, K, rows=slice(0, 8), **o),
    "topk": lambda Q, K, o: hf.attention_topk(Q, K, 1, **o),
    "apply": lambda Q, K, o: hf.attention_apply(Q, K, K, rows=slice(0, 8), **o),
    "stats": lambda Q, K, o: hf.attention_stats(Q, K, **o),
    "describe": lambda Q, K, o: hf.describe(Q, K, per_row=1, shares=(), **o),
    "sparsify": lambda Q, K, o: hf.sparsify(Q.reshape(-1, Q.shape[-1]), K[0, 0], per_row=1, **o),
}


def traced_peak(call, *arguments):
    """Return the most bytes that Python and NumPy held at once during a call."""
    tracemalloc.start()
    try:
        call(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("position", [None, "rope"])
@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("reader", MEMORY_READERS)
def test_python_widens_no_array(reader, dtype, position):
    Q, K = narrow(RNG(11), (2, 4, 2048, 64), dtype), narrow(RNG(12), (2, 4, 2048, 64), dtype)
    options = {"position": position} if reader != "sparsify" else {}
    assert traced_peak(MEMORY_READERS[reader], Q, K, options) < Q.size * 4


def head_of(Q, K):
    return hf.Attention(Q, K, mask="causal")


# The functions that take one head, here of 4096 queries and keys.
ONE_HEAD = {
    "truncated SVD": lambda Q, K: truncated_svd(Q, K, 3),
    "shrink": lambda Q, K: hf.shrink(head_of(Q, K), dim=3, effort=1, curve_dims=()),
    "certify": lambda Q, K: hf.certify(sp.eye_array(4096), head_of(Q, K)),
    "torch.from_projections": lambda Q, K: projected(Q, K),
    "module": lambda Q, K: hf.SelfAttention(*np.ones((2, 64, 2)))(Q),
    "canonical module": lambda Q, K: hf.SelfAttention.canonical(32)(Q),
}


def projected(Q, K):
    pytest.importorskip("torch")
    return import_module("headfit.torch").from_projections(Q, K[:2], K[:2], num_heads=1).stored


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("way", ONE_HEAD)
def test_python_widens_no_head(way, dtype, monkeypatch):
    monkeypatch.setattr("headfit._base.arrays.BLOCK", 2**14)
    K = narrow(RNG(13), (4096, 64), dtype)
    Q = narrowed(4 * widened(K), dtype)
    ONE_HEAD[way](Q, K)  # imports what it needs before memory is counted
    copies = 2 * Q.size if way == "certify" else 0  # nobody can change these meanwhile
    assert traced_peak(ONE_HEAD[way], Q, K) < Q.size * 4 + copies


SMALLER = {
    "truncated SVD": lambda Q, K: truncated_svd(Q, K, 5, scale=0.3),
    "shrink, rows": lambda Q, K: vars(
        hf.shrink(head_of(Q, K), dim=4, effort=20, curve_dims=()).comparison
    ).values(),
    "shrink": lambda Q, K: vars(hf.shrink(Q, K, dim=4, effort=20).curve).values(),
    "dense target": lambda Q, K: [hf.shrink(halves(Q), dim=4, effort=20).Q],
    "learned from init": lambda Q, K: [
        hf.fit(
            hf.Target(halves(Q), normalize=True),
            12,
            method=hf.methods.Learned(init=(Q, K)),
            leak=0.2,
        ).Q
    ],
    "compare": lambda Q, K: [hf.compare(halves(Q), hf.Attention(Q, Q)).row_kl],
    "target": lambda Q, K: [hf.Target(halves(Q)).matrix.toarray()],
    "torch.from_projections": lambda Q, K: projected(Q[:, :9], Q[:4, :9]),
    "module": lambda Q, K: hf.SelfAttention.random(6, rng=0)(Q).stored,
    "canonical module": lambda Q, K: [hf.SelfAttention.canonical(6)(Q).matrix()],
    "picture of keys": lambda Q, K: [
        points.get_offsets()
        for drawn in [hf.plot.keys(halves(Q), hf.Attention(Q, K), 5, ax=Figure().subplots())]
        for points in (drawn.support, drawn.others)
    ],
    "append_dims": lambda Q, K: hf.methods.append_dims(halves(Q), hf.Attention(Q, K), [1]).stored,
}


def halves(Q):
    """Return a matrix with entries 1/2 at a token and one neighbour; zeros are +0.0 and -0.0."""
    M = -np.zeros((len(Q), len(Q)), np.float32)
    M += (np.eye(len(Q)) + np.roll(np.eye(len(Q)), -1, axis=1)) / 2
    return M if Q.dtype == np.float32 else narrowed(M, Q.dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("way", SMALLER)
def test_fits_to_16_bits_are_those_to_their_float32_numbers(way, dtype, monkeypatch):
    monkeypatch.setattr("headfit._base.arrays.BLOCK", 2**10)  # blocks of a few rows
    Q, K = narrow(RNG(15), (70, 12), dtype), narrow(RNG(16), (70, 12), dtype)
    got, wide = SMALLER[way](Q, K), SMALLER[way](widened(Q), widened(K))
    for a, b in zip(got, wide, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda Q, K: hf.shrink(hf.Attention(Q, K), dim=2),
        lambda Q, K: hf.shrink(Q, K, dim=2),
        pytest.param(lambda Q, K: projected(K[:, :9], Q[:4, :9]), id="torch.from_projections"),
        lambda Q, K: hf.SelfAttention.random(6, rng=0)(K).matrix(),
    ],
)
def test_fits_name_the_bad_entry_of_16_bits(ask, dtype, monkeypatch):
    monkeypatch.setattr("headfit._base.arrays.BLOCK", 2**6)
    Q, K = narrow(RNG(17), (70, 12), dtype), narrow(RNG(18), (70, 12), dtype)
    K[61, 7] = np.float16(np.nan) if dtype == np.float16 else np.uint16(0x7FC0).view(BFLOAT16)
    with pytest.raises(NonFiniteError, match=r"[KX] must be finite; got nan at row 61, column 7"):
        ask(Q, K)


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
def test_a_dense_target_of_16_bits_is_checked(dtype):
    M = narrowed(np.full((8, 8), 0.125, np.float32), dtype)
    M[5, 3] = np.float16(np.nan) if dtype == np.float16 else np.uint16(0x7FC0).view(BFLOAT16)
    with pytest.raises(NonFiniteError, match="the target must be finite; got nan at row 5, col"):
        hf.shrink(M, dim=2)


# Attention matrices: a sparse and a dense one.
ONE_MATRIX = {
    "descent": lambda M, A: closest(
        Original.of(M, None, 1), 2, Running.of(effort=1), start=(A[:, :1], A[:, :1])
    ),
    "compare": lambda M, A: hf.compare(M, hf.Attention(A[:, :1], A[:, :1])),
    "target": lambda M, A: hf.Target(A),
    "certify": lambda M, A: hf.certify(A, matrix=M),
}


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("way", ONE_MATRIX)
def test_python_widens_no_matrix(way, dtype):
    M = narrowed(np.full((1024, 1024), 2.0**-10, np.float32), dtype)
    A = narrowed(np.eye(1024, dtype=np.float32), dtype)
    assert traced_peak(ONE_MATRIX[way], M, A) < M.size * 4


CORE_MEMORY = """
import re
import numpy as np
import headfit as hf

def peak():
    with open("/proc/self/status") as f:
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", f.read())[1]) * 1024

Q, K, V = (np.full((16, 128, 256, 64), 0.5, np.float16) for _ in range(3))
hf.attention_apply(Q[:1, :4], K[:1, :4], V[:1, :4], rows=slice(0, 8), num_threads=2)
before = peak()
hf.attention_apply(Q, K, V, rows=slice(0, 8), position="rope", num_threads=2)
hf.attention_topk(Q[:, :, :16], K, 1, num_threads=2)
print((peak() - before) / (4 * Q.size))
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps what was freed"
)
def test_the_core_widens_no_whole_array():
    """Keys and values are packed a few heads at a time: 64 MiB, half of a widened array."""
    ran = subprocess.run(
        [sys.executable, "-c", CORE_MEMORY], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(ran.stdout) < 0.75
