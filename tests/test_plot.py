"""headfit.plot: pooling against a slow reference, and what is drawn."""

from __future__ import annotations

import builtins

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import sparse

import headfit as hf
from headfit import plot

RNG = np.random.default_rng(2)


def pooled(M, pixels, relative=False):
    """The largest entry of each tile, one entry after the other."""
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
    monkeypatch.setattr(plot, "_BLOCK_ENTRIES", 50)  # many blocks
    M = RNG.random((n, m)) * (RNG.random((n, m)) < 0.3)
    expected = pooled(M, pixels, relative)
    np.testing.assert_allclose(plot.tiles(M, pixels, relative=relative), expected)
    as_sparse = sparse.csc_array(M)
    np.testing.assert_allclose(plot.tiles(as_sparse, pixels, relative=relative), expected)


def test_tiles_stream_attention_by_rows(monkeypatch):
    monkeypatch.setattr(plot, "_BLOCK_ENTRIES", 1000)
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
    assert [label.get_text() for label in axes[0].get_xticklabels()][:2] == ["t0", "t1"]
    assert (matplotlib.rcParams, plt.get_fignums()) == before


def test_attention_makes_a_figure_where_none_is_given(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **k: pytest.fail("plt.show was called"))
    image = plot.attention(np.eye(3))
    left, right = plot.compare(np.eye(3), np.eye(3))
    assert left.axes.figure is right.axes.figure is not image.axes.figure
    plt.close(image.axes.figure)
    plt.close(left.axes.figure)


def test_large_matrices_are_pooled_and_axes_still_count_tokens(axes):
    A = hf.patterns.tree(2000)
    image = plot.attention(A, ax=axes[0], pixels=100, tokens=range(2000))
    assert image.get_array().shape == (100, 100)
    assert tuple(image.get_extent()) == (-0.5, 1999.5, 1999.5, -0.5)
    assert len(axes[0].get_xticks()) <= 40
    assert max(plot.attention(A, ax=axes[1]).get_array().shape) < 500


def test_compare_shows_a_target_and_a_fit_in_one_scale(axes):
    A = hf.patterns.random_regular(40, 3, rng=0)
    head = hf.fit(A, 1024, leak=0.3, distortion=2.0)
    left, right = plot.compare(A, head, axes=axes)
    assert (left.axes, right.axes) == tuple(axes)
    assert left.get_clim() == right.get_clim() == (0.0, 1.0)
    assert left.get_cmap() == right.get_cmap()
    np.testing.assert_array_equal(left.get_array(), A.toarray() > 0)
    M = head.attention.matrix().astype(float)
    np.testing.assert_allclose(right.get_array(), M / M.max(axis=1, keepdims=True), rtol=1e-6)
    _, plain = plot.compare(hf.Target(A), M, axes=axes, relative=False)
    np.testing.assert_allclose(plain.get_array(), M)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot.attention(np.ones((2, 3, 3)), ax=ax), "one attention matrix"),
        (lambda ax: plot.attention(hf.Attention(*np.ones((2, 2, 3, 1))), ax=ax), "one attention"),
        (lambda ax: plot.attention(np.ones((0, 0)), ax=ax), "not empty"),
        (lambda ax: plot.attention(np.eye(3), ax=ax, tokens="ab"), "tokens must label"),
        (lambda ax: plot.compare(np.eye(3), np.eye(4), axes=(ax, ax)), "one shape"),
        (lambda ax: plot.attention(np.eye(3), ax=ax, pixels=0), "pixels"),
    ],
)
def test_errors_name_the_problem(draw, message, axes):
    with pytest.raises(hf.InputError, match=message):
        draw(axes[0])


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def missing(name, *more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"headfit\[plot\]"):
        plot.attention(np.eye(2))
