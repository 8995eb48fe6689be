"""Shrinking heads, compared with attention that NumPy computes explicitly."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.references import (
    allowed_by,
    leak_and_distortion,
    logits_of,
    sharp_parts,
    softmax,
    total_variation,
)

import headfit as hf
from headfit._shrink.descent import truncated_svd
from headfit._target.append_dims import appended, leak_without, without_columns

N = 96


def sharp_heads(n=N, size=24, sink=False):
    """Return a previous-token head and a head of equal contents, perhaps with a sink at token 0."""
    codes, content, noise, other, spectrum = sharp_parts(n, size)
    before = np.vstack([codes[:1], codes[:-1]])
    content *= 3 * spectrum
    heads = {
        "previous": (4 * before + 0.2 * noise, 3 * codes + 0.2 * other),
        "content": (content, content),
    }
    if not sink:
        return heads
    for name, (Q, K) in heads.items():
        # One more coordinate raises token 0 to about the largest logit of a row.
        top = np.median((Q @ K.T).max(axis=1))
        keys = np.hstack([K, np.zeros((n, 1))])
        keys[0] = [*np.zeros(size), top]
        heads[name] = np.hstack([Q, np.ones((n, 1))]), keys
    return heads


HEADS = tuple(sharp_heads(4))


def weights(Q, K, scale, mask):
    """Return the attention matrix, computed explicitly."""
    logits = scale * (Q.astype(float) @ K.astype(float).T)
    return softmax(np.where(allowed_by(mask, len(Q), len(K)), logits, -np.inf))


def row_tv(wide, Q, K, result, mask):
    A = weights(Q, K, 1 / math.sqrt(Q.shape[1]) if wide is None else wide, mask)
    return total_variation(A, weights(result.Q, result.K, result.scale, mask))


@pytest.mark.parametrize("mask", [None, "causal", ("window", (40, 3))])
@pytest.mark.parametrize("name", HEADS)
def test_stays_within_total_variation(name, mask):
    Q, K = sharp_heads()[name]
    result = hf.shrink(Q, K, mask=mask, tv=0.03, curve_dims=(2,), num_threads=2)
    assert result.shrunk
    assert result.reached
    assert result.Q.shape[1] == result.dim < Q.shape[1] == result.original_dim
    tv = row_tv(None, Q, K, result, mask)
    assert result.tv_mean == pytest.approx(tv.mean(), abs=1e-6)
    assert result.tv_worst == pytest.approx(tv.max(), abs=1e-6)
    assert tv.mean() <= 0.03
    curve = dict(zip(result.curve.dim, result.curve.tv_mean, strict=True))
    assert {2, result.dim} <= set(curve)
    assert curve[result.dim] == result.tv_mean
    # Heads of every smaller size that was tried are farther away.
    assert all(t > 0.03 for d, t in curve.items() if d < result.dim)
    assert result.dim == 1 or result.dim - 1 in curve
    base = dict(zip(result.baseline.dim, result.baseline.tv_mean, strict=True))
    assert all(curve[d] <= base[d] for d in curve)
    assert base[result.dim] > 1.5 * result.tv_mean
    assert f"size {Q.shape[1]} -> {result.dim}" in repr(result)
    assert "truncated SVD of that size" in repr(result)


def test_baseline_is_the_truncated_svd():
    Q, K = sharp_heads()["content"]
    result = hf.shrink(Q, K, mask="causal", dim=3, curve_dims=(1, 5, 24), dtype="float64")
    A = weights(Q, K, 24**-0.5, "causal")
    np.testing.assert_array_equal(result.baseline.dim, [1, 3, 5, 24])
    for d, mean, worst in zip(
        result.baseline.dim, result.baseline.tv_mean, result.baseline.tv_worst, strict=True
    ):
        M = weights(*truncated_svd(Q, K, int(d)), 1.0, "causal")
        tv = total_variation(A, M)
        assert mean == pytest.approx(tv.mean(), abs=1e-9)
        assert worst == pytest.approx(tv.max(), abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtypes_are_those_of_what_is_judged(dtype):
    Q, K = sharp_heads()["content"]
    result = hf.shrink(Q, K, mask="causal", tv=0.1, dtype=dtype, curve_dims=())
    assert result.dtype == dtype
    tv = row_tv(None, Q, K, result, "causal")
    assert tv.mean() == pytest.approx(result.tv_mean, abs=1e-6)
    assert tv.mean() <= 0.1
    if dtype == "bfloat16":
        for x in (result.Q, result.K):
            assert not (x.view(np.uint32) & 0xFFFF).any()


def test_the_worst_row():
    Q, K = sharp_heads()["content"]
    loose = hf.shrink(Q, K, mask="causal", tv=0.05, curve_dims=())
    tight = hf.shrink(Q, K, mask="causal", tv_worst=0.05, curve_dims=())
    both = hf.shrink(Q, K, mask="causal", tv=0.05, tv_worst=0.05, curve_dims=())
    assert tight.tv_worst <= 0.05 < loose.tv_worst
    assert both.dim == tight.dim > loose.dim


def test_a_head_that_is_no_larger_than_it_need_be():
    rng = np.random.default_rng(3)
    Q, K = 3 * rng.standard_normal((2, 60, 3))
    result = hf.shrink(Q, K, tv=0.01)
    assert not result.shrunk
    assert result.reached
    assert result.dim == 3
    assert result.tv_mean < 1e-5
    assert "size 3 is already the smallest found" in repr(result)


def test_more_columns_than_tokens():
    rng = np.random.default_rng(4)
    Q, K = rng.standard_normal((2, 5, 12))
    result = hf.shrink(Q, K, tv=1e-4)
    assert result.dim <= 5
    assert result.shrunk
    assert result.tv_worst < 1e-4
    assert result.curve.dim.max() == 5


def test_a_dtype_too_narrow_for_what_is_asked():
    rng = np.random.default_rng(5)
    Q, K = 6 * rng.standard_normal((2, 40, 4))
    result = hf.shrink(Q, K, tv=1e-6, dtype="bfloat16", curve_dims=())
    assert not result.reached
    assert not result.shrunk
    assert result.tv_mean > 1e-6
    assert "NOT within the bounds" in repr(result)


def test_out_of_time_is_the_original_head():
    Q, K = sharp_heads()["content"]
    result = hf.shrink(Q, K, mask="causal", tv=1e-3, time_limit=1e-9, curve_dims=())
    assert result.stopped == "the time limit"
    assert not result.shrunk
    assert result.reached
    assert result.dim == 24
    assert result.tv_worst < 1e-5


def test_out_of_time_no_size_is_added_to_the_curves():
    Q, K = sharp_heads()["content"]
    result = hf.shrink(Q, K, tv=1e-3, time_limit=1e-9, curve_dims=range(1, 24))
    assert result.baseline.dim.tolist() == result.curve.dim.tolist() == [1, 24]


def test_sizes_that_the_dtype_does_not_hold_are_left_out():
    rng = np.random.default_rng(0)
    Q, K = (np.hstack([rng.normal(size=(60, 1)) * 1e4, rng.normal(size=(60, 63))]) for _ in "QK")
    alone = hf.shrink(Q, K, scale=1.0, dtype="float16", curve_dims=())
    result = hf.shrink(Q, K, scale=1.0, dtype="float16")
    np.testing.assert_array_equal(result.Q, alone.Q)
    for curve in (result.curve, result.baseline):
        assert set(alone.curve.dim) <= set(curve.dim) < {1, 2, 4, 8, 16, 32, 60}
    for effort in ("low", 0):
        for options in ({}, {"dim": 8}):
            with pytest.raises(hf.errors.InputError, match="dtype must hold a head of size"):
                hf.shrink(1e9 * Q, K, scale=1.0, dtype="float16", effort=effort, **options)


def test_rectangular_heads_and_attention_objects():
    rng = np.random.default_rng(6)
    wide = hf.Attention(2 * rng.standard_normal((30, 6)), rng.standard_normal((50, 6)), scale=0.7)
    result = hf.shrink(wide, dim=4, curve_dims=())
    tv = row_tv(0.7, wide.Q, wide.K, result, None)
    assert result.tv_mean == pytest.approx(tv.mean(), abs=1e-6)
    assert result.Q.shape == (30, 4)
    assert result.K.shape == (50, 4)


def test_threads_do_not_matter():
    Q, K = sharp_heads()["previous"]
    first, second = (
        hf.shrink(Q, K, mask="causal", tv=0.05, curve_dims=(), num_threads=t) for t in (1, 3)
    )
    assert np.array_equal(first.Q, second.Q)
    assert np.array_equal(first.K, second.K)
    assert first.tv_mean == second.tv_mean


def test_rows_that_attend_to_nothing():
    Q, K = sharp_heads(sink=True)["content"]
    mask = np.tri(N, dtype=bool)
    mask[[0, 40]] = False
    close = hf.shrink(Q, K, mask=mask, tv=0.05, curve_dims=())
    assert close.reached
    assert close.shrunk
    assert not close.comparison.row_tv[[0, 40]].any()


# Columns appended to a head.


def with_columns(n, k, columns, seed, alone=0.1, masked=None):
    """Return a sparse pattern with heavy and light entries in some columns.

    Some rows have nonzeros in these columns only.
    """
    rng = np.random.default_rng(seed)
    A = np.zeros((n, n))
    for i in range(n):
        rest = np.setdiff1d(np.arange(n), columns)
        lonely = rng.random() < alone
        if not lonely:
            A[i, rng.choice(rest, k, replace=False)] = rng.uniform(0.5, 1, k)
        held = columns[rng.random(len(columns)) < 0.7]
        if lonely and not held.size:
            held = columns[:1]
        A[i, held] = np.exp(rng.uniform(-3, 2, held.size))
    if masked is not None:
        A[masked] = 0
    return A / np.where(A.any(axis=1), A.sum(axis=1), 1)[:, None]


@pytest.mark.parametrize("columns", [[0], [2, 5, 17]])
def test_the_identity_is_exact(columns):
    # A head that reproduces the rest exactly: its logits are log A there, and far lower elsewhere.
    n, columns = 24, np.array(columns)
    A = with_columns(n, 3, columns, 0)
    target = hf.Target(A)
    rest = without_columns(target, columns)
    R = rest.matrix.toarray()
    with np.errstate(divide="ignore"):
        q = np.where(
            R > 0, np.log(R) + np.arange(n)[:, None], -100.0
        )  # shifted by a different constant per row
    new_q, new_k = appended(target, q, np.eye(n), columns, hf.Tolerances(0.01))
    assert new_q.shape == new_k.shape == (n, n + columns.size)
    S = new_q @ new_k.T
    filled = R.any(axis=1)
    others = np.setdiff1d(np.arange(n), columns)
    np.testing.assert_array_equal(S[np.ix_(filled, others)], q[np.ix_(filled, others)])
    assert not S[np.ix_(~filled, others)].any()
    assert (~filled).any()
    leak, distortion = leak_and_distortion(A, S)
    assert leak.max() <= 0.01
    assert distortion.max() < 1e-12


@given(
    n=st.integers(8, 40),
    k=st.integers(1, 3),
    count=st.integers(1, 3),
    seed=st.integers(0, 999),
    leak=st.floats(0.001, 0.5),
    distortion=st.floats(0.01, 1),
)
def test_any_head_for_the_rest_gives_one_for_the_whole(n, k, count, seed, leak, distortion):
    # Heads with identity keys that use their tolerances fully, with random spread and leak.
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.choice(n, count, replace=False))
    A = with_columns(n, k, columns, seed)
    target = hf.Target(A)
    rest = without_columns(target, columns)
    R = rest.matrix.toarray()
    asked = leak_without(target, columns, leak)
    assert asked <= leak
    with np.errstate(divide="ignore"):
        on = np.log(R) + rng.uniform(-0.5, 0.5, R.shape) * math.log1p(distortion) * 0.999
    low = np.where(R > 0, on, np.inf).min(axis=1, keepdims=True)
    off = np.where(np.isfinite(low), low, 0) + math.log(asked) - rng.random((n, n))
    q = np.where(R > 0, on, off)
    head = hf.Attention(q + rng.normal(size=(n, 1)), np.eye(n), scale=1.0)
    whole = hf.methods.append_dims(A, head, columns, leak=leak)
    assert whole.dim == n + count
    assert whole.scale == 1 / math.sqrt(whole.dim)
    assert hf.certify(A, whole, leak=leak, distortion=distortion).holds


def test_what_is_left_of_a_pattern():
    columns = np.array([1, 4])
    A = with_columns(12, 2, columns, 1)
    rest = without_columns(hf.Target(A), columns)
    R = A.copy()
    R[:, columns] = 0
    sums = R.sum(axis=1, keepdims=True)
    R = R / np.where(sums > 0, sums, 1)
    np.testing.assert_allclose(rest.matrix.toarray(), R, atol=1e-15)
    assert rest.nonzeros == np.count_nonzero(R)
    assert rest.per_row == np.count_nonzero(R, axis=1).max()
    assert rest.per_column == np.count_nonzero(R, axis=0).max()
    ratios = [r[r > 0].max() / r[r > 0].min() for r in R if r.any()]
    assert rest.gamma == pytest.approx(max(ratios))
    empty = without_columns(hf.Target(np.eye(3)[[0, 0, 0]]), np.array([0]))
    assert (empty.nonzeros, empty.per_row, empty.gamma) == (0, 0, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_sink_beside_a_fitted_head(mask, dtype):
    n, columns = 64, np.array([0])
    masked = ~np.tri(n, dtype=bool) if mask else None
    A = with_columns(n, 3, columns, 2, masked=masked)
    A[~A.any(axis=1), 0] = 1  # with the mask these rows have no other nonzero
    target = hf.Target(A, mask=mask)
    rest = without_columns(target, columns)
    # Certified patterns need a nonzero in every row, so rows that are left empty here get their own
    # token, which append_dims does not know about.
    asked = rest.matrix + sp.diags_array((np.diff(rest.matrix.indptr) == 0).astype(float))
    leak = leak_without(target, columns, 0.05)
    head = hf.fit(sp.csr_array(asked), 9, leak=leak, mask=mask, dtype=dtype, distortion=0.2)
    assert head.certificate.holds
    scale = head.scale if dtype == "bfloat16" else None
    whole = hf.methods.append_dims(target, head, columns, scale=scale)
    assert whole.dim == 10
    assert whole.mask == mask
    assert whole.Q.dtype == head.Q.dtype
    if dtype == "bfloat16":
        filled = np.diff(rest.matrix.indptr) > 0
        np.testing.assert_array_equal(whole.Q[filled, :9], head.Q[filled])
    else:
        assert hf.certify(target, whole, distortion=0.2).holds


def test_everything_in_the_columns():
    # All rows attend to two sinks and nothing else.
    A = np.zeros((20, 20))
    A[:, [3, 7]] = [0.7, 0.3]
    anything = hf.Attention(np.full((20, 1), 5.0), np.full((20, 1), 5.0))
    whole = hf.methods.append_dims(A, anything, [7, 3])
    assert hf.certify(A, whole).holds


def test_results_are_frozen_and_short():
    rng = np.random.default_rng(7)
    result = hf.shrink(*rng.standard_normal((2, 10, 4)), dim=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.tv_mean = 0.0
    assert repr(result.curve).startswith("TvCurve(mean total variation by size: 1: ")
    assert result.attention.Q is result.Q


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 2, "tv": 0.1}, "tv must not be given beside dim"),
        ({"dim": 2, "tv_worst": 0.1}, "tv_worst must not be given beside dim"),
        ({"tv": 0}, "tv must lie strictly between 0 and 1; got 0"),
        ({"tv_worst": 1.5}, "tv_worst must lie strictly between 0 and 1"),
        ({"dim": 9}, "dim must lie in 1 ... 8; got 9"),
        ({"curve_dims": (0,)}, "curve_dims must lie in 1 ... 4; got 0"),
        ({"callback": 1}, "callback must"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"effort": "most"}, "effort must be one of"),
        ({"time_limit": 0}, "time_limit must lie strictly"),
        ({"mask": "future"}, "mask must be"),
    ],
)
def test_arguments_refused(arguments, words):
    Q, K = np.random.default_rng(0).standard_normal((2, 8, 4))
    with pytest.raises(hf.errors.InputError, match=words):
        hf.shrink(Q, K, **arguments)


def test_heads_refused():
    Q = np.zeros((8, 4))
    with pytest.raises(hf.errors.InputError, match="the leading axes of K must be those of Q"):
        hf.shrink(np.zeros((2, 8, 4)), np.zeros((3, 8, 4)))
    with pytest.raises(hf.errors.InputError, match="Q must be finite; got nan at row 0, column 0"):
        hf.shrink(np.full((8, 4), np.nan), Q)
    no_keys = "Q without K is a matrix of attention: the target must be a matrix"
    with pytest.raises(hf.errors.TargetError, match=r"without K .* must sum to 1"):
        hf.shrink(Q)
    with pytest.raises(hf.errors.InputError, match=no_keys):
        hf.shrink(np.zeros((2, 8, 4)))
    with pytest.raises(hf.errors.InputError, match=r"^dim must lie in 1 ... 4"):
        hf.shrink(np.eye(4), dim=9)
    for size in (1e154, 1e200):
        large = size * np.random.default_rng(0).normal(size=(2, 6, 4))
        with pytest.raises(hf.errors.NonFiniteError, match="logits whose squares float64 holds"):
            hf.shrink(*large, dim=2)
    with pytest.raises(hf.errors.InputError, match="scale must be given beside Q and K"):
        hf.shrink(np.eye(4), scale=1.0)
    with pytest.raises(hf.errors.InputError, match="an Attention, which has its own"):
        hf.shrink(hf.Attention(Q, Q), Q)
    head = hf.Attention(Q, Q)
    A = np.eye(8)
    with pytest.raises(hf.errors.InputError, match=r"columns must lie in 0 ... 7; got 8"):
        hf.methods.append_dims(A, head, [8])
    with pytest.raises(hf.errors.InputError, match="columns must be a sequence of integers"):
        hf.methods.append_dims(A, head, [0.5])
    with pytest.raises(hf.errors.InputError, match="one query and one key for each of the 3 rows"):
        hf.methods.append_dims(np.eye(3), head, [0])
    with pytest.raises(hf.errors.InputError, match="head must be an Attention or a fit; got int"):
        hf.methods.append_dims(A, 3, [0])
    with pytest.raises(hf.errors.InputError, match="leak must lie"):
        hf.methods.append_dims(A, head, [0], leak=1.5)
    with pytest.raises(hf.errors.TargetError, match="sum to 1"):
        hf.methods.append_dims(sp.csr_array(2 * A), head, [0])
    for dtype, size in ((np.float32, 3e38), (np.float64, 1e308)):
        large = hf.Attention(*(x * np.eye(8, dtype=dtype) for x in (size, 1)), scale=1.0)
        with pytest.raises(hf.errors.InputError, match="Q of the new head must fit float"):
            hf.methods.append_dims(A, large, [0], scale=1e-3)


@pytest.mark.parametrize("seeded", [True, False])
def test_stacks_of_heads_are_as_single_calls(seeded):
    """Each head of a stack gets what calls in the order of the heads return, bit for bit."""
    Q, K = np.random.default_rng(3).standard_normal((2, 2, 2, 20, 6))
    options = {"dim": 2, "curve_dims": (), "effort": "low", "mask": "causal"}
    rng, same = (3, 3) if seeded else (np.random.default_rng(1), np.random.default_rng(1))
    stack = hf.shrink(Q, K, rng=rng, num_threads=2, **options)
    assert stack.shape == (2, 2)
    for place in np.ndindex(2, 2):
        alone = hf.shrink(Q[place], K[place], rng=same, **options)
        np.testing.assert_array_equal(stack[place].Q, alone.Q)
        np.testing.assert_array_equal(stack[place].K, alone.K)


@pytest.mark.parametrize("name", HEADS)
def test_the_curve_never_rises(name):
    """Descents end where they are close enough, so a larger size alone may stay further away."""
    Q, K = sharp_heads()[name]
    result = hf.shrink(Q, K, mask="causal", tv=0.05, curve_dims=range(1, 13), num_threads=2)
    assert (np.diff(result.curve.tv_mean) <= 1e-7).all()  # rounding of float32
    at = list(result.curve.dim).index(result.dim)
    assert result.curve.tv_mean[at] == result.tv_mean


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_effort_0_is_the_truncated_svd(dtype):
    Q, K = sharp_heads()["content"]
    head = hf.shrink(Q, K, mask="causal", dim=5, effort=0, dtype=dtype, curve_dims=(2,))
    q, k = truncated_svd(Q, K, 5)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(head.Q * head.scale, q, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(head.K, k, rtol=tolerance, atol=tolerance)
    assert head.settings["descent"] is None
    np.testing.assert_array_equal(head.curve.tv_mean, head.baseline.tv_mean)
    searched = hf.shrink(Q, K, mask="causal", tv=0.2, effort=0, curve_dims=())
    assert searched.tv_mean <= 0.2 < searched.baseline.tv_mean[0]
    # A larger size than the head's has zero columns.
    padded = hf.shrink(Q, K, dim=30, effort=0, curve_dims=())
    assert padded.tv_worst < 1e-5
    assert not padded.Q[:, 24:].any()


@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_dense_matrix_is_as_good_as_its_head(mask):
    Q, K = sharp_heads()["previous"]
    A = weights(Q, K, 24**-0.5, mask)
    small = hf.shrink(A, mask=mask, tv=0.05)
    assert small.reached
    assert small.original_dim == N
    assert abs(small.dim - hf.shrink(Q, K, mask=mask, tv=0.05, curve_dims=()).dim) <= 1
    made = weights(small.Q, small.K, small.scale, mask)
    assert small.tv_mean == pytest.approx(total_variation(A, made).mean(), abs=1e-6)
    wide = hf.shrink(A[:40, :60] / A[:40, :60].sum(axis=1, keepdims=True), dim=2, effort="low")
    assert (wide.Q.shape, wide.K.shape) == ((40, 2), (60, 2))


def test_a_callback():
    Q, K = sharp_heads()["content"]
    seen = []
    small = hf.shrink(
        Q, K, dim=3, mask="causal", curve_dims=(),
        callback=lambda step, kl: seen.append((step, kl)) or step < 2,
    )  # fmt: skip
    assert [step for step, _ in seen] == [0, 1, 2]
    assert small.settings["descent"]["status"] == "stopped"
    assert seen[2][1] == pytest.approx(small.comparison.kl_mean, rel=1e-5)


@pytest.mark.parametrize("sink", [False, True], ids=["no sink", "sink"])
@pytest.mark.parametrize("name", HEADS)
def test_a_sparse_head_is_fitted_with_a_certificate(name, sink):
    """The heaviest entries of a head are a pattern, mask included, that `fit` takes as it is."""
    Q, K = sharp_heads(sink=sink)[name]
    kept = hf.sparsify(Q, K, mask="causal", per_row=4, mass=0.9)
    fit = hf.fit(kept, leak=0.02, distortion=0.2, time_limit=4, num_threads=2)
    assert fit.certificate.holds
    assert fit.dim < Q.shape[1]
    assert fit.mask == "causal"
    leak, distortion = leak_and_distortion(kept.matrix.toarray(), logits_of(fit, "causal"))
    assert leak.max() <= 0.02
    assert distortion.max() <= 0.2


def test_columns_beyond_the_rank_are_used():
    rng = np.random.default_rng(2)
    Q, K = rng.standard_normal((2, 64, 2)).astype(np.float32)
    for q in (Q, 0 * Q):
        head = hf.Attention(q, K, position="alibi", mask="causal")
        found = hf.shrink(head, dim=6, curve_dims=())
        assert found.tv_mean < 0.001
        assert np.linalg.matrix_rank(found.Q) == 6


def test_a_module_larger_than_the_head_is_named():
    Q, K = np.random.default_rng(3).standard_normal((2, 8, 4))
    with pytest.raises(hf.errors.InputError, match=r"^module\.dim must lie in 1 \.\.\. 8; got 16"):
        hf.shrink(Q, K, module=hf.SelfAttention.random(16, rng=0))
