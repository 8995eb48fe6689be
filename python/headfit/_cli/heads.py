"""`headfit describe`, `shrink`, `compress` and `plot`: queries and keys in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headfit._attention import describe as describing
from headfit._attention import sparsify as sparsifying
from headfit._attention.attention import Attention
from headfit._attention.tally_table import TallyTable
from headfit._base.files import save_arrays
from headfit._base.stored_arrays import load_arrays
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
    logit_options,
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
        headfit describe model.npz --json  # what heads.save() of a capture wrote
    """,
)
def describe(call: Call) -> Outcome:
    """Show how sparse heads are and where they attend, from arrays or a saved capture."""
    file = call.pop("file")
    path = call.files.path(file)
    if path.suffix == ".npz" and "layers" in load_arrays(path, "file of heads", "file"):
        for name in call:
            word = f"--{name.replace('_', '-')}"
            raise InputError(f"{word} must not be given: the heads of a capture have been measured")
        capture = TallyTable.load(path)
        return Outcome({"file": file, "kind": "capture", **capture.to_dict()}, str(capture))
    attention = read_attention(path, logit_options(call))
    call.say(f"measuring {attention}")
    table = describing.describe(attention, **call)
    return Outcome({"file": file, "kind": "heads", **table.to_dict()}, str(table))


CLOSE = options_of(shrinking.shrink, "tv tv_worst dim")
KEPT = options_of(sparsifying.sparsify, "per_row mass per_column exempt_columns")


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
    output("--plot", suffixes=PICTURES, metavar="FILE",
           help="draw closeness against head size: .png, .pdf or .svg"),
    examples="""
        headfit shrink head.npz --mask causal --tv 0.05 -o small.npz
        headfit shrink heads.npz --head 0,3 --dim 8 --plot curve.png -o small.npz
        headfit shrink head.npz --mask causal --mass 0.9 --per-row 8 -o certified.npz
    """,
)  # fmt: skip
def shrink(call: Call) -> Outcome:
    """Find a smaller head: close to this one, or certified to keep its heaviest entries."""
    keeps = "per_row" in call or "mass" in call
    refused = [o.name for o in CLOSE] + ["plot"] if keeps else [o.name for o in KEPT + TOLERANCES]
    for name in refused:
        if name in call:
            where = "beside" if keeps else "without"
            raise InputError(
                f"--{name.replace('_', '-')} must not be given {where} --per-row or --mass"
            )
    file, picture = call.pop("output"), call.pop("plot", None)
    if not keeps and call.files.suffix(file) != ".npz":
        raise InputError("output must end in .npz: a head without a certificate is Q and K")
    path = call.files.path(call.pop("file"))
    head = head_of(read_attention(path, logit_options(call)), call.pop("head", None))
    call.say(f"shrinking a head of size {head.dim}, n = {head.n}")
    if keeps:
        return _shrink_to_heaviest(call, head, file)
    if picture is None:
        call["curve_dims"] = ()  # no curve is drawn
    found = shrinking.shrink(head, **call)
    arrays = {"Q": found.Q, "K": found.K, "scale": np.array(found.scale)}
    if found.mask is not None:
        arrays["mask"] = mask_words(found.mask)
    call.files.write(file, lambda path: save_arrays(path, arrays))
    if picture is not None:
        call.files.write(picture, lambda path: save_drawing("curve", found, path=path))
    return Outcome({"file": file, **found.to_dict()}, f"{file}: {found}", found.reached)


def _shrink_to_heaviest(call: Call, head: Attention, file: Path) -> Outcome:
    kept = sparsifying.sparsify(head, **call.take(o.name for o in KEPT))
    method = Learned(**call.take(["effort"]))
    fit = fitting.fit(kept, method=method, **call)
    call.files.write(file, fit.save)
    return Outcome({"file": file, **fit.to_dict()}, f"{file}: {fit}", fit.certificate.holds)


@command(
    HEADS,
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
    """Find maps that make a head smaller for every input.

    Q and K have shape (passages, n, D); query heads that share keys have Q of shape
    (passages, heads, n, D).
    """
    file, path = call.pop("output"), call.files.path(call.pop("file"))
    arrays, options = read_arrays(path, logit_options(call))
    call.say(f"compressing a head of {len(arrays['Q'])} passages")
    found = compressing.compress(arrays["Q"], arrays["K"], **vars(options), **call, curve_dims=())

    def save(path: Path) -> None:
        if path.suffix == ".safetensors":
            found.save(path)
        else:
            save_arrays(path, found.tensors())

    call.files.write(file, save)
    return Outcome({"file": file, **found.to_dict()}, f"{file}: {found}", found.reached)


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
    """Draw a target, a saved head, or the attention of queries and keys."""
    file, picture, at = call["file"], call.pop("output"), call.get("head")
    drawn = _read(call)
    kind = call.get("kind") or _usual(drawn, call)
    if "target" in call and kind != "compare":
        raise InputError(f"--target is for the kind compare; got {kind}")
    if kind in ("certificate", "search") and not isinstance(drawn, Fit):
        raise InputError(f"--kind {kind} is for a head that headfit fit wrote")
    if isinstance(drawn, Target) and kind != "attention":
        raise InputError(f"--kind {kind} is for heads; {file} is a target")
    if kind == "compare" and "target" not in call:
        raise InputError("--kind compare needs --target")
    arguments: tuple[Any, ...] = (drawn,)
    layout: dict[str, Any] = {}
    if kind == "heads":
        if not isinstance(drawn, Attention) or not drawn.lead or at is not None:
            raise InputError("--kind heads is for a file with several heads, all of them")
        if len(drawn.lead) > 2:
            raise InputError(f"--kind heads is for one or two leading axes; got {drawn.lead}")
        rows, columns = drawn.lead if len(drawn.lead) == 2 else (1, drawn.lead[0])
        layout = {"panels": (rows, columns), "size": (1 + 1.6 * columns, 0.4 + 1.7 * rows)}
    elif isinstance(drawn, Attention):
        arguments = (head_of(drawn, at),)
    if kind == "attention":
        layout = {"size": (6.2, 5.4), "colorbar": True}
    elif kind == "compare":
        target = Target(call.files.path(call["target"]), mask=arguments[0].mask)
        arguments = (target, *arguments)
        layout = {"panels": (1, 3), "size": (16.2, 4.8), "colorbar": True}
    name = "heads_grid" if kind == "heads" else kind
    call.say("drawing")
    call.files.write(picture, lambda path: save_drawing(name, *arguments, path=path, **layout))
    return Outcome({"kind": kind, "picture": picture}, f"picture: {shown(picture)}")


def _read(call: Call) -> Target | Fit | Attention:
    """Return what the file holds; a Fit where its certificate or search may be drawn."""
    path = call.files.path(call["file"])
    held = load_arrays(path, "file to draw", "file") if path.suffix == ".npz" else {}
    if "Q" in held and "about" not in held:
        return read_attention(path, logit_options(call))
    for name in (*LOGITS, "head"):
        if name in call:
            raise InputError(f"--{name} is for a file with Q and K; {call['file']} is none")
    return target_or_head(path)


def _usual(drawn: Target | Fit | Attention, call: Call) -> str:
    if "target" in call:
        return "compare"
    if isinstance(drawn, Fit):
        return "certificate"
    has_several = isinstance(drawn, Attention) and drawn.lead and "head" not in call
    return "heads" if has_several else "attention"
