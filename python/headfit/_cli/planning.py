"""`headfit plan`: is a head of this size and format enough for a pattern?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headfit._base.tolerances import Tolerances
from headfit._cli import text
from headfit._cli.arguments import (
    Commands,
    add_mask,
    add_method,
    command,
    formats,
    tolerances,
)
from headfit._cli.commands import asked_tolerances
from headfit._cli.kinds import KINDS, function_of_n
from headfit._cli.picture import FORMATS, save_drawing
from headfit._cli.shared import add_output, add_running, add_seed
from headfit._cli.streams import DASH, shown
from headfit._plan.attempt import SECONDS
from headfit._plan.plan import plan as find
from headfit.errors import InputError


def add_plan(parent: Commands) -> None:
    """Add `headfit plan`."""
    parser = command(
        parent,
        "plan",
        plan,
        "say whether a head of a size and format is enough for a pattern, in a minute at most",
        "  headfit plan causal_band --n 16384 --arg neighbors=64 --mask causal\n"
        "  headfit plan bigbird --n 4096 --arg neighbors=8 --arg n_global=2 --arg n_random=3\n"
        "  headfit plan A.npz --dim 16 --dtype float32 --plot plan.png\n",
    )
    parser.add_argument(
        "pattern", metavar="PATTERN",
        help="a kind of headfit pattern, or a target: .npz of scipy.sparse.save_npz, or .mtx, or -",
    )  # fmt: skip
    parser.add_argument("--n", type=int, metavar="N", help="tokens; a file has its own")
    parser.add_argument(
        "--arg", type=pair, action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the kind, as in neighbors=64 or offsets=-1,2; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--dim", type=int, default=64, metavar="D", help="head size (default: %(default)s)"
    )
    formats(parser, "bfloat16")
    tolerances(parser, Tolerances())
    add_method(parser)
    add_mask(parser)
    parser.add_argument(
        "--time-limit", type=float, default=SECONDS, metavar="S",
        help="seconds that it may take (default: %(default)g)",
    )  # fmt: skip
    add_output(
        parser, "--plot", suffixes=FORMATS, metavar="FILE", help="draw it: .png, .pdf or .svg"
    )
    add_seed(parser)
    add_running(parser)


def pair(given: str) -> tuple[str, str]:
    """Return the two sides of NAME=VALUE."""
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE as in neighbors=64, got {given!r}")
    return name, value


def plan(arguments: Any) -> int:
    """Run `headfit plan`."""
    pattern = _pattern(arguments)
    with text.progress(arguments.progress) as say:
        found = find(
            pattern,
            arguments.n,
            arguments.dim,
            arguments.dtype,
            method=arguments.method,
            tolerances=asked_tolerances(arguments, Tolerances()),
            mask=arguments.mask,
            kernel=arguments.kernel,
            time_limit=arguments.time_limit,
            progress=say,
            rng=arguments.seed,
            num_threads=arguments.num_threads,
        )
        picture = arguments.plot
        if picture is not None:
            arguments.streams.write(picture, lambda path: save_drawing("plan", found, path=path))
    if arguments.json:
        text.emit({**found.to_dict(), "picture": None if picture is None else str(picture)})
    else:
        print(found)
        if picture is not None:
            print(f"\npicture: {shown(picture)}")
    return 0 if found.verdict == "yes" else 1


def _pattern(arguments: Any) -> Any:
    """Return the pattern that was named: a function of n, or the path of a file."""
    if arguments.pattern in KINDS:
        return function_of_n(arguments.pattern, arguments.arg, arguments.seed)
    path = Path(arguments.pattern)
    if arguments.arg:
        raise InputError(f"--arg must go with a kind of pattern; {path} is none: it names a file")
    if not path.suffix and path != DASH:
        raise InputError(
            f"pattern must be a file, .npz or .mtx, or one of {', '.join(KINDS)}; "
            f"got {arguments.pattern!r}"
        )
    return arguments.streams.path(path)
