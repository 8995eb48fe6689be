"""Points of fits: what they may say, what is filled in, and what the result holds."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import headfit as hf
from headfit._sweep.work import UNSUITED, checked_fit_point, fit_point, pattern_of
from headfit.errors import InputError

RANDOM = {"pattern": "random_regular", "n": 32, "k": 2}


def test_defaults_are_filled_in_and_none_is_nothing():
    point = checked_fit_point(RANDOM)
    assert point["leak"] == hf.Tolerances().leak
    assert (point["gamma"], point["seed"], point["method"]) == (1, 0, "auto")
    assert "dim" not in point
    same = [
        {**RANDOM, "dim": None},
        {**RANDOM, "leak": hf.Tolerances().leak, "gamma": 1.0, "weights": None},
    ]
    assert all(checked_fit_point(other) == point for other in same)
    assert checked_fit_point({**RANDOM, "seed": 1}) != point


@pytest.mark.parametrize(
    ("point", "word"),
    [
        ({}, "pattern must be '"),
        ({"pattern": "nothing"}, "pattern must be '"),
        ({"pattern": ["band"]}, "pattern must be '"),
        ({"pattern": "from_mask"}, "pattern must be '"),
        ({"pattern": "band", "n": 8}, "neighbors must be given"),
        ({"pattern": "band", "n": 8, "neighbors": 1, "k": 2}, "k is no key"),
        ({**RANDOM, "widht": 3}, "widht is no key"),
        ({**RANDOM, "rng": 3}, "rng is no key"),
        ({**RANDOM, "n": "64"}, "n must"),
        ({**RANDOM, "n": 6.5}, "n must"),
        ({**RANDOM, "n": True}, "n must"),
        ({**RANDOM, "gamma": "high"}, "gamma must"),
        ({**RANDOM, "gamma": 0.5}, "gamma must"),
        ({**RANDOM, "weights": "gaussian"}, "weights must"),
        ({"pattern": "band", "n": 8, "neighbors": 1, "boundary": "no"}, "boundary must"),
        ({"pattern": "tree", "n": 8, "self_loops": 1}, "self_loops must be True or False"),
        ({**RANDOM, "method": "nothing"}, "method must be 'auto' or"),
        ({**RANDOM, "method": 5}, "method must be 'auto' or"),
        ({**RANDOM, "method": "projection", "max_norm": 3}, "max_norm is no key"),
        ({**RANDOM, "method": "learned", "callback": 3}, "callback is no key"),
        ({**RANDOM, "method": "learned", "effort": "great"}, "effort must"),
        ({**RANDOM, "method": "max-margin", "keys": "new"}, "keys must"),
        ({**RANDOM, "max_norm": -1}, "max_norm must"),
        ({**RANDOM, "leak": 2}, "leak must"),
        ({**RANDOM, "distortion": 0}, "distortion must"),
        ({**RANDOM, "max_logit": 0}, "max_logit must"),
        ({**RANDOM, "dtype": "float8"}, "dtype must"),
        ({**RANDOM, "kernel": "int8"}, "kernel must"),
        ({**RANDOM, "mask": "window"}, "mask must"),
        ({**RANDOM, "mask": [[True]]}, "mask must"),
        ({**RANDOM, "mask": ["window", "a"]}, "mask "),
        ({**RANDOM, "mask": ["window", -5]}, "mask "),
        ({**RANDOM, "mask": ["window", 1.5]}, "mask "),
        ({**RANDOM, "mask": ["window", [1, 2, 3]]}, "mask "),
        ({**RANDOM, "exempt_columns": ["a"]}, "exempt_columns must"),
        ({**RANDOM, "exempt_columns": [0.5]}, "exempt_columns must"),
        ({**RANDOM, "exempt_columns": [-1]}, "exempt_columns must"),
        ({**RANDOM, "exempt_columns": [0, 100]}, "exempt_columns must lie in 0 ... 31"),
        ({**RANDOM, "n": 0}, "n must"),
        ({**RANDOM, "n": 10**13}, "n must"),
        ({**RANDOM, "k": 40}, "k must lie in 1 ... 32"),
        ({**RANDOM, "leak": "0.05"}, "leak must be a number; got '0.05'"),
        ({**RANDOM, "gamma": "2"}, "gamma must be a number"),
        ({**RANDOM, "scale": "1"}, "scale must be a number"),
        ({**RANDOM, "max_norm": "3"}, "max_norm must be a number"),
        ({**RANDOM, "exempt_columns": "all"}, "exempt_columns must"),
        ({**RANDOM, "dim": 0}, "dim must"),
        ({**RANDOM, "seed": -1}, "seed must"),
        ({**RANDOM, "pattern_seed": "x"}, "pattern_seed must"),
        ({**RANDOM, "time_limit": 0}, "time_limit must"),
        ({**RANDOM, "scale": -1}, "scale must"),
    ],
)
def test_a_bad_point_is_refused_by_its_key(point, word, table):
    with pytest.raises(InputError, match=word):
        checked_fit_point(point)
    with pytest.raises(InputError, match=r"points\[1\]: "):
        hf.sweep.run([RANDOM, point], table)
    assert not table.exists()


def test_what_the_size_of_a_pattern_shows_is_a_failure_of_the_point(table):
    points = [
        {"pattern": "knn", "points": [[0], [1]], "k": 2},
        {"pattern": "knn", "points": 3, "k": 2},
        {"pattern": "grid2d", "height": 0, "width": 2},
        {"pattern": "grid2d", "height": 2, "width": 2, "exempt_columns": [4]},
    ]
    swept = hf.sweep.run(points, table, workers=0, num_threads=1)
    words = ("k must lie in 1 ... 1", "points must", "height must", "exempt_columns must lie in")
    for failure, said in zip(swept.failures, words, strict=True):
        assert said in failure["exception"]


def test_a_default_and_its_absence_are_the_same_point():
    point = checked_fit_point(RANDOM)
    for same in (
        {"effort": "low"}, {"reheats": 6}, {"stages": 1}, {"weights": "uniform"},
        {"pattern_seed": 0}, {"max_norm": None},
    ):  # fmt: skip
        assert checked_fit_point({**RANDOM, **same}) == point
    assert (point["effort"], point["weights"]) == ("low", "uniform")
    assert checked_fit_point({**RANDOM, "gamma": 2})["weights"] == "random"
    projected = {**RANDOM, "method": "projection"}
    assert checked_fit_point({**projected, "sketch": "rademacher"}) == checked_fit_point(projected)
    other = checked_fit_point({**RANDOM, "seed": 1, "pattern_seed": 0})
    assert other["pattern_seed"] == 0


def test_defaults_that_go_with_a_method_are_no_axes(tmp_path):
    common = {"pattern": "band", "n": 8, "neighbors": 1, "dim": 6}
    points = hf.sweep.grid(**common, method=["projection", "max-margin"])
    found = hf.sweep.run(points, tmp_path / "one", workers=0, num_threads=1)
    assert found.axes == {"method": ["max-margin", "projection"]}
    (row,) = [row for row in found.rows if row.get("sketch") == "rademacher"]
    assert row["method"] == "projection"
    points = hf.sweep.grid(**common, method="projection", sketch=["rademacher", "gaussian"])
    found = hf.sweep.run(points, tmp_path / "one", workers=0, num_threads=1)
    assert found.axes == {"sketch": ["gaussian", "rademacher"]}
    points = hf.sweep.grid(**{**common, "dim": [None, 6]}, mask=[None, "causal"])
    found = hf.sweep.run(points, tmp_path / "one", workers=0, num_threads=1)
    assert found.axes == {"dim": [6, None], "mask": [None, "causal"]}


def test_the_dtype_of_a_point_is_that_of_its_kernel():
    assert checked_fit_point(RANDOM)["dtype"] == "float32"
    assert checked_fit_point({**RANDOM, "kernel": "eager-bfloat16"})["dtype"] == "bfloat16"
    narrow = checked_fit_point({**RANDOM, "dim": 8, "dtype": "float8_e4m3fn", "leak": 0.3})
    assert fit_point(1, **narrow)["n"] == 32


def test_every_pattern_can_be_swept_but_those_made_of_objects():
    given = {"n": 8, "width": 1, "neighbors": 1, "dilation": 1, "offsets": [0, 1], "stride": 2,
             "size": 2, "n_global": 1, "n_random": 1, "tokens": ["a", "b", "a"], "height": 2,
             "points": [[0, 0], [1, 0], [0, 1]], "k": 2}  # fmt: skip
    for kind in hf.patterns.__all__:
        if kind in UNSUITED or kind == "digits_knn":
            continue
        names = inspect.signature(getattr(hf.patterns, kind)).parameters
        own = {name: given[name] for name in names if name in given and name != "rng"}
        if kind == "strided":
            del own["neighbors"]
        A = pattern_of(checked_fit_point({"pattern": kind, **own}))
        np.testing.assert_allclose(A.sum(axis=1), 1)


def test_seeds_of_pattern_and_fit():
    made = [
        pattern_of(checked_fit_point({**RANDOM, **seeds})).toarray()
        for seeds in ({"seed": 1}, {"seed": 2, "pattern_seed": 1}, {"seed": 2})
    ]
    np.testing.assert_array_equal(made[0], made[1])
    assert (made[0] != made[2]).any()


def test_a_record_says_what_the_fit_says():
    point = checked_fit_point({**RANDOM, "dim": 6, "seed": 3, "method": "learned", "mask": None})
    record = fit_point(1, **point)
    A = hf.patterns.random_regular(32, 2, rng=3)
    fit = hf.fit(A, 6, method="learned", rng=3, num_threads=1)
    assert record["certified"] is fit.certificate.holds is True
    assert (record["dim_found"], record["n"], record["nnz"]) == (6, 32, 64)
    for name in ("leak", "distortion", "max_logit", "max_norm"):
        assert record[f"{name}_found"] == getattr(fit.certificate, name)
    assert record["steps"] > 0
    assert record["stopped"] == "certified"


def test_a_fit_that_does_not_certify_has_no_size():
    point = {"pattern": "band", "n": 16, "neighbors": 1, "dim": 1}
    record = fit_point(1, **checked_fit_point(point))
    assert (record["certified"], record["dim_found"], record["dim_tried"]) == (False, None, 1)
    masked = fit_point(1, **checked_fit_point({**point, "mask": ["window", [1, 1]]}))
    assert (masked["certified"], masked["dim_found"]) == (True, 1)


def test_grid():
    points = hf.sweep.grid(a=[1, 2], b="x", c=range(2), d=np.array([0.5]), e=[[1, 2]])
    assert len(points) == 4
    assert points[1] == {"a": 1, "b": "x", "c": 1, "d": 0.5, "e": [1, 2]}
    assert hf.sweep.grid() == [{}]
    for bad in ([], np.zeros((2, 2))):
        with pytest.raises(InputError, match="a must"):
            hf.sweep.grid(a=bad)
    with pytest.raises(InputError, match="at most 10,000,000 points; got 1,000,000,000,000,000"):
        hf.sweep.grid(a=range(10**15))


def test_a_name_that_a_pattern_and_a_method_have_is_the_patterns(tmp_path):
    point = {"pattern": "butterfly", "n": 16, "dim": 8, "effort": 20}
    (row,) = hf.sweep.run([point], tmp_path / "t.jsonl", workers=0).rows
    assert row["nnz"] == hf.patterns.butterfly(16).nnz
