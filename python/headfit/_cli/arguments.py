"""The arguments of each command, with examples in their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from headfit._base.dtypes import HEAD_DTYPES
from headfit._base.kernel import NAMES, Kernel, as_kernel
from headfit._base.tolerances import Tolerances
from headfit._cli import commands
from headfit._cli.picture import FORMATS as PICTURES
from headfit._cli.shared import add_output, add_running, add_seed
from headfit._fit.file_formats import FORMATS
from headfit._fit.max_margin import FORMS, KEYS
from headfit._fit.projection import FACTORS, SKETCHES
from headfit._fit.registry import METHODS
from headfit.errors import InputError

Commands = Any  # argparse's action of sub-parsers is private


class Parser(argparse.ArgumentParser):
    """A parser whose error messages are one line, and whose examples keep their line breaks."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Name the problem on one line of stderr and exit with status 2."""
        line = " ".join(message.split())
        self.exit(2, f"{self.prog}: {line} (see {self.prog} --help)\n")


def command(
    parent: Commands,
    name: str,
    run: Callable[[Any], int],
    about: str,
    examples: str,
    *,
    json: bool = True,
) -> Parser:
    """Add a command with its help, its examples and --json."""
    parser: Parser = parent.add_parser(
        name, help=about, description=about, epilog="examples:\n" + examples
    )
    parser.set_defaults(run=run)
    if json:
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object, and nothing else"
        )
    return parser


def mask(text: str) -> Any:
    """Return the mask that `causal`, `window:W` or `window:LEFT,RIGHT` stands for."""
    kind, colon, width = text.partition(":")
    if text == "causal":
        return "causal"
    try:
        numbers = [int(part) for part in width.split(",")]
    except ValueError:
        numbers = []
    if kind != "window" or not colon or len(numbers) not in (1, 2) or min(numbers) < 0:
        raise argparse.ArgumentTypeError(
            f"expected causal, window:W or window:LEFT,RIGHT, got {text!r}"
        )
    return ("window", numbers[0] if len(numbers) == 1 else tuple(numbers))


def add_mask(parser: Parser) -> None:
    """Add the mask."""
    parser.add_argument("--mask", type=mask, help="causal, window:W or window:LEFT,RIGHT")


def columns(text: str) -> str | list[int]:
    """Return `auto`, or the column numbers in a list separated by commas."""
    if text == "auto":
        return text
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"expected auto or numbers as in 0,1,7, got {text!r}")
    return [int(number) for number in numbers]


def add_target(parser: Parser) -> None:
    """Add the target."""
    parser.add_argument(
        "target", metavar="A", type=Path,
        help="the target: .npz of scipy.sparse.save_npz, or .mtx; - for standard input",
    )  # fmt: skip
    parser.add_argument(
        "--normalize", action="store_true", help="scale the rows of the target to sum to 1"
    )


def tolerances(parser: Parser, default: Tolerances | None) -> None:
    """Add the tolerances; None stands for those of a head."""
    leak, distortion, max_logit = (
        ("the head's",) * 3 if default is None else (default.leak, default.distortion, "none")
    )
    parser.add_argument(
        "--leak", type=float, metavar="E",
        help=f"largest weight off the pattern / smallest on it (default: {leak})",
    )  # fmt: skip
    parser.add_argument(
        "--distortion", type=float, metavar="E",
        help=f"largest error of ratios on the pattern (default: {distortion})",
    )  # fmt: skip
    parser.add_argument(
        "--max-logit",
        type=float,
        metavar="L",
        help=f"bound of every |logit| (default: {max_logit})",
    )


def add_method(parser: Parser) -> None:
    """Add the name of the method."""
    parser.add_argument("--method", choices=METHODS, default="auto", help="default: %(default)s")


def formats(parser: Parser, usual: str) -> None:
    """Add the format of Q and K, and the kernel."""
    said = f"default: what the kernel reads, or {usual}"
    parser.add_argument("--dtype", choices=HEAD_DTYPES, help=said)
    add_kernel(parser, "float32 for dtypes of 8 and 16 bits, else exact")


def add_kernel(parser: Parser, default: str) -> None:
    """Add the kernel that a certificate is about."""
    parser.add_argument(
        "--kernel", type=kernel, metavar="NAME",
        help=f"what the certificate is about: {', '.join(NAMES)}; or options of hf.Kernel as in "
        f"accumulate=float32,logits=bfloat16 (default: {default})",
    )  # fmt: skip


