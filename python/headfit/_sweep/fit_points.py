"""Points of fits, the default work of a sweep: what they may say, and what it stands for."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args

import scipy.sparse as sp

from headfit import patterns
from headfit._base.arguments import as_choice, as_flag, as_number, shown
from headfit._base.arrays import as_count, check_between
from headfit._base.columns import as_exempt
from headfit._base.dtypes import check_dtype
from headfit._base.kernel import of_head
from headfit._base.masks import as_window
from headfit._base.tolerances import Tolerances
from headfit._fit.method import Method
from headfit._fit.registry import METHODS
from headfit._sweep.canonical import canonical
from headfit.errors import InputError
from headfit.patterns._build import MOST_TOKENS, Boundary, Style, checked_tokens

DEFAULTS: Mapping[str, Any] = {
    "method": "auto",
    "dim": None,
    "leak": Tolerances.leak,
    "distortion": Tolerances.distortion,
    "max_logit": None,
    "dtype": "float32",
    "kernel": None,
    "scale": None,
    "mask": None,
    "exempt_columns": None,
    "time_limit": None,
    "seed": 0,
    "pattern_seed": None,
}
"""What a point may say besides its pattern, the pattern's arguments and the method's options."""

NUMBERS = dict.fromkeys(("leak", "distortion", "max_logit", "scale", "time_limit"), "float")
"""Those of them that are real numbers."""

UNSUITED = ("from_graph", "from_mask")
"""Patterns that are made from an object of Python, which a point cannot hold."""

# Options of methods that are arrays or functions, which a point cannot hold either.
_OBJECTS = ("init", "callback")


def checked_fit_point(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a canonical point with its defaults filled in, or raise an error that names a key.

    Values of None are left out, so that an option that is not given and None are the same point.
    """
    point = {name: value for name, value in given.items() if value is not None}
    kind = _pattern_name(point.get("pattern"))
    word = point.get("method", DEFAULTS["method"])
    if not isinstance(word, str) or word not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}; got {shown(word)}")
    arguments, options = _parameters(kind), _options(word)
    for name in point:
        known = ["pattern", *arguments, *DEFAULTS, *options]
        if name not in known:
            raise InputError(
                f"{name} is no key of a point with pattern {kind} and method {word}; "
                f"these are: {', '.join(known)}"
            )
    filled: dict[str, Any] = {"pattern": kind}
    for name, parameter in arguments.items():
        value = point.get(name, parameter.default)
        if value is inspect.Parameter.empty:
            raise InputError(f"{name} must be given: pattern {kind} needs it")
        if value is not None:
            filled[name] = _typed(value, name, str(parameter.annotation))
    annotations = {**NUMBERS, **{name: str(field.type) for name, field in options.items()}}
    defaults = {**DEFAULTS, **{name: field.default for name, field in options.items()}}
    for name, default in defaults.items():
        value = point.get(name, default)
        if value is not None:
            filled[name] = _typed(value, name, annotations.get(name, ""))
    gaussian = ("gaussian",) if kind == "knn" else ()
    allowed = ("uniform", "random", *gaussian)
    filled["weights"] = Style.of(filled.get("weights"), filled["gamma"], 0, allowed).weights
    if filled.get("pattern_seed") == filled["seed"]:
        del filled["pattern_seed"]
    _check_values(filled)
    checked: dict[str, Any] = canonical(filled, "point")
    return checked


def _pattern_name(kind: Any) -> str:
    if kind is None:
        raise InputError("pattern must be given: the name of a function of headfit.patterns")
    if not isinstance(kind, str) or kind not in patterns.__all__ or kind in UNSUITED:
        known = ", ".join(name for name in patterns.__all__ if name not in UNSUITED)
        raise InputError(f"pattern must be one of {known}; got {shown(kind)}")
    return kind


@cache
def _parameters(kind: str) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(getattr(patterns, kind)).parameters)
    del found["rng"]  # the key `seed` stands for it
    return found


