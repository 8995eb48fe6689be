"""Sparse masks whose blocks of rows leave whole tiles of logits out, against the same mask dense.

The tiles that no row of a block may attend to are skipped, so what is computed must not depend on
which form the mask has. The masks are wider than several tiles of 128 columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf

N, M, D = 650, 900, 7


def band() -> np.ndarray:
    position = np.arange(N)[:, np.newaxis] + M - N
    return np.abs(position - np.arange(M)) < 30


def documents() -> np.ndarray:
    row, key = np.arange(N) // 170, np.arange(M) // 230
    return row[:, np.newaxis] == key


def blocks() -> np.ndarray:
    chosen = np.random.default_rng(1).random((7, 9)) < 0.3
    return np.kron(chosen, np.ones((100, 100), bool))[:N, :M]


def ends() -> np.ndarray:
    """The first and the last key of each row, and rows without any key."""
    allowed = np.zeros((N, M), bool)
    allowed[::2, [0, M - 1]] = True
    return allowed


def scattered() -> np.ndarray:
    return np.random.default_rng(2).random((N, M)) < 0.01


MASKS = (band, documents, blocks, ends, scattered)

OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "plain": lambda rng: {},
    "softcap": lambda rng: {"softcap": 5.0},
    "bias": lambda rng: {"bias": rng.normal(size=(N, M))},
    "sinks": lambda rng: {"sinks": 0.3},
    "keys": lambda rng: {"key_mask": rng.random(M) < 0.8},
    "lengths": lambda rng: {"key_lengths": M - 200},
}


def heads(mask: Callable[[], Any], dtype: Any, option: str) -> tuple[hf.Attention, hf.Attention]:
    rng = np.random.default_rng(5)
    Q, K = (rng.normal(size=(rows, D)).astype(dtype) for rows in (N, M))
    options = OPTIONS[option](rng)
    dense = mask()
    sparse = sp.csr_array(dense)
    return hf.Attention(Q, K, mask=sparse, **options), hf.Attention(Q, K, mask=dense, **options)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mask", MASKS)
def test_skipped_tiles_change_nothing(mask: Callable[[], Any], dtype: Any, option: str) -> None:
    sparse, dense = heads(mask, dtype, option)
    near: dict[str, Any] = {"rtol": 50 * np.finfo(dtype).eps, "atol": 10 * np.finfo(dtype).eps}
    np.testing.assert_array_equal(sparse.logits(), dense.logits())
    np.testing.assert_allclose(sparse.matrix(num_threads=2), dense.matrix(), **near)
    V = np.random.default_rng(6).normal(size=(M, 5)).astype(dtype)
    np.testing.assert_allclose(sparse.apply(V), dense.apply(V), **near)
    one, other = sparse.topk(3), dense.topk(3)
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_allclose(one.data, other.data, **near)
    for name, values in vars(sparse.stats()).items():
        np.testing.assert_allclose(values, getattr(dense.stats(), name), **near)
    some = [3, 640, 3, 77]
    np.testing.assert_array_equal(sparse.logits(rows=some), dense.logits(rows=some))


@pytest.mark.parametrize("mask", MASKS)
def test_tables_and_patterns_are_those_of_the_dense_mask(mask: Callable[[], Any]) -> None:
    sparse, dense = heads(mask, np.float32, "plain")
    one, other = hf.describe(sparse, per_row=2), hf.describe(dense, per_row=2)
    for name, column in one.columns().items():
        np.testing.assert_allclose(column, other.columns()[name], rtol=1e-5, err_msg=name)
    kept, expected = (hf.sparsify(x, per_row=2, per_column=9, on_empty="keep-max")
                      for x in (sparse, dense))  # fmt: skip
    np.testing.assert_array_equal(kept.matrix.toarray() > 0, expected.matrix.toarray() > 0)


@pytest.mark.parametrize("method", [hf.methods.Learned(), hf.methods.Projection()])
@pytest.mark.parametrize("kernel", ["exact", "float32"])
def test_fits_and_certificates_within_blocks(method: Any, kernel: str) -> None:
    allowed = np.kron(np.eye(4) + np.eye(4, k=-2), np.ones((130, 130))).astype(bool)
    rng = np.random.default_rng(3)
    weights = np.zeros(allowed.shape)
    for i, row in enumerate(allowed):
        weights[i, rng.choice(np.flatnonzero(row), 2, replace=False)] = 0.5
    one, other = (
        hf.fit(hf.Target(weights, mask=mask), dim=64, method=method, kernel=kernel, rng=0)
        for mask in (sp.csr_array(allowed), allowed)
    )
    np.testing.assert_array_equal(one.Q, other.Q)
    for name in ("row_leak", "row_distortion"):
        of_rows = (getattr(x.certificate, name) for x in (one, other))
        np.testing.assert_array_equal(*of_rows)
    assert one.certificate.holds == other.certificate.holds
    assert one.certificate.tv_mean == pytest.approx(other.certificate.tv_mean, rel=1e-6)
