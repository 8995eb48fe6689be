"""headfit.plot of fits: keys, certificates, searches, curves."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import headfit as hf
from headfit import plot
from headfit._fit.result import Search, Trial
from headfit.results import TvCurve

RNG = np.random.default_rng(4)


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def pattern():
    return hf.patterns.random_regular(40, 3, gamma=2.0, rng=0)


@pytest.fixture(scope="module")
def head(pattern):
    return hf.fit(pattern, 6, rng=0)


def test_keys_lie_at_their_logits_and_the_lines_leave_the_margin(pattern, head, ax):
    picture = plot.keys(pattern, head, 7, ax=ax)
    logits = head.scale * (head.K.astype(float) @ head.Q[7].astype(float))
    on = pattern[[7]].indices
    off = np.setdiff1d(np.arange(40), on)
    low, high = logits[on].min(), logits[off].max()
    x = np.sort(picture.support.get_offsets()[:, 0])
    np.testing.assert_allclose(x, np.sort(logits[on]) - low, atol=1e-3)
    x = np.sort(picture.others.get_offsets()[:, 0])
    np.testing.assert_allclose(x, np.sort(logits[off]) - low, atol=1e-3)
    assert picture.support_line.get_xdata()[0] == 0
    assert picture.others_line.get_xdata()[0] == pytest.approx(high - low, abs=1e-3)
    assert picture.nearest.get_offsets()[0][0] == picture.others_line.get_xdata()[0]
    assert np.exp(high - low) <= head.certificate.row_leak[7] * 1.001
    assert f"margin {low - high:.3g}," in ax.get_title()


def test_the_other_direction_of_keys_is_their_leading_one_across_the_query(ax):
    n = 50
    K = RNG.standard_normal((n, 3)) * [1.0, 5.0, 0.1]
    Q = np.tile([2.0, 0.0, 0.0], (n, 1))
    A = np.eye(n)
    picture = plot.keys(A, hf.Attention(Q, K), 4, ax=ax)
    height = np.concatenate([p.get_offsets()[:, 1] for p in (picture.support, picture.others)])
    centred = np.sort(K[:, 1] - K[:, 1].mean())
    assert max(height) == pytest.approx(centred.max(), rel=0.02)
    assert min(height) == pytest.approx(centred.min(), rel=0.02)


@pytest.mark.parametrize("size", [1e-200, 1e160, 1e306])
def test_keys_of_any_size_are_drawn(size, ax):
    Q, K = RNG.standard_normal((2, 12, 3))
    one, other = (
        np.concatenate([p.get_offsets()[:, 1] for p in (picture.support, picture.others)])
        for picture in (
            plot.keys(np.eye(12), hf.Attention(Q, K, scale=1.0), 4, ax=ax),
            plot.keys(np.eye(12), hf.Attention(Q / size, K * size, scale=1.0), 4, ax=ax),
        )
    )
    np.testing.assert_allclose(other / size, one, rtol=1e-9, atol=1e-12)


def test_hidden_keys_have_no_part_in_the_direction(ax):
    Q, K = RNG.standard_normal((2, 12, 3))
    A, shown = np.tri(12)[:8, :8], (Q[:8], K[:8])
    A /= A.sum(axis=1, keepdims=True)
    whole, more = np.eye(12), K.copy()
    whole[:8, :8], whole[8:], more[8:] = A, np.eye(12)[0], np.nan
    drawn = [
        plot.keys(A, hf.Attention(*shown), 5, ax=ax),
        plot.keys(whole, hf.Attention(Q, more, key_lengths=8), 5, ax=ax),
    ]
    for part in ("support", "others"):
        one, other = (getattr(picture, part).get_offsets() for picture in drawn)
        np.testing.assert_allclose(other, one, rtol=1e-12)


def test_the_row_of_largest_leak_is_drawn_when_none_is_named(pattern, head, ax):
    worst = int(head.certificate.row_leak.argmax())
    for given in (head, head.attention):
        plot.keys(pattern, given, ax=ax)
        assert ax.get_title().startswith(f"row {worst}:")


def test_keys_behind_a_mask_are_not_drawn(ax):
    A = np.triu(np.tril(np.ones((30, 30))), -1)
    A /= A.sum(axis=1, keepdims=True)
    Q, K = RNG.standard_normal((2, 30, 4))
    head = hf.Attention(Q, K, mask="causal")
    picture = plot.keys(A, head, 10, ax=ax)
    assert (len(picture.support.get_offsets()), len(picture.others.get_offsets())) == (2, 9)
    first = plot.keys(A, head, 1, ax=ax)
    assert (first.others, first.others_line, first.nearest) == (None, None, None)


def test_a_key_of_the_pattern_that_the_head_hides():
    Q, K = RNG.standard_normal((2, 6, 3))
    A = hf.patterns.causal_band(6, 1)
    for row, hidden in ((1, {"key_mask": np.arange(6) > 0}), (5, {"key_lengths": 5})):
        message = f"row {row} of A attends to keys that M hides"
        with pytest.raises(hf.errors.InputError, match=message):
            plot.keys(A, hf.Attention(Q, K, **hidden), row)


def test_many_keys_are_small_dots_and_a_narrow_margin_is_widened(ax):
    n = 20_000
    turn = 2 * np.pi * np.arange(n) / n
    K = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    picture = plot.keys(hf.patterns.permutation(n, rng=0), hf.Attention(500 * K, K), 3, ax=ax)
    assert len(picture.others.get_offsets()) == n - 1
    assert picture.others.get_rasterized()
    A = hf.patterns.band(n, 0)
    narrow = Figure().subplots()
    plot.keys(A, hf.Attention(1e6 * K, K), 3, ax=narrow)
    assert narrow.get_xscale() == "symlog"
    margin = -narrow.lines[1].get_xdata()[0]
    left, zero = narrow.transData.transform([[-margin, 0], [0, 0]])[:, 0]
    assert (zero - left) / narrow.get_window_extent().width > 0.05


def test_one_dimension_has_no_other_direction(ax):
    K = np.arange(5.0)[:, None]
    picture = plot.keys(np.eye(5)[[4] * 5], hf.Attention(K, K), 2, ax=ax)
    np.testing.assert_array_equal(picture.others.get_offsets()[:, 1], 0)


def test_certificate_counts_rows(head, ax):
    lines = plot.certificate(head, ax=ax)
    c = head.certificate
    for line, rows, asked in zip(
        lines,
        (c.row_leak, c.row_distortion),
        (c.tolerances.leak, c.tolerances.distortion),
        strict=True,
    ):
        x, y = line.get_data()
        np.testing.assert_array_equal(x[:-1], np.sort(rows[rows > 0]))
        for value, count in list(zip(x, y, strict=True))[:-1]:
            assert count == (rows >= value).sum()
        assert (x[-1], y[-1]) == (rows.max(), 0.1)
        assert rows.max() <= asked
    at = [line.get_xdata()[0] for line in ax.lines if line not in lines]
    assert at == [0.05, 0.1]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert ax.get_title() == "Certificate: holds for all 40**2 entries, 120 nonzeros"
    assert ax.get_xlim()[1] > 0.1


def test_certificate_says_what_fails_and_where_zeros_and_infinities_are(ax):
    A = np.array([[0, 1.0, 0], [0, 1, 0], [0, 0, 1]])
    c = hf.certify(A, matrix=np.eye(3))
    leak, distortion = plot.certificate(c, ax=ax)
    assert ax.get_title() == "Certificate: FAILS in 1 of 3 rows"
    assert leak.get_xdata()[0] == ax.get_xlim()[1]  # infinite: at the edge
    assert "worst inf" in leak.get_label()
    assert "0 in 2 rows" in leak.get_label()
    assert distortion.get_label().endswith("(0 in every row)")
    assert not distortion.get_xdata().size
    ax.figure.canvas.draw()
    undecided = dataclasses.replace(
        c, status="undecided", row_status=np.array([2, 0, 0], dtype=np.int8)
    )
    plot.certificate(undecided, ax=ax)
    assert ax.get_title() == "Certificate: UNDECIDED in 1 of 3 rows"


def searched(head, trials, dim, bound):
    return dataclasses.replace(
        head, search=Search(tuple(trials), dim, "made up"), lower_bound=bound
    )


def test_a_leak_near_the_largest_number_is_drawn(ax):
    A, logits = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 709.5], [0.0, 0.0]])
    c = hf.certify(A, logits, np.eye(2), scale=1.0)
    assert 1e308 < c.leak < np.inf
    plot.certificate(c, ax=ax)
    left, right = ax.get_xlim()
    assert 0 < left < c.tolerances.leak  # whose line is drawn
    assert 1e270 < right < np.inf


def test_search_shows_trials_and_the_area_below_the_bound(head, ax):
    trials = [
        Trial(3, False, np.inf, 1.0, 0.1),
        Trial(6, True, 0.025, 0.05, 0.1),
        Trial(4, True, 0.04, 0.09, 0.1),
    ]
    picture = plot.search(searched(head, trials, 4, SimpleNamespace(dim=3)), ax=ax)
    np.testing.assert_allclose(picture.certified.get_offsets(), [[6, 0.5], [4, 0.9]])
    np.testing.assert_allclose(picture.others.get_offsets(), [[3, 1e4]])
    assert picture.impossible.get_x() + picture.impossible.get_width() == 2.5
    assert ax.get_xlim()[0] < 2
    assert ax.get_title() == "smallest certified: d = 4"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["certified", "not certified", "proved too small: d < 3"]


@pytest.mark.parametrize("dim", [2, 3, 5, 6])
def test_no_trial_of_a_search_hides_behind_the_legend(head, ax, dim):
    shares = {2: 1e3, 3: 0.01, 5: 0.3, 6: 1e3}
    trials = [Trial(d, d == dim, 0.05 * share, 0.0, 0.1) for d, share in shares.items()]
    picture = plot.search(searched(head, trials, dim, None), ax=ax)
    ax.figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    for points in (picture.certified, picture.others):
        places = ax.transData.transform(points.get_offsets())
        assert len(places)
        assert not any(box.contains(*place) for place in places)


def test_search_over_a_wide_range_is_logarithmic(head, ax):
    trials = [Trial(d, d >= 64, 0.5 if d < 64 else 0.01, 0.0, 0.1) for d in (2, 4, 64, 66, 68)]
    picture = plot.search(searched(head, trials, None, None), ax=ax)
    assert picture.impossible is None
    assert ax.get_xscale() == "log"
    ticks = list(ax.xaxis.get_major_locator()())
    assert ticks == [2, 4, 64]  # no labels that overlap
    assert ax.get_title() == "none certified"


def test_a_real_search_is_drawn_in_a_new_figure(pattern):
    found = hf.fit(pattern, time_limit=3, rng=0)
    picture = plot.search(found)
    ax = picture.certified.axes
    assert sum(len(p.get_offsets()) for p in (picture.certified, picture.others)) == len(
        found.search.trials
    )
    assert (picture.certified.get_offsets()[:, 1] <= 1).all()
    plt.close(ax.figure)


def test_curve_draws_and_labels_both(ax):
    Q, K = RNG.standard_normal((2, 20, 4))
    small = hf.shrink(Q, K, dim=2, curve_dims=(), effort="low")
    ours = TvCurve(*map(np.array, ((2, 8, 32), (0.3, 0.1, 0.0), (0.5, 0.2, 0.01), (1, 0.1, 0))))
    worse = TvCurve(*map(np.array, ((2, 8), (0.5, 0.2), (0.9, 0.4), (2, 0.3))))
    lines = plot.curve(dataclasses.replace(small, curve=ours, baseline=worse), tv=0.05, ax=ax)
    data = [[list(values) for values in line.get_data()] for line in lines]
    assert data[0] == [[2, 8, 32], [0.3, 0.1, 0.0]]
    assert data[1] == [[2, 8, 32], [0.5, 0.2, 0.01]]
    assert data[3] == [[2, 8], [0.9, 0.4]]
    assert ax.get_xscale() == "log"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [
        "fitted, mean row",
        "fitted, worst row",
        "truncated SVD, mean row",
        "truncated SVD, worst row",
        "asked: 0.05",
    ]
    assert list(ax.get_xticks()) == [2, 8, 32]
    assert ax.get_ylim()[0] == 0


def test_curve_of_maps_is_beside_that_of_the_closed_form(ax):
    queries, keys = RNG.standard_normal((2, 4, 20, 6))
    small = hf.compress(queries, keys, dim=2, curve_dims=(2, 4), effort="low")
    lines = plot.curve(small, ax=ax)
    for line, of in zip(lines[::2], (small.curve, small.curves["kq-svd"]), strict=True):
        np.testing.assert_array_equal(line.get_data(), (of.dim, of.tv_mean))
    labels = [line.get_label() for line in lines[::2]]
    assert labels == ["taken, mean row", "closed form, mean row"]
    _, worst = plot.curve(small.curve, ax=ax)
    np.testing.assert_array_equal(worst.get_ydata(), small.curve.tv_worst)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot.keys(np.eye(3), np.eye(3), 0, ax=ax), "a Fit or an Attention"),
        (lambda ax: plot.keys(np.eye(3), hf.Attention(*np.ones((2, 3, 2))), 3, ax=ax), "row"),
        (lambda ax: plot.keys(np.eye(4), hf.Attention(*np.ones((2, 3, 2))), 0, ax=ax), "shape"),
        (lambda ax: plot.certificate(np.eye(3), ax=ax), "a Certificate or a Fit; got ndarray"),
        (lambda ax: plot.search(np.eye(3), ax=ax), "searched for"),
        (lambda ax: plot.curve(np.eye(3), ax=ax), "result must be a TvCurve"),
        (lambda ax: plot.curve({"dim": [1]}, ax=ax), "result must be a TvCurve"),
    ],
)
def test_errors_name_the_problem(draw, message, ax):
    with pytest.raises(hf.errors.InputError, match=message):
        draw(ax)


def test_keys_with_rotary_positions_lie_where_they_are_multiplied():
    Q, K = np.random.default_rng(0).normal(size=(2, 32, 8))
    given = hf.Attention(Q, K, position="rope")
    places = [
        plot.keys(hf.patterns.band(32, 1), head, 5, ax=Figure().subplots()).others.get_offsets()
        for head in (given, given.rotated())
    ]
    np.testing.assert_allclose(np.abs(places[0]), np.abs(places[1]), atol=1e-9)
