"""What a sweep computes for each point, on whichever worker: fits, or a function of the caller's.

A record is one flat dict: the key, what the point says, how it was computed, and the result. A
point that raised an error has `exception` and `traceback` in place of a result.
"""

import ast
import copy
import dataclasses
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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from headfit import _core, patterns
from headfit._attention.sparsify import as_exempt
from headfit._base.arguments import as_choice, as_count, as_flag, as_number, check_between, shown
from headfit._base.machine import cpu_name
from headfit._base.masks import as_window, mask_from_json
from headfit._base.tolerances import Tolerances, of_head
from headfit._build import VERSION
from headfit._fit.fit import fit
from headfit._fit.method import Method
from headfit._fit.registry import METHODS
from headfit._fit.result import of_numpy
from headfit.errors import InputError, input_errors
from headfit.patterns._build import Style
from headfit.patterns._types import MOST_TOKENS, Boundary

Record = dict[str, Any]
Function = Callable[..., Mapping[str, Any]]

THREADS = "num_threads"

# When and where a record was made.
MADE = ("when", "wall_seconds", "threads", "headfit", "cpu_level", "cpu")

# Names in a record that neither a point nor a result may have.
OWN_NAMES = ("key", "work", "version", "code", *MADE, "exception", "traceback")

# Characters that are kept of a traceback, and of a message, at most.
TAIL = 4000


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
            return {name: canonical(x, name) for name, x in checked_fit_point(point).items()}
        for name in (THREADS, *OWN_NAMES):
            if name in point:
                raise InputError(f"{name} must not be part of a point: the sweep itself has it")
        with input_errors(f"the point does not suit {self.name}", TypeError):
            inspect.signature(self.function).bind(**point, **self.with_threads(1))
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
        with input_errors(f"points[{i}]", InputError):
            point = work.checked({str(n): canonical(v, f"{n}") for n, v in said.items()})
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
        text = json.dumps(value, default=of_numpy, allow_nan=is_result)
        same = json.loads(text, parse_int=_whole, parse_float=float if is_result else _real)
        if is_result and isinstance(same, (list, dict)):
            raise TypeError("it is not flat")
        return same
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} must be {kinds}; got {shown(value)}: {error}") from error


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


# What a point may say besides its pattern, the pattern's arguments and the method's options.
DEFAULTS: Mapping[str, Any] = {
    "method": "auto", "dim": None, "leak": Tolerances.leak, "distortion": Tolerances.distortion,
    "max_logit": None, "dtype": None, "kernel": None, "scale": None, "mask": None,
    "exempt_columns": None, "time_limit": None, "seed": 0, "pattern_seed": None,
}  # fmt: skip

# Patterns that are made from an object of Python, which a point cannot hold.
UNSUITED = ("from_graph", "from_mask")

# Options of methods that are arrays or functions, which a point cannot hold either.
_OBJECTS = ("init", "callback")


def fit_point(num_threads: int, **point: Any) -> dict[str, Any]:
    """Do the fit that a checked point describes; return a number, text or None for each name."""
    A = pattern_of(point)
    named = ("dim", "dtype", "kernel", "scale", "exempt_columns", "time_limit")
    head = fit(
        A,
        method=_method_of(point),
        tolerances=_tolerances_of(point),
        mask=mask_from_json(point.get("mask")),
        rng=point["seed"],
        num_threads=num_threads,
        **{name: point[name] for name in named if name in point},
    )
    proof, search, failed = head.certificate, head.search, head.failed_rows
    bounded = ("leak", "distortion", "max_logit", "max_norm")
    return {
        "certified": proof.holds,
        "status": head.status,
        "dim_found": head.dim if proof.holds else None,
        "dim_tried": head.dim,
        "lower_bound": None if head.lower_bound is None else head.lower_bound.dim,
        "stopped": head.stopped,
        "searched": None if search is None else search.stopped,
        **{f"{name}_found": getattr(proof, name) for name in bounded},
        "share_held": proof.share_held,
        "failed_rows": None if failed is None else int(failed.size),
        "steps": head.settings.get("learned", {}).get("steps"),
        "method_used": head.method,
        "n": int(head.Q.shape[0]),
        "nnz": int(A.nnz),
        "seconds": head.seconds,
    }


