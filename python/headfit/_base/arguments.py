"""Checks of scalar arguments: numbers, choices, booleans, seeds.

Each check raises an `InputError` that names the argument, what was expected and what came.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headfit._base.machine import available_cores
from headfit.errors import InputError

# The largest count accepted: more fits in no memory, and 64-bit products could overflow.
LARGEST = 2**48


def shown(value: Any) -> str:
    """Return a value as error messages show it: its repr, shortened where it is long."""
    try:
        text = repr(value)
    except Exception:  # the caller's own class may have a broken __repr__
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:80]}... ({type(value).__name__})"


def scalar(value: Any) -> Any:
    """Return a number of NumPy, or an array without axes, as Python's own; others as they are.

    Arrays with axes raise a TypeError, and times too, which NumPy counts among the integers.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if getattr(value, "ndim", 0) != 0 or kind in "mMO":
        raise TypeError("an array is no number")
    return value.item() if hasattr(value, "item") else value


def as_number(
    value: Any,
    name: str,
    expected: str = "be a number",
    holds: Callable[[float], bool] = lambda number: True,
) -> float:
    """Return a real number as a float; a Fraction, say, is one, and an array without axes.

    Booleans, texts, complex numbers and arrays with axes are refused, and numbers for which the
    condition that `expected` states does not hold.
    """
    try:
        own = scalar(value)
        if isinstance(own, bool) or not hasattr(own, "__float__"):  # texts have none
            raise TypeError("no real number")
        number = float(own)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf  # an integer larger than any float
    except Exception as error:
        raise InputError(f"{name} must {expected}; got {shown(value)}") from error
    if not holds(number):
        raise InputError(f"{name} must {expected}; got {shown(value)}")
    return number


def as_finite(value: Any, name: str, least: float) -> float:
    """Return a finite number that is at least `least`."""
    expected = f"be finite and at least {least:g}"
    return as_number(value, name, expected, lambda number: least <= number < math.inf)


def as_flag(value: Any, name: str) -> bool:
    """Return a boolean; numbers and strings are refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False; got {shown(value)}")
    return bool(value)


def as_choice(value: Any, name: str, allowed: Sequence[str], before: str = "") -> str:
    """Return `value` if it is one of the allowed strings.

    Otherwise the error message lists them, preceded by the text `before`.
    """
    if not isinstance(value, str) or value not in allowed:
        listed = " or ".join(repr(word) for word in allowed)
        raise InputError(f"{name} must be {before}{listed}; got {shown(value)}")
    return value


def as_count(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return `value` as an int within bounds, or raise an InputError that names it."""
    bounds = f"of at least {least}" if most is None else f"in {least} ... {most}"
    try:
        number = scalar(value)
        if isinstance(number, bool):
            raise TypeError("a truth value is no count")
        count = operator.index(number)
    except Exception as error:
        raise InputError(f"{name} must be an integer {bounds}; got {shown(value)}") from error
    if most is None and count > LARGEST:
        raise InputError(f"{name} must be at most 2**48; got {shown(value)}")
    if count < least or (most is not None and count > most):
        expected = f"lie {bounds}" if most is not None else f"be an integer {bounds}"
        raise InputError(f"{name} must {expected}; got {shown(value)}")
    return count


def thread_count(num_threads: int | None) -> int:
    """Return the number of threads to use: None is every core this process may use."""
    if num_threads is None:
        return available_cores()
    return as_count(num_threads, "num_threads", 1, 2**15)


def check_between(value: float, name: str, low: float, high: float) -> float:
    """Return `value` as a float strictly between two bounds, or raise an InputError."""
    number = as_number(value, name)
    if not low < number < high:
        raise InputError(f"{name} must lie strictly between {low} and {high}; got {shown(value)}")
    return number


def as_positive(value: Any, name: str) -> float | None:
    """Return a positive finite number, or None as it is: an option that has no default."""
    return None if value is None else check_between(value, name, 0, math.inf)


def as_share(value: Any, name: str) -> float:
    """Return a share of a whole, a number in (0, 1], or raise an InputError."""
    return as_number(value, name, "lie in (0, 1]", lambda share: 0 < share <= 1)


def as_generator(rng: Any) -> np.random.Generator:
    """Return a new generator for a seed; a generator is returned as it is."""
    try:
        if np.asarray(rng).dtype.kind in "bUS":  # NumPy would read the text "8" in a list as 8
            raise TypeError("truth values and texts are no seeds")
        return np.random.default_rng(rng)
    except Exception as error:
        raise InputError(f"rng must be a seed or a Generator; got {shown(rng)}") from error


def seed_from(rng: Any) -> int:
    """Draw one 64-bit seed for the core's counter-based random numbers (SPEC 7)."""
    return int(as_generator(rng).integers(0, 2**64, dtype=np.uint64))


def check_callable(value: Any, name: str) -> None:
    """Raise an InputError unless `value` is None or callable."""
    if value is not None and not callable(value):
        raise InputError(f"{name} must be callable or None; got {shown(value)}")
