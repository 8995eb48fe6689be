"""`headfit fit`, `certify`, `bounds` and `info`: a head of a target, and what is proved of it."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import headfit as hf
from headfit._base.files import FORMATS
from headfit._cli.command import Call, Outcome, command, option, options_of, outcome
from headfit._cli.files import NORMALIZE, TARGET, read, read_target
from headfit._fit.registry import METHODS
from headfit.errors import HeadfitError

TOLERANCES = options_of(hf.Tolerances)
OF_METHODS = [
    *options_of(hf.methods.Learned, "effort reheats stages max_norm"),
    *options_of(hf.methods.MaxMargin, "keys form", keys={"help": "which keys (default: random)"}),
    *options_of(hf.methods.Projection),
]
"""The options of single methods that the command line has."""
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
    tolerances = call.take(TOLERANCES)
    call.say(f"certifying {target.n} x {target.n} entries")
    certificate = hf.certify(
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
    options_of(hf.bounds.lower, "max_norm masked_logits mask time_limit rng"),
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
    kinds = ("a target",) if call else ("a target", "a saved head")
    known = read(file, "file", *kinds, **call)
    if isinstance(known, hf.Target):
        proved = hf.bounds.projection_dim(known.n, known.per_row, known.gamma)
        more = f"\nsize proved to suffice for {hf.Tolerances()}: {proved}"
        return outcome(file, known, more=more, kind="target", proved_dim=proved)
    more = f"\nmodule: {known.module}\nas recorded, not judged anew: {known.certificate}"
    return outcome(file, known, more=more, kind="head")
