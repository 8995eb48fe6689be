"""The one form of a point, and the keys of files: equal points share them, others do not."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headfit._sweep.work import canonical, point_key
from headfit.errors import InputError

NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
POINTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)
SOME = settings(max_examples=50)


def key(point):
    return point_key("work", "1", canonical(point, "point"))


def reversed_order(value):
    """Return an equal value: keys in another order, tuples for lists, floats for whole numbers."""
    if isinstance(value, dict):
        return {k: reversed_order(value[k]) for k in reversed(value)}
    if isinstance(value, list):
        return tuple(reversed_order(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return np.float64(value)
    return value


@SOME
@given(POINTS)
def test_a_point_has_one_key_however_it_is_written(point):
    again = reversed_order(point)
    assert key(again) == key(point)
    assert canonical(again, "point") == canonical(point, "point")


@SOME
@given(POINTS)
def test_the_form_survives_json_and_is_its_own(point):
    once = canonical(point, "point")
    assert canonical(once, "point") == once
    read = json.loads(json.dumps(once, allow_nan=False))
    assert read == once
    assert key(read) == key(point)


def shape(value):
    """Return a value with the kinds of its parts, by which True and 1 differ."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shape(v) for v in value]
    return isinstance(value, bool), value


@SOME
@given(POINTS, POINTS)
def test_different_points_have_different_keys(one, other):
    is_equal = shape(canonical(one, "point")) == shape(canonical(other, "point"))
    assert (key(one) == key(other)) == is_equal


def test_numbers_that_are_equal_are_one():
    for same in ([1, 1.0, np.int64(1), np.float32(1)], [0, 0.0, -0.0], [2.0**62, 2**62]):
        assert len({key({"x": value}) for value in same}) == 1
    assert len({key({"x": value}) for value in (1, True, "1", [1], None, 1.5)}) == 6
    assert type(canonical(2.0, "x")) is int


def test_what_computes_a_point_is_part_of_its_key():
    keys = {point_key(work, version, {}) for work in ("a", "b") for version in (None, 1, "1")}
    assert len(keys) == 6


@pytest.mark.parametrize(
    "bad",
    [math.nan, math.inf, -math.inf, np.float32("nan"), 1j, b"x", {1, 2}, object(),
     np.zeros(2), [math.nan], 10**400, 2**63],
)  # fmt: skip
def test_what_no_point_can_hold_is_refused_by_name(bad):
    with pytest.raises(InputError, match="gamma must be finite numbers"):
        canonical(bad, "gamma")


def test_a_list_within_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InputError, match="Circular reference"):
        canonical(loop, "x")
