"""Tables as pandas DataFrames; pandas is optional, and imported when one is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any


def pandas() -> Any:
    """Return pandas, or raise an ImportError that names the extra with it."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise ImportError(
            "to_pandas needs pandas: pip install 'headfit[pandas]', or pip install pandas"
        ) from error


def data_frame(columns: Mapping[Any, Any], index: str) -> Any:
    """Return columns as a DataFrame whose rows are numbered; `index` says what they are."""
    package = pandas()
    frame = package.DataFrame(dict(columns))
    return frame.rename_axis(index)


def indexed_frame(levels: Mapping[str, Any], columns: Mapping[str, Any]) -> Any:
    """Return columns as a DataFrame whose rows are indexed by some levels, or numbered."""
    frame = pandas().DataFrame({**levels, **columns})
    return frame.set_index(list(levels)) if levels else frame


def records_frame(kind: Any, records: Sequence[Any], index: str) -> Any:
    """Return dataclass objects of one kind as a DataFrame with a column for each field."""
    names = [field.name for field in dataclasses.fields(kind)]
    return data_frame({name: [getattr(r, name) for r in records] for name in names}, index)
