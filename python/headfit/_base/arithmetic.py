"""Standard floating-point arithmetic for what Python computes itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headfit import _core


@contextmanager
def standard_arithmetic() -> Iterator[None]:
    """Round to nearest and keep subnormal numbers in this thread, whatever its program has set.

    The core does so by itself. Conversions and products that NumPy makes for it are to mean the
    same numbers: under PyTorch's ``set_flush_denormal(True)`` a subnormal float32 would become
    zero on its way to float64. Works as a decorator too.
    """
    with _core.StandardArithmetic():
        yield
