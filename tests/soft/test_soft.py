"""Dense soft targets, compared with explicit NumPy in float64."""

import dataclasses

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.references import allowed_by, sharp_parts, softmax, total_variation

import headfit as hf
from headfit import _core
from headfit._base.masks import core_mask
from headfit._shrink import descent
from headfit._shrink.descent import Original, truncated_svd
from headfit._shrink.result import compare

THREADS = (1, 2, 3)


def closest(target, dim, *, mask=None, threads=1, enough=descent.EXACT, start=None, **options):
    """The descent alone, of a head or a matrix."""
    running = descent.Running.of(num_threads=threads, **options)
    original = Original.of(target, mask, threads)
    return descent.closest(original, dim, running, enough=enough, start=start)


def masks(n):
    rng = np.random.default_rng(n)
    dense = rng.random((n, n)) < 0.4
    dense[np.arange(n), np.arange(n)] = True
    dense[n // 2] = False  # a row that may attend to no key
    return {
        "none": None,
        "causal": "causal",
        "window": ("window", (3, 1)),
        "dense": dense,
        "sparse": sp.csr_array(dense),
    }


MASKS = tuple(masks(4))


def hidden(mask, n):
    """Return 0 where attention is allowed and -inf elsewhere."""
    return np.where(allowed_by(mask, n), 0.0, -np.inf)


def divergence(a, m):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a > 0, a * (np.log(a) - np.log(m)), 0.0).sum(axis=1)


