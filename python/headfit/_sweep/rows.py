"""Records as flat rows, and rows as columns of NumPy."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.text import number
from headfit._sweep.record import Record

Row = dict[str, Any]

LARGEST_INT = 2**63 - 1


def as_row(record: Record) -> Row:
    """Return a point with its result in one flat dict.

    First come the keys of the point, then those of the result, then how it was made. Where two
    share a name and differ, the result's becomes ``name_found``.
    """
    row: Row = dict(record["point"])
    for name, value in record.get("result", {}).items():
        is_other = name in row and row[name] != value
        row[f"{name}_found" if is_other else name] = value
    made = {"key": record["key"], "work": record["work"], "version": record["version"]}
    for name, value in {**made, **record["made"]}.items():
        row.setdefault(name, value)
    return row


def names_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names that occur in any row, in the order in which they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return values without repetition: numbers by size, then texts, then anything else."""
    found = {json.dumps(value): value for value in values}
    return [found[text] for text in sorted(found, key=lambda text: order(found[text]))]


def order(value: Any) -> tuple[int, float, str]:
    """Return what sorts values of different kinds: nothing, numbers, texts and the rest."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def as_text(value: Any) -> str:
    """Return a value of a row as pages and messages show it."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return number(value)
    return json.dumps(value) if isinstance(value, (list, dict, bool)) else str(value)


def as_place(row: Mapping[str, Any], axes: Iterable[str]) -> str:
    """Return what tells a point from the others of its sweep."""
    return ", ".join(f"{name} = {as_text(row.get(name))}" for name in axes)


def as_column(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array: booleans, int64, float64 (None is NaN), or objects."""
    present = [value for value in values if value is not None]
    are_flags = [isinstance(value, bool) for value in present]
    if present and all(are_flags) and len(present) == len(values):
        return np.array(values, dtype=np.bool_)
    if not any(are_flags) and all(isinstance(value, (int, float)) for value in present):
        whole = all(isinstance(value, int) and abs(value) <= LARGEST_INT for value in present)
        if present and whole and len(present) == len(values):
            return np.array(values, dtype=np.int64)
        return np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return rows as one array for each name; what a row lacks is None or NaN."""
    return {name: as_column([row.get(name) for row in rows]) for name in names_of(rows)}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as the text of a CSV file in UTF-8; lists and dicts are written as JSON.

    Texts that are no Unicode, as names of files may be, come with backslashes.
    """
    text = io.StringIO()
    names = names_of(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
