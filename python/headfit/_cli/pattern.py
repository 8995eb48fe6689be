"""`headfit pattern` and `headfit plan`: the functions of `headfit.patterns`, by their names."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.io
import scipy.sparse as sp

from headfit import patterns
from headfit._base.files import replace_file
from headfit._base.sparse import load_matrix
from headfit._base.stored_arrays import load_array
from headfit._cli import values
from headfit._cli.command import Call, Command, Outcome, command, output
from headfit._cli.fitting import TOLERANCES
from headfit._cli.options import Option, option, options_of
from headfit._cli.picture import FORMATS, save_drawing
from headfit._cli.reading import read_text
from headfit._cli.streams import DASH, shown
from headfit._fit import fit as fitting
from headfit._fit.registry import METHODS
from headfit._plan import plan as planning
from headfit._target.target import Target
from headfit.errors import InputError

MATRICES = (".npz", ".mtx")

# The parameters of patterns that are read from files, and the options that take their place.
_TOKENS = (
    option("tokens", type=Path, nargs="?", default=None, metavar="FILE", help="a text file"),
    option("--text", help="the text itself, in place of a file"),
    option("--by", choices=("word", "character"), help="what a token is (default: word)"),
)
_FILES: dict[str, tuple[Option, ...]] = {
    "graph": (option("graph", type=Path, help="adjacency matrix: .npz of save_npz, or .mtx"),),
    "mask": (option("mask", type=Path, help="what may be attended to: .npy of booleans, of "
                    "integers 0 and 1, or of floats 0 and -inf; .npz of save_npz"),),
    "points": (option("points", type=Path, help=".npy, shape (n, dimensions)"),),
    "tokens": _TOKENS,
}  # fmt: skip


def options_of_kind(kind: str) -> list[Option]:
    """Return the options of a pattern's function; files take the place of arrays."""
    made = options_of(
        getattr(patterns, kind),
        gamma={"help": "largest ratio of two weights in a row (default: 1)"},
    )
    return [each for o in made for each in (_FILES.get(o.name, (o,)) if o.is_required else (o,))]


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
    if kind == "induction":
        call["tokens"] = _read_tokens(call)
    else:
        _read_files(call)
    seed = call.get("rng", 0)
    A = getattr(patterns, kind)(**call)
    target = Target(A)
    call.files.write(file, functools.partial(_save, A))
    figures = {"kind": kind, "seed": seed, "file": file, **target.to_dict()}
    return Outcome(figures, f"{file}: {kind}, {target}")


def _save(A: Any, path: Path) -> None:
    write = scipy.io.mmwrite if path.suffix == ".mtx" else sp.save_npz
    replace_file(path, lambda file: write(file, A))


@dataclass(frozen=True)
class Kinds:
    """The commands of `headfit pattern`, one for each public function of `headfit.patterns`."""

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add a command for each kind."""
        parser.epilog = (
            "examples:\n  headfit pattern random_regular 512 4 --gamma 2 --seed 3 -o A.npz\n"
            "  headfit pattern knn points.npy 8 --weights gaussian --gamma 4 -o A.npz\n"
            "  headfit pattern knn --help\n"
        )
        kinds = parser.add_subparsers(metavar="KIND", required=True)
        for kind in sorted(patterns.__all__):
            about = (inspect.getdoc(getattr(patterns, kind)) or "").split("\n")[0].replace("`", "")
            self.of(kind).fill(kinds.add_parser(kind, help=about, description=about))

    def of(self, kind: str) -> Command:
        """Return the command of a kind."""
        file = output("-o", "--output", suffixes=MATRICES, required=True, metavar="A",
                      help="the file, .npz or .mtx, or -")  # fmt: skip
        options = (*options_of_kind(kind), file)
        return Command(functools.partial(_make, kind), options)


pattern = Kinds()


def function_of_n(kind: str, pairs: Iterable[tuple[str, str]], rng: int) -> Callable[[int], Any]:
    """Return a kind of pattern as a function of n, its other arguments given as texts.

    Parameters
    ----------
    kind : str
        The name of a function of `headfit.patterns`.
    pairs : iterable of (str, str)
        Names of the function's parameters, and values as `headfit pattern` reads them: lists
        are separated by commas, flags are true or false.
    rng : int
        The seed of all that is random.

    Raises
    ------
    InputError
        For a kind that is no function of n, a name that it does not have, a bad value, and a
        value that is missing.
    """
    function = getattr(patterns, kind)
    if next(iter(inspect.signature(function).parameters)) != "n":
        raise InputError(
            f"pattern must be a function of n; {kind} is not: write it with headfit pattern, and "
            "name the file"
        )
    known = {o.name: o for o in options_of(function) if o.name not in ("n", "rng")}
    chosen = {}
    for name, text in pairs:
        if name not in known:
            raise InputError(
                f"--arg must name an argument of {kind}: {', '.join(known)}; got {name}"
            )
        chosen[name] = known[name].value_of(text)
    for name, each in known.items():
        if each.is_required and name not in chosen:
            raise InputError(f"--arg {name}=... must be given: {kind} needs it")
    return functools.partial(function, **chosen, rng=rng)


@command(
    option("pattern", metavar="PATTERN", help="a kind of headfit pattern, or a target: .npz of "
           "scipy.sparse.save_npz, or .mtx, or -"),
    option("--arg", type=values.pair, action="append", metavar="NAME=VALUE", help="an argument of "
           "the kind, as in neighbors=64 or offsets=-1,2; may be repeated"),
    options_of(
        planning.plan, "n dim dtype method mask kernel time_limit rng num_threads",
        (fitting.fit,), method={"choices": METHODS},
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
    """Say whether a head of a size and format is enough for a pattern."""
    picture = call.pop("plot", None)
    found = planning.plan(_planned(call), progress=call.say, **call)
    text = str(found)
    if picture is not None:
        call.files.write(picture, lambda path: save_drawing("plan", found, path=path))
        text += f"\n\npicture: {shown(picture)}"
    return Outcome({**found.to_dict(), "picture": picture}, text, found.verdict == "yes")


def _planned(call: Call) -> Any:
    """Return the pattern that was named: a function of n, or the path of a file."""
    name, pairs = call.pop("pattern"), call.pop("arg", ())
    if name in patterns.__all__:
        return function_of_n(name, pairs, call.get("rng", 0))
    path = Path(name)
    if pairs:
        raise InputError(f"--arg must go with a kind of pattern; {path} is none: it names a file")
    if not path.suffix and path != DASH:
        kinds = ", ".join(sorted(patterns.__all__))
        raise InputError(f"pattern must be a file, .npz or .mtx, or one of {kinds}; got {name!r}")
    return call.files.path(path)
