"""`hf.sweep`: every point once, failures recorded, arguments checked before any work."""

from __future__ import annotations

import csv
import errno
import importlib
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from pickle import PicklingError

import numpy as np
import pytest

import headfit as hf
from headfit._sweep import local_pool
from headfit._sweep.local_pool import LocalPool
from headfit._sweep.pace import Pace, duration
from headfit._sweep.record import from_bytes, to_bytes
from headfit._sweep.work import Work
from headfit.errors import FileError, HeadfitError, InputError, MissingFileError


def called(log: str) -> list[str]:
    return Path(log).read_text().split() if Path(log).exists() else []


@pytest.mark.parametrize("processes", [0, 2])
def test_nothing_is_computed_twice(processes, swept, store, log):
    points = hf.grid(x=range(4), log=log)
    first = hf.sweep(points, store, run=swept.square, processes=processes, num_threads=1)
    assert [row["square"] for row in first.rows] == [0, 1, 4, 9]
    more = hf.sweep(
        [*hf.grid(x=[2.0, 3.0, 4.5], log=log), *points], store, run=swept.square, processes=0
    )
    assert [row["x"] for row in more.rows] == [2, 3, 4.5, 0, 1]  # points that are equal count once
    assert sorted(called(log)) == ["0", "1", "2", "3", "4.5"]
    everything = hf.load_sweep(store)
    assert sorted(everything.columns["square"].tolist()) == [0, 1, 4, 9, 20.25]
    assert (store / "index.csv").read_text().count("\n") == 6


def test_fits_on_worker_processes_are_those_of_this_process(tmp_path):
    points = hf.grid(pattern="random_regular", n=[24, 32], k=2, dim=[3, 6], effort=50)
    here = hf.sweep(points, tmp_path / "here", processes=0, num_threads=1)
    there = hf.sweep(points, tmp_path / "there", processes=2)
    differing = {"seconds", "wall_seconds", "when", "threads"}
    plain = [[{k: v for k, v in row.items() if k not in differing} for row in found.rows]
             for found in (here, there)]  # fmt: skip
    assert plain[0] == plain[1]
    assert [row["dim"] for row in here.rows] == [3, 6, 3, 6]


def test_a_failing_point_is_recorded_and_the_others_go_on(swept, store, log):
    points = hf.grid(x=range(6), log=log)
    found = hf.sweep(points, store, run=swept.picky, processes=2, num_threads=1)
    assert [row["x"] for row in found.rows] == [0, 2, 4]
    failures = {row["x"]: row for row in found.failures}
    assert (failures[1]["error"], failures[1]["message"]) == ("ValueError", "one is odd")
    assert 'raise ValueError("one is odd")' in failures[1]["traceback"]
    assert failures[3]["error"] == "SystemExit"
    assert "must return a dict" in failures[5]["message"]
    assert "3 failed" in repr(found)

    hf.sweep(points, store, run=swept.picky, processes=0)
    assert len(called(log)) == 6  # failures count as done
    again = hf.sweep(points, store, run=swept.picky, processes=0, retry_failed=True)
    assert len(called(log)) == 9
    assert len(again.failures) == 3


@pytest.mark.parametrize("processes", [0, 1])
def test_odd_errors_and_results_end_no_sweep(processes, swept, store):
    points = hf.grid(x=[1, 2, 3, 4])
    found = hf.sweep(points, store, run=swept.odd, processes=processes, num_threads=1)
    assert [row["text"] for row in found.rows] == ["caf\udce9"]
    assert "caf\\udce9" in (store / "index.csv").read_text(encoding="utf-8")
    assert [(row["error"], row["message"]) for row in found.failures[:2]] == [
        ("swept.Unsayable", "its message cannot be made"),
        ("asyncio.exceptions.CancelledError", "gone"),
    ]
    assert "numbers below 1.8e308; got whole=" in found.failures[2]["message"]


