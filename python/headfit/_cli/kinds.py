"""`headfit pattern`: every kind of `headfit.patterns`, its parameters as arguments."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headfit import patterns
from headfit._cli import commands
from headfit._cli.arguments import Commands, Parser, command
from headfit._cli.shared import add_output, add_seed
from headfit.errors import InputError

Argument = tuple[str, dict[str, Any]]


def _count(name: str, about: str, **more: Any) -> Argument:
    return name, {"type": int, "help": about, **more}


def _flag(name: str, about: str) -> Argument:
    return name, {"action": "store_true", "help": about}


def _choice(name: str, *choices: str) -> Argument:
    return name, {"choices": choices, "default": choices[0], "help": "default: %(default)s"}


_N = _count("n", "tokens")
_BOUNDARY = _choice("--boundary", "clip", "wrap")
_LOOPS = _flag("--self-loops", "tokens attend to themselves as well")
_SIDES = _count("neighbors", "neighbours on each side")
_CAUSAL: Argument = (
    "--causal",
    {
        "action": argparse.BooleanOptionalAction,
        "default": True,
        "help": "attend to earlier tokens only (default), or both ways",
    },
)

# The names are those of the functions' parameters; `pattern` in commands.py passes them on.
KINDS: dict[str, tuple[Argument, ...]] = {
    "band": (_N, _SIDES, _BOUNDARY),
    "bigbird": (
        _N,
        _SIDES,
        _count("n_global", "global tokens"),
        _count("n_random", "random columns per row"),
        _BOUNDARY,
    ),
    "block": (_N, _count("size", "tokens of a block")),
    "butterfly": (_N, _count("--stages", "which stages (default: all)", nargs="+", metavar="S")),
    "causal_band": (_N, _count("neighbors", "earlier tokens that a token attends to")),
    "circulant": (_N, _count("offsets", "one or more, of any sign", nargs="+", metavar="offset")),
    "digits_knn": (),
    "dilated": (_N, _SIDES, _count("dilation", "distance between them"), _BOUNDARY),
    "from_graph": (
        ("graph", {"type": Path, "help": "adjacency matrix: .npz of save_npz, or .mtx"}),
        ("--self-loops", {"action": argparse.BooleanOptionalAction,
                          "help": "give every token one, or remove all (default: as they are)"}),
    ),
    "from_mask": (
        ("mask", {"type": Path, "help": "what may be attended to: .npy of booleans, of integers 0 "
                  "and 1, or of floats 0 and -inf; .npz of save_npz"}),
        _count("--batch", "which batch entry, of several", metavar="B"),
        _count("--head", "which head, of several", metavar="H"),
    ),
    "grid2d": (
        _count("height", "rows of the grid"),
        _count("width", "columns of the grid"),
        _flag("--diagonals", "attend to diagonal neighbours as well"),
        _BOUNDARY,
        _LOOPS,
    ),
    "hypercube": (_N, _LOOPS),
    "induction": (
        ("tokens", {"type": Path, "nargs": "?", "metavar": "FILE", "help": "a text file"}),
        ("--text", {"help": "the text itself, in place of a file"}),
        ("--by", {"choices": ("word", "character"), "default": "word",
                  "help": "what a token is (default: %(default)s)"}),
        _choice("--which", "latest", "all"),
    ),
    "knn": (
        ("points", {"type": Path, "metavar": "POINTS", "help": ".npy, shape (n, dimensions)"}),
        _count("k", "neighbours of each point"),
        _count("--per-column", "most that attend to one point", metavar="K"),
        _choice("--on-short", "raise", "fewer"),
        ("--bandwidth", {"type": float, "metavar": "H", "help": "bandwidth of Gaussian weights"}),
    ),
    "permutation": (_N,),
    "previous_token": (_N, _BOUNDARY),
    "random_regular": (_N, _count("k", "nonzeros of each row and each column")),
    "strided": (
        _N,
        _count("stride", "distance between the far tokens"),
        _count("--neighbors", "earlier tokens beside the far ones (default: stride)", metavar="W"),
        _CAUSAL,
    ),
    "tree": (_N, _count("--arity", "children of a token", default=2), _LOOPS),
    "window_global": (
        _N,
        _count("width", "keys of the window, the token itself included"),
        _count("n_global", "global tokens"),
        _CAUSAL,
        _count("--stride", "distance between far tokens (default: none)", metavar="S"),
    ),
}  # fmt: skip

_ARGUMENTS = {
    "band": "512 2",
    "bigbird": "512 2 1 2 --seed 3",
    "block": "512 8",
    "butterfly": "512 --stages 0 3",
    "causal_band": "512 4",
    "circulant": "512 -1 2 7",
    "digits_knn": "",
    "dilated": "512 2 4 --boundary wrap",
    "from_graph": "graph.mtx --no-self-loops",
    "from_mask": "mask.npy --head 1",
    "grid2d": "20 30 --diagonals",
    "hypercube": "512 --self-loops",
    "induction": '--text "the cat and the dog and the bird"',
    "knn": "points.npy 8 --per-column 16 --weights gaussian --gamma 4",
    "permutation": "512 --seed 3",
    "previous_token": "512",
    "random_regular": "512 4 --gamma 2 --seed 3",
    "strided": "512 16 --neighbors 4",
    "tree": "511 --arity 3",
    "window_global": "512 16 2 --stride 64",
}


def example(kind: str) -> str:
    """Return a command that makes a pattern of this kind."""
    return " ".join(["headfit pattern", kind, *_ARGUMENTS[kind].split(), "-o A.npz"])


def add_pattern(parent: Commands) -> None:
    """Add `headfit pattern KIND`."""
    shown = ("random_regular", "induction", "knn")
    examples = "".join(f"  {example(kind)}\n" for kind in shown)
    parser: Parser = command(
        parent,
        "pattern",
        commands.pattern,
        "write a target pattern to a file",
        examples + "  headfit pattern knn --help\n",
        json=False,
    )
    kinds = parser.add_subparsers(metavar="KIND", dest="kind", required=True)
    for kind, arguments in KINDS.items():
        about = (inspect.getdoc(getattr(patterns, kind)) or "").splitlines()[0].replace("`", "")
        one = command(kinds, kind, commands.pattern, about, f"  {example(kind)}\n")
        one.set_defaults(names=[one.add_argument(name, **about).dest for name, about in arguments])
        _add_weights(one, kind)
        _add_output(one)


def _add_weights(parser: Parser, kind: str) -> list[argparse.Action]:
    weights = ["uniform", "random"] + (["gaussian"] if kind == "knn" else [])
    return [
        parser.add_argument(
            "--weights", choices=weights, help="default: random where gamma > 1, else uniform"
        ),
        parser.add_argument(
            "--gamma",
            type=float,
            default=1.0,
            help="largest ratio of weights in a row (default: 1)",
        ),
    ]


def _add_output(parser: Parser) -> None:
    add_seed(parser)
    add_output(
        parser, "-o", "--output", suffixes=(".npz", ".mtx"), required=True, metavar="A",
        help="the file, .npz or .mtx, or -",
    )  # fmt: skip


def function_of_n(kind: str, pairs: Sequence[tuple[str, str]], rng: int) -> Callable[[int], Any]:
    """Return a kind of pattern as a function of n, its other arguments given as words.

    Parameters
    ----------
    kind : str
        A key of `KINDS`.
    pairs : sequence of (str, str)
        Names of the function's parameters, and values in the words of `headfit pattern`: lists
        are separated by commas, flags are true or false.
    rng : int
        The seed of all that is random.

    Raises
    ------
    InputError
        For a kind that is no function of n, a name that it does not have, a bad value, and a
        value that is missing.
    """
    arguments = KINDS[kind]
    if not arguments or arguments[0] is not _N:
        raise InputError(
            f"pattern must be a function of n; {kind} is not: write it with headfit pattern, and "
            "name the file"
        )
    parser = Parser(prog=f"headfit pattern {kind}", add_help=False)
    actions = [parser.add_argument(name, **about) for name, about in arguments[1:]]
    actions += _add_weights(parser, kind)
    known = {action.dest: action for action in actions}
    given = dict(pairs)
    for name in given:
        if name not in known:
            raise InputError(
                f"--arg must name an argument of {kind}: {', '.join(known)}; got {name}"
            )
    for name, action in known.items():
        if not action.option_strings and name not in given:
            raise InputError(f"--arg {name}=... must be given: {kind} needs it")
    places = [_words(a, given[a.dest]) for a in actions if not a.option_strings]
    options = [_words(a, given[a.dest]) for a in actions if a.option_strings and a.dest in given]
    found = vars(parser.parse_args([word for words in [*places, *options] for word in words]))
    values = {name: found[name] for name in given}
    return functools.partial(getattr(patterns, kind), **values, rng=rng)


def _words(action: argparse.Action, value: str) -> list[str]:
    """Return the words of a command line that give an argument its value."""
    if action.nargs == 0:
        if value not in ("true", "false"):
            raise InputError(f"--arg {action.dest} must be true or false; got {value!r}")
        names = list(action.option_strings)
        if value == "true":
            return names[:1]
        return names[1:]  # a plain flag has no name that turns it off: it is off already
    values = value.split(",") if action.nargs == "+" else [value]
    return [*action.option_strings[:1], *values]
