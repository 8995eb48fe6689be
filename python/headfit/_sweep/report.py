"""`write_report`: a folder with a page, and the numbers of every picture beside it.

The folder appears whole: it is written under a temporary name, then renamed. An older report is
replaced, and nothing else ever is.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headfit._base.drawing import matplotlib
from headfit._base.files import as_path
from headfit._sweep.chart import Chart
from headfit._sweep.choose_charts import charts
from headfit._sweep.page import page
from headfit._sweep.result import Sweep
from headfit._sweep.rows import as_csv
from headfit.errors import FileError

PAGE = "index.html"
MANIFEST = "headfit-report.json"
"""The list of a report's files, which tells what may be replaced."""


def write_report(found: Sweep, out: Any, name: str = "output") -> list[str]:
    """Write the report of a sweep to a folder; return the names of its files.

    Raises
    ------
    FileError
        If the folder holds anything that is not of an older report, or cannot be written. What
        was there stays as it was.
    ImportError
        Without Matplotlib.
    """
    folder = Path(as_path(out, name))
    check_replaceable(folder, name)
    matplotlib()
    groups = found.by_work()
    shown = {record["work"]: part for record, part in reversed(groups)}  # the newest version last
    left_out = [group for group in groups if group[1] is not shown[group[0]["work"]]]
    drawn = dict(_charts(dict(sorted(shown.items()))))
    files = {
        PAGE: page(found, drawn, left_out).encode("utf-8"),
        "results.csv": as_csv(found.rows),
    }
    files |= {file: as_csv(chart.rows()) for file, chart in drawn.items()}
    if found.failures:
        files["failures.csv"] = as_csv(found.failures)
    files[MANIFEST] = json.dumps({"files": sorted(files)}).encode("ascii")
    try:
        _write_folder(folder, files)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise FileError(
            f"{name}: {folder} cannot be written: {reason}", error.errno, str(folder)
        ) from error
    return sorted(files)


def _charts(works: Mapping[str, Sweep]) -> Iterator[tuple[str, Chart]]:
    """Yield the charts of each work with the names of their files."""
    taken: Counter[str] = Counter()
    for i, (work, found) in enumerate(works.items(), start=1):
        for chart in charts(found.rows, found.axes, work):
            name = (f"{i}-" if len(works) > 1 else "") + chart.name
            taken[name] += 1  # columns whose names differ in a sign may share the name
            yield name + (f"-{taken[name]}" if taken[name] > 1 else "") + ".csv", chart


def check_replaceable(folder: Path, name: str) -> None:
    """Raise a FileError unless a path is free, an empty folder, or an older report and no more."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise FileError(f"{name}: {folder} is there, and no folder", filename=str(folder))
    there = set(os.listdir(folder))
    for other in sorted(there - _files_of_report(folder)):
        raise FileError(
            f"{name}: {folder} holds {other}, which is not of a report: it stays as it is",
            filename=str(folder),
        )


def _files_of_report(folder: Path) -> set[str]:
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {MANIFEST, *listed}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _write_folder(folder: Path, files: dict[str, bytes]) -> None:
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.parent / f".headfit-{secrets.token_hex(8)}.tmp" for _ in range(2))
    try:
        new.mkdir()
        if folder.exists():
            shutil.copymode(folder, new)
        for name, text in files.items():
            (new / name).write_bytes(text)
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
