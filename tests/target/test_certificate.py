"""The certificate compared with exact arithmetic: it must never say "holds" wrongly."""

import json
import math
import signal
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.references import allowed_by, softmax, total_variation

import headfit as hf

mp.mp.dps = 60


def exact_product(X, Y):
    """Return X Y^T, computed in rational arithmetic."""
    x, y = ([[Fraction(*v.as_integer_ratio()) for v in row] for row in M] for M in (X, Y))
    return [[sum(a * b for a, b in zip(u, v, strict=True)) for v in y] for u in x]


def exact_logits(Q, K, scale):
    """Return scale * Q K^T, computed in rational arithmetic."""
    return [[Fraction(float(scale)) * v for v in row] for row in exact_product(Q, K)]


def exact_module_logits(X, module):
    """Return the logits of a module for an input, computed in rational arithmetic."""
    q, k = (exact_product(X, W.T) for W in (module.W_Q, module.W_K))
    return exact_logits(q, k, module.scale)


def as_mp(x):
    return mp.mpf(x.numerator) / mp.mpf(x.denominator)


def exact_rows(A, logits, allowed=None):
    """Return (leak, distortion) of every row, to 60 digits."""
    dense = A.toarray()
    n = dense.shape[0]
    allowed = np.ones((n, n), bool) if allowed is None else allowed
    rows = []
    for i in range(n):
        on = [j for j in range(n) if dense[i, j] > 0]
        off = [j for j in range(n) if dense[i, j] == 0 and allowed[i, j]]
        leak = mp.mpf(0)
        if on and off:
            leak = mp.exp(as_mp(max(logits[i][j] for j in off) - min(logits[i][j] for j in on)))
        excess = [as_mp(logits[i][j]) - mp.log(mp.mpf(float(dense[i, j]))) for j in on]
        rows.append((leak, mp.expm1(max(excess) - min(excess)) if len(on) > 1 else mp.mpf(0)))
    return rows


def near(x, steps):
    """Return the double that is about `steps` units above the double nearest to x."""
    y = np.float64(float(x))
    return float(y + steps * np.spacing(y))


def random_case(seed, n, k, d, dtype, size):
    """Return a pattern and a head with d >= n that nearly realises it, with moderate leaks."""
    rng = np.random.default_rng(seed)
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=rng)
    K = rng.normal(size=(n, d))
    B = np.where(A.toarray() > 0, size + np.log(np.maximum(A.toarray(), 1e-300)), 0)
    B += 0.2 * rng.normal(size=(n, n))
    Q = B @ np.linalg.pinv(K).T * np.sqrt(d)
    return A, Q.astype(dtype), K.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(6))
