"""`headfit describe`: what heads attend to, from queries and keys or from a saved capture."""

from __future__ import annotations

from typing import Any

from headfit._attention.describe import describe as measure
from headfit._attention.head_table import HeadTable
from headfit._attention.tally_table import TallyTable
from headfit._base.stored_arrays import load_arrays
from headfit._cli import text
from headfit._cli.arguments import Commands, command
from headfit._cli.heads import add_heads, given_options, read_attention
from headfit._cli.shared import add_running, given, option
from headfit.errors import InputError

_MEASURED = ("per_row", "per_column", "share", "num_threads")
"""The options of `headfit.describe`, which a capture has no use for: it has been measured."""


def add_describe(parent: Commands) -> None:
    """Add `headfit describe`."""
    parser = command(
        parent,
        "describe",
        describe,
        "show how sparse heads are, where they attend, and the rank of their logits",
        "  headfit describe heads.npz --mask causal\n"
        "  headfit describe model.npz --json  # what heads.save() of a capture wrote\n",
    )
    add_heads(parser, ".npz with Q and K, a saved head, or what heads.save() wrote")
    parser.add_argument(
        "--per-row", type=int, metavar="K", help="most keys in a row's support (default: 8)"
    )
    parser.add_argument(
        "--per-column",
        type=int,
        metavar="K",
        help="most rows that share a key in a sparse head (default: that of --per-row)",
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="S",
        help="share of a row's mass that its support holds (default: 0.9)",
    )
    add_running(parser)


def describe(arguments: Any) -> int:
    """Run `headfit describe`."""
    table, kind = _table(arguments)
    if arguments.json:
        text.emit({"file": str(arguments.file), "kind": kind, **table.to_dict()})
    else:
        print(table)
    return 0


def _table(arguments: Any) -> tuple[HeadTable | TallyTable, str]:
    path = arguments.streams.path(arguments.file)
    options = given(arguments, *_MEASURED)
    if path.suffix == ".npz" and "layers" in load_arrays(path, "file of heads", "file"):
        table = TallyTable.load(path)
        for name in (*given_options(arguments).given(), *options):
            raise InputError(
                f"{option(name)} must not be given: the heads of a capture have been measured"
            )
        return table, "capture"
    attention = read_attention(arguments, path)
    with text.progress(arguments.progress) as say:
        say(f"measuring {attention}")
        return measure(attention, **options), "heads"
