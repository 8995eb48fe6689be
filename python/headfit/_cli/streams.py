"""Files of a command: ``-`` is standard input or output, and nothing is replaced unasked.

Readers and writers of headfit take names of ordinary files. Standard input is therefore copied to a
temporary file before it is read, and a file for standard output is written as a temporary file
first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
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


def writable(text: str, suffixes: tuple[str, ...]) -> Path:
    """Return a path that can be written to and ends in one of the suffixes, or ``-``."""
    path = Path(text)
    if path == DASH:
        return path
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"the folder {path.parent} cannot be written to")
    if path.exists() and not path.is_file():
        raise ValueError(f"{text} is a folder, or no ordinary file")
    if path.suffix not in suffixes:
        raise ValueError(f"{text} must end in {' or '.join(suffixes)}")
    return path


def _suffix(start: bytes) -> str:
    """Return the suffix of a file that starts with these bytes."""
    for first, suffix in _KINDS:
        if start.startswith(first):
            return suffix
    # A safetensors file begins with the length of its header, which is JSON.
    return ".safetensors" if start[8:9] == b"{" else ".txt"


class Streams:
    """The files of a call. What the command prints goes to stderr if a file goes to stdout."""

    def __init__(self) -> None:
        self._exits = contextlib.ExitStack()
        self._force = False
        self._copy: Path | None = None
        self._stdout: IO[bytes] | None = None
        self._format = ""

    def claim(
        self,
        outputs: Sequence[tuple[Path, tuple[str, ...]]],
        force: bool,
        form: str | None,
        json: bool,
    ) -> None:
        """Check the files to write, each with the suffixes that it may have."""
        self._force = force
        streamed = [suffixes for path, suffixes in outputs if path == DASH]
        for path in [path for path, _ in outputs if path != DASH]:
            self.check_free(path)
        if not streamed:
            if form is not None:
                raise InputError("--format is for the output -; the name of a file says its format")
            return
        if len(streamed) > 1:
            raise InputError("only one output can be -, standard output")
        if json:
            raise InputError("--json and the output - both take standard output")
        self._format = streamed[0][0] if form is None else f".{form}"
        if self._format not in streamed[0]:
            known = ", ".join(suffix[1:] for suffix in streamed[0])
            raise InputError(f"--format must be one of {known}; got {form}")
        if sys.stdout.isatty() and self._format != ".mtx":
            raise InputError("standard output is a terminal, which shows no binary file")
        self._stdout = sys.stdout.buffer

    def __enter__(self) -> Self:
        if self._stdout is not None:
            self._exits.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def check_free(self, path: Path) -> None:
        """Raise an InputError for a file that exists, without --force."""
        if path.exists() and not self._force:
            raise InputError(f"{path} exists already: --force replaces it")

    def _temporary(self, name: str) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="headfit-")
        return Path(self._exits.enter_context(folder)) / name

    def suffix(self, output: Path) -> str:
        """Return the suffix that says the format of an output."""
        return self._format if output == DASH else output.suffix

    def path(self, path: Path) -> Path:
        """Return the name of an ordinary file that holds what the user's name stands for."""
        if path != DASH:
            return path
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
        copy = self._temporary("standard-output" + self._format)
        save(copy)
        with copy.open("rb") as file:
            shutil.copyfileobj(file, self._stdout)
        self._stdout.flush()

    def named(self, message: str) -> str:
        """Return a message with the user's name for standard input, not that of its copy."""
        return message if self._copy is None else message.replace(str(self._copy), "standard input")


@contextlib.contextmanager
def progress(wanted: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress on stderr, by default on terminals only.

    On a terminal each line takes the place of the last, and the end clears it.
    """
    terminal = sys.stderr.isatty()
    shows = terminal if wanted is None else wanted
    start, end = ("\r\x1b[2K", "") if terminal else ("headfit: ", "\n")

    def say(line: str) -> None:
        if shows:
            print(f"{start}{line} ...", end=end, file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if shows and terminal:
            print(start, end="", file=sys.stderr, flush=True)