def test_never_wrong_at_the_tolerance(dtype, seed):
    n, k, d = (12, 2, 16) if seed % 2 else (9, 3, 40)
    A, Q, K = random_case(seed, n, k, d, dtype, [3, 6, 12][seed % 3])
    scale = 1 / np.sqrt(d)
    rows = exact_rows(A, exact_logits(Q, K, scale))
    worst_leak = max(r[0] for r in rows)
    worst_distortion = max(r[1] for r in rows)
    assert worst_leak < 1
    seen = set()
    for steps in (-(10**12), -1000, -30, -3, -1, 0, 1, 3, 30, 1000, 10**12):
        for about_leak in (True, False):
            if about_leak:
                leak = near(worst_leak, steps)
                distortion = float(worst_distortion) * 2
            else:
                leak = 1 - 1e-9
                distortion = near(worst_distortion, steps)
            c = hf.certify(A, Q, K, leak=leak, distortion=distortion)
            meets = worst_leak <= mp.mpf(leak) and worst_distortion <= mp.mpf(distortion)
            assert not (c.status == "holds" and not meets)
            assert not (c.status == "fails" and meets)
            seen.add(c.status)
            for i, (row_leak, row_distortion) in enumerate(rows):
                assert mp.mpf(float(c.row_leak[i])) >= row_leak
                assert mp.mpf(float(c.row_distortion[i])) >= row_distortion
                assert mp.mpf(float(c.row_leak[i])) <= row_leak * (1 + 1e-3) + 1e-30
    assert {
        "holds",
        "fails",
    } <= seen  # with tolerances 0.1% away from the truth, every row must be decided


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decided_outside_the_rounding_of_float64(dtype):
    """For float32 input and a tolerance 1e-9 away from the truth, the scan in float64 decides."""
    A, Q, K = random_case(3, 12, 2, 16, dtype, 6)
    rows = exact_rows(A, exact_logits(Q, K, 0.25))
    worst = float(max(r[0] for r in rows))
    distortion = 2 * float(max(r[1] for r in rows)) + 1
    assert worst < 1
    above = hf.certify(A, Q, K, leak=worst * (1 + 1e-9), distortion=distortion)
    below = hf.certify(A, Q, K, leak=worst * (1 - 1e-9), distortion=distortion)
    assert above.holds
    assert below.status == "fails"
    if dtype == np.float32:
        assert above.rescanned >= 1
        assert below.rescanned >= 1


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 8),
    d=st.integers(1, 6),
    exponent=st.integers(-30, 12),
    single=st.booleans(),
    causal=st.booleans(),
)
def test_bounds_enclose_for_any_magnitude(seed, n, d, exponent, single, causal):
    """The bounds stay valid for tiny entries (underflow), huge ones and cancellation."""
    rng = np.random.default_rng(seed)
    dtype = np.float32 if single else np.float64
    Q = (rng.normal(size=(n, d)) * 2.0**exponent).astype(dtype)
    K = rng.normal(size=(n, d)).astype(dtype)
    if d > 2:  # sums that cancel almost completely
        K[:, 1] = -K[:, 0]
        Q[:, 1] = Q[:, 0] * (1 + np.finfo(dtype).eps)
    if exponent < -20:
        Q *= dtype(1e-30)
    dense = rng.uniform(size=(n, n)) * (rng.uniform(size=(n, n)) < 0.4) + np.eye(n)
    allowed = np.tril(np.ones((n, n), bool)) if causal else None
    if causal:
        dense = np.tril(dense)
    A = sp.csr_array(dense / dense.sum(1, keepdims=True))
    mask = "causal" if causal else None
    c = hf.certify(A, Q, K, mask=mask, leak=0.5, distortion=1.0)
    rows = exact_rows(A, exact_logits(Q, K, 1 / np.sqrt(d)), allowed)
    for i, (leak, distortion) in enumerate(rows):
        assert mp.mpf(float(c.row_leak[i])) >= leak
        assert mp.mpf(float(c.row_distortion[i])) >= distortion
    truth = all(leak <= 0.5 and distortion <= 1.0 for leak, distortion in rows)
    assert c.status != ("fails" if truth else "holds")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_module_statement_is_about_exact_products(dtype):
    """The exact logits of X W_Q (X W_K)^T lie within what the certificate allows."""
    A, Q, K = random_case(5, 4, 2, 4, dtype, 5)
    module = hf.SelfAttention.random(4, rng=1, dtype=dtype)
    X = module.input_for(Q, K)
    rows = exact_rows(A, exact_module_logits(X, module))
    worst = max(r[0] for r in rows)
    assert worst < 1
    attention = module(X)
    big = 2 * float(max(r[1] for r in rows)) + 1
    for steps in (-50, -1, 0, 1, 50):
        leak = near(worst, steps)
        c = hf.certify(A, attention, leak=leak, distortion=big)
        assert c.basis == "module"
        assert c.status != ("fails" if worst <= mp.mpf(leak) else "holds")
        for i, (row_leak, row_distortion) in enumerate(rows):
            assert mp.mpf(float(c.row_leak[i])) >= row_leak
            assert mp.mpf(float(c.row_distortion[i])) >= row_distortion
    assert hf.certify(A, attention, leak=min(0.99, float(worst) * 1.01), distortion=big).holds


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("mask", [None, "causal", ("window", 5)])
@pytest.mark.parametrize("n", [1, 2, 63, 65, 300])
def test_masses_and_places(n, mask, threads):
    rng = np.random.default_rng(n)
    Q, K = rng.normal(size=(2, n, 7))
    allowed = allowed_by(mask, n)
    dense = np.where(allowed & (rng.uniform(size=(n, n)) < 0.1), rng.uniform(1, 2, (n, n)), 0)
    np.fill_diagonal(dense, 1.0)
    A = sp.csr_array(dense / dense.sum(1, keepdims=True))
    c = hf.certify(A, Q, K, mask=mask, leak=0.9, num_threads=threads)
    S = np.where(allowed, Q @ K.T / np.sqrt(7), -np.inf)
    M = softmax(S)
    on = A.toarray() > 0
    np.testing.assert_allclose(c.row_stray, np.where(on, 0, M).sum(1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(c.row_tv, total_variation(A.toarray(), M), rtol=1e-9, atol=1e-12)
    off = np.where(on, 0, M).max(1)
    np.testing.assert_allclose(c.row_leak, off / np.where(on, M, np.inf).min(1), rtol=1e-9)
    ratio = np.where(on, M, np.nan) / np.where(on, A.toarray(), np.nan)
    spread = np.nanmax(ratio, 1) / np.nanmin(ratio, 1) - 1
    np.testing.assert_allclose(c.row_distortion, spread, rtol=1e-9, atol=1e-9)
    finite = S[np.isfinite(S)]
    assert c.max_logit == pytest.approx(abs(finite).max())
    assert c.q_norm == pytest.approx(np.linalg.norm(Q, axis=1).max())
    if c.worst_leak is not None:
        row, high, low = c.worst_leak
        assert M[row, high] / M[row, low] == pytest.approx(c.leak)
    if c.worst_distortion is not None:
        row, high, low = c.worst_distortion
        assert ratio[row, high] / ratio[row, low] - 1 == pytest.approx(c.distortion)
    light = hf.certify(A, Q, K, mask=mask, leak=0.9, certificate_mass=False, num_threads=threads)
    assert light.row_tv is None
    assert np.isnan(light.tv_mean)
    np.testing.assert_array_equal(light.row_leak, c.row_leak)


@pytest.mark.parametrize("mask", [None, "causal"])
def test_large_blocks_of_rows(mask):
    """Scans that only compare logits take more rows at a time where there are many."""
    n = 6300
    A = hf.patterns.previous_token(n) if mask else hf.patterns.permutation(n, rng=0)
    rng = np.random.default_rng(0)
    Q, K = (rng.normal(size=(n, 5)).astype(np.float32) for _ in range(2))
    light, full = (hf.certify(A, Q, K, mask=mask, certificate_mass=mass) for mass in (False, True))
    np.testing.assert_array_equal(light.row_leak, full.row_leak)
    np.testing.assert_array_equal(light.row_distortion, full.row_distortion)
    for i in (0, 47, 48, 95, 96, 3000, n - 1):
        logits = Q[i].astype(np.float64) @ K[: i + 1 if mask else n].T / np.sqrt(5)
        on = A[[i]].indices
        off = np.delete(logits, on).max(initial=-np.inf)
        np.testing.assert_allclose(light.row_leak[i], np.exp(off - logits[on].min()), rtol=1e-4)


def test_independent_of_threads():
    A = hf.patterns.random_regular(333, 4, gamma=2.0, rng=1)
    head = hf.fit(A, 200, leak=0.3, distortion=1.0)
    one, three = (
        hf.certify(A, head.Q, head.K, leak=0.3, distortion=1.0, num_threads=t) for t in (1, 3)
    )
    np.testing.assert_array_equal(one.row_leak, three.row_leak)
    np.testing.assert_array_equal(one.row_tv, three.row_tv)
    assert repr(one) == repr(three)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_given_matrix(dtype):
    A = hf.patterns.band(20, 1, gamma=2.0, rng=0)
    M = A.toarray().astype(dtype)
    c = hf.certify(A, matrix=M, leak=1e-9, distortion=1e-6)
    assert c.basis == "matrix"
    assert "as stored" in repr(c)
    assert c.leak == 0
    assert c.holds
    spread = [float(max(r) / min(r) - 1) for r in _ratios(A, M)]
    assert all(c.row_distortion[i] >= s for i, s in enumerate(spread))
    M[3, 10] = 0.2
    assert hf.certify(A, matrix=M).worst_leak[:2] == (3, 10)
    M[3, 3] = 0  # a support entry that is zero: no ratio is bounded
    lost = hf.certify(A, matrix=M)
    assert lost.status == "fails"
    assert lost.row_leak[3] == np.inf
    assert lost.row_distortion[3] == np.inf


@pytest.mark.parametrize("mask", [None, "causal", "dense", "sparse"])
def test_a_sparse_matrix_is_judged_as_the_same_matrix_dense(mask):
    n = 60
    rng = np.random.default_rng(0)
    allowed = np.tri(n, dtype=bool) & (rng.random((n, n)) < 0.4) | np.eye(n, dtype=bool)
    mask = {"dense": allowed, "sparse": sp.csr_array(allowed)}.get(mask, mask)
    A = sp.csr_array(np.eye(n))
    for case in range(30):
        M = np.where(allowed, rng.random((n, n)), 0) * (rng.random((n, n)) < rng.random())
        M[rng.random(n) < 0.3] = 0
        M += np.diag(rng.random(n) < 0.8)
        if case % 2:  # many rows have their whole mass on the support
            M = np.where(rng.random((n, 1)) < 0.5, np.diag(np.diag(M)), M)
        M = M.astype(np.float32 if case % 3 else np.float64)
        stored = sp.coo_array(M)
        if case % 4 == 0:  # with zeros that are stored
            stored = sp.csr_array((M[allowed], np.nonzero(allowed)), shape=(n, n))
        one, other = (hf.certify(A, matrix=x, mask=mask, num_threads=2) for x in (stored, M))
        assert one.to_dict() == other.to_dict()
        for name in ("row_leak", "row_distortion", "row_tv", "row_stray", "row_status"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_sparse_matrix_that_cannot_be_judged():
    A = np.eye(3)
    with pytest.raises(hf.errors.InputError, match="row 2, column 0"):
        hf.certify(A, matrix=sp.csr_array([[1.0, 0, 0], [0, 1, 0], [-0.5, 0, 1]]))
    with pytest.raises(hf.errors.NonFiniteError, match="row 1, column 1"):
        hf.certify(A, matrix=sp.csr_array(np.diag([1, np.inf, 1])))
    with pytest.raises(hf.errors.InputError, match="masked"):
        hf.certify(A, matrix=sp.csr_array([[1.0, 1e-9, 0], [0, 1, 0], [0, 0, 1]]), mask="causal")
    with pytest.raises(hf.errors.InputError, match="3 rows and columns"):
        hf.certify(A, matrix=sp.eye_array(4))
    with pytest.raises(hf.errors.InputError, match="matrix must be float16"):
        hf.certify(A, matrix=sp.eye_array(3, dtype=np.longdouble))
    assert hf.certify(A, matrix=sp.eye_array(3, dtype=np.int8)).dtype == "float64"


def _ratios(A, M):
    dense = A.toarray()
    for i in range(dense.shape[0]):
        yield [
            Fraction(float(M[i, j])) / Fraction(float(dense[i, j]))
            for j in np.flatnonzero(dense[i])
        ]


def test_given_matrix_refuses_what_is_no_attention():
    A = hf.patterns.band(4, 1)
    M = A.toarray()
    M[2, 1] = -0.1
    with pytest.raises(hf.errors.InputError, match="row 2, column 1"):
        hf.certify(A, matrix=M)
    M[2, 1] = np.nan
    with pytest.raises(hf.errors.NonFiniteError, match="row 2, column 1"):
        hf.certify(A, matrix=M)
    lower = hf.patterns.causal_band(4, 1)
    M = lower.toarray()
    M[0, 3] = 0.5
    with pytest.raises(hf.errors.InputError, match="masked"):
        hf.certify(lower, matrix=M, mask="causal")


def test_full_support_and_single_entries():
    n = 5
    uniform = np.full((n, n), 1 / n)
    c = hf.certify(uniform, np.zeros((n, 2)), np.zeros((n, 2)))
    assert c.holds
    assert c.leak == 0
    assert c.distortion < 1e-14
    c = hf.certify(np.eye(n), 9 * np.eye(n), np.eye(n), scale=1.0)
    assert c.distortion == 0
    assert c.leak == pytest.approx(np.exp(-9))


def test_a_row_without_a_finite_logit_has_no_weights():
    bias = np.array([[-np.inf, -np.inf], [0, 0]])
    certificate = hf.certify(np.eye(2), hf.Attention(np.eye(2), np.eye(2), bias=bias, scale=1.0))
    assert certificate.status == "fails"
    off = 1 / (1 + math.e)
    np.testing.assert_allclose(certificate.row_tv, [0.5, off])
    np.testing.assert_allclose(certificate.row_stray, [0, off])


def test_a_negative_scale_has_a_positive_norm():
    certificate = hf.certify(np.eye(3), -4 * np.eye(3), np.eye(3), scale=-1.0)
    assert certificate.max_norm == pytest.approx(4)


def test_a_matrix_without_masses():
    assert math.isnan(hf.certify(np.eye(3), matrix=np.eye(3), certificate_mass=False).tv_mean)
    assert hf.certify(np.eye(3), matrix=np.eye(3)).tv_mean == 0


def test_rows_that_the_mask_empties():
    mask = np.array([[False, False], [True, True]])
    A = sp.csr_array(np.array([[0, 0], [1.0, 0]]))
    c = hf.certify(A, np.array([[1.0], [1.0]]), np.array([[5.0], [1.0]]), mask=mask, scale=1.0)
    assert c.holds
    assert c.row_leak[0] == 0
    assert c.row_tv[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"leak": 0.0}, "leak"),
        ({"leak": 1.0}, "leak"),
        ({"leak": float("nan")}, "leak"),
        ({"distortion": -1.0}, "distortion"),
        ({"distortion": float("inf")}, "distortion"),
        ({"scale": 0.0}, "scale"),
        ({"Q": np.zeros((3, 4))}, "Q must have one row"),
        ({"K": None}, "Q and K"),
        ({"matrix": np.eye(4)}, "alone"),
        ({"num_threads": 0}, "num_threads"),
    ],
)
def test_bad_arguments(arguments, message):
    given_ = {"A": np.eye(4), "Q": np.eye(4), "K": np.eye(4)} | arguments
    with pytest.raises(hf.errors.InputError, match=message):
        hf.certify(**given_)


