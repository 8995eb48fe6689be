"""A progress bar that counts finished rows, in a terminal or a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any

from headfit.errors import InputError

SECONDS_BETWEEN = 0.1


class Progress:
    """A tqdm bar that shows the progress of a learned fit; leaving its context closes the bar."""

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

    def watching(self, callback: Callable[..., Any] | None) -> Callable[[int, int, float], Any]:
        """Return a callback that updates the bar and then calls the user's, if there is one."""

        def watch(step: int, left: int, deficit: float) -> Any:
            now = time.monotonic()
            if left == 0 or now - self._shown > SECONDS_BETWEEN:
                self._shown = now
                self._bar.n = self._rows - left
                self._bar.set_postfix(step=step, worst=f"{deficit:.2g}")
            return None if callback is None else callback(step, left, deficit)

        return watch
