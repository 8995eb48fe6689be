"""`headfit pattern` and `headfit plan`: the functions of `headfit.patterns`, by their names."""

import argparse
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headfit as hf
from headfit._base.files import load_array, opened
from headfit._base.sparse import load_matrix
from headfit._cli.command import (
    Call,
    Command,
    Option,
    Outcome,
    command,
    examples,
    option,
    options_of,
    outcome,
    pair,
)
from headfit._cli.files import MATRIX, PLOT, draw, save_matrix
from headfit._cli.fitting import TOLERANCES
from headfit._cli.streams import DASH
from headfit._fit.registry import METHODS
from headfit.errors import InputError

KINDS = sorted(hf.patterns.__all__)

# The parameters of patterns that are read from files.
_FILES = {
    "graph": [option("graph", type=Path, help="adjacency matrix: .npz of save_npz, or .mtx")],
    "mask": [option("mask", type=Path, help="what may be attended to: .npy of booleans, of "
                    "integers 0 and 1, or of floats 0 and -inf; .npz of save_npz")],
    "points": [option("points", type=Path, help=".npy, shape (n, dimensions)")],
    "tokens": [
        option("tokens", type=Path, metavar="FILE", help="a text file, or -"),
        option("--by", choices=("word", "character"), help="what a token is (default: word)"),
    ],
}  # fmt: skip


def options_of_kind(kind: str) -> list[Option]:
    """Return the options of a pattern's function; files take the place of arrays."""
    made = options_of(
        getattr(hf.patterns, kind),
        gamma={"help": "largest ratio of two weights in a row (default: 1)"},
        weights={"help": "what weights are (default: random where gamma is above 1, or uniform)"},
    )
    return [
        each for o in made for each in (_FILES.get(o.name, [o]) if o.words == (o.name,) else [o])
    ]


def _read_files(call: Call) -> None:
    """Put what the files hold in the place of their names."""
    for name in call.keys() & _FILES.keys():
        path = call[name]
        if name == "tokens":
            call[name] = _tokens(path, call.pop("by", "word"))
        elif name == "points" or (name == "mask" and path.suffix == ".npy"):
            call[name] = load_array(path, ".npy file", name)
        else:
            call[name] = load_matrix(path)


def _tokens(path: Path, by: str) -> list[str]:
    with opened(path, "tokens", "is no text") as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"tokens: {path} is no UTF-8 text: {error}") from error
    return text.split() if by == "word" else list(text)


def _make(kind: str, call: Call) -> Outcome:
    """Write a pattern to a file."""
    file = call.pop("output")
    call.say(f"making {kind}")
    _read_files(call)
    A = getattr(hf.patterns, kind)(**call)
    target = hf.Target(A)
    call.files.write(file, functools.partial(save_matrix, A))
    return outcome(file, target, kind=kind, seed=call.get("rng", 0))


class _Kinds:
    """The commands of `headfit pattern`, one for each public function of `headfit.patterns`.

    headfit pattern random_regular 512 4 --gamma 2 --seed 3 -o A.npz
    headfit pattern knn points.npy 8 --weights gaussian --gamma 4 -o A.npz
    headfit pattern knn --help
    """

    def fill(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = examples(self)
        kinds = parser.add_subparsers(metavar="KIND", required=True)
        for kind in KINDS:
            about = str(inspect.getdoc(getattr(hf.patterns, kind))).split("\n")[0].replace("`", "")
            one = kinds.add_parser(kind, help=about, description=about)
            Command(functools.partial(_make, kind), (*options_of_kind(kind), MATRIX)).fill(one)
            one.epilog = None


pattern = _Kinds()


def function_of_n(kind: str, chosen: dict[str, Any], rng: int) -> Callable[[int], Any]:
    """Return a kind of pattern with these arguments as a function of n."""
    function = getattr(hf.patterns, kind)
    known = inspect.signature(function)
    first, *others = known.parameters
    if first != "n":
        raise InputError(
            f"pattern must be a function of n; {kind} is not: write it with headfit pattern, and "
            "name the file"
        )
    try:
        known.bind(0, **chosen, rng=rng)
    except TypeError as error:
        names = ", ".join(name for name in others if name != "rng")
        raise InputError(f"--arg must name arguments of {kind}: {names}; {error}") from error
    return functools.partial(function, **chosen, rng=rng)


@command(
    option("pattern", metavar="PATTERN", help="a kind of headfit pattern, or a target: .npz of "
           "scipy.sparse.save_npz, or .mtx, or -"),
    option("--arg", type=pair, action="append", metavar="NAME=VALUE", help="an argument of "
           "the kind, as in neighbors=64 or offsets=-1,2; may be repeated"),
    options_of(
        hf.plan, "n dim dtype method mask kernel time_limit rng num_threads",
        n={"help": "tokens; a file has its own"},
        method={"choices": METHODS, "help": "how queries and keys are found (default: auto)"},
    ),
    TOLERANCES,
    PLOT,
)  # fmt: skip
def plan(call: Call) -> Outcome:
    """Say whether a head of a size and format is enough for a pattern, in a minute at most.

    headfit plan causal_band --n 16384 --arg neighbors=64 --mask causal
    headfit plan bigbird --n 4096 --arg neighbors=8 --arg n_global=2 --arg n_random=3
    headfit plan A.npz --dim 16 --dtype float32 --plot plan.png
    """
    name, pairs, picture = call.pop("pattern"), call.pop("arg", ()), call.pop("plot", None)
    if name in KINDS:
        planned: Any = function_of_n(name, dict(pairs), call.get("rng", 0))
    elif pairs:
        raise InputError(f"--arg must go with a kind of pattern; {name} names a file")
    elif not Path(name).suffix and Path(name) != DASH:
        kinds = ", ".join(KINDS)
        raise InputError(f"pattern must be a file, .npz or .mtx, or one of {kinds}; got {name!r}")
    else:
        planned = call.files.path(Path(name))
    answer = hf.plan(planned, progress=call.say, **call)
    text = f"{answer}{draw(call, picture, hf.plot.plan, answer)}"
    return Outcome({**answer.to_dict(), "picture": picture}, text, answer.verdict == "yes")
