"""`headfit describe`, `sparsify`, `shrink`, `compress` and `plot`: queries and keys in files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import headfit as hf
from headfit._attention.head_table import ModelTable
from headfit._base.files import save_arrays
from headfit._cli.command import Call, Outcome, command, outcome
from headfit._cli.files import (
    HEAD,
    HEADS,
    LOGITS,
    PICTURES,
    draw,
    head_of,
    kind_of,
    mask_words,
    read,
    read_arrays,
    read_attention,
    save_matrix,
)
from headfit._cli.options import option, options_of
from headfit._fit.file_formats import FORMATS
from headfit.errors import InputError


@command(
    HEADS,
    options_of(hf.describe, "per_row per_column share num_threads"),
)
def describe(call: Call) -> Outcome:
    """Show how sparse heads are, where they attend, and the rank of their logits.

    headfit describe heads.npz --mask causal
    headfit describe model.npz --json  # what heads.table().save() wrote
    """
    file = call.pop("file")
    if kind_of(file) == "a capture":
        for name in call:
            word = f"--{name.replace('_', '-')}"
            raise InputError(f"{word} must not be given: the heads of a capture have been measured")
        return outcome(file, ModelTable.load(file), kind="capture")
    attention = read_attention(file, call)
    call.say(f"measuring {attention}")
    return outcome(file, hf.describe(attention, **call), kind="heads")


@command(
    HEADS,
    HEAD,
    option("-o", "--output", suffixes=(".npz", ".mtx"), required=True, metavar="A",
           help="the pattern, .npz or .mtx, or -"),
    options_of(hf.sparsify, "per_row per_column exempt_columns mass num_threads"),
)  # fmt: skip
def sparsify(call: Call) -> Outcome:
    """Keep the heaviest entries of a head's attention as a pattern, which headfit fit takes.

    headfit sparsify heads.npz --head 0,3 --mask causal --per-row 8 -o A.npz
    headfit sparsify head.npz --mask causal --mass 0.9 -o A.npz
    """
    file = call.pop("output")
    head = head_of(read_attention(call.pop("file"), call), call.pop("head", None))
    call.say(f"reading {head}")
    kept = hf.sparsify(head, **call)
    call.files.write(file, partial(save_matrix, kept.matrix))
    return outcome(file, kept)


@command(
    HEADS,
    HEAD,
    option("-o", "--output", suffixes=(".npz",), required=True, metavar="HEAD",
           help="the smaller head: .npz of Q and K, or -"),
    options_of(hf.shrink, "tv tv_worst dim dtype effort time_limit rng num_threads"),
    option("--plot", suffixes=PICTURES, metavar="FILE",
           help="draw closeness against head size: .png, .pdf or .svg"),
)  # fmt: skip
def shrink(call: Call) -> Outcome:
    """Find a smaller head that attends as a given one does, for this input.

    headfit shrink head.npz --mask causal --tv 0.05 -o small.npz
    headfit shrink heads.npz --head 0,3 --dim 8 --plot curve.png -o small.npz
    """
    file, picture = call.pop("output"), call.pop("plot", None)
    head = head_of(read_attention(call.pop("file"), call), call.pop("head", None))
    call.say(f"shrinking a head of size {head.dim}, n = {head.n}")
    if picture is None:
        call["curve_dims"] = ()  # no curve is drawn
    small = hf.shrink(head, **call)
    arrays = {"Q": small.Q, "K": small.K, "scale": np.array(small.scale)}
    if small.mask is not None:
        arrays["mask"] = mask_words(small.mask)
    call.files.write(file, lambda path: save_arrays(path, arrays))
    draw(call, picture, "curve", small)
    return outcome(file, small, small.reached)


@command(
    option("file", metavar="FILE", type=Path, help=".npz with Q and K of shape (passages, n, D); "
           "query heads that share keys have Q of shape (passages, heads, n, D)"),
    LOGITS,
    option("-o", "--output", suffixes=FORMATS, required=True, metavar="MAPS",
           help="the maps P_q and P_k, .npz or .safetensors, or -"),
    options_of(
        hf.compress,
        "dim tv held_out validation commute dtype effort time_limit rng num_threads",
        commute={"action": "store_true", "help": "maps that commute with rotary positions, and "
                 "fold into the weights"},
    ),
)  # fmt: skip
def compress(call: Call) -> Outcome:
    """Find maps that make a head smaller for every input, from several passages.

    headfit compress passages.npz --mask causal --dim 8 -o maps.npz
    headfit compress passages.npz --mask causal --tv 0.05 -o maps.safetensors
    """
    file = call.pop("output")
    arrays = read_arrays(read(call.pop("file"), "file", "Q and K"), call.take(LOGITS))
    call.say("compressing a head")
    maps = hf.compress(arrays.pop("Q"), **arrays, **call, curve_dims=())
    call.files.write(file, maps.save)
    return outcome(file, maps, maps.reached)


KINDS = {
    "attention": "the attention matrix, or that of a target",
    "compare": "a target beside the attention, and where it leaks and distorts",
    "certificate": "how many rows of a saved head leak and distort how much",
    "search": "the sizes that the search for a saved head tried",
    "offsets": "attention by distance",
    "heads": "small pictures of several heads",
}
SUITED = {
    "a target": ("attention",),
    "a saved head": ("certificate", "search", "attention", "offsets", "compare"),
    "Q and K of one head": ("attention", "offsets", "compare"),
    "several heads (--head chooses one)": ("heads",),
}
"""The kinds of pictures of what a file holds, the usual one first."""


@command(
    HEADS,
    HEAD,
    option("--target", type=Path, metavar="A", help="what to compare the head with"),
    option("--kind", choices=KINDS, metavar="KIND", help="; ".join(
        f"{kind}: {about}" for kind, about in KINDS.items()) + " (default: what suits the file)"),
    option("-o", "--output", suffixes=PICTURES, required=True, metavar="PICTURE",
           help="the picture, .png, .pdf or .svg, or -"),
)  # fmt: skip
def plot(call: Call) -> Outcome:
    """Draw a target, a saved head, or the attention of queries and keys.

    headfit plot A.npz -o A.png
    headfit plot head.npz -o certificate.svg
    headfit plot head.npz --target A.npz -o compare.png
    headfit plot heads.npz --mask causal --head 0,3 --kind offsets -o offsets.png
    """
    file, picture = call.pop("file"), call.pop("output")
    holds, drawn = _drawn(file, call)
    kind = call.get("kind", "compare" if "target" in call else SUITED[holds][0])
    if kind not in SUITED[holds]:
        kinds = " or ".join(SUITED[holds])
        raise InputError(f"--kind must be {kinds}: {file} holds {holds}; got {kind}")
    if (kind == "compare") != ("target" in call):
        raise InputError(f"--kind compare and --target go together; got --kind {kind}")
    results = [drawn]
    if kind == "compare":
        results.insert(0, hf.Target(call["target"], mask=drawn.mask))
    name = "heads_grid" if kind == "heads" else kind
    settings = {"colorbar": True} if kind in ("attention", "compare") else {}
    text = draw(call, picture, name, *results, **settings)
    return Outcome({"kind": kind, "picture": picture}, text.strip())


def _drawn(file: Path, call: Call) -> tuple[str, Any]:
    """Return what a file holds: in words, and as an object to draw."""
    if kind_of(file) == "Q and K":
        at, attention = call.pop("head", None), read_attention(file, call)
        if attention.lead and at is None:
            return "several heads (--head chooses one)", attention
        return "Q and K of one head", head_of(attention, at)
    for each in (*LOGITS, HEAD):
        if each.name in call:
            raise InputError(f"{each.words[0]} is for a file with Q and K; {file} is none")
    known = read(file, "file", "a target", "a saved head")
    return "a target" if isinstance(known, hf.Target) else "a saved head", known
