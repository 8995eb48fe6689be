"""The experiments: their tiniest plans run, resume and draw; committed results are whole."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
COMMANDS = (
    "growth", "small_logits", "precision", "real_patterns", "hardness", "capacity", "near_the_end",
)  # fmt: skip
RESULTS = sorted((EXPERIMENTS / "results").iterdir())


def module(name: str) -> ModuleType:
    """Return a module of the folder, which is no package: another module may have its name."""
    loaded = sys.modules.get(name)
    if loaded is not None and Path(loaded.__file__ or "").parent != EXPERIMENTS:
        del sys.modules[name]
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXPERIMENTS))


def command(name: str, out: Path, *more: str, processes: int | None = 0) -> str:
    """Run an experiment's tiniest plan in a process of its own, and return what it printed."""
    shared = [] if processes is None else ["--processes", str(processes)]
    done = subprocess.run(
        [sys.executable, EXPERIMENTS / f"{name}.py", "--tiny", "--out", out, *shared, *more],
        env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True, timeout=500,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_tiniest_plan_runs_and_is_computed_once(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = command(name, tmp_path)
    rows = (tmp_path / f"{name}.csv").read_bytes()
    assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert " points" in printed
    (tmp_path / f"{name}.svg").unlink()
    again = module(name)
    module("common").compute_and_draw(
        name, "", again.run, again.compute, again.draw, ["--tiny", "--draw", "--out", str(tmp_path)]
    )
    plt.close("all")
    printed = capsys.readouterr().out
    assert printed
    assert " points" not in printed
    assert (tmp_path / f"{name}.svg").is_file()
    assert (tmp_path / f"{name}.csv").read_bytes() == rows


def test_all_runs_those_that_it_is_asked_for(tmp_path: Path) -> None:
    printed = command("all", tmp_path, "--only", "precision", "hardness")
    assert [path.name for path in sorted(tmp_path.glob("*.svg"))] == [
        "hardness.svg", "precision.svg",
    ]  # fmt: skip
    assert printed.index("precision") < printed.index("hardness")


def test_a_plan_runs_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXPERIMENTS)  # worker processes inherit it
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as here,
        distributed.Client(here, set_as_default=False),
    ):
        for name in ("growth", "capacity"):
            command(name, tmp_path, "--scheduler", here.scheduler_address, processes=None)
    for name in ("growth", "capacity"):
        command(name, tmp_path / "local")
        found = without_times(tmp_path / f"{name}.csv")
        assert found
        assert found == without_times(tmp_path / "local" / f"{name}.csv")


def without_times(path: Path) -> list[dict[str, object]]:
    rows = module("common").read_csv(path)
    told = [{name: row[name] for name in row if name != "cpu_seconds"} for row in rows]
    return sorted(told, key=str)


@pytest.mark.pages
def test_results_are_small() -> None:
    assert {path.suffix for path in RESULTS} <= {".csv", ".svg", ".png"}
    assert sum(path.stat().st_size for path in RESULTS) < 3_000_000


@pytest.mark.parametrize("path", [p for p in RESULTS if p.suffix == ".csv"], ids=lambda p: p.stem)
def test_committed_rows_are_read_as_they_were_written(path: Path, tmp_path: Path) -> None:
    common = module("common")
    rows = common.read_csv(path)
    common.write_csv(tmp_path / "again.csv", rows)
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


def test_values_survive_a_file(tmp_path: Path) -> None:
    common = module("common")
    rows = [{"a": 1, "b": 2.5, "c": None, "d": True, "e": "text, more"}, {"a": -1, "d": False}]
    common.write_csv(tmp_path / "rows.csv", rows)
    missing = dict.fromkeys("bce")
    assert common.read_csv(tmp_path / "rows.csv") == [rows[0], {**missing, **rows[1]}]


