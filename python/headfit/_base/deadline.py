"""A deadline for calls of the core."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headfit import _core


@contextmanager
def calls_until(deadline: float) -> Iterator[None]:
    """Make calls of the core raise a TimeoutError once `time.perf_counter` passes the deadline.

    The core checks the clock about twenty times a second. The deadline holds for calls that are
    made by this thread. Such contexts must not be nested: leaving the inner one would remove the
    deadline of the outer one.
    """
    if not math.isinf(deadline):
        _core.limit_calls(max(0.0, deadline - time.perf_counter()))
    try:
        yield
    finally:
        _core.limit_calls(None)
