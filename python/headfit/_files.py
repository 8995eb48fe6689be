"""Files that are never left half written, and never unpickled."""

from __future__ import annotations

import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit.errors import InputError


def replace_file(path: Path, write: Any) -> None:
    """Call ``write(file)`` on a new file beside `path`, then rename it to `path`.

    What is killed in between leaves that file, ``.<name>.<digits>.tmp``, to be deleted by hand.
    """
    handle, temporary = _new_file(path)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _new_file(path: Path) -> tuple[int, Path]:
    """Open a file beside `path` that nobody has, as readable as the process makes its files.

    The modules for temporary files make private ones, and the process's mask of permissions
    cannot be read without changing it for all threads.
    """
    while True:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
        try:
            return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), temporary
        except FileExistsError:
            continue


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write plain arrays to an .npz file of exactly this name."""
    target = Path(path)
    plain = {name: np.asarray(value) for name, value in arrays.items()}
    for name, value in plain.items():
        if value.dtype.hasobject:
            raise InputError(f"{name} holds Python objects, which are not saved")
    replace_file(target, lambda file: np.savez(file, **plain))  # type: ignore[arg-type]
    return target


UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged or foreign .npz file raises."""


def load_arrays(path: str | os.PathLike[str], what: str) -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file; anything else is an InputError that names it."""
    with open(path, "rb") as stream:
        try:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.lib.npyio.NpzFile):
                with file:
                    return {name: file[name] for name in file.files}
        except UNREADABLE as error:
            raise InputError(f"{path} is no {what}: {error}") from error
    raise InputError(f"{path} is no {what}: it holds a single array")


def available_memory() -> int | None:
    """Return the bytes of free physical memory, or None where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def require_memory(wanted: int, what: str) -> None:
    """Raise an InputError with the size when `wanted` bytes cannot fit in memory."""
    free = available_memory()
    if free is not None and wanted > free:
        raise InputError(
            f"{what} needs {wanted / 2**30:.1f} GiB of memory; {free / 2**30:.1f} GiB are free"
        )