def random_head(n, d, seed, size=1.5, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return tuple((size * rng.standard_normal((n, d))).astype(dtype) for _ in range(2))


def core_problem(wide, as_matrix):
    """Return the core's target and mask for an Attention, or for its matrix."""
    shape = (wide.Q.shape[0], wide.K.shape[0])
    mask = core_mask(wide.mask, (), shape)
    if as_matrix:
        return _core.SoftTarget(matrix=wide.matrix(), mask=mask), mask
    logits = _core.Logits(
        wide.Q[None], wide.K[None], _core.LogitOptions(scale=wide.scale, mask=mask)
    )
    return _core.SoftTarget(attention=logits), mask


def reference(a, q, k, off):
    """Return loss, gradient and curvature blocks, queries above keys."""
    m = softmax(q @ k.T + off)
    g = m - a
    mean = m @ k
    h_q = np.einsum("ij,ja,jb->iab", m, k, k) - mean[:, :, None] * mean[:, None, :]
    h_k = np.einsum("ij,ia,ib->jab", m * (1 - m), q, q)
    rows, cols = np.tril_indices(q.shape[1])
    blocks = np.concatenate([h_q, h_k])[:, rows, cols]
    return divergence(a, m).sum(), np.concatenate([g @ k, g.T @ q]), blocks


@pytest.mark.parametrize("as_matrix", [False, True], ids=["attention", "matrix"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (37, 3), (300, 5)])
def test_loss_and_derivatives(n, d, dtype, name, as_matrix):
    mask = masks(n)[name]
    wide = hf.Attention(*random_head(n, 7, 1, dtype=dtype), mask=mask)
    q, k = random_head(n, d, 2, dtype=dtype)
    target, allowed = core_problem(wide, as_matrix)
    off = hidden(mask, n)
    a = softmax(wide.scale * wide.Q.astype(np.float64) @ wide.K.T.astype(np.float64) + off)
    want = reference(a, q.astype(np.float64), k.astype(np.float64), off)
    first = _core.soft_loss(target, allowed, q, k, 1)
    rounding = 2e-5 if dtype == np.float32 else 1e-11
    for got, expected in zip(first, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding * n)
    for threads in THREADS[1:]:
        again = _core.soft_loss(target, allowed, q, k, threads)
        assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("name", MASKS)
def test_gradient_is_that_of_the_loss(name):
    n, d = 20, 3
    wide = hf.Attention(*random_head(n, 6, 3), mask=masks(n)[name])
    target, mask = core_problem(wide, as_matrix=False)
    x = np.vstack(random_head(n, d, 4)).ravel()

    def loss(x):
        return _core.soft_loss(target, mask, *x.reshape(2, n, d), 1)[0]

    numeric = scipy.optimize.approx_fprime(x, loss, 1e-6)
    gradient = _core.soft_loss(target, mask, *x.reshape(2, n, d), 1)[1]
    np.testing.assert_allclose(gradient.ravel(), numeric, atol=2e-5)


def test_gradient_against_torch():
    torch = pytest.importorskip("torch")
    n, d = 50, 4
    wide = hf.Attention(*random_head(n, 8, 5), mask="causal")
    target, mask = core_problem(wide, as_matrix=False)
    q, k = (torch.tensor(x, requires_grad=True) for x in random_head(n, d, 6))
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    logits = (q @ k.T).masked_fill(~allowed, -torch.inf)
    a = torch.tensor(wide.matrix())
    loss = torch.nn.functional.kl_div(
        logits.log_softmax(1).masked_fill(~allowed, 0), a, reduction="sum"
    )
    loss.backward()
    mine = _core.soft_loss(target, mask, q.detach().numpy(), k.detach().numpy(), 2)
    assert mine[0] == pytest.approx(loss.item(), rel=1e-10)
    np.testing.assert_allclose(mine[1], np.vstack([q.grad, k.grad]), atol=1e-10)


@pytest.mark.parametrize("as_matrix", [False, True], ids=["attention", "matrix"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_judge(dtype, name, as_matrix):
    n = 150
    mask = masks(n)[name]
    wide = hf.Attention(*random_head(n, 6, 7, size=4, dtype=dtype), mask=mask)
    close = hf.Attention(*random_head(n, 4, 8, size=4, dtype=dtype), mask=mask, scale=0.7)
    target = wide.matrix() if as_matrix else wide
    got = compare(target, close, mask=mask if as_matrix else None, num_threads=1)
    off = hidden(mask, n)
    a, m = (
        softmax(x.scale * x.Q.astype(np.float64) @ x.K.T.astype(np.float64) + off)
        for x in (wide, close)
    )
    if as_matrix:
        a = wide.matrix().astype(np.float64)
        a /= np.maximum(a.sum(axis=1, keepdims=True), 1e-300)
    np.testing.assert_allclose(got.row_kl, divergence(a, m), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got.row_tv, total_variation(a, m), rtol=1e-9, atol=1e-11)
    asks = a.any(axis=1)
    assert got.tv_mean == pytest.approx(got.row_tv[asks].mean())
    assert got.kl_mean == pytest.approx(got.row_kl[asks].mean())
    assert got.tv_worst == got.row_tv[got.worst_row] == got.row_tv.max()
    for threads in THREADS[1:]:
        again = compare(target, close, mask=mask if as_matrix else None, num_threads=threads)
        assert np.array_equal(again.row_kl, got.row_kl)
        assert np.array_equal(again.row_tv, got.row_tv)


def test_judge_of_masks_that_differ():
    n = 40
    Q, K = random_head(n, 3, 9)
    free, causal = hf.Attention(Q, K), hf.Attention(Q, K, mask="causal")
    forbidden = compare(free, causal)
    assert np.isinf(forbidden.row_kl[:-1]).all()
    assert forbidden.kl_worst == np.inf
    a, m = free.matrix(), causal.matrix()
    np.testing.assert_allclose(forbidden.row_tv, total_variation(a, m), atol=1e-12)
    np.testing.assert_allclose(compare(causal, free).row_kl, divergence(m, a), atol=1e-11)


def test_judge_of_logits_far_apart():
    # A weight of exp(-2000) underflows; its logarithm must not.
    far = hf.Attention(np.array([[1.0]]), np.array([[0.0], [-2000.0]]), scale=1.0)
    got = compare(np.array([[0.5, 0.5]]), far)
    assert got.kl_mean == pytest.approx(1000 - np.log(2))
    assert got.tv_mean == pytest.approx(0.5)


@given(
    n=st.integers(1, 40), d=st.integers(1, 6), seed=st.integers(0, 2**32), size=st.floats(0.1, 6)
)
def test_pinsker(n, d, seed, size):
    # tv^2 <= KL / 2, and both are zero for a head against itself.
    one = hf.Attention(*random_head(n, d, seed, size))
    other = hf.Attention(*random_head(n, d, seed + 1, size))
    got = compare(one, other)
    assert (got.row_tv**2 <= got.row_kl / 2 + 1e-12).all()
    assert (got.row_tv <= 1 + 1e-12).all()
    assert compare(one, one).kl_worst <= 1e-12
    assert compare(one, one).tv_worst <= 1e-12


def test_the_truncated_svd_is_the_best_approximation():
    Q, K = random_head(60, 12, 10)
    logits = 0.3 * Q @ K.T
    centred = logits - logits.mean(axis=1, keepdims=True)
    size = np.linalg.svd(centred, compute_uv=False)
    for dim in (1, 4, 11):
        q, k = truncated_svd(Q, K, dim, scale=0.3)
        error = np.sum((q @ k.T - centred) ** 2)
        assert error == pytest.approx(np.sum(size[dim:] ** 2), rel=1e-9)
    for dim in (12, 15):
        q, k = truncated_svd(Q, K, dim, scale=0.3)
        assert q.shape == k.shape == (60, dim)
        np.testing.assert_allclose(q @ k.T, centred, atol=1e-10)


def sharp_heads(n=160, size=32):
    """Return heads like those of trained models: by position, by content, and by both."""
    codes, content, noise, other, spectrum = sharp_parts(n, size)
    before = np.vstack([codes[:1], codes[:-1]])
    return {
        "previous": hf.Attention(4 * before + 0.2 * noise, 3 * codes + 0.2 * other, mask="causal"),
        "content": hf.Attention(6 * content * spectrum, 6 * content * spectrum, mask="causal"),
        "between": hf.Attention(3 * codes + 4 * noise * spectrum, 3 * other * spectrum),
    }


SHARP = tuple(sharp_heads(4))


@pytest.mark.parametrize("name", SHARP)
def test_beats_the_svd(name):
    wide = sharp_heads()[name]
    for dim in (4, 8):
        head = closest(wide, dim, threads=2)
        q, k = truncated_svd(wide.Q, wide.K, dim)
        found = compare(wide, hf.Attention(head.Q, head.K, scale=1, mask=wide.mask))
        base = compare(wide, hf.Attention(q, k, scale=1, mask=wide.mask))
        assert found.tv_mean < 0.5 * base.tv_mean
        assert found.kl_mean < 0.25 * base.kl_mean
        # The descent reports the same loss as the comparison.
        assert head.settings["descent"]["kl"][-1][1] == pytest.approx(found.kl_mean, rel=1e-6)
        assert head.settings["descent"]["kl"][0][1] == pytest.approx(base.kl_mean, rel=1e-6)


@pytest.mark.parametrize("name", SHARP)
def test_no_worse_than_scipy(name):
    # SciPy descends the same loss from the same start, with twice as many evaluations.
    wide = sharp_heads(80)[name]
    dim, n = 4, 80
    head = closest(wide, dim, effort="high")
    target, mask = core_problem(wide, as_matrix=False)

    def loss(x):
        value, gradient, _ = _core.soft_loss(target, mask, *x.reshape(2, n, dim), 1)
        return value, gradient.ravel()

    start = np.vstack(truncated_svd(wide.Q, wide.K, dim)).ravel()
    report = head.settings["descent"]
    found = scipy.optimize.minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": 2 * report["evaluations"], "ftol": 0, "gtol": 0},
    )
    # Two descents of a loss that is not convex may end in two minima, close to each other.
    assert report["kl"][-1][1] <= 1.05 * found.fun / n + 1e-6


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_recovers_a_small_head(dtype, name):
    n, d = 120, 4
    mask = masks(n)[name]
    small = hf.Attention(*random_head(n, d, 12, size=3, dtype=dtype), mask=mask)
    # The head is twice as wide as needed: its further coordinates are the same for all keys.
    rng = np.random.default_rng(13)
    Q = np.hstack([small.Q, rng.standard_normal((n, d))]).astype(dtype)
    K = np.hstack([small.K, np.ones((n, 1)) * rng.standard_normal(d)]).astype(dtype)
    head = closest(hf.Attention(Q, K, scale=small.scale, mask=mask), d)
    got = compare(small, hf.Attention(head.Q, head.K, scale=1, mask=mask))
    assert got.tv_worst < 1e-3
    assert head.Q.dtype == head.K.dtype == dtype
    matrix = closest(small.matrix(), d, mask=mask)
    assert compare(small, hf.Attention(matrix.Q, matrix.K, scale=1, mask=mask)).tv_mean < 1e-2


def test_a_size_beyond_the_rank_is_exact():
    wide = hf.Attention(*random_head(50, 5, 13))
    head = closest(wide, 9)
    assert head.Q.shape == (50, 9)
    assert head.settings["descent"]["status"] == "enough"
    assert head.settings["descent"]["steps"] == 0
    assert compare(wide, hf.Attention(head.Q, head.K, scale=1)).tv_worst < 1e-12


def test_matrix_and_attention_agree():
    wide = sharp_heads()["between"]
    start = truncated_svd(wide.Q, wide.K, 6)
    streamed = closest(wide, 6, start=start)
    stored = closest(wide.matrix(), 6, start=start)
    first, second = (
        compare(wide, hf.Attention(h.Q, h.K, scale=1)).kl_mean for h in (streamed, stored)
    )
    assert second == pytest.approx(first, rel=0.02)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_matrix", [False, True], ids=["attention", "matrix"])
def test_threads_do_not_matter(as_matrix, dtype):
    wide = hf.Attention(*random_head(130, 12, 14, size=2, dtype=dtype), mask="causal")
    target, mask = (wide.matrix(), "causal") if as_matrix else (wide, None)
    heads = [closest(target, 5, mask=mask, threads=t, effort=25) for t in THREADS]
    for other in heads[1:]:
        assert np.array_equal(heads[0].Q, other.Q)
        assert np.array_equal(heads[0].K, other.K)


@given(n=st.integers(1, 6), m=st.integers(1, 6), d=st.integers(1, 4), seed=st.integers(0, 999))
def test_small_targets_never_get_worse(n, m, d, seed):
    rng = np.random.default_rng(seed)
    Q, K = 3 * rng.standard_normal((n, 3)), 3 * rng.standard_normal((m, 3))
    wide = hf.Attention(Q, K)
    for target in (wide, wide.matrix()):
        head = closest(target, d)
        got = compare(wide, hf.Attention(head.Q, head.K, scale=1))
        kl = head.settings["descent"]["kl"]
        assert kl[-1][1] <= kl[0][1] + 1e-12
        assert got.kl_mean == pytest.approx(kl[-1][1], abs=1e-9)
    base = compare(wide, hf.Attention(*truncated_svd(Q, K, d), scale=1))
    assert compare(wide, hf.Attention(*head_of(wide, d), scale=1)).kl_mean <= base.kl_mean + 1e-12


def head_of(target, d):
    head = closest(target, d)
    return head.Q, head.K


def test_constant_rows_are_exact_at_once():
    flat = hf.Attention(np.ones((5, 2)), np.ones((5, 2)))
    assert closest(flat, 1).settings["descent"]["status"] == "enough"
    assert closest(flat.matrix(), 1).settings["descent"]["status"] == "enough"


def test_rectangular_targets():
    rng = np.random.default_rng(15)
    wide = hf.Attention(2 * rng.standard_normal((40, 8)), rng.standard_normal((70, 8)))
    head = closest(wide, 4)
    assert head.Q.shape == (40, 4)
    assert head.K.shape == (70, 4)
    base = compare(wide, hf.Attention(*truncated_svd(wide.Q, wide.K, 4), scale=1))
    assert compare(wide, hf.Attention(head.Q, head.K, scale=1)).kl_mean < base.kl_mean


def test_zeros_of_a_matrix_ask_for_nothing_more():
    A = hf.patterns.random_regular(60, k=3, gamma=2.0, rng=0).toarray()
    head = closest(A, 10)
    got = compare(A, hf.Attention(head.Q, head.K, scale=1))
    assert head.settings["descent"]["status"] == "enough"
    assert got.kl_mean < 2e-6
    assert got.tv_worst < 0.01


def test_how_it_ends():
    wide = sharp_heads()["between"]
    reports = {}
    for effort in ("low", "medium", "high", 7):
        report = closest(wide, 4, effort=effort).settings["descent"]
        kl = [value for _, value in report["kl"]]
        assert (np.diff(kl) <= 1e-12).all()
        assert report["kl"][-1][0] == report["steps"]
        reports[effort] = report
    assert reports["low"]["status"] == reports["medium"]["status"] == "converged"
    assert reports[7]["status"] == "step limit"
    assert reports[7]["steps"] == 7
    assert reports["high"]["steps"] > reports["medium"]["steps"] > reports["low"]["steps"]
    early = closest(wide, 8, enough=0.1)
    assert early.settings["descent"]["status"] == "enough"
    got = compare(wide, hf.Attention(early.Q, early.K, scale=1))
    assert got.kl_mean <= 0.1 * (1 + 1e-9)
    assert got.tv_mean <= np.sqrt(0.05)
    assert closest(wide, 4, time_limit=1e-9).settings["descent"]["status"] == "time limit"
    seen = []

    def stop_at_three(step, kl):
        seen.append((step, kl))
        return step < 3

    assert closest(wide, 4, callback=stop_at_three).settings["descent"]["status"] == "stopped"
    assert [s for s, _ in seen] == [0, 1, 2, 3]


def test_a_start_of_fewer_columns():
    wide = sharp_heads()["between"]
    first = closest(wide, 4)
    wider = closest(wide, 6, start=(first.Q, first.K), rng=1)
    assert wider.settings["descent"]["kl"][-1][1] < first.settings["descent"]["kl"][-1][1]


@pytest.mark.parametrize("judged", [False, True], ids=["soft", "compare"])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            (3, 5, -0.1),
            hf.errors.TargetError,
            "must not be negative; got -0.1.* at row 3, column 5",
        ),
        ((3, 5, np.nan), hf.errors.NonFiniteError, "row 3, column 5"),
        (
            (3, 2, 0.9),
            hf.errors.TargetError,
            "every row of the target must sum to 1; row 3 sums to 1.",
        ),
        (
            (3, 5, 0.1),
            hf.errors.TargetError,
            "mask forbids attention; got 0.1.* at row 3, column 5",
        ),
    ],
)
def test_faulty_matrices(change, error, words, judged):
    wide = hf.Attention(*random_head(8, 3, 16), mask="causal")
    A = wide.matrix()
    i, j, value = change
    A[i, j] = value
    refused = (lambda: compare(A, wide)) if judged else (lambda: closest(A, 2, mask="causal"))
    with pytest.raises(error, match=words):
        refused()


