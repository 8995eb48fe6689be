"""`benchmarks/all.py --against`: what counts as a change, and what the files hold."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


against, measure = load("against"), load("measure")


def result(**rows):
    """Return results of works with (seconds, spread)."""
    summary = [{"work": w, "seconds": s, "spread": spread} for w, (s, spread) in rows.items()]
    return {"machine": "one", "threads": 2, "summary": summary}


@pytest.mark.parametrize(
    ("then", "now", "word"),
    [
        ((1.0, 0.02), (1.05, 0.02), ""),  # below what counts at all
        ((1.0, 0.02), (1.2, 0.02), "SLOWER"),
        ((1.0, 0.3), (1.2, 0.02), ""),  # within the spread then
        ((1.0, 0.02), (1.2, 0.3), ""),  # within the spread now
        ((1.0, 0.02), (0.8, 0.02), "faster"),
        ((1.0, None), (1.25, 0.02), ""),  # measured once
        ((1.0, None), (1.4, None), "SLOWER"),
    ],
)
def test_what_counts_as_a_change(then, now, word):
    rows, moved, remarks = against.compared(result(a=then), result(a=now))
    assert rows[1][-1] == word
    assert rows[1][3] == f"{now[0] / then[0]:.2f}"
    assert [line.split(",")[0] for line in moved] == ([f"a: {word}"] if word else [])
    assert remarks == []


def test_files_that_do_not_match_are_remarked_on():
    old, new = result(a=(1.0, 0.0), b=(1.0, 0.0)), result(b=(1.0, 0.0), c=(1.0, 0.0))
    new["machine"] = "another"
    rows, moved, remarks = against.compared(old, new)
    assert len(rows) == 2
    assert moved == []
    assert remarks == ["machine differ: one then, another now", "only then: a", "only now: c"]


def test_medians_keep_their_spread():
    calls = []
    found = measure.interleaved({"a": lambda: calls.append(0)}, 3)["a"]
    assert found.runs == 3
    assert len(calls) == 8  # short ones run twice
    assert isinstance(json.loads(json.dumps({"a": found}))["a"], float)
    assert measure.Median([1.0, 2.0, 4.0]) == 2.0
    assert measure.Median([1.0, 2.0, 4.0]).spread == 1.5
    measure.SUMMARY.clear()
    measure.summarise("repeated", measure.Median([1.0, 2.0, 4.0]), "-", None)
    measure.summarise("once", measure.Median([1.0]), "-", None)
    measure.summarise("a number", 3.0, "-", None)
    assert [(x["runs"], x["spread"]) for x in measure.SUMMARY] == [(3, 1.5), (1, None), (1, None)]


@pytest.mark.full
def test_all_compares_kept_results(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    item = {"work": "attention", "seconds": 2.0, "runs": 7, "spread": 0.02, "peer": "-",
            "peer_seconds": None, "limit_seconds": None}  # fmt: skip
    (kept / "attention.json").write_text(json.dumps({"summary": [item]}))
    old = {"machine": measure.machine(), "threads": 2, "summary": [{**item, "seconds": 1.0}]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    command = [sys.executable, str(FOLDER / "all.py"), "--kept", "--out", str(kept),
               "--json", str(tmp_path / "new.json"), "--against"]  # fmt: skip
    done = subprocess.run([*command, str(tmp_path / "old.json")], capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert "attention: SLOWER, 2.00 times (noise 10%)" in done.stdout
    assert against.STATED in done.stdout
    new = json.loads((tmp_path / "new.json").read_text())
    assert new["summary"] == [item]
    assert math.isclose(against.noise(item), 0.1)
    (tmp_path / "bad.json").write_text("[]")
    done = subprocess.run([*command, str(tmp_path / "bad.json")], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 1
    assert "lacks a summary" in done.stderr


def test_the_history_times_tasks_that_run(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the file adds its folder
    monkeypatch.delitem(sys.modules, "growth", raising=False)  # an experiment has this name too
    speed = load("history/speed")
    timed = speed.Speed()
    assert set(speed.Speed.params) == set(speed.TASKS)
    timed.setup("attention matrix")
    timed.time_task("attention matrix")
