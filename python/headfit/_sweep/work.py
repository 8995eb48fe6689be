"""What a sweep computes for each point, on whichever worker: fits, or a function of the caller's.

A record is one flat dict: the key, what the point says, how it was computed, and the result. A
point that raised an error has `exception` and `traceback` in place of a result.
"""

import ast
import copy
import hashlib
import inspect
import json
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from headfit import _core
from headfit._base.arguments import shown
from headfit._base.machine import cpu_name
from headfit._build import VERSION
from headfit._sweep.fits import checked_fit_point, fit_point
from headfit.errors import InputError

Record = dict[str, Any]
Function = Callable[..., Mapping[str, Any]]

THREADS = "num_threads"

MADE = ("when", "wall_seconds", "threads", "headfit", "cpu_level", "cpu")
"""When and where a record was made."""

OWN_NAMES = ("key", "work", "version", "code", *MADE, "exception", "traceback")
"""Names in a record that neither a point nor a result may have."""

TAIL = 4000
"""Characters that are kept of a traceback, and of a message, at most."""


@dataclass(frozen=True)
class Work:
    """What computes the points, by the name and version that are part of every key.

    `code` is the hash of the function's source, which tells when it has changed.
    """

    name: str
    version: Any
    function: Function
    code: str | None = None

    @classmethod
    def of(cls, function: Any, version: Any) -> Self:
        """Return the work of a function, or of fits for None."""
        if function is None:
            if version is not None:
                raise InputError(f"version must go with function; got {shown(version)} alone")
            return cls("headfit.fit", VERSION, fit_point)
        name = _importable_name(function)
        version = getattr(function, "version", None) if version is None else version
        return cls(name, canonical(version, "version"), function, _hash_of_source(function))

    def with_threads(self, num_threads: int) -> dict[str, int]:
        """Return the number of threads as an argument, if the function has such a parameter."""
        parameters = inspect.signature(self.function).parameters
        return {THREADS: num_threads} if THREADS in parameters else {}

    def checked(self, point: dict[str, Any]) -> dict[str, Any]:
        """Return a canonical point with its defaults, or raise an error that says what is wrong."""
        if self.function is fit_point:
            point = checked_fit_point(point)
            return {name: canonical(value, name) for name, value in point.items()}
        for name in (THREADS, *OWN_NAMES):
            if name in point:
                raise InputError(f"{name} must not be part of a point: the sweep itself has it")
        try:
            inspect.signature(self.function).bind(**point, **self.with_threads(1))
        except TypeError as error:
            raise InputError(f"the point does not suit {self.name}: {error}") from error
        return point


class Task(NamedTuple):
    """One point to compute: what is sent to a worker."""

    key: str
    point: dict[str, Any]
    work: Work

    def record(self, outcome: Mapping[str, Any], **made: Any) -> Record:
        """Return the record of this point."""
        work = {"work": self.work.name, "version": self.work.version, "code": self.work.code}
        return {"key": self.key, **self.point, **work, **dict.fromkeys(MADE), **made, **outcome}


def tasks_of(points: Any, work: Work) -> list[Task]:
    """Return the tasks of all points, each checked; a point that is repeated counts once."""
    if isinstance(points, (str, bytes, Mapping)) or not isinstance(points, Iterable):
        raise InputError(f"points must be a sequence of dicts; got {shown(points)}")
    tasks: dict[str, Task] = {}
    for i, said in enumerate(points):
        if not isinstance(said, Mapping):
            raise InputError(f"points[{i}] must be a dict; got {shown(said)}")
        try:
            point = work.checked({str(n): canonical(v, f"{n}") for n, v in said.items()})
        except InputError as error:
            raise InputError(f"points[{i}]: {error}") from error
        key = point_key(work.name, work.version, point)
        tasks.setdefault(key, Task(key, point, work))
    if not tasks:
        raise InputError("points must hold at least one point; got none")
    return list(tasks.values())


