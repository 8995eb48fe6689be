"""Heads from files: what `headfit fit` wrote, or an .npz file with Q, K and options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.logits import LogitOptions
from headfit._attention.single_heads import single_heads
from headfit._base.stored_arrays import load_arrays
from headfit._cli.arguments import Parser, add_mask, mask
from headfit._fit.storage import read_fit
from headfit.errors import InputError

POSITIONS = ("rope", "rope-half", "alibi")
IN_FILES = ("scale", "mask", "key_lengths", "bias", "softcap", "key_mask", "sinks")
"""The options of `Attention` that a file of arrays may hold beside Q and K."""


def add_heads(parser: Parser, about: str) -> None:
    """Add a file of heads, and what makes their logits where the file does not say it."""
    parser.add_argument("file", metavar="FILE", type=Path, help=f"{about}; - for standard input")
    parser.add_argument("--scale", type=float, help="factor of the logits (default: 1 / sqrt(D))")
    add_mask(parser)
    parser.add_argument(
        "--position", choices=POSITIONS, help="positions that are not yet part of Q and K"
    )


def add_head(parser: Parser) -> None:
    """Add which head of a file with several."""
    parser.add_argument(
        "--head", type=place, metavar="I", help="which of several heads: its indices, as in 1,3"
    )


def place(text: str) -> tuple[int, ...]:
    """Return the indices in a list separated by commas."""
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"expected numbers as in 1,3, got {text!r}")
    return tuple(int(number) for number in numbers)


def given_options(arguments: Any) -> LogitOptions:
    """Return the options of logits that the command line gives."""
    return LogitOptions(arguments.scale, arguments.mask, position=arguments.position)


def read_arrays(path: Path, options: LogitOptions) -> tuple[dict[str, NDArray[Any]], LogitOptions]:
    """Return Q and K of a file of arrays, and the options of the file and the command line."""
    arrays = load_arrays(path, "file of heads", "file")
    if not {"Q", "K"} <= set(arrays):
        held = ", ".join(arrays) or "nothing"
        if {"format", "shape"} <= set(arrays):
            held = "a sparse matrix, which headfit info describes"
        raise InputError(f"file: {path} must hold Q and K, queries and keys; it holds {held}")
    for name in arrays:
        if name not in ("Q", "K", *IN_FILES):
            raise InputError(
                f"file: {path} may hold {', '.join(IN_FILES)} beside Q and K; it holds {name}"
            )
    found = dict(vars(options))
    for name in IN_FILES:
        if name in arrays:
            if found[name] is not None:
                raise InputError(f"{name} must not be given: {path} holds one")
            found[name] = _option(name, arrays[name])
    return {"Q": arrays["Q"], "K": arrays["K"]}, LogitOptions(**found)


def _option(name: str, stored: NDArray[Any]) -> Any:
    if name == "mask" and stored.dtype.kind == "U" and stored.ndim == 0:
        try:
            return mask(str(stored))
        except argparse.ArgumentTypeError as error:
            raise InputError(f"mask: {error}") from error
    return stored.item() if stored.ndim == 0 else stored


def read_attention(arguments: Any, path: Path) -> Attention:
    """Return the attention of the file of a command, be it a saved head or arrays."""
    options = given_options(arguments)
    if path.suffix == ".safetensors" or "about" in load_arrays(path, "file of heads", "file"):
        return Attention.of(read_fit(path, "file"), None, options)
    arrays, options = read_arrays(path, options)
    return Attention.of(arrays["Q"], arrays["K"], options)


def head_of(attention: Attention, at: tuple[int, ...] | None) -> Attention:
    """Return the head that --head asks for; it must be given where there are several."""
    lead = attention.lead
    if at is None and not lead:
        return attention
    if at is None:
        raise InputError(f"--head must say which of the heads with leading axes {lead}")
    if len(at) != len(lead) or any(i >= size for i, size in zip(at, lead, strict=True)):
        given = ",".join(str(i) for i in at)
        raise InputError(f"--head must have one index for each of the axes {lead}; got {given}")
    return single_heads(attention)[int(np.ravel_multi_index(at, lead))]


def mask_words(mask: Any) -> Any:
    """Return a mask as a file holds it: in the words of --mask, or as it is."""
    if isinstance(mask, tuple):
        sides = mask[1] if isinstance(mask[1], tuple) else (mask[1],)
        return np.array(f"{mask[0]}:{','.join(str(side) for side in sides)}")
    return np.array(mask) if isinstance(mask, str) else mask
