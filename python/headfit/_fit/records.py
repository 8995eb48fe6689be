"""The records of a saved fit as JSON holds them, and back: anybody may have changed the file."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from headfit._base.tolerances import Tolerances
from headfit._lower.lower import SAVED
from headfit._target.witnesses import FaceWitness, FarkasWitness

Record = TypeVar("Record")

# The records whose class stands in the file, since annotations name several or a protocol: as what
# it "is", or as the "kind" of a witness of a row.
_NAMED: dict[str, Any] = {
    **{kind.__name__: kind for kind in (*SAVED, Tolerances)},
    **{kind.kind: kind for kind in (FarkasWitness, FaceWitness)},
}


def coded(value: Any) -> Any:
    """Return a value as JSON holds it: dataclasses become dictionaries with their class."""
    if isinstance(value, tuple):
        return [coded(x) for x in value]
    if isinstance(value, Fraction):
        return {"/": [value.numerator, value.denominator]}
    if not dataclasses.is_dataclass(value):
        return value
    parts = {f.name: coded(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"is": type(value).__name__, **parts}


def record(kind: type[Record], values: dict[str, Any], rows: int | None = None) -> Record:
    """Return a dataclass of these values from a file, which must be as its annotations say.

    A ValueError names the field that is not. Arrays must have one number for each of `rows`, if
    that is given. Fields that have a default may be missing.
    """
    hints = get_type_hints(kind)
    return kind(**{name: _decoded(hints[name], x, name, rows) for name, x in values.items()})


def _decoded(kind: Any, value: Any, name: str, rows: int | None) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in options:
        return None
    kind, origin, parts = options[0], get_origin(options[0]), get_args(options[0])
    if origin is not dict and isinstance(value, dict):
        for word in ("is", "kind"):
            if value.get(word) in _NAMED:
                known = {key: x for key, x in value.items() if key != word}
                return record(_NAMED[value[word]], known, rows)
        if dataclasses.is_dataclass(kind):
            return record(kind, value, rows)  # type: ignore[arg-type]
        if kind is Fraction:
            return Fraction(*value["/"])
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(kinds) == len(value):
            return tuple(_decoded(k, x, name, rows) for k, x in zip(kinds, value, strict=True))
    if not _is(value, kind, rows):
        raise ValueError(f"{name} must be {getattr(kind, '__name__', kind)}; got {value!r:.80}")
    return value


def _is(value: Any, kind: Any, rows: int | None) -> bool:
    """Whether a value is of an annotated type that needs no conversion."""
    origin = get_origin(kind)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is np.ndarray:
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
        return is_array and (rows is None or value.shape == (rows,))
    if kind is float:
        return type(value) in (int, float)
    if kind in (int, str, bool):
        return type(value) is kind
    kind = origin or kind
    return not isinstance(kind, type) or kind is Any or isinstance(value, kind)