def tried(search, smallest: int) -> list[int]:
    """Return the sizes that a search tries where those from `smallest` on certify."""
    trials, sizes = search.trials(), []
    asked = next(trials)
    while True:
        sizes += [dim for dim, _ in asked]
        try:
            asked = trials.send([dim >= smallest for dim, _ in asked])
        except StopIteration:
            return sizes


def test_a_search_ends_one_below_the_smallest_size() -> None:
    fits = module("fits")
    for smallest in range(1, 30):
        sizes = tried(fits.Search({}, 8, (0,), further=40), smallest)
        assert smallest in sizes
        assert smallest == 1 or smallest - 1 in sizes
        assert min(sizes) == max(1, min(8, smallest - 1))
    assert tried(fits.Search({}, 8, (0, 1, 2), lowest=8), 5) == [8, 8, 8]
    assert max(tried(fits.Search({}, 8, (0,), further=5), 99)) == 13


def test_the_smallest_size_certifies_on_every_seed() -> None:
    fits = module("fits")
    rows = [
        {"n": 8, "dim": dim, "seed": seed, "certified": held, "norm": 1.0, "cpu_seconds": 1.0}
        for dim, seed, held in (
            (4, 0, True),
            (4, 1, False),
            (5, 0, True),
            (5, 1, True),
            (3, 0, False),
        )
    ]
    best = fits.smallest(rows, {"n": 8})
    assert (best["dim"], best["seeds"], best["less"]) == (5, 2, True)
    assert fits.smallest(rows, {"n": 9}) is None


class Patterns:
    """Stands for `common.Rows` where a number of patterns certifies up to given n."""

    def __init__(self, *ends: int) -> None:
        self.ends = ends
        self.tried: list[int] = []

    def of(self, points: list[dict[str, int]]) -> list[dict[str, bool]]:
        self.tried.append(points[0]["n"])
        return [{"certified": p["n"] <= self.ends[p["seed"]]} for p in points]


@pytest.mark.parametrize("first", [8, 32, 64, 128, 256])
def test_a_climb_reaches_from_all_patterns_to_none(first: int) -> None:
    capacity = module("capacity")
    rows = Patterns(48, 60, 130)
    capacity.Climb(4, 5, first).make(rows)
    rungs = [n for n in capacity.LADDER if min(rows.tried) <= n <= max(rows.tried)]
    assert sorted(set(rows.tried)) == rungs
    assert min(rows.tried) <= 48
    assert max(rows.tried) == max(first, 160)
    # Nothing certifies: it ends at the fewest tokens that a row of the pattern fits in.
    rows = Patterns(0, 0, 0)
    capacity.Climb(4, 2, 8).make(rows)
    assert sorted(rows.tried) == [5, 6, 7, 8, 8]


def test_the_largest_n_is_that_of_every_of_most_and_of_any_pattern() -> None:
    capacity = module("capacity")
    rows = [
        {"k": 4, "reheats": 6, "dim": dim, "steps": 9, "n": n, "certified": seed < held,
         "seed": seed, "steps_taken": 3, "norm": 1.0, "fewest_left": 0, "cpu_seconds": 1.0}
        for dim, n, held in ((4, 8, 3), (4, 16, 2), (4, 32, 1), (4, 64, 0), (5, 64, 3), (5, 80, 0))
        for seed in range(3)
    ]  # fmt: skip
    four, five = capacity.largest(capacity.rungs(rows))
    assert [four[name] for name in ("every", "most", "any", "tried")] == [8, 16, 32, 64]
    assert four["growth"] is None
    assert (five["most"], five["growth"], five["patterns"]) == (64, 4.0, 3)
    # A pattern that certifies only with more steps counts as certified, and its rung as one.
    longer = [{**row, "steps": 90, "certified": row["n"] < 80} for row in rows if row["n"] > 32]
    for order in (rows + longer, longer + rows):
        table = capacity.rungs(order)
        assert sorted((r["dim"], r["n"]) for r in table) == [(4, 8), (4, 16), (4, 32), (4, 64),
                                                             (5, 64), (5, 80)]  # fmt: skip
        four, five = capacity.largest(table)
        assert (four["every"], four["any"], four["steps"]) == (64, 64, 90)
        assert (five["every"], five["tried"]) == (64, 80)


