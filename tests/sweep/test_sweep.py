"""`hf.sweep`: every point once, failures recorded, arguments checked before any work."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from pickle import PicklingError

import numpy as np
import pytest

import headfit as hf
from headfit._sweep import executors
from headfit._sweep.table import Sweep
from headfit._sweep.work import Work, tasks_of
from headfit.errors import HeadfitError, InputError


def called(log: str) -> list[str]:
    return Path(log).read_text().split() if Path(log).exists() else []


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_computed_twice(workers, swept, table, log):
    points = hf.sweep.grid(x=range(4), log=log)
    first = hf.sweep.run(points, table, function=swept.square, workers=workers, num_threads=1)
    assert [row["square"] for row in first.rows] == [0, 1, 4, 9]
    more = hf.sweep.run(
        [*hf.sweep.grid(x=[2.0, 3.0, 4.5], log=log), *points],
        table,
        function=swept.square,
        workers=0,
    )
    assert [row["x"] for row in more.rows] == [2, 3, 4.5, 0, 1]  # points that are equal count once
    assert sorted(called(log)) == ["0", "1", "2", "3", "4.5"]
    everything = hf.sweep.load(table)
    assert sorted(everything.columns["square"].tolist()) == [0, 1, 4, 9, 20.25]
    assert table.read_text().count("\n") == 5


def test_fits_on_worker_processes_are_those_of_this_process(tmp_path):
    points = hf.sweep.grid(pattern="random_regular", n=[24, 32], k=2, dim=[3, 6], effort=50)
    here = hf.sweep.run(points, tmp_path / "here", workers=0, num_threads=1)
    there = hf.sweep.run(points, tmp_path / "there", workers=2)
    differing = {"seconds", "wall_seconds", "when", "threads"}
    plain = [[{k: v for k, v in row.items() if k not in differing} for row in found.rows]
             for found in (here, there)]  # fmt: skip
    assert plain[0] == plain[1]
    assert [row["dim"] for row in here.rows] == [3, 6, 3, 6]


def test_a_failing_point_is_recorded_and_the_others_go_on(swept, table, log):
    points = hf.sweep.grid(x=range(6), log=log)
    found = hf.sweep.run(points, table, function=swept.picky, workers=2, num_threads=1)
    assert [row["x"] for row in found.rows] == [0, 2, 4]
    failures = {row["x"]: row for row in found.failures}
    assert failures[1]["exception"] == "ValueError: one is odd"
    assert 'raise ValueError("one is odd")' in failures[1]["traceback"]
    assert failures[3]["exception"] == "SystemExit: 3"
    assert "must return a dict" in failures[5]["exception"]
    assert "3 failed" in repr(found)

    hf.sweep.run(points, table, function=swept.picky, workers=0)
    assert len(called(log)) == 6  # failures count as done
    again = hf.sweep.run(points, table, function=swept.picky, workers=0, retry_failed=True)
    assert len(called(log)) == 9
    assert len(again.failures) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_odd_errors_and_results_end_no_sweep(workers, swept, table):
    points = hf.sweep.grid(x=[1, 2, 3, 4])
    found = hf.sweep.run(points, table, function=swept.odd, workers=workers, num_threads=1)
    assert [row["text"] for row in found.rows] == ["caf\udce9"]
    assert hf.sweep.load(table).columns["text"].tolist() == ["caf\udce9"]
    assert [row["exception"] for row in found.failures[:2]] == [
        "Unsayable: its message cannot be made",
        "CancelledError: gone",
    ]
    assert "is not below 2**63" in found.failures[2]["exception"]


@pytest.mark.parametrize("workers", [0, 1])
def test_results_of_ones_own_classes_come_as_pythons(workers, swept, table):
    points = [{"kind": kind} for kind in ("text", "whole", "real", "interrupt")]
    if workers == 0:
        points.pop()  # of this process it is the caller's
    found = hf.sweep.run(points, table, function=swept.own_classes, workers=workers, num_threads=1)
    values = [row["value"] for row in found.rows]
    assert values == ["x", 1, 0.5]
    assert [type(value) for value in values] == [str, int, float]
    assert [row["exception"] for row in found.failures] == ["KeyboardInterrupt: "] * workers
    if workers == 0:
        with pytest.raises(KeyboardInterrupt):
            hf.sweep.run([{"kind": "interrupt"}], table, function=swept.own_classes, workers=0)


def test_a_script_that_is_read_from_a_pipe_is_no_file(tmp_path):
    code = (
        "import headfit as hf\n"
        "def one(x): return {'one': 1}\n"
        "hf.sweep.run([{'x': 1}], 'table', function=one, workers=0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-"], input=code, cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "function must stand in a file" in ran.stderr.splitlines()[-1]
    assert not (tmp_path / "table").exists()


def test_a_function_that_changes_the_folder_moves_no_store(swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").mkdir()
    points = [{"folder": "away"}, {"folder": "."}]
    found = hf.sweep.run(points, "table", function=swept.goes_to, workers=0)
    assert len(found) == 2
    assert found.path == tmp_path / "table"


def test_processes_that_cannot_be_started(swept, table, monkeypatch):
    def submit(*_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    with pytest.raises(HeadfitError, match=r"a worker cannot be started or reached: .*Resource"):
        hf.sweep.run(hf.sweep.grid(x=range(2)), table, function=swept.square, workers=2)


def test_a_failure_that_is_mended_is_retried(swept, table, log, monkeypatch):
    points = hf.sweep.grid(x=[1, 2], log=log)
    hf.sweep.run(points, table, function=swept.picky, workers=0)
    monkeypatch.setattr(swept.picky, "__code__", swept.square.__code__)
    with pytest.warns(UserWarning, match="function has changed since 1 of its results"):
        mended = hf.sweep.run(points, table, function=swept.picky, workers=0, retry_failed=True)
    assert [row["square"] for row in mended.rows] == [1, 4]
    assert not mended.failures


def test_a_version_has_results_of_its_own(swept, table, monkeypatch):
    for version, results in (("a", 1), ("b", 2), ("a", 2)):
        monkeypatch.setattr(swept.versioned, "version", version)
        hf.sweep.run([{"x": 1}], table, function=swept.versioned, workers=0)
        assert len(hf.sweep.load(table)) == results
    hf.sweep.run([{"x": 1}], table, function=swept.versioned, version="c", workers=0)
    assert sorted(row["version"] for row in hf.sweep.load(table).rows) == ["a", "b", "c"]


def test_results_from_before_a_function_changed_are_taken_with_a_warning(
    table, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def run(x):\n    return {'y': x + 1}\n"

    def swept_with(text, **options):
        (tmp_path / "edited.py").write_text(text)
        module = importlib.reload(importlib.import_module("edited"))
        if options.pop("has_no_source", False):
            (tmp_path / "edited.py").unlink()
        found = hf.sweep.run([{"x": 1}], table, function=module.run, workers=0, **options)
        return found.columns["y"].tolist()

    changed = text.replace("1", "10")
    assert swept_with(text) == swept_with(f"# Comments.\n\n{text}  # And more.\n") == [2]
    with pytest.warns(
        UserWarning, match="function has changed since 1 of its results .* new version="
    ):
        assert swept_with(changed) == [2]
    assert swept_with(changed, version=2) == [11]
    assert swept_with(changed, has_no_source=True) == [2]


@pytest.mark.parametrize("kind", ["threads", "spawned", "forked"])
def test_any_executor_computes_the_points(kind, swept, table, log):
    points = hf.sweep.grid(x=range(6), log=log)
    with (
        ThreadPoolExecutor(2)
        if kind == "threads"
        else ProcessPoolExecutor(2, get_context({"spawned": "spawn"}.get(kind, "forkserver")))
    ) as executor:
        found = hf.sweep.run(points, table, function=swept.picky, executor=executor)
        assert [row["x"] for row in found.rows] == [0, 2, 4]
        assert len(found.failures) == 3
        again = hf.sweep.run(
            points, table, function=swept.picky, executor=executor, retry_failed=True
        )
    assert len(again.failures) == 3
    assert len(called(log)) == 9
    assert {row["threads"] for row in again.rows} == {1}


def test_an_executor_that_breaks_is_an_error_and_results_stay(swept, table, log):
    points = hf.sweep.grid(x=range(60), log=log, once=False)
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as executor,
        pytest.raises(HeadfitError, match="executor: a worker cannot be started or reached"),
    ):
        hf.sweep.run(points, table, function=swept.deadly, executor=executor)
    assert 0 < len(hf.sweep.load(table)) < 60
    with ThreadPoolExecutor(1) as executor:
        executor.shutdown()
        with pytest.raises(HeadfitError, match="cannot schedule new futures after shutdown"):
            hf.sweep.run(points, table, function=swept.deadly, executor=executor)


def test_an_executor_gets_a_bounded_number_of_points(swept, table, monkeypatch):
    class Counting(ThreadPoolExecutor):
        most = 0

        def submit(self, function, /, *arguments):
            self.most = max(self.most, self._work_queue.qsize())
            return super().submit(function, *arguments)

    monkeypatch.setattr(executors, "IN_FLIGHT", 3)
    with Counting(1) as executor:
        points = hf.sweep.grid(x=range(20))
        assert len(hf.sweep.run(points, table, function=swept.square, executor=executor)) == 20
    assert executor.most <= 3


def test_an_outcome_that_cannot_be_sent_is_a_failure(swept):
    (task,) = tasks_of([{"x": 1}], Work.of(swept.square, None))
    error = PicklingError("cannot be sent")

    class Deaf(ThreadPoolExecutor):
        def submit(self, function, /, *arguments):
            future = Future()
            future.set_exception(error)
            return future

    (record,) = executors.computed([task], Deaf(1), 1, 1)
    assert (record["x"], record["exception"]) == (1, "PicklingError: cannot be sent")
    assert list(Sweep(Path("x"), [record], ()).failures) == [record]


def test_every_worker_must_have_this_version(swept, table):
    class Other(ThreadPoolExecutor):  # whose workers get what a headfit of another version sends
        def submit(self, function, /, *arguments):
            sent = ["0.0.1" if x == executors.VERSION else x for x in arguments]
            return super().submit(function, *sent)

    with Other(1) as executor, pytest.raises(InputError, match=r"must have headfit 0\.0\.1; got"):
        hf.sweep.run([{"x": 1}], table, function=swept.square, executor=executor)
    assert not hf.sweep.load(table).rows


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_processes_and_threads_fill_the_cores(cores, monkeypatch):
    monkeypatch.setattr(executors, "available_cores", lambda: cores)
    assert executors.divided(None, None, 100) == (cores, 1)
    assert executors.divided(None, None, 1) == (1, cores)
    assert executors.divided(None, 2, 100) == (max(1, cores // 2), 2)
    assert executors.divided(2, None, 100) == (2, max(1, cores // 2))
    assert executors.divided(3, 4, 100) == (3, 4)  # as asked, even where it is too many


@pytest.mark.full
def test_workers_get_their_share_of_the_threads(swept, table, monkeypatch):
    monkeypatch.setattr(executors, "available_cores", lambda: 6)
    found = hf.sweep.run(hf.sweep.grid(x=[1.0, 2.5]), table, function=swept.facts)
    for row in found.rows:
        assert (row["threads_given"], row["omp"], row["threads"]) == (3, "3", 3)


def test_numbers_come_in_one_form(swept, table):
    found = hf.sweep.run(
        hf.sweep.grid(x=[1.0, 2.5]), table, function=swept.facts, workers=1, num_threads=1
    )
    one, other = found.rows
    assert (one["threads_given"], one["omp"], one["threads"]) == (1, "1", 1)
    assert one["pid"] == other["pid"]
    assert (one["is_whole"], other["is_whole"]) == (True, False)
    assert one["infinite"] == np.inf
    assert one["nothing"] is None


def test_columns():
    rows = [{"key": "", "a": 1, "b": True, "c": 1, "d": "x", "work": ""},
            {"key": "", "a": 2, "b": False, "c": None, "e": [1], "work": ""}]  # fmt: skip
    swept = Sweep(Path("x"), rows, ())
    columns = swept.columns
    kinds = {name: columns[name].dtype.kind for name in "abcde"}
    assert kinds == {"a": "i", "b": "b", "c": "f", "d": "O", "e": "O"}
    assert np.isnan(columns["c"][1])
    assert columns["e"].tolist() == [None, [1]]
    assert swept.axes == {
        "a": [1, 2], "b": [False, True], "c": [1, None],
    }  # fmt: skip


def test_a_result_with_the_name_of_an_item_of_its_point(swept, table):
    (row,) = hf.sweep.run([{"n": 8, "leak": 0.1}], table, function=swept.measured, workers=0).rows
    assert (row["n"], row["leak"], row["leak_found"]) == (8, 0.1, 0.05)
    assert "n_found" not in row
    for name in ("key", "cpu", "leak_found"):
        point = {"n": 8, "leak": 0.1, "leak_found": 1, "more": name}
        (failure,) = hf.sweep.run([point], table, function=swept.measured, workers=0).failures
        assert "must not return" in failure["exception"]


def test_a_frame_of_pandas(swept, table):
    pytest.importorskip("pandas")
    found = hf.sweep.run(hf.sweep.grid(x=[1, 2, 3]), table, function=swept.square, workers=0)
    frame = found.to_pandas()
    assert list(frame.columns) == list(found.columns)
    assert frame["square"].tolist() == [1, 4, 9]
    assert frame[frame["x"] > 1]["square"].sum() == 13


def test_progress_is_told_in_lines(swept, table, log):
    lines: list[str] = []
    points = hf.sweep.grid(x=range(3), log=log)
    hf.sweep.run(points, table, function=swept.picky, workers=0, progress=lines.append)
    assert lines == [
        "0 of 3 points", "1 of 3 points", "2 of 3 points, 1 failed", "3 of 3 points, 1 failed",
    ]  # fmt: skip


def test_a_bar(swept, table, capsys):
    pytest.importorskip("tqdm")
    hf.sweep.run(hf.sweep.grid(x=range(3)), table, function=swept.square, workers=0, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_an_interrupt_ends_it_and_keeps_what_is_done(swept, table, log):
    def stop(line: str) -> None:
        if line.startswith("2 of"):
            raise KeyboardInterrupt

    points = hf.sweep.grid(x=range(6), log=log)
    for workers in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            hf.sweep.run(points, table, function=swept.square, workers=workers, progress=stop)
    assert len(hf.sweep.load(table)) == 4
    assert len(hf.sweep.run(points, table, function=swept.square, workers=0)) == 6
    assert not hf.sweep.load(table).damaged


def test_bad_arguments_are_refused_before_any_work(swept, table):
    points = [{"x": 1}]
    for name, call in {
        "points": lambda: hf.sweep.run([], table),
        "points ": lambda: hf.sweep.run({"x": 1}, table, function=swept.square),
        "points[0]": lambda: hf.sweep.run([5], table),
        "function": lambda: hf.sweep.run(points, table, function=lambda x: {}),
        "function ": lambda: hf.sweep.run(points, table, function=5),
        "version": lambda: hf.sweep.run(points, table, version=1),
        "points[0]:": lambda: hf.sweep.run([{"y": 1}], table, function=swept.square),
        "points[0]: num_threads": lambda: hf.sweep.run(
            [{"x": 1, "num_threads": 2}], table, function=swept.facts
        ),
        "workers": lambda: hf.sweep.run(points, table, function=swept.square, workers=-1),
        "progress": lambda: hf.sweep.run(points, table, function=swept.square, progress=5),
        "retry_failed": lambda: hf.sweep.run(points, table, function=swept.square, retry_failed=1),
        "executor": lambda: hf.sweep.run(points, table, function=swept.square, executor=5),
        "workers ": lambda: hf.sweep.run(
            points, table, function=swept.square, executor=ThreadPoolExecutor(), workers=1
        ),
        "points[0]: traceback": lambda: hf.sweep.run(
            [{"traceback": 1}], table, function=swept.anything
        ),
        "path": lambda: hf.sweep.run(points, 5, function=swept.square, workers=0),
    }.items():
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value).startswith(name.strip())
    assert not table.exists()


def test_an_import_loads_nothing_heavy():
    heavy = "{'dask', 'distributed', 'pandas', 'matplotlib', 'multiprocessing.pool'}"
    code = "import sys, headfit; [getattr(headfit, name) for name in headfit.__all__]\n"
    code += f"print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.full
def test_a_script_without_a_guard_is_told_so(swept, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import headfit as hf, swept\n"
        "hf.sweep.run([{'x': 1}], 'results', function=swept.square, workers=1, num_threads=1)\n"
    )
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1
    assert HeadfitError.__name__ in ran.stderr
    assert 'if __name__ == "__main__":' in ran.stderr.splitlines()[-1]
