"""What a sweep computes for each point, on whichever worker: fits, or a function of the caller's.

A record is one flat dict: the key, what the point says, how it was computed, and the result. A
point that raised an error has `exception` and `traceback` in place of a result.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headfit import _core
from headfit._base.arguments import shown
from headfit._base.machine import cpu_name
from headfit._base.version import VERSION
from headfit._sweep.canonical import canonical, digest, point_key, scalar
from headfit._sweep.fits import checked_fit_point, fit_point
from headfit.errors import InputError

Record = dict[str, Any]
Function = Callable[..., Mapping[str, Any]]

FITS = "headfit.fit"
"""The name of the work of a sweep without a function."""

THREADS = "num_threads"

MADE = (
    "work", "version", "code", "when", "wall_seconds", "threads", "headfit", "cpu_level", "cpu",
)  # fmt: skip
"""What a record says between its point and its result: what computed it, when, and where."""

OWN_NAMES = ("key", *MADE, "exception", "traceback")
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
    def of(cls, function: Any, version: Any) -> Work:
        """Return the work of a function, or of fits for None."""
        if function is None:
            if version is not None:
                raise InputError(f"version must go with function; got {shown(version)} alone")
            return cls(FITS, VERSION, fit_point)
        name = _importable_name(function)
        said = getattr(function, "version", None) if version is None else version
        return cls(name, canonical(said, "version"), function, _hash_of_source(function))

    def checked(self, point: dict[str, Any]) -> dict[str, Any]:
        """Return a canonical point with its defaults, or raise an error that says what is wrong."""
        if self.name == FITS:
            return checked_fit_point(point)
        for name in (THREADS, *OWN_NAMES):
            if name in point:
                raise InputError(f"{name} must not be part of a point: the sweep itself has it")
        threads = {THREADS: 1} if self.takes_threads else {}
        try:
            inspect.signature(self.function).bind(**point, **threads)
        except TypeError as error:
            raise InputError(f"the point does not suit {self.name}: {error}") from error
        return point

    @property
    def takes_threads(self) -> bool:
        """Whether the function has a parameter for the number of threads."""
        return THREADS in inspect.signature(self.function).parameters


@dataclass(frozen=True)
class Task:
    """One point to compute: what is sent to a worker."""

    key: str
    point: dict[str, Any]
    work: Work

    def record(self, made: Mapping[str, Any], outcome: Mapping[str, Any]) -> Record:
        """Return the record of this point."""
        work = {"work": self.work.name, "version": self.work.version, "code": self.work.code}
        said = {**dict.fromkeys(MADE), **work, **made}
        return {"key": self.key, **self.point, **said, **outcome}

    def failed(self, error: BaseException, made: Mapping[str, Any] | None = None) -> Record:
        """Return the record of a point that raised an error, with the end of its traceback."""
        try:
            message = f"{type(error).__name__}: {error}"
        except Exception:  # the caller's own class may have a broken __str__
            message = f"{type(error).__name__}: its message cannot be made"
        text = "".join(traceback.format_exception(error))
        outcome = {"exception": message[:TAIL], "traceback": text[-TAIL:]}
        return self.record(made or {}, outcome)


def tasks_of(points: Any, work: Work) -> list[Task]:
    """Return the tasks of all points, each checked; a point that is repeated counts once."""
    if isinstance(points, (str, bytes, Mapping)) or not isinstance(points, Iterable):
        raise InputError(f"points must be a sequence of dicts; got {shown(points)}")
    tasks: dict[str, Task] = {}
    for i, said in enumerate(points):
        if not isinstance(said, Mapping):
            raise InputError(f"points[{i}] must be a dict; got {shown(said)}")
        try:
            point = work.checked(canonical(said, "point"))
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

    def made() -> dict[str, Any]:
        return {
            "when": when.isoformat(timespec="seconds"),
            "wall_seconds": time.perf_counter() - start,
            "threads": num_threads,
            "headfit": VERSION,
            "cpu_level": _core.build["level"],
            "cpu": cpu_name(),
        }

    threads = {THREADS: num_threads} if task.work.takes_threads else {}
    try:
        result = task.work.function(**task.point, **threads)
        return task.record(made(), _outcome(result, task.point))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not is_worker:
            raise
        return task.failed(error, made())


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
        name, value = str.__str__(said), scalar(item, f"the function's {said}")
        if name in point and point[name] == value:
            continue
        name += "_found" if name in point else ""
        if name in OWN_NAMES or name in outcome or name in point:
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
    """Return the name by which workers import a function."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    there: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in name.split(".") if isinstance(name, str) else ():
        there = getattr(there, part, None)
    if not inspect.isfunction(function) or there is not function:
        raise InputError(
            "function must be None or a function of a module, which workers can import; "
            f"got {shown(function)}"
        )
    return f"{_module_name(str(module))}.{name}"


def _module_name(module: str) -> str:
    """Return the name of a module; of a script that is running, the name it has when imported."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    if file is None or not Path(file).is_file():  # a prompt, or a script that was read from a pipe
        raise InputError(
            "function must stand in a file: workers cannot import it from a prompt or a pipe"
        )
    return Path(file).stem
