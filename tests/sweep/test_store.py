"""The store: damaged files, full disks, leftovers, and several sweeps at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headfit as hf
from headfit._base import files
from headfit._sweep.canonical import KEY_LENGTH
from headfit._sweep.record import from_bytes
from headfit._sweep.store import MARKER, Entry, Store
from headfit.errors import FileError


def point_files(store: Path) -> list[Path]:
    return sorted((store / "points").glob("*/*.json"))


@pytest.fixture
def filled(swept, store, log):
    """A store of four points, and the function that sweeps them again."""

    def again():
        return hf.sweep(hf.grid(x=range(4), log=log), store, run=swept.square, processes=0)

    again()
    return again


def test_a_file_says_all_about_its_point(filled, store):
    for file in point_files(store):
        record = json.loads(file.read_bytes())
        assert from_bytes(file.read_bytes(), file.stem)["point"] == record["point"]
        assert file.parent.name == file.name[:2]
        assert set(record) == {
            "format", "key", "work", "version", "point", "code", "status", "result", "made",
            "check",
        }  # fmt: skip
        assert len(file.stem) == KEY_LENGTH
    assert (store / MARKER).is_file()


def damage(file: Path, how: str) -> None:
    text = file.read_bytes()
    record = json.loads(text)
    if how == "empty":
        file.write_bytes(b"")
    elif how == "cut":
        file.write_bytes(text[: len(text) // 2])
    elif how == "zeros":
        file.write_bytes(bytes(len(text)))
    elif how == "changed":
        record["result"]["square"] += 1
        file.write_text(json.dumps(record))
    elif how == "another":
        other = next(f for f in file.parents[1].glob("*/*.json") if f != file)
        file.write_bytes(other.read_bytes())
    elif how == "list":
        file.write_text("[]")
    elif how == "parts":
        file.write_text(json.dumps({"format": 1}))
    elif how == "folder":
        file.unlink()
        file.mkdir()


@pytest.mark.parametrize(
    "how", ["empty", "cut", "zeros", "changed", "another", "list", "parts", "folder"]
)
def test_a_damaged_file_counts_as_missing_and_is_kept(how, filled, store, log):
    file = point_files(store)[1]
    whole = file.read_bytes()
    damage(file, how)
    spoilt = file.read_bytes() if file.is_file() else None
    found = hf.load_sweep(store)
    assert (len(found), found.missing, len(found.damaged)) == (3, 1, 1)
    assert str(file) in found.damaged[0]
    before = len(Path(log).read_text().split())
    mended = filled()
    assert (len(mended), mended.damaged) == (4, found.damaged)
    assert len(Path(log).read_text().split()) == before + 1
    again = hf.load_sweep(store)
    assert (len(again), again.missing, len(again.damaged)) == (4, 0, 1)
    assert "set aside" in again.damaged[0]
    assert json.loads(file.read_bytes())["result"] == json.loads(whole)["result"]
    (aside,) = file.parent.glob("*.damaged-*")
    if spoilt is not None:
        assert aside.read_bytes() == spoilt


def test_a_file_that_cannot_be_read_stays_and_is_an_error(filled, store):
    file = point_files(store)[1]
    whole = file.rename(store / "kept")
    file.symlink_to(file)  # a circle of links: the system refuses to open it
    found = hf.load_sweep(store)
    assert (len(found), found.missing, len(found.damaged)) == (3, 1, 1)
    assert str(file) in found.damaged[0]
    with pytest.raises(FileError, match="Too many levels of symbolic links") as caught:
        filled()
    assert str(file) in str(caught.value)
    assert file.is_symlink()
    file.unlink()
    whole.rename(file)
    assert len(filled()) == 4


def test_foreign_files_are_reported_and_left_alone(filled, store):
    foreign = [store / "points" / "notes.txt", point_files(store)[0].parent / "copy (1).json"]
    for file in foreign:
        file.write_text("mine")
    found = filled()
    assert len(found) == 4
    assert len(hf.load_sweep(store).damaged) == 2
    assert all(file.read_text() == "mine" for file in foreign)


def test_leftovers_are_ignored_and_removed_when_old(filled, store, swept, log):
    folder = point_files(store)[0].parent
    old, new = (folder / f".headfit-{digit * 16}.tmp" for digit in "01")
    for file in (old, new):
        file.write_text("half")
    long_ago = time.time() - 2 * files.LONGEST_SAVE
    os.utime(old, (long_ago, long_ago))
    found = hf.load_sweep(store)
    assert (len(found), found.damaged) == (4, [])
    point_files(store)[0].unlink()
    filled()
    assert not old.exists()
    assert new.exists()


def test_a_result_is_never_replaced(filled, store):
    file = point_files(store)[0]
    text = file.read_bytes()
    record = from_bytes(text, file.stem)
    failed = {**record, "status": "failed", "error": {"class": "X", "message": ""}}
    del failed["result"]
    assert Store(store).write(failed).status == "done"
    assert file.read_bytes() == text


@pytest.mark.parametrize("has_links", [True, False])
def test_a_result_that_another_sweep_wrote_meanwhile_stays(filled, store, monkeypatch, has_links):
    file = point_files(store)[0]
    text = file.read_bytes()
    failed = {**from_bytes(text, file.stem), "status": "failed"}
    failed["error"] = {"class": "X", "message": ""}
    del failed["result"]
    if not has_links:
        monkeypatch.setattr(files.os, "link", no_link)
    for seen in ("missing", "damaged", "failed"):
        with monkeypatch.context() as first:
            first.setattr(Store, "read", once(Entry(file.stem, seen), Store.read))
            assert Store(store).write(failed).status == "done"
        assert file.read_bytes() == text
    assert not list(file.parent.glob(".*")) + list(file.parent.glob("*.damaged-*"))


def test_a_link_to_nothing_is_damaged_and_set_aside(filled, store):
    file = point_files(store)[0]
    file.unlink()
    file.symlink_to(store / "nothing")
    assert "a link to nothing" in hf.load_sweep(store).damaged[0]
    assert len(filled()) == 4
    assert file.is_file()
    assert not file.is_symlink()


def no_link(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def once(entry: Entry, then: Callable[[Store, str], Entry]) -> Callable[[Store, str], Entry]:
    answers = iter([entry])
    return lambda store, key: next(answers, None) or then(store, key)


def test_an_index_that_is_older_than_a_result_is_made_again(filled, store):
    index = store / "index.csv"
    whole = index.read_bytes()
    filled()
    assert index.read_bytes() == whole
    index.write_text("as if a sweep had been killed before its end")
    os.utime(index, (1, 1))
    filled()
    assert index.read_bytes() == whole
    index.unlink()
    filled()
    assert index.read_bytes() == whole


def test_a_failure_stays_where_its_successor_cannot_be_written(filled, store, monkeypatch):
    file = point_files(store)[0]
    done = from_bytes(file.read_bytes(), file.stem)
    failed = {**done, "status": "failed", "error": {"class": "X", "message": ""}}
    del failed["result"]
    file.unlink()
    assert Store(store).write(failed).status == "failed"
    text = file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(files.os, "fsync", full)
        with pytest.raises(FileError, match="No space left on device"):
            Store(store).write(done)
    assert file.read_bytes() == text
    assert Store(store).write(done).status == "done"
    assert hf.load_sweep(store).failures == []


def test_a_store_that_cannot_be_written_is_seen_before_a_point_is_computed(
    filled, store, monkeypatch, swept, log
):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = Path(log).read_text()
    with monkeypatch.context() as disk:
        disk.setattr(files.os, "fsync", full)
        assert len(filled()) == 4  # all results are there: nothing is written
        with pytest.raises(FileError, match="No space left on device"):
            hf.sweep(hf.grid(x=range(9), log=log), store, run=swept.square, processes=0)
    assert Path(log).read_text() == before
    assert not list(store.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"headfit": "sweep store", "format": 99}', "store of format 99; this headfit knows"),
        ('{"headfit": "sweep store"}', "store of format None; this headfit knows format 1"),
        ("[1]", "is no marker of a store: it must hold"),
        ("cut", "is no marker of a store: it must hold"),
    ],
)
def test_a_store_of_another_format_is_refused(text, said, filled, store):
    (store / MARKER).write_text(text)
    for call in (filled, lambda: hf.load_sweep(store)):
        with pytest.raises(FileError, match=said):
            call()


@pytest.mark.parametrize("status", ["failed", "done"])
def test_a_kill_while_a_record_is_replaced_loses_it_not(status, filled, store, log):
    file = point_files(store)[0]
    done = from_bytes(file.read_bytes(), file.stem)
    if status == "failed":
        file.unlink()
        failed = {**done, "status": "failed", "error": {"class": "X", "message": ""}}
        del failed["result"]
        Store(store).write(failed)
    file.rename(file.with_name(f"{file.name}.damaged-00112233"))
    found = hf.load_sweep(store)
    assert (len(found) + len(found.failures), found.missing, found.damaged) == (4, 0, [])
    assert Store(store).read(file.stem).status == status
    before = Path(log).read_text()
    filled()
    assert Path(log).read_text() == before
    assert Store(store).write(done).status == "done"
    assert len(hf.load_sweep(store)) == 4
    assert bool(list(store.rglob("*.damaged-*"))) == (status == "done")


def test_an_error_of_writing_names_the_folder(filled, store, monkeypatch, swept, log):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device") as caught:
        hf.sweep(hf.grid(x=range(9), log=log), store, run=swept.square, processes=0)
    assert str(store) in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert len(hf.load_sweep(store)) == 4


SWEEP = """
import resource, sys
import headfit as hf, swept
{before}
try:
    hf.sweep(hf.grid(x=range(40), log={log!r}), {store!r}, run=swept.square, processes=0)
