"""Heads whose Q and K are stored in 8 bits."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import headfit as hf
from headfit._base.arrays import FLOAT8, round_to
from headfit.errors import InputError

NAMES = sorted(FLOAT8)
A = hf.patterns.random_regular(48, 2, gamma=2.0, rng=0)
LOOSE = {"leak": 0.3, "distortion": 1.0, "num_threads": 1}


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("method", ["learned", "max-margin"])
def test_a_head_of_8_bits_is_certified(dtype, method):
    head = hf.fit(A, 32, dtype=dtype, method=method, **LOOSE)
    assert head.certificate.holds, head
    assert head.certificate.kernel == hf.Kernel.named("float32")
    assert (head.dtype, head.Q.dtype) == (dtype, np.float32)
    for x in (head.Q, head.K):
        np.testing.assert_array_equal(round_to(x, dtype), x)
    again = hf.certify(A, head, leak=0.3, distortion=1.0, kernel="float32")
    assert again.holds
    # An oracle in float64: these numbers and products are exact in it.
    S = head.scale * head.Q.astype(np.float64) @ head.K.T.astype(np.float64)
    on = A.toarray() > 0
    gap = np.where(on, S, np.inf).min(axis=1) - np.where(on, -np.inf, S).max(axis=1)
    assert (gap >= -np.log(0.3)).all()


def test_more_bits_hold_tighter_tolerances():
    head = hf.fit(A, 40, dtype="float8_e4m3fn", leak=0.05, distortion=0.25, num_threads=1)
    assert head.certificate.holds, head


@pytest.mark.parametrize("dtype", NAMES)
def test_no_size_is_a_hindrance(dtype):
    # Queries are stored divided by 1 / sqrt(dim). As a float32 it is too small for 20 and 23.
    B = hf.patterns.random_regular(256, 4, gamma=2.0, rng=0)
    for dim in (18, 20, 22, 23):
        left = iter(range(400))

        def count(*_: float, left: Iterator[int] = left) -> bool:
            return next(left, None) is not None

        method = hf.methods.Learned(max_norm=24.0, callback=count)
        head = hf.fit(B, dim, method=method, dtype=dtype, rng=0, num_threads=1)
        assert head.certificate.holds, dim
        assert head.certificate.max_norm <= 24.0


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_it_is_saved_with_its_dtype(dtype, suffix, tmp_path):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    head = hf.fit(A, 32, dtype=dtype, **LOOSE)
    kept = hf.load(head.save(tmp_path / f"head{suffix}"))
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept.Q, head.Q)
    np.testing.assert_array_equal(kept.K, head.K)
    assert kept.certificate.holds == head.certificate.holds
    if suffix == ".safetensors":
        torch = pytest.importorskip("torch")
        load = pytest.importorskip("safetensors.torch").load_file
        tensor = load(tmp_path / "head.safetensors")["Q"]
        assert tensor.dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(tensor.to(torch.float32).numpy(), head.Q)


@pytest.mark.parametrize("dtype", NAMES)
def test_exempt_columns(dtype):
    B = hf.patterns.window_global(48, 2, 1)
    head = hf.fit(B, 34, dtype=dtype, mask="causal", exempt_columns=[0], **LOOSE)
    for x in (head.Q, head.K):
        np.testing.assert_array_equal(round_to(x, dtype), x)
    assert head.certificate.status in ("holds", "fails")


def test_ml_dtypes_names_it():
    for dtype in (ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e5m2)):
        assert hf.fit(A, 32, dtype=dtype, **LOOSE).dtype in NAMES


def test_a_plan_in_8_bits():
    plan = hf.plan(A, dim=32, dtype="float8_e4m3fn", time_limit=5, **LOOSE)
    assert plan.verdict == "yes"
    assert "float8_e4m3fn" in str(plan)


@pytest.mark.parametrize("method", ["learned", "max-margin", "projection"])
@pytest.mark.parametrize(("dtype", "scale"), [("float8_e4m3fn", 1e-4), ("float16", 1e-7)])
def test_numbers_that_do_not_fit_are_named(dtype, scale, method):
    with pytest.raises(InputError, match=f"(must|do not) fit {dtype}"):
        hf.fit(A, 32, dtype=dtype, scale=scale, method=method, **LOOSE)


def test_other_functions_do_not_take_it():
    with pytest.raises(InputError, match="dtype must be one of"):
        hf.shrink(hf.Attention(np.eye(4), np.eye(4)), dim=2, dtype="float8_e4m3fn")
    with pytest.raises(InputError, match="dtype must be one of"):
        hf.fit(A, 8, dtype="float8")
