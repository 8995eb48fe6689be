"""The demonstration in a small setting, and the structure of its picture."""

from __future__ import annotations

import json

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import headfit as hf
from headfit._base.display import plain
from headfit._cli.demo import run_demo


@pytest.fixture(autouse=True)
def no_window():
    matplotlib.use("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def small():
    said = []
    return run_demo(n=24, dim=8, digits=False, time_limit=2, progress=said.append), said


@pytest.fixture(scope="module")
def with_digits():
    return run_demo(n=24, dim=4, time_limit=1.0)  # too small for the digits


def test_one_module_serves_every_pattern(small):
    demo, said = small
    assert demo.figures["holds"]
    assert [row.name for row in demo.rows] == ["band", "random_regular", "permutation", "tree"]
    assert len(said) == 1 + len(demo.rows)
    module = demo.rows[0].fit.module
    for row in demo.rows:
        assert row.fit.module is module
        assert row.fit.certificate.basis == "module"
        assert row.fit.dim == 8
        assert row.fit.lower_bound.dim <= int(row.cells["learned d"]) <= 8
        assert row.cells["needs"] == f"d >= {row.fit.lower_bound.dim}"
        assert float(row.cells["leak"]) >= row.fit.certificate.leak
        assert row.fit.tolerances == hf.Tolerances(0.05, 0.1)
        assert row.fit.X.shape == (24, 16)
        assert hf.certify(row.target, module(row.fit.X)).holds
        expected = hf.bounds.projection_dim(24, row.target.per_row, row.target.gamma)
        assert int(row.cells["projection"]) == expected > 24


def test_weights_are_dense_random_and_untouched(small):
    demo, _ = small
    assert demo.figures["untouched"]
    before, after = demo.figures["weights"]
    assert len(before) == 64
    assert before == after
    W = demo.rows[0].fit.module.weights
    assert np.count_nonzero(W) > 0.95 * W.size
    np.testing.assert_allclose(W @ W.T, np.eye(16), atol=1e-5)
    assert run_demo(n=4, dim=8, digits=False, rng=1).figures["weights"][0] != before


@pytest.mark.full
def test_the_digits_are_the_shipped_graph_and_may_miss(with_digits):
    row = with_digits.rows[-1]
    assert (row.name, row.target.n) == ("digits_knn", 1797)
    assert (row.target.matrix != hf.patterns.digits_knn()).nnz == 0
    np.testing.assert_array_equal(np.sort(row.order), np.arange(1797))
    assert row.fit.certificate.holds is with_digits.figures["holds"] is False
    # Sorted by digit, most neighbours lie near the diagonal: ten blocks of about 180.
    place = np.argsort(row.order)
    coo = row.target.matrix.tocoo()
    near = np.abs(place[coo.coords[0]] - place[coo.coords[1]]) < 185
    assert near.mean() > 0.95


def test_figures_are_plain(with_digits):
    figures = json.loads(json.dumps(plain(with_digits.figures), allow_nan=False))
    assert figures["holds"] is False
    assert figures["untouched"] is True
    assert len(figures["patterns"]) == 5
    assert figures["patterns"][0]["certificate"]["holds"] is True


def test_picture_has_a_pair_for_each_pattern_and_one_scale(with_digits):
    figure = with_digits.draw()
    titles = [ax.get_title() for ax in figure.axes]
    assert all("\ntarget, n = " in title for title in titles[:5])
    assert all("certified\nleak <= " in title for title in titles[5:9])
    assert titles[9].startswith("attention, d = 4, NOT certified\nleak <= ")
    images = [image for ax in figure.axes[:10] for image in ax.images]
    assert len({image.get_clim() for image in images}) == 1
    assert all(max(image.get_array().shape) <= 200 for image in images)
    # Every nonzero of the target stays visible: its tile has the colour of a 1.
    row, image = with_digits.rows[-1], figure.axes[4].images[0]
    A = row.target.matrix[row.order][:, row.order].tocoo()
    cells = image.get_array().shape[0]
    edges = np.arange(1, cells) * 1797 // cells
    rows, columns = (np.searchsorted(edges, place, side="right") for place in A.coords)
    assert (image.get_array()[rows, columns] == 1).all()


def test_no_text_of_the_picture_leaves_it_or_meets_another(with_digits):
    figure = with_digits.draw()
    figure.draw_without_rendering()
    page = figure.bbox
    boxes = []
    for text in figure.findobj(match=lambda artist: artist.__class__.__name__ == "Text"):
        if text.get_text().strip() and text.get_visible():
            box = text.get_window_extent()
            assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()
            boxes.append((box, text.get_text()))
    for i, (box, name) in enumerate(boxes):
        for other, its_name in boxes[:i]:
            assert not box.overlaps(other), (name, its_name)
