"""Certificates that once lied, each as it was found, with what must come out."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from tests.adversarial.flushing import can_flush, flushing, is_flushing

import headfit as hf
from headfit.errors import HeadfitError, InputError, NonFiniteError

HALVES = np.full((2, 2), 0.5)
needs_flushing = pytest.mark.skipif(not can_flush(), reason="flushing cannot be turned on here")


def never_holds(*args, **keywords) -> None:
    """Check that the certificate does not hold; an error for numbers that overflow is fine too."""
    for mass in (True, False):
        try:
            c = hf.certify(*args, certificate_mass=mass, **keywords)
        except NonFiniteError:
            continue
        assert not c.holds
        assert (c.row_status != 0).any()


# Overflow of the products on the support ---------------------------------------------------


def test_products_that_overflow_on_the_support():
    Q, K = np.full((2, 4), 1e154), np.full((2, 4), 0.6e154)
    K[1] *= 1.2
    never_holds(np.eye(2), Q, K)


def test_products_that_overflow_before_a_tiny_scale():
    Q = np.full((2, 2), 2.0**700)
    K = 2.0**400 * np.array([[1 + 3 * 2**-52, -1], [1, -1 - 3 * 2**-52]])
    never_holds(HALVES, Q, K, scale=2.0**-1022)


# Logits rounded to a format that cannot hold them ------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_beyond_float16(dtype):
    Q = np.diag([300.0, 300]).astype(dtype)
    never_holds(np.eye(2), Q, Q, scale=1.0, kernel=hf.Kernel(logits="float16"))


def test_logits_of_float64_beyond_bfloat16_and_float32():
    Q = np.diag([2.0**64, 2.0**64])
    for name in ("bfloat16", "float32"):
        never_holds(np.eye(2), Q, Q, scale=1.0, kernel=hf.Kernel(logits=name))


@pytest.mark.parametrize(("logit", "fits"), [(65519.0, True), (65520.0, False)])
def test_the_last_logit_that_float16_holds(logit, fits):
    Q, K = np.array([[1.0], [1.0]], np.float32), np.array([[logit], [0]], np.float32)
    target = [[1.0, 0], [1.0, 0]]
    if fits:
        assert hf.certify(target, Q, K, scale=1.0, kernel=hf.Kernel(logits="float16")).holds
    else:
        never_holds(target, Q, K, scale=1.0, kernel=hf.Kernel(logits="float16"))


# Modules -----------------------------------------------------------------------------------


def test_module_whose_norms_overflow_and_products_underflow():
    W = np.diag([1e280, 1e280])
    X = np.array([[1e-290, 1e-290], [2e-290, 5e-290]])
    try:
        attention = hf.SelfAttention(W[:, :1], W[:, 1:], scale=1e20)(X)
    except HeadfitError:
        return
    never_holds(HALVES, attention)


def test_module_whose_products_cancel_where_norms_underflow():
    # The squares of X underflow. The terms of X W_Q cancel, with an error of half of its value.
    u, v = 1.041, 1.017
    X = 2.0**-545 * np.array([[u, v], [2 * u, -v]])
    W_Q = 2.0**500 * np.array([[v * (1 + 2.0**-52)], [-u]])
    W_K = 2.0**500 * np.array([[1.0], [0.25]])
    attention = hf.SelfAttention(W_Q, W_K, scale=2.0**142)(X)
    c = hf.certify(HALVES, attention, distortion=0.6)
    assert c.row_status[0] != 0
    assert c.row_distortion[0] > 0.7407


# Flushing ----------------------------------------------------------------------------------


@needs_flushing
@pytest.mark.parametrize("threads", [1, 2])
def test_queries_that_flushing_takes_for_zero(threads):
    Q = np.full((2, 1), 1.1e-38, np.float32)
    K = np.array([[3e38], [-3e38]], np.float32)
    with flushing():
        c = hf.certify(HALVES, Q, K, scale=1.0, num_threads=threads)
    assert c.status == "fails"
    assert c.distortion > 700
    assert c.q_norm > 1e-38


@needs_flushing
def test_the_smallest_weights_are_kept_under_flushing():
    A = np.array([[1.0, 2.0**-1074], [0, 1.0]])
    K = np.array([[0.0], [0.0]])
    with flushing():
        c = hf.certify(A, np.ones((2, 1)), K, scale=1.0)
    assert c.status == "fails"
    assert not c.row_distortion[0] < 1e300


@needs_flushing
@pytest.mark.parametrize("mass", [True, False])
def test_flushing_is_left_as_found(mass):
    Q = np.ones((3, 2), np.float32)
    hf.certify(np.eye(3), Q, Q, certificate_mass=mass)
    assert not is_flushing()
    with flushing():
        target = hf.Target(np.eye(3))
        assert is_flushing()
        attention = hf.Attention(Q, Q)
        assert is_flushing()
        hf.certify(target, attention, certificate_mass=mass)
        assert is_flushing()
        hf.SelfAttention(np.eye(2), np.eye(2))(np.ones((3, 2)))
        assert is_flushing()
        hf.certify(np.eye(3), matrix=np.eye(3, dtype=np.float32))
        assert is_flushing()
    assert not is_flushing()


def test_torch_flushing_is_left_as_found():
    torch = pytest.importorskip("torch")
    Q = np.full((2, 1), 1.1e-38, np.float32)
    K = np.array([[3e38], [-3e38]], np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine does not flush")
    try:
        c = hf.certify(HALVES, Q, K, scale=1.0)
        assert is_flushing()
    finally:
        torch.set_flush_denormal(False)
    assert c.status == "fails"


# Accumulation in float32 -------------------------------------------------------------------


def test_scale_after_products_that_underflow():
    # PyTorch's (q @ k.T) * s gives 4.8e-7.
    Q = np.full((2, 1), 2.0**-75, np.float32)
    K = (2.0**-75 * np.array([[0.99], [1.01]])).astype(np.float32)
    c = hf.certify(HALVES, Q, K, scale=3.4e38, distortion=1e-7, kernel="float32")
    assert not c.holds
    assert c.distortion >= 4.7e-7


def test_scale_that_overflows_float32_beside_tiny_numbers():
    # In float32 the scale itself is infinite; exact products are moderate.
    Q = np.full((2, 1), 2.0**-70, np.float32)
    with pytest.raises(InputError, match="scale must be finite"):
        hf.certify(HALVES, Q, Q, scale=2.0**140, kernel="float32")


def test_products_that_overflow_float32_before_the_scale():
    Q = np.full((2, 1), 2.0**70, np.float32)
    with pytest.raises(InputError, match="a normal number of the arrays' dtype"):
        hf.certify(HALVES, Q, Q, scale=2.0**-140, kernel="float32")


# A target's own mask -----------------------------------------------------------------------

MASK = np.array([[False, False], [True, True]])


@pytest.mark.parametrize("other", [None, "causal", ("window", 1), np.ones((2, 2), bool)])
def test_masks_of_target_and_attention_must_agree(other):
    target = hf.Target([[0, 0], [0.5, 0.5]], mask=MASK)
    Q = np.zeros((2, 1))
    with pytest.raises(InputError, match="mask"):
        hf.certify(target, hf.Attention(Q, Q, mask=other))


@pytest.mark.parametrize("own", ["causal", ("window", (1, 0)), np.tri(2, dtype=bool)])
@pytest.mark.parametrize("other", [None, ("window", 1), np.ones((2, 2), bool)])
def test_masks_that_differ_are_refused_where_both_would_do(own, other):
    Q = np.zeros((2, 1))
    with pytest.raises(InputError, match="mask"):
        hf.certify(hf.Target(np.eye(2), mask=own), hf.Attention(Q, Q, mask=other))


def test_equal_masks_agree():
    target = hf.Target([[0, 0], [0.5, 0.5]], mask=MASK)
    Q = np.zeros((2, 1))
    assert hf.certify(target, hf.Attention(Q, Q, mask=MASK.copy())).holds
    assert hf.certify(target, Q, Q).holds


# Undecided where failure is proved ---------------------------------------------------------


@pytest.mark.parametrize("size", [709.0, 710.0, 1000.0, 1e6, 1e300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mass", [True, False])
def test_leaks_beyond_the_largest_float_fail(size, dtype, mass):
    if dtype == np.float32 and size > 1e38:
        size = 1e30
    Q, K = size * np.eye(2, dtype=dtype), np.eye(2, dtype=dtype)[::-1].copy()
    c = hf.certify(np.eye(2), Q, K, scale=1.0, certificate_mass=mass)
    assert c.status == "fails"
    assert (c.row_status == 1).all()


def test_distortions_beyond_the_largest_float_fail():
    Q, K = np.array([[1.0], [1.0]]), np.array([[2000.0], [0.0]])
    c = hf.certify(HALVES, Q, K, scale=1.0)
    assert c.status == "fails"


# Bad numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("flush", [False, pytest.param(True, marks=needs_flushing)])
def test_nan_and_infinity_are_refused_wherever_they_stand(bad, dtype, flush):
    for which in range(2):
        for row in range(3):
            for column in range(2):
                arrays = [np.ones((3, 2), dtype), np.ones((3, 2), dtype)]
                arrays[which][row, column] = bad
                for mass in (True, False):
                    with flushing(flush), pytest.raises(NonFiniteError):
                        hf.certify(np.full((3, 3), 1 / 3), *arrays, certificate_mass=mass)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-30])
def test_matrices_hold_finite_numbers_of_zero_or_more(bad):
    for row in range(2):
        for column in range(2):
            M = np.full((2, 2), 0.5)
            M[row, column] = bad
            with pytest.raises(NonFiniteError):
                hf.certify(HALVES, matrix=M)


def test_overflow_where_a_bias_forbids():
    # The forbidden products are infinite in float16, and infinity minus infinity is NaN.
    K = np.array([[0.1, 300.0], [300.0, 0.1]])
    bias = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    head = hf.Attention(300 * np.eye(2), K, scale=0.5, bias=bias)
    never_holds(np.eye(2), head, kernel="eager-float16")
    assert hf.certify(np.eye(2), head).holds


def test_a_bias_of_zero_rounds_the_sum_too():
    kernel = hf.Kernel("float32", bias="bfloat16")
    Q, K = np.eye(2), np.array([[200.6, 200.4], [200.6, 200.4]]).T
    head = hf.Attention(Q, K, scale=1.0, bias=np.zeros((2, 2)))
    found = hf.certify(np.full((2, 2), 0.5), head, distortion=1.0, kernel=kernel)
    assert found.row_distortion[0] >= math.exp(1) - 1


# Numbers that are rounded twice on the way to 16 bits ---------------------------------------


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-9), ("bfloat16", 2.0**-6)])
def test_a_bias_of_float64_may_be_rounded_by_way_of_float32(dtype, unit):
    low = (math.floor(2.99 / unit / 2) * 2 + 1) * unit  # an odd multiple: ties go up, to the even
    bias = np.array([[low + unit / 2 - 2.0**-40, 0.0]] * 2)
    zeros = np.zeros((2, 1), np.float32)
    given = np.array([[1.0, 0], [1, 0]])
    leak = math.exp(-low - unit / 2)  # between those of both numbers
    head = hf.Attention(zeros, zeros, scale=1.0, bias=bias)
    with pytest.raises(
        InputError, match=f"bias must be in float32, or the same in {dtype} at once"
    ):
        hf.certify(given, head, leak=leak, kernel=f"flash-{dtype}")
    for rounded in (low, low + unit):
        one_way = hf.Attention(zeros, zeros, scale=1.0, bias=np.where(bias > 0, rounded, 0))
        found = hf.certify(given, one_way, leak=leak, kernel=f"flash-{dtype}")
        assert found.holds == (rounded > low)


def test_a_scale_may_be_rounded_by_way_of_float32():
    scale, kernel = 1 + 2.0**-11 + 2.0**-40, hf.Kernel("float32", scale_dtype="float16")
    with pytest.raises(
        InputError, match="scale must be in float32, or the same in float16 at once"
    ):
        hf.certify(HALVES, np.zeros((2, 1)), np.zeros((2, 1)), scale=scale, kernel=kernel)
    exact = hf.Kernel(scale_dtype="float16")  # no float32 anywhere: the neighbour above
    found = hf.certify(HALVES, np.zeros((2, 1)), np.zeros((2, 1)), scale=scale, kernel=exact)
    assert found.scale == 1 + 2.0**-10


@pytest.mark.parametrize("way", ["before", "root"])
def test_a_product_with_the_scale_is_not_rounded_to_a_tie_first(way):
    # 3 times the factor lies just below a tie of bfloat16; in float64 it is the tie, and goes up.
    tie = 1 + 3 / 256
    factor = tie / 3
    scale, key = (factor, 2.96875) if way == "before" else (factor * factor, 8.8)
    exact = Fraction(scale) if way == "before" else Fraction(scale) * 3  # below, squared
    assert exact * 3 < Fraction(tie) ** (1 if way == "before" else 2)
    assert (scale if way == "before" else math.sqrt(scale)) * 3 == tie
    of_key = key if way == "before" else round(key * factor * 64) / 64
    least = math.exp(-(1 + 1 / 128) * of_key)  # the leak of a kernel that rounds once
    head = hf.Attention(np.full((2, 1), 3, "f"), np.array([[key], [0]], "f"), scale=scale)
    kernel = hf.Kernel(operands="bfloat16", scale=way)
    found = hf.certify([[1.0, 0], [1, 0]], head, leak=0.9, kernel=kernel)
    assert found.row_leak.min() >= least * (1 - 1e-12)
    assert found.row_leak.max() <= least * 1.05


# Bounds of norms ---------------------------------------------------------------------------


def test_norms_are_those_of_the_exact_products_of_a_module():
    X, W = np.array([[1, 2.0**-30]] * 2, "f"), np.ones((2, 1), "f")
    found = hf.certify(HALVES, hf.SelfAttention(W, W, scale=1.0)(X))
    exact = 1 + Fraction(1, 2**30)
    assert exact <= min(Fraction(found.q_norm), Fraction(found.k_norm))
    assert exact**2 <= Fraction(found.max_norm)


@pytest.mark.parametrize(
    ("q", "scale", "kernel", "most"),
    [
        (1 + 2.0**-8 + 2.0**-40, 1.0, "flash-bfloat16", 1 + 2.0**-7),
        (3.0, (1 + 3 / 256) / 3, {"accumulate": "float32", "scale": "before"}, 1 + 2.0**-6),
    ],
)
def test_norms_are_those_of_either_neighbour_of_a_tie(q, scale, kernel, most):
    options = kernel if isinstance(kernel, str) else {"operands": "bfloat16", **kernel}
    row, one = np.full((2, 1), q), np.ones((2, 1))
    for rows in ((row, one), (one, row)) if scale == 1 else ((row, one),):
        found = hf.certify(HALVES, *rows, scale=scale, kernel=options)
        assert max(found.q_norm, found.k_norm) >= most
        assert found.max_norm >= found.max_logit * (1 - 1e-5)


def test_a_product_of_norms_does_not_underflow_on_the_way():
    tiny, huge = np.full((2, 1), 1e-200), np.full((2, 1), 1e300)
    found = hf.certify(HALVES, tiny, huge, scale=1e-200)
    assert Fraction(1e-200) ** 2 * Fraction(1e300) <= Fraction(found.max_norm) < 2e-100


def test_texts_round_bounds_up():
    found = hf.certify(HALVES, [[1.0], [1.0]], [[12.3449], [12.3449]], scale=1.0)
    assert "|logit| up to 12.35," in repr(found)


# Integers that no float holds ---------------------------------------------------------------


@pytest.mark.parametrize("big", [2**55 + 2**31 + 1, -(2**53) - 1])
def test_integers_beyond_float64_are_refused(big):
    with pytest.raises(InputError, match=r"K must hold integers up to 2\*\*53"):
        hf.certify(HALVES, np.ones((2, 1)), np.array([[big], [2**40]]), scale=2.0**-40)
    held = np.array([[2**53], [-(2**53)]])
    assert hf.Attention(np.ones((2, 1)), held).K.dtype == np.float64


# Proofs that nothing exists, beside a head that does ----------------------------------------


# What products of a format lose, times the scale, is no less than a logit.
IN_FLOAT16 = (np.float16, 2.0**-11, 2.0**-11, 2.0**22, "float16", "eager-float16")
IN_FLOAT32 = (np.float64, 2.0**-73, 2.0**-74, 2.0**147, "float64",
              hf.Kernel(product="float32", logits="float16"))  # fmt: skip


@pytest.mark.parametrize("given", [IN_FLOAT16, IN_FLOAT32])
def test_subnormal_products_that_a_large_scale_multiplies(given):
    rounded, *units, scale, dtype, kernel = given
    rows = [[0], [0, 1], [0, 1, 2], [3, 4], [4]]
    A = np.zeros((5, 5))
    for row, columns in enumerate(rows):
        A[row, columns] = 1 / len(columns)
    q, k = ([1.64, 1.873, 1.873, -1.873, -1.64], [1, 0.4672, 0, -0.4672, -1])
    Q, K = (rounded(np.outer(x, unit)) for x, unit in zip((q, k), units, strict=True))
    asked = {"leak": float(np.exp(-1)) * 1.001, "distortion": 6.0, "max_logit": 1.75,
             "kernel": kernel, "scale": scale}  # fmt: skip
    assert hf.certify(A, Q, K, **asked).holds  # of size 1
    found = hf.fit(A, 1, dtype=dtype, **asked)
    assert found.stopped != "infeasible"
    assert found.lower_bound is None or found.lower_bound.dim <= 1


def test_bounded_logits_do_not_bound_norms():
    keys = np.array([[1, 0], [-1, 0], [0, 100.0]])
    Q = np.array([[1.5, -0.015], [-1.5, -0.015], [0, 0.031]])
    asked = {"leak": 0.05, "distortion": 0.1, "max_logit": 3.2, "scale": 1.0}
    assert hf.certify(np.eye(3), Q, keys, **asked).holds
    found = hf.fit(np.eye(3), 2, method=hf.methods.MaxMargin(keys), dtype="float64", **asked)
    assert found.witnesses
    assert found.stopped == "stalled"


TWO, MIDDLE = [0.5, 0.5, 0], [0, 1.0, 0]
IN_LINE = [[1, 1, 1], [1, 0, 1], [1, -1, 1]]
NEARLY = [[-1, 0], [0, 1e-13], [1, 0]]
ROOT = hf.Kernel(accumulate="float32", operands="bfloat16", scale="root")


@pytest.mark.parametrize(
    ("row", "query", "keys", "dtype", "options", "asked"),
    [
        (TWO, [600, 1.5, -1], IN_LINE, "bfloat16", {}, {"kernel": "eager-bfloat16"}),
        (TWO, [2**26, 1, -1.5], IN_LINE, "float64", {}, {"kernel": hf.Kernel(logits="float32")}),
        (TWO, [2**26, 1, -1.5], IN_LINE, "float64", {}, {"kernel": hf.Kernel(product="float32")}),
        # Keys that are in a line, but not where the root of the scale is multiplied in.
        (MIDDLE, [140, -140], [[9, 5], [11, 7], [13, 9]], "bfloat16", {},
         {"kernel": ROOT, "scale": 1.3}),
        # Queries whose norm is enormous, but not infinite.
        (MIDDLE, [0, 3.3e13], NEARLY, "float64", {}, {}),
        (MIDDLE, [0, 3.3e13], NEARLY, "float64", {"max_norm": 1e14}, {}),
        # The log-ratios alone are not met exactly.
        (TWO, [0.09], [[0], [1], [-5]], "float64", {"form": "equality"}, {"leak": 0.9}),
    ],
)  # fmt: skip
def test_queries_for_keys_that_max_margin_finds_none_for(row, query, keys, dtype, options, asked):
    wide = np.float64 if dtype == "float64" else np.float32
    A, Q, K = np.array([row] * 3), np.array([query] * 3, wide), np.array(keys, wide)
    asked = {"scale": 1.0, **asked}
    assert hf.certify(A, Q, K, **asked).holds
    method = hf.methods.MaxMargin(K, **options)
    assert hf.fit(A, len(query), method=method, dtype=dtype, **asked).stopped == "stalled"


def test_a_key_between_others_is_proved_to_have_no_query():
    # With `max_norm` too; where the residual of the witness is exactly 0, and where it is not.
    for keys in ([[0.0], [1], [-1]], np.random.default_rng(0).normal(size=(19, 3))):
        for options in ({}, {"max_norm": 1e3}):
            method, A = hf.methods.MaxMargin(keys, **options), np.eye(len(keys))
            found = hf.fit(A, method=method, dtype="float64")
            assert found.stopped == "infeasible"
            norms = [w.verify(A, found.K) for w in found.witnesses if w.kind == "farkas"]
            assert math.isinf(max(norms)) == (len(keys) == 3)


def test_logits_that_a_leak_near_one_needs():
    leak, most = 1 - 3 * 2.0**-53, 1.7 * 2.0**-53
    with mpmath.workprec(200):
        assert mpmath.exp(-2 * mpmath.mpf(most)) <= leak  # of logits +-most
    found = hf.plan(np.eye(2), dim=1, leak=leak, max_logit=most, dtype="float64", time_limit=1)
    assert found.verdict != "no"
    assert found.least_logit <= most


def test_rounded_weights_that_vanish_leak_nothing():
    # Weights of float16 are exactly 0 off the support with logits of +-9.5.
    kernel = hf.Kernel.named("flash-float16", weights=True)
    asked = {"leak": 1e-9, "max_logit": 10.0, "kernel": kernel}
    found = hf.plan(np.eye(4), dim=4, time_limit=1, **asked)
    assert found.verdict != "no"
    assert found.lower_bound is None or found.lower_bound.dim <= 4
    bound = hf.fit(np.eye(4), 4, time_limit=1, **asked).lower_bound
    assert bound is None or bound.dim <= 4
    # The first and the last key are 1 apart, and the two of the support nearly equal.
    keys, A = np.float16([[0.0], [0.005], [-1.0]]).astype("f"), np.array([TWO] * 3)
    asked = {"leak": 1e-9, "kernel": kernel, "scale": 1.0, "dtype": "float16"}
    assert hf.fit(A, 1, method=hf.methods.MaxMargin(keys), **asked).stopped == "stalled"


def test_best_keys_of_an_index_whose_weights_underflow():
    rng = np.random.default_rng(0)
    Q, K = 200 * rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    head = hf.Attention(Q.astype("f"), K.astype("f"), scale=1.0, mask="causal")
    passages = [hf.Attention(*rng.normal(size=(2, 40, 1)), mask="causal") for _ in range(4)]
    found = hf.index(passages, dim=1, keys=5, window=1, first=1, effort=0)
    rows = [np.sort(weights[1:row]) for row, weights in enumerate(head.matrix())]
    assert min(weights[-3] for weights in rows[5:]) == 0  # one of the best three
    assert found.limits(head, time_limit=1).lower_bound.dim == 1  # as the head itself has
