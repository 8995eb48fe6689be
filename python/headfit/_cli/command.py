"""A command: its options, what it does with them, and how its outcome is printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headfit._base.plain import plain
from headfit._cli.options import Option, flag, option
from headfit._cli.streams import Streams, progress, writable
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

    `files` are those of the command, and `say` shows a line of progress.
    """

    def __init__(
        self, arguments: dict[str, Any], files: Streams, say: Callable[[str], None]
    ) -> None:
        super().__init__(arguments)
        self.files = files
        self.say = say

    def take(self, options: Iterable[Option]) -> dict[str, Any]:
        """Remove the values of some options, and return those that there were."""
        return {each.name: self.pop(each.name) for each in options if each.name in self}


@dataclass(frozen=True)
class Command:
    """A command: a function, its options, and examples for its help, as lines of the shell."""

    function: Callable[[Call], Outcome]
    options: tuple[Option, ...]
    examples: str = ""

    @property
    def _outputs(self) -> list[Option]:
        return [each for each in self.options if each.suffixes]

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the options and the examples to the parser of the command."""
        options = [*self.options, *COMMON]
        if self._outputs:
            known = ", ".join(suffix[1:] for suffix in self._outputs[0].suffixes)
            about = f"of the output -: {known} (default: the first)"
            options += [FORCE, option("--format", metavar="FORMAT", help=about)]
        for each in options:
            parser.add_argument(*each.words, **each.settings)
        if self.examples:
            lines = self.examples.strip().splitlines()
            parser.epilog = "\n  ".join(["examples:", *(line.strip() for line in lines)])
        parser.set_defaults(command=self)

    def run(self, arguments: dict[str, Any], files: Streams) -> int:
        """Run the command, print its outcome, and return its exit status."""
        given = {name: value for name, value in arguments.items() if value is not None}
        as_json, wanted = given.pop("json", False), given.pop("progress", None)
        outputs = [(given[o.name], o.suffixes) for o in self._outputs if o.name in given]
        files.claim(outputs, given.pop("force", False), given.pop("format", None), as_json)
        with files:
            with progress(wanted) as say:
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

    def path_of(text: str) -> Any:
        try:
            path = writable(text, suffixes)
            if path.suffix == ".safetensors":
                safetensors_package()
        except (ValueError, ImportError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return path

    return option(*words, suffixes=suffixes, type=path_of, **settings)