def test_of_two_ways_to_learn_a_size_the_one_that_certifies_counts() -> None:
    growth, fits = module("growth"), module("fits")
    base = {**fits.point(n=64, k=4), "norm": 1.0, "cpu_seconds": 1.0}
    rows = [
        {**base, "dim": 6, "certified": True},
        {**base, "dim": 5, "certified": False},
        {**base, "dim": 5, "method": "learned, patient", "certified": True},
        {**base, "dim": 4, "method": "learned, patient", "certified": False},
    ]
    for order in (rows, rows[::-1]):
        (found,) = (row for row in growth.table(order) if row["kind"] == "found")
        assert (found["method"], found["dim"], found["less"]) == ("learned", 5, True)


def drawn(**columns: list[Any]) -> Any:
    """Return what the picture of growth draws of columns, beside those of one learned series."""
    count = len(columns["n"])
    usual = {"method": ["learned"] * count, "k": [None] * count, "kind": ["found"] * count}
    rows = [dict(zip(usual | columns, cells, strict=True))
            for cells in zip(*(usual | columns).values(), strict=True)]  # fmt: skip
    ax = Figure().subplots()
    return module("growth_picture").draw_growth(rows, ax), ax


def test_slope_and_interval_are_those_of_scipy() -> None:
    n, dim = [64, 128, 256, 1024, 100_000], [5, 6, 6, 7, 12]
    picture, ax = drawn(n=n[::-1], dim=dim[::-1])
    expected = stats.linregress(np.log2(n), dim)
    reach = stats.t.ppf(0.975, len(n) - 2) * expected.stderr
    slope = picture.slopes["learned"]
    assert slope == pytest.approx(
        (expected.slope, expected.slope - reach, expected.slope + reach, expected.intercept)
    )
    line = picture.fits["learned"]
    assert line.get_ydata() == pytest.approx(
        expected.intercept + expected.slope * np.log2(line.get_xdata())
    )
    assert picture.points["learned"].get_xydata().tolist() == [*map(list, zip(n, dim, strict=True))]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylim()[0]) == ("log", "linear", 0)


def test_the_interval_counts_the_rounding_to_integers() -> None:
    picture, _ = drawn(n=[64, 128, 256, 512], dim=[8, 9, 10, 11])
    reach = stats.t.ppf(0.975, 2) * np.sqrt(1 / 12 / 5)
    assert picture.slopes["learned"][:3] == pytest.approx((1, 1 - reach, 1 + reach))


def test_proved_bounds_have_no_fit() -> None:
    found, proved = ["found"], ["proved"]
    picture, _ = drawn(
        n=[64, 128, 256, 64], dim=[3, 4, 4, 9], kind=proved * 3 + found,
        method=["needed"] * 3 + ["learned"], k=[4, 4, 4, None],
    )  # fmt: skip
    assert list(picture.points) == ["learned", "needed, k = 4"]
    assert picture.points["needed, k = 4"].get_ydata().tolist() == [3, 4, 4]
    assert not picture.fits
    assert not picture.slopes


def test_a_series_far_above_is_named_and_flattens_nothing() -> None:
    ways = ["learned", "learned", "projection", "projection", "random keys"]
    picture, ax = drawn(n=[64, 512, 64, 512, 64], dim=[5, 6, 20_000, 40_000, 19], method=ways)
    assert set(picture.points) == {"learned", "random keys"}
    assert ax.get_ylim()[1] < 25
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-1] == "far above, projection:\n20,000 at n = 64, 40,000 at n = 512"


