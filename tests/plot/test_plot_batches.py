"""`batch` in headfit.plot: which entry of a batch a picture shows."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import headfit as hf
from headfit import plot
from headfit.errors import InputError

RNG = np.random.default_rng(3)
Q, K = RNG.standard_normal((2, 3, 20, 4))  # one head for a batch of three
HEAD = hf.Attention(Q, K, mask="causal", sinks=[0.5, -1.0, 2.0])
WEIGHTS = HEAD.matrix()


@pytest.fixture
def axes():
    return Figure().subplots(1, 3)


def test_pictures_of_one_matrix_draw_an_entry(axes):
    for batch in range(3):
        image = plot.attention(HEAD, batch=batch, ax=axes[0])
        np.testing.assert_allclose(image.get_array(), WEIGHTS[batch], rtol=1e-6)
        np.testing.assert_allclose(plot.tiles(HEAD, 20, batch=batch), WEIGHTS[batch], rtol=1e-6)


def test_compare_draws_an_entry_of_what_has_a_batch(axes):
    other = hf.Attention(Q, 0.5 * K, mask="causal")
    for A, target in ((other, other.matrix()[1]), (other.matrix()[1], other.matrix()[1])):
        left, right, difference = plot.compare(A, HEAD, batch=1, axes=axes, relative=False)
        np.testing.assert_allclose(left.get_array(), target)
        np.testing.assert_allclose(right.get_array(), WEIGHTS[1])
        np.testing.assert_allclose(difference.get_array(), np.abs(target - WEIGHTS[1]))


def test_keys_are_those_of_an_entry(axes):
    A = hf.patterns.causal_band(20, 2)
    stack = hf.Attention(Q, K, mask="causal")
    drawn = plot.keys(A, stack, 7, batch=2, ax=axes[0])
    alone = plot.keys(A, hf.Attention(Q[2], K[2], mask="causal"), 7, ax=axes[1])
    np.testing.assert_array_equal(drawn.support.get_offsets(), alone.support.get_offsets())
    np.testing.assert_array_equal(drawn.others.get_offsets(), alone.others.get_offsets())


def test_offsets_of_an_entry(axes):
    queries, keys = RNG.standard_normal((2, 2, 3, 4, 16, 5))  # layers, batch, heads
    table = hf.describe(queries, keys, mask="causal", shares=())
    for given in (hf.Attention(queries, keys, mask="causal"), table):
        cells = plot.offsets(given, batch=1, ax=axes[0]).get_array()
        expected = table.offset_mass[:, 1].reshape(8, -1)[:, 15:]
        np.testing.assert_allclose(cells, expected, rtol=1e-12)
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names == [f"{layer}.{head}" for layer in range(2) for head in range(4)]
    bars = plot.offsets(HEAD, batch=1, ax=axes[1])
    alone = hf.describe(HEAD, shares=()).offset_mass[1, 19:]
    np.testing.assert_allclose([bar.get_height() for bar in bars], alone)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot.attention(HEAD, ax=ax), r"entry batch= of a batch; got \(3, 20, 20\)"),
        (lambda ax: plot.attention(HEAD, batch=3, ax=ax), r"batch must lie in 0 \.\.\. 2; got 3"),
        (lambda ax: plot.attention(WEIGHTS, batch=0, ax=ax), "batch must not be given without"),
        (lambda ax: plot.attention(hf.Target(np.eye(3)), batch=0, ax=ax), "batch must not be"),
        (lambda ax: plot.tiles(HEAD, 4, batch="x"), "batch must be an integer in"),
        (lambda ax: plot.compare(np.eye(3), np.eye(3), batch=0), "batch must not be given without"),
        (lambda ax: plot.keys(np.eye(20), HEAD, ax=ax), "or of a batch with batch="),
        (
            lambda ax: plot.offsets(hf.Attention(K[0], K[0]), batch=0, ax=ax),
            "batch must not be given",
        ),
        (lambda ax: plot.offsets(HEAD, batch=-1, ax=ax), r"batch must lie in 0 \.\.\. 2; got -1"),
    ],
)
def test_errors_name_the_problem(draw, message, axes):
    with pytest.raises(InputError, match=message):
        draw(axes[0])
