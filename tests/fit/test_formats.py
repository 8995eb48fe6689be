"""Narrow number formats: heads stored in them, logits rounded to them, and bounds of logits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.references import leak_and_distortion, logits_of, softmax, total_variation

import headfit as hf
from headfit import _core
from headfit._base import arrays
from headfit._target.target import as_target
from headfit.errors import InputError

LEAK, DISTORTION = 0.05, math.expm1(0.1)
DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24}
LEAST_NORMAL = {"bfloat16": -126, "float16": -14, "float32": -126}


def rounded(x, name):
    """Return the nearest number of a format, ties to even, by its definition."""
    x = np.asarray(x, dtype=np.float64)
    exponent = np.frexp(x)[1] - 1
    unit = np.ldexp(1.0, np.maximum(exponent, LEAST_NORMAL[name]) - DIGITS[name] + 1)
    return np.round(x / unit) * unit  # NumPy rounds halves to even


def near_regular(n=128, k=4, seed=0):
    return hf.patterns.random_regular(n, k, gamma=2.0, rng=seed)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-6e4, max_value=6e4))
def test_rounding_is_to_the_nearest_number(x):
    for name in arrays.HALVES:
        assert arrays.round_to([[np.float32(x)]], name)[0, 0] == rounded(np.float32(x), name)


def test_rounding_matches_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(1, 20_000)) * 10.0 ** rng.integers(-30, 30, 20_000)).astype(np.float32)
    expected = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(arrays.round_to(x, "bfloat16"), expected)


def test_what_a_format_cannot_hold_is_an_error():
    with pytest.raises(InputError, match=r"K must fit float16; got numbers up to 1e\+05"):
        arrays.round_to([[1e5]], "float16")


@pytest.mark.parametrize(("dtype", "dim"), [("bfloat16", 8), ("float16", 6), ("float16", 7)])
@pytest.mark.parametrize("threads", [1, 2])
def test_narrow_heads_are_certified_and_exactly_representable(dtype, dim, threads):
    A = near_regular()
    head = hf.fit(A, dim, distortion=DISTORTION, dtype=dtype, num_threads=threads)
    assert head.certificate.holds
    assert head.dtype == dtype
    assert head.certificate.kernel == hf.Kernel.named("float32")
    for x in (head.Q, head.K, head.X):
        assert x.dtype == np.float32
        assert np.array_equal(x, rounded(x, dtype))
    again = hf.fit(A, dim, distortion=DISTORTION, dtype=dtype, num_threads=3)
    assert np.array_equal(again.Q, head.Q)
    # A plain scan in float64 agrees.
    leak, distortion = leak_and_distortion(A.toarray(), logits_of(head))
    assert leak.max() <= LEAK
    assert distortion.max() <= DISTORTION


def test_errors_that_cancel_beat_nearest_numbers():
    A = near_regular()
    head = hf.fit(A, 8, distortion=DISTORTION, method=hf.methods.Learned(max_norm=150))
    K = arrays.round_to(head.K, "bfloat16")
    target = as_target(A)
    q = np.ascontiguousarray(head.Q * np.float32(head.scale))
    tolerances = _core.Tolerances(LEAK, DISTORTION)
    cancelling = _core.round_queries(target.core, q, K, tolerances, _core.Storage("bfloat16"), 2)
    nearest = arrays.round_to(q, "bfloat16")
    failed = [
        hf.certify(A, x, K, scale=1.0, distortion=DISTORTION).failed_rows.size
        for x in (cancelling, nearest)
    ]
    assert np.array_equal(cancelling, rounded(cancelling, "bfloat16"))
    assert failed[0] < failed[1] / 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_max_margin_queries_in_a_narrow_dtype(dtype):
    head = hf.fit(near_regular(), 48, method="max-margin", dtype=dtype)
    assert head.certificate.holds
    assert np.array_equal(head.Q, rounded(head.Q, dtype))
    assert np.array_equal(head.K, rounded(head.K, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_a_bound_on_norms_holds_for_what_is_stored(dtype):
    A, asked = near_regular(96, 3), {"leak": 0.2, "distortion": 0.4}
    keys = hf.methods.KeyTable.random(96, 48, rng=1)
    needed = hf.fit(A, method=hf.methods.MaxMargin(keys=keys), **asked).certificate.max_norm
    of_rows = hf.methods.MaxMargin(keys=keys, max_norm=1.3 * needed)
    methods = [(14, hf.methods.Learned(max_norm=16.0)), (48, of_rows)]
    for dim, method in methods if dtype.endswith("16") else methods[:1]:
        head = hf.fit(A, dim, method=method, dtype=dtype, **asked)
        assert head.certificate.holds
        norms = [np.linalg.norm(x.astype(float), axis=1).max() for x in (head.Q, head.K)]
        assert head.scale * norms[0] * norms[1] <= method.max_norm * (1 + 1e-9)
        assert head.certificate.max_norm <= method.max_norm * (1 + 1e-6)


@pytest.mark.full
def test_a_narrow_filter_keeps_to_a_bound_on_norms():
    A = hf.patterns.causal_band(300, 7)
    for dtype in ("bfloat16", "float16"):
        head = hf.fit(A, 24, method=hf.methods.Toeplitz(max_norm=40.0), mask="causal", dtype=dtype)
        assert head.certificate.holds
        assert head.certificate.max_norm <= 40.0


def test_a_narrow_head_survives_its_file(tmp_path):
    head = hf.fit(near_regular(64, 3), 8, dtype="bfloat16", max_logit=30.0)
    kept = hf.load(head.save(tmp_path / "head.npz"))
    assert (kept.dtype, kept.settings["max_logit"]) == ("bfloat16", 30.0)
    assert kept.certificate.tolerances.max_logit == 30.0
    assert repr(kept.certificate) == repr(head.certificate)
    assert "bfloat16: certified" in repr(kept)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1.0, 4.0, 12.0]))
def test_certificates_of_rounded_logits(name, seed, size):
    """Certificates agree with the softmax of logits that are rounded one by one."""
    rng = np.random.default_rng(seed)
    n, d = 12, 4
    A = hf.patterns.random_regular(n, 3, gamma=2.0, rng=rng).toarray()
    Q, K = size * rng.normal(size=(n, d)), rng.normal(size=(n, d))
    S = rounded(0.5 * Q @ K.T, name)
    leak, distortion = leak_and_distortion(A, S)
    c = hf.certify(A, Q, K, leak=0.5, distortion=2.0, kernel=hf.Kernel(logits=name))
    np.testing.assert_allclose(c.row_leak, leak, rtol=1e-9)
    np.testing.assert_allclose(c.row_distortion, distortion, rtol=1e-9, atol=1e-12)
    assert (c.row_leak >= leak * (1 - 1e-14)).all()
    np.testing.assert_allclose(c.row_tv, total_variation(A, softmax(S)), atol=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(24)))
def test_float32_accumulation_covers_every_order(seed, order):
    rng = np.random.default_rng(seed)
    A = hf.patterns.random_regular(10, 3, gamma=2.0, rng=rng)
    Q, K = (8 * rng.normal(size=(10, 24)).astype(np.float32) for _ in range(2))
    summed = np.zeros((10, 10), dtype=np.float32)
    for f in order:
        summed += Q[:, [f]] * K[:, f]
    leak, distortion = leak_and_distortion(A.toarray(), summed.astype(float) * 0.2)
    c = hf.certify(A, Q, K, scale=0.2, leak=0.5, distortion=2.0, kernel="float32")
    exact = hf.certify(A, Q, K, scale=0.2, leak=0.5, distortion=2.0)
    assert (leak <= c.row_leak).all()
    assert (distortion <= c.row_distortion).all()
    assert (c.row_distortion >= exact.row_distortion).all()
    assert (c.row_distortion > exact.row_distortion).any()


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_of_logits_is_judged(mask, dtype):
    rng = np.random.default_rng(3)
    A = np.eye(40)
    K = rng.normal(size=(40, 6))
    K = (K / np.linalg.norm(K, axis=1, keepdims=True)).astype(
        dtype
    )  # each row attends to its own key
    Q = (K * rng.uniform(5, 20, size=(40, 1))).astype(dtype)
    S = np.abs(0.5 * Q.astype(float) @ K.T.astype(float))
    if mask == "causal":
        S = np.tril(S)
    largest = S.max(axis=1)
    limit = float(np.median(largest))
    c = hf.certify(A, Q, K, scale=0.5, mask=mask, leak=0.999, distortion=1.0, max_logit=limit)
    assert c.max_logit == pytest.approx(largest.max(), rel=1e-5)
    assert c.max_logit >= largest.max()
    without = hf.certify(A, Q, K, scale=0.5, mask=mask, leak=0.999, distortion=1.0)
    only_size = np.flatnonzero((c.row_status == 1) & (without.row_status == 0))
    assert only_size.size > 0
    assert (largest[only_size] > limit).all()
    assert (largest[c.row_status == 0] <= limit).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_learned_heads_keep_to_a_bound_of_logits(threads):
    A = near_regular()
    free = hf.fit(A, 10, distortion=DISTORTION, method=hf.methods.Learned(max_norm=1000))
    head = hf.fit(A, 10, distortion=DISTORTION, max_logit=12.0, num_threads=threads)
    assert head.certificate.holds
    assert np.abs(logits_of(head)).max() <= 12.0 < free.certificate.max_logit
    assert head.certificate.tolerances.max_logit == 12.0
    narrow = hf.fit(A, 24, distortion=DISTORTION, kernel="eager-bfloat16")
    assert narrow.certificate.holds
    assert narrow.dtype == narrow.certificate.kernel.logits == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_starts_keep_to_a_bound_of_norms(dtype):
    # The random start of so many columns, and the given one, are longer and meet the tolerances.
    for A, dim, most in ((np.ones((1, 1)), 8, 1.0), (np.eye(16)[::-1], 64, 20.0)):
        head = hf.fit(A, dim, method=hf.methods.Learned(max_norm=most), dtype=dtype)
        assert head.certificate.max_norm <= most, head
        given = head.scale * 9 * head.Q.astype(np.float32), 9 * head.K.astype(np.float32)
        method = hf.methods.Learned(max_norm=most, init=given)
        assert hf.fit(A, dim, method=method, dtype=dtype).certificate.max_norm <= most


def test_max_margin_keeps_to_a_bound_of_logits():
    head = hf.fit(near_regular(), 64, method="max-margin", max_logit=25.0)
    assert head.certificate.holds
    assert head.certificate.max_logit <= 25.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"kernel": "int8"}, "kernel must be"),
        ({"max_logit": -1.0}, "max_logit must lie"),
        ({"dtype": "bfloat16", "distortion": 0.0}, "bfloat16 alone moves ratios"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InputError, match=message):
        hf.fit(near_regular(16, 2), **options)


def test_projections_leave_a_bound_of_logits_to_the_certificate():
    A = hf.patterns.band(24, 1)
    options = {"method": "projection", "leak": 0.3, "distortion": 2.0}
    free = hf.fit(A, 1024, **options)
    assert free.certificate.holds
    limit = free.certificate.max_logit
    for factor, holds in ((1.01, True), (0.9, False)):
        head = hf.fit(A, 1024, max_logit=factor * limit, **options)
        np.testing.assert_array_equal(head.Q, free.Q)
        assert head.certificate.holds == holds
        assert head.tolerances == hf.Tolerances(0.3, 2.0, factor * limit)


def test_a_given_module_takes_no_narrow_head():
    with pytest.raises(InputError, match="canonical"):
        hf.fit(near_regular(16, 2), module=hf.SelfAttention.random(8, rng=0), dtype="bfloat16")
    canonical = hf.SelfAttention.canonical(8)
    assert hf.fit(near_regular(16, 2), module=canonical, dtype="bfloat16").certificate.holds
    for options in ({"max_logit": 3.0}, {"kernel": "float32"}):
        with pytest.raises(InputError, match="not of matrix"):
            hf.certify(np.eye(4), matrix=np.eye(4), **options)


def test_progress_shows_a_bar(capsys):
    pytest.importorskip("tqdm")
    seen = []
    head = hf.fit(
        near_regular(64, 3),
        8,
        progress=True,
        method=hf.methods.Learned(callback=lambda *scan: seen.append(scan)),
    )
    assert head.certificate.holds
    assert seen
    assert "64/64" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [1e-300, 1e-39, 1e-36, 1e25, 1e39, 1e300])
def test_scales_that_float32_does_not_hold_are_those_of_float64(scale) -> None:
    found = hf.fit(hf.patterns.band(16, 1), 4, dtype="float64", scale=scale, rng=0)
    assert found.certificate.holds
    plain = hf.fit(hf.patterns.band(16, 1), 4, dtype="float64", scale=1.0, rng=0)
    np.testing.assert_allclose(found.Q * scale, plain.Q, rtol=1e-12)
