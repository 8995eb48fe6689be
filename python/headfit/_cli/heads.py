"""`headfit describe`, `shrink`, `compress` and `plot`: queries and keys in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headfit._attention import describe as describing
from headfit._attention import sparsify as sparsifying
from headfit._attention.attention import Attention
from headfit._attention.head_table import ModelTable
from headfit._base.files import save_arrays
from headfit._cli.command import Call, Outcome, command, output
from headfit._cli.fitting import TOLERANCES
from headfit._cli.options import option, options_of
from headfit._cli.picture import FORMATS as PICTURES
from headfit._cli.picture import save_drawing
from headfit._cli.reading import (
    HEAD,
    HEADS,
    LOGITS,
    head_of,
    kind_of,
    mask_words,
    read_arrays,
    read_attention,
    target_or_head,
)
from headfit._cli.streams import shown
from headfit._compress import compress as compressing
from headfit._fit import fit as fitting
from headfit._fit.file_formats import FORMATS
from headfit._fit.learned import Learned
from headfit._fit.result import Fit
from headfit._shrink import shrink as shrinking
from headfit._target.target import Target
from headfit.errors import InputError


@command(
    HEADS,
    options_of(describing.describe, "per_row per_column share num_threads"),
    examples="""
        headfit describe heads.npz --mask causal
        headfit describe model.npz --json  # what heads.table().save() wrote
    """,
)
def describe(call: Call) -> Outcome:
    file = call.pop("file")
    path = call.files.path(file)
    if kind_of(path) == "a capture":
        for name in call:
            word = f"--{name.replace('_', '-')}"
            raise InputError(f"{word} must not be given: the heads of a capture have been measured")
        capture = ModelTable.load(path)
        return Outcome({"file": file, "kind": "capture", **capture.to_dict()}, str(capture))
    attention = read_attention(path, call)
    call.say(f"measuring {attention}")
    table = describing.describe(attention, **call)
    return Outcome({"file": file, "kind": "heads", **table.to_dict()}, str(table))


CLOSE = options_of(shrinking.shrink, "tv tv_worst dim")
KEPT = options_of(sparsifying.sparsify, "per_row mass per_column exempt_columns")
PLOT = output("--plot", suffixes=PICTURES, metavar="FILE",
              help="draw closeness against head size: .png, .pdf or .svg")  # fmt: skip


@command(
    HEADS,
    HEAD,
    output("-o", "--output", suffixes=tuple(FORMATS), required=True, metavar="HEAD",
           help="the smaller head: .npz of Q and K; with --per-row or --mass what headfit fit "
           "writes"),
    CLOSE,
    KEPT,
    TOLERANCES,
    options_of(shrinking.shrink, "dtype effort time_limit rng num_threads"),
    PLOT,
    examples="""
        headfit shrink head.npz --mask causal --tv 0.05 -o small.npz
        headfit shrink heads.npz --head 0,3 --dim 8 --plot curve.png -o small.npz
        headfit shrink head.npz --mask causal --mass 0.9 --per-row 8 -o certified.npz
    """,
)  # fmt: skip
def shrink(call: Call) -> Outcome:
    keeps = "per_row" in call or "mass" in call
    refused = [*CLOSE, PLOT] if keeps else [*KEPT, *TOLERANCES]
    for each in refused:
        if each.name in call:
            where = "beside" if keeps else "without"
            raise InputError(f"{each.words[0]} must not be given {where} --per-row or --mass")
    file, picture = call.pop("output"), call.pop("plot", None)
    if not keeps and call.files.suffix(file) != ".npz":
        raise InputError("output must end in .npz: a head without a certificate is Q and K")
    path = call.files.path(call.pop("file"))
    head = head_of(read_attention(path, call), call.pop("head", None))
    call.say(f"shrinking a head of size {head.dim}, n = {head.n}")
    if keeps:
        return _shrink_to_heaviest(call, head, file)
    if picture is None:
        call["curve_dims"] = ()  # no curve is drawn
    small = shrinking.shrink(head, **call)
    arrays = {"Q": small.Q, "K": small.K, "scale": np.array(small.scale)}
    if small.mask is not None:
        arrays["mask"] = mask_words(small.mask)
    call.files.write(file, lambda path: save_arrays(path, arrays))
    if picture is not None:
        call.files.write(picture, lambda path: save_drawing("curve", small, path=path))
    return Outcome({"file": file, **small.to_dict()}, f"{file}: {small}", small.reached)


def _shrink_to_heaviest(call: Call, head: Attention, file: Path) -> Outcome:
    kept = sparsifying.sparsify(head, **call.take(KEPT))
    method = Learned(effort=call.pop("effort", "low"))
    fit = fitting.fit(kept, method=method, **call)
    call.files.write(file, fit.save)
    return Outcome({"file": file, **fit.to_dict()}, f"{file}: {fit}", fit.certificate.holds)


@command(
    option("file", metavar="FILE", type=Path, help=".npz with Q and K of shape (passages, n, D); "
           "query heads that share keys have Q of shape (passages, heads, n, D)"),
    LOGITS,
    output("-o", "--output", suffixes=tuple(FORMATS), required=True, metavar="MAPS",
           help="the maps P_q and P_k, .npz or .safetensors, or -"),
    options_of(
        compressing.compress,
        "dim tv held_out validation commute dtype effort time_limit rng num_threads",
        commute={"action": "store_true", "help": "maps that commute with rotary positions, and "
                 "fold into the weights"},
    ),
    examples="""
        headfit compress passages.npz --mask causal --dim 8 -o maps.npz
        headfit compress passages.npz --mask causal --tv 0.05 -o maps.safetensors
    """,
)  # fmt: skip
def compress(call: Call) -> Outcome:
    file, path = call.pop("output"), call.files.path(call.pop("file"))
    arrays = read_arrays(path, call.take(LOGITS))
    call.say(f"compressing a head of {len(arrays['Q'])} passages")
    maps = compressing.compress(arrays.pop("Q"), **arrays, **call, curve_dims=())

    def save(path: Path) -> None:
        if path.suffix == ".safetensors":
            maps.save(path)
        else:
            save_arrays(path, maps.tensors())

    call.files.write(file, save)
    return Outcome({"file": file, **maps.to_dict()}, f"{file}: {maps}", maps.reached)


KINDS = {
    "attention": "the attention matrix, or that of a target",
    "compare": "a target beside the attention, and where it leaks and distorts",
    "certificate": "how many rows of a saved head leak and distort how much",
    "search": "the sizes that the search for a saved head tried",
    "offsets": "attention by distance",
    "heads": "small pictures of several heads",
}


@command(
    HEADS,
    HEAD,
    option("--target", type=Path, metavar="A", help="what to compare the head with"),
    option("--kind", choices=KINDS, metavar="KIND", help="; ".join(
        f"{kind}: {about}" for kind, about in KINDS.items()) + " (default: what suits the file)"),
    output("-o", "--output", suffixes=PICTURES, required=True, metavar="PICTURE",
           help="the picture, .png, .pdf or .svg, or -"),
    examples="""
        headfit plot A.npz -o A.png
        headfit plot head.npz -o certificate.svg
        headfit plot head.npz --target A.npz -o compare.png
        headfit plot heads.npz --mask causal --head 0,3 --kind offsets -o offsets.png
    """,
)  # fmt: skip
def plot(call: Call) -> Outcome:
    file, picture, at = call["file"], call.pop("output"), call.get("head")
    drawn = _read(call)
    has_several = isinstance(drawn, Attention) and drawn.lead and at is None
    usual = "certificate" if isinstance(drawn, Fit) else "heads" if has_several else "attention"
    kind = call.get("kind", "compare" if "target" in call else usual)
    if "target" in call and kind != "compare":
        raise InputError(f"--target is for the kind compare; got {kind}")
    if kind == "compare" and "target" not in call:
        raise InputError("--kind compare needs --target")
    if kind in ("certificate", "search") and not isinstance(drawn, Fit):
        raise InputError(f"--kind {kind} is for a head that headfit fit wrote")
    if isinstance(drawn, Target) and kind != "attention":
        raise InputError(f"--kind {kind} is for heads; {file} is a target")
    if kind == "heads" and not has_several:
        raise InputError("--kind heads is for a file with several heads, all of them")
    if isinstance(drawn, Attention) and kind != "heads":
        drawn = head_of(drawn, at)
    results: tuple[Any, ...] = (drawn,)
    if kind == "compare":
        results = (Target(call.files.path(call["target"]), mask=drawn.mask), drawn)
    name = "heads_grid" if kind == "heads" else kind
    settings = {"colorbar": True} if kind in ("attention", "compare") else {}
    call.say("drawing")
    call.files.write(picture, lambda path: save_drawing(name, *results, path=path, **settings))
    return Outcome({"kind": kind, "picture": picture}, f"picture: {shown(picture)}")


def _read(call: Call) -> Any:
    """Return what the file holds; a Fit where its certificate or search may be drawn."""
    path = call.files.path(call["file"])
    if kind_of(path) == "Q and K":
        return read_attention(path, call)
    for each in (*LOGITS, HEAD):
        if each.name in call:
            word = each.words[0]
            raise InputError(f"{word} is for a file with Q and K; {call['file']} is none")
    return target_or_head(path)
