"""headfit.plot: pooling compared with a slow reference, and the pictures that are drawn."""

from __future__ import annotations

import sys
import tracemalloc

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import sparse

import headfit as hf
from headfit import plot

RNG = np.random.default_rng(2)


def test_pictures_share_one_scale():
    small, large = np.diag([0.1, 0.2, 0.3]), np.diag([1.0, 2.0, np.nan])
    for norm in (None, "linear", "log", matplotlib.colors.Normalize(), matplotlib.colors.LogNorm()):
        images = plot.heads_grid([small, large], norm=norm, axes=Figure().subplots(1, 2))
        limits = {(image.norm.vmin, image.norm.vmax) for image in images}
        assert len(limits) == 1
        assert limits.pop()[1] == 2.0
        plot.compare(small, 0.01 * small, norm=norm, axes=Figure().subplots(1, 3))


def test_whole_numbers_are_subtracted_as_numbers():
    A, M = np.ones((3, 3)), 1 + np.tri(3)
    for dtype in (np.uint8, np.float32):
        images = plot.compare(
            sparse.csr_array(A.astype(dtype)), sparse.csr_array(M.astype(dtype)),
            axes=Figure().subplots(1, 3),
        )  # fmt: skip
        np.testing.assert_array_equal(images[2].get_array(), np.abs(A - M))