def test_nonfinite_heads_are_refused():
    Q, K = np.eye(4), np.eye(4)
    Q[2, 1] = np.inf
    with pytest.raises(hf.errors.NonFiniteError, match="row 2, column 1"):
        hf.certify(np.eye(4), Q, K)
    with pytest.raises(hf.errors.NonFiniteError, match="logits"):
        hf.certify(np.eye(2), np.full((2, 1), 1e200), np.full((2, 1), 1e200))


def test_attention_and_contradictions():
    A = np.eye(3)
    attention = hf.Attention(4 * np.eye(3), np.eye(3), scale=2.0, mask="causal")
    assert hf.certify(A, attention).scale == 2.0
    assert hf.certify(A, attention, scale=2.0, mask="causal").mask == "causal"
    with pytest.raises(hf.errors.InputError, match="scale must not be given beside"):
        hf.certify(A, attention, scale=1.0)
    with pytest.raises(hf.errors.InputError, match="mask must not be given beside"):
        hf.certify(A, attention, mask=("window", 2))
    with pytest.raises(hf.errors.InputError, match="K must not"):
        hf.certify(A, attention, np.eye(3))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("causal", np.tril(np.ones((6, 6), bool))),
        ("causal", ("window", (9, 0))),
        (
            ("window", 3),
            sp.csr_array(np.tril(np.ones((6, 6), bool)) & ~np.tri(6, k=-3, dtype=bool)),
        ),
        (None, np.ones((1, 6), bool)),
    ],
)
def test_masks_that_allow_the_same_agree(first, second):
    A = np.eye(6)
    Q = 6 * np.eye(6)
    for mask, other in ((first, second), (second, first)):
        certificate = hf.certify(hf.Target(A, mask=mask), hf.Attention(Q, np.eye(6), mask=other))
        assert certificate.leak <= np.exp(-6 / np.sqrt(6)) * (1 + 1e-12)


