"""headfit.plot of filters: logits against the offset, and what rotary positions reach."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import headfit as hf
from headfit import plot
from headfit.errors import InputError

LOOSE = hf.Tolerances(leak=0.3, distortion=0.5)
FOUND = hf.rope.filter(4, n=256, dim=32, tolerances=LOOSE)


@pytest.fixture
def ax():
    return Figure().subplots()


def test_a_rope_filter_has_its_limits(ax):
    drawn = plot.translation(FOUND, ax=ax)
    x, y = drawn.logits.get_data()
    np.testing.assert_allclose(y, FOUND.filter.logits_between(int(x[0]), int(x[-1])), atol=1e-9)
    assert (x[0], x[-1]) == (0, 3 + 48)
    bars = np.array(drawn.allowed.get_segments())
    np.testing.assert_array_equal(bars[:, 0, 0], range(4))
    assert (bars[:, 0, 1] <= y[:4]).all()
    assert (y[:4] <= bars[:, 1, 1]).all()
    np.testing.assert_allclose(bars[:, 1, 1] - bars[:, 0, 1], math.log(1.5))
    (limit,) = set(drawn.limit.get_ydata())
    assert limit == pytest.approx(y[:4].min() + math.log(0.3))
    assert y[4:].max() <= limit
    assert drawn.inset.get_xlim() == (-0.5, 255.5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [True, False])
def test_heads_are_drawn_by_their_last_row_and_their_first(ax, causal, dtype):
    n = 100
    found = hf.rope.filter(3, n=n, causal=causal, tolerances=LOOSE)
    A = (hf.patterns.causal_band if causal else hf.patterns.band)(n, 2)
    head = found.attention(dtype=dtype).rotated()
    drawn = plot.translation(head, A, tolerances=LOOSE, ax=ax)
    x, y = (np.asarray(v) for v in drawn.logits.get_data())
    assert (x[0] < 0) != causal
    logits = head.logits(num_threads=1)
    for offset, value in zip(x.astype(int), y, strict=True):
        i, j = (n - 1, n - 1 - offset) if offset >= 0 else (0, -offset)
        assert value == logits[i, j]
    assert len(drawn.allowed.get_segments()) == (3 if causal else 5)
    plain = plot.translation(head, ax=ax)
    assert plain.allowed is plain.limit is None


def test_angles_of_late_positions_may_be_rounded(ax):
    head = hf.rope.filter(4, n=512, dim=32, tolerances=LOOSE).attention().rotated()
    assert plot.translation(head, ax=ax).allowed is None


def test_fits_have_their_tolerances(ax):
    n, x = 60, np.arange(60)
    Q = 12 * np.stack([np.cos(0.05 * x), np.sin(0.05 * x)], axis=1)

    class Rotated(hf.methods.Method):
        name = "rotated"

        def head(self, problem, dim, patience="full"):
            return hf.methods.Head(Q, Q / 12)

    A = hf.patterns.band(n, 1)
    fit = hf.fit(A, 2, method=Rotated(), leak=0.9, distortion=0.9, num_threads=1)
    drawn = plot.translation(fit, A, ax=ax)
    offsets, y = (np.asarray(v) for v in drawn.logits.get_data())
    np.testing.assert_allclose(y, 12 * np.cos(0.05 * offsets), atol=1e-4)
    (limit,) = set(drawn.limit.get_ydata())
    assert limit == pytest.approx(12 * math.cos(0.05) + math.log(0.9), abs=1e-4)


def test_what_no_offset_tells_is_refused(ax):
    blocks = np.kron(hf.patterns.band(16, 1).toarray(), np.ones((4, 4)))
    blocks /= blocks.sum(axis=1, keepdims=True)
    both = hf.rope.filter(2, n=64, dim=16, causal=False, tolerances=LOOSE)
    for head in (both, both.attention()):
        with pytest.raises(InputError, match="token by token; got blocks of tokens"):
            plot.translation(head, blocks, ax=ax)
    Q, K = np.ones((2, 5, 4))
    with pytest.raises(InputError, match="head must allow a key"):
        plot.translation(hf.Attention(Q, K, key_lengths=np.array(0)), ax=ax)


def test_a_head_that_is_no_filter_is_refused(ax):
    Q = np.random.default_rng(0).standard_normal((20, 4))
    with pytest.raises(InputError, match=r"head must be a filter.* at offset -?\d+ row 0 has"):
        plot.translation(hf.Attention(Q, Q), ax=ax)
    exact = FOUND.attention().rotated()
    q = exact.Q.copy()
    q[17 * 7] *= 1 + 1e-9  # one of the rows that are compared
    with pytest.raises(InputError, match=r"row 119 has .* another row"):
        plot.translation(hf.Attention(q, exact.K, mask="causal"), ax=ax)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ax: plot.translation(5, ax=ax), "head must be a Fit"),
        (
            lambda ax: plot.translation(FOUND, hf.patterns.tree(9), ax=ax),
            "a nonzero on a masked",
        ),
        (lambda ax: plot.translation(hf.rope.filter(30, n=64, dim=4), ax=ax), "out of reach"),
        (lambda ax: plot.translation(hf.Attention(*np.ones((2, 2, 5, 2))), ax=ax), "one head"),
        (lambda ax: plot.rope([], ax=ax), "at least one"),
        (lambda ax: plot.rope([5], ax=ax), "RopeFilters"),
        (lambda ax: plot.rope(hf.rope.filter(hf.patterns.dilated(9, 1, 2)), ax=ax), "of windows"),
    ],
)
def test_errors_name_the_problem(call, message, ax):
    with pytest.raises(InputError, match=message):
        call(ax)


def test_rope_draws_a_line_per_embedding_and_what_is_out_of_reach(ax):
    found = hf.rope.windows([2, 4, 48], n=64, dims=[16, 32], bases=[100.0, 1e4], tolerances=LOOSE,
                            max_norm=1e4)  # fmt: skip
    drawn = plot.rope(found[::-1], ax=ax)
    assert len(drawn.lines) == 4
    for line, marks in zip(drawn.lines, drawn.out_of_reach, strict=True):
        mine = [f for f in found if f"base {f.base:,.0f}, size {f.dim}" == line.get_label()]
        assert len(mine) == 3
        reached = [f for f in mine if f.status == "found"]
        np.testing.assert_array_equal(line.get_xdata(), [f.width for f in reached])
        np.testing.assert_array_equal(line.get_ydata(), [f.norm for f in reached])
        missing = [f.width for f in mine if f.status == "out of reach"]
        np.testing.assert_array_equal(marks.get_offsets()[:, 0], missing)
        assert (marks.get_offsets()[:, 1] > 1e4).all()
    assert not any(len(marks.get_offsets()) for marks in drawn.undecided)
    assert ax.get_yscale() == "log"


def test_pictures_are_made_without_axes_too(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **k: pytest.fail("plt.show was called"))
    for drawn in (plot.translation(FOUND).logits, plot.rope(FOUND).lines[0]):
        plt.close(drawn.axes.figure)


def test_rope_claims_what_is_proved_alone(ax):
    far = hf.rope.filter(8, n=64, dim=16, max_norm=20)
    near = hf.rope.filter(2, n=64, dim=16, max_norm=1e5)
    plot.rope([far, near], ax=ax)
    assert "no norm below this line" in ax.texts[0].get_text()
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), [20, 20])
    norm = hf.rope.filter(4, n=64, dim=16).norm
    unknown = hf.rope.filter(4, n=64, dim=16, max_norm=0.995 * norm)
    assert unknown.status == "undecided"
    ax = Figure().subplots()
    assert len(plot.rope(unknown, ax=ax).undecided[0].get_offsets()) == 1
    assert not ax.texts


def test_rope_joins_windows_of_one_embedding_and_kind():
    of_base = [hf.rope.filter(2, n=64, inv_freq=base ** (-np.arange(8) / 8)) for base in (9, 1e4)]
    kinds = [hf.rope.filter(4, n=64, dim=16, causal=causal) for causal in (True, False)]
    sizes = [hf.rope.filter(2, n=n, dim=16) for n in (64, 65)]
    for pair in (of_base, kinds, sizes):
        lines = plot.rope(pair, ax=Figure().subplots()).lines
        assert len({line.get_label() for line in lines}) == 2
        assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 2
    mixed = plot.rope([of_base[0], kinds[0]], ax=Figure().subplots()).lines
    assert mixed[0].get_label() == "given frequencies, size 16"
