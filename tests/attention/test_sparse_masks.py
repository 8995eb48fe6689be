"""Sparse masks against the same masks dense: what is computed must not depend on the form.

Tiles that no row of a block may attend to are skipped, and where a block has few entries these are
computed one by one. The masks are wider than several tiles of 128 columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit import _core
from headfit._attention.heads import core_target_of, head_to_match
from headfit._base.masks import core_mask

N, M, D = 650, 900, 7


def band() -> np.ndarray:
    position = np.arange(N)[:, np.newaxis] + M - N
    return np.abs(position - np.arange(M)) < 30


def band_and_first() -> np.ndarray:
    """A band and the first key: folds of whole rows take entries in late rows, others tiles."""
    position = np.arange(N)[:, np.newaxis] + M - N
    allowed = np.abs(position - np.arange(M)) < 42
    allowed[:, 0] = True
    return allowed


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


def uneven() -> np.ndarray:
    """Few keys in most rows, all of them in some, and none in others."""
    allowed = np.random.default_rng(3).random((N, M)) < 0.01
    allowed[[5, 300]] = True
    allowed[[6, 649]] = False
    return allowed


MASKS = (band, band_and_first, documents, blocks, ends, scattered, uneven)

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


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_sparse_answers_are_the_entries_of_dense_ones(mask: Callable[[], Any], option: str) -> None:
    sparse, _ = heads(mask, np.float32, option)
    row, column = np.nonzero(mask())
    for rows in (None, [3, 640, 3, 77], slice(600, None)):
        for name in ("matrix", "logits"):
            whole = getattr(sparse, name)(rows=rows)
            few = getattr(sparse, name)(rows=rows, sparse=True, num_threads=2)
            assert (few.shape, few.dtype, few.has_canonical_format) == (whole.shape, "f4", True)
            numbers = np.arange(N)[slice(None) if rows is None else rows]
            expected = np.concatenate([whole[i, column[row == r]] for i, r in enumerate(numbers)])
            np.testing.assert_allclose(few.data, expected, rtol=1e-5)
            columns = np.concatenate([column[row == r] for r in numbers])
            np.testing.assert_array_equal(few.indices, columns)
    Q, K = sparse.Q, sparse.K
    options = {name: value for name, value in vars(sparse.options).items() if name != "sinks"}
    by_function = hf.attention_logits(Q, K, sparse=True, **options)
    np.testing.assert_array_equal(by_function.data, sparse.logits(sparse=True).data)


def test_a_sparse_answer_needs_one_head_with_a_sparse_mask() -> None:
    Q = np.ones((3, 2), np.float32)
    mask = sp.eye_array(3, dtype=bool, format="csr")
    stack, causal = hf.Attention(Q[None], Q[None], mask=mask), hf.Attention(Q, Q, mask="causal")
    for attention in (stack, causal):
        with pytest.raises(hf.errors.InputError, match="sparse must be False"):
            attention.matrix(sparse=True)
    with pytest.raises(hf.errors.InputError, match="without out"):
        hf.attention_matrix(Q, Q, mask=mask, sparse=True, out=np.empty((3, 3), np.float32))
    assert (
        hf.attention_matrix(Q, Q, mask=mask, sparse=True).toarray().tolist() == np.eye(3).tolist()
    )
    empty = sp.csr_array((3, 3), dtype=bool)
    assert hf.attention_matrix(Q, Q, mask=empty, sparse=True).nnz == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_overflow_is_an_error_only_where_an_entry_is(dtype: Any) -> None:
    allowed = scattered()
    Q, K = np.ones((N, 2), dtype), np.ones((M, 2), dtype)
    i, j = np.argwhere(allowed)[100]
    Q[i] = K[j] = 1e200 if dtype == np.float64 else 1e25
    with pytest.raises(hf.errors.NonFiniteError, match=f"row {i}, column {j}"):
        hf.attention_stats(Q, K, mask=sp.csr_array(allowed))
    allowed[i, j] = False
    Q[i] = -Q[i]
    assert hf.attention_stats(Q, K, mask=sp.csr_array(allowed)).entropy.max() > 0


@pytest.mark.parametrize("reads", [3, 40])
def test_large_heads_are_those_in_whole_arrays(reads: int) -> None:
    """Heads of more than 2 MiB, read where they lie or copied: aligned or not, and rows apart."""
    n, d = 9000, 64
    rng = np.random.default_rng(12)
    keys = (np.arange(n)[:, np.newaxis] * 7 + np.arange(reads) * (n // reads)) % n
    mask = sp.csr_array((np.ones(keys.size, bool), (np.repeat(np.arange(n), reads), keys.ravel())))
    stored = rng.standard_normal((3, n * d * 2 + 1), np.float32)
    for Q, K, V in (
        stored[:, : n * d].reshape(3, n, d),
        stored[:, 1 : n * d + 1].reshape(3, n, d),
        stored[:, 1:].reshape(3, n, 2 * d)[:, :, d:],
    ):
        s = np.einsum("id,ijd->ij", Q, K[keys], dtype=np.float64) / 8
        weights = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        got = hf.attention_apply(Q, K, V, mask=mask, num_threads=2)
        np.testing.assert_allclose(got, np.einsum("ij,ijd->id", weights, V[keys]), atol=2e-5)
    for name, x in (("K", K), ("V", V)):
        x[8000, 63] = np.inf
        with pytest.raises(hf.errors.NonFiniteError, match=f"{name} .*row 8000, column 63"):
            hf.attention_apply(Q, K, V, mask=mask)
        x[8000, 63] = 0


def test_threads_and_subsets_give_the_same_bits() -> None:
    for mask in (scattered, uneven):
        one, _ = heads(mask, np.float32, "plain")
        V = np.random.default_rng(7).normal(size=(M, 40)).astype(np.float32)
        for threads in (2, 3):
            np.testing.assert_array_equal(one.apply(V, num_threads=threads), one.apply(V))
            np.testing.assert_array_equal(
                one.matrix(sparse=True, num_threads=threads).data, one.matrix(sparse=True).data
            )


def test_heads_that_share_a_mask_and_keys() -> None:
    rng = np.random.default_rng(8)
    Q, K = rng.normal(size=(2, 4, N, 16)), rng.normal(size=(2, 2, M, 16))
    V = rng.normal(size=(2, 2, M, 70))
    lengths = rng.integers(0, M, (2, 4))
    for dtype in (np.float32, np.float64):
        head = [x.astype(dtype) for x in (Q, K, V)]
        one, other = (
            hf.attention_apply(*head, mask=mask, key_lengths=lengths, position="rope")
            for mask in (sp.csr_array(uneven()), uneven())
        )
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=30 * np.finfo(dtype).eps)


def few_and_one(n: int) -> np.ndarray:
    """The row's own key, few others, and a row of one key that is not its own."""
    allowed = np.tri(n, dtype=bool) & (np.random.default_rng(9).random((n, n)) < 0.03)
    allowed |= np.eye(n, dtype=bool)
    allowed[n // 2] = np.arange(n) == n - 1
    return allowed


# How far rounding may move what is computed in float32 and in float64.
NEAR = {np.float32: 1e-5, np.float64: 1e-11}
# All but sinks, which `shrink` does not take.
SHRINK_OPTIONS = ("plain", "softcap", "bias", "keys", "lengths")


@pytest.mark.parametrize("option", SHRINK_OPTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mask", MASKS)
def test_soft_losses_are_those_of_the_dense_mask(
    mask: Callable[[], Any], dtype: Any, option: str
) -> None:
    targets = [head_to_match(x, "a head") for x in heads(mask, dtype, option)]
    assert [sp.issparse(x.mask) for x in targets] == [True, False]
    Q, K = (np.random.default_rng(7).normal(size=(rows, 3)).astype(dtype) for rows in (N, M))
    found = [
        _core.soft_loss(core_target_of(x, None), core_mask(x.mask, (), (N, M)), Q, K, threads)
        for x, threads in zip(targets, (2, 1), strict=True)
    ]
    for one, other in zip(*found, strict=True):
        scale = np.abs(other).max() + 1
        np.testing.assert_allclose(one, other, rtol=NEAR[dtype], atol=NEAR[dtype] * scale)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_comparisons_are_those_of_the_dense_mask(mask: Callable[[], Any], option: str) -> None:
    sparse, dense = heads(mask, np.float32, option)
    Q, K = (np.random.default_rng(7).normal(size=(rows, 3)) for rows in (N, M))
    kept = {name: value for name, value in vars(sparse.options).items() if name != "mask"}
    one, whole = (hf.Attention(Q, K, **{**kept, "mask": x.mask}) for x in (sparse, dense))
    expected = hf.compare(dense, whole)
    for pair in ((sparse, one), (sparse, whole), (dense, one)):
        got = hf.compare(*pair, num_threads=2)
        np.testing.assert_allclose(got.row_kl, expected.row_kl, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(got.row_tv, expected.row_tv, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", [sp.csr_array, np.asarray])
def test_comparisons_of_heads_that_attend_to_other_columns(form: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(11)
    q, k = rng.normal(size=(N, D)), rng.normal(size=(M, D))
    late, nothing = np.roll(band(), 200, axis=1), band()
    nothing[100:400] = False
    some = [(band, {}), (lambda: late, {}), (lambda: nothing, {}), (uneven, {"key_lengths": 700})]
    some = [hf.Attention(q, k, mask=form(mask()), **options) for mask, options in some]
    windows = [hf.Attention(q, k, mask=("window", x)) for x in ((20, 0), (0, 400), (500, 0))]
    for target in (*some, *windows):
        for other in (*some, *windows):
            p, s = target.matrix(), other.matrix()
            got = hf.compare(target, other)
            np.testing.assert_allclose(got.row_tv, np.abs(p - s).sum(axis=1) / 2, atol=1e-9)
            ratio = np.divide(p, s, out=np.full_like(p, np.inf), where=s > 0)
            kl = np.where(p > 0, p * np.log(np.where(p > 0, ratio, 1)), 0).sum(axis=1)
            np.testing.assert_allclose(got.row_kl, kl, rtol=1e-7, atol=1e-9)


def test_a_matrix_is_compared_within_the_entries_of_its_mask() -> None:
    sparse, dense = heads(scattered, np.float64, "plain")
    A = hf.Attention(*dense.stored, mask=dense.mask, softcap=1.0).matrix()
    one, other = (hf.compare(A, x) for x in (sparse, dense))
    np.testing.assert_allclose(one.row_tv, other.row_tv, rtol=1e-9, atol=1e-12)
    open_mask = hf.compare(A, sparse, mask=dense.mask)
    np.testing.assert_allclose(open_mask.row_kl, other.row_kl, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [1, 40, 150])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("option", [{}, {"softcap": 5.0}, {"sinks": 0.3}])
def test_shrunk_and_compressed_heads_are_those_of_the_dense_mask(
    option: dict[str, Any], dtype: Any, n: int
) -> None:
    allowed = few_and_one(n)
    Q, K = np.random.default_rng(10).normal(size=(2, n, 6)).astype(dtype)
    one, other = (hf.Attention(Q, K, mask=m, **option) for m in (sp.csr_array(allowed), allowed))
    maps = [hf.compress([x, x], dim=2, rng=0) for x in (one, other)]
    assert maps[0].kl == pytest.approx(maps[1].kl, rel=1e-3, abs=1e-6)
    if "sinks" in option or n == 1:
        return
    shrunk = [hf.shrink(x, dim=2, rng=0) for x in (one, other)]
    kl = [x.comparison.kl_mean for x in shrunk]
    assert kl[0] == pytest.approx(kl[1], rel=1e-3, abs=1e-6)
    compared = [hf.compare(x, shrunk[0]) for x in (one, other)]
    assert compared[0].tv_mean == pytest.approx(compared[1].tv_mean, rel=1e-9)


@pytest.mark.parametrize("mask", MASKS)
def test_tables_and_patterns_are_those_of_the_dense_mask(mask: Callable[[], Any]) -> None:
    sparse, dense = heads(mask, np.float32, "plain")
    one, other = hf.describe(sparse, per_row=2), hf.describe(dense, per_row=2)
    for name, column in one.columns().items():
        np.testing.assert_allclose(column, other.columns()[name], rtol=1e-5, err_msg=name)
    kept, expected = (hf.sparsify(x, per_row=2, per_column=9, on_empty="keep-max")
                      for x in (sparse, dense))  # fmt: skip
    np.testing.assert_array_equal(kept.matrix.toarray() > 0, expected.matrix.toarray() > 0)


def within_blocks() -> np.ndarray:
    return np.kron(np.eye(4) + np.eye(4, k=-2), np.ones((130, 130))).astype(bool)


def within_few() -> np.ndarray:
    return np.random.default_rng(4).random((520, 520)) < 0.04


@pytest.mark.parametrize("mask", [within_blocks, within_few])
@pytest.mark.parametrize(
    "method", [hf.methods.Learned(), hf.methods.Projection(), hf.methods.MaxMargin()]
)
@pytest.mark.parametrize("kernel", ["exact", "float32"])
def test_fits_and_certificates(mask: Callable[[], Any], method: Any, kernel: str) -> None:
    allowed = mask()
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
