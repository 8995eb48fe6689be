"""One way to write a point: equal points have equal text, and so one key."""

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

LARGEST = 2**63 - 1
"""The largest integer, which pandas and NumPy can read as one."""

KEY_LENGTH = 32
"""Hexadecimal digits of a key: 128 bits, so that two points never share one by chance."""


def scalar(value: Any, name: str, kinds: str = "a number, a text or None") -> Any:
    """Return a scalar as one of Python's own types, whatever class of NumPy or the caller's it has.

    The methods of a caller's class are not called: they may say something else.
    """
    if isinstance(value, np.floating):
        return float(value)
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if not isinstance(value, int):
        raise InputError(f"{name} must be {kinds}; got {shown(value)}")
    if abs(whole := int.__int__(value)) > LARGEST:
        raise InputError(f"{name} must be below 2**63 in size; got {shown(whole)}")
    return whole


def canonical(value: Any, name: str, depth: int = 0) -> Any:
    """Return a value in the one form that equal values share, made of JSON's types.

    Numbers that are equal become the same number: an integer where they are whole (1.0 is 1, and
    -0.0 is 0), a float otherwise. True and False are no numbers. Tuples become lists.

    Raises
    ------
    InputError
        For NaN and infinity, for integers beyond 63 bits, for keys that are no text, and for
        anything else. The message calls the value `name`.
    """
    if depth > DEEPEST:
        raise InputError(f"{name} must not be nested more than {DEEPEST} deep")
    if isinstance(value, (list, tuple)):
        return [canonical(item, f"{name}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{name} must have texts as keys; got {shown(key)}")
        return {
            str.__str__(k): canonical(item, f"{name}.{k}", depth + 1) for k, item in value.items()
        }
    plain = scalar(value, name, "a number, a text, None, a list or a dict")
    if not isinstance(plain, float):
        return plain
    if not math.isfinite(plain):
        raise InputError(f"{name} must be finite; got {plain}")
    return int(plain) if plain.is_integer() and abs(plain) <= LARGEST else plain


def digest(value: Any) -> str:
    """Return the hash of a canonical value, in hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_LENGTH]


def point_key(work: str, version: Any, point: Mapping[str, Any]) -> str:
    """Return the key of a canonical point: the hash of it and of what computes it."""
    return digest({"work": work, "version": version, "point": point})