def compute(task: Task, num_threads: int, is_worker: bool = False) -> Record:
    """Compute one point; return its record. An error of the point is part of the record.

    A KeyboardInterrupt is the caller's unless this runs on a worker.
    """
    start, when = time.perf_counter(), datetime.now(UTC)
    try:
        point = copy.deepcopy(task.point)  # a function may change what it gets
        result = task.work.function(**point, **task.work.with_threads(num_threads))
        outcome = _outcome(result, task.point)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not is_worker:
            raise
        outcome = failure(error)
    return task.record(
        outcome,
        when=when.isoformat(timespec="seconds"),
        wall_seconds=time.perf_counter() - start,
        threads=num_threads,
        headfit=VERSION,
        cpu_level=_core.build["level"],
        cpu=cpu_name(),
    )


def failure(error: BaseException) -> dict[str, str]:
    """Return what a record says of an error, with the end of its traceback."""
    try:
        message = str(error)
    except Exception:  # the caller's own class may have a broken __str__
        message = "its message cannot be made"
    text = "".join(traceback.format_exception(error))
    return {"exception": f"{type(error).__name__}: {message}"[:TAIL], "traceback": text[-TAIL:]}


def _outcome(result: Any, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as a record has it: flat, of Python's own scalars.

    What has the name of an item of the point and differs from it is named ``name_found``.
    """
    if not isinstance(result, Mapping):
        raise InputError(f"the function must return a dict; got {shown(result)}")
    outcome: dict[str, Any] = {}
    for said, item in result.items():
        if not isinstance(said, str):
            raise InputError(f"the function must return texts as keys; got {shown(said)}")
        name, value = str.__str__(said), canonical(item, f"the function's {said}", is_result=True)
        if name in point and point[name] == value:
            continue
        name += "_found" if name in point else ""
        if name in (*OWN_NAMES, *outcome, *point):
            raise InputError(f"the function must not return {name}: the record has one already")
        outcome[name] = value
    return outcome


def _hash_of_source(function: Any) -> str | None:
    """Return the hash of a function's source without comments and layout; None if none is found."""
    try:
        return digest(ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    except (OSError, SyntaxError):
        return None


def _importable_name(function: Any) -> str:
    """Return the name by which workers import a function, in a script the one it has for others."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    there: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        there = getattr(there, part, None)
    if not inspect.isfunction(function) or there is not function:
        raise InputError(
            "function must be None or a function of a module, which workers can import; "
            f"got {shown(function)}"
        )
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = main.__spec__, getattr(main, "__file__", None)
        if spec is None and (file is None or not Path(file).is_file()):
            raise InputError(
                "function must stand in a file: workers cannot import it from a prompt or a pipe"
            )
        module = spec.name if spec is not None else Path(str(file)).stem
    return f"{module}.{name}"


def canonical(value: Any, name: str, is_result: bool = False) -> Any:
    """Return a value in the one form that equal values share, made of Python's own types.

    Numbers that are equal become the same number: an integer where they are whole (1.0 is 1, and
    -0.0 is 0), a float otherwise. Tuples become lists, and members of classes of NumPy or the
    caller's what they are for JSON; anything else is refused, and so are integers beyond 63 bits,
    which pandas cannot read. A result is a scalar, may be infinite or NaN, and keeps its type.
    """
    kinds = "a number, a text or None" if is_result else "finite numbers, texts, lists and dicts"
    try:
        text = json.dumps(value, default=_of_numpy, allow_nan=is_result)
        same = json.loads(text, parse_int=_whole, parse_float=float if is_result else _real)
        if is_result and isinstance(same, (list, dict)):
            raise TypeError("it is not flat")
        return same
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} must be {kinds}; got {shown(value)}: {error}") from error


def _of_numpy(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{shown(value)} is none")


def _whole(text: str) -> int:
    if abs(int(text)) >= 2**63:
        raise ValueError(f"{text} is not below 2**63 in size")
    return int(text)


def _real(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**63 else number


def digest(value: Any) -> str:
    """Return the hash of a canonical value: 128 bits in hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def point_key(work: str, version: Any, point: Mapping[str, Any]) -> str:
    """Return the key of a canonical point: the hash of it and of what computes it."""
    return digest({"work": work, "version": version, "point": point})