@pytest.mark.parametrize("processes", [0, 1])
def test_results_of_ones_own_classes_come_as_pythons(processes, swept, store):
    points = [{"kind": kind} for kind in ("text", "whole", "real", "interrupt")]
    if processes == 0:
        points.pop()  # of this process it is the caller's
    found = hf.sweep(points, store, run=swept.own_classes, processes=processes, num_threads=1)
    values = [row["value"] for row in found.rows]
    assert values == ["x", 1, 0.5]
    assert [type(value) for value in values] == [str, int, float]
    assert [row["error"] for row in found.failures] == ["KeyboardInterrupt"] * processes
    if processes == 0:
        with pytest.raises(KeyboardInterrupt):
            hf.sweep([{"kind": "interrupt"}], store, run=swept.own_classes, processes=0)


def test_an_outcome_that_cannot_be_sent_is_a_failure(swept):
    (task,) = Work.of(swept.square, None).tasks([{"x": 1}])
    pool, future = LocalPool(1, 1), Future()
    future.set_exception(PicklingError("cannot be sent"))
    pool._busy[future] = task, "worker"
    taken, outcome = pool.take()
    assert (taken, outcome["status"], pool._idle) == (task, "failed", ["worker"])
    assert outcome["error"]["message"] == "cannot be sent"


def test_a_script_that_is_read_from_a_pipe_is_no_file(tmp_path):
    code = (
        "import headfit as hf\n"
        "def one(x): return {'one': 1}\n"
        "hf.sweep([{'x': 1}], 'store', run=one, processes=0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-"], input=code, cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "run must stand in a file" in ran.stderr.splitlines()[-1]
    assert not (tmp_path / "store").exists()


