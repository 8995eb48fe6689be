"""Standard floating-point arithmetic for the numbers that NumPy computes for this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headfit import _core


@contextmanager
def standard_arithmetic() -> Iterator[None]:
    """Round to nearest and keep subnormal numbers in this thread, whatever the program has set.

    The core sets this mode by itself. NumPy's conversions and products must use it too, so that
    both work with the same numbers: under PyTorch's ``set_flush_denormal(True)`` a subnormal
    float32 would become zero when it is converted to float64. Can be used as a decorator.
    """
    with _core.StandardArithmetic():
        yield
