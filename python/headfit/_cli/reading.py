"""What files hold: targets, saved heads, arrays of queries and keys, modules and texts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.functions import attention_matrix
from headfit._attention.logits import LogitOptions
from headfit._attention.module import SelfAttention
from headfit._attention.single_heads import single_heads
from headfit._base.files import file_size, opened
from headfit._base.machine import require_memory
from headfit._base.stored_arrays import load_arrays
from headfit._cli import values
from headfit._cli.command import Call
from headfit._cli.options import flag, option, options_of
from headfit._fit.result import Fit
from headfit._fit.storage import read_fit
from headfit._target.target import Target
from headfit.errors import InputError

IN_FILES = ("scale", "mask", "key_lengths", "bias", "softcap", "key_mask", "sinks")
"""The options of `Attention` that a file of arrays may hold beside Q and K."""

LOGITS = ("scale", "mask", "position")
"""The options of `Attention` that the command line has."""

NORMALIZE = flag("--normalize", "scale the rows of the target to sum to 1")
TARGET = (
    option(
        "A", type=Path,
        help="the target: .npz of scipy.sparse.save_npz, or .mtx; - for standard input",
    ),
    NORMALIZE,
)  # fmt: skip
HEADS = (
    option("file", metavar="FILE", type=Path,
           help=".npz with Q and K, or a saved head; - for standard input"),
    *options_of(attention_matrix, " ".join(LOGITS)),
)  # fmt: skip
HEAD = option(
    "--head", type=values.numbers, metavar="I",
    help="which of several heads: its indices, as in 1,3",
)  # fmt: skip


def read_target(call: Call, mask: Any = None) -> Target:
    """Return the target that the command's argument A names."""
    path = call.files.path(call.pop("A"))
    return Target(path, mask=mask, normalize=call.pop("normalize", False))


def target_or_head(path: Path, normalize: bool = False) -> Target | Fit:
    """Read a file that is a target or a saved head; only a target can be normalized."""
    is_head = path.suffix == ".safetensors"
    if path.suffix == ".npz":
        arrays = load_arrays(path, "target or head", "file")
        is_head = "about" in arrays
        if not is_head and ("Q" in arrays or "W_Q" in arrays):
            raise InputError(
                f"file: {path} is neither a target nor a saved head: {', '.join(arrays)}"
            )
    if not is_head:
        return Target(path, normalize=normalize)
    if normalize:
        raise InputError(f"--normalize is for a target; {path} is a saved head")
    return read_fit(path, "file")


def logit_options(call: Call) -> LogitOptions:
    """Remove the options of logits from the arguments, and return them."""
    return LogitOptions(**call.take(LOGITS))


def read_arrays(path: Path, options: LogitOptions) -> tuple[dict[str, NDArray[Any]], LogitOptions]:
    """Return Q and K of a file of arrays, and the options of the file and the command line."""
    arrays = load_arrays(path, "file of heads", "file")
    if not {"Q", "K"} <= set(arrays):
        held = ", ".join(arrays) or "nothing"
        if {"format", "shape"} <= set(arrays):
            held = "a sparse matrix, which headfit info describes"
        raise InputError(f"file: {path} must hold Q and K, queries and keys; it holds {held}")
    known = dict(vars(options))
    for name in set(arrays) - {"Q", "K"}:
        if name not in IN_FILES:
            raise InputError(
                f"file: {path} may hold {', '.join(IN_FILES)} beside Q and K; it holds {name}"
            )
        if known[name] is not None:
            raise InputError(f"{name} must not be given: {path} holds one")
        known[name] = _stored_option(name, arrays[name])
    return {"Q": arrays["Q"], "K": arrays["K"]}, LogitOptions(**known)


def _stored_option(name: str, stored: NDArray[Any]) -> Any:
    if name == "mask" and stored.dtype.kind == "U" and stored.ndim == 0:
        try:
            return values.mask(str(stored))
        except argparse.ArgumentTypeError as error:
            raise InputError(f"mask: {error}") from error
    return stored.item() if stored.ndim == 0 else stored


def mask_words(mask: Any) -> Any:
    """Return a mask as a file holds it: in the words of --mask, or as it is."""
    if isinstance(mask, tuple):
        sides = mask[1] if isinstance(mask[1], tuple) else (mask[1],)
        return np.array(f"{mask[0]}:{','.join(str(side) for side in sides)}")
    return np.array(mask) if isinstance(mask, str) else mask


def read_attention(path: Path, options: LogitOptions) -> Attention:
    """Return the attention of a file, be it a saved head or arrays."""
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
        place = ",".join(str(i) for i in at)
        raise InputError(f"--head must have one index for each of the axes {lead}; got {place}")
    return single_heads(attention)[int(np.ravel_multi_index(at, lead))]


def read_module(path: Path) -> SelfAttention:
    """Return the module of a file with W_Q and W_K, or that of a saved head."""
    arrays = {} if path.suffix == ".safetensors" else load_arrays(path, "module file", "module")
    if path.suffix == ".safetensors" or "about" in arrays:
        return read_fit(path, "module").module
    for name in ("W_Q", "W_K"):
        if name not in arrays:
            raise InputError(
                f"module: {path} must hold W_Q and W_K; it holds {', '.join(arrays) or '-'}"
            )
    scale = arrays.get("scale")
    if scale is not None and (scale.size != 1 or scale.dtype.kind not in "fiu"):
        raise InputError(f"module: {path} must hold one number as scale; got shape {scale.shape}")
    return SelfAttention(
        arrays["W_Q"], arrays["W_K"], None if scale is None else float(scale.item())
    )


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    with opened(path, "tokens", "is no text") as file:
        require_memory(20 * file_size(file), f"tokens: {path}")
        raw = file.read()
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"tokens: {path} is no UTF-8 text: {error}") from error