@cache
def _options(word: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the options of a method that plain values can give."""
    kind: Any = METHODS[word]
    return {f.name: f for f in dataclasses.fields(kind) if f.name not in _OBJECTS}


def _typed(value: Any, name: str, annotation: str) -> Any:
    """Check the type of an argument or option; its range is for others to check."""
    kinds = annotation.replace(" | None", "")
    if kinds == "int":
        return as_count(value, name, 0)
    if kinds == "float":
        as_number(value, name)
    elif kinds == "bool":
        as_flag(value, name)
    return value


def _check_values(point: Mapping[str, Any]) -> None:
    """Raise an InputError for what a pattern or a fit would refuse, whatever its size is."""
    n = _tokens(point)
    least, most = (1, n - 1) if point["pattern"] == "knn" else (1, n)
    if "k" in point:
        as_count(point["k"], "k", least, most)
    for name in ("n_global", "n_random"):
        if name in point:
            as_count(point[name], name, 0, n)
    if "boundary" in point:
        as_choice(point["boundary"], "boundary", get_args(Boundary))
    tolerances = tolerances_of(point)
    dtype = check_dtype(point["dtype"])
    tolerances.check_storable(dtype)
    of_head(point.get("kernel"), dtype)
    method_of(point)
    for name, least in (("dim", 1), ("seed", 0), ("pattern_seed", 0)):
        if name in point:
            as_count(point[name], name, least)
    for name in ("time_limit", "scale"):
        if name in point:
            check_between(point[name], name, 0, float("inf"))
    mask, exempt = point.get("mask"), point.get("exempt_columns")
    is_window = isinstance(mask, list) and len(mask) == 2 and mask[0] == "window"
    if mask is not None and mask != "causal" and not is_window:
        raise InputError(
            f'mask must be "causal" or ["window", width]; got {shown(mask)}. In a grid a window '
            'stands in a list of its own: mask = [["window", 16]]'
        )
    as_window(mask_of(point), n)
    as_exempt(exempt, n)


def _tokens(point: Mapping[str, Any]) -> int:
    """Return the number of tokens of a pattern, checked, without making the pattern."""
    if "n" in point:
        return checked_tokens(point["n"])
    if point["pattern"] == "grid2d":
        height = as_count(point["height"], "height", 1, MOST_TOKENS)
        return height * as_count(point["width"], "width", 1, MOST_TOKENS // height)
    for name in ("points", "tokens"):
        if name in point:
            if not isinstance(point[name], (list, str)):
                raise InputError(f"{name} must be a list; got {shown(point[name])}")
            return len(point[name])
    return _only_size(point["pattern"])


@cache
def _only_size(kind: str) -> int:
    """Return the number of tokens of a pattern that is made from data, and has one size."""
    return int(getattr(patterns, kind)(rng=0).shape[0])


def tolerances_of(point: Mapping[str, Any]) -> Tolerances:
    """Return the tolerances of a point."""
    return Tolerances(point["leak"], point["distortion"], point.get("max_logit"))


def method_of(point: Mapping[str, Any]) -> Method:
    """Return the method of a point, with its options."""
    word = point["method"]
    given = {name: point[name] for name in _options(word) if name in point}
    return METHODS[word](**given)


def mask_of(point: Mapping[str, Any]) -> Any:
    """Return the mask of a point as `fit` takes it."""
    mask = point.get("mask")
    if not isinstance(mask, list):
        return mask
    return mask[0], tuple(mask[1]) if isinstance(mask[1], list) else mask[1]


def pattern_of(point: Mapping[str, Any]) -> sp.csr_array[Any, Any]:
    """Return the pattern of a checked point."""
    kind = point["pattern"]
    given = {name: point[name] for name in _parameters(kind) if name in point}
    make: Callable[..., Any] = getattr(patterns, kind)
    found: sp.csr_array[Any, Any] = make(**given, rng=point.get("pattern_seed", point["seed"]))
    return found
