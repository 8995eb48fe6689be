"""Progress bars that count finished rows or steps, in a terminal or a notebook."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any, Self

from headfit.errors import InputError

SECONDS_BETWEEN = 0.1


def tqdm_class() -> Any:
    """Return the class of tqdm's bars, or raise an InputError where the package is missing."""
    try:
        return import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise InputError("progress=True needs tqdm: pip install 'headfit[progress]'") from error


class _Bar:
    """A tqdm bar; leaving its context closes it."""

    def __init__(self, total: int | None, unit: str) -> None:
        self._bar: Any = tqdm_class()(total=total, unit=unit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


class Counter(_Bar):
    """A bar that counts steps, whose number may be unknown."""

    def step(self, line: str = "") -> None:
        """Count one step; `line` says what it is."""
        self._bar.set_description(line, refresh=False)
        self._bar.update()


class Progress(_Bar):
    """A bar of the rows that meet the tolerances."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, "row")
        self._rows, self._shown = rows, 0.0

    def watch(self, left: int, **figures: Any) -> None:
        """Show how many rows are left, and figures beside the bar; at most ten times a second."""
        now = time.monotonic()
        if left == 0 or now - self._shown > SECONDS_BETWEEN:
            self._shown = now
            self._bar.n = self._rows - left
            self._bar.set_postfix(**figures)
