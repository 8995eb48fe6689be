"""`headfit shrink` and `headfit compress`: smaller heads, for one passage or for every input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headfit._attention.sparsify import sparsify
from headfit._base.dtypes import DTYPES
from headfit._base.files import save_arrays
from headfit._base.tolerances import Tolerances
from headfit._cli import text
from headfit._cli.arguments import Commands, columns, command, effort, tolerances
from headfit._cli.commands import TOLERANCES, asked_tolerances
from headfit._cli.heads import (
    add_head,
    add_heads,
    given_options,
    head_of,
    mask_words,
    read_arrays,
    read_attention,
)
from headfit._cli.picture import FORMATS as PICTURES
from headfit._cli.picture import save_drawing
from headfit._cli.shared import add_output, add_running, add_seed, given, option
from headfit._compress.compress import compress as compressed
from headfit._compress.result import Compressed
from headfit._fit.file_formats import FORMATS
from headfit._fit.fit import fit
from headfit._fit.learned import Learned
from headfit._fit.result import Fit
from headfit._shrink.result import ShrinkResult
from headfit._shrink.shrink import shrink as closest
from headfit.errors import InputError

_CLOSE = ("tv", "tv_worst", "dim")
_PATTERN = ("per_row", "mass", "per_column", "exempt_columns")


def add_shrink(parent: Commands) -> None:
    """Add `headfit shrink`."""
    parser = command(
        parent,
        "shrink",
        shrink,
        "find a smaller head that attends as a given one does, for this input",
        "  headfit shrink head.npz --mask causal --tv 0.05 -o small.npz\n"
        "  headfit shrink heads.npz --head 0,3 --dim 8 --plot curve.png -o small.npz\n"
        "  headfit shrink head.npz --mask causal --mass 0.9 --per-row 8 -o certified.npz\n",
    )
    add_heads(parser, ".npz with Q and K, or a saved head")
    add_head(parser)
    add_output(
        parser, "-o", "--output", suffixes=(".npz", ".safetensors"), required=True, metavar="HEAD",
        help="the smaller head: Q and K as .npz; with --per-row or --mass as headfit fit writes it",
    )  # fmt: skip
    close = parser.add_argument_group("to stay close to the whole attention")
    close.add_argument(
        "--tv",
        type=float,
        metavar="T",
        help="largest mean total variation of the rows (default: 0.05)",
    )
    close.add_argument(
        "--tv-worst", type=float, metavar="T", help="largest total variation of any row"
    )
    close.add_argument("--dim", type=int, metavar="D", help="head size (default: search)")
    kept = parser.add_argument_group("to keep the heaviest entries of every row, certified")
    kept.add_argument("--per-row", type=int, metavar="K", help="keep at most this many per row")
    kept.add_argument(
        "--mass", type=float, metavar="S", help="keep the fewest that hold this share of the row"
    )
    kept.add_argument(
        "--per-column", type=int, metavar="K", help="keep at most this many per column"
    )
    kept.add_argument(
        "--exempt-columns", type=columns, metavar="J",
        help="auto, or numbers as in 0,1,7: columns that --per-column does not bound",
    )  # fmt: skip
    tolerances(parser, Tolerances())
    add_output(
        parser, "--plot", suffixes=PICTURES, metavar="FILE",
        help="draw closeness against head size: .png, .pdf or .svg",
    )  # fmt: skip
    _add_search(parser)


def _add_search(parser: Any) -> None:
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument(
        "--effort", type=effort, metavar="E", help="low, medium, high or a number of steps"
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds that the search may take"
    )
    add_seed(parser)
    add_running(parser)


def shrink(arguments: Any) -> int:
    """Run `headfit shrink`."""
    close, pattern = given(arguments, *_CLOSE), given(arguments, *_PATTERN)
    asked = given(arguments, *TOLERANCES)
    keeps = "per_row" in pattern or "mass" in pattern
    for name in (*close, *given(arguments, "plot")) if keeps else (*pattern, *asked):
        where = "beside" if keeps else "without"
        raise InputError(f"{option(name)} must not be given {where} --per-row or --mass")
    files = arguments.streams
    if not keeps and files.suffix(arguments.output) != ".npz":
        raise InputError("output must end in .npz: a head without a certificate is Q and K")
    head = head_of(read_attention(arguments, files.path(arguments.file)), arguments.head)
    common: dict[str, Any] = given(arguments, "effort", "time_limit", "num_threads")
    common |= {"dtype": arguments.dtype, "rng": arguments.seed}
    with text.progress(arguments.progress) as say:
        say(f"shrinking a head of size {head.dim}, n = {head.n}")
        if keeps:
            kept = sparsify(head, **pattern, num_threads=arguments.num_threads)
            method = Learned(effort=common.pop("effort", "low"))
            common["tolerances"] = asked_tolerances(arguments, Tolerances())
            found: ShrinkResult | Fit = fit(kept, method=method, **common)
        else:
            if arguments.plot is None:
                common["curve_dims"] = ()
            found = closest(head, **close, **common)
        files.write(arguments.output, lambda path: _save(found, path))
        if arguments.plot is not None:
            files.write(arguments.plot, lambda path: save_drawing("curve", found, path=path))
    return _reported(arguments, found)


def _reported(arguments: Any, found: ShrinkResult | Compressed | Fit) -> int:
    """Print what was found, and return the exit status."""
    if arguments.json:
        text.emit({"file": str(arguments.output), **found.to_dict()})
    else:
        print(f"{arguments.output}: {found}")
    return 0 if (found.certificate.holds if isinstance(found, Fit) else found.reached) else 1


def _save(found: ShrinkResult | Fit, path: Path) -> None:
    if isinstance(found, Fit):
        found.save(path)
        return
    arrays = {"Q": found.Q, "K": found.K, "scale": np.array(found.scale)}
    if found.mask is not None:
        arrays["mask"] = mask_words(found.mask)
    save_arrays(path, arrays)


def add_compress(parent: Commands) -> None:
    """Add `headfit compress`."""
    parser = command(
        parent,
        "compress",
        compress,
        "find maps that make a head smaller for every input, from several passages",
        "  headfit compress passages.npz --mask causal --dim 8 -o maps.npz\n"
        "  headfit compress passages.npz --mask causal --tv 0.05 -o maps.safetensors\n",
    )
    add_heads(
        parser, ".npz with Q and K of shape (passages, n, D); several query heads that share keys "
        "have Q of shape (passages, heads, n, D)",
    )  # fmt: skip
    add_output(
        parser, "-o", "--output", suffixes=tuple(FORMATS), required=True, metavar="MAPS",
        help="the maps P_q and P_k, .npz or .safetensors, or -",
    )  # fmt: skip
    parser.add_argument("--dim", type=int, metavar="D", help="head size (default: search)")
    parser.add_argument(
        "--tv", type=float, metavar="T",
        help="mean total variation that a search keeps on validation passages (default: 0.05)",
    )  # fmt: skip
    parser.add_argument(
        "--commute", action="store_true",
        help="maps that commute with rotary positions, and fold into the weights",
    )  # fmt: skip
    parser.add_argument(
        "--held-out", type=float, metavar="S", help="share of passages that judge (default: 0.25)"
    )
    parser.add_argument(
        "--validation", type=float, metavar="S",
        help="share of the others that choose (default: 0.25)",
    )  # fmt: skip
    _add_search(parser)


def compress(arguments: Any) -> int:
    """Run `headfit compress`."""
    files = arguments.streams
    arrays, options = read_arrays(files.path(arguments.file), given_options(arguments))
    asked = given(
        arguments, "dim", "tv", "held_out", "validation", "effort", "time_limit", "num_threads"
    )
    with text.progress(arguments.progress) as say:
        say(f"compressing a head of {len(arrays['Q'])} passages")
        found = compressed(
            arrays["Q"],
            arrays["K"],
            **vars(options),
            **asked,
            commute=arguments.commute,
            dtype=arguments.dtype,
            curve_dims=(),
            rng=arguments.seed,
        )
        files.write(arguments.output, lambda path: _save_maps(found, path))
    return _reported(arguments, found)


def _save_maps(found: Compressed, path: Path) -> None:
    if path.suffix == ".safetensors":
        found.save(path)
    else:
        save_arrays(path, found.tensors())
