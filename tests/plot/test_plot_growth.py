"""headfit.plot.growth: which sizes of a table count, their slopes, and what is drawn."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import headfit as hf
from headfit import plot


@pytest.fixture
def ax():
    return Figure().subplots()


def test_slope_and_interval_are_those_of_scipy(ax):
    n = [64, 128, 256, 1024, 100_000]
    dim = [5, 6, 6, 7, 12]
    picture = plot.growth({"n": n[::-1], "dim": dim[::-1]}, ax=ax)
    expected = stats.linregress(np.log2(n), dim)
    reach = stats.t.ppf(0.975, len(n) - 2) * expected.stderr
    slope = picture.slopes["sizes"]
    assert slope.per_doubling == pytest.approx(expected.slope)
    assert (slope.low, slope.high) == pytest.approx(
        (expected.slope - reach, expected.slope + reach)
    )
    assert slope.at_one == pytest.approx(expected.intercept)
    line = picture.fits["sizes"]
    assert line.get_ydata() == pytest.approx(
        expected.intercept + expected.slope * np.log2(line.get_xdata())
    )
    assert picture.points["sizes"].get_xydata().tolist() == list(
        map(list, zip(n, dim, strict=True))
    )
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylim()[0]) == ("log", "linear", 0)


def test_the_interval_counts_the_rounding_to_integers(ax):
    slope = plot.growth({"n": [64, 128, 256, 512], "dim": [8, 9, 10, 11]}, ax=ax).slopes["sizes"]
    reach = stats.t.ppf(0.975, 2) * np.sqrt(1 / 12 / 5)
    assert slope[:3] == pytest.approx((1, 1 - reach, 1 + reach))


def test_the_smallest_size_of_each_seed_and_the_largest_of_these_counts(ax):
    table = {
        "n": [64, 64, 64, 64, 64, 128],
        "dim": [5, 4, 3, 5, 4, 7],
        "seed": [0, 0, 0, 1, 1, 0],
        "certified": [True, True, False, True, None, True],
    }
    assert plot.growth(table, ax=ax).points["sizes"].get_ydata().tolist() == [5, 7]


def test_proved_bounds_have_no_fit_and_the_largest_counts(ax):
    table = {
        "n": [64, 64, 128, 256, 64],
        "dim": [2, 3, 4, 4, 9],
        "kind": ["proved", "proved", "proved", "proved", "found"],
        "method": ["needed"] * 4 + ["learned"],
        "k": [4, 4, 4, 4, None],
    }
    picture = plot.growth(table, ax=ax)
    assert list(picture.points) == ["learned", "needed, k = 4"]
    assert picture.points["needed, k = 4"].get_ydata().tolist() == [3, 4, 4]
    assert not picture.fits
    assert not picture.slopes


def test_bounds_of_the_same_name_as_sizes_are_told_apart(ax):
    table = {"n": [64, 128] * 2, "dim": [5, 6, 2, 3], "kind": ["found"] * 2 + ["proved"] * 2}
    picture = plot.growth(table, ax=ax)
    sizes = {name: line.get_ydata().tolist() for name, line in picture.points.items()}
    assert sizes == {"sizes": [5, 6], "sizes, proved": [2, 3]}


def test_many_series_look_different(ax):
    table = {"n": [64] * 30, "dim": [9] * 30, "k": list(range(30))}
    lines = plot.growth(table, ax=ax).points.values()
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 30


def test_the_legend_names_the_slopes(ax):
    table = {"n": [64, 256, 1024] * 2, "dim": [4, 5, 6, 8, 10, 12], "k": [2] * 3 + [4] * 3}
    picture = plot.growth(table, ax=ax)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [f"{name}\n{slope}" for name, slope in picture.slopes.items()]
    assert labels[1] == "k = 4\n+1.00 per doubling (-0.30 to 2.30)"


def test_a_series_far_above_is_named_and_flattens_nothing(ax):
    table = {
        "n": [64, 512, 64, 512, 64],
        "dim": [5, 6, 20_000, 40_000, 19],
        "method": ["learned", "learned", "projection", "projection", "random keys"],
    }
    picture = plot.growth(table, ax=ax)
    assert set(picture.points) == {"learned", "random keys"}
    assert ax.get_ylim()[1] < 25
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-1] == "far above, projection:\n20,000 at n = 64, 40,000 at n = 512"


def test_a_frame_is_a_table(ax):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": [64, 128], "dim": [4, 5], "method": ["learned"] * 2})
    assert plot.growth(frame, ax=ax).points["learned"].get_ydata().tolist() == [4, 5]


def test_a_sweep_is_a_table(ax, tmp_path):
    points = hf.sweep.grid(pattern="random_regular", n=[16, 32], k=2, dim=[1, 6])
    found = hf.sweep.run(points, tmp_path / "sweep.jsonl", workers=0, num_threads=1)
    assert plot.growth(found, ax=ax).points["auto, k = 2"].get_ydata().tolist() == [6, 6]
    searched = {"n": [16, 32], "dim": [None, None], "dim_found": [3, 4]}
    assert plot.growth(searched, ax=ax).points["sizes"].get_ydata().tolist() == [3, 4]


def test_a_new_figure_is_neither_shown_nor_transparent(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **k: pytest.fail("plt.show was called"))
    figure = plot.growth({"n": [64, 128], "dim": [4, 5]}).points["sizes"].axes.figure
    assert figure.get_facecolor() == (1, 1, 1, 1)
    plt.close(figure)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"n": [64]}, "column 'dim'"),
        ({"n": [64, 128], "dim": [4]}, "one length"),
        ({"n": [64], "dim": [4], "certified": [False]}, "got none"),
        ({"n": [64], "dim": [4], "kind": ["guessed"]}, "kinds"),
        ({"n": [64.5], "dim": [4]}, "integers"),
        ({"n": [64], "dim": [0]}, "dim must be finite and at least 1"),
    ],
)
def test_errors_name_the_problem(table, message, ax):
    with pytest.raises(hf.errors.InputError, match=message):
        plot.growth(table, ax=ax)
