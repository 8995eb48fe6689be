"""float16 and bfloat16 inputs: read as the float32 numbers that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit.errors import NonFiniteError

RNG = np.random.default_rng


def truncated(x: np.ndarray) -> np.ndarray:
    """Numbers that bfloat16 holds, as float32."""
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
    return x.astype(pytest.importorskip("ml_dtypes").bfloat16)


FORMS = [as_float16, as_torch_half, as_torch, as_torch_in_graph, as_torch_transposed, as_ml_dtypes]
READERS = {
    "matrix": lambda Q, K: hf.attention_matrix(Q, K),
    "logits": lambda Q, K: hf.attention_logits(Q, K),
    "topk": lambda Q, K: hf.attention_topk(Q, K, 3)[1],
    "apply": lambda Q, K: hf.attention_apply(Q, K, K),
    "stats": lambda Q, K: hf.attention_stats(Q, K).entropy,
    "describe": lambda Q, K: hf.describe(Q, K).column_mass,
    "sparsify": lambda Q, K: hf.sparsify(Q=Q[0], K=K[0], per_row=3, per_column=4).matrix.data,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_narrow_numbers_are_read_exactly(form, reader):
    rng = RNG(0)
    # Few bits, so that both formats hold the numbers.
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
    M = np.round(RNG(1).random((10, 10)) * 64).astype(np.float32)  # both formats hold them
    got, wide = hf.sparsify(form(M), per_row=3), hf.sparsify(M, per_row=3)
    np.testing.assert_array_equal(got.matrix.indices, wide.matrix.indices)
    np.testing.assert_array_equal(got.matrix.data, wide.matrix.data)
