"""Calls of the core that end when a time limit comes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headfit import _core


@contextmanager
def calls_until(deadline: float) -> Iterator[None]:
    """Let calls of the core raise a TimeoutError once `time.perf_counter` passes the deadline.

    They look about twenty times a second. Of this thread, and not one inside another.
    """
    if not math.isinf(deadline):
        _core.limit_calls(max(0.0, deadline - time.perf_counter()))
    try:
        yield
    finally:
        _core.limit_calls(None)