def checked_fit_point(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point with its defaults filled in, or raise an error that names a key.

    Values of None are left out, so that an option that is not there and None are the same point.
    """
    point = {name: value for name, value in said.items() if value is not None}
    kinds = [name for name in patterns.__all__ if name not in UNSUITED]
    kind = as_choice(point.get("pattern"), "pattern", kinds)
    word = as_choice(point.get("method", DEFAULTS["method"]), "method", tuple(METHODS))
    known = {
        **_parameters(kind),
        **{name: ("", default) for name, default in DEFAULTS.items()},
        **{name: ("", option.default) for name, option in _options(word, kind).items()},
    }
    for name in point:
        if name not in ("pattern", *known):
            raise InputError(
                f"{name} is no key of a point with pattern {kind} and method {word}; "
                f"these are: pattern, {', '.join(known)}"
            )
    filled: dict[str, Any] = {"pattern": kind}
    for name, (annotation, default) in known.items():
        value = point.get(name, default)
        if value is inspect.Parameter.empty:
            raise InputError(f"{name} must be given: pattern {kind} needs it")
        if value is not None:
            filled[name] = _typed(value, name, annotation)
    filled["dtype"] = of_head(filled.get("kernel"), filled.get("dtype"))[1]
    weights = ("uniform", "random", *(("gaussian",) if kind == "knn" else ()))
    filled["weights"] = Style.of(filled.get("weights"), filled["gamma"], 0, weights).weights
    if filled.get("pattern_seed") == filled["seed"]:
        del filled["pattern_seed"]
    _check_values(filled)
    return filled


@cache
def _parameters(kind: str) -> dict[str, tuple[str, Any]]:
    """Return the types, as text, and the defaults of what a pattern is made of."""
    parameters = dict(inspect.signature(getattr(patterns, kind)).parameters)
    del parameters["rng"]  # the key `seed` stands for it
    text = inspect.formatannotation
    return {name: (text(p.annotation).strip("'"), p.default) for name, p in parameters.items()}


@cache
def _options(word: str, pattern: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the options of a method that plain values can give, but for names of the pattern's."""
    kind: Any = METHODS[word]
    taken = (*_OBJECTS, *_parameters(pattern))
    return {f.name: f for f in dataclasses.fields(kind) if f.name not in taken}


def _typed(value: Any, name: str, annotation: str) -> Any:
    """Check the type of an argument of a pattern; its range is for others to check."""
    kinds = annotation.replace(" | None", "")
    if kinds == "int":
        return as_count(value, name, 0)
    if kinds == "float":
        as_number(value, name)
    elif kinds == "bool":
        as_flag(value, name)
    return value


def _check_values(point: Mapping[str, Any]) -> None:
    """Raise an InputError for what a pattern or a fit would refuse, as far as `n` tells."""
    n = as_count(point.get("n", MOST_TOKENS), "n", 1, MOST_TOKENS)
    for name in point.keys() & {"k", "n_global", "n_random"}:
        as_count(point[name], name, int(name == "k"), n)
    as_choice(point.get("boundary", "clip"), "boundary", get_args(Boundary))
    _tolerances_of(point).check_storable(point["dtype"])
    _method_of(point)
    for name in point.keys() & {"dim", "seed", "pattern_seed"}:
        as_count(point[name], name, int(name == "dim"))
    for name in point.keys() & {"time_limit", "scale"}:
        check_between(point[name], name, 0, float("inf"))
    mask, exempt = point.get("mask"), point.get("exempt_columns")
    is_window = isinstance(mask, list) and len(mask) == 2 and mask[0] == "window"
    if mask is not None and mask != "causal" and not is_window:
        raise InputError(
            f'mask must be "causal" or ["window", width]; got {shown(mask)}. In a grid a window '
            'stands in a list of its own: mask = [["window", 16]]'
        )
    as_window(mask_from_json(mask), n)
    as_exempt(exempt, n)


def _tolerances_of(point: Mapping[str, Any]) -> Tolerances:
    return Tolerances(point["leak"], point["distortion"], point.get("max_logit"))


def _method_of(point: Mapping[str, Any]) -> Method:
    names = _options(point["method"], point["pattern"])
    return METHODS[point["method"]](**{name: point[name] for name in names if name in point})


def pattern_of(point: Mapping[str, Any]) -> Any:
    """Return the pattern of a checked point."""
    kind = point["pattern"]
    arguments = {name: point[name] for name in _parameters(kind) if name in point}
    return getattr(patterns, kind)(**arguments, rng=point.get("pattern_seed", point["seed"]))
