"""What a sweep computes for each point: fits, or a function of the caller's."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headfit._base.arguments import shown
from headfit._base.version import VERSION
from headfit._sweep.canonical import canonical, digest, point_key
from headfit._sweep.fit_points import checked_fit_point
from headfit.errors import InputError

FITS = "headfit.fit"
"""The name of the work that a sweep does when it is given no function."""

THREADS = "num_threads"

Run = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Task:
    """One point to compute: what is sent to a worker."""

    key: str
    work: str
    version: Any
    point: dict[str, Any]
    run: Run | None = None
    code: str | None = None


@dataclass(frozen=True)
class Work:
    """What computes the points, by the name and version that are part of every key.

    `code` is the hash of the function's source, which tells when it has changed.
    """

    name: str
    version: Any
    run: Run | None = None
    code: str | None = None

    @classmethod
    def of(cls, run: Any, version: Any) -> Work:
        """Return the work of a function, or of fits for None."""
        if run is None:
            if version is not None:
                raise InputError(f"version must go with run; got {shown(version)} without one")
            return cls(FITS, VERSION)
        name = _importable_name(run)
        found = getattr(run, "version", None) if version is None else version
        return cls(name, canonical(found, "version"), run, _hash_of_source(run))

    def tasks(self, points: Any) -> list[Task]:
        """Return the tasks of all points, each checked; a point that is repeated counts once."""
        if isinstance(points, (str, bytes, Mapping)) or not isinstance(points, Iterable):
            raise InputError(f"points must be a sequence of dicts; got {shown(points)}")
        found: dict[str, Task] = {}
        for i, given in enumerate(points):
            if not isinstance(given, Mapping):
                raise InputError(f"points[{i}] must be a dict; got {shown(given)}")
            try:
                point = self._checked(canonical(given, "point"))
            except InputError as error:
                raise InputError(f"points[{i}]: {error}") from error
            key = point_key(self.name, self.version, point)
            found.setdefault(key, Task(key, self.name, self.version, point, self.run, self.code))
        if not found:
            raise InputError("points must hold at least one point; got none")
        return list(found.values())

    def _checked(self, point: dict[str, Any]) -> dict[str, Any]:
        if self.run is None:
            return checked_fit_point(point)
        if THREADS in point:
            raise InputError(f"{THREADS} must not be part of a point: results do not depend on it")
        parameters = dict(inspect.signature(self.run).parameters)
        extra = {THREADS: 1} if THREADS in parameters else {}
        try:
            inspect.signature(self.run).bind(**point, **extra)
        except TypeError as error:
            raise InputError(f"the point does not suit {self.name}: {error}") from error
        return point


def _hash_of_source(run: Any) -> str | None:
    """Return the hash of a function's source without comments and layout; None if none is found."""
    try:
        return digest(ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(run)))))
    except (OSError, SyntaxError):
        return None


def _importable_name(run: Any) -> str:
    """Return the name by which workers import a function."""
    name, module = getattr(run, "__qualname__", None), getattr(run, "__module__", None)
    found: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in name.split(".") if isinstance(name, str) else ():
        found = getattr(found, part, None)
    if not inspect.isfunction(run) or found is not run:
        raise InputError(
            "run must be None or a function of a module, which workers can import; "
            f"got {shown(run)}"
        )
    return f"{_module_name(module)}.{name}"


def _module_name(module: Any) -> str:
    """Return the name of a module; of a script that is running, the name it has when imported."""
    if module != "__main__":
        return str(module)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    if file is None or not Path(file).is_file():  # a prompt, or a script that was read from a pipe
        raise InputError(
            "run must stand in a file: workers cannot import it from a prompt or a pipe"
        )
    return Path(file).stem
