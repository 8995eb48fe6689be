"""Tolerances that are tightened from stage to stage of a learned fit."""

import itertools
import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.references import leak_and_distortion, logits_of

import headfit as hf
from headfit._base.tolerances import Tolerances
from headfit._fit.learned import STAGE, learned, tightening
from headfit._target.target import as_target

A = hf.patterns.random_regular(96, 4, gamma=2.0, rng=3)
ASKED = {"leak": 0.05, "distortion": 0.1}


def fit(method, dim=6, **options):
    return hf.fit(A, dim, method=method, **{**ASKED, "num_threads": 2, **options})


def outside(head):
    """Return the rows that miss the tolerances, from all logits in float64."""
    leak, distortion = leak_and_distortion(A.toarray(), logits_of(head))
    return set(np.flatnonzero((leak > ASKED["leak"]) | (distortion > ASKED["distortion"])))


@given(
    st.floats(1e-6, 0.999), st.floats(1e-4, 50) | st.just(sys.float_info.max), st.integers(1, 12)
)
def test_tolerances_fall_geometrically_to_those_asked_for(leak, distortion, count):
    stages = tightening(Tolerances(leak, distortion), count)
    assert stages[-1] == (leak, distortion)
    if leak >= 0.5 and distortion >= 2:
        assert len(stages) == 1
        return
    assert len(stages) == count
    if count > 1:
        assert stages[0] == pytest.approx((max(leak, 0.5), max(distortion, 2.0)))
    logs = np.array([[-math.log(x), math.log1p(y)] for x, y in stages])
    for column in logs.T:
        steps = np.diff(np.log(column))
        assert steps == pytest.approx(np.full(steps.shape, steps.sum() / max(1, steps.size)))


def test_each_stage_starts_from_the_head_of_the_last_one():
    """The same fits, called one after the other."""
    found = fit(hf.methods.Learned(stages=3), rng=7, scale=1.0)
    seed = found.settings["seed"]
    target, start, steps = as_target(A), None, []
    for i, (leak, distortion) in enumerate(tightening(Tolerances(**ASKED), 3)):
        is_last = i == 2
        stage = hf.methods.Problem(target, Tolerances(leak, distortion), seed=seed, threads=2)
        head = learned(
            hf.methods.Learned(init=start), stage, 6,
            200 * 300 - sum(steps) if is_last else STAGE * 300,
            **({} if is_last else {"polished_share": 0.0}),
        )  # fmt: skip
        start = head.Q, head.K
        steps.append(head.steps)
    assert np.array_equal(found.Q, start[0])
    assert np.array_equal(found.K, start[1])
    assert found.settings["learned"]["steps"] == sum(steps)
    assert found.settings["stages"] == 3
    assert found.certificate.holds


@pytest.mark.parametrize("asked", [ASKED, {"leak": 0.6, "distortion": 3.0}])
def test_one_stage_is_a_plain_fit(asked):
    stages = 1 if asked is ASKED else 5  # no tolerances are looser than those of the second
    plain, other = (
        fit(hf.methods.Learned(), **asked),
        fit(hf.methods.Learned(stages=stages), **asked),
    )
    assert np.array_equal(plain.Q, other.Q)
    assert np.array_equal(plain.K, other.K)


def test_a_stage_that_fails_hands_on_its_head():
    """Four dimensions are too few to find, so every stage takes the steps that it may."""
    found = fit(hf.methods.Learned(effort=20, stages=3), 4)
    report = found.settings["learned"]
    assert found.stopped == "steps"
    assert report["starts"] >= 1
    assert 200 * 20 <= report["steps"] <= 200 * 20 + 300
    assert set(found.failed_rows) == outside(found)


@pytest.mark.parametrize("last", [0, 150, 700])
def test_a_callback_counts_on_and_ends_all_stages(last):
    seen = []

    def callback(step, left, deficit):
        seen.append((step, left))
        return step < last

    found = fit(hf.methods.Learned(effort=50, stages=3, callback=callback), 4)
    steps = [step for step, _ in seen]
    assert all(x <= y for x, y in itertools.pairwise(steps))
    assert sum(step >= last for step in steps) == 1
    report = found.settings["learned"]
    assert (found.stopped, report["status"]) == ("callback", "stopped")
    assert report["steps"] == steps[-1]
    # What is reported are the rows that miss the tolerances asked for, not those of the stage.
    assert set(found.failed_rows) == outside(found)
    assert report["rows_left"] == found.failed_rows.size


