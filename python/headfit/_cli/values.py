"""Values of options that are more than a number or a word, each read from its text."""

from __future__ import annotations

import argparse
from typing import Any

from headfit._base.kernel import NAMES, Kernel, as_kernel
from headfit.errors import InputError


def mask(text: str) -> Any:
    """Return the mask that `causal`, `window:W` or `window:LEFT,RIGHT` stands for."""
    kind, _, width = text.partition(":")
    if text == "causal":
        return "causal"
    sides = width.split(",")
    if kind != "window" or not all(side.isdecimal() for side in sides) or len(sides) > 2:
        raise argparse.ArgumentTypeError(
            f"expected causal, window:W or window:LEFT,RIGHT, got {text!r}"
        )
    numbers = tuple(int(side) for side in sides)
    return ("window", numbers if len(numbers) == 2 else numbers[0])


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in a list separated by commas."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers as in 1,3, got {text!r}")
    return tuple(int(part) for part in parts)


def columns(text: str) -> str | list[int]:
    """Return `auto`, or column numbers."""
    return text if text == "auto" else list(numbers(text))


def kernel(text: str) -> Kernel:
    """Return the kernel of a name, or of options of `Kernel` as NAME=VALUE,NAME=VALUE."""
    pairs = dict(pair.partition("=")[::2] for pair in text.split(","))
    options = {name: {"True": True, "False": False}.get(value, value)
               for name, value in pairs.items()}  # fmt: skip
    try:
        return as_kernel(options if "=" in text else text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def effort(text: str) -> str | int:
    """Return a number of steps, or a word."""
    return int(text) if text.isdecimal() else text


def seed(text: str) -> int:
    """Return a seed: an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """Return the two sides of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE as in neighbors=64, got {text!r}")
    return name, value


BY_NAME: dict[str, dict[str, Any]] = {
    "effort": {"type": effort, "help": "low, medium, high or a number of steps"},
    "exempt_columns": {"type": columns, "metavar": "J", "help": "auto, or numbers as in 0,1,7: "
                       "columns with a coordinate of their own"},
    "kernel": {"type": kernel, "metavar": "NAME", "help": "what the certificate is about: "
               f"{', '.join(NAMES)}; or options of hf.Kernel as in "
               "accumulate=float32,logits=bfloat16"},
    "mask": {"type": mask, "help": "causal, window:W or window:LEFT,RIGHT"},
    "num_threads": {"type": int, "metavar": "N", "help": "how many threads compute (default: the "
                    "cores that the process may use)"},
    "position": {"choices": ("rope", "rope-half", "alibi"),
                 "help": "positions that are not yet part of Q and K"},
    "rng": {"type": seed, "word": "seed", "help": "seed of everything random (default: 0)"},
}  # fmt: skip
"""The settings of parameters that mean the same in every function, by their names."""
