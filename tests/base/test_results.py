"""What all results have in common: HTML for notebooks, `to_dict`, `to_pandas`, and pickles."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.references import assert_same

import headfit as hf
from headfit._attention.profile import HeadStatistics, Measures
from headfit._base.display import plain

SIZE = 50_000


def _model_table() -> hf.results.ModelTable:
    statistics = HeadStatistics(3, Measures())
    statistics.add(hf.Attention(*np.random.default_rng(0).normal(size=(2, 3, 10, 4))))
    return hf.results.ModelTable.of({"<b>": ("self", statistics)})


def made() -> dict[str, object]:
    """Return results of every class, small ones."""
    rng, one = np.random.default_rng(0), {"num_threads": 1}
    A = hf.patterns.band(24, 1)
    Q, K = rng.normal(size=(2, 30, 8)) * 2.0 ** -np.arange(8) * 8
    stack = hf.Attention(*rng.normal(size=(2, 2, 3, 10, 4)))
    head = hf.Attention(Q, K, mask="causal", softcap=30.0)
    fit = hf.fit(A, 4, **one)
    searched = hf.fit(A, time_limit=2, leak=0.3, distortion=1.0, **one)
    shrunk = hf.shrink(Q, K, mask="causal", dim=3, **one)
    mix = rng.normal(size=(2, 8, 8)) * 2.0 ** -np.arange(8) * 6
    passages = [rng.normal(size=(20, 8)) @ mix for _ in range(6)]
    small = hf.compress(passages, dim=2, mask="causal", **one)
    heads = hf.compress({("a", 0): passages, ("a", 1): passages[::-1]}, dim=3, **one)
    quick = {"dim": 2, "keys": 8, "window": 2, "first": 1, "effort": 2, **one}
    found = hf.index({"<b>": passages, ("a", 1): passages[::-1]}, **quick, curve_dims=(1, 2))
    heads_given = [hf.Attention(x[0], x[1], mask="causal") for x in passages]
    points = hf.sweep.grid(pattern="band", n=[16, 32], neighbors=[1, 2], dim=8)
    with tempfile.TemporaryDirectory() as folder:
        swept = hf.sweep.run(points, Path(folder) / "<b>", workers=0, **one)
    return {
        "Target": hf.Target(A),
        "Fit": fit,
        "Fit in a module": hf.fit(A, module=hf.SelfAttention.random(4, rng=0), leak=0.3, **one),
        "Fit without a certificate": hf.fit(A, 1, **one),
        "Search": searched.search,
        "Certificate": fit.certificate,
        "Certificate of a matrix": hf.certify(A, matrix=A.toarray()),
        "Certificate without mass": hf.certify(A, fit, certificate_mass=False),
        "SelectionCertificate": hf.certify_selection(
            Q,
            K,
            Q[:, :2].round(2).astype("float16"),
            K[:, :2].round(2).astype("float16"),
            mask="causal",
            keys=5,
            window=2,
            first=1,
            mass=0.99,
        ),
        "Attention": head,
        "Attention of heads": stack,
        "Comparison": shrunk.comparison,
        "ShrinkResult": shrunk,
        "TvCurve": shrunk.curve,
        "Compressed": small,
        "CompressedHeads": heads,
        "Index": found["<b>"],
        "IndexQuality": found["<b>"].quality,
        "IndexQualities": found.judge({"<b>": heads_given, ("a", 1): heads_given}),
        "IndexCurve": found.curve,
        "IndexSharing": hf.results.Indexes({("<b>", 0): found["<b>"]}, 0.0).sharing(
            {("<b>", 0): heads_given}
        ),
        "Indexes": found,
        "Sparsified": hf.sparsify(Q, K, mask="causal", per_row=3, per_column=4),
        "AttentionStats": head.stats(shares=(0.5, 0.9)),
        "AttentionStats of heads": stack.stats(shares=()),
        "HeadTable": hf.describe(stack),
        "ModelTable": _model_table(),
        "Plan": hf.plan(A, dim=4, dtype="float32", time_limit=2, **one),
        "RopeFilter": hf.rope.filter(hf.patterns.causal_band(32, 2), dim=16, leak=0.3),
        "LowerBound": hf.bounds.lower(A, max_norm=5.0, mask=("window", (2, 2))),
        "Sweep": swept,
    }


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    return made()


NAMES = (
    "Target", "Fit", "Fit in a module", "Fit without a certificate", "Search", "Certificate",
    "Certificate of a matrix", "Certificate without mass", "SelectionCertificate", "Attention",
    "Attention of heads", "Comparison", "ShrinkResult", "TvCurve", "Compressed",
    "CompressedHeads", "Index", "IndexQuality", "IndexQualities", "IndexCurve", "IndexSharing",
    "Indexes",
    "Sparsified", "AttentionStats", "AttentionStats of heads", "HeadTable", "ModelTable", "Plan",
    "RopeFilter", "LowerBound", "Sweep",
)  # fmt: skip
WITHOUT_DICT = ("Attention", "Attention of heads", "Sweep")
TABLES = {
    "Search": {"dim", "holds", "leak", "distortion", "seconds", "restarts", "reason"},
    "Certificate": {"leak", "distortion", "tv", "stray", "status"},
    "Certificate without mass": {"leak", "distortion", "status"},
    "Comparison": {"kl", "tv"},
    "TvCurve": {"tv_mean", "tv_worst", "kl_mean"},
    "CompressedHeads": None,
    "AttentionStats": {"entropy", "max_weight", "effective_support", "log_sum", "key_mass",
                       "keys50", "keys90"},
    "AttentionStats of heads": {"entropy", "max_weight", "effective_support", "log_sum",
                                "key_mass"},
    "HeadTable": None,
    "ModelTable": None,
    "Plan": {field.name for field in dataclasses.fields(hf.results.PlanAttempt)},
}  # fmt: skip


def test_all_results_are_here(results):
    assert tuple(results) == NAMES


# HTML


class Tags(HTMLParser):
    """Check that tags are closed in order; collect texts and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.texts, self.images = [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("name", NAMES)
def test_html_is_the_text_and_perhaps_a_picture(results, name):
    page = results[name]._repr_html_()
    assert len(page) < SIZE
    tags = Tags(page)
    assert "".join(tags.texts) == str(results[name])
    assert not re.search(r"color|black|#000", re.sub(r"base64,[\w+/=]+", "", page))
    for image in tags.images:
        assert image["alt"]
        assert image["src"].startswith("data:image/svg+xml;base64,")


@pytest.mark.parametrize("name", ["Fit", "Certificate", "Target", "Attention", "ShrinkResult",
                                  "Plan", "RopeFilter", "Sparsified", "TvCurve",
                                  "Compressed"])  # fmt: skip
def test_pictures_are_drawn_without_pyplot_and_left_out_without_matplotlib(
    results, name, monkeypatch
):
    pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    page = results[name]._repr_html_()
    assert page.count("<img") == 1
    assert plt.get_fignums() == before
    assert results[name]._repr_html_() == page  # nothing in it is drawn by chance
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    assert results[name]._repr_html_() == page[: page.index("<img")]


def test_a_picture_that_is_too_large_is_left_out(monkeypatch, results):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("headfit.plot._html.PICTURE_BYTES", 1000)
    assert "<img" not in results["Fit"]._repr_html_()
    Q = np.zeros((1025, 1))
    monkeypatch.undo()
    assert "<img" not in hf.Attention(Q, Q)._repr_html_()
    assert "(0, 1)" in hf.Attention(Q[:0], Q)._repr_html_()  # no rows: nothing to draw


def test_long_lines_are_drawn_in_little_room():
    pytest.importorskip("matplotlib")
    A = hf.patterns.random_regular(1000, 3, rng=0)
    rows = np.random.default_rng(0).standard_normal((2, 1000, 4))
    page = hf.certify(A, *rows, num_threads=1)._repr_html_()
    assert page.count("<img") == 1
    assert len(page) < SIZE


def test_html_escapes_names(results):
    search = dataclasses.replace(results["Search"], stopped="a <script> & b")
    assert "a &lt;script&gt; &amp; b" in search._repr_html_()


def test_a_bound_that_no_size_meets_and_a_curve_of_one_point():
    assert "no size suffices" in hf.bounds.lower(hf.patterns.band(9, 1), max_norm=0.1).in_words()
    one = hf.results.TvCurve(np.array([3]), *np.array([[0.25], [0.5], [0.1]]))
    assert "<img" not in one._repr_html_()  # a point is no line


# Dictionaries


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_DICT])
def test_dictionaries_are_strict_json(results, name):
    figures = results[name].to_dict()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert all(isinstance(key, str) for key in figures)


