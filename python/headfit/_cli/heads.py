"""`headfit describe`, `sparsify`, `shrink`, `compress`, `index`, `selection` and `plot`."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import headfit as hf
from headfit._attention.head_table import ModelTable
from headfit._attention.logits import LogitOptions
from headfit._base.arrays import is_sparse
from headfit._base.display import named
from headfit._base.files import FORMATS, save_arrays
from headfit._cli import files
from headfit._cli.command import BY_NAME, Call, Outcome, command, option, options_of, outcome
from headfit._compress.passages import attentions_of
from headfit.errors import InputError


@command(files.HEADS, options_of(hf.describe, "per_row per_column share num_threads"))
def describe(call: Call) -> Outcome:
    """Show how sparse heads are, where they attend, and the rank of their logits.

    headfit describe heads.npz --mask causal
    headfit describe model.npz --json  # what heads.table().save() wrote
    """
    file = call.pop("file")
    known = files.read(file, "file", "Q and K", "a saved head", "a capture")
    if isinstance(known, ModelTable):
        call.refuse(call, "must not be given: the heads of a capture have been measured")
        return outcome(file, known, kind="capture")
    attention = files.attention_of(known, call)
    call.say(f"measuring {attention}")
    return outcome(file, hf.describe(attention, **call), kind="heads")


@command(
    files.HEADS,
    files.HEAD,
    files.MATRIX,
    options_of(hf.sparsify, "per_row per_column exempt_columns mass num_threads"),
)
def sparsify(call: Call) -> Outcome:
    """Keep the heaviest entries of a head's attention as a pattern, which headfit fit takes.

    headfit sparsify heads.npz --head 0,3 --mask causal --per-row 8 -o A.npz
    headfit sparsify head.npz --mass 0.9 -o A.npz
    """
    file, head = call.pop("output"), files.read_head(call)
    call.say(f"reading {head}")
    kept = hf.sparsify(head, **call)
    call.files.write(file, partial(files.save_matrix, kept.matrix))
    return outcome(file, kept)


@command(
    files.HEADS,
    files.HEAD,
    option("-o", "--output", suffixes=(".npz",), required=True, metavar="HEAD",
           help="the smaller head: .npz of Q and K, or -"),
    options_of(hf.shrink, "tv tv_worst dim dtype effort time_limit rng num_threads"),
    files.PLOT,
)  # fmt: skip
def shrink(call: Call) -> Outcome:
    """Find a smaller head that attends as a given one does, for this input.

    headfit shrink head.npz --tv 0.05 -o small.npz
    headfit shrink heads.npz --head 0,3 --dim 8 --plot curve.png -o small.npz
    """
    file, picture, head = call.pop("output"), call.pop("plot", None), files.read_head(call)
    call.say(f"shrinking a head of size {head.dim}, n = {head.n}")
    if picture is None:
        call["curve_dims"] = ()  # no curve is drawn
    small = hf.shrink(head, **call)
    arrays = {"Q": small.Q, "K": small.K, "scale": np.array(small.scale)}
    if isinstance(small.mask, tuple):  # in the words of --mask, as files have it
        arrays["mask"] = np.array(f"{small.mask[0]}:{','.join(map(str, np.ravel(small.mask[1])))}")
    elif small.mask is not None:
        arrays["mask"] = small.mask.toarray() if is_sparse(small.mask) else np.array(small.mask)
    call.files.write(file, partial(save_arrays, arrays=arrays))
    text = files.draw(call, picture, hf.plot.curve, small)
    return outcome(file, small, small.reached, text, picture=picture)


PASSAGES = [
    option("file", metavar="FILE", type=Path, help=".npz with Q and K of shape (passages, n, D); "
           "query heads that share keys have Q of shape (passages, heads, n, D), and those of a "
           "layer, for headfit index, K of shape (passages, key heads, n, D)"),
    *files.LOGITS,
]  # fmt: skip
ROTATED = BY_NAME["position"] | {
    "help": "rope, rope-half, rope:BASE or rope-half:BASE: positions that are part of Q and K",
}  # fmt: skip


def _passages(call: Call) -> dict[str, Any]:
    return files.logit_arguments(files.read(call.pop("file"), "file", "Q and K"), call)


@command(
    PASSAGES,
    option("-o", "--output", suffixes=FORMATS, required=True, metavar="MAPS",
           help="the maps P_q and P_k, .npz or .safetensors, or -"),
    options_of(
        hf.compress,
        "dim tv rotated length held_out validation dtype effort time_limit rng num_threads",
        rotated=ROTATED,
    ),
)  # fmt: skip
def compress(call: Call) -> Outcome:
    """Find maps that make a head smaller for every input, from several passages.

    headfit compress passages.npz --mask causal --dim 8 -o maps.npz
    headfit compress passages.npz --mask causal --tv 0.05 -o maps.safetensors
    """
    file, given = call.pop("output"), _passages(call)
    call.say("compressing a head")
    maps = hf.compress(given.pop("Q"), **given, **call, curve_dims=())
    call.files.write(file, maps.save)
    return outcome(file, maps, maps.reached)


@command(
    PASSAGES,
    option("-o", "--output", suffixes=FORMATS, required=True, metavar="INDEX",
           help="the index, .npz or .safetensors, or -"),
    options_of(
        hf.index,
        "dim mass keys window first dtype form rotated length held_out validation effort rng "
        "num_threads",
        rotated=ROTATED,
    ),
)  # fmt: skip
def index(call: Call) -> Outcome:
    """Find a few numbers of each key by which a head's keys are found, from several passages.

    headfit index passages.npz --mask causal --dim 16 --dtype int4 -o index.npz
    headfit index passages.npz --mask causal --mass 0.97 --keys 128 -o index.safetensors
    """
    file, given = call.pop("output"), _passages(call)
    call.say("fitting an index")
    found = hf.index(attentions_of(given.pop("Q"), given.pop("K"), LogitOptions(**given)), **call)
    call.files.write(file, found.save)
    return outcome(file, found, found.to_dict()["reached"])


ROWS = ("row_mass", "row_most", "row_status", "sure", "selected")


@command(
    files.HEADS,
    option("--index", type=Path, required=True, metavar="INDEX",
           help="an index as headfit index writes it: .npz or .safetensors"),
    option("-o", "--output", suffixes=(".npz",), metavar="ROWS",
           help=f"{', '.join(ROWS)} of the certificate, .npz, or -"),
    options_of(
        hf.certify_selection, "keys mass kernel num_threads",
        keys={"help": "how many keys a row attends to (default: as in the index)"},
    ),
)  # fmt: skip
def selection(call: Call) -> Outcome:
    """Prove how much of its attention each row keeps with the keys that an index selects.

    headfit selection head.npz --index index.npz --mask causal --mass 0.5
    headfit selection group.npz --index index.safetensors --keys 128 -o rows.npz --json
    """
    file, index = call.pop("file"), hf.results.Index.load(call.pop("index"))
    rows = call.pop("output", None)
    attention = files.attention_of(files.read(file, "file", "Q and K", "a saved head"), call)
    call.say(f"certifying {attention}")
    kept = index.certify(attention, **call)
    if rows:
        call.files.write(rows, partial(save_arrays, arrays=named(kept, *ROWS)))
    return outcome(file, kept, kept.holds)


KINDS = {
    "attention": "the attention matrix, or that of a target",
    "certificate": "how many rows of a saved head leak and distort how much",
    "search": "the sizes that the search for a saved head tried",
    "offsets": "attention by distance",
}


@command(
    files.HEADS,
    files.HEAD,
    option("--target", type=Path, metavar="A", help="draw this target beside the attention of a "
           "head, and where it leaks and distorts"),
    option("--kind", choices=KINDS, metavar="KIND", help="; ".join(
        f"{kind}: {about}" for kind, about in KINDS.items()) + " (default: certificate for a saved "
        "head; small pictures of several heads; or attention)"),
    option("-o", "--output", suffixes=files.PICTURES, required=True, metavar="PICTURE",
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
    kind, target = call.pop("kind", None), call.pop("target", None)
    if kind and target:
        raise InputError("--kind must not be given beside --target, which compares")
    drawn = files.read(file, "file", "a target", "a saved head", "Q and K")
    if isinstance(drawn, dict):
        at, drawn = call.pop("head", None), files.attention_of(drawn, call)
        if at is None and drawn.lead and not (kind or target):
            kind = "heads_grid"
        else:
            drawn = files.head_of(drawn, at)
    call.refuse(call, f"is for a file with Q and K; {file} is none")
    results = [drawn]
    if target:
        kind, results = "compare", [hf.Target(target, mask=drawn.mask), drawn]
    kind = kind or ("certificate" if isinstance(drawn, hf.results.Fit) else "attention")
    text = files.draw(call, picture, getattr(hf.plot, kind), *results)
    return Outcome({"kind": kind, "picture": picture}, text.strip())
