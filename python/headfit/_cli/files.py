"""Files that are read: targets, saved heads, arrays of queries and keys; pictures are written."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from numpy.typing import NDArray

import headfit as hf
from headfit._attention.head_table import ModelTable
from headfit._attention.heads import single_heads
from headfit._base.files import load_arrays, replace_file
from headfit._cli.command import Call, kind, numbers, option, options_of
from headfit._cli.streams import DASH
from headfit._fit.storage import read_fit
from headfit.errors import InputError

PICTURES = (".png", ".pdf", ".svg")
PLOT = option("--plot", suffixes=PICTURES, metavar="FILE", help="draw it: .png, .pdf or .svg")

LOGITS = options_of(hf.Attention, "scale mask position")

NORMALIZE = option(
    "--normalize", action="store_true", help="scale the rows of the target to sum to 1"
)
TARGET = (
    option("A", type=Path, help="the target: .npz of scipy.sparse.save_npz, or .mtx, or -"),
    NORMALIZE,
)
HEADS = (
    option("file", metavar="FILE", type=Path, help=".npz with Q and K, or a saved head, or -"),
    *LOGITS,
)
MATRIX = option("-o", "--output", suffixes=(".npz", ".mtx"), required=True, metavar="A",
                help="the pattern, .npz or .mtx, or -")  # fmt: skip
HEAD = option("--head", type=numbers, metavar="I", help="which head of several, as in 1,3")

# What a file of arrays is, by the names that it holds.
_KINDS = {"a saved head": {"about"}, "a capture": {"layers"}, "Q and K": {"Q", "K"},
          "W_Q and W_K": {"W_Q", "W_K"}, "a target": {"shape"}}  # fmt: skip


def read_target(call: Call, mask: Any = None) -> hf.Target:
    """Return the target that the command's argument A names."""
    return hf.Target(call.pop("A"), mask=mask, normalize=call.pop("normalize", False))


def read(path: Path, name: str, *wanted: str, **options: Any) -> Any:
    """Return what the file of an argument holds, which must be one of the kinds that are wanted.

    Q and K, and W_Q and W_K, are read as a dictionary of arrays.
    """
    arrays, kind = {}, "a saved head" if path.suffix == ".safetensors" else "a target"
    if path.suffix == ".npz":
        arrays = load_arrays(path, "file of arrays", name)
        names = ", ".join(arrays) or "nothing"
        kind = next((kind for kind, own in _KINDS.items() if own <= arrays.keys()), names)
    if kind not in wanted:
        raise InputError(f"{name}: {path} must hold {' or '.join(wanted)}; it holds {kind}")
    if kind == "a target":
        return hf.Target(path, **options)
    if kind == "a saved head":
        return read_fit(path, name)
    return ModelTable.load(path) if kind == "a capture" else arrays


def logit_arguments(arrays: dict[str, NDArray[Any]], call: Call) -> dict[str, Any]:
    """Return Q, K and the options of a file of arrays, beside those of the command line."""
    options, known = call.take(LOGITS), ", ".join(inspect.signature(hf.Attention).parameters)
    for name, array in arrays.items():
        if name not in known.split(", "):
            raise InputError(f"file must hold options of hf.Attention: {known}; it holds {name}")
        if name in options:
            raise InputError(f"{name} must not be given: the file holds one")
        options[name] = array if array.ndim else array.item()
        if name == "mask" and isinstance(options[name], str):
            options[name] = kind(options[name])
    return options


def attention_of(known: Any, call: Call) -> hf.Attention:
    """Return the attention of what a file holds, be it a saved head or arrays."""
    if isinstance(known, dict):
        return hf.Attention(**logit_arguments(known, call))
    return hf.Attention.of(known, **call.take(LOGITS))


def head_of(attention: hf.Attention, at: Any) -> hf.Attention:
    """Return the head that --head asks for; it must be given where there are several."""
    lead = attention.lead
    if at is None and not lead:
        return attention
    try:
        place = np.ravel_multi_index(at, lead)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"--head must have one index for each of the axes {lead}; got {at}"
        ) from error
    return single_heads(attention)[int(place)]


def read_head(call: Call) -> hf.Attention:
    """Return the one head that the command's argument FILE, with --head, names."""
    known = read(call.pop("file"), "file", "Q and K", "a saved head")
    return head_of(attention_of(known, call), call.pop("head", None))


def save_matrix(A: Any, path: Path) -> None:
    """Write a pattern to a file, .npz or .mtx."""
    write = scipy.io.mmwrite if path.suffix == ".mtx" else sp.save_npz
    replace_file(path, lambda file: write(file, A))


def draw(call: Call, output: Path | None, function: Callable[..., Any], *results: Any) -> str:
    """Write the figure that a function draws of results, if there is an output, and say where."""
    if output is None:
        return ""
    call.say("drawing")
    import matplotlib.pyplot as plt  # that it is there was checked with the options

    plt.switch_backend("agg")  # which opens no window

    def save(path: Path) -> None:
        replace_file(path, lambda file: plt.gcf().savefig(file, format=path.suffix[1:]))

    with plt.rc_context({"savefig.dpi": 150}):
        function(*results)
        call.files.write(output, save)
    plt.close()
    return f"\n\npicture: {'standard output' if output == DASH else output.resolve()}"
