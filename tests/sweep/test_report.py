"""Reports: a page that needs no other file, numbers beside it, and nothing lost."""

from __future__ import annotations

import csv
import os
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from xml.dom import minidom

import pytest

import headfit as hf
from headfit._sweep import draw_chart
from headfit._sweep.chart import make_chart
from headfit._sweep.choose_charts import charts
from headfit._sweep.draw_chart import description, line_name
from headfit._sweep.legible import legible, shortened
from headfit._sweep.report import MANIFEST, write_report
from headfit._sweep.result import Sweep
from headfit._sweep.store import Entry, Store
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
    points += hf.grid(  # fails: exempt columns take both dimensions
        pattern="random_regular", n=4, k=2, dim=2, exempt_columns=[[0, 1]], effort=20
    )
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
    assert "dim must be above 2" in page.text
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


def swept_by(work, folder, pairs, version=None, when=""):
    """Return a sweep with the given points and results."""
    common = {"work": work, "version": version, "status": "done", "made": {"when": when}}
    records = [{**common, "key": "k", "point": point, "result": result} for point, result in pairs]
    return Sweep(folder, [Entry("k", "done", record) for record in records])


def pictures_of(found, folder):
    """Return the files of a report and its page, whose pictures must be XML."""
    files = write_report(found, folder)
    page = (folder / "index.html").read_text(encoding="utf-8")
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        minidom.parseString(svg.encode())
    read(folder / "index.html")
    return files, page


@pytest.mark.parametrize(
    "text",
    ["$\\frac$", "US$ 5 to US$ 6_7", "\ud800", "a\0b", "\x1b[31m", "_under", "", "q" * 3000,
     "\U0001f4a5", "\u6f22\u5b57", 'x id="y" url(#z)', "\uffff", "new\nline"],
)  # fmt: skip
def test_any_text_may_stand_in_a_picture(text, tmp_path, capsys, recwarn):
    as_legend = [({"p": p, "m": m}, {"y": m + len(p)}) for p in (text, "other") for m in (1, 2)]
    as_place = [({"x": x}, {"y": y}) for x, y in ((text, 1), ("other", 2))]
    as_name = [({text or "name": m}, {f"y{text}": m + 1}) for m in (1, 2)]
    for i, pairs in enumerate((as_legend, as_place, as_name)):
        files, page = pictures_of(swept_by("w", tmp_path, pairs), tmp_path / str(i))
        assert page.count("<svg") == 1
        assert not re.search("[\0\x1b\ud800]", page)
        assert all(len(name) < 200 for name in files)
        shown = legible(shortened(text))
        if i < 2:
            assert re.search(f">\u200b?(p = )?{re.escape(escape(shown, quote=False))}<", page)
    assert capsys.readouterr().err == ""
    assert not recwarn.list


@pytest.mark.parametrize(
    "results",
    [
        {"wall_seconds": "abc"},
        {"wall_seconds": float("inf")},
        {"work": "headfit.fit", "version": 1.5},
    ],
)
def test_results_may_have_the_names_of_how_they_were_made(results, swept, tmp_path):
    found = swept_by("w", tmp_path, [({"x": x}, {**results, "y": x}) for x in (1, 2)])
    files, page = pictures_of(found, tmp_path / "report")
    assert "y-against-x.csv" in files
    assert "They took 0 s" in page


@pytest.mark.parametrize(
    "pairs",
    [
        [({"x": x}, {"y": 1}) for x in (0, 1.7e308, -1.7e308)],
        [({"x": x}, {"y": y}) for x, y in ((1, 1.7e308), (2, -1.7e308))],
        [({"x": 1, "seed": s}, {"y": 1.7e308}) for s in (1, 2)] + [({"x": 2}, {"y": 1})],
    ],
)
def test_a_picture_that_cannot_be_drawn_is_a_sentence(pairs, tmp_path, recwarn):
    pairs = [(point, {**result, "z": point["x"] > 0}) for point, result in pairs]
    files, page = pictures_of(swept_by("w", tmp_path, pairs), tmp_path / "report")
    assert "There is no picture: a number is not finite, or beyond 1e+300." in page or (
        "y-against-x.csv" not in files
    )
    assert "index.html" in files
    assert not recwarn.list


def test_an_error_of_matplotlib_is_a_sentence(small, tmp_path, monkeypatch):
    def fail(chart: object, prefix: str) -> str:
        raise RuntimeError("no <ink>")

    monkeypatch.setattr(draw_chart, "svg_of", fail)
    page = pictures_of(small, tmp_path / "report")[1]
    assert "The picture could not be drawn: RuntimeError: no &lt;ink&gt;" in page


def test_pictures_show_the_newest_version_and_the_page_says_so(swept, tmp_path):
    points = hf.grid(x=[1, 2])
    store = tmp_path / "store"
    hf.sweep(points, store, run=swept.square, version="old", processes=0)
    hf.sweep(points, store, run=swept.square, version="new", processes=0)
    records = {entry.key: entry.record for entry in Store(store).entries()}
    for record in records.values():
        record["made"]["when"] = f"2026-01-0{1 + (record['version'] == 'new')}"
    found = Sweep(store, [Entry(key, "done", record) for key, record in records.items()])
    page = pictures_of(found, tmp_path / "report")[1]
    assert "<li>2 results of swept.square, version old</li>" in page
    with open(tmp_path / "report" / "square-against-x.csv", encoding="utf-8") as file:
        assert [row["points"] for row in csv.DictReader(file)] == ["1", "1"]
    assert len(hf.load_sweep(store).where(version="old")) == 2


def test_an_axis_may_have_the_name_of_a_statistic():
    rows = [{"points": p, "median": m, "y": p + m} for p in (1, 2) for m in (1, 2)]
    (chart,) = charts(rows, {"points": [1, 2], "median": [1, 2]}, "w")
    for row, at in zip(chart.rows(), ((1, 1), (1, 2), (2, 1), (2, 2)), strict=True):
        assert sorted((row["points"], row["median"])) == sorted(at)
        assert (row["points_of_y"], row["median_of_y"]) == (1, sum(at))


def test_true_is_another_place_than_1():
    rows = [{"x": x, "y": i} for i, x in enumerate((True, 1, 0, False))]
    chart = make_chart(rows, "y", "x", (), ())
    assert [(s.x, s.y) for s in chart.lines[()]] == [(0, 2), (1, 1), ("False", 3), ("True", 0)]
    flags = make_chart([{"x": 1, "k": k, "y": 1} for k in (True, 1)], "y", "x", ("k",), ())
    assert [line_name(flags, values) for values in flags.lines] == ["k = 1", "k = True"]


def test_columns_whose_files_would_share_a_name_have_both(tmp_path):
    found = swept_by("w", tmp_path, [({"n": n}, {"a_b": n, "a-b": 2 * n}) for n in (1, 2)])
    files = write_report(found, tmp_path / "report")
    assert {"a-b-against-n.csv", "a-b-against-n-2.csv"} <= set(files)
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert text.count("<figure>") == 2
