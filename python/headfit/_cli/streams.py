"""Files of a command: ``-`` is standard input or output, and nothing is replaced unasked.

Readers and writers of headfit take names of ordinary files. Standard input is therefore copied to a
temporary file before it is read, and a file for standard output is written as a temporary file
first.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self

from headfit.errors import InputError

DASH = Path("-")
"""The name that stands for standard input or standard output."""

# The first bytes of the files that commands read, and the suffix by which readers tell them apart.
_KINDS = (
    (b"PK", ".npz"),
    (b"\x93NUMPY", ".npy"),
    (b"%%MatrixMarket", ".mtx"),
    (b"\x1f\x8b", ".mtx.gz"),
    (b"BZh", ".mtx.bz2"),
)


def shown(output: Path) -> str:
    """Return the name of an output as commands print it."""
    return "standard output" if output == DASH else str(output.resolve())


def _suffix(start: bytes) -> str:
    """Return the suffix of a file that starts with these bytes."""
    for first, suffix in _KINDS:
        if start.startswith(first):
            return suffix
    # A safetensors file begins with the length of its header, which is JSON.
    return ".safetensors" if start[8:9] == b"{" else ".txt"


class Streams:
    """The files that one call of a command reads and writes.

    Commands see it as ``arguments.streams``. Within its context, what a command prints goes to
    stderr when its file goes to stdout.

    Parameters
    ----------
    arguments : argparse.Namespace
        ``arguments.outputs`` has the names of the arguments that are files to write, with the
        suffixes that they may have; ``arguments.force`` says whether they may be replaced.
    """

    def __init__(self, arguments: Any) -> None:
        self._folder: Path | None = None
        self._exits = contextlib.ExitStack()
        self._format: str | None = getattr(arguments, "format", None)
        self._force: bool = getattr(arguments, "force", False)
        self._copy: Path | None = None
        self._stdout: IO[bytes] | None = None
        self._suffixes: tuple[str, ...] = ()
        outputs: dict[str, tuple[str, ...]] = getattr(arguments, "outputs", {})
        for name, suffixes in outputs.items():
            path = getattr(arguments, name)
            if path == DASH and self._suffixes:
                raise InputError("only one output can be -, standard output")
            if path == DASH:
                self._suffixes = suffixes
            elif path is not None:
                self.check_free(path)
        if self._suffixes:
            self._check_stdout(arguments)
        elif self._format is not None:
            raise InputError("--format is for the output -; the name of a file says its format")

    def _check_stdout(self, arguments: Any) -> None:
        if getattr(arguments, "json", False):
            raise InputError("--json and the output - both take standard output")
        suffix = self.suffix(DASH)
        if sys.stdout.isatty() and suffix != ".mtx":
            raise InputError(
                "standard output is a terminal, which shows no binary file: "
                "give the output a name, or send it on with > or |"
            )
        self._stdout = sys.stdout.buffer

    def __enter__(self) -> Self:
        if self._stdout is not None:
            self._exits.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def check_free(self, path: Path, marker: str = "") -> None:
        """Raise an InputError for a file, or a folder that holds the marker, without --force."""
        if (path / marker).exists() and not self._force:
            raise InputError(f"{path} exists already: --force replaces it")

    def _temporary(self, name: str) -> Path:
        if self._folder is None:
            folder = tempfile.TemporaryDirectory(prefix="headfit-")
            self._folder = Path(self._exits.enter_context(folder))
        return self._folder / name

    def suffix(self, output: Path) -> str:
        """Return the suffix that says the format of an output."""
        if output != DASH:
            return output.suffix
        suffix = self._suffixes[0] if self._format is None else f".{self._format}"
        if suffix not in self._suffixes:
            known = ", ".join(s[1:] for s in self._suffixes)
            raise InputError(f"--format must be one of {known}; got {self._format}")
        return suffix

    def path(self, given: Path) -> Path:
        """Return the name of an ordinary file that holds what the given name stands for."""
        if given != DASH:
            return given
        if self._copy is not None:
            raise InputError("only one input can be -, standard input")
        if sys.stdin.isatty():
            raise InputError("standard input is a terminal: send a file to it with < or |")
        start = sys.stdin.buffer.read(32)
        self._copy = self._temporary("standard-input" + _suffix(start))
        with self._copy.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(sys.stdin.buffer, file)
        return self._copy

    def write(self, output: Path, save: Callable[[Path], Any]) -> None:
        """Call ``save(path)`` with the name of a file that then becomes the output."""
        if self._stdout is None or output != DASH:
            save(output)
            return
        copy = self._temporary("standard-output" + self.suffix(output))
        save(copy)
        with copy.open("rb") as file:
            shutil.copyfileobj(file, self._stdout)
        self._stdout.flush()

    def named(self, message: str) -> str:
        """Return a message with the user's name for standard input, not that of its copy."""
        return message if self._copy is None else message.replace(str(self._copy), "standard input")
