"""`headfit fit`, `certify`, `bounds` and `info`: a head of a target, and what is proved of it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headfit import bounds as bounds_of
from headfit._base.configuration import show_config
from headfit._base.tolerances import Tolerances
from headfit._cli.command import Call, Outcome, command, output
from headfit._cli.options import Option, flag, option, options_of
from headfit._cli.reading import NORMALIZE, TARGET, read_module, read_target, target_or_head
from headfit._fit import fit as fitting
from headfit._fit.file_formats import FORMATS
from headfit._fit.learned import Learned
from headfit._fit.max_margin import MaxMargin
from headfit._fit.method import Method
from headfit._fit.projection import Projection
from headfit._fit.registry import METHODS
from headfit._fit.result import Fit
from headfit._fit.storage import read_fit
from headfit._target import certify as judging
from headfit.errors import HeadfitError, InputError

TOLERANCES = options_of(Tolerances)
OF_THE_HEAD = [each._replace(settings=dict(each.settings)) for each in TOLERANCES]
for each in OF_THE_HEAD:
    each.settings["help"] = each.settings["help"].split(" (default")[0] + " (default: the head's)"
OWN = {Learned: "effort reheats stages max_norm", MaxMargin: "keys form", Projection: None}
"""The options of single methods that the command line has."""


def _options_of_methods() -> Iterator[Option]:
    """Yield the options of methods; the help of each says whose it is."""
    for kind, names in OWN.items():
        for each in options_of(kind, names, keys={"help": "which keys (default: random)"}):
            owners = [m for m, k in METHODS.items() if each.name in inspect.signature(k).parameters]
            each.settings["help"] += f" [{', '.join(owners)}]"
            yield each


OF_METHODS = tuple(_options_of_methods())


def method_of(call: Call) -> Method:
    """Return the method of the arguments, or refuse an option that it does not have."""
    name = call.pop("method", "auto")
    kind: Any = METHODS[name]
    known = inspect.signature(kind).parameters.keys()
    own = call.take(OF_METHODS)
    for each in OF_METHODS:
        if each.name in own.keys() - known:
            raise InputError(f"{each.words[-1]} is no option of --method {name}")
    method: Method = kind(**own)
    return method


@command(
    TARGET,
    output("-o", "--output", suffixes=tuple(FORMATS), required=True, metavar="HEAD",
           help="the head, .npz or .safetensors, or -"),
    options_of(
        fitting.fit, "dim method dtype mask kernel exempt_columns time_limit rng num_threads",
        method={"choices": METHODS},
    ),
    TOLERANCES,
    OF_METHODS,
    option("--module", type=Path, metavar="W",
           help="use this fixed module: .npz with W_Q, W_K and perhaps scale, or a head"),
    examples="""
        headfit fit A.npz --dim 2048 --leak 0.3 --distortion 2 -o head.npz
        headfit fit A.npz --leak 0.3 --distortion 2 -o head.npz  # smallest found
        headfit fit A.mtx --module W.npz --mask causal -o head.npz
        headfit fit A.npz --method max-margin --keys cyclic --dtype float64 -o head.npz
    """,
)  # fmt: skip
def fit(call: Call) -> Outcome:
    method, file = method_of(call), call.pop("output")
    target = read_target(call, call.pop("mask", None))
    if "module" in call:
        call["module"] = read_module(call.files.path(call["module"]))
    call.say(f"fitting n = {target.n}")
    head = fitting.fit(target, method=method, **call)
    call.say(f"writing {file}")
    call.files.write(file, head.save)
    text = f"{head.certificate}\n{file}: {head}"
    if head.stopped != "certified":
        text += f"\n{head.stopped}: {head.advice}"
    return Outcome({"file": file, **head.to_dict()}, text, head.certificate.holds)


@command(
    TARGET,
    option("head", metavar="HEAD", type=Path, help="a head that headfit fit wrote"),
    options_of(
        judging.certify,
        "kernel num_threads",
        kernel={"help": "a kernel, as headfit fit has it (default: as when it was fitted)"},
    ),
    OF_THE_HEAD,
    examples="""
        headfit certify A.npz head.npz
        headfit certify A.npz head.npz --leak 0.2 --distortion 1 --json
    """,
)
def certify(call: Call) -> Outcome:
    head = read_fit(call.files.path(call.pop("head")), "head")
    target = read_target(call, head.mask)
    tolerances = call.take(TOLERANCES)
    call.say(f"certifying {target.n} x {target.n} entries")
    certificate = judging.certify(
        target,
        head.attention,
        tolerances=dataclasses.replace(head.tolerances, **tolerances),
        kernel=call.pop("kernel", head.certificate.kernel),
        **call,
    )
    return Outcome({"dim": head.dim, **certificate.to_dict()}, str(certificate), certificate.holds)


@command(
    TARGET,
    TOLERANCES,
    options_of(bounds_of.lower, "max_norm masked_logits mask time_limit rng"),
    examples="""
        headfit bounds A.npz
        headfit bounds A.npz --leak 0.05 --max-norm 10
        headfit bounds A.npz --mask causal --max-logit 20 --json
    """,
)
def bounds(call: Call) -> Outcome:
    file = call["A"]
    target = read_target(call, call.pop("mask", None))
    call.say(f"lower bounds for n = {target.n}")
    bound = bounds_of.lower(target, **call)
    call.say("checking the witness")
    if not bound.verify(target):
        raise HeadfitError("the witness does not prove the bound: this is a defect of headfit")
    tried = (f"\n  {name}: {size}; {argument}" for name, size, argument in bound.tried())
    figures = {"file": file, "n": target.n, **bound.to_dict()}
    return Outcome(figures, f"{file}: {bound.in_words()}{''.join(tried)}")


@command(
    option("file", metavar="FILE", type=Path, nargs="?", default=None, help="a target or a head"),
    flag("--system", "versions, CPU, compiler and threads: what a report of a defect needs"),
    NORMALIZE,
    examples="""
        headfit info A.npz
        headfit info head.npz --json
        headfit info --system
    """,
)
def info(call: Call) -> Outcome:
    if ("file" in call) == ("system" in call):
        raise InputError("info takes a file or --system, one of them")
    if "system" in call:
        if "normalize" in call:
            raise InputError("--normalize must not be given with --system: there is no target")
        config = show_config()
        return Outcome(vars(config), str(config))
    file = call.pop("file")
    known = target_or_head(call.files.path(file), **call)
    figures = {"file": file, **known.to_dict()}
    if isinstance(known, Fit):
        text = f"{known}\nmodule: {known.module}\nas recorded, not judged anew: {known.certificate}"
        return Outcome({"kind": "head", **figures}, f"{file}: {text}")
    proved = bounds_of.projection_dim(known.n, known.per_row, known.gamma)
    words = f"leak {Tolerances().leak:g}, distortion {Tolerances().distortion:g}"
    text = f"{known}\nsize proved to suffice for {words}: {proved}"
    return Outcome({"kind": "target", **figures, "proved_dim": proved}, f"{file}: {text}")