def test_dictionaries_hold_the_figures(results):
    fit = results["Fit"]
    figures = fit.to_dict()
    assert (figures["dim"], figures["status"]) == (4, "holds")
    assert figures["certificate"]["leak"] == fit.certificate.leak
    assert figures["certificate"] == fit.certificate.to_dict()
    assert results["TvCurve"].to_dict()["dim"] == results["TvCurve"].dim.tolist()
    assert results["ShrinkResult"].to_dict()["curve"] == results["TvCurve"].to_dict()
    assert results["HeadTable"].to_dict()["rank"] == results["HeadTable"].rank.tolist()
    heads = results["CompressedHeads"].to_dict()
    assert heads["heads"]["('a', 1)"]["tv_mean"] == results["CompressedHeads"]["a", 1].tv_mean
    assert "P_q" not in heads["heads"]["('a', 1)"]


def test_what_json_lacks_has_a_form():
    assert plain({"a": np.nan, 1: np.inf, "b": -np.inf}) == {"a": None, "1": "inf", "b": "-inf"}
    assert plain([np.float32(0.5), np.int8(3), np.bool_(True), None]) == [0.5, 3, True, None]
    assert plain(np.array([[1.0, np.nan]])) == [[1.0, None]]
    assert plain(hf.Tolerances()) == {"leak": 0.05, "distortion": 0.1, "max_logit": None}
    assert plain(range) == str(range)


