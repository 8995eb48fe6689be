"""The table of a sweep: torn and damaged lines, full disks, and several sweeps at once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headfit as hf
from headfit._sweep import table as module
from headfit._sweep.table import PROBE, START, Table
from headfit.errors import FileError, MissingFileError


def called(log: str) -> int:
    return len(Path(log).read_text().split())


@pytest.fixture
def filled(swept, table, log):
    """A function that sweeps four points, which have been swept into a table."""

    def again():
        return hf.sweep.run(hf.sweep.grid(x=range(4), log=log), table, function=swept.square,
                            workers=0)  # fmt: skip

    again()
    return again


def test_a_line_says_all_about_its_point(filled, table):
    for x, line in enumerate(table.read_text().splitlines()):
        record = json.loads(line)
        assert list(record) == [
            "key", "x", "log", "work", "version", "code", "when", "wall_seconds", "threads",
            "headfit", "cpu_level", "cpu", "square",
        ]  # fmt: skip
        assert (record["x"], record["square"]) == (x, x * x)


def test_pandas_reads_it(filled, table):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_json(table, lines=True)
    assert frame["square"].tolist() == [0, 1, 4, 9]
    assert list(frame.columns) == list(hf.sweep.load(table).columns)


@pytest.mark.parametrize("cut", [2, 5, 40, "all but five", "all"])
def test_a_torn_last_line_is_dropped_and_computed_again(cut, filled, table, log):
    lines = table.read_bytes().splitlines(keepends=True)
    cut = {"all but five": len(lines[-1]) - 5, "all": len(lines[-1])}.get(cut, cut)
    torn = b"".join(lines)[:-cut]
    table.write_bytes(torn)
    assert len(hf.sweep.load(table)) == 3
    assert table.read_bytes() == torn  # reading changes nothing
    swept = filled()
    assert (len(swept), swept.damaged, called(log)) == (4, [], 5)
    assert table.read_bytes().count(b"\n") == 4
    assert len(hf.sweep.load(table)) == 4


def test_a_last_record_that_lacks_its_newline_alone_is_kept(filled, swept, table, log):
    whole = table.read_bytes()
    table.write_bytes(whole[:-1])
    assert (len(filled()), called(log)) == (4, 4)  # nothing to write
    hf.sweep.run([{"x": 9, "log": log}], table, function=swept.square, workers=0)
    assert table.read_bytes().startswith(whole)
    assert len(hf.sweep.load(table)) == 5


@pytest.mark.parametrize("left", [b"", START[:4], START + b"0123", START.ljust(PROBE)])
def test_a_table_whose_first_line_is_torn_is_empty(left, filled, table):
    table.write_bytes(left)
    assert len(hf.sweep.load(table)) == 0
    assert len(filled()) == 4
    assert table.read_bytes().count(b"\n") == 4


def damaged(line: bytes, how: str) -> bytes:
    record = json.loads(line)
    if how == "point":
        record["x"] += 1
    elif how == "parts":
        del record["work"]
    return {
        "cut": line[: len(line) // 2],
        "zeros": bytes(len(line) - 1),
        "list": b"[]",
        "deep": b"[" * 100_000,
    }.get(how, json.dumps(record).encode()) + b"\n"


@pytest.mark.parametrize("how", ["cut", "zeros", "list", "deep", "point", "parts"])
def test_a_damaged_line_counts_for_nothing_and_stays(how, filled, table, log):
    lines = table.read_bytes().splitlines(keepends=True)
    lines[1] = damaged(lines[1], how)
    table.write_bytes(b"".join(lines))
    swept = hf.sweep.load(table)
    assert (len(swept), len(swept.damaged)) == (3, 1)
    assert f"line 2 of {table} is no record" in swept.damaged[0]
    again = filled()
    assert (len(again), again.damaged, called(log)) == (4, swept.damaged, 5)
    assert table.read_bytes().startswith(b"".join(lines))


@pytest.mark.parametrize("text", ['{"key": "value", "other": [1, 2, 3]}', ' "other": 2}', "mine"])
def test_a_line_of_others_without_its_newline_stays(text, filled, swept, table, log):
    records = table.read_text()
    table.write_text(records + text)
    assert len(hf.sweep.load(table).damaged) == 1
    found = hf.sweep.run([{"x": 9, "log": log}], table, function=swept.square, workers=0)
    assert (len(found), len(found.damaged)) == (1, 1)
    assert table.read_text().startswith(records + text + "\n")
    assert len(hf.sweep.load(table)) == 5


OTHERS = [
    "mine", "\n", '{"key": 3}', " " * PROBE, "[]\n", '{"key": "value", "other": [1, 2, 3]}',
    '{"key": "abc",\n "b": 2}', '{"key": "abc", "b": 2}\n{"key": "abd", "b"',
]  # fmt: skip


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_no_table_is_refused_and_stays(text, swept, table):
    table.write_text(text)
    for call in (
        lambda: hf.sweep.load(table),
        lambda: hf.sweep.run([{"x": 1}], table, function=swept.square, workers=0),
    ):
        with pytest.raises(FileError, match="is no table of a sweep"):
            call()
    assert table.read_text() == text


def test_folders_pipes_and_missing_files_are_refused(swept, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        for call in (
            lambda path=path: hf.sweep.load(path),
            lambda path=path: hf.sweep.run([{"x": 1}], path, function=swept.square, workers=0),
        ):
            with pytest.raises(FileError, match="is no table of a sweep: it is a"):
                call()
    with pytest.raises(MissingFileError):
        hf.sweep.load(tmp_path / "nothing")
    with pytest.raises(FileError, match="cannot be written: No such file or directory"):
        hf.sweep.run([{"x": 1}], tmp_path / "no" / "x", function=swept.square, workers=0)


def test_the_last_record_of_a_point_counts(filled, table):
    record = json.loads(table.read_text().splitlines()[0])
    with table.open("a") as file:
        print(json.dumps({**record, "square": 7}), file=file)
    assert hf.sweep.load(table).columns["square"].tolist() == [7, 1, 4, 9]


def full(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_table_that_cannot_be_written_is_seen_before_a_point_is_computed(
    filled, table, monkeypatch, swept, log
):
    before = table.read_bytes()
    with monkeypatch.context() as disk:
        disk.setattr(module.os, "fsync", full)
        assert len(filled()) == 4  # all results are there: nothing is written
        with pytest.raises(FileError, match="No space left on device") as caught:
            hf.sweep.run(
                hf.sweep.grid(x=range(9), log=log), table, function=swept.square, workers=0
            )
    assert str(table) in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    assert (table.read_bytes(), called(log)) == (before, 4)


def test_a_record_that_cannot_be_written_leaves_no_trace(filled, table, monkeypatch):
    before = table.read_bytes()
    record = json.loads(before.splitlines()[0])
    for error in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):

        def fail(handle: int, error: BaseException = error) -> None:
            raise error

        with Table.writing(table) as writer, monkeypatch.context() as disk:
            disk.setattr(module.os, "fsync", fail)
            with pytest.raises((FileError, KeyboardInterrupt)):
                writer.write(record)
        assert table.read_bytes() == before


SWEEP = """
import resource, sys
import headfit as hf, swept
{before}
points = hf.sweep.grid(x=range(40), log={log!r})
try:
    hf.sweep.run(points, {table!r}, function=swept.square, workers=0)
