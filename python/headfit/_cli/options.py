"""Command-line options made from the signature and the docstring of a function.

The signature says whether an option is a number, a flag or a choice, and its default; the first
sentence of the parameter's description in the docstring is the help.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headfit._base.kernel import NAMES


def value(text: str) -> Any:
    """Return what a text stands for: a number, true or false, numbers with commas, or a word."""
    try:
        values = json.loads(f"[{text}]")
    except ValueError:
        return text
    return values[0] if len(values) == 1 else values or text


def mask(text: str) -> Any:
    """Return the mask that `causal`, `window:W` or `window:LEFT,RIGHT` stands for."""
    kind, colon, width = text.partition(":")
    sides = value(width)
    return (kind, tuple(sides) if isinstance(sides, list) else sides) if colon else text


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


BY_NAME: dict[str, dict[str, Any]] = {
    "effort": {"type": value, "help": "low, medium, high or a number of steps"},
    "exempt_columns": {"type": numbers, "metavar": "J", "help": "auto, or numbers as in 0,1,7: "
                       "columns with a coordinate of their own"},
    "kernel": {"type": kernel, "metavar": "NAME", "help": "what the certificate is about: "
               f"{', '.join(NAMES)}; or options of hf.Kernel as in "
               "accumulate=float32,logits=bfloat16"},
    "mask": {"type": mask, "help": "causal, window:W or window:LEFT,RIGHT"},
    "num_threads": {"type": int, "metavar": "N", "help": "how many threads compute (default: the "
                    "cores that the process may use)"},
    "position": {"choices": ("rope", "rope-half", "alibi"),
                 "help": "positions that are not yet part of Q and K"},
    "rng": {"type": int, "word": "seed", "help": "seed of everything random"},
}  # fmt: skip
"""The settings of parameters that mean the same in every function, by their names."""


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


def flag(word: str, about: str) -> Option:
    """Return an option that is there or not."""
    return option(word, action="store_true", help=about)


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