def test_arguments_refused():
    wide = hf.Attention(*random_head(8, 3, 17), mask="causal")
    with pytest.raises(hf.errors.InputError, match="dim must"):
        hf.shrink(wide, dim=0)
    with pytest.raises(hf.errors.InputError, match="effort"):
        closest(wide, 2, effort="most")
    with pytest.raises(hf.errors.InputError, match="effort must lie in 0"):
        closest(wide, 2, effort=10**18)
    with pytest.raises(hf.errors.InputError, match="mask must not be given beside an Attention"):
        hf.shrink(wide, dim=2, mask=("window", 2))
    with pytest.raises(hf.errors.InputError, match="one head"):
        hf.compare(hf.Attention(np.zeros((2, 4, 3)), np.zeros((2, 4, 3))), wide)
    with pytest.raises(hf.errors.InputError, match="sparse"):
        closest(sp.eye_array(4), 2)
    with pytest.raises(hf.errors.InputError, match="not empty"):
        closest(np.zeros((0, 4)), 2)
    with pytest.raises(hf.errors.InputError, match="one shape; got 8 x 8 and 5 x 8"):
        compare(wide, hf.Attention(np.zeros((5, 1)), np.zeros((8, 1))))
    with pytest.raises(hf.errors.InputError, match="attention must be an Attention"):
        compare(wide, wide.matrix())
    with pytest.raises(hf.errors.InputError, match="Q must be finite"):
        Original.of(hf.Attention(np.full((2, 2), np.nan), np.zeros((2, 2))), None, 1)