except hf.errors.FileError as error:
    print(error)
    sys.exit(3)
"""


def run_sweep(store: Path, log: str, before: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(sys.path)
    code = SWEEP.format(before=before, log=log, store=str(store))
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for a few points."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no command mount")
    if done.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk, swept, log, store):
    whole = hf.sweep(hf.grid(x=range(40), log=log), store, run=swept.square, processes=0)
    full = small_disk / "store"
    ran = run_sweep(full, log)
    assert ran.returncode == 3
    assert f"the store {full} cannot be written: No space left on device" in ran.stdout
    found = hf.load_sweep(full)
    assert 0 < len(found) < 40
    assert not found.damaged
    assert not list(full.rglob("*.tmp"))
    bigger = ["mount", "-o", "remount,size=4m", str(small_disk)]
    subprocess.run(bigger, check=True)
    again = hf.sweep(hf.grid(x=range(40), log=log), full, run=swept.square, processes=0)
    assert [row["square"] for row in again.rows] == [row["square"] for row in whole.rows]


def test_a_write_that_is_cut_short_leaves_nothing(swept, log, store):
    """A limit on the size of files makes writes end midway, as a full disk does."""
    first = run_sweep(store, log, "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
                      "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))")  # fmt: skip
    assert first.returncode == 3, first.stderr
    assert str(store) in first.stdout
    found = hf.load_sweep(store)
    assert (len(found), found.damaged) == (0, [])
    assert run_sweep(store, log).returncode == 0
    assert len(hf.load_sweep(store)) == 40


def test_several_sweeps_at_once_on_one_store(swept, store, log):
    path = os.pathsep.join(sys.path)
    code = SWEEP.format(before="", log=log, store=str(store))
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
        for _ in range(2)
    ]
    assert [run.wait(timeout=300) for run in runs] == [0, 0]
    found = hf.load_sweep(store)
    assert sorted(found.columns["square"].tolist()) == [x * x for x in range(40)]
    assert not found.damaged
    assert not list(store.rglob("*.tmp"))


def test_a_store_may_be_made_and_written_by_several_threads_at_once(swept, tmp_path):
    for attempt in range(5):
        folder = tmp_path / str(attempt)

        def sweep(folder: Path = folder) -> int:
            return len(hf.sweep(hf.grid(x=range(3)), folder, run=swept.square, processes=0))

        with ThreadPoolExecutor(4) as pool:
            assert [job.result() for job in [pool.submit(sweep) for _ in range(4)]] == [3] * 4
        assert len(hf.load_sweep(folder)) == 3