def test_a_function_that_changes_the_folder_moves_no_store(swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").mkdir()
    points = [{"folder": "away"}, {"folder": "."}]
    found = hf.sweep(points, "store", run=swept.goes_to, processes=0)
    assert len(found) == 2
    assert found.store == tmp_path / "store"


def test_processes_that_cannot_be_started(swept, store, monkeypatch):
    class Full:
        def __init__(self, *_: object, **__: object) -> None:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(local_pool, "ProcessPoolExecutor", Full)
    with pytest.raises(
        HeadfitError, match=r"one of 2 worker processes cannot be started: .*Resource"
    ):
        hf.sweep(hf.grid(x=range(2)), store, run=swept.square, processes=2)


def test_a_failure_that_is_mended_is_retried(swept, store, log, monkeypatch):
    points = hf.grid(x=[1, 2], log=log)
    hf.sweep(points, store, run=swept.picky, processes=0)
    monkeypatch.setattr(swept.picky, "__code__", swept.square.__code__)
    with pytest.warns(UserWarning, match="run has changed since 1 of its results"):
        mended = hf.sweep(points, store, run=swept.picky, processes=0, retry_failed=True)
    assert [row["square"] for row in mended.rows] == [1, 4]
    assert not mended.failures


def test_a_version_has_results_of_its_own(swept, store, monkeypatch):
    for version, results in (("a", 1), ("b", 2), ("a", 2)):
        monkeypatch.setattr(swept.versioned, "version", version)
        hf.sweep([{"x": 1}], store, run=swept.versioned, processes=0)
        assert len(hf.load_sweep(store)) == results
    hf.sweep([{"x": 1}], store, run=swept.versioned, version="c", processes=0)
    assert sorted(row["version"] for row in hf.load_sweep(store).rows) == ["a", "b", "c"]


def test_results_from_before_a_function_changed_are_taken_with_a_warning(
    store, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def run(x):\n    return {'y': x + 1}\n"

    def swept_with(text, **options):
        (tmp_path / "edited.py").write_text(text)
        module = importlib.reload(importlib.import_module("edited"))
        if options.pop("has_no_source", False):
            (tmp_path / "edited.py").unlink()
        found = hf.sweep([{"x": 1}], store, run=module.run, processes=0, **options)
        return found.columns["y"].tolist()

    changed = text.replace("1", "10")
    assert swept_with(text) == swept_with(f"# Comments.\n\n{text}  # And more.\n") == [2]
    with pytest.warns(UserWarning, match="run has changed since 1 of its results .* new version="):
        assert swept_with(changed) == [2]
    assert swept_with(changed, version=2) == [11]
    assert swept_with(changed, has_no_source=True) == [2]
    for path in store.glob("points/*/*.json"):  # as they were before there were hashes
        record = from_bytes(path.read_bytes(), path.stem)
        del record["code"]
        path.write_bytes(to_bytes(record))
    assert swept_with(changed) == [2]


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_processes_and_threads_fill_the_cores(cores, monkeypatch):
    monkeypatch.setattr(local_pool, "available_cores", lambda: cores)
    assert local_pool.divided(None, None, 100) == (cores, 1)
    assert local_pool.divided(None, None, 1) == (1, cores)
    assert local_pool.divided(None, 2, 100) == (max(1, cores // 2), 2)
    assert local_pool.divided(2, None, 100) == (2, max(1, cores // 2))
    assert local_pool.divided(3, 4, 100) == (3, 4)  # as asked, even where it is too many


def test_workers_get_their_share_of_the_threads(swept, store, monkeypatch):
    monkeypatch.setattr(local_pool, "available_cores", lambda: 6)
    found = hf.sweep(hf.grid(x=[1.0, 2.5]), store, run=swept.facts)
    for row in found.rows:
        assert (row["threads_given"], row["omp"], row["threads"]) == (3, "3", 3)


def test_numbers_come_in_one_form(swept, store):
    found = hf.sweep(hf.grid(x=[1.0, 2.5]), store, run=swept.facts, processes=1, num_threads=1)
    one, other = found.rows
    assert (one["threads_given"], one["omp"], one["threads"]) == (1, "1", 1)
    assert one["pid"] == other["pid"]
    assert (one["is_whole"], other["is_whole"]) == (True, False)
    assert one["infinite"] == np.inf
    assert one["nothing"] is None


def test_columns():
    from headfit._sweep.rows import as_columns, as_row

    rows = [{"a": 1, "b": True, "c": 1, "d": "x"}, {"a": 2, "b": False, "c": None, "e": [1]}]
    columns = as_columns(rows)
    kinds = {name: column.dtype.kind for name, column in columns.items()}
    assert kinds == {"a": "i", "b": "b", "c": "f", "d": "O", "e": "O"}
    assert np.isnan(columns["c"][1])
    assert columns["e"].tolist() == [None, [1]]
    made = {"wall_seconds": 0.5}
    record = {"key": "k", "work": "w", "version": 1, "made": made, "status": "done"}
    row = as_row({**record, "point": {"n": 8, "leak": 0.1}, "result": {"n": 8, "leak": 0.05}})
    assert (row["n"], row["leak"], row["leak_found"]) == (8, 0.1, 0.05)
    assert "n_found" not in row


def test_rows_columns_and_filters(swept, store, tmp_path):
    hf.sweep(hf.grid(x=[1, 2, 3]), store, run=swept.square, processes=0)
    found = hf.load_sweep(store)
    assert found.axes == {"x": [1, 2, 3]}
    assert found.where(x=[1, 3]).columns["square"].tolist() in ([1, 9], [9, 1])
    assert len(found.where(square=4)) == 1
    assert len(found.where(x=range(2, 4))) == len(found.where(x=np.array([2.0, 3.0]))) == 2
    assert len(found.where(x=[])) == 0
    with pytest.raises(InputError, match="x must be a 1-dimensional array"):
        found.where(x=np.eye(2))
    with pytest.raises(InputError, match="y is no column"):
        found.where(y=1)
    found.to_csv(tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert sorted((int(line["x"]), int(line["square"])) for line in lines) == [
        (1, 1), (2, 4), (3, 9),
    ]  # fmt: skip


def test_a_frame_of_pandas(swept, store):
    pytest.importorskip("pandas")
    found = hf.sweep(hf.grid(x=[1, 2, 3]), store, run=swept.square, processes=0)
    frame = found.to_pandas()
    assert list(frame.columns) == list(found.columns)
    assert frame["square"].tolist() == [1, 4, 9]
    assert frame[frame["x"] > 1]["square"].sum() == 13


def test_progress_says_what_is_left(swept, store):
    lines: list[str] = []
    points = hf.grid(x=range(3))
    hf.sweep(points, store, run=swept.square, processes=0, progress=lines.append)
    assert (lines[0], lines[-1]) == ("0 of 3 points", "3 of 3 points")
    assert lines[1].startswith("1 of 3 points, about ")
    assert [duration(s) for s in (3, 300, 7300, 3e5)] == [
        "3 s",
        "5 min",
        "2 h 2 min",
        "3 days 11 h",
    ]
    pace = Pace(4, False)
    pace.step(failed=True)
    assert "1 failed" in pace.line()


def test_a_bar(swept, store, capsys):
    pytest.importorskip("tqdm")
    hf.sweep(hf.grid(x=range(3)), store, run=swept.square, processes=0, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_an_interrupt_ends_it_and_keeps_what_is_done(swept, store, log, monkeypatch):
    def stop(line: str) -> None:
        if line.startswith("2 of"):
            raise KeyboardInterrupt

    points = hf.grid(x=range(6), log=log)
    for processes in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            hf.sweep(points, store, run=swept.square, processes=processes, progress=stop)
    assert len(hf.load_sweep(store)) == 4
    assert len(hf.sweep(points, store, run=swept.square, processes=0)) == 6
    assert not hf.load_sweep(store).damaged


def test_bad_arguments_are_refused_before_any_work(swept, store, tmp_path):
    points = [{"x": 1}]
    for name, call in {
        "points": lambda: hf.sweep([], store),
        "points ": lambda: hf.sweep({"x": 1}, store, run=swept.square),
        "points[0]": lambda: hf.sweep([5], store),
        "run": lambda: hf.sweep(points, store, run=lambda x: {}),
        "run ": lambda: hf.sweep(points, store, run=5),
        "version": lambda: hf.sweep(points, store, version=1),
        "point": lambda: hf.sweep([{"y": 1}], store, run=swept.square),
        "num_threads": lambda: hf.sweep([{"x": 1, "num_threads": 2}], store, run=swept.facts),
        "processes": lambda: hf.sweep(points, store, run=swept.square, processes=-1),
        "progress": lambda: hf.sweep(points, store, run=swept.square, progress=5),
        "retry_failed": lambda: hf.sweep(points, store, run=swept.square, retry_failed=1),
        "client": lambda: hf.sweep(points, store, run=swept.square, client=5),
        "out": lambda: hf.sweep(points, 5, run=swept.square, processes=0),
    }.items():
        with pytest.raises(InputError) as caught:
            call()
        assert name.strip() in str(caught.value)
    assert not store.exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="no store of a sweep and not empty"):
        hf.sweep(points, tmp_path, run=swept.square, processes=0)
    with pytest.raises(MissingFileError, match="does not exist"):
        hf.load_sweep(store)
    with pytest.raises(FileError, match="no store of a sweep"):
        hf.load_sweep(tmp_path)


def test_an_import_loads_nothing_heavy():
    import subprocess

    heavy = "{'dask', 'distributed', 'pandas', 'matplotlib', 'multiprocessing.pool'}"
    code = f"import sys, headfit; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_script_without_a_guard_is_told_so(swept, tmp_path):
    import os
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(
        "import headfit as hf, swept\n"
        "hf.sweep([{'x': 1}], 'results', run=swept.square, processes=1, num_threads=1)\n"
    )
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1
    assert HeadfitError.__name__ in ran.stderr
    assert 'if __name__ == "__main__":' in ran.stderr.splitlines()[-1]