def test_a_callback_that_returns_false_once_is_not_called_again():
    """Also at the scan where a stage meets its tolerances, which ends it anyway."""
    lefts = []

    def callback(step, left, deficit):
        lefts.append(left)
        return left > 0 or lefts.count(0) > 1

    found = fit(hf.methods.Learned(stages=4, callback=callback))
    assert lefts[-1] == 0 < min(lefts[:-1])
    assert found.settings["learned"]["status"] == "stopped"
    assert set(found.failed_rows) == outside(found)
    assert found.stopped == ("certified" if found.certificate.holds else "callback")


def test_a_stop_before_the_first_step_counts_one_start():
    plain, staged = (
        fit(hf.methods.Learned(stages=stages, callback=lambda *_: False)).settings["learned"]
        for stages in (1, 4)
    )
    for name in ("steps", "starts", "quenches", "reheats"):
        assert plain[name] == staged[name]


@pytest.mark.full
def test_few_steps_make_few_stages():
    """A stage of fewer steps than those of its anneal would end hot."""
    found = fit(hf.methods.Learned(effort=5, stages=100), 4)
    assert found.settings["learned"]["steps"] >= 200 * 5
    searched = hf.fit(A, method=hf.methods.Learned(stages=100), **ASKED, num_threads=2)
    plain = hf.fit(A, method=hf.methods.Learned(), **ASKED, num_threads=2)
    assert searched.dim <= plain.dim + 1


def test_what_cannot_be_asked_for_is_refused_before_the_first_stage():
    def callback(*scan):
        raise AssertionError("no steps are taken")

    # Of a scale that the method is not told, the product of q and k may take twice the room.
    kernel, limits = hf.Kernel("float32", product="bfloat16"), hf.Tolerances(max_logit=16.0)
    problem = hf.methods.Problem(hf.Target(A), limits, kernel=kernel)
    with pytest.raises(hf.errors.InputError, match=r"distortion=0\.1 leaves no room"):
        hf.methods.Learned(stages=4, callback=callback).head(problem, 8)


def test_the_time_limit_ends_all_stages():
    found = fit(hf.methods.Learned(effort=10**6, stages=4), 4, time_limit=0.3)
    assert found.stopped == "time limit"
    assert found.seconds < 3
    assert set(found.failed_rows) == outside(found)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"}, {"dtype": "float8_e4m3fn", "distortion": 0.5}, {"max_logit": 30.0},
        {"dim": None, "time_limit": 60.0}, {"exempt_columns": [0, 5]},
        {"kernel": "eager-float16"},
    ],
)  # fmt: skip
def test_stages_go_with_every_option(options):
    options = {"dim": 10, **options}
    found = fit(hf.methods.Learned(stages=3), **options)
    assert found.certificate.holds
    assert found.settings["stages"] == 3


def test_stages_keep_to_a_bound_on_norms():
    found = fit(hf.methods.Learned(stages=3, max_norm=60.0), 12, dtype="bfloat16")
    proof = found.certificate
    assert proof.holds
    assert proof.scale * proof.q_norm * proof.k_norm <= 60.0


def test_stages_start_from_a_given_head():
    start = fit(hf.methods.Learned(), rng=1, scale=1.0)
    found = fit(hf.methods.Learned(init=(start.Q, start.K), stages=2), scale=1.0)
    assert found.certificate.holds
    assert found.settings["learned"]["starts"] == 2  # one a stage: none of them at random


def test_progress_counts_on(capsys):
    pytest.importorskip("tqdm")
    fit(hf.methods.Learned(stages=3), progress=True)
    shown = capsys.readouterr().err
    assert "step" in shown
    steps = [int(step) for step in re.findall(r"step=(\d+)", shown)]
    assert steps
    assert steps == sorted(steps)
