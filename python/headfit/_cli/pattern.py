"""`headfit pattern` and `headfit plan`: the functions of `headfit.patterns`, by their names."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import scipy.io
import scipy.sparse as sp

from headfit import patterns
from headfit._base.files import replace_file
from headfit._base.sparse import load_matrix
from headfit._base.stored_arrays import load_array
from headfit._cli.command import Call, Command, Outcome, command, output
from headfit._cli.fitting import TOLERANCES
from headfit._cli.options import Option, option, options_of, pair
from headfit._cli.picture import FORMATS, save_drawing
from headfit._cli.reading import read_text
from headfit._cli.streams import DASH, shown
from headfit._fit import fit as fitting
from headfit._fit.registry import METHODS
from headfit._plan import plan as planning
from headfit._target.target import Target
from headfit.errors import InputError

KINDS = sorted(patterns.__all__)

# The parameters of patterns that are read from files.
_FILES = {
    "graph": [option("graph", type=Path, help="adjacency matrix: .npz of save_npz, or .mtx")],
    "mask": [option("mask", type=Path, help="what may be attended to: .npy of booleans, of "
                    "integers 0 and 1, or of floats 0 and -inf; .npz of save_npz")],
    "points": [option("points", type=Path, help=".npy, shape (n, dimensions)")],
    "tokens": [
        option("tokens", type=Path, nargs="?", default=None, metavar="FILE", help="a text file"),
        option("--text", help="the text itself, in place of a file"),
        option("--by", choices=("word", "character"), help="what a token is (default: word)"),
    ],
}  # fmt: skip


def options_of_kind(kind: str) -> list[Option]:
    """Return the options of a pattern's function; files take the place of arrays."""
    made = options_of(
        getattr(patterns, kind),
        gamma={"help": "largest ratio of two weights in a row (default: 1)"},
        weights={"help": "what weights are (default: random where gamma is above 1, or uniform)"},
    )
    return [
        each for o in made for each in (_FILES.get(o.name, [o]) if o.words == (o.name,) else [o])
    ]


def _read_files(call: Call) -> None:
    """Put what the files hold in the place of their names."""
    for name in call.keys() & {"graph", "mask", "points"}:
        path = call.files.path(call[name])
        is_array = name == "points" or (name == "mask" and path.suffix == ".npy")
        call[name] = load_array(path, ".npy file", name) if is_array else load_matrix(path)


def _read_tokens(call: Call) -> list[str]:
    if ("tokens" in call) == ("text" in call):
        raise InputError("induction takes a text file or --text, one of them")
    path = call.pop("tokens", None)
    text: str = call.pop("text") if path is None else read_text(call.files.path(path))
    return text.split() if call.pop("by", "word") == "word" else list(text)


def _make(kind: str, call: Call) -> Outcome:
    """Write a pattern to a file."""
    file = call.pop("output")
    call.say(f"making {kind}")
    _read_files(call)
    if kind == "induction":
        call["tokens"] = _read_tokens(call)
    A = getattr(patterns, kind)(**call)
    target = Target(A)
    call.files.write(file, functools.partial(_save, A))
    figures = {"kind": kind, "seed": call.get("rng", 0), "file": file, **target.to_dict()}
    return Outcome(figures, f"{file}: {kind}, {target}")


def _save(A: Any, path: Path) -> None:
    write = scipy.io.mmwrite if path.suffix == ".mtx" else sp.save_npz
    replace_file(path, lambda file: write(file, A))


class _Kinds:
    """The commands of `headfit pattern`, one for each public function of `headfit.patterns`."""

    def fill(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = (
            "examples:\n  headfit pattern random_regular 512 4 --gamma 2 --seed 3 -o A.npz\n"
            "  headfit pattern knn points.npy 8 --weights gaussian --gamma 4 -o A.npz\n"
            "  headfit pattern knn --help\n"
        )
        kinds = parser.add_subparsers(metavar="KIND", required=True)
        file = output("-o", "--output", suffixes=(".npz", ".mtx"), required=True, metavar="A",
                      help="the file, .npz or .mtx, or -")  # fmt: skip
        for kind in KINDS:
            about = (inspect.getdoc(getattr(patterns, kind)) or "").split("\n")[0].replace("`", "")
            one = Command(functools.partial(_make, kind), (*options_of_kind(kind), file))
            one.fill(kinds.add_parser(kind, help=about, description=about))


pattern = _Kinds()


def function_of_n(kind: str, pairs: Iterable[tuple[str, str]], rng: int) -> Callable[[int], Any]:
    """Return a kind of pattern as a function of n, its other arguments given as texts.

    A text is a number, true or false, numbers separated by commas, or a word.
    """
    function = getattr(patterns, kind)
    known = dict(inspect.signature(function).parameters)
    if next(iter(known)) != "n":
        raise InputError(
            f"pattern must be a function of n; {kind} is not: write it with headfit pattern, and "
            "name the file"
        )
    del known["n"], known["rng"]
    chosen = {name: _value(text) for name, text in pairs}
    for name in chosen:
        if name not in known:
            names = ", ".join(known)
            raise InputError(f"--arg must name an argument of {kind}: {names}; got {name}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in chosen:
            raise InputError(f"--arg {name}=... must be given: {kind} needs it")
    return functools.partial(function, **chosen, rng=rng)


def _value(text: str) -> Any:
    try:
        values = json.loads(f"[{text}]")
    except ValueError:
        return text
    return values[0] if len(values) == 1 else values


@command(
    option("pattern", metavar="PATTERN", help="a kind of headfit pattern, or a target: .npz of "
           "scipy.sparse.save_npz, or .mtx, or -"),
    option("--arg", type=pair, action="append", metavar="NAME=VALUE", help="an argument of "
           "the kind, as in neighbors=64 or offsets=-1,2; may be repeated"),
    options_of(
        planning.plan, "n dim dtype method mask kernel time_limit rng num_threads",
        (fitting.fit,), n={"help": "tokens; a file has its own"}, method={"choices": METHODS},
    ),
    TOLERANCES,
    output("--plot", suffixes=FORMATS, metavar="FILE", help="draw it: .png, .pdf or .svg"),
    examples="""
        headfit plan causal_band --n 16384 --arg neighbors=64 --mask causal
        headfit plan bigbird --n 4096 --arg neighbors=8 --arg n_global=2 --arg n_random=3
        headfit plan A.npz --dim 16 --dtype float32 --plot plan.png
    """,
)  # fmt: skip
def plan(call: Call) -> Outcome:
    picture = call.pop("plot", None)
    answer = planning.plan(_planned(call), progress=call.say, **call)
    text = str(answer)
    if picture is not None:
        call.files.write(picture, lambda path: save_drawing("plan", answer, path=path))
        text += f"\n\npicture: {shown(picture)}"
    return Outcome({**answer.to_dict(), "picture": picture}, text, answer.verdict == "yes")


def _planned(call: Call) -> Any:
    """Return the pattern that was named: a function of n, or the path of a file."""
    name, pairs = call.pop("pattern"), call.pop("arg", ())
    if name in KINDS:
        return function_of_n(name, pairs, call.get("rng", 0))
    path = Path(name)
    if pairs:
        raise InputError(f"--arg must go with a kind of pattern; {path} is none: it names a file")
    if not path.suffix and path != DASH:
        kinds = ", ".join(KINDS)
        raise InputError(f"pattern must be a file, .npz or .mtx, or one of {kinds}; got {name!r}")
    return call.files.path(path)