@pytest.mark.parametrize("other", [None, ("window", 2), np.eye(6, dtype=bool)])
def test_masks_that_differ_are_refused(other):
    target = hf.Target(np.eye(6), mask="causal")
    with pytest.raises(
        hf.errors.InputError, match="must have the same mask; the target's is 'causal'"
    ):
        hf.certify(target, hf.Attention(np.eye(6), np.eye(6), mask=other))
    # A target that was checked without a mask is checked under the attention's mask.
    assert hf.certify(np.eye(6), hf.Attention(np.eye(6), np.eye(6), mask=other)).n == 6


def test_a_given_matrix_has_the_mask_of_its_target():
    target = hf.Target(np.eye(2), mask="causal")
    with pytest.raises(hf.errors.InputError, match="the matrix must have the same mask"):
        hf.certify(target, matrix=np.eye(2), mask=np.ones((2, 2), bool))
    assert hf.certify(target, matrix=np.eye(2), mask=np.tri(2, dtype=bool)).holds


def test_masked_arrays_have_no_mask_of_attention():
    target = hf.Target(np.eye(2), mask="causal")
    Q = np.ma.masked_array(9 * np.eye(2), mask=False)
    assert hf.certify(target, Q, np.eye(2)).mask == "causal"


@pytest.mark.parametrize("mask", [None, "causal"])
def test_rows_of_zeros_meet_nothing(mask):
    M = np.eye(3)
    M[0] = 0
    certificate = hf.certify(np.eye(3), matrix=M, mask=mask)
    assert certificate.row_status.tolist() == [1, 0, 0]
    assert certificate.row_leak[0] == np.inf
    assert hf.certify(np.eye(1), matrix=np.zeros((1, 1))).status == "fails"


