"""Long calls into libraries that do not look for Ctrl-C while they compute."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")

AT_ONCE = 2**31
"""How many multiplications may pass before somebody looks: a good second at most."""


def interruptible(operations: float, call: Callable[..., Result], *args: Any, **kw: Any) -> Result:
    """Return ``call(*args, **kw)``, which takes so many multiplications; Ctrl-C ends the wait.

    A call that is long is made by a thread of its own, since nothing can stop LAPACK. After
    Ctrl-C that thread goes on to its end, and what it returns is dropped; the interpreter waits
    for it when it exits. The call must release the interpreter's lock, as NumPy's linear algebra
    does (SciPy's singular values do not). Other threads than the main one get no signals and
    call directly.
    """
    if operations < AT_ONCE or threading.current_thread() is not threading.main_thread():
        return call(*args, **kw)
    found: Future[Result] = Future()
    context = contextvars.copy_context()  # NumPy keeps its error state there

    def work() -> None:
        try:
            found.set_result(context.run(call, *args, **kw))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=work, name="headfit").start()
    return found.result()


def short_blocks(count: int, operations_each: float) -> Iterator[slice]:
    """Yield slices of ``range(count)`` whose work is so short that Ctrl-C can wait for its end."""
    step = max(16, int(AT_ONCE / max(1.0, operations_each)))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))
