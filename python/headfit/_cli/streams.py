"""Files of a command: ``-`` is standard input or output, and no file is replaced without --force.

Readers and writers of headfit take names of ordinary files. Standard input is therefore copied to a
temporary file before it is read, and a file for standard output is written as a temporary file
first.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from headfit.errors import InputError

# The name that stands for standard input or standard output.
DASH = Path("-")

# The first bytes of the files that commands read, and the suffix by which readers tell them apart.
_KINDS = {b"PK": ".npz", b"\x93NUMPY": ".npy", b"%%MatrixMarket": ".mtx"}


class Streams(contextlib.ExitStack):
    """The files of a call. What the command prints goes to stderr if a file goes to stdout."""

    _copy: Path | None = None
    _stdout: IO[bytes] | None = None

    def claim(self, outputs: list[tuple[Path, tuple[str, ...]]], force: bool, json: bool) -> None:
        """Check the files to write, each with the suffixes that it may have, before any work."""
        for path, suffixes in outputs:
            if path != DASH:
                _check_free(path, suffixes, force)
            elif self._stdout is not None:
                raise InputError("only one output can be -, standard output")
            elif json:
                raise InputError("--json and the output - both take standard output")
            elif sys.stdout is None or sys.stdout.isatty():
                raise InputError("standard output is a terminal, or closed, and takes no file")
            else:
                self._stdout, self._suffix = sys.stdout.buffer, suffixes[0]
                self.enter_context(contextlib.redirect_stdout(sys.stderr))

    def _temporary(self, name: str) -> Path:
        return Path(self.enter_context(tempfile.TemporaryDirectory(prefix="headfit-"))) / name

    def path(self, path: Path) -> Path:
        """Return the name of an ordinary file that holds what the user's name stands for."""
        if path != DASH:
            return path
        if self._copy is not None:
            raise InputError("only one input can be -, standard input")
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("standard input is a terminal, or closed: send it a file by < or |")
        start = sys.stdin.buffer.read(32)
        # A safetensors file begins with the length of its header, which is JSON.
        other = ".safetensors" if start[8:9] == b"{" else ".txt"
        suffix = next((s for first, s in _KINDS.items() if start.startswith(first)), other)
        self._copy = self._temporary("standard-input" + suffix)
        with self._copy.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(sys.stdin.buffer, file)
        return self._copy

    def write(self, output: Path, save: Callable[[Path], Any]) -> None:
        """Call ``save(path)`` with the name of a file that then becomes the output."""
        if self._stdout is None or output != DASH:
            save(output)
            return
        copy = self._temporary("standard-output" + self._suffix)
        save(copy)
        self._stdout.write(copy.read_bytes())
        self._stdout.flush()

    def named(self, message: str) -> str:
        """Return a message with the user's name for standard input, not that of its copy."""
        return message if self._copy is None else message.replace(str(self._copy), "standard input")


def _check_free(path: Path, suffixes: tuple[str, ...], force: bool) -> None:
    """Raise an InputError for a file that cannot be written, or exists, without --force."""
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise InputError(f"there is no folder {path.parent} that can be written to")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a folder, or no ordinary file")
    if path.suffix not in suffixes:
        raise InputError(f"{path} must end in {' or '.join(suffixes)}")
    if path.exists() and not force:
        raise InputError(f"{path} exists already: --force replaces it")


@contextlib.contextmanager
def progress(wanted: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress on stderr, by default on terminals only.

    On a terminal each line takes the place of the last, and the end clears it.
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    start, end = ("\r\x1b[2K", "") if terminal else ("headfit: ", "\n")
    if sys.stderr is None or not (terminal if wanted is None else wanted):
        yield lambda line: None
        return
    try:
        yield lambda line: print(f"{start}{line} ...", end=end, file=sys.stderr, flush=True)
    finally:
        if terminal:
            print(start, end="", file=sys.stderr, flush=True)
