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


def data_frame(columns: Mapping[Any, Any], index: str | list[str]) -> Any:
    """Return columns as a DataFrame, indexed by some of them; a text is what its rows number."""
    frame = pandas().DataFrame(dict(columns))
    if isinstance(index, str):
        return frame.rename_axis(index)
    return frame.set_index(index) if index else frame


def records_frame(kind: Any, records: Sequence[Any], index: str) -> Any:
    """Return dataclass objects of one kind as a DataFrame with a column for each field."""
    names = [field.name for field in dataclasses.fields(kind)]
    return data_frame({name: [getattr(r, name) for r in records] for name in names}, index)
