"""The words that stand for methods: the one place that lists headfit's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headfit._base.arguments import shown
from headfit._fit.auto import Auto
from headfit._fit.learned import Learned
from headfit._fit.max_margin import MaxMargin
from headfit._fit.method import Method
from headfit._fit.mixed import Mixed
from headfit._fit.projection import Projection
from headfit._fit.toeplitz import Toeplitz
from headfit.errors import InputError

METHODS: Mapping[str, Callable[..., Method]] = {
    "auto": Auto,
    "learned": Learned,
    "max-margin": MaxMargin,
    "mixed": Mixed,
    "projection": Projection,
    "toeplitz": Toeplitz,
}


def as_method(method: Any) -> Method:
    """Return the method that a word stands for, with its defaults, or the object that is given."""
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    if isinstance(method, Method) and not isinstance(method, type):
        if isinstance(method.name, str):
            return method
        raise InputError(f"method must have a name, a text; got {shown(method.name)}")
    words = " or ".join(repr(word) for word in METHODS)
    raise InputError(f"method must be one of {words}, or a Method; got {shown(method)}")
