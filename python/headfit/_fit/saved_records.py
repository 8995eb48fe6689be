"""What a saved fit holds, checked on the way in: a file may have been changed by anybody."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any, TypeVar

from numpy.typing import NDArray

from headfit._base.tolerances import Tolerances
from headfit._lower.lower import SAVED, LowerBound

Record = TypeVar("Record")

_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "dict[str, Any]": (dict,),
}


def is_plain(value: Any, annotation: str) -> bool:
    """Whether a value from JSON is of an annotated type; True for types that are not plain."""
    optional = annotation.endswith(" | None")
    if optional and value is None:
        return True
    kinds = _PLAIN.get(annotation.removesuffix(" | None"))
    if kinds is None:
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def record(kind: type[Record], values: dict[str, Any], rows: int | None = None) -> Record:
    """Return a dataclass of these values, or raise a ValueError that names the field.

    Plain values must have the type of their field; every array must have one number for each of
    `rows`.
    """
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        if item.name not in values:
            continue  # the field has a default, or the constructor raises an error
        value = values[item.name]
        if not is_plain(value, str(item.type)):
            raise ValueError(f"{item.name} must be {item.type}; got {value!r:.80}")
        if str(item.type).startswith("tuple[int, ...]") and any(
            type(i) is not int for i in value or ()
        ):
            raise ValueError(f"{item.name} must hold integers; got {value!r:.80}")
        is_rows = "Rows" in str(item.type) or str(item.type).startswith("NDArray")
        if is_rows:
            optional = value is None and str(item.type).endswith("None")
            if not optional and rows is not None:
                check_vector(value, rows, item.name)
    return kind(**values)


def check_vector(value: Any, size: int, name: str) -> None:
    """Raise a ValueError unless this is an array of one number for each row."""
    shape, kind = getattr(value, "shape", None), getattr(getattr(value, "dtype", None), "kind", "")
    if shape != (size,) or kind not in "fiub":
        raise ValueError(f"{name} must hold a number for each of {size} rows; got {value!r:.80}")


def check_indices(value: NDArray[Any] | None, size: int, name: str) -> None:
    """Raise a ValueError unless these are row numbers."""
    if value is None:
        return
    if value.ndim != 1 or value.dtype.kind not in "iu":
        raise ValueError(f"{name} must be row numbers; got shape {value.shape} of {value.dtype}")
    if value.size and not (int(value.min()) >= 0 and int(value.max()) < size):
        raise ValueError(f"{name} must lie in 0 ... {size - 1}")


def check_place(value: Any, size: int, name: str) -> tuple[int, ...] | None:
    """Return a row and two columns as a tuple, or None."""
    if value is None:
        return None
    place = tuple(value)
    if len(place) != 3 or not all(type(i) is int and 0 <= i < size for i in place):
        raise ValueError(f"{name} must be a row and two columns; got {value!r:.80}")
    return place


def check_choice(value: Any, allowed: tuple[str, ...], name: str) -> str:
    """Return one of some texts."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}; got {value!r:.80}")
    return value


def coded(value: Any) -> Any:
    """Return what lower bounds consist of as JSON holds it: dataclasses, tuples and fractions."""
    if isinstance(value, tuple):
        return [coded(x) for x in value]
    if isinstance(value, Fraction):
        return {"/": [value.numerator, value.denominator]}
    if not dataclasses.is_dataclass(value):
        return value
    parts = {f.name: coded(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"is": type(value).__name__, **parts}


def _decoded(value: Any, kinds: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(x, kinds) for x in value)
    if not isinstance(value, dict):
        return value
    if "/" in value:
        return Fraction(*value["/"])
    known = {name: _decoded(x, kinds) for name, x in value.items()}
    return record(kinds[known.pop("is")], known)


def bound_from(saved: Any, tolerances: Tolerances, mask: Any) -> Any:
    """Return a lower bound from what `coded` made of it without its mask, and without its witness.

    The mask is that of the target, and the witness that of the first candidate of this size.
    Old files have its size and reason alone, which hold for the tolerances of the fit.
    """
    if saved is None:
        return None
    if "is" not in saved:
        kept = {"witness": None, "candidates": (), "tolerances": tolerances}
        return record(LowerBound, {**saved, **kept, "mask": mask})
    found = _decoded(saved, {kind.__name__: kind for kind in (*SAVED, Tolerances)})
    if not isinstance(found, LowerBound):
        raise ValueError(f"lower_bound must be one; got {found!r:.80}")
    proofs = (c.witness for c in found.candidates if c.dim == found.dim > 1)
    return dataclasses.replace(found, mask=mask, witness=next(proofs, None))
