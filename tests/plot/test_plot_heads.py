"""headfit.plot of heads and their targets: comparisons, grids, distances."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import sparse

import headfit as hf
from headfit import plot
from headfit.errors import InputError

RNG = np.random.default_rng(3)


@pytest.fixture
def axes():
    return Figure().subplots(1, 3)


def shares(A, M, leak, distortion):
    """Return each entry's share of its tolerance, and leak and distortion of the rows, by loops."""
    n = len(A)
    cells, rows = np.zeros((n, n)), np.zeros((n, 2))
    for i in range(n):
        on = np.flatnonzero(A[i])
        if not on.size:
            continue
        lightest = min(M[i, j] / A[i, j] for j in on)
        for j in range(n):
            if j in on:
                error = M[i, j] / A[i, j] / lightest - 1
                cells[i, j] = error / distortion
                rows[i, 1] = max(rows[i, 1], error)
            else:
                error = M[i, j] / min(M[i, on])
                cells[i, j] = error / leak
                rows[i, 0] = max(rows[i, 0], error)
    return cells, rows


def test_compare_shows_a_target_and_a_fit_in_one_scale(axes):
    A = hf.patterns.random_regular(40, 3, rng=0)
    head = hf.fit(A, 1024, leak=0.3, distortion=2.0)
    left, right, _ = plot.compare(A, head, axes=axes)
    assert (left.axes, right.axes) == tuple(axes[:2])
    assert left.get_clim() == right.get_clim() == (0.0, 1.0)
    assert left.get_cmap() == right.get_cmap()
    np.testing.assert_array_equal(left.get_array(), A.toarray() > 0)
    M = head.attention.matrix().astype(float)
    np.testing.assert_allclose(right.get_array(), M / M.max(axis=1, keepdims=True), rtol=1e-6)
    _, plain = plot.compare(hf.Target(A), M, axes=axes[:2], relative=False)
    np.testing.assert_allclose(plain.get_array(), M)


