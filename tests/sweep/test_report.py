"""Reports: a page that needs no other file, numbers beside it, and nothing lost."""

from __future__ import annotations

import csv
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import headfit as hf
from headfit._sweep.chart import make_chart
from headfit._sweep.choose_charts import charts
from headfit._sweep.draw_chart import description, line_name
from headfit._sweep.report import MANIFEST, write_report
from headfit._sweep.result import Sweep
from headfit.errors import FileError

pytest.importorskip("matplotlib")

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects what a page refers to, its ids and its pictures, and checks that elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.elements: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        given = dict(attrs)
        self.elements.append(tag)
        self.links += [given[k] for k in ("src", "href", "xlink:href", "data") if k in given]
        self.ids += [given["id"]] if "id" in given else []
        if tag == "svg":
            assert given["role"] == "img"
            self.labels.append(given["aria-label"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(page: Path) -> Page:
    found = Page()
    found.feed(page.read_text(encoding="utf-8"))
    assert not found.open
    return found


@pytest.fixture
def found(tmp_path):
    points = hf.grid(pattern="random_regular", n=[16, 32], k=[2, 3], dim=[2, 6], effort=20)
    points += hf.grid(pattern="random_regular", n=4, k=5, dim=6)  # fails: k is above n
    hf.sweep(points, tmp_path / "store", processes=0, num_threads=1)
    return hf.load_sweep(tmp_path / "store")


def test_the_page_opens_offline_and_says_everything(found, tmp_path):
    files = write_report(found, tmp_path / "report")
    assert sorted(os.listdir(tmp_path / "report")) == files
    page = read(tmp_path / "report" / "index.html")
    for link in page.links:
        assert link.startswith("#") or link in files, link
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)", text)
    assert "script" not in page.elements
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert not link.startswith("#") or link[1:] in page.ids
    assert (
        page.elements.count("svg")
        == len(page.labels)
        == len([name for name in files if "-against-" in name])
    )
    assert all(len(label) > 40 for label in page.labels)
    assert "9 points: 8 with a result, 1 failed." in page.text
    assert "k must lie in 1 ... 4" in page.text
    assert found.rows[0]["cpu"] in page.text
    assert "Share certified against tokens n" in page.text


def test_the_numbers_beside_a_picture_are_those_of_the_sweep(found, tmp_path):
    write_report(found, tmp_path / "report")
    with open(tmp_path / "report" / "certified-against-n.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        values = {name: int(row[name]) for name in row if name in ("n", "k", "dim")}
        same = found.where(**values)
        assert int(row["points"]) == len(same)
        assert float(row["share"]) == same.columns["certified"].mean()
    with open(tmp_path / "report" / "results.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(found)


@pytest.fixture
def small(swept, tmp_path):
    """A sweep with one picture."""
    hf.sweep(hf.grid(x=[1, 2, 8]), tmp_path / "store", run=swept.square, processes=0)
    return hf.load_sweep(tmp_path / "store")


def test_nothing_that_is_there_is_lost(small, tmp_path):
    folder = tmp_path / "report"
    write_report(small, folder)
    first = (folder / "index.html").read_bytes()
    (folder / "index.html").write_text("old")
    write_report(small, folder)
    assert (folder / "index.html").read_bytes() == first
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match=r"holds notes\.txt"):
        write_report(small, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(FileError, match="which is not of a report"):
        write_report(small, tmp_path / "store")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match="no folder"):
        write_report(small, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    write_report(small, tmp_path / "empty")
    assert not list(tmp_path.glob(".headfit*"))


def test_an_interrupted_report_leaves_the_old_one(small, tmp_path, monkeypatch):
    folder = tmp_path / "report"
    write_report(small, folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def fail(self: Path, text: bytes) -> int:
        if self.name == MANIFEST:
            raise OSError(28, "No space left on device")
        return len(text)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(FileError, match=r"output: .* cannot be written: No space"):
        write_report(small, folder)
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert not list(tmp_path.glob(".headfit*"))


def test_a_store_without_results_has_a_report_all_the_same(swept, tmp_path):
    hf.sweep([{"x": 1, "log": str(tmp_path / "log")}], tmp_path / "s", run=swept.picky, processes=0)
    write_report(hf.load_sweep(tmp_path / "s"), tmp_path / "report")
    assert "1 point: 0 with a result, 1 failed." in read(tmp_path / "report" / "index.html").text


def test_functions_of_ones_own_are_drawn(small, tmp_path):
    files = write_report(small, tmp_path / "report")
    assert "square-against-x.csv" in files


def test_charts_take_medians_and_shares():
    rows = [
        {"n": n, "k": k, "seed": seed, "work": "w", "y": n * k + seed, "ok": seed == 0}
        for n in (8, 16) for k in (1, 2) for seed in (0, 1, 5)
    ]  # fmt: skip
    axes = {"n": [8, 16], "k": [1, 2], "seed": [0, 1, 5]}
    found = {chart.y: chart for chart in charts(rows, axes, "w")}
    assert set(found) == {"y", "ok"}
    chart = found["y"]
    assert (chart.x, chart.split, chart.pooled) == ("n", ("k",), ())
    spot = chart.lines[(2,)][1]
    assert (spot.x, spot.y, spot.low, spot.high, spot.count) == (16, 33, 32, 37, 3)
    assert found["ok"].lines[(1,)][0].y == pytest.approx(1 / 3)
    assert "k = 2: 17 at n = 8 to 33 at 16" in description(chart)


def test_the_smallest_size_of_those_asked_for():
    rows = [
        {"n": n, "dim": dim, "seed": seed, "certified": dim >= (4 if n == 8 else 5 + seed)}
        for n in (8, 16) for dim in (3, 4, 5, 6) for seed in (0, 1, 2)
    ]  # fmt: skip
    axes = {"n": [8, 16], "dim": [3, 4, 5, 6], "seed": [0, 1, 2]}
    first = charts(rows, axes, "headfit.fit")[0]
    assert (first.y, first.x, first.split, first.pooled) == ("dim_least", "n", (), ())
    small, large = first.lines[()]
    assert (small.y, small.count) == (4, 3)
    assert (large.low, large.high, large.count) == (5, 6, 2)  # seed 2 has none


def test_many_lines_are_pooled_and_the_chart_says_so():
    rows = [{"n": n, "a": a, "y": n + a} for n in (1, 2) for a in range(9)]
    (chart,) = charts(rows, {"n": [1, 2], "a": list(range(9))}, "w")
    assert (chart.split, chart.pooled) == ((), ("a",))


def test_axes_of_words():
    rows = [{"kind": kind, "y": i} for i, kind in enumerate(("tree", "band", "band"))]
    (chart,) = charts(rows, {"kind": ["band", "tree"]}, "w")
    assert [spot.x for spot in chart.lines[()]] == ["band", "tree"]
    mixed = make_chart([{"x": 1, "k": None, "y": 1.0}], "y", "x", ("k",), ())
    assert line_name(mixed, (None,)) == ""


def test_columns_whose_files_would_share_a_name_have_both(tmp_path):
    found = Sweep(tmp_path, ())
    found.rows = [{"n": n, "a_b": n, "a-b": 2 * n, "work": "w"} for n in (1, 2)]
    found._axes = ["n"]
    files = write_report(found, tmp_path / "report")
    assert {"a-b-against-n.csv", "a-b-against-n-2.csv"} <= set(files)
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert text.count("<figure>") == 2
