"""`headfit bounds`: how small a head of a pattern can be at least, with a proof."""

from __future__ import annotations

from typing import Any

from headfit import bounds
from headfit._base.tolerances import Tolerances
from headfit._cli import text
from headfit._cli.arguments import Commands, add_mask, add_target, command, tolerances
from headfit._cli.commands import asked_tolerances
from headfit._cli.shared import add_running, add_seed
from headfit._lower.lower import SECONDS
from headfit._target.target import Target
from headfit.errors import HeadfitError


def add_bounds(parent: Commands) -> None:
    """Add `headfit bounds`."""
    parser = command(
        parent,
        "bounds",
        bound,
        "prove a lower bound on the head size of a pattern",
        "  headfit bounds A.npz\n"
        "  headfit bounds A.npz --leak 0.05 --max-norm 10\n"
        "  headfit bounds A.npz --mask causal --max-logit 20 --json\n",
    )
    add_target(parser)
    tolerances(parser, Tolerances())
    parser.add_argument(
        "--max-norm", type=float, metavar="N", help="bound of scale max |q| max |k| (default: none)"
    )
    parser.add_argument(
        "--masked-logits", action="store_true",
        help="--max-logit bounds the logits of masked pairs too, as no certificate does",
    )  # fmt: skip
    add_mask(parser)
    parser.add_argument(
        "--time-limit", type=float, default=SECONDS, metavar="S",
        help="seconds for the searches (default: %(default)g)",
    )  # fmt: skip
    add_seed(parser)
    add_running(parser, threads=False)


def bound(arguments: Any) -> int:
    """Run `headfit bounds`."""
    asked = asked_tolerances(arguments, Tolerances())
    path = arguments.streams.path(arguments.target)
    target = Target(path, mask=arguments.mask, normalize=arguments.normalize)
    with text.progress(arguments.progress) as say:
        say(f"lower bounds for n = {target.n}")
        found = bounds.lower(
            target,
            tolerances=asked,
            max_norm=arguments.max_norm,
            masked_logits=arguments.masked_logits,
            time_limit=arguments.time_limit,
            rng=arguments.seed,
        )
        say("checking the witness")
        is_valid = found.verify(target)
    if not is_valid:
        raise HeadfitError("the witness does not prove the bound: this is a defect of headfit")
    if arguments.json:
        text.emit({"file": str(arguments.target), "n": target.n, **found.to_dict()})
    else:
        print(f"{arguments.target}: {found.in_words()}")
        for name, size, argument in found.tried():
            print(f"  {name}: {size}; {argument}")
    return 0