# Data frames


@pytest.mark.parametrize("name", TABLES)
def test_tables_as_data_frames(results, name):
    pandas = pytest.importorskip("pandas")
    frame = results[name].to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    if TABLES[name] is not None:
        assert set(frame.columns) == TABLES[name]
    assert len(frame) > 0
    assert None not in frame.index.names


def test_data_frames_hold_the_numbers(results):
    pytest.importorskip("pandas")
    c = results["Certificate"]
    assert c.to_pandas()["leak"].max() == c.leak
    assert (c.to_pandas()["status"] == "holds").all()
    small = results["Compressed"]
    assert small.curves["taken"].to_pandas().loc[2, "kl_mean"] == small.kl
    assert results["TvCurve"].to_pandas().loc[3, "tv_mean"] == results["ShrinkResult"].tv_mean
    stats = results["AttentionStats of heads"]
    assert stats.to_pandas().loc[(1, 2, 9), "entropy"] == stats.entropy[1, 2, 9]
    trials = results["Search"].to_pandas()
    assert trials["dim"].tolist() == [t.dim for t in results["Search"].trials]
    heads = results["CompressedHeads"]
    assert heads.to_pandas().loc["('a', 0)", "tv_mean"] == heads["a", 0].tv_mean


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_pandas_is_named(results, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas: pip install 'headfit\[pandas"):
        results[name].to_pandas()


# Pickles


@pytest.mark.parametrize("name", NAMES)
def test_pickles_hold_everything(results, name):
    kept = results[name]
    again = pickle.loads(pickle.dumps(kept))
    assert_same(again, kept)
    assert repr(again) == repr(kept)
    if hasattr(kept, "_repr_html_"):
        assert again._repr_html_() == kept._repr_html_()


def test_the_comparison_of_pickles_can_fail(results):
    fit = results["Fit"]
    other = dataclasses.replace(fit, Q=fit.Q + 1)
    with pytest.raises(AssertionError, match=r"it\.Q"):
        assert_same(fit, other)
