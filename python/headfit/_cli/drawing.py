"""`headfit plot`: a picture of a target, of a saved head, or of queries and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headfit._attention.attention import Attention
from headfit._base.stored_arrays import load_arrays
from headfit._cli.arguments import Commands, command
from headfit._cli.commands import target_or_head
from headfit._cli.heads import add_head, add_heads, given_options, head_of, read_attention
from headfit._cli.picture import FORMATS, save_drawing
from headfit._cli.shared import add_output
from headfit._cli.streams import shown
from headfit._fit.result import Fit
from headfit._target.target import Target
from headfit.errors import InputError

KINDS = {
    "attention": "the attention matrix, or that of a target",
    "compare": "a target beside the attention, and where it leaks and distorts",
    "certificate": "how many rows of a saved head leak and distort how much",
    "search": "the sizes that the search for a saved head tried",
    "offsets": "attention by distance",
    "heads": "small pictures of several heads",
}


def add_plot(parent: Commands) -> None:
    """Add `headfit plot`."""
    parser = command(
        parent,
        "plot",
        draw,
        "draw a target, a saved head, or the attention of queries and keys",
        "  headfit plot A.npz -o A.png\n"
        "  headfit plot head.npz -o certificate.svg\n"
        "  headfit plot head.npz --target A.npz -o compare.png\n"
        "  headfit plot heads.npz --mask causal --head 0,3 --kind offsets -o offsets.png\n",
        json=False,
    )
    add_heads(parser, "a target, a saved head, or .npz with Q and K")
    add_head(parser)
    parser.add_argument("--target", type=Path, metavar="A", help="what to compare the head with")
    words = "; ".join(f"{kind}: {about}" for kind, about in KINDS.items())
    parser.add_argument(
        "--kind", choices=KINDS, metavar="KIND",
        help=f"{words} (default: what suits the file)",
    )  # fmt: skip
    add_output(
        parser, "-o", "--output", suffixes=FORMATS, required=True, metavar="PICTURE",
        help="the picture, .png, .pdf or .svg, or -",
    )  # fmt: skip


def draw(arguments: Any) -> int:
    """Run `headfit plot`."""
    found = _read(arguments)
    kind = arguments.kind or _usual(found, arguments)
    if arguments.target is not None and kind != "compare":
        raise InputError(f"--target is for the kind compare; got {kind}")
    given, layout = _content(kind, found, arguments)
    output = arguments.output
    arguments.streams.write(output, lambda path: save_drawing(*given, path=path, **layout))
    print(f"picture: {shown(output)}")
    return 0


def _read(arguments: Any) -> Target | Fit | Attention:
    """Return what the file holds; a Fit where its certificate or search may be drawn."""
    path = arguments.streams.path(arguments.file)
    held = load_arrays(path, "file to draw", "file") if path.suffix == ".npz" else {}
    if "Q" in held and "about" not in held:
        return read_attention(arguments, path)
    options = given_options(arguments).given()
    if options or arguments.head is not None:
        name = options[0] if options else "head"
        raise InputError(f"--{name} is for a file with Q and K; {arguments.file} is none")
    return target_or_head(path, normalize=False)


def _usual(found: Target | Fit | Attention, arguments: Any) -> str:
    if arguments.target is not None:
        return "compare"
    if isinstance(found, Fit):
        return "certificate"
    has_several = isinstance(found, Attention) and found.lead and arguments.head is None
    return "heads" if has_several else "attention"


def _content(
    kind: str, found: Target | Fit | Attention, arguments: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the name and the arguments of the function of `headfit.plot`, and its layout."""
    if kind in ("certificate", "search"):
        if not isinstance(found, Fit):
            raise InputError(f"--kind {kind} is for a head that headfit fit wrote")
        return (kind, found), {}
    if kind == "attention" and isinstance(found, Target):
        return (kind, found), {"size": (6.2, 5.4), "colorbar": True}
    if isinstance(found, Target):
        raise InputError(f"--kind {kind} is for heads; {arguments.file} is a target")
    if kind == "heads":
        if isinstance(found, Fit) or not found.lead or arguments.head is not None:
            raise InputError("--kind heads is for a file with several heads, all of them")
        if len(found.lead) > 2:
            raise InputError(f"--kind heads is for one or two leading axes; got {found.lead}")
        rows, columns = found.lead if len(found.lead) == 2 else (1, found.lead[0])
        layout = {"panels": (rows, columns), "size": (1 + 1.6 * columns, 0.4 + 1.7 * rows)}
        return ("heads_grid", found), layout
    head = found if isinstance(found, Fit) else head_of(found, arguments.head)
    if kind == "offsets":
        return (kind, head), {}
    if kind == "attention":
        return (kind, head), {"size": (6.2, 5.4), "colorbar": True}
    if arguments.target is None:
        raise InputError("--kind compare needs --target")
    target = Target(arguments.streams.path(arguments.target), mask=found.mask)
    return ("compare", target, head), {"panels": (1, 3), "size": (16.2, 4.8), "colorbar": True}
