"""A command: its options, what it does with them, and how its outcome is printed.

Most options are made from the signature and the docstring of a function. The signature says whether
one is a number, a flag or a choice, and its default; the first sentence of the parameter's
description in the docstring is the help.
"""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from headfit._base.display import plain
from headfit._base.files import safetensors_package
from headfit._base.tolerances import NAMES
from headfit._cli.streams import Streams, progress
from headfit.errors import InputError


def value(text: str) -> Any:
    """Return what a text stands for: a number, true or false, numbers with commas, or a word."""
    try:
        values = json.loads(f"[{text}]")
    except ValueError:
        return text
    return values[0] if len(values) == 1 else values or text


def kind(text: str) -> Any:
    """Return the mask or position that `causal`, `window:LEFT,RIGHT` or `rope:BASE` stands for."""
    word, colon, numbers = text.partition(":")
    own = value(numbers)
    return (word, tuple(own) if isinstance(own, list) else own) if colon else text


def numbers(text: str) -> Any:
    """Return the numbers in a list separated by commas, or a word as it is."""
    return value(f"[{text}]") if text[:1].isdecimal() else text


def kernel(text: str) -> Any:
    """Return the name of a kernel, or options of `Kernel` from NAME=VALUE,NAME=VALUE."""
    return dict(pair(part) for part in text.split(",")) if "=" in text else text


def pair(text: str) -> tuple[str, Any]:
    """Return a name and a value from NAME=VALUE."""
    name, _, worth = text.partition("=")
    if not name or not worth:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value(worth)


# The settings of parameters that mean the same in every function, by their names.
BY_NAME: dict[str, dict[str, Any]] = {
    "effort": {"type": value, "help": "low, medium, high or a number of steps"},
    "exempt_columns": {"type": numbers, "metavar": "J", "help": "auto, or numbers as in 0,1,7: "
                       "columns with a coordinate of their own"},
    "kernel": {"type": kernel, "metavar": "NAME", "help": "what the certificate is about: "
               f"{', '.join(NAMES)}; or options of hf.Kernel as in "
               "accumulate=float32,logits=bfloat16"},
    "mask": {"type": kind, "help": "causal, window:W or window:LEFT,RIGHT"},
    "num_threads": {"type": int, "metavar": "N", "help": "how many threads compute (default: the "
                    "cores that the process may use)"},
    "position": {"type": kind, "help": "rope, rope-half, rope:BASE, rope-half:BASE or alibi: "
                 "positions that are not yet part of Q and K"},
    "rng": {"type": int, "word": "seed", "help": "seed of everything random"},
}  # fmt: skip


class Option(NamedTuple):
    """One argument of a command, in argparse's words and settings.

    `name` is that of its value in a `Call`; a file to write ends in one of `suffixes`.
    """

    name: str
    words: tuple[str, ...]
    settings: dict[str, Any]
    suffixes: tuple[str, ...] = ()


def option(*words: str, suffixes: tuple[str, ...] = (), **settings: Any) -> Option:
    """Return an option that no signature has, in argparse's words; with suffixes an output."""
    name = words[-1].lstrip("-").replace("-", "_")
    return Option(name, words, {"type": Path, **settings} if suffixes else settings, suffixes)


