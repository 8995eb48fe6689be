"""A command: its options, what it does with them, and how its outcome is printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headfit._base.plain import plain
from headfit._cli.options import Option, flag, option
from headfit._cli.streams import DASH, Streams, progress, writable
from headfit._fit.file_formats import safetensors_package

COMMON = (
    flag("--json", "print one JSON object, and nothing else"),
    option(
        "--progress", action=argparse.BooleanOptionalAction,
        help="say on stderr what is being done (default: on terminals only)",
    ),
)  # fmt: skip
FORCE = flag("--force", "replace what has that name, if there is something")


class Outcome(NamedTuple):
    """What a command prints: figures for machines, text for people; and its exit status."""

    figures: dict[str, Any]
    text: str
    holds: bool = True


class Call(dict[str, Any]):
    """The arguments of a command that the user wrote, by name; a function has the other defaults.

    Attributes
    ----------
    files : Streams
    say : callable
        Shows a line of progress.
    """

    def __init__(
        self, arguments: dict[str, Any], files: Streams, say: Callable[[str], None]
    ) -> None:
        super().__init__(arguments)
        self.files = files
        self.say = say

    def take(self, names: Iterable[str]) -> dict[str, Any]:
        """Remove some arguments, and return those that there were."""
        return {name: self.pop(name) for name in names if name in self}


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes
    ----------
    function : callable
        What it does: a function of a `Call` that returns an `Outcome`.
    options : tuple of Option
    examples : str
        Lines of the shell, for its help.
    """

    function: Callable[[Call], Outcome]
    options: tuple[Option, ...]
    examples: str = ""

    @property
    def outputs(self) -> list[Option]:
        """The options that name files to write."""
        return [o for o in self.options if o.suffixes]

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the options and the examples to the parser of the command."""
        more = [FORCE, _format(self.outputs[0].suffixes)] if self.outputs else []
        for each in (*self.options, *more, *COMMON):
            parser.add_argument(*each.words, **each.settings)
        if self.examples:
            lines = "".join(f"  {line.strip()}\n" for line in self.examples.strip().splitlines())
            parser.epilog = f"examples:\n{lines}"
        parser.set_defaults(command=self)

    def run(self, arguments: dict[str, Any], files: Streams) -> int:
        """Run the command, print its outcome, and return its exit status."""
        as_json = arguments.pop("json", False)
        wanted = arguments.pop("progress", None)
        files.claim(
            [(arguments[o.name], o.suffixes) for o in self.outputs if o.name in arguments],
            force=arguments.pop("force", False),
            form=arguments.pop("format", None),
            json=as_json,
        )
        with files:
            with progress(wanted) as say:
                given = {name: value for name, value in arguments.items() if value is not None}
                outcome = self.function(Call(given, files, say))
            figures = plain(outcome.figures)
            print(json.dumps(figures, allow_nan=False) if as_json else outcome.text)
            sys.stdout.flush()
        return 0 if outcome.holds else 1


def command(
    *options: Option | Iterable[Option], examples: str
) -> Callable[[Callable[[Call], Outcome]], Command]:
    """Make a command of a function."""
    each = tuple(o for some in options for o in ([some] if isinstance(some, Option) else some))
    return lambda function: Command(function, each, examples)


def output(*words: str, suffixes: tuple[str, ...], **settings: Any) -> Option:
    """Return an option that is a file to write, or ``-``; its name ends in one of the suffixes."""

    def path_of(text: str) -> Path:
        path = writable(text)
        if path != DASH and path.suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{text} must end in {' or '.join(suffixes)}")
        if path.suffix == ".safetensors":
            try:
                safetensors_package()
            except ImportError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        return path

    return option(*words, suffixes=suffixes, type=path_of, **settings)


def _format(suffixes: tuple[str, ...]) -> Option:
    known = ", ".join(suffix[1:] for suffix in suffixes)
    about = f"of the output -: {known} (default: the first)"
    return option("--format", metavar="FORMAT", help=about)
