"""Fits, the default work of a sweep: what a point may say, and what a sweep keeps of its fit."""

import dataclasses
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

import scipy.sparse as sp

from headfit import patterns
from headfit._attention.sparsify import as_exempt
from headfit._base.arguments import as_choice, as_count, as_flag, as_number, check_between, shown
from headfit._base.masks import as_window
from headfit._base.tolerances import Tolerances, of_head
from headfit._fit.fit import fit
from headfit._fit.method import Method
from headfit._fit.registry import METHODS
from headfit.errors import InputError
from headfit.patterns._build import MOST_TOKENS, Boundary, Style

DEFAULTS: Mapping[str, Any] = {
    "method": "auto", "dim": None, "leak": Tolerances.leak, "distortion": Tolerances.distortion,
    "max_logit": None, "dtype": None, "kernel": None, "scale": None, "mask": None,
    "exempt_columns": None, "time_limit": None, "seed": 0, "pattern_seed": None,
}  # fmt: skip
"""What a point may say besides its pattern, the pattern's arguments and the method's options."""

UNSUITED = ("from_graph", "from_mask")
"""Patterns that are made from an object of Python, which a point cannot hold."""

_OBJECTS = ("init", "callback")
"""Options of methods that are arrays or functions, which a point cannot hold either."""


def fit_point(num_threads: int, **point: Any) -> dict[str, Any]:
    """Do the fit that a checked point describes; return a number, text or None for each name."""
    A = pattern_of(point)
    named = ("dim", "dtype", "kernel", "scale", "exempt_columns", "time_limit")
    head = fit(
        A,
        method=_method_of(point),
        tolerances=_tolerances_of(point),
        mask=_mask_of(point),
        rng=point["seed"],
        num_threads=num_threads,
        **{name: point[name] for name in named if name in point},
    )
    proof, search, failed = head.certificate, head.search, head.failed_rows
    bounded = ("leak", "distortion", "max_logit", "max_norm")
    return {
        "certified": proof.holds,
        "status": head.status,
        "dim_found": head.dim if proof.holds else None,
        "dim_tried": head.dim,
        "lower_bound": None if head.lower_bound is None else head.lower_bound.dim,
        "stopped": head.stopped,
        "searched": None if search is None else search.stopped,
        **{f"{name}_found": getattr(proof, name) for name in bounded},
        "share_held": proof.share_held,
        "failed_rows": None if failed is None else int(failed.size),
        "steps": head.settings.get("learned", {}).get("steps"),
        "method_used": head.method,
        "n": int(head.Q.shape[0]),
        "nnz": int(A.nnz),
        "seconds": head.seconds,
    }


def checked_fit_point(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point with its defaults filled in, or raise an error that names a key.

    Values of None are left out, so that an option that is not there and None are the same point.
    """
    point = {name: value for name, value in said.items() if value is not None}
    kinds = [name for name in patterns.__all__ if name not in UNSUITED]
    kind = as_choice(point.get("pattern"), "pattern", kinds)
    word = as_choice(point.get("method", DEFAULTS["method"]), "method", tuple(METHODS))
    known = {
        **_parameters(kind),
        **{name: ("", default) for name, default in DEFAULTS.items()},
        **{name: ("", option.default) for name, option in _options(word, kind).items()},
    }
    for name in point:
        if name not in ("pattern", *known):
            raise InputError(
                f"{name} is no key of a point with pattern {kind} and method {word}; "
                f"these are: pattern, {', '.join(known)}"
            )
    filled: dict[str, Any] = {"pattern": kind}
    for name, (annotation, default) in known.items():
        value = point.get(name, default)
        if value is inspect.Parameter.empty:
            raise InputError(f"{name} must be given: pattern {kind} needs it")
        if value is not None:
            filled[name] = _typed(value, name, annotation)
    filled["dtype"] = of_head(filled.get("kernel"), filled.get("dtype"))[1]
    weights = ("uniform", "random", *(("gaussian",) if kind == "knn" else ()))
    filled["weights"] = Style.of(filled.get("weights"), filled["gamma"], 0, weights).weights
    if filled.get("pattern_seed") == filled["seed"]:
        del filled["pattern_seed"]
    _check_values(filled)
    return filled


@cache
def _parameters(kind: str) -> dict[str, tuple[str, Any]]:
    """Return the types, as text, and the defaults of what a pattern is made of."""
    parameters = dict(inspect.signature(getattr(patterns, kind)).parameters)
    del parameters["rng"]  # the key `seed` stands for it
    text = inspect.formatannotation
    return {name: (text(p.annotation).strip("'"), p.default) for name, p in parameters.items()}


@cache
def _options(word: str, pattern: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the options of a method that plain values can give, but for names of the pattern's."""
    kind: Any = METHODS[word]
    taken = (*_OBJECTS, *_parameters(pattern))
    return {f.name: f for f in dataclasses.fields(kind) if f.name not in taken}


def _typed(value: Any, name: str, annotation: str) -> Any:
    """Check the type of an argument of a pattern; its range is for others to check."""
    kinds = annotation.replace(" | None", "")
    if kinds == "int":
        return as_count(value, name, 0)
    if kinds == "float":
        as_number(value, name)
    elif kinds == "bool":
        as_flag(value, name)
    return value


def _check_values(point: Mapping[str, Any]) -> None:
    """Raise an InputError for what a pattern or a fit would refuse, as far as `n` tells."""
    n = as_count(point.get("n", MOST_TOKENS), "n", 1, MOST_TOKENS)
    for name in point.keys() & {"k", "n_global", "n_random"}:
        as_count(point[name], name, int(name == "k"), n)
    if "boundary" in point:
        as_choice(point["boundary"], "boundary", get_args(Boundary))
    _tolerances_of(point).check_storable(point["dtype"])
    _method_of(point)
    for name in point.keys() & {"dim", "seed", "pattern_seed"}:
        as_count(point[name], name, int(name == "dim"))
    for name in point.keys() & {"time_limit", "scale"}:
        check_between(point[name], name, 0, float("inf"))
    mask, exempt = point.get("mask"), point.get("exempt_columns")
    is_window = isinstance(mask, list) and len(mask) == 2 and mask[0] == "window"
    if mask is not None and mask != "causal" and not is_window:
        raise InputError(
            f'mask must be "causal" or ["window", width]; got {shown(mask)}. In a grid a window '
            'stands in a list of its own: mask = [["window", 16]]'
        )
    as_window(_mask_of(point), n)
    as_exempt(exempt, n)


def _tolerances_of(point: Mapping[str, Any]) -> Tolerances:
    return Tolerances(point["leak"], point["distortion"], point.get("max_logit"))


def _method_of(point: Mapping[str, Any]) -> Method:
    names = _options(point["method"], point["pattern"])
    return METHODS[point["method"]](**{name: point[name] for name in names if name in point})


def _mask_of(point: Mapping[str, Any]) -> Any:
    """Return the mask of a point as `fit` takes it."""
    mask = point.get("mask")
    if not isinstance(mask, list):
        return mask
    return mask[0], tuple(mask[1]) if isinstance(mask[1], list) else mask[1]


def pattern_of(point: Mapping[str, Any]) -> sp.csr_array[Any, Any]:
    """Return the pattern of a checked point."""
    kind = point["pattern"]
    arguments = {name: point[name] for name in _parameters(kind) if name in point}
    seed = point.get("pattern_seed", point["seed"])
    A: sp.csr_array[Any, Any] = getattr(patterns, kind)(**arguments, rng=seed)
    return A