@pytest.mark.parametrize("threads", [1, 2])
def test_targets_that_were_changed_by_force_are_refused(threads):
    """If a user changes protected arrays by force, there is no crash and no certificate."""
    n = 300
    Q = np.eye(n, dtype=np.float32)
    changes = {
        "indices": ([2**31 - 1, 300, -1], "column"),
        "indptr": ([10**9, -(2**40)], "offset"),
        "data": ([np.nan, -1.0, np.inf, 0.0], "must"),
    }
    for part, (values, message) in changes.items():
        for value in values:
            target = hf.Target(sp.eye_array(n, format="csr"))
            array = getattr(target.matrix, part)
            array.flags.writeable = True
            with np.errstate(all="ignore"):
                array[5] = np.array(value).astype(array.dtype)
            with pytest.raises(hf.errors.InputError, match=message):
                hf.certify(target, Q, Q, num_threads=threads)
            with pytest.raises(hf.errors.InputError, match=message):
                hf.certify(target, matrix=Q, num_threads=threads)


def test_products_of_modules_are_read_only():
    module = hf.SelfAttention(np.eye(2), np.eye(2)[::-1], scale=1.0)
    attention = module(np.zeros((2, 2)))
    for array in (attention.Q, attention.K, *attention.stored, *attention.errors):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1


