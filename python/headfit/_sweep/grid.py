"""`grid`: the points of a sweep as a product of lists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headfit.errors import InputError

MOST_POINTS = 10**7
"""More points than any sweep computes; their list alone would fill the memory."""


def grid(**axes: Any) -> list[dict[str, Any]]:
    """Return every combination of the values of some axes, as the points of a sweep.

    Parameters
    ----------
    **axes
        A list, a tuple, a range or a 1-dimensional array is an axis; anything else is a single
        value. A value that is a list itself stands in a list of its own:
        ``offsets=[[-1, 2]]``. The last axis varies fastest.

    Returns
    -------
    list of dict
        Lists of points can be added: ``grid(...) + grid(...)``.

    Raises
    ------
    InputError
        For an axis without values, for an array that is not 1-dimensional, and for more than
        10,000,000 points.

    See Also
    --------
    run : computes something for each point.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.sweep.grid(pattern="band", n=[64, 128], neighbors=2, seed=range(2))
    [{'pattern': 'band', 'n': 64, 'neighbors': 2, 'seed': 0},
     {'pattern': 'band', 'n': 64, 'neighbors': 2, 'seed': 1},
     {'pattern': 'band', 'n': 128, 'neighbors': 2, 'seed': 0},
     {'pattern': 'band', 'n': 128, 'neighbors': 2, 'seed': 1}]
    """
    values = {name: _values(name, axis) for name, axis in axes.items()}
    lengths = {name: _length(axis) for name, axis in values.items()}
    if math.prod(lengths.values()) > MOST_POINTS:
        listed = ", ".join(f"{name}: {count:,}" for name, count in lengths.items() if count > 1)
        raise InputError(
            f"a grid must have at most {MOST_POINTS:,} points; got {math.prod(lengths.values()):,} "
            f"from the values of {listed}"
        )
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def _values(name: str, axis: Any) -> Sequence[Any]:
    """Return the values of an axis, or a single value as the only one."""
    if isinstance(axis, np.ndarray):
        if axis.ndim != 1:
            raise InputError(f"{name} must be a 1-dimensional array; got shape {axis.shape}")
        axis = axis.tolist()
    if not isinstance(axis, (list, tuple, range)):
        return [axis]
    if not axis:
        raise InputError(f"{name} must have at least one value; got none")
    return axis


def _length(axis: Sequence[Any]) -> int:
    """Return the number of values of an axis; `len` refuses the longest ranges."""
    return (axis[-1] - axis[0]) // axis.step + 1 if isinstance(axis, range) else len(axis)
