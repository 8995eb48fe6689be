"""What a saved fit holds, checked on the way in: a file may have been changed by anybody."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from numpy.typing import NDArray

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


def check_bound(value: Any) -> Any:
    """Return a lower bound as it is saved: None, or its size and reason."""
    if value is not None and not (
        isinstance(value, dict)
        and is_plain(value.get("dim"), "int")
        and is_plain(value.get("reason"), "str")
    ):
        raise ValueError(f"lower_bound must have dim and reason; got {value!r:.80}")
    return value