def test_float32_kernels_start_from_the_exact_products_of_a_module():
    # The stored query is 0 although the exact X W_Q is too large for float32.
    X = np.array([[2.0**184, 2.0**130.5, 2.0**184, 0], [0, 0, 0, -1], [0, 0, 0, 1]])
    W_Q, W_K = np.array([[1.0], [1], [-1], [0]]), np.array([[0.0], [0], [0], [2.0**-24]])
    mask = np.zeros((3, 3), bool)
    mask[:, 1:] = True
    target = hf.Target(mask / 2, mask=mask)
    attention = hf.SelfAttention(W_Q, W_K, scale=2.0**-125)(X, mask=mask)
    certificate = hf.certify(target, attention, kernel="float32")
    assert certificate.row_status[0] == 2
    assert "about the logits of the exact products X W_Q, X W_K" in repr(certificate)


def test_roots_of_the_scale_with_the_logarithm_in_it():
    """This kernel has the most roundings: the square root of fl(s log2(e)) on both Q and K."""
    scale, q = 0.6948752105235769, 1.0002391934394268
    f4 = np.float32
    root = np.sqrt(f4(scale) * f4(1.4426950408889634))
    computed = float((f4(q) * root) * (f4(q) * root)) * math.log(2)  # to base e
    Q, K = np.full((2, 1), q), np.array([[q], [-q]])
    exact = mp.mpf(scale) * mp.mpf(q) ** 2
    weight = float(1 / (1 + mp.exp(-2 * exact)))
    A = np.array([[weight, 1 - weight]] * 2)
    certificate = hf.certify(A, Q, K, scale=scale, kernel="float32", distortion=7e-7)
    off = mp.expm1(abs(2 * mp.mpf(computed) - mp.log(mp.mpf(weight) / mp.mpf(1 - weight))))
    assert off <= certificate.row_distortion[0]
    assert not certificate.holds


