"""What surrounds long calls: standard arithmetic, a deadline, Ctrl-C, a progress bar of tqdm."""

import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from headfit import _core
from headfit._base.display import optional
from headfit.errors import InputError

Result = TypeVar("Result")

# The most multiplications in one uninterruptible call: about a second of work at most.
AT_ONCE = 2**31


@contextmanager
def standard_arithmetic() -> Iterator[None]:
    """Round to nearest and keep subnormal numbers in this thread, whatever the program has set.

    The core sets this mode by itself. NumPy's conversions and products must use it too, so that
    both work with the same numbers: under PyTorch's ``set_flush_denormal(True)`` a subnormal
    float32 would become zero when it is converted to float64. Can be used as a decorator.
    """
    with _core.StandardArithmetic():
        yield


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


def interruptible(operations: float, call: Callable[..., Result], *args: Any, **kw: Any) -> Result:
    """Return ``call(*args, **kw)``, and stop waiting for it on Ctrl-C.

    `operations` is the number of multiplications that the call takes. A long call runs in a
    separate thread, since LAPACK cannot be stopped. After Ctrl-C that thread runs to its end and
    its result is dropped; the interpreter waits for it at exit. The call must release
    the interpreter's lock, as NumPy's linear algebra does (SciPy's singular values do not).
    Python delivers signals to the main thread only, so other threads make the call directly.
    """
    if operations < AT_ONCE or threading.current_thread() is not threading.main_thread():
        return call(*args, **kw)
    waiting = ThreadPoolExecutor(1, "headfit")
    try:
        # The context holds NumPy's error state.
        return waiting.submit(contextvars.copy_context().run, call, *args, **kw).result()
    finally:
        waiting.shutdown(wait=False)


def goes_on(answer: Any) -> bool:
    """Return whether what a callback returned lets the work go on: anything but False."""
    return not isinstance(answer, (bool, np.bool_)) or bool(answer)


def short_blocks(count: int, operations_each: float) -> Iterator[slice]:
    """Yield slices of ``range(count)`` that take at most about a second each (`AT_ONCE`)."""
    step = max(16, int(AT_ONCE / max(1.0, operations_each)))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def tqdm_class() -> Any:
    """Return the class of tqdm's bars, or raise an InputError where the package is missing."""
    missing = InputError("progress=True needs tqdm: pip install 'headfit[progress]'")
    return optional("tqdm.auto", missing).tqdm


def count_step(bar: Any, line: str) -> None:
    """Count one step on a bar; `line` says what it is."""
    bar.set_description(line, refresh=False)
    bar.update()
