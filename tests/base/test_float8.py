"""The formats of 8 bits, held against their definitions and PyTorch."""

import ml_dtypes
import numpy as np
import pytest

import headfit as hf
from headfit._base.arrays import as_array, as_float_array, round_to
from headfit.errors import InputError, NonFiniteError

# Significant bits, and the exponent of the smallest normal number.
LAYOUTS = {"float8_e4m3fn": (4, -6), "float8_e5m2": (3, -14)}
NAMES = sorted(LAYOUTS)
CODES = np.arange(256, dtype=np.uint8)


def finite(name):
    numbers = CODES.view(getattr(ml_dtypes, name)).astype(np.float64)
    return numbers[np.isfinite(numbers)]


@pytest.mark.parametrize("name", NAMES)
def test_every_code_is_that_of_ml_dtypes(name):
    theirs = CODES.view(getattr(ml_dtypes, name))
    expected = theirs.astype(np.float32)
    np.testing.assert_array_equal(as_array(theirs, "Q"), expected)
    np.testing.assert_array_equal(as_float_array(theirs.reshape(16, 16), "Q").ravel(), expected)
    assert as_array(theirs, "Q").dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_every_code_is_that_of_torch(name):
    torch = pytest.importorskip("torch")
    theirs = torch.from_numpy(CODES.copy()).view(getattr(torch, name))
    np.testing.assert_array_equal(as_array(theirs, "Q"), theirs.to(torch.float32).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_rounding_is_to_the_nearest_and_ties_to_even(name):
    rng = np.random.default_rng(0)
    numbers = np.unique(finite(name))
    ties = (numbers[1:] + numbers[:-1]) / 2
    beside = [np.nextafter(np.float32(t), np.float32(s)) for t in ties for s in (-np.inf, np.inf)]
    size = numbers.max()
    x = np.concatenate([ties, beside, rng.uniform(-size, size, 2000), rng.normal(size=2000)])
    x = x.astype(np.float32).astype(np.float64)
    digits, least = LAYOUTS[name]
    unit = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, least) - digits + 1)
    expected = np.rint(x / unit) * unit
    np.testing.assert_array_equal(round_to(x, name), expected)
    np.testing.assert_array_equal(np.signbit(round_to(x, name)), np.signbit(expected))
    np.testing.assert_array_equal(round_to(numbers, name), numbers)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_beyond_the_largest_are_refused(name):
    largest = finite(name).max()
    assert round_to(np.array([largest * 1.01]), name)[0] == largest
    for x in (largest * 1.2, -largest * 1.2, np.inf, np.nan):
        with pytest.raises(InputError, match=f"must fit {name}"):
            round_to(np.array([x]), name)


def test_arrays_of_8_bits_are_read():
    Q = (8 * np.eye(3, dtype=np.float32)).astype(ml_dtypes.float8_e4m3fn)
    K = np.eye(3, dtype=np.float32).astype(ml_dtypes.float8_e5m2)
    assert hf.certify(np.eye(3), Q, K, scale=1.0, kernel="float32").holds
    np.testing.assert_array_equal(hf.Attention(Q, K, scale=1.0).logits(), 8 * np.eye(3))
    Q[0, 0] = np.nan
    with pytest.raises(NonFiniteError):
        hf.certify(np.eye(3), Q, K, scale=1.0)
