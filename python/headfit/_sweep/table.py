"""The file of a sweep: a table in JSON Lines, one record a line, that only ever grows.

A record is flushed to the disk before the next point is taken. Whatever ends the process, and
whenever, the lines before stay whole. A last line without its end was being written; readers leave
it out, and the next sweep that writes removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headfit._base.files import opened, sync_folder
from headfit._sweep.canonical import point_key
from headfit._sweep.work import Record
from headfit.errors import FileError, MissingFileError

START = b'{"key": "'
"""How every line begins."""

PROBE = 4096
"""Bytes that are written before a sweep begins, to see whether there is room for a record."""


class Table:
    """What a file of a sweep says: the records by key, and lines that are none, in words.

    Of several records of one key, as of a point that failed and was computed again, the last
    counts.
    """

    def __init__(self, path: Path, may_lack: bool = False) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        self.damaged: list[str] = []
        self.end = 0  # of the last whole line
        try:
            with opened(path, "path", "is no table of a sweep") as file:
                for number, line in enumerate(file, start=1):
                    self._read(number, line)
        except MissingFileError:
            if not may_lack:
                raise

    def _read(self, number: int, line: bytes) -> None:
        if number == 1 and line[: len(START)] != START[: len(line)]:
            raise FileError(
                f"path: {self.path} is no table of a sweep: its first line is no record",
                filename=str(self.path),
            )
        if not line.endswith(b"\n"):
            return
        self.end += len(line)
        try:
            record = json.loads(line)
            key = point_key(record["work"], record["version"], point_of(record))
        except (ValueError, KeyError, TypeError, RecursionError):
            key = ""
        if key and key == record["key"]:
            self.records[key] = record
        else:
            self.damaged.append(f"line {number} of {self.path} is no record, or was changed")


def point_of(record: Record) -> dict[str, Any]:
    """Return the point of a record: what stands between its key and its work."""
    names = list(record)
    return {name: record[name] for name in names[1 : names.index("work")]}


class Writer:
    """A file of a sweep that is open for writing, by one sweep at a time."""

    def __init__(self, handle: int, path: Path) -> None:
        self._handle = handle
        self.table = Table(path)
        self._end = self.table.end
        os.ftruncate(handle, self._end)
        self._append(START.ljust(PROBE))
        os.ftruncate(handle, self._end)

    def write(self, record: Record) -> None:
        """Add a record; it is on the disk when this returns.

        Raises
        ------
        FileError
            When it cannot be written, as on a full disk; the file is then as it was.
        """
        line = json.dumps(record).encode("ascii") + b"\n"
        with naming(self.table.path):
            self._append(line)
        self._end += len(line)

    def _append(self, text: bytes) -> None:
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
            os.fsync(self._handle)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._end)
            raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """Open the file of a sweep for writing; it is made where there is none.

    Raises
    ------
    FileError
        When it cannot be written, or another sweep is writing to it.
    """
    with naming(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sync_folder(path.parent)
            writer = Writer(handle, path)
        except BaseException:
            os.close(handle)
            raise
    try:
        yield writer
    finally:
        # Workers that were forked hold the file open too: the lock would last as long as they do.
        lock(handle, fcntl.LOCK_UN)
        os.close(handle)


def lock(handle: int, how: int) -> None:
    """Lock an open file, or raise a BlockingIOError; file systems without locks do without."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        raise
    except OSError:
        pass


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make errors of the file system name the file."""
    try:
        yield
    except FileError:
        raise
    except BlockingIOError as error:
        raise FileError(
            f"path: another sweep is writing to {path}", error.errno, str(path)
        ) from error
    except OSError as error:
        raise FileError(
            f"path: {path} cannot be written: {error.strerror}. What it held is whole; the same "
            "sweep goes on from there",
            error.errno,
            str(path),
        ) from error
