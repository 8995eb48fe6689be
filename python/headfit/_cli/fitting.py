"""`headfit fit`, `certify`, `bounds`, `info`, `pattern` and `plan`: targets and heads for them.

The patterns are the functions of `headfit.patterns`, by their names.
"""

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headfit as hf
from headfit._base.files import FORMATS, load_array, read_file
from headfit._base.sparse import checked_csr, read_matrix
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
from headfit._cli.files import MATRIX, NORMALIZE, PLOT, TARGET, draw, read, read_target, save_matrix
from headfit._cli.streams import DASH
from headfit._fit.registry import METHODS
from headfit.errors import HeadfitError, InputError, input_errors

TOLERANCES = options_of(hf.Tolerances)
# The options of single methods that the command line has.
OF_METHODS = [
    *options_of(hf.methods.Learned, "effort reheats stages max_norm"),
    *options_of(hf.methods.MaxMargin, "keys form", keys={"help": "which keys (default: random)"}),
    *options_of(hf.methods.Projection),
]
for each in OF_METHODS:
    owners = [m for m, k in METHODS.items() if each.name in inspect.signature(k).parameters]
    each.settings["help"] += f" [{', '.join(owners)}]"


@command(
    TARGET,
    option("-o", "--output", suffixes=FORMATS, required=True, metavar="HEAD",
           help="the head, .npz or .safetensors, or -"),
    options_of(
        hf.fit, "dim method dtype mask kernel exempt_columns time_limit rng num_threads",
        method={"choices": METHODS},
    ),
    TOLERANCES,
    OF_METHODS,
    option("--module", type=Path, metavar="W",
           help="use this fixed module: .npz with W_Q, W_K and perhaps scale, or a head"),
)  # fmt: skip
def fit(call: Call) -> Outcome:
    """Find a head that produces a pattern.

    headfit fit A.npz --dim 2048 --leak 0.3 --distortion 2 -o head.npz
    headfit fit A.npz --leak 0.3 --distortion 2 -o head.npz  # smallest found
    headfit fit A.mtx --module W.npz --mask causal -o head.npz
    headfit fit A.npz --method max-margin --keys cyclic --dtype float64 -o head.npz
    """
    name, own, file = call.pop("method", "auto"), call.take(OF_METHODS), call.pop("output")
    method: Any = METHODS[name]
    others = own.keys() - inspect.signature(method).parameters.keys()
    call.refuse(others, f"is no option of --method {name}")
    method = method(**own)
    target = read_target(call, call.pop("mask", None))
    if "module" in call:
        known = read(call["module"], "module", "W_Q and W_K", "a saved head")
        call["module"] = (
            hf.SelfAttention(known["W_Q"], known["W_K"], known.get("scale"))
            if isinstance(known, dict)
            else known.module
        )
    call.say(f"fitting n = {target.n}")
    head = hf.fit(target, method=method, **call)
    call.say(f"writing {file}")
    call.files.write(file, head.save)
    text = f"{head.certificate}\n{file}: {head}"
    if head.stopped != "certified":
        text += f"\n{head.stopped}: {head.advice}"
    return Outcome({"file": file, **head.to_dict()}, text, head.certificate.holds)


@command(
    TARGET,
    option("head", metavar="HEAD", type=Path, help="a head that headfit fit wrote, or -"),
    options_of(hf.certify, "num_threads"),
    options_of(hf.certify, "kernel", by_default="as when it was fitted"),
    options_of(hf.Tolerances, by_default="the head's"),
)
def certify(call: Call) -> Outcome:
    """Judge the arrays of a head anew, whatever the file says of them.

    headfit certify A.npz head.npz
    headfit certify A.npz head.npz --leak 0.2 --distortion 1 --json
    """
    head = read(call.pop("head"), "head", "a saved head")
    target = read_target(call, head.mask)
    call.say(f"certifying {target.n} x {target.n} entries")
    tolerances = dataclasses.replace(head.tolerances, **call.take(TOLERANCES))
    kernel = call.pop("kernel", head.certificate.kernel)
    certificate = hf.certify(target, head.attention, tolerances=tolerances, kernel=kernel, **call)
    return Outcome({"dim": head.dim, **certificate.to_dict()}, str(certificate), certificate.holds)


@command(
    TARGET, TOLERANCES, options_of(hf.bounds.lower, "max_norm masked_logits mask time_limit rng")
)
def bounds(call: Call) -> Outcome:
    """Prove a lower bound on the head size of a pattern.

    headfit bounds A.npz
    headfit bounds A.npz --leak 0.05 --max-norm 10
    headfit bounds A.npz --mask causal --max-logit 20 --json
    """
    file = call["A"]
    target = read_target(call, call.pop("mask", None))
    call.say(f"lower bounds for n = {target.n}")
    bound = hf.bounds.lower(target, **call)
    call.say("checking the witness")
    if not bound.verify(target):
        raise HeadfitError("the witness does not prove the bound: this is a defect of headfit")
    tried = (f"\n  {name}: {size}; {argument}" for name, size, argument in bound.tried())
    figures = {"file": file, "n": target.n, **bound.to_dict()}
    return Outcome(figures, f"{file}: {bound.in_words()}{''.join(tried)}")


@command(
    option("file", metavar="FILE", type=Path, nargs="?", default=None,
           help="a target or a head (default: this installation, as a report of a defect needs)"),
    NORMALIZE,
)  # fmt: skip
def info(call: Call) -> Outcome:
    """Say what a target or a head is, or what this installation is.

    headfit info A.npz
    headfit info head.npz --json
    headfit info  # versions, CPU, compiler and threads
    """
    if "file" not in call:
        call.refuse(call, "needs the file of a target")
        config = hf.show_config()
        return Outcome(vars(config), str(config))
    file = call.pop("file")
    known = read(file, "file", "a target", *(() if call else ("a saved head",)), **call)
    if isinstance(known, hf.Target):
        proved = hf.bounds.projection_dim(known.n, known.per_row, known.gamma)
        more = f"\nsize proved to suffice for {hf.Tolerances()}: {proved}"
        return outcome(file, known, more=more, kind="target", proved_dim=proved)
    more = f"\nmodule: {known.module}\nas recorded, not judged anew: {known.certificate}"
    return outcome(file, known, more=more, kind="head")


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
    return [x for o in made for x in (_FILES.get(o.name, [o]) if o.words == (o.name,) else [o])]


def _read_files(call: Call) -> None:
    """Put what the files hold in the place of their names."""
    for name in call.keys() & _FILES.keys():
        path = call[name]
        if name == "tokens":
            text = read_file(lambda file: file.read().decode(), path, name, "is no text in UTF-8")
            by_word = call.pop("by", "word") == "word"
            call[name] = text.split() if by_word else list(text.removesuffix("\n"))
        elif name == "points" or (name == "mask" and path.suffix == ".npy"):
            call[name] = load_array(path, name)
        else:
            call[name] = checked_csr(read_matrix(path, name), f"{name}: the matrix in {path}")


def _make(kind: str, call: Call) -> Outcome:
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
    names = ", ".join(name for name in others if name != "rng")
    with input_errors(f"--arg must name arguments of {kind} ({names})", TypeError):
        known.bind(0, **chosen, rng=rng)
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
    if len(arguments := dict(pairs)) < len(pairs):
        raise InputError("--arg must name each argument of the pattern once")
    if name in KINDS:
        planned: Any = function_of_n(name, arguments, call.get("rng", 0))
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