def test_the_legend_names_the_slopes() -> None:
    picture, ax = drawn(n=[64, 256, 1024] * 2, dim=[4, 5, 6, 8, 10, 12], k=[2] * 3 + [4] * 3)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [f"{name}\n{slope}" for name, slope in picture.slopes.items()]
    assert labels[1] == "learned, k = 4\n+1.00 per doubling (-0.30 to 2.30)"


def test_sizes_with_room_are_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    growth, fits, common = module("growth"), module("fits"), module("common")
    base = {**fits.point(k=4), "norm": 1.0, "cpu_seconds": 1.0, "certified": True, "cpu": "a CPU"}
    rows = [{**base, "n": n, "dim": 5} for n in (64, 128, 256)]
    rows.append({**base, "n": 512, "dim": 50, "method": growth.WITH_ROOM})
    growth.draw(common.Settings("growth", "tiny", tmp_path, tmp_path / "store"), rows)
    plt.close("all")
    assert "learned, k = 4: +0.00 per doubling" in capsys.readouterr().out
    assert "with room" in (tmp_path / "growth.svg").read_text(encoding="utf-8")
    assert f'"{growth.WITH_ROOM}",4,512' in (tmp_path / "growth-smallest.csv").read_text("utf-8")


def cells(title: str) -> dict[str, list[str]]:
    """Return the rows of tables of experiments/README.md below a heading, by their first cell."""
    text = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    part = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    found = {}
    for line in lines:
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        found.setdefault(first, others)
    return found


@pytest.mark.pages
def test_the_table_of_smallest_sizes_is_that_of_the_results() -> None:
    growth = module("growth")
    table = cells("The head size against the number of tokens")
    sizes = [int(cell.replace(",", "")) for cell in table["n"][:-1]]
    rows = module("common").read_csv(EXPERIMENTS / "results" / "growth-smallest.csv")
    for method, title in (("learned", "learned, k = {}"), ("random keys", "random keys, k = {}")):
        for k in sorted({row["k"] for row in rows if row["method"] == method}):
            written = []
            for n in sizes:
                at = {row["method"]: row for row in rows if (row["k"], row["n"]) == (k, n)}
                row = at.get(method) or (at.get(growth.WITH_ROOM) if method == "learned" else None)
                text = ""
                if row:
                    assert row["seeds"] == 3, row
                    is_roomy = row["method"] == growth.WITH_ROOM
                    text = str(row["dim"]) + ("" if row["less"] or is_roomy else "\\*")
                    text = f"({text})" if is_roomy else text
                written.append(text)
            assert table[title.format(k)][:-1] == written


@pytest.mark.pages
def test_the_tables_of_small_logits_are_those_of_the_results() -> None:
    small_logits = module("small_logits")
    table = cells("The price of small logits")
    rows = module("common").read_csv(EXPERIMENTS / "results" / "small_logits.csv")
    norms = table["N at most"][:-1]
    found = {
        (row["n"], row["k"], row["dtype"], row["max_norm"]): row for row in small_logits.table(rows)
    }
    for n, k in {(row["n"], row["k"]) for row in found.values()}:
        at_any = found[n, k, "float32", None]
        written = [
            str(row["dim"]) if (row := found.get((n, k, "float32", float(norm)))) else ""
            for norm in norms
        ]
        line = [re.sub(r"^none.*", "", cell) for cell in table[f"n = {n:,}, k = {k}: found"]]
        assert line == [*written, f"{at_any['dim']} (N = {at_any['norm']:,.0f})"]
        formats = []
        for dtype in table[""]:
            of_dtype = [row for cell, row in found.items() if cell[:3] == (n, k, dtype)]
            free = [r for r in of_dtype if r["max_norm"] is None] or of_dtype
            row = min(free, key=lambda r: r["dim"], default=None)
            formats.append(f"{row['dim']} ({row['norm']:,.0f})" if row else "")
        written = [cell.replace("N = ", "") for cell in table[f"n = {n:,}, k = {k}"]]
        assert written == formats