@pytest.mark.parametrize("as_given", ["attention", "dense", "sparse"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_compare_shows_where_leak_and_distortion_are(as_given, mask, axes, monkeypatch):
    monkeypatch.setattr("headfit.plot._tiles._BLOCK_ENTRIES", 100)  # many blocks
    n = 24
    Q, K = RNG.standard_normal((2, n, 6))
    head = hf.Attention(Q, K, mask=mask)
    M = head.matrix()
    A = hf.sparsify(M, per_row=3).matrix
    A.data *= RNG.uniform(1, 1.3, A.nnz)
    A = hf.Target(A, normalize=True).matrix
    given = {"attention": head, "dense": M, "sparse": sparse.csr_array(M)}[as_given]
    image = plot.compare(A, given, axes=axes, tolerances=hf.Tolerances(0.4, 0.3))[2]
    cells, rows = shares(A.toarray(), M, 0.4, 0.3)
    np.testing.assert_allclose(image.get_array(), cells, rtol=1e-9, atol=1e-12)
    ring, square = axes[2].lines
    leak, distortion = rows.max(axis=0)
    row = ring.get_ydata()[0]
    assert row == rows[:, 0].argmax()
    assert cells[row, ring.get_xdata()[0]] * 0.4 == pytest.approx(leak)
    row = square.get_ydata()[0]
    assert rows[row, 1] == pytest.approx(distortion)
    np.testing.assert_allclose(cells[row, square.get_xdata()[0]] * 0.3, distortion, atol=1e-9)
    certificate = hf.certify(A, matrix=M, mask=mask)
    assert f"row {certificate.worst_leak[0]}, column" in axes[2].get_xlabel()


def test_compare_pools_shares_and_takes_a_fits_tolerances(axes):
    A = hf.patterns.random_regular(60, 3, rng=0)
    head = hf.fit(A, 6, leak=0.2, distortion=0.3, rng=0)
    fine = plot.compare(A, head, axes=axes, pixels=60)[2].get_array()
    coarse = plot.compare(A, head, axes=Figure().subplots(1, 3), pixels=12)[2].get_array()
    np.testing.assert_allclose(coarse, fine.reshape(12, 5, 12, 5).max(axis=(1, 3)))
    c = head.certificate
    assert fine.max() == pytest.approx(max(c.leak / 0.2, c.distortion / 0.3), rel=1e-3)
    assert "of 0.2 at row" in axes[2].get_xlabel()


def test_compare_of_infinite_errors_draws_finite_cells(axes):
    M = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    A = np.array([[0, 1.0, 0], [0, 1, 0], [0, 0, 1]])
    image = plot.compare(A, M, axes=axes)[2]
    assert np.isfinite(image.get_array()).all()
    np.testing.assert_array_equal(image.get_array() > 1, [[1, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert "leak inf" in axes[2].get_xlabel()


def test_compare_of_a_dense_target_shows_differences(axes):
    Q, K = RNG.standard_normal((2, 20, 4))
    A, M = hf.Attention(Q, K), hf.Attention(Q, K[:, :3] @ np.eye(3, 4))
    dense_a, dense_m = A.matrix(), M.matrix()
    for given in (A, dense_a):
        image = plot.compare(given, M, axes=axes)[2]
        np.testing.assert_allclose(image.get_array(), np.abs(dense_a - dense_m))
    assert axes[2].get_title() == "absolute difference"


def test_compare_makes_a_figure_with_three_colour_bars():
    images = plot.compare(np.eye(4), np.full((4, 4), 0.25), tokens="abcd")
    assert [image.colorbar is None for image in images] == [False] * 3
    assert images[2].colorbar.extend == "max"
    assert [label.get_text() for label in images[2].axes.get_xticklabels()] == list("abcd")
    plt.close(images[0].axes.figure)


def test_heads_grid_of_queries_and_keys():
    Q = RNG.standard_normal((2, 4, 10, 3))
    K = RNG.standard_normal((2, 2, 10, 3))
    images = plot.heads_grid(hf.Attention(Q, K, mask="causal", scale=0.7))
    figure = images[0, 0].axes.figure
    assert images.shape == (2, 4)
    M = hf.attention_matrix(Q, K, mask="causal", scale=0.7)
    for place in np.ndindex(2, 4):
        np.testing.assert_allclose(images[place].get_array(), M[place])
        assert images[place].axes.get_title() == ".".join(map(str, place))
        assert images[place].get_clim() == (0.0, M.max())
    assert len(figure.axes) == 9
    assert figure.axes[-1].get_ylabel() == "attention weight"
    plt.close(figure)


def test_heads_grid_of_an_attention_with_a_mask_for_each_head(axes):
    Q, K = RNG.standard_normal((2, 3, 6, 2))
    mask = RNG.random((3, 6, 6)) < 0.7
    images = plot.heads_grid(hf.Attention(Q, K, mask=mask), axes=axes, titles=["a", "b", "c"])
    expected = hf.attention_matrix(Q, K, mask=mask)
    for image, ax, M, title in zip(images, axes, expected, "abc", strict=True):
        assert image.axes is ax
        assert ax.get_title() == title
        np.testing.assert_allclose(image.get_array(), M)


def test_heads_grid_of_matrices_in_lines_and_layers():
    A = hf.patterns.tree(300)
    images = plot.heads_grid([A] * 10, pixels=30)
    figure = images[0].axes.figure
    assert images.shape == (10,)
    assert images[9].get_array().shape == (30, 30)
    assert len(figure.axes) == 11  # ten heads and the colours, no empty axes
    plt.close(figure)
    layers = plot.heads_grid([[A, np.eye(4)], [np.eye(3), hf.Target(A)]])
    assert layers.shape == (2, 2)
    assert layers[0, 1].get_array().shape == (4, 4)
    plt.close(layers[0, 0].axes.figure)
    one = plot.heads_grid([A])
    plt.close(one[0].axes.figure)


def test_offsets_of_one_head_are_bars_of_its_profile(axes):
    Q, K = RNG.standard_normal((2, 12, 3))
    head = hf.Attention(Q, K, mask="causal")
    bars = plot.offsets(head, ax=axes[0])
    M = head.matrix()
    expected = [np.trace(M, -d) / 12 for d in range(12)]
    np.testing.assert_allclose([bar.get_height() for bar in bars], expected)
    assert [label.get_text() for label in axes[0].get_xticklabels()][:3] == ["0", "1", "2"]
    both = plot.offsets(hf.Attention(Q, K), ax=axes[1])
    assert len(both) == 23
    assert axes[1].get_xticklabels()[0].get_text() == "\u221211"


def test_offsets_by_doubling_add_up_and_are_named(axes):
    Q, K = RNG.standard_normal((2, 100, 3))
    bars = plot.offsets(hf.Attention(Q, K), ax=axes[0])
    names = [label.get_text() for label in axes[0].get_xticklabels()]
    middle = names.index("0")
    assert names[middle:] == [
        "0", "1", "2",
        "3\u20134", "5\u20138", "9\u201316", "17\u201332", "33\u201364", "65\u2013128",
    ]  # fmt: skip
    assert names[:middle] == ["\u2212" + name for name in names[:middle:-1]]
    M = hf.attention_matrix(Q, K)
    distance = np.arange(100)[:, None] - np.arange(100)
    heights = dict(zip(names, [bar.get_height() for bar in bars], strict=True))
    assert sum(heights.values()) == pytest.approx(1)
    for name, low, high in (
        ("0", 0, 0),
        ("2", 2, 2),
        ("5\u20138", 5, 8),
        ("\u22123\u20134", -4, -3),
    ):
        inside = (low <= distance) & (distance <= high)
        assert heights[name] == pytest.approx(M[inside].sum() / 100)


def test_offsets_of_heads_are_an_image(axes):
    Q, K = RNG.standard_normal((2, 2, 3, 100, 3))
    table = hf.describe(Q, K, mask="causal")
    image = plot.offsets(table, ax=axes[0])
    cells = image.get_array()
    assert cells.shape == (6, 9)
    np.testing.assert_allclose(cells.sum(axis=1), 1)
    assert image.colorbar.ax.get_ylabel() == "share of attention"
    few = hf.describe(Q[..., :40, :], K[..., :40, :], mask="causal")
    each = plot.offsets(few, ax=axes[1]).get_array()
    np.testing.assert_allclose(each, few.offset_mass.reshape(6, -1)[:, 39:])
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot.compare(np.eye(3), np.eye(4), axes=(ax, ax)), "one shape"),
        (lambda ax: plot.compare(np.eye(3), np.eye(3), axes=(ax,)), "two or three; got 1"),
        (lambda ax: plot.compare(np.eye(3), np.eye(3), tolerances=0.1), "tolerances must be"),
        (lambda ax: plot.heads_grid([], axes=[]), "at least one"),
        (lambda ax: plot.heads_grid([np.ones(3)], axes=[ax]), "one attention matrix"),
        (lambda ax: plot.heads_grid([np.eye(3)], axes=[ax, ax]), "axes must be one for each"),
        (lambda ax: plot.heads_grid([np.eye(3)], axes=[ax], titles=[]), "titles must be one"),
        (lambda ax: plot.heads_grid(hf.Target(np.eye(3)), axes=[ax]), "sequence of matrices"),
        (
            lambda ax: plot.heads_grid(hf.Attention(*np.ones((2, 3, 3))), axes=ax),
            r"\(heads, n, d\)",
        ),
        (lambda ax: plot.heads_grid([[np.eye(3)], []], axes=[ax]), "each layer"),
        (lambda ax: plot.offsets(np.eye(3), ax=ax), "heads must be a HeadTable"),
    ],
)
def test_errors_name_the_problem(draw, message, axes):
    with pytest.raises(hf.errors.InputError, match=message):
        draw(axes[0])


def test_a_grid_draws_an_entry_of_a_batch():
    rng = np.random.default_rng(0)
    Q, K = rng.standard_normal((2, 3, 2, 4, 16, 5))  # layers, batch, heads
    sinks = rng.standard_normal(4)
    head = hf.Attention(Q, K, mask="causal", sinks=sinks)
    images = hf.plot.heads_grid(head, batch=1)
    assert images.shape == (3, 4)
    weights = head.matrix()
    for layer, h in np.ndindex(3, 4):
        drawn = np.asarray(images[layer, h].get_array())
        np.testing.assert_allclose(drawn, weights[layer, 1, h], rtol=1e-6)
    assert hf.plot.heads_grid(hf.Attention(Q[0], K[0]), batch=0).shape == (4,)
    with pytest.raises(InputError, match="or one axis more and batch="):
        hf.plot.heads_grid(head)
    with pytest.raises(InputError, match=r"batch must lie in 0 ... 1; got 2"):
        hf.plot.heads_grid(head, batch=2)
    with pytest.raises(InputError, match="or one axis more and batch="):
        hf.plot.heads_grid(hf.Attention(Q[0, 0], K[0, 0]), batch=0)
    with pytest.raises(InputError, match="batch must not be given without an Attention"):
        hf.plot.heads_grid([weights[0, 0, 0]], batch=0)
