"""Options that several commands share: their output, how many threads, progress and the seed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headfit._cli.streams import DASH
from headfit._fit.file_formats import safetensors_package

Parser = argparse.ArgumentParser


def output(*suffixes: str) -> Callable[[str], Path]:
    """Return a parser for the name of a file to write, which must end in one of the suffixes."""

    def path_of(text: str) -> Path:
        path = writable(text)
        if suffixes and path != DASH and path.suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{text} must end in {' or '.join(suffixes)}")
        if path.suffix == ".safetensors":
            try:
                safetensors_package()
            except ImportError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        return path

    return path_of


def writable(text: str) -> Path:
    """Return a path that can be written to, checked before the work begins."""
    path = Path(text)
    if path == DASH:
        return path
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"the folder {path.parent} cannot be written to")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is no ordinary file")
    return path


def add_output(parser: Parser, *names: str, suffixes: tuple[str, ...], **settings: Any) -> None:
    """Add an argument that is a file to write, and with the first one --force and --format.

    `Streams` refuses to replace such a file, and writes ``-`` to standard output.
    """
    action = parser.add_argument(*names, type=output(*suffixes), **settings)
    outputs: dict[str, tuple[str, ...]] = parser.get_default("outputs") or {}
    if not outputs:
        add_force(parser)
        known = ", ".join(suffix[1:] for suffix in suffixes)
        parser.add_argument(
            "--format", metavar="FORMAT", help=f"of the output -: {known} (default: the first)"
        )
    parser.set_defaults(outputs={**outputs, action.dest: suffixes})


def add_force(parser: Parser) -> None:
    """Add --force, without which `Streams` refuses to replace what there is."""
    parser.add_argument(
        "--force", action="store_true", help="replace what has that name, if there is something"
    )


def given(arguments: Any, *names: str) -> dict[str, Any]:
    """Return those of the arguments that were given; functions have the defaults of the others."""
    found = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def option(name: str) -> str:
    """Return the option that sets an argument, such as --max-norm for max_norm."""
    return f"--{name.replace('_', '-')}"


def add_running(parser: Parser, *, threads: bool = True) -> None:
    """Add what says how a command runs and changes no result."""
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=None,
        help="say on stderr what is being done (default: on terminals only)",
    )  # fmt: skip
    if threads:
        parser.add_argument(
            "--num-threads", type=int, metavar="N",
            help="how many threads compute (default: the cores that the process may use)",
        )  # fmt: skip


def add_seed(parser: Parser) -> None:
    """Add the seed."""
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed of everything random (default: %(default)s)"
    )


def seed(text: str) -> int:
    """Return a seed: an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)
