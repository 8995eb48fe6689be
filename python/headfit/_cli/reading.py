"""What files hold: targets, saved heads, arrays of queries and keys, modules and texts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.heads import single_heads
from headfit._attention.module import SelfAttention
from headfit._base.files import file_size, opened
from headfit._base.machine import require_memory
from headfit._base.stored_arrays import load_arrays
from headfit._cli.command import Call
from headfit._cli.options import flag, mask, numbers, option, options_of
from headfit._fit.result import Fit
from headfit._fit.storage import read_fit
from headfit._target.target import Target
from headfit.errors import InputError

IN_FILES = ("scale", "mask", "key_lengths", "bias", "softcap", "key_mask", "sinks")
"""The options of `Attention` that a file of arrays may hold beside Q and K."""

LOGITS = options_of(Attention, "scale mask position")

NORMALIZE = flag("--normalize", "scale the rows of the target to sum to 1")
TARGET = (
    option("A", type=Path, help="the target: .npz of scipy.sparse.save_npz, or .mtx, or -"),
    NORMALIZE,
)
HEADS = (
    option("file", metavar="FILE", type=Path, help=".npz with Q and K, or a saved head, or -"),
    *LOGITS,
)
HEAD = option("--head", type=numbers, metavar="I", help="which head of several, as in 1,3")


def read_target(call: Call, mask: Any = None) -> Target:
    """Return the target that the command's argument A names."""
    path = call.files.path(call.pop("A"))
    return Target(path, mask=mask, normalize=call.pop("normalize", False))


def kind_of(path: Path) -> str:
    """Return what a file holds: a target, a saved head, a capture, Q and K, or a module."""
    if path.suffix == ".safetensors":
        return "a saved head"
    names = load_arrays(path, "file of arrays", "file") if path.suffix == ".npz" else {}
    kinds = {"about": "a saved head", "layers": "a capture", "Q": "Q and K", "W_Q": "a module"}
    return next((kind for name, kind in kinds.items() if name in names), "a target")


def target_or_head(path: Path, normalize: bool = False) -> Target | Fit:
    """Read a file that is a target or a saved head; only a target can be normalized."""
    kind = kind_of(path)
    if kind == "a target":
        return Target(path, normalize=normalize)
    if kind != "a saved head":
        raise InputError(f"file: {path} is neither a target nor a saved head: it holds {kind}")
    if normalize:
        raise InputError(f"--normalize is for a target; {path} is a saved head")
    return read_fit(path, "file")


def read_arrays(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return Q, K and the options of a file of arrays, beside those of the command line."""
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
        if name in options:
            raise InputError(f"{name} must not be given: {path} holds one")
    return options | {name: _stored(name, array) for name, array in arrays.items()}


def _stored(name: str, array: NDArray[Any]) -> Any:
    if name == "mask" and array.dtype.kind == "U" and array.ndim == 0:
        try:
            return mask(str(array))
        except argparse.ArgumentTypeError as error:
            raise InputError(f"mask: {error}") from error
    return array.item() if array.ndim == 0 else array


def mask_words(mask: Any) -> Any:
    """Return a mask as a file holds it: in the words of --mask, or as it is."""
    if isinstance(mask, tuple):
        sides = mask[1] if isinstance(mask[1], tuple) else (mask[1],)
        return np.array(f"{mask[0]}:{','.join(str(side) for side in sides)}")
    return np.array(mask) if isinstance(mask, str) else mask


def read_attention(path: Path, call: Call) -> Attention:
    """Return the attention of a file, be it a saved head or arrays."""
    options = call.take(LOGITS)
    if kind_of(path) == "a saved head":
        return Attention.of(read_fit(path, "file"), **options)
    return Attention(**read_arrays(path, options))


def head_of(attention: Attention, at: tuple[int, ...] | None) -> Attention:
    """Return the head that --head asks for; it must be given where there are several."""
    lead = attention.lead
    if at is None and not lead:
        return attention
    if at is None:
        raise InputError(f"--head must say which of the heads with leading axes {lead}")
    if len(at) != len(lead) or any(i >= size for i, size in zip(at, lead, strict=True)):
        place = ",".join(str(i) for i in at)
        raise InputError(f"--head must have one index for each of the axes {lead}; got {place}")
    return single_heads(attention)[int(np.ravel_multi_index(at, lead))]


def read_module(path: Path) -> SelfAttention:
    """Return the module of a file with W_Q and W_K, or that of a saved head."""
    if kind_of(path) == "a saved head":
        return read_fit(path, "module").module
    arrays = load_arrays(path, "module file", "module")
    if not {"W_Q", "W_K"} <= set(arrays):
        held = ", ".join(arrays) or "nothing"
        raise InputError(f"module: {path} must hold W_Q and W_K; it holds {held}")
    scale: Any = arrays.get("scale")  # which SelfAttention checks
    return SelfAttention(arrays["W_Q"], arrays["W_K"], scale)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    with opened(path, "tokens", "is no text") as file:
        require_memory(20 * file_size(file), f"tokens: {path}")
        raw = file.read()
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"tokens: {path} is no UTF-8 text: {error}") from error
