"""headfit.plot.plan: what is drawn of a plan, and where."""

from __future__ import annotations

import dataclasses

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

import headfit as hf
from headfit import plot


@pytest.fixture(scope="module")
def found() -> hf.results.Plan:
    return hf.plan(hf.patterns.band(32, 1), dim=8, time_limit=4, num_threads=1)


def attempt(found: hf.results.Plan, purpose: str, **changed: object) -> hf.results.PlanAttempt:
    return dataclasses.replace(found.attempts[0], purpose=purpose, **changed)


def test_sizes_of_one_n(found):
    ax = Figure().subplots()
    bound = dataclasses.replace(found.lower_bound, dim=3)
    tried = (
        attempt(found, "asked", max_logit=9.0),
        attempt(found, "smaller dim", dim=4, max_logit=30.0),
        attempt(found, "smaller dim", dim=2, holds=False),
        attempt(found, "rounded", dtype="float16"),
    )
    picture = plot.plan(dataclasses.replace(found, attempts=tried, lower_bound=bound), ax=ax)
    assert picture.certified.get_offsets().tolist() == [[8, 9], [4, 30]]
    assert len(picture.relaxed.get_offsets()) == 0
    assert picture.others.get_offsets()[:, 0].tolist() == [2]
    assert picture.trend is None
    assert picture.impossible.get_x() + picture.impossible.get_width() == 2.5
    assert ax.get_xlabel() == "head size d"
    assert ax.get_title() == "Yes: d = 8, bfloat16, the matrix"
    low, high = ax.get_ylim()
    assert low < 9 < 30 < high


def test_a_trend_over_n(found):
    ax = Figure().subplots()
    tried = (
        attempt(found, "asked", n=2048, holds=False),
        attempt(found, "float32", n=2048, max_logit=50.0),
        attempt(found, "looser", n=2048, max_logit=40.0),
        attempt(found, "smaller n", n=128, max_logit=20.0),
        attempt(found, "smaller n", n=512, max_logit=26.0),
    )
    missed = dataclasses.replace(found, n=2048, attempts=tried, best=None)
    assert missed.verdict == "not found"
    picture = plot.plan(missed, ax=ax)
    assert picture.certified.get_offsets().tolist() == [[128, 20], [512, 26]]
    assert picture.relaxed.get_offsets().tolist() == [[2048, 50], [2048, 40]]
    assert list(picture.trend.get_xdata()) == [128, 512, 2048]
    assert picture.trend.get_ydata() == pytest.approx([20, 26, 32])
    assert picture.impossible is None
    labels = [text.get_text() for text in ax.texts]
    assert labels == ["float32 instead", "leak <= 0.05, distortion <= 0.1"]
    assert "trend, no proof" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("verdict", ["no", "not found"])
def test_a_plan_without_attempts_can_be_drawn(found, verdict):
    ax = Figure().subplots()
    least = found.dim + 1 if verdict == "no" else 2
    bound = dataclasses.replace(found.lower_bound, dim=least)
    empty = dataclasses.replace(found, attempts=(), best=None, lower_bound=bound)
    assert empty.verdict == verdict
    picture = plot.plan(empty, ax=ax)
    assert len(picture.certified.get_offsets()) == 0
    assert ax.get_yticks().size == 0
    ax.figure.canvas.draw()


def test_a_new_figure_is_made_without_axes(found):
    before = set(plt.get_fignums())
    plot.plan(found)
    (number,) = set(plt.get_fignums()) - before
    plt.figure(number).canvas.draw()
    plt.close(number)


def test_other_things_are_refused(found):
    for given in (None, found.fit, "x"):
        with pytest.raises(hf.errors.InputError, match="plan must be"):
            plot.plan(given)
    with pytest.raises(hf.errors.InputError, match="ax must be"):
        plot.plan(found, ax=5)
