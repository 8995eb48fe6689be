"""The common checks of arguments, and the names that `dir` lists for public modules."""

from __future__ import annotations

import fractions
import importlib
import os
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit._base import arguments
from headfit._base.arguments import as_count, check_between
from headfit._base.arrays import (
    BFLOAT16,
    as_array,
    as_contiguous,
    as_float_dtype,
    as_items,
    as_matrix,
    as_stack,
)
from headfit.errors import InputError


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        np.float32(0.5),
        np.array(0.5),
        fractions.Fraction(1, 2),
        Decimal("0.5"),
        np.float16(0.5),
    ],
)
def test_numbers(value: Any) -> None:
    assert arguments.as_number(value, "x") == 0.5
    assert check_between(value, "x", 0, 1) == 0.5
    assert arguments.as_finite(value, "x", 0.5) == 0.5


@pytest.mark.parametrize(
    "value",
    [
        "x",
        "",
        b"1",
        True,
        np.True_,
        [0.5],
        np.array([0.5]),
        1j,
        None,
        NoText(),
        object,
        np.array("a"),
        "0.5",
        np.str_("0.5"),
        b"0.5",
        memoryview(b"1"),
        0.5 + 0j,
        np.complex128(0.5),
        np.array(0.5 + 1j),
        np.array(0.5, object),
        np.timedelta64(1, "ns"),
    ],
)
def test_no_numbers(value: Any) -> None:
    with pytest.raises(InputError, match="x must be a number; got"):
        arguments.as_number(value, "x")
    with pytest.raises(InputError, match=r"^x must"):
        check_between(value, "x", 0, 1)


def test_integers_beyond_all_floats() -> None:
    assert arguments.as_number(10**400, "x") == np.inf
    assert arguments.as_number(-(10**400), "x") == -np.inf
    with pytest.raises(InputError, match=r"x must be finite and at least 0; got 1000.*\(int\)"):
        arguments.as_finite(10**400, "x", 0)


@pytest.mark.parametrize(
    "value", [1.0, "1", None, True, np.True_, [1], 2**70, -(2**70), NoText(), 1j]
)
def test_no_counts(value: Any) -> None:
    with pytest.raises(InputError, match=r"^x must"):
        as_count(value, "x", 1)
    with pytest.raises(InputError, match=r"^x must (be an integer|lie) in 1 \.\.\. 6; got"):
        as_count(value, "x", 1, 6)


@pytest.mark.parametrize("value", [0, 1, "True", None, [], np.array([True]), NoText()])
def test_no_flags(value: Any) -> None:
    assert arguments.as_flag(np.True_, "x") is True
    with pytest.raises(InputError, match="x must be True or False; got"):
        arguments.as_flag(value, "x")


@pytest.mark.parametrize("value", ["c", None, 5, np.array(["a", "b"]), ["a"], NoText()])
def test_no_choices(value: Any) -> None:
    assert arguments.as_choice("a", "x", ("a", "b")) == "a"
    with pytest.raises(InputError, match="x must be 'a' or 'b'; got"):
        arguments.as_choice(value, "x", ("a", "b"))


@pytest.mark.parametrize("value", ["s", -1, 1.5, True, {}, NoText(), [-1], "8", ["8"], [True]])
def test_no_seeds(value: Any) -> None:
    with pytest.raises(InputError, match="rng must be a seed or a Generator; got"):
        arguments.as_generator(value)


def test_seeds() -> None:
    generator = np.random.default_rng(3)
    assert arguments.as_generator(generator) is generator
    for seed in (None, 5, [1, 2], np.random.SeedSequence(1), np.random.PCG64(2)):
        assert isinstance(arguments.as_generator(seed), np.random.Generator)


@pytest.mark.parametrize("dtype", ["f4", "float32", np.float32, np.dtype("f8"), float])
def test_dtypes(dtype: Any) -> None:
    assert as_float_dtype(dtype) in (np.float32, np.float64)


@pytest.mark.parametrize("dtype", ["f2", "bfloat16", int, None, 5, NoText(), "no such"])
def test_no_dtypes(dtype: Any) -> None:
    with pytest.raises(InputError, match=r"dtype must be one of \('float32', 'float64'\); got"):
        as_float_dtype(dtype)


def test_no_arrays() -> None:
    with pytest.raises(InputError, match=r"^x must be an array: .*inhomogeneous"):
        as_array([[1.0], [1.0, 2.0]], "x")
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(InputError, match="x must not be a masked array with masked entries"):
        as_array(masked, "x")
    np.testing.assert_array_equal(as_array(np.ma.masked_array([1.0, 2.0]), "x"), [1.0, 2.0])


# What modules show ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bounds", "errors", "patterns", "plot", "rope"])
def test_dir_shows_what_there_is(name: str) -> None:
    module = importlib.import_module(f"headfit.{name}")
    assert dir(module) == sorted(module.__all__)
    for entry in dir(module):
        assert getattr(module, entry) is not None


def test_dir_of_the_package() -> None:
    assert set(hf.__all__) <= set(dir(hf))
    assert set(dir(hf)) - set(hf.__all__) <= {"torch"}
    assert "lower" in dir(hf.bounds)
    for entry in dir(hf):
        getattr(hf, entry)


# CPU levels that do not exist -----------------------------------------------------------------


def test_a_level_that_is_none_is_bad_input_of_the_command() -> None:
    environment = {**os.environ, "HEADFIT_CPU": "nonsense"}
    for command, status in (
        (["-m", "headfit.cli", "info", "x"], 2),
        (["-c", "from headfit import fit"], 1),
    ):
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status
        assert "HEADFIT_CPU must be one of" in done.stderr
        assert len(done.stderr.splitlines()) == 1 or status == 1


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16, np.int32])
@pytest.mark.parametrize("start", [0, 1, 2, 4])
def test_the_core_gets_items_at_multiples_of_their_size(dtype, start):
    """Arrays with other alignment are copied, contiguous or not: the core must not read them."""
    size = np.dtype(dtype).itemsize
    room = np.zeros(64 * size + start, np.uint8)
    room[start:] = np.arange(64 * size) % 60
    array = room[start:].view(dtype).reshape(8, 8)
    prepare = [as_items, as_contiguous, lambda x: as_stack(x[np.newaxis])[0]]
    if dtype != np.int32:
        prepare.append(lambda x: as_stack(as_matrix(x, "X")[np.newaxis])[0])
    for view in (array, array[::2], array[:, ::2], array.T):
        for function in prepare:
            found = function(view)
            assert found.__array_interface__["data"][0] % found.dtype.itemsize == 0
            if found.dtype == dtype:
                assert found.tobytes() == view.tobytes()
    is_there = array.__array_interface__["data"][0] % size == 0
    assert (as_items(array) is array) == is_there


def test_targets_and_matrices_that_lie_anywhere_give_the_same():
    def moved(x):
        return np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype)

    A = sp.csr_array(np.eye(4))
    elsewhere = sp.csr_array((moved(A.data), moved(A.indices), moved(A.indptr)), shape=(4, 4))
    core = hf.Target(elsewhere).core
    for part in (core.offsets, core.columns, core.weights):
        assert part.flags.aligned
    got, want = (hf.certify(x, 4 * np.eye(4), np.eye(4), scale=1.0) for x in (elsewhere, A))
    assert got.to_dict() == want.to_dict()
    for x in (elsewhere, A):
        assert (hf.sparsify(x, per_row=1).matrix != A).nnz == 0
