"""What a worker does with one point. An error of the point is an outcome, and never raised."""

from __future__ import annotations

import inspect
import math
import pickle
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from headfit import _core
from headfit._base.arguments import shown
from headfit._base.machine import cpu_name
from headfit._base.version import VERSION
from headfit._sweep.canonical import builtin, fits_a_float
from headfit._sweep.fit_record import measure_fit
from headfit._sweep.work import THREADS, Task
from headfit.errors import InputError

Outcome = dict[str, Any]

TAIL = 4000
"""Characters that are kept of a traceback, and of a message, at most."""


def measure(task: Task, num_threads: int) -> Outcome:
    """Compute one point in the caller's own process; return its outcome, and how it was made.

    A KeyboardInterrupt is the caller's, and ends the sweep.
    """
    return _measure(task, num_threads, KeyboardInterrupt)


def _measure(task: Task, num_threads: int, raised: tuple[()] | type[BaseException] = ()) -> Outcome:
    """Compute one point; errors of the type `raised` alone are raised."""
    start, when = time.perf_counter(), datetime.now(UTC)
    outcome: Outcome
    try:
        outcome = {"status": "done", "result": _result(task, num_threads)}
    except raised:
        raise
    except BaseException as error:
        outcome = failed(error)
    outcome["made"] = {
        "wall_seconds": time.perf_counter() - start,
        "when": when.isoformat(timespec="seconds"),
        "threads": num_threads,
        "headfit": VERSION,
        "cpu_level": _core.build["level"],
        "cpu": cpu_name(),
    }
    return outcome


def measure_packed(packed: bytes, num_threads: int) -> Outcome:
    """Compute the point of a pickled task.

    A worker that could not import the function of a task would end as it receives it, or never
    answer; here that is an error of the point, and so is a KeyboardInterrupt, which the function
    itself has raised: Ctrl-C goes to the process that sweeps.
    """
    try:
        task: Task = pickle.loads(packed)
    except BaseException as error:
        return failed(error)
    return _measure(task, num_threads)


def failed(error: BaseException) -> Outcome:
    """Return the outcome of a point that raised an error."""
    return {"status": "failed", "error": error_record(error), "made": {}}


def _result(task: Task, num_threads: int) -> dict[str, Any]:
    if task.run is None:
        if task.version != VERSION:
            raise InputError(f"this worker has headfit {VERSION}; the sweep asks {task.version}")
        return scalars(measure_fit(task.point, num_threads))
    takes = THREADS in inspect.signature(task.run).parameters
    return scalars(task.run(**task.point, **({THREADS: num_threads} if takes else {})))


def scalars(result: Any) -> dict[str, Any]:
    """Return a result as a dict of Python's own scalars; it must be flat."""
    if not isinstance(result, Mapping):
        raise InputError(f"run must return a dict; got {shown(result)}")
    plain = {}
    for name, value in result.items():
        if not isinstance(name, str):
            raise InputError(f"run must return a dict with texts as keys; got {shown(name)}")
        item = value.item() if isinstance(value, np.generic) else builtin(value)
        if isinstance(item, int) and not fits_a_float(item):
            raise InputError(f"run must return numbers below 1.8e308; got {name}={shown(value)}")
        if item is not None and not isinstance(item, (bool, int, float, str)):
            raise InputError(f"run must return numbers, texts and None; got {name}={shown(value)}")
        plain[str.__str__(name)] = item
    return plain


def error_record(error: BaseException) -> dict[str, str]:
    """Return the class, the message and the end of the traceback of an error."""
    kind = type(error)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    text = "".join(traceback.format_exception(error))
    return {
        "class": prefix + kind.__qualname__,
        "message": _message(error)[:TAIL],
        "traceback": text[-TAIL:],
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the caller's own class may have a broken __str__
        return "its message cannot be made"


def finite_or_tagged(value: Any) -> Any:
    """Return a scalar as JSON has it: infinity and NaN, which it lacks, as a tagged text."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def untagged(value: Any) -> Any:
    """Return a scalar from what `finite_or_tagged` returned."""
    return float(value["float"]) if isinstance(value, dict) else value
