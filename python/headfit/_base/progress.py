"""A progress bar that counts finished rows, in a terminal or a notebook."""

from __future__ import annotations

import time
from importlib import import_module
from types import TracebackType
from typing import Any

from headfit.errors import InputError

SECONDS_BETWEEN = 0.1


class Progress:
    """A tqdm bar of the rows that meet the tolerances; leaving its context closes the bar."""

    def __init__(self, rows: int) -> None:
        try:
            tqdm = import_module("tqdm.auto").tqdm
        except ImportError as error:
            raise InputError("progress=True needs tqdm: pip install 'headfit[progress]'") from error
        self._rows, self._shown = rows, 0.0
        self._bar: Any = tqdm(total=rows, unit="row")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def watch(self, left: int, **figures: Any) -> None:
        """Show how many rows are left, and figures beside the bar; at most ten times a second."""
        now = time.monotonic()
        if left == 0 or now - self._shown > SECONDS_BETWEEN:
            self._shown = now
            self._bar.n = self._rows - left
            self._bar.set_postfix(**figures)
