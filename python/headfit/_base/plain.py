"""Values as JSON holds them: what every `to_dict` and every ``--json`` is made with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return a value in numbers, texts, lists and dictionaries only, as strict JSON takes it.

    NaN becomes None, and an infinity the text "inf" or "-inf". Dataclasses become dictionaries of
    their fields; what JSON has no form for becomes its text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def plain_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dictionary whose values are plain."""
    return {name: plain(value) for name, value in values.items()}