def options_of(
    function: Callable[..., Any],
    names: str | None = None,
    by_default: str | None = None,
    **changes: dict[str, Any],
) -> list[Option]:
    """Return the options that parameters of a function make: those named, or all.

    `by_default` are words in place of each default, and `changes` settings of argparse in place of
    those that are made.
    """
    described, signature = parameters(function), inspect.signature(function).parameters
    made = []
    for name in signature if names is None else names.split():
        default, (kind, text) = signature[name].default, described.get(name, ("", ""))
        settings = {"help": _first_sentence(text, default)}
        settings |= BY_NAME.get(name) or _settings(str(signature[name].annotation), kind, default)
        words = by_default
        if words is None and not (default is None or default is inspect.Parameter.empty):
            words = f"{default:g}" if isinstance(default, float) else str(default)
        if words is not None and not isinstance(default, bool):
            settings["help"] = f"{settings['help'].split(' (default')[0]} (default: {words})"
        settings |= changes.get(name, {})
        if default is inspect.Parameter.empty:
            made.append(Option(name, (name,), settings))
            continue
        word = settings.pop("word", name).replace("_", "-")
        if not {"action", "choices", "metavar"} & settings.keys():
            kind = getattr(settings["type"], "__name__", "")
            settings["metavar"] = {"int": "N", "float": "X"}.get(kind, word.upper())
        made.append(Option(name, (f"--{word}",), {"dest": name, **settings}))
    return made


def parameters(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Return the type and the description of each parameter, as a numpydoc docstring has them."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n--|\Z)", text + "\n", re.M | re.S)
    entries = re.findall(
        r"^(\w[\w, ]*?)(?: : (.*))?\n((?:\n| +.*\n)*)", section[1] if section else "", re.M
    )
    return {
        name: (kind, " ".join(body.split()))
        for names, kind, body in entries
        for name in names.split(", ")
    }


def _settings(annotation: str, kind: str, default: Any) -> dict[str, Any]:
    """Return what argparse needs for a parameter of this annotation and documented type."""
    if "bool" in annotation:
        return {"action": "store_true" if default is False else argparse.BooleanOptionalAction}
    if re.match("sequence|iterable", kind):
        return {"type": int, "nargs": "+"}
    choices = re.findall(r'"([\w-]+)"', kind.split(", default")[0])
    if choices:
        return {"choices": choices}
    return {"type": next((t for t in (float, int) if t.__name__ in annotation), str)}


def _first_sentence(text: str, default: Any) -> str:
    """Return a description's first sentence without references, and what None stands for."""
    text = text.replace("`", "").replace("%", "%%")
    said = re.split(r"\.(?: (?=[A-Z\"])|$)|; (?:None|see)\b", text)[0]
    said = said.replace("when None", "by default")
    said = said if said[1:2].isupper() else said[:1].lower() + said[1:]
    for_none = re.search(r"[.;] None:? (.+?)(?:[.,;:] |[.]?$)", text)
    return f"{said} (default: {for_none[1]})" if default is None and for_none else said


COMMON = (
    option("--json", action="store_true", help="print one JSON object, and nothing else"),
    option(
        "--progress", action=argparse.BooleanOptionalAction,
        help="say on stderr what is being done (default: on terminals only)",
    ),
)  # fmt: skip
FORCE = option(
    "--force", action="store_true", help="replace what has that name, if there is something"
)


class Outcome(NamedTuple):
    """What a command prints: figures for machines, text for people; and its exit status."""

    figures: dict[str, Any]
    text: str
    holds: bool = True


def outcome(file: Path, result: Any, holds: bool = True, more: str = "", **figures: Any) -> Outcome:
    """Return the outcome that is a result, and the file that it is in or was made of."""
    return Outcome({"file": file, **figures, **result.to_dict()}, f"{file}: {result}{more}", holds)


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
            code = getattr(sys.stdout, "encoding", None) or "utf-8"  # may lack letters of a name
            said = files.named(text).encode(code, "backslashreplace").decode(code)
            print(said, flush=True)
        return 0 if made.holds else 1


def command(*options: Option | Iterable[Option]) -> Callable[[Callable[[Call], Outcome]], Command]:
    """Make a command of a function, whose docstring has examples for the help after its summary."""
    each = tuple(o for some in options for o in ([some] if isinstance(some, Option) else some))
    return lambda function: Command(function, each)


def examples(thing: Any) -> str:
    """Return the examples in a docstring, if it has some, as the end of a help."""
    lines = (inspect.getdoc(thing) or "").partition("\n\n")[2]
    return "\n  ".join(["examples:", *lines.splitlines()]) if lines else ""
