"""Files that are read: targets, saved heads, arrays of queries and keys; pictures are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from numpy.typing import NDArray

import headfit as hf
from headfit._attention.heads import single_heads
from headfit._base.files import load_arrays, replace_file
from headfit._cli.command import Call
from headfit._cli.options import flag, mask, numbers, option, options_of
from headfit._cli.streams import DASH
from headfit._fit.storage import read_fit
from headfit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".pdf", ".svg")

IN_FILES = ("scale", "mask", "key_lengths", "bias", "softcap", "key_mask", "sinks")
"""The options of `Attention` that a file of arrays may hold beside Q and K."""

LOGITS = options_of(hf.Attention, "scale mask position")

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

_KINDS = {"a saved head": {"about"}, "a capture": {"layers"}, "Q and K": {"Q", "K"},
          "W_Q and W_K": {"W_Q", "W_K"}, "a target": {"shape"}}  # fmt: skip
"""What a file of arrays is, by the names that it holds."""


def read_target(call: Call, mask: Any = None) -> hf.Target:
    """Return the target that the command's argument A names."""
    return hf.Target(call.pop("A"), mask=mask, normalize=call.pop("normalize", False))


def kind_of(path: Path, name: str = "file") -> str:
    """Return what the file of an argument holds: one of the kinds above, or the names in it."""
    if path.suffix != ".npz":
        return "a saved head" if path.suffix == ".safetensors" else "a target"
    names = load_arrays(path, "file of arrays", name).keys()
    said = (kind for kind, own in _KINDS.items() if own <= names)
    return next(said, ", ".join(names) or "nothing")


def read(path: Path, name: str, *wanted: str, **options: Any) -> Any:
    """Return what a file holds, which must be one of the kinds that are wanted.

    Q and K, and W_Q and W_K, are read as a dictionary of arrays.
    """
    kind = kind_of(path, name)
    if kind not in wanted:
        raise InputError(f"{name}: {path} must hold {' or '.join(wanted)}; it holds {kind}")
    if kind == "a target":
        return hf.Target(path, **options)
    return read_fit(path, name) if kind == "a saved head" else load_arrays(path, kind, name)


def read_arrays(arrays: dict[str, NDArray[Any]], options: dict[str, Any]) -> dict[str, Any]:
    """Return Q, K and the options of a file of arrays, beside those of the command line."""
    for name in arrays:
        if name not in ("Q", "K", *IN_FILES):
            raise InputError(f"file may hold {', '.join(IN_FILES)} beside Q and K; it holds {name}")
        if name in options:
            raise InputError(f"{name} must not be given: the file holds one")
    return options | {name: _stored(name, array) for name, array in arrays.items()}


def _stored(name: str, array: NDArray[Any]) -> Any:
    if name == "mask" and array.dtype.kind == "U" and array.ndim == 0:
        return mask(str(array))
    return array.item() if array.ndim == 0 else array


def mask_words(mask: Any) -> Any:
    """Return a mask as a file holds it: in the words of --mask, or as it is."""
    if isinstance(mask, tuple):
        sides = mask[1] if isinstance(mask[1], tuple) else (mask[1],)
        return np.array(f"{mask[0]}:{','.join(str(side) for side in sides)}")
    return np.array(mask) if isinstance(mask, str) else mask


def read_attention(path: Path, call: Call) -> hf.Attention:
    """Return the attention of a file, be it a saved head or arrays."""
    options = call.take(LOGITS)
    known = read(path, "file", "Q and K", "a saved head")
    if isinstance(known, dict):
        return hf.Attention(**read_arrays(known, options))
    return hf.Attention.of(known, **options)


def head_of(attention: hf.Attention, at: Any) -> hf.Attention:
    """Return the head that --head asks for; it must be given where there are several."""
    lead = attention.lead
    if at is None and not lead:
        return attention
    try:
        place = np.ravel_multi_index(at, lead)
    except (TypeError, ValueError) as error:
        message = f"--head must have one index for each of the axes {lead}; got {at}"
        raise InputError(message) from error
    return single_heads(attention)[int(place)]


def read_module(path: Path) -> hf.SelfAttention:
    """Return the module of a file with W_Q and W_K, or that of a saved head."""
    known = read(path, "module", "W_Q and W_K", "a saved head")
    if isinstance(known, dict):
        return hf.SelfAttention(known["W_Q"], known["W_K"], known.get("scale"))
    module: hf.SelfAttention = known.module
    return module


def save_matrix(A: Any, path: Path) -> None:
    """Write a pattern to a file, .npz or .mtx."""
    write = scipy.io.mmwrite if path.suffix == ".mtx" else sp.save_npz
    replace_file(path, lambda file: write(file, A))


def draw(call: Call, output: Path | None, name: str, *results: Any, **settings: Any) -> str:
    """Write what a function of `headfit.plot` draws, if there is an output, and say where."""
    if output is None:
        return ""
    call.say("drawing")
    from headfit.plot._drawing import matplotlib

    matplotlib().use("agg")  # pyplot opens no window
    import matplotlib.pyplot as plt

    with plt.rc_context({"savefig.dpi": 150}):
        getattr(hf.plot, name)(*results, **settings)
        text = write_figure(call, output, plt.gcf())
    plt.close()
    return text


def write_figure(call: Call, output: Path, figure: Figure) -> str:
    """Write a figure to a file whose name ends as one of PICTURES does, and say where."""
    call.files.write(
        output,
        lambda path: replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:])),
    )
    return f"\n\npicture: {'standard output' if output == DASH else output.resolve()}"
