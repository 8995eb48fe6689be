"""One way to write a point: equal points have equal text, and so equal names of files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headfit._base.arguments import shown
from headfit.errors import InputError

DEEPEST = 8
"""How many lists and dicts may stand within each other."""

KEY_LENGTH = 32
"""Hexadecimal digits of a key: 128 bits, so that two points never share one by chance."""


NUMPY = (np.integer, np.floating, np.str_)


def canonical(value: Any, name: str, depth: int = 0) -> Any:
    """Return a value in the one form that equal values share, made of JSON's types.

    Numbers that are equal become the same number: an integer where they are whole (1.0 is 1, and
    -0.0 is 0), a float otherwise. True and False are no numbers. Tuples become lists.

    Parameters
    ----------
    value : None, bool, int, float, str, scalar of NumPy, list, tuple or dict
    name : str
        What the value is, for error messages.

    Raises
    ------
    InputError
        For NaN and infinity, for integers that no float can hold, for keys that are no text, and
        for anything else.
    """
    if depth > DEEPEST:
        raise InputError(f"{name} must not be nested more than {DEEPEST} deep")
    if value is None or isinstance(value, (bool, np.bool_)):
        return value if value is None else bool(value)
    value = value.item() if isinstance(value, NUMPY) else builtin(value)
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        whole = value
        if not fits_a_float(whole):
            raise InputError(f"{name} must be less than 1.8e308 in size; got {shown(whole)}")
        return whole
    if isinstance(value, (float, np.floating)):  # a long double has no type of Python's own
        number = float(value)
        if not math.isfinite(number):
            raise InputError(f"{name} must be finite; got {number}")
        return int(number) if number.is_integer() else number
    if isinstance(value, (list, tuple)):
        return [canonical(item, f"{name}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{name} must have texts as keys; got {shown(key)}")
        return {
            str.__str__(k): canonical(item, f"{name}.{k}", depth + 1) for k, item in value.items()
        }
    raise InputError(f"{name} must be a number, a text, None, a list or a dict; got {shown(value)}")


def builtin(value: Any) -> Any:
    """Return a number or a text of a class of the caller's own, as of an enumeration, without it.

    The methods of that class are not called: they may say something else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else value


def fits_a_float(value: int) -> bool:
    """Return whether an integer is in the range of floats, which columns and axes may hold."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def digest(value: Any) -> str:
    """Return the SHA-256 of a canonical value, in hexadecimal digits."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def point_key(work: str, version: Any, point: Mapping[str, Any]) -> str:
    """Return the key of a canonical point: the hash of it and of what computes it."""
    return digest({"work": work, "version": version, "point": point})[:KEY_LENGTH]