def test_labels_that_have_no_order_are_refused_before_a_figure_is_made():
    before = plt.get_fignums()
    for tokens in ({"a", "b", "c"}, {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(hf.errors.InputError, match="tokens must be a sequence of labels"):
            plot.attention(np.eye(3), tokens=tokens)
    with pytest.raises(hf.errors.InputError, match="A must hold real numbers"):
        plot.compare("x", np.eye(3))
    assert plt.get_fignums() == before


def pooled(M, pixels, relative=False):
    """Return the largest entry of each tile, computed entry by entry."""
    n, m = M.shape
    p, q = min(n, pixels), min(m, pixels)
    rows = [i * n // p for i in range(p + 1)]
    columns = [j * m // q for j in range(q + 1)]
    if relative:
        M = np.array([row / (row.max() or 1.0) for row in M])
    return np.array(
        [
            [M[rows[i] : rows[i + 1], columns[j] : columns[j + 1]].max() for j in range(q)]
            for i in range(p)
        ]
    )


@pytest.fixture
def axes():
    return Figure().subplots(1, 2)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("n", "m", "pixels"), [(1, 1, 1), (7, 5, 3), (64, 65, 64), (100, 9, 31)])
def test_tiles_are_the_largest_of_each(n, m, pixels, relative, monkeypatch):
    monkeypatch.setattr("headfit.plot._tiles._BLOCK_ENTRIES", 50)  # many blocks
    M = RNG.random((n, m)) * (RNG.random((n, m)) < 0.3)
    expected = pooled(M, pixels, relative)
    np.testing.assert_allclose(plot.tiles(M, pixels, relative=relative), expected)
    as_sparse = sparse.csc_array(M)
    np.testing.assert_allclose(plot.tiles(as_sparse, pixels, relative=relative), expected)


def test_tiles_stream_attention_by_rows(monkeypatch):
    monkeypatch.setattr("headfit.plot._tiles._BLOCK_ENTRIES", 1000)
    Q, K = RNG.standard_normal((2, 90, 4))
    attention = hf.Attention(Q, K, mask="causal")
    asked = []
    matrix = hf.Attention.matrix

    def watched(self, *, rows, **more):
        asked.append(rows.stop - rows.start)
        return matrix(self, rows=rows, **more)

    monkeypatch.setattr(hf.Attention, "matrix", watched)
    tiles = plot.tiles(attention, 20)
    monkeypatch.undo()
    np.testing.assert_allclose(tiles, pooled(attention.matrix(), 20))
    assert sum(asked) == 90
    assert max(asked) * 90 <= 1000


def test_tiles_of_sparse_matrices_hold_for_any_sign_duplicates_and_rows_without_entries():
    rows, columns = RNG.integers(0, 30, (2, 400))
    M = sparse.coo_array((RNG.standard_normal(400), (rows, columns)), shape=(30, 30))
    data, indices = np.ones(4), np.array([1, 1, 0, 2])
    doubled = sparse.csr_array((data, indices, np.array([0, 3, 3, 4])), shape=(3, 3))
    for matrix in (M, sparse.csr_array(-np.abs(RNG.random((6, 6)))), doubled):
        for pixels in (2, 3, 7, 100):
            expected = pooled(matrix.toarray(), pixels)
            np.testing.assert_allclose(plot.tiles(matrix, pixels), expected, atol=1e-12)
    assert not doubled.has_canonical_format  # the caller's matrix is not touched


def test_tiles_of_all_that_holds_a_matrix():
    Q, K = RNG.standard_normal((2, 12, 4))
    attention = hf.Attention(Q, K, mask="causal")
    soft = hf.shrink(attention, dim=2)
    sparsified = hf.sparsify(Q, K, mask="causal", per_row=2)
    target = hf.Target(hf.patterns.band(12, 1))
    head = hf.fit(target, 4, rng=0)
    for holder, matrix in (
        (attention, attention.matrix()),
        (soft, soft.attention.matrix()),
        (sparsified, sparsified.matrix.toarray()),
        (target, target.matrix.toarray()),
        (head, head.attention.matrix()),
    ):
        np.testing.assert_array_equal(plot.tiles(holder, 5), pooled(matrix, 5))


def test_every_entry_of_a_large_sparse_matrix_is_seen():
    A = hf.patterns.permutation(5000, rng=0)
    tiles = plot.tiles(A, 100)
    rows = np.arange(5000) * 100 // 5000
    assert (tiles[rows, A.indices * 100 // 5000] == 1).all()


def test_attention_draws_on_given_axes_and_nowhere_else(axes):
    before = matplotlib.rcParams.copy(), plt.get_fignums()
    A = hf.patterns.band(40, 1)
    image = plot.attention(A, ax=axes[0], tokens=[f"t{i}" for i in range(40)], cmap="cividis")
    assert image.axes is axes[0]
    assert not axes[1].images
    assert image.get_cmap().name == "cividis"
    np.testing.assert_array_equal(image.get_array(), A.toarray())
    assert tuple(image.get_extent()) == (-0.5, 39.5, 39.5, -0.5)
    for side in (axes[0].xaxis, axes[0].yaxis):
        names = [label.get_text() for label in side.get_ticklabels()]
        assert names == [f"t{place}" for place in side.get_ticklocs()]
        assert 10 < len(names) <= 40
    assert (matplotlib.rcParams, plt.get_fignums()) == before


def test_attention_makes_a_figure_where_none_is_given(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **k: pytest.fail("plt.show was called"))
    image = plot.attention(np.eye(3))
    left, right, wrong = plot.compare(np.eye(3), np.eye(3))
    assert left.axes.figure is right.axes.figure is wrong.axes.figure is not image.axes.figure
    plt.close(image.axes.figure)
    plt.close(left.axes.figure)


def test_one_scale_reaches_the_largest_weight_and_new_figures_name_their_colours(axes):
    M = np.full((5, 5), 0.2)
    image = plot.attention(M, ax=axes[0])
    assert image.get_clim() == (0.0, 0.2)
    assert image.colorbar is None
    assert (axes[0].get_xlabel(), axes[0].get_ylabel()) == ("key", "query")
    new = plot.attention(M, relative=True)
    assert new.colorbar.ax.get_ylabel() == "weight / largest of its row"
    plt.close(new.axes.figure)
    assert plot.attention(np.zeros((2, 2)), ax=axes[0]).get_clim() == (0.0, 1.0)


def test_squares_stay_square_and_a_few_rows_of_many_keys_fill_the_axes(axes):
    plot.attention(RNG.random((40, 60)), ax=axes[0])
    plot.attention(RNG.random((4, 600)), ax=axes[1])
    assert (axes[0].get_aspect(), axes[1].get_aspect()) == (1, "auto")


def test_nothing_large_is_stored_for_a_large_matrix(axes):
    A = hf.patterns.random_regular(100_000, 2, rng=0)
    tracemalloc.start()
    image = plot.attention(A, ax=axes[0], pixels=150)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1e8  # n x n bytes would be 1e10
    assert image.get_array().shape == (150, 150)
    assert image.get_array().max() == A.data.max()


def test_large_matrices_are_pooled_and_axes_still_count_tokens(axes):
    A = hf.patterns.tree(2000)
    image = plot.attention(A, ax=axes[0], pixels=100, tokens=range(2000))
    assert image.get_array().shape == (100, 100)
    assert tuple(image.get_extent()) == (-0.5, 1999.5, 1999.5, -0.5)
    assert len(axes[0].get_xticks()) <= 40
    assert max(plot.attention(A, ax=axes[1]).get_array().shape) < 500


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot.attention(np.ones((2, 3, 3)), ax=ax), "one attention matrix"),
        (lambda ax: plot.attention(hf.Attention(*np.ones((2, 2, 3, 1))), ax=ax), "one attention"),
        (lambda ax: plot.attention(np.ones((0, 0)), ax=ax), "not empty"),
        (lambda ax: plot.attention(np.eye(3), ax=ax, tokens="ab"), "tokens must label"),
        (lambda ax: plot.attention(np.eye(3), ax=ax, pixels=0), "pixels"),
    ],
)
def test_errors_name_the_problem(draw, message, axes):
    with pytest.raises(hf.errors.InputError, match=message):
        draw(axes[0])


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an import of it is an ImportError
    with pytest.raises(ImportError, match=r"headfit\[plot\]"):
        plot.attention(np.eye(2))
