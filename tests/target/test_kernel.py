"""`Kernel`: what its names stand for, and certificates beside code that rounds step by step."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adversarial.float32_results import truncated_dot
from tests.references import leak_and_distortion, softmax, total_variation

import headfit as hf
from headfit import cli
from headfit._base.arrays import round_to
from headfit._base.tolerances import NAMES, as_kernel
from headfit.errors import InputError

HALVES = ("bfloat16", "float16")
A = hf.patterns.random_regular(64, 3, gamma=2.0, rng=0)


def eager(q, k, scale, dtype, softcap=None, bias=None):
    """Return the logits of code in which every operation rounds."""

    def rounded(x):
        return round_to(np.asarray(x, np.float32), dtype)

    x = rounded(rounded(rounded(q) @ rounded(k).T) * np.float32(scale))
    if softcap is not None:
        x = rounded(rounded(np.tanh(rounded(x / np.float32(softcap)))) * np.float32(softcap))
    return x if bias is None else rounded(x + rounded(bias))


def test_a_kernel_that_rounds_more_than_once():
    # Eager PyTorch has the logits 179 and 181, and so the weights .119 and .881.
    target, Q, K = np.full((2, 2), 0.5), np.ones((2, 2)), np.array([[256, 1], [256, 1.296875]])
    once = hf.Kernel("float32", logits="bfloat16")
    assert hf.certify(target, Q, K, scale=0.7, kernel=once).holds
    np.testing.assert_array_equal(eager(Q, K, 0.7, "bfloat16"), [[179, 181], [179, 181]])
    judged = hf.certify(target, Q, K, scale=0.7, kernel="eager-bfloat16")
    assert not judged.holds
    assert judged.distortion >= math.exp(2) - 1


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("option", ["none", "softcap", "bias", "both"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1.0, 4.0, 12.0]))
def test_eager_certificates_beside_eager_code(dtype, option, seed, size):
    rng = np.random.default_rng(seed)
    n, d = 12, 5
    dense = hf.patterns.random_regular(n, 3, gamma=2.0, rng=rng).toarray()
    q, k = size * rng.normal(size=(n, d)), rng.normal(size=(n, d))
    options = {"softcap": size} if option in ("softcap", "both") else {}
    if option in ("bias", "both"):
        options["bias"] = (size * rng.normal(size=(n, n))).astype(np.float32)
    scale = rng.uniform(0.1, 2)
    leak, distortion = leak_and_distortion(dense, eager(q, k, scale, dtype, **options))
    head = hf.Attention(q, k, scale=scale, **options)
    found = hf.certify(dense, head, leak=0.5, distortion=2.0, kernel=f"eager-{dtype}")
    assert (found.row_leak >= leak * (1 - 1e-12)).all()
    assert (found.row_distortion >= distortion * (1 - 1e-12)).all()
    # Bounds are of use: most logits are known to the last bit, the others to the last but one.
    step = 2.0 ** -{"bfloat16": 8, "float16": 11}[dtype] * found.max_logit
    assert np.median(np.log(found.row_leak / leak)) <= 4 * step
    fewer = hf.certify(
        dense, head, leak=0.5, distortion=2.0, kernel=f"eager-{dtype}", certificate_mass=False
    )
    np.testing.assert_array_equal(fewer.row_leak, found.row_leak)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), option=st.sampled_from(["softcap", "bias"]))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_certificates_of_soft_caps_and_biases(dtype, seed, option):
    rng = np.random.default_rng(seed)
    n, d = 40, 6
    dense = hf.patterns.random_regular(n, 3, gamma=2.0, rng=rng).toarray()
    q, k = (3 * rng.normal(size=(2, n, d))).astype(dtype)
    more = {"softcap": 4.0} if option == "softcap" else {"bias": rng.normal(size=(n, n))}
    logits = 0.3 * q.astype(float) @ k.astype(float).T
    logits = 4 * np.tanh(logits / 4) if option == "softcap" else logits + more["bias"]
    leak, distortion = leak_and_distortion(dense, logits)
    head = hf.Attention(q, k, scale=0.3, **more)
    found = hf.certify(dense, head, leak=0.5, distortion=2.0)
    for got, expected in ((found.row_leak, leak), (found.row_distortion, distortion)):
        assert (got >= expected * (1 - 1e-12)).all()
        np.testing.assert_allclose(got, expected, rtol=1e-3)
    tv = total_variation(dense, softmax(logits))
    np.testing.assert_allclose(found.row_tv, tv, atol=1e-5)
    assert found.max_logit >= np.abs(logits).max()


def test_bias_that_forbids_is_a_mask():
    bias = np.where(np.tri(6, dtype=bool), 0.0, -np.inf)
    q = np.random.default_rng(0).normal(size=(6, 4))
    target = hf.patterns.causal_band(6, 2)
    masked = hf.certify(target, q, q, mask="causal", leak=0.5)
    biased = hf.certify(target, hf.Attention(q, q, bias=bias), leak=0.5)
    np.testing.assert_allclose(biased.row_leak, masked.row_leak, rtol=1e-12)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_aims_at_its_kernel(name, weights, tmp_path):
    if weights and name == "exact":
        with pytest.raises(InputError, match="weights must be False for the kernel 'exact'"):
            hf.Kernel.named(name, weights=True)
        return
    kernel = hf.Kernel.named(name, weights=weights)
    head = hf.fit(A, 16, kernel=kernel)
    assert head.certificate.holds
    assert head.dtype == (kernel.operands or "float32")
    assert head.certificate.kernel == kernel
    assert str(kernel) in repr(head.certificate) or name == "exact"
    kept = hf.load(head.save(tmp_path / "head.npz")).certificate
    assert (kept.kernel, kept.kernel.name) == (kernel, name)
    assert repr(kept) == repr(head.certificate)
    assert hf.certify(A, head, kernel=kernel).holds


def test_a_scale_that_is_a_power_of_two_saves_a_rounding():
    kernel = hf.Kernel.named("eager-bfloat16")
    steps = [kernel.logit_step(8.0, scale) for scale in (0.25, 0.3, None)]
    assert steps[0] == 2.0**-5 < steps[1] <= steps[2]
    limits = [kernel.logit_limit(0.04, scale) for scale in (0.25, None)]
    assert limits[0] > limits[1] > 0
    assert hf.Kernel.named("flash-bfloat16").logit_limit(0.04, None) is None


@pytest.mark.parametrize("scale", ["after", "before", "root"])
def test_operands_are_rounded_as_the_kernel_reads_them(scale):
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(2, 30, 4))
    kernel = hf.Kernel("float32", operands="bfloat16", scale=scale)
    factor = -0.37
    q_factor, k_factor = {
        "after": (1.0, 1.0), "before": (factor, 1.0),
        "root": (-math.sqrt(-factor), math.sqrt(-factor)),
    }[scale]  # fmt: skip

    def scaled(x, by):
        return round_to(round_to(x, "bfloat16") * np.float32(by), "bfloat16").astype(float)

    one, other = scaled(q, q_factor), scaled(k, k_factor)
    logits = (factor if scale == "after" else 1.0) * one @ other.T
    dense = np.eye(30)
    leak, _ = leak_and_distortion(dense, logits)
    found = hf.certify(dense, q, k, scale=factor, leak=0.5, kernel=kernel)
    np.testing.assert_allclose(found.row_leak, leak, rtol=2e-2)
    assert (found.row_leak >= leak).all()


def test_a_module_s_products_are_rounded_too():
    rng = np.random.default_rng(4)
    module = hf.SelfAttention(*rng.normal(size=(2, 8, 4)))
    X = rng.normal(size=(20, 8))
    q, k = (round_to(X @ w, "bfloat16").astype(float) for w in (module.W_Q, module.W_K))
    leak, _ = leak_and_distortion(np.eye(20), module.scale * q @ k.T)
    found = hf.certify(np.eye(20), module(X), leak=0.5, kernel="flash-bfloat16")
    assert found.basis == "module"
    assert (found.row_leak >= leak).all()
    plain = hf.certify(np.eye(20), module(X), leak=0.5)
    assert (found.row_leak > plain.row_leak).all()


def test_weights_are_part_of_the_statement_if_asked_for():
    # A weight of 2**-26 beside one of about 1 is none in float16.
    target = np.array([[1 - 2.0**-26, 2.0**-26, 0], [0, 1, 0], [0, 0, 1]])
    K = np.log(np.maximum(target, 1e-30)).T
    plain, weighed = (
        hf.certify(target, np.eye(3), K, scale=1.0, leak=0.5,
                   kernel=hf.Kernel.named("flash-float16", weights=w)) for w in (False, True)
    )  # fmt: skip
    assert plain.row_status[0] == 0 or plain.row_distortion[0] < 0.1
    assert weighed.row_status[0] == 2
    assert np.isinf(weighed.row_leak[0])


def test_a_plan_takes_back_one_demand_at_a_time():
    rounded = {"product": "bfloat16", "logits": "bfloat16", "bias": "bfloat16"}
    wide = hf.Kernel.named("eager-bfloat16").of_wide_head()
    assert wide == hf.Kernel("float32", **rounded)
    assert hf.Kernel.named("flash-float16").of_wide_head().is_exact
    # The weights are a demand of their own, which stays.
    weighed = hf.Kernel.named("flash-float16", weights=True).of_wide_head()
    assert weighed == hf.Kernel("float32", weights="float16")


def test_kernels_in_words_and_records():
    kernel = hf.Kernel.named("flex-float16", weights=True)
    assert repr(kernel) == "Kernel('flex-float16', weights=True)"
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert as_kernel(json.loads(json.dumps(kernel.to_dict()))).name == "flex-float16"
    fused = dataclasses.replace(hf.Kernel.named("eager-float16"), fused=True)
    assert (fused.name, fused.fused) == ("", True)
    assert str(fused).endswith("bias in float16, fused")
    assert hf.certify(A, hf.fit(A, 16, kernel=fused), kernel=fused).holds
    tensor = hf.Kernel(scale_dtype="bfloat16")
    assert (
        hf.certify(np.eye(3), 9 * np.eye(3), np.eye(3), scale=0.7, kernel=tensor).scale
        == 0.69921875
    )
    with pytest.raises(InputError, match="scale must not be 0 in float16"):
        hf.certify(np.eye(3), np.eye(3), np.eye(3), scale=1e-9, kernel={"scale_dtype": "float16"})
    for options, message in [
        ({"scale": "before"}, "operands must be a dtype where scale='before'"),
        ({"fused": True}, "fused must be False where no"),
        ({"sum_bits": 14}, "sum_bits must be 24 for accumulate="),
        ({"accumulate": "float32", "sum_bits": 25}, "sum_bits must lie in 2 ... 24; got 25"),
        ({"logits": "float64"}, "logits must be None, 'float32' or"),
    ]:
        with pytest.raises(InputError, match=message):
            hf.Kernel(**options)
    with pytest.raises(InputError, match="dtype must be bfloat16 or of 8 bits"):
        hf.fit(A, 8, dtype="float32", kernel="eager-bfloat16")
    with pytest.raises(InputError, match="Q and K do not fit float16"):
        hf.certify(np.eye(3), 1e6 * np.eye(3), np.eye(3), kernel="flash-float16")
    with pytest.raises(hf.errors.NonFiniteError):
        hf.certify(np.eye(3), np.nan * np.eye(3), np.eye(3), kernel="flash-float16")


def test_the_command_line_takes_kernels(tmp_path, capsys):
    pattern, head = tmp_path / "A.npz", tmp_path / "head.npz"
    assert cli.main(["pattern", "band", "32", "1", "-o", str(pattern)]) == 0
    options = "accumulate=float32,operands=bfloat16,logits=bfloat16"
    asked = ["fit", str(pattern), "--dim", "16", "--kernel", options, "-o", str(head)]
    assert cli.main(asked) == 0
    kernel = hf.load(head).certificate.kernel
    assert kernel == hf.Kernel("float32", operands="bfloat16", logits="bfloat16")
    capsys.readouterr()
    assert cli.main(["certify", str(pattern), str(head), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] == kernel.to_dict()
    cli.main(["certify", str(pattern), str(head), "--kernel", "eager-bfloat16"])
    assert "with the kernel eager-bfloat16" in capsys.readouterr().out
    assert cli.main(["certify", str(pattern), str(head), "--kernel", "eager"]) == 2
    assert "kernel must be" in capsys.readouterr().err


@pytest.mark.parametrize("bits", [23, 14, 9])
def test_sums_of_fewer_bits_stay_within_their_bounds(bits):
    kernel, rng = hf.Kernel("float32", sum_bits=bits), np.random.default_rng(bits)
    moved = 0.0
    for _ in range(60):
        d = int(rng.integers(1, 40))
        # Terms that cancel, so that what is truncated is large beside the sum.
        q, k = np.float32(rng.normal(size=(2, 6, d)) * rng.choice([1, 1, 30], size=(2, 6, d)))
        dense = np.where(rng.random((6, 6)) < 0.5, 0.5, 0) + np.eye(6)
        dense /= dense.sum(axis=1, keepdims=True)
        judged = hf.certify(dense, q, k, scale=1 / 64, leak=0.9, kernel=kernel)
        steps = [(step, down) for step in (4, 8, 32) for down in (False, True)]
        for step, down in steps:
            logits = truncated_dot(q, k, bits, step, down).astype(float) / 64
            leak, distortion = leak_and_distortion(dense, logits)
            assert (leak <= judged.row_leak).all()
            assert (distortion <= judged.row_distortion).all()
            moved = max(moved, np.abs(logits * 64 - q.astype(float) @ k.T.astype(float)).max())
    assert moved > 2.0 ** (5 - bits)  # the sums do lose bits
    exact = hf.certify(dense, q, k, scale=1 / 64, leak=0.9, kernel="float32")
    assert exact.leak < judged.leak
    assert str(kernel) == f"float32, sums of {bits} bits"


def test_fits_for_sums_of_fewer_bits():
    kernel = hf.Kernel("float32", sum_bits=14)
    pattern, asked = hf.patterns.band(48, 1), {"distortion": 0.3, "kernel": kernel}
    found = hf.fit(pattern, 6, **asked)
    assert not found.certificate.holds
    assert "truncating sums to 14 bits takes more" in found.advice
    assert "a smaller max_logit" in found.advice
    assert hf.fit(pattern, 6, **asked, max_logit=8).certificate.holds
    # What is asked of a head in float32 keeps the sums.
    narrow = hf.Kernel("float32", operands="bfloat16", sum_bits=14)
    assert narrow.of_wide_head() == kernel
    assert json.dumps(hf.Kernel("float32", sum_bits=np.int64(14)).to_dict())


def test_what_may_overflow_in_float32_is_never_certified():
    q, bias = np.eye(2), np.diag([1e39, 1e39])
    capped = hf.Attention(1e30 * q, 1e30 * q, scale=1.0, softcap=5.0)
    for head in (hf.Attention(q, q, bias=bias), capped, hf.Attention(q, q, softcap=1e-46)):
        assert not hf.certify(np.eye(2), head, leak=0.9, kernel="float32").holds
    with pytest.raises(InputError, match=r"bias must fit bfloat16; got numbers up to 1e\+39"):
        hf.certify(np.eye(2), hf.Attention(q, q, bias=bias), kernel="flash-bfloat16")
    scaled = hf.Kernel("float32", operands="bfloat16", scale="before")
    for scale in (1e-46, 1e39):
        with pytest.raises(InputError, match="scale must be a normal number of float32"):
            hf.certify(np.eye(2), q, q, scale=scale, kernel=scaled)
    with pytest.raises(InputError, match="weights must be None for accumulate"):
        hf.Kernel(weights="float16")


def test_numbers_on_either_side_of_a_tie_are_both_covered():
    q = np.array([[1 + 2.0**-11 + 2.0**-40]])  # 1 by way of float32, 1 + 2**-10 at once
    found = hf.certify([[1.0]], q, [[1024.0]], scale=1.0, kernel="flash-float16")
    assert found.max_logit >= 1025
    exact = hf.certify([[1.0]], q, [[1024.0]], scale=1.0, kernel={"operands": "float16"})
    assert 1025 <= exact.max_logit < 1025.001


def test_the_scale_that_a_kernel_cannot_hold_is_not_blamed_on_queries():
    kernel = hf.Kernel(accumulate="float32", scale_dtype="float16")
    with pytest.raises(InputError, match=r"scale must fit float16; got numbers up to 1e\+05"):
        hf.certify(np.eye(2), 9 * np.eye(2), np.eye(2), scale=1e5, kernel=kernel)


def test_filters_where_logits_are_rounded():
    pattern, options = hf.patterns.band(64, 4), {"method": "toeplitz", "kernel": "eager-bfloat16"}
    found = hf.fit(pattern, 16, **options)
    assert found.certificate.holds
    assert found.certificate.max_logit <= 8
    # Where a bound on the logits leaves too little room for a filter, there is none.
    assert not hf.fit(pattern, 24, max_logit=8.0, **options).certificate.holds


def test_limits_beyond_what_a_kernel_rounds_to_have_an_answer():
    A = hf.patterns.band(16, 1)
    for limit in (30, 1e308):  # of which the kernel leaves no room for more than it allows
        found = hf.fit(A, 16, kernel="eager-bfloat16", max_logit=limit)
        assert found.certificate.holds
        assert found.certificate.max_logit <= 8
    for dim in (6, 16):  # a bound with room is kept as it is given, though the kernel prefers less
        kept = hf.fit(A, dim, kernel="eager-bfloat16", max_logit=8.0)
        assert kept.certificate.holds
    at_most = hf.fit(A, 16, kernel="eager-bfloat16", max_logit=3.0).certificate
    assert at_most.holds
    assert at_most.max_logit <= 3
    for scale in (1e-308, 5e-324):
        with pytest.raises(InputError, match="fit bfloat16"):
            hf.fit(A, 4, kernel="eager-bfloat16", scale=scale)
    for scale in (None, 1e10, 1e30):
        found = hf.fit(A, 4, kernel="eager-bfloat16", distortion=5e-324, scale=scale)
        assert not found.certificate.holds