except hf.errors.FileError as error:
    print(error)
    sys.exit(3)
"""


def run_sweep(table: Path, log: str, before: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(sys.path)
    code = SWEEP.format(before=before, log=log, table=str(table))
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for a few points."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no command mount")
    if done.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk, swept, log, table):
    points = hf.sweep.grid(x=range(40), log=log)
    whole = hf.sweep.run(points, table, function=swept.square, workers=0)
    full = small_disk / "sweep.jsonl"
    ran = run_sweep(full, log)
    assert ran.returncode == 3, ran.stderr
    assert f"{full} cannot be written: No space left on device" in ran.stdout
    there = hf.sweep.load(full)
    assert 0 < len(there) < 40
    assert not there.damaged
    assert full.read_bytes().endswith(b"\n")
    bigger = ["mount", "-o", "remount,size=4m", str(small_disk)]
    subprocess.run(bigger, check=True)
    again = hf.sweep.run(points, full, function=swept.square, workers=0)
    assert [row["square"] for row in again.rows] == [row["square"] for row in whole.rows]


@pytest.mark.parametrize("room", [200, 6000])
def test_a_write_that_is_cut_short_leaves_whole_lines(room, swept, log, table):
    """A limit on the size of files makes writes end midway, as a full disk does."""
    first = run_sweep(table, log, "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
                      f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))")  # fmt: skip
    assert first.returncode == 3, first.stderr
    assert str(table) in first.stdout
    assert table.read_bytes()[-1:] in (b"", b"\n")
    there = hf.sweep.load(table)
    assert there.damaged == []
    assert bool(len(there)) == (room > PROBE)
    assert run_sweep(table, log).returncode == 0
    assert len(hf.sweep.load(table)) == 40


@pytest.mark.full
def test_another_sweep_on_the_same_table_is_refused(filled, table, log):
    with Table.writing(table) as writer:
        del writer
        assert len(filled()) == 4  # nothing to write
        ran = run_sweep(table, log)
        assert ran.returncode == 3, ran.stderr
        assert f"{table} is being written by another sweep" in ran.stdout
    assert called(log) == 4
    assert run_sweep(table, log).returncode == 0
    assert len(hf.sweep.load(table)) == 40


def test_several_threads_that_sweep_at_once_compute_no_point_twice(swept, table, log):
    points = hf.sweep.grid(x=range(8), log=log)

    def sweep() -> None:
        with contextlib.suppress(FileError):
            hf.sweep.run(points, table, function=swept.slow_square, workers=0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: sweep(), range(4)))
    assert len(hf.sweep.load(table)) == called(log) == 8


def test_a_file_system_without_locks_does_without(filled, table, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    table.write_bytes(b"")
    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    assert len(filled()) == 4


def test_no_lock_stays_with_forked_processes(filled, table):
    with Table.writing(table):
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.read(os.pipe()[0], 1)
            os._exit(0)
    try:
        with Table.writing(table):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_result_of_any_finite_or_infinite_number_comes_back(swept, table):
    kinds = ("nan", "inf", "-inf", "1e300", "0.1")
    first = hf.sweep.run([{"text": k} for k in kinds], table, function=swept.number, workers=0)
    second = hf.sweep.load(table)
    assert repr(first.rows) == repr(second.rows)
    assert [str(row["value"]) for row in second.rows] == ["nan", "inf", "-inf", "1e+300", "0.1"]


def test_a_table_that_may_lack_is_empty(table):
    assert Table(table.with_name("nothing"), may_lack=True).records == {}
