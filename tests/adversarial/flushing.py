"""Flushing of subnormal numbers to zero, as `torch.set_flush_denormal(True)` turns it on."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import platform
import struct
from collections.abc import Iterator

FLUSH = 0x8040  # flushes results to zero, and reads operands as zero
_ENVIRONMENT = 32  # bytes of glibc's fenv_t on x86-64; the control register is the last four


def _library() -> ctypes.CDLL | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    name = ctypes.util.find_library("m")
    return ctypes.CDLL(name) if name else None


_MATH = _library()


def is_flushing() -> bool:
    """Whether this thread's arithmetic treats subnormal numbers as zero."""
    least = float.fromhex("0x1p-1074")
    return least * 4.0 == 0.0


def _set(on: bool) -> None:
    if _MATH is None:
        return
    buffer = ctypes.create_string_buffer(64)
    _MATH.fegetenv(buffer)
    (control,) = struct.unpack_from("<I", buffer, _ENVIRONMENT - 4)
    control = control | FLUSH if on else control & ~FLUSH
    struct.pack_into("<I", buffer, _ENVIRONMENT - 4, control)
    _MATH.fesetenv(buffer)


@contextlib.contextmanager
def flushing(on: bool = True) -> Iterator[None]:
    """Flush subnormal numbers to zero inside the block, on the calling thread."""
    if not on:
        yield
        return
    _set(True)
    try:
        yield
    finally:
        _set(False)


def can_flush() -> bool:
    """Whether this machine lets the tests turn flushing on."""
    with flushing():
        return is_flushing()
