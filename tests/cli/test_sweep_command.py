"""`headfit sweep`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headfit as hf

FILE = """
num_threads = 1
workers = 0

[grid]
pattern = "random_regular"
n = 8
k = 2
dim = [2, 6]
exempt_columns = [[0], [0, 1]]
"""


@pytest.fixture
def run(run):
    Path("sweep.toml").write_text(FILE)
    return run


def test_a_sweep(run):
    to = ("--out", "results")
    assert run("sweep", "sweep.toml", *to, "--dry-run") == (
        0, "results: 0 points done, 0 failed, 4 to compute\n", "",
    )  # fmt: skip
    assert not Path("results").exists()
    status, out, err = run("sweep", "sweep.toml", *to)
    assert (status, err) == (1, "")
    assert out.splitlines()[0] == "results: 3 points done, 1 failed"
    assert ("  failed: dim = 2, exempt_columns = [0, 1]: InputError: dim must be above 2") in out
    status, out, _ = run("sweep", "sweep.toml", *to, "--dry-run", "--json")
    assert json.loads(out) == {
        "table": "results", "done": 3, "failed": 1, "to_compute": 0, "damaged": [],
    }  # fmt: skip
    status, out, _ = run("sweep", "sweep.toml", *to, "--dry-run", "--retry-failed")
    assert out.startswith("results: 3 points done, 1 failed, 1 to compute\n")
    status, out, _ = run("sweep", "sweep.toml", *to, "--retry-failed", "--json")
    assert (status, json.loads(out)["failed"]) == (1, 1)
    assert run("sweep", "sweep.toml", *to, "--retry-failed", "--progress")[2].startswith(
        "headfit: "
    )


def test_a_sweep_whose_points_all_work(run):
    Path("sweep.toml").write_text(FILE.replace("[2, 6]", "6"))
    assert run("sweep", "sweep.toml", "--out", "results")[0] == 0
    assert len(hf.sweep.load("results")) == 2


def test_the_failure_of_a_point_without_axes(run):
    Path("sweep.toml").write_text(FILE.replace("[2, 6]", "2").replace("[[0], [0, 1]]", "[[0, 1]]"))
    assert "\n  failed: InputError: dim must" in run("sweep", "sweep.toml", "--out", "results")[1]


def test_a_scheduler_of_an_unknown_scheme_is_refused_at_once(run):
    pytest.importorskip("distributed")
    line = ("sweep", "sweep.toml", "--out", "results", "--scheduler", "carrier-pigeon://x:1")
    status, out, err = run(*line)
    assert (status, out) == (2, "")
    assert "unknown address scheme 'carrier-pigeon'" in err


def test_a_dry_run_connects_to_no_scheduler(run):
    line = ("sweep", "sweep.toml", "--out", "results", "--scheduler", "carrier-pigeon://x:1")
    status, out, _ = run(*line, "--dry-run")
    assert status == 0
    assert "to compute" in out


@pytest.mark.parametrize("line", ["workers = -1", "num_threads = 0"])
def test_numbers_of_the_file_are_checked_by_name(line, run):
    name = line.split()[0]
    kept = [text for text in FILE.splitlines() if not text.startswith(name)]
    Path("sweep.toml").write_text("\n".join([line, *kept]))
    status, _, err = run("sweep", "sweep.toml", "--out", "results")
    assert (status, f"{name} must" in err) == (2, True)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sweep sweep.toml", "out must be given"),
        ("sweep nowhere.toml --out results", "nowhere.toml"),
        ("sweep sweep.toml --out .", "is no table of a sweep: it is a folder"),
        ("sweep sweep.toml --out sweep.toml --dry-run", "sweep.toml is no table of a sweep"),
        ("sweep sweep.toml --out results --workers -2", "workers must"),
        ("sweep sweep.toml --out results --dry-run --workers -2", "workers must"),
        ("sweep sweep.toml --out results --dry-run --num-threads 0", "num_threads must"),
        ("sweep sweep.toml --out results --workers 2 --scheduler x:1", "--workers must not"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(words, said, run):
    status, out, err = run(*words.split())
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert sorted(path.name for path in Path().iterdir()) == ["sweep.toml"]
