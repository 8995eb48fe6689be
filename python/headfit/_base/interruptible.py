"""Long calls into libraries that cannot be interrupted with Ctrl-C while they compute."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")

AT_ONCE = 2**31
"""The most multiplications in one uninterruptible call: about a second of work at most."""


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
    found: Future[Result] = Future()
    context = contextvars.copy_context()  # it holds NumPy's error state

    def work() -> None:
        try:
            found.set_result(context.run(call, *args, **kw))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=work, name="headfit").start()
    return found.result()


def short_blocks(count: int, operations_each: float) -> Iterator[slice]:
    """Yield slices of ``range(count)`` that take at most about a second each (`AT_ONCE`)."""
    step = max(16, int(AT_ONCE / max(1.0, operations_each)))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))