def kernel(given: str) -> Kernel:
    """Return the kernel of a name, or of options of `Kernel` as NAME=VALUE,NAME=VALUE."""
    pairs = dict(pair.partition("=")[::2] for pair in given.split(","))
    options = {name: value == "True" if value in ("True", "False") else value
               for name, value in pairs.items()}  # fmt: skip
    try:
        return as_kernel(options if "=" in given else given)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_demo(parent: Commands) -> None:
    """Add `headfit demo`."""
    parser = command(
        parent,
        "demo",
        commands.demo,
        "one fixed module attends in five patterns, each certified",
        "  headfit demo\n  headfit demo --out demo.pdf\n  headfit demo --no-picture --json\n",
    )
    add_output(
        parser, "--out", suffixes=PICTURES, metavar="PNG",
        help="where the picture goes; .pdf and .svg too (default: headfit-demo.png)",
    )  # fmt: skip
    parser.add_argument("--no-picture", action="store_true", help="draw nothing")
    add_seed(parser)
    add_running(parser)


def add_fit(parent: Commands) -> None:
    """Add `headfit fit`."""
    parser = command(
        parent,
        "fit",
        commands.fit,
        "find a head that produces a pattern",
        "  headfit fit A.npz --dim 2048 --leak 0.3 --distortion 2 -o head.npz\n"
        "  headfit fit A.npz --leak 0.3 --distortion 2 -o head.npz  # smallest found\n"
        "  headfit fit A.mtx --module W.npz --mask causal -o head.npz\n"
        "  headfit fit A.npz --method max-margin --keys cyclic --dtype float64 -o head.npz\n",
    )
    add_target(parser)
    add_output(
        parser, "-o", "--output", suffixes=tuple(FORMATS), required=True, metavar="HEAD",
        help="the head, .npz or .safetensors, or -",
    )  # fmt: skip
    parser.add_argument("--dim", type=int, metavar="D", help="head size (default: search)")
    add_method(parser)
    _of_methods(parser)
    tolerances(parser, Tolerances())
    formats(parser, "float32")
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds (default: 60 for a search)"
    )
    parser.add_argument(
        "--exempt-columns", type=columns, metavar="J",
        help="auto, or numbers as in 0,1,7: columns with a coordinate of their own",
    )  # fmt: skip
    parser.add_argument(
        "--module", type=Path, metavar="W",
        help="use this fixed module: .npz with W_Q, W_K and perhaps scale, or a head",
    )  # fmt: skip
    add_mask(parser)
    add_seed(parser)
    add_running(parser)


def _of_methods(parser: Parser) -> None:
    """Add the options of single methods; `commands.fit` refuses those of other methods."""
    own = parser.add_argument_group("options of single methods")
    own.add_argument(
        "--effort", type=effort, metavar="E",
        help="learned: low, medium, high or steps; more reach smaller heads (default: low)",
    )  # fmt: skip
    own.add_argument(
        "--reheats", type=int, metavar="R",
        help="learned: how many may follow a quench; 100 where a size is just missed (default: 6)",
    )  # fmt: skip
    own.add_argument(
        "--stages", type=int, metavar="S",
        help="learned: in how many stages the tolerances are tightened; 4 may help where a small "
        "size is just missed (default: 1)",
    )  # fmt: skip
    own.add_argument(
        "--max-norm", type=float, metavar="N", help="learned, max-margin: bound of max |q| max |k|"
    )
    own.add_argument("--keys", choices=KEYS, help="max-margin: which keys (default: random)")
    own.add_argument("--form", choices=FORMS, help="max-margin (default: tolerance)")
    own.add_argument("--sketch", choices=SKETCHES, help="projection (default: rademacher)")
    own.add_argument("--factor", choices=FACTORS, help="projection (default: identity)")


def add_certify(parent: Commands) -> None:
    """Add `headfit certify`."""
    parser = command(
        parent,
        "certify",
        commands.certify,
        "judge the arrays of a head anew, whatever the file says of them",
        "  headfit certify A.npz head.npz\n"
        "  headfit certify A.npz head.npz --leak 0.2 --distortion 1 --json\n",
    )
    add_target(parser)
    parser.add_argument("head", metavar="HEAD", type=Path, help="a head that headfit fit wrote")
    tolerances(parser, None)
    add_kernel(parser, "as when it was fitted")
    add_running(parser)


def add_info(parent: Commands) -> None:
    """Add `headfit info`."""
    parser = command(
        parent,
        "info",
        commands.info,
        "say what a target or a head is, or what this installation is",
        "  headfit info A.npz\n  headfit info head.npz --json\n  headfit info --system\n",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", metavar="FILE", type=Path, nargs="?", help="a target or a head")
    what.add_argument(
        "--system", action="store_true",
        help="versions, CPU, compiler and threads: what a report of a defect needs",
    )  # fmt: skip
    parser.add_argument(
        "--normalize", action="store_true", help="scale the rows of a target to sum to 1"
    )


def effort(text: str) -> str | int:
    """Return a number of steps, or a word that `Learned` knows."""
    return int(text) if text.isdecimal() else text
