"""A command: its options, what it does with them, and how its outcome is printed."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from headfit._base.display import plain
from headfit._cli.options import Option, flag, option
from headfit._cli.streams import Streams, progress
from headfit._fit.file_formats import safetensors_package
from headfit.errors import InputError

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


def outcome(file: Path, result: Any, holds: bool = True, more: str = "", **figures: Any) -> Outcome:
    """Return the outcome that is a result, and the file that it is in or was made of."""
    text = f"{file}: {result}{more}"
    return Outcome({"file": file, **figures, **result.to_dict()}, text, holds)


class Call(dict[str, Any]):
    """The arguments of a command that the user wrote, by name; a function has the other defaults.

    `files` are those of the command, and `say` shows a line of progress.
    """

    files: Streams
    say: Callable[[str], None]

    def take(self, options: Iterable[Option]) -> dict[str, Any]:
        """Remove the values of some options, and return those that there were."""
        return {each.name: self.pop(each.name) for each in options if each.name in self}

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise an InputError if there are any options of these names."""
        for name in names:
            raise InputError(f"--{name.replace('_', '-')} {why}")


@dataclass(frozen=True)
class Command:
    """A command: a function, and its options."""

    function: Callable[[Call], Outcome]
    options: tuple[Option, ...]

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the options and the examples to the parser of the command."""
        writes = any(each.suffixes for each in self.options)
        for each in (*self.options, *COMMON, *((FORCE,) if writes else ())):
            parser.add_argument(*each.words, **each.settings)
        parser.epilog = examples(self.function)
        parser.set_defaults(command=self)

    def run(self, arguments: dict[str, Any], files: Streams) -> int:
        """Run the command, print its outcome, and return its exit status.

        The function gets names of ordinary files in place of ``-`` as an input.
        """
        call = Call({name: value for name, value in arguments.items() if value is not None})
        as_json, wanted = call.pop("json", False), call.pop("progress", None)
        options = [each for each in self.options if each.name in call]
        outputs = [(call[o.name], o.suffixes) for o in options if o.suffixes]
        for path, suffixes in outputs:
            if path.suffix == ".safetensors":
                safetensors_package()
            if ".png" in suffixes:
                # Other commands do without the import, which takes as long as some of them.
                import_module("headfit.plot._drawing").matplotlib()
        with files:
            files.claim(outputs, call.pop("force", False), as_json)
            for each in options:
                if each.settings.get("type") is Path and not each.suffixes:  # a file to read
                    call[each.name] = files.path(call[each.name])
            with progress(wanted) as call.say:
                call.files = files
                made = self.function(call)
            text = json.dumps(plain(made.figures), allow_nan=False) if as_json else made.text
            print(files.named(text), flush=True)
        return 0 if made.holds else 1


def command(
    *options: Option | Iterable[Option],
) -> Callable[[Callable[[Call], Outcome]], Command]:
    """Make a command of a function, whose docstring has examples for the help after its summary."""
    each = tuple(o for some in options for o in ([some] if isinstance(some, Option) else some))
    return lambda function: Command(function, each)


def examples(thing: Any) -> str:
    """Return the examples in a docstring, if it has some, as the end of a help."""
    lines = (inspect.getdoc(thing) or "").partition("\n\n")[2]
    return "\n  ".join(["examples:", *lines.splitlines()]) if lines else ""
