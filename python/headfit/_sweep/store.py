"""The store of a sweep: a folder with one small file for each point. The files are the truth.

A file appears whole or not at all: it is written under a temporary name in its folder, flushed to
the disk, and given its name. Any number of sweeps, on any number of machines that share the folder,
may write at once: files of one key say the same, and a result is never replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headfit._base.arguments import shown
from headfit._base.files import (
    UNFINISHED,
    add_file,
    as_path,
    move_to_free,
    opened,
    replace_file,
    sync_folder,
)
from headfit._sweep.canonical import KEY_LENGTH
from headfit._sweep.record import Record, from_bytes, to_bytes
from headfit.errors import FileError, MissingFileError

MARKER = "headfit-sweep.json"
KIND, FORMAT = "sweep store", 1
MARKER_TEXT = (json.dumps({"headfit": KIND, "format": FORMAT}) + "\n").encode("ascii")
INDEX = "index.csv"
POINTS = "points"
PROBE = 4096
"""Bytes that are written before a sweep begins, to see whether its store can be written."""

_NAME = re.compile(rf"([0-9a-f]{{{KEY_LENGTH}}})\.json")
_ASIDE = re.compile(rf"([0-9a-f]{{{KEY_LENGTH}}})\.json\.damaged-[0-9a-f]+")

Status = Literal["done", "failed", "missing", "damaged"]


@dataclass(frozen=True)
class Entry:
    """What a store holds for a key: a record, nothing, or a file that is none (`why`)."""

    key: str
    status: Status
    record: Record | None = None
    why: str = ""


class Store:
    """A folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def existing(cls, path: Any, name: str = "store") -> Store:
        """Return the store at a path, or raise a FileError."""
        folder = Path(as_path(path, name))
        if not folder.exists():
            raise MissingFileError(f"{name}: {folder} does not exist", filename=str(folder))
        if not (folder / MARKER).is_file():
            raise FileError(
                f"{name}: {folder} is no store of a sweep: it has no file {MARKER}",
                filename=str(folder),
            )
        check_format(folder, name)
        return cls(folder)

    @classmethod
    def made(cls, path: Any, name: str = "out") -> Store:
        """Return the store at a path, made if the path is free or an empty folder.

        Its folder is absolute, so that a change of the working directory does not move it.
        """
        folder = Path(as_path(path, name)).absolute()
        check_free(folder, name)
        store = cls(folder)
        with store.naming():
            (folder / POINTS).mkdir(parents=True, exist_ok=True)
            if not (folder / MARKER).is_file():
                replace_file(folder / MARKER, lambda file: file.write(MARKER_TEXT), name)
            sync_folder(folder)
        return store

    def check_writable(self) -> None:
        """Write a file of the size of a record and remove it, or raise the error of that."""
        with self.naming():
            probe = self.folder / POINTS / f".headfit-{secrets.token_hex(8)}.tmp"
            add_file(probe, lambda file: file.write(bytes(PROBE)), "out")
            probe.unlink()

    def path(self, key: str) -> Path:
        """Return where the file of a key stands: 256 folders share the files."""
        return self.folder / POINTS / key[:2] / f"{key}.json"

    def read(self, key: str) -> Entry:
        """Return what the store holds for a key; a damaged file is no error.

        Raises
        ------
        FileError
            When the system cannot read a file, which may then be whole.
        """
        entry = self._read(self.path(key), key)
        if entry.status != "missing":
            return entry
        # A sweep that was killed while it replaced a record has left that record aside.
        aside = (self._read(path, key) for path in self._aside(key))
        kept = sorted((e for e in aside if e.record), key=lambda e: e.status)
        return kept[0] if kept else entry  # a result before a failure

    def _aside(self, key: str) -> list[Path]:
        """Return the files of a key that were set aside."""
        folder = self.path(key).parent
        names = os.listdir(folder) if folder.is_dir() else []
        return [folder / n for n in sorted(names) if n.startswith(key) and _ASIDE.fullmatch(n)]

    def _read(self, path: Path, key: str) -> Entry:
        try:
            with opened(path, "store", "is no record that can be read") as file:
                record = from_bytes(file.read(), key)
        except MissingFileError:
            if path.is_symlink():
                return Entry(key, "damaged", None, f"{path}: it is a link to nothing")
            return Entry(key, "missing")
        except ValueError as error:
            if isinstance(error, FileError) and error.errno is not None:
                raise
            return Entry(key, "damaged", None, f"{path}: {error}")
        status: Status = record["status"]
        return Entry(key, status, record)

    def write(self, record: Record) -> Entry:
        """Keep a record, and return what the store then holds.

        A result that is there stays, also one that another sweep writes meanwhile. A record of a
        failure is replaced. A damaged file is set aside under another name.

        Raises
        ------
        FileError
            When the file cannot be written, as on a full disk; the store is then as it was.
        """
        key, text = record["key"], to_bytes(record)
        path = self.path(key)
        while (entry := self.read(key)).status != "done":
            with self.naming():
                if not path.parent.is_dir():
                    path.parent.mkdir(exist_ok=True)
                    sync_folder(path.parent.parent)
                clear = None if entry.status == "missing" else partial(self._clear, key)
                if add_file(path, lambda file: file.write(text), "out", clear):
                    sync_folder(path.parent)
                    self._forget_replaced(key)
                    return Entry(key, record["status"], record)
            # Another sweep was quicker.
        return entry

    def _forget_replaced(self, key: str) -> None:
        """Remove records that sweeps which were killed have left aside; damaged files stay."""
        for path in self._aside(key):
            if self._read(path, key).record is not None:
                path.unlink(missing_ok=True)

    def _clear(self, key: str) -> None:
        """Remove a failure, and set a damaged file aside, unless it has become a result."""
        path = self.path(key)
        aside = path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}")
        try:
            path.rename(aside)
        except FileNotFoundError:  # another sweep was quicker
            return
        status = self._read(aside, key).status
        if status == "done":
            with contextlib.suppress(FileExistsError):
                move_to_free(aside, path)
                return
        if status != "damaged":
            aside.unlink(missing_ok=True)

    def entries(self) -> Iterator[Entry]:
        """Yield what every file of the store holds.

        Files that are no records, or that the system cannot read, come as damaged.
        """
        root = self.folder / POINTS
        for shard in sorted(root.iterdir()) if root.is_dir() else ():
            if not shard.is_dir():
                yield Entry("", "damaged", None, f"{shard}: it is no file of a sweep")
                continue
            listed: set[str] = set()
            for file in sorted(shard.iterdir()):
                name = _NAME.fullmatch(file.name)
                aside = _ASIDE.fullmatch(file.name)
                found = name or aside
                key = "" if found is None else found[1]
                if name and file == self.path(key):
                    listed.add(key)
                    yield self._listed(key)
                elif aside and self._is_record(file, key):
                    if key not in listed:
                        listed.add(key)
                        yield self._listed(key)
                elif aside:
                    yield Entry("", "damaged", None, f"{file}: set aside by an earlier sweep")
                elif not UNFINISHED.fullmatch(file.name):
                    yield Entry("", "damaged", None, f"{file}: it is no file of a sweep")

    def _is_record(self, file: Path, key: str) -> bool:
        with contextlib.suppress(FileError):
            return self._read(file, key).record is not None
        return False

    def _listed(self, key: str) -> Entry:
        try:
            return self.read(key)
        except FileError as error:
            return Entry(key, "damaged", None, str(error))

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Make errors of the file system name the store."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise FileError(
                f"out: the store {self.folder} cannot be written: {reason}. What it held is "
                "whole; the same sweep goes on from there",
                error.errno,
                str(self.folder),
            ) from error


def check_free(folder: Path, name: str) -> None:
    """Raise a FileError unless a path is free, an empty folder, or a store."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise FileError(f"{name}: {folder} is no folder", filename=str(folder))
    names = [n for n in os.listdir(folder) if n != POINTS and not UNFINISHED.fullmatch(n)]
    if names and MARKER not in names:
        raise FileError(
            f"{name}: {folder} is no store of a sweep and not empty: it has no file {MARKER}",
            filename=str(folder),
        )
    if MARKER in names:
        check_format(folder, name)


def check_format(folder: Path, name: str) -> None:
    """Raise a FileError unless the marker of a store says the format that is known here."""
    with opened(folder / MARKER, name, "is no marker of a store") as file:
        text = file.read()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("headfit") != KIND:
        raise FileError(
            f"{name}: {folder / MARKER} is no marker of a store: it must hold "
            f"{MARKER_TEXT.decode().strip()}",
            filename=str(folder),
        )
    if found.get("format") != FORMAT:
        raise FileError(
            f"{name}: {folder} is a store of format {shown(found.get('format'))}; this headfit "
            f"knows format {FORMAT}",
            filename=str(folder),
        )