@pytest.mark.full
def test_torch_in_a_signal_handler_changes_no_arithmetic():
    """A user's callback runs while the core polls, and may switch on flushing of subnormals."""
    torch = pytest.importorskip("torch")
    n, d = 1200, 2000
    Q, K = np.zeros((n, d), np.float32), np.zeros((n, d), np.float32)
    Q[-1, 0], K[0, 0], K[1, 0] = 1.1e-38, 3e38, -3e38
    target = hf.Target(sp.csr_array(np.ones((n, n))), normalize=True)
    calls = []

    def handler(*_):
        calls.append(torch.set_flush_denormal(True))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        certificate = hf.certify(target, Q, K, scale=1.0, certificate_mass=False, num_threads=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_flush_denormal(False)
    assert certificate.row_status[-1] == 1
    if not calls:
        pytest.skip("the scan was done before the signal came")


def test_attention_takes_no_error_bounds():
    with pytest.raises(TypeError, match="errors"):
        hf.Attention(np.eye(2), np.eye(2), errors=(np.zeros(1), np.zeros(1)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_module_statements_at_every_magnitude(dtype, size):
    rng = np.random.default_rng(3)
    n, d = 5, 2
    weights = (rng.normal(size=(2 * d, 2 * d)) * size).astype(dtype)
    X = (rng.normal(size=(n, 2 * d)) / size).astype(dtype)
    module = hf.SelfAttention(weights[:, :d], weights[:, d:])
    A = hf.patterns.random_regular(n, 2, rng=0)
    certificate = hf.certify(A, module(X), leak=0.5, distortion=10)
    for i, (leak, distortion) in enumerate(exact_rows(A, exact_module_logits(X, module))):
        assert leak <= certificate.row_leak[i]
        assert distortion <= certificate.row_distortion[i]
        assert certificate.row_leak[i] <= leak * (1 + mp.mpf("1e-3"))


def test_module_products_that_overflow_are_refused():
    big = np.full((2, 1), 1e30, np.float32)
    module = hf.SelfAttention(big, big)
    with pytest.raises(
        hf.errors.NonFiniteError, match="X W_Q must be finite; got inf at row 1, column 0"
    ):
        module(np.array([[1e-30, 0], [1e30, 1e30]], np.float32))


def test_raise_if_failed_and_texts():
    good = hf.certify(np.eye(3), 9 * np.eye(3), np.eye(3), scale=1.0)
    assert good.raise_if_failed() is good
    assert len(repr(good).splitlines()) == 4
    bad = hf.certify(np.eye(3), np.eye(3), np.eye(3), scale=1.0)
    with pytest.raises(hf.errors.CertificateError, match="FAILS in 3 of 3 rows"):
        bad.raise_if_failed()
    for one in (good, bad):
        with pytest.raises(TypeError, match=r"no truth value: ask for \.holds"):
            assert one
    plain = json.loads(json.dumps(bad.to_dict()))
    assert plain["holds"] is False
    assert plain["rows_failed"] == 3