def test_comparison_is_frozen_and_short():
    wide = hf.Attention(*random_head(8, 3, 18))
    got = compare(wide, wide)
    assert repr(got).startswith("Comparison(n 8, total variation mean")
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.tv_mean = 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_stored_head_is_compared(dtype):
    rng = np.random.default_rng(8)
    Q, K = (3 * rng.normal(size=(50, 6)) for _ in range(2))
    target = hf.Attention(Q, K, mask="causal")
    head = hf.shrink(target, dim=6, dtype=dtype, curve_dims=())
    limits = {"float32": 1e-3, "float64": 1e-3, "bfloat16": 0.1}
    assert head.comparison.tv_worst < limits[dtype]
    again = hf.compare(target, head.attention)
    assert again.tv_worst == head.comparison.tv_worst
    assert head.X.shape == (50, 12)
    assert np.array_equal(head.module(head.X, mask="causal").Q, head.Q)
    assert repr(head).startswith("ShrinkResult(size 6 -> 6; total variation")


def test_the_input_of_a_module_is_found():
    rng = np.random.default_rng(9)
    target = hf.Attention(*(2 * rng.normal(size=(2, 40, 5))))
    module = hf.SelfAttention.random(5, rng=1)
    head = hf.shrink(target, module=module)
    assert head.comparison.tv_worst < 0.01
    assert head.module is module
    assert hf.compare(target, module(head.X)).tv_worst < 0.01
    assert np.array_equal(module(head.X).Q, head.Q)  # the input that made these queries
    assert np.array_equal(head.attention.K, head.K)
    with pytest.raises(hf.errors.InputError, match="dim must be the module's, 5"):
        hf.shrink(target, dim=4, module=module)
    with pytest.raises(hf.errors.InputError, match="tv must not be given beside dim"):
        hf.shrink(target, tv=0.1, module=module)
    with pytest.raises(hf.errors.InputError, match="canonical"):
        hf.shrink(target, dim=5, module=module, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_no_module_is_named_first(dtype):
    target = hf.Attention(np.eye(4), np.eye(4))
    with pytest.raises(hf.errors.InputError, match="module must be a SelfAttention; got ndarray"):
        hf.shrink(target, dim=2, module=np.eye(4), dtype=dtype)
    with pytest.raises(hf.errors.InputError, match="module must be a SelfAttention; got ndarray"):
        hf.fit(np.eye(4), 2, module=np.eye(4), dtype=dtype)


def test_fit_sends_dense_attention_to_shrink():
    with pytest.raises(hf.errors.InputError, match="shrink comes close to it"):
        hf.fit(hf.Attention(np.eye(4), np.eye(4)), 2)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_heads_with_rotary_positions_are_compared(dtype):
    Q, K = np.random.default_rng(0).normal(size=(2, 20, 8)).astype(dtype)
    head = hf.Attention(Q, K, position="rope")
    other = hf.Attention(K, Q, position=("rope-half", 100.0))
    rows = 0.5 * np.abs(head.matrix() - other.matrix()).sum(axis=1)
    for target in (head, head.matrix().astype("float64")):
        np.testing.assert_allclose(hf.compare(target, other).row_tv, rows, rtol=1e-4)


def test_fits_are_compared_as_their_attention_is():
    A = hf.patterns.band(24, 1)
    fit = hf.fit(A, 4)
    small = hf.shrink(fit.attention, dim=2)
    expected = hf.compare(fit.attention, small.attention)
    assert hf.compare(fit, small).tv_mean == expected.tv_mean
    assert hf.compare(A.toarray(), fit).tv_mean > 0
    with pytest.raises(
        hf.errors.InputError, match="attention must be an Attention or a fit; got int"
    ):
        hf.compare(fit, 5)


def test_a_step_that_overflows_is_shortened():
    """Hardly any curvature is left where rows attend to one key, and steps may be very long."""
    at = np.arange(128)[:, np.newaxis]
    turn, size = np.geomspace(2.5, 0.01, 16), np.tile(np.geomspace(1, 0.3, 16), 2)
    rng = np.random.default_rng(2)
    Q = 4 * size * np.hstack([np.cos((at - 1) * turn), np.sin((at - 1) * turn)])
    K = np.hstack([np.cos(at * turn), np.sin(at * turn)])
    Q = (Q + 0.4 * rng.normal(size=Q.shape)).astype(np.float32)
    K = (K + 0.1 * rng.normal(size=K.shape)).astype(np.float32)
    for dim in (4, 8, 16):
        found = hf.shrink(hf.Attention(Q, K, scale=1.0, mask="causal"), dim=dim, curve_dims=())
        assert found.comparison.kl_mean < 1e-3
