"""The default work of a sweep: a point asks for a fit, and its result is one flat record."""

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
from headfit._base.dtypes import check_dtype, check_logits_dtype
from headfit._base.tolerances import Tolerances
from headfit._fit.fit import fit
from headfit._fit.learned import Learned
from headfit._fit.method import Method
from headfit._fit.registry import METHODS
from headfit._fit.result import Fit
from headfit._sweep.canonical import canonical
from headfit.errors import InputError
from headfit.patterns._build import Boundary, Style

DEFAULTS: Mapping[str, Any] = {
    "method": "auto",
    "dim": None,
    "leak": Tolerances.leak,
    "distortion": Tolerances.distortion,
    "max_logit": None,
    "dtype": "float32",
    "logits_dtype": None,
    "scale": None,
    "mask": None,
    "exempt_columns": None,
    "time_limit": None,
    "seed": 0,
    "pattern_seed": None,
}
"""What a point may say besides its pattern, the pattern's arguments and the method's options."""

UNSUITED = ("from_graph", "from_mask")
"""Patterns that are made from an object of Python, which a point cannot hold."""

_OBJECTS = ("init", "callback")  # options of methods that are no plain values


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
    filled = {"pattern": kind}
    for name, parameter in arguments.items():
        value = point.get(name, parameter.default)
        if value is inspect.Parameter.empty:
            raise InputError(f"{name} must be given: pattern {kind} needs it")
        if value is not None:
            filled[name] = _typed(value, name, str(parameter.annotation))
    for name in [*DEFAULTS, *options]:
        value = point.get(name, DEFAULTS.get(name))
        if value is not None:
            filled[name] = value
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
def _options(word: str) -> tuple[str, ...]:
    """Return the options of a method that plain values can give."""
    kind: Any = METHODS[word]
    return tuple(f.name for f in dataclasses.fields(kind) if f.name not in _OBJECTS)


def _typed(value: Any, name: str, annotation: str) -> Any:
    """Check the type of a pattern's argument; its range is for the pattern to check."""
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
    gaussian = ("gaussian",) if point["pattern"] == "knn" else ()
    Style.of(point.get("weights"), point["gamma"], 0, ("uniform", "random", *gaussian))
    if "boundary" in point:
        as_choice(point["boundary"], "boundary", get_args(Boundary))
    tolerances = _tolerances(point)
    tolerances.check_storable(check_dtype(point["dtype"]))
    check_logits_dtype(point.get("logits_dtype"))
    _method(point)
    for name, least in (("dim", 1), ("seed", 0), ("pattern_seed", 0)):
        if name in point:
            as_count(point[name], name, least)
    for name in ("time_limit", "scale"):
        if name in point:
            check_between(point[name], name, 0, float("inf"))
    mask, exempt = point.get("mask"), point.get("exempt_columns")
    is_window = isinstance(mask, list) and len(mask) == 2 and mask[0] == "window"
    if mask is not None and mask != "causal" and not is_window:
        raise InputError(f'mask must be "causal" or ["window", width]; got {shown(mask)}')
    if exempt is not None and exempt != "auto" and not isinstance(exempt, list):
        raise InputError(f'exempt_columns must be "auto" or a list; got {shown(exempt)}')


def _tolerances(point: Mapping[str, Any]) -> Tolerances:
    return Tolerances(point["leak"], point["distortion"], point.get("max_logit"))


def _method(point: Mapping[str, Any]) -> Method:
    word = point["method"]
    given = {name: point[name] for name in _options(word) if name in point}
    return METHODS[word](**given)


def _mask(point: Mapping[str, Any]) -> Any:
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


def measure_fit(point: Mapping[str, Any], num_threads: int) -> dict[str, Any]:
    """Do the fit that a checked point asks for, and return its record."""
    method, steps = _method(point), StepCounter()
    if isinstance(method, Learned):
        method = dataclasses.replace(method, callback=steps)
    A = pattern_of(point)
    named = ("dim", "dtype", "logits_dtype", "scale", "exempt_columns", "time_limit")
    found = fit(
        A,
        method=method,
        tolerances=_tolerances(point),
        mask=_mask(point),
        rng=point["seed"],
        num_threads=num_threads,
        **{name: point[name] for name in named if name in point},
    )
    return fit_record(found, A.nnz, steps.total)


def fit_record(found: Fit, nonzeros: int, steps: int) -> dict[str, Any]:
    """Return what a sweep keeps of a fit: one number, text or None for each name."""
    certificate, search, failed = found.certificate, found.search, found.failed_rows
    holds = certificate.holds
    return {
        "certified": holds,
        "status": found.status,
        "dim_found": found.dim if holds else None,
        "dim_tried": found.dim,
        "lower_bound": None if found.lower_bound is None else found.lower_bound.dim,
        "stopped": found.stopped,
        "searched": None if search is None else search.stopped,
        "leak_found": certificate.leak,
        "distortion_found": certificate.distortion,
        "max_logit_found": certificate.max_logit,
        "max_norm_found": certificate.max_norm,
        "share_held": certificate.share_held,
        "failed_rows": None if failed is None else int(failed.size),
        "steps": steps or None,
        "method_used": found.method,
        "n": int(found.Q.shape[0]),
        "nnz": int(nonzeros),
        "seconds": found.seconds,
    }


class StepCounter:
    """A callback of the learned method that adds up the steps of all sizes that are tried."""

    def __init__(self) -> None:
        self._before = self._last = 0

    def __call__(self, step: int, left: int, deficit: float) -> None:
        if step < self._last:  # a new descent has begun
            self._before += self._last
        self._last = step

    @property
    def total(self) -> int:
        """The steps as of the last scan."""
        return self._before + self._last
