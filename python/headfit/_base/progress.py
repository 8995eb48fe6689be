"""Progress bars that count finished rows or steps, in a terminal or a notebook: those of tqdm."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headfit.errors import InputError


def tqdm_class() -> Any:
    """Return the class of tqdm's bars, or raise an InputError where the package is missing."""
    try:
        return import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise InputError("progress=True needs tqdm: pip install 'headfit[progress]'") from error


def count_step(bar: Any, line: str) -> None:
    """Count one step on a bar; `line` says what it is."""
    bar.set_description(line, refresh=False)
    bar.update()


def show_rows(bar: Any, left: int, **figures: Any) -> None:
    """Show on a bar of rows how many are left, and figures beside it."""
    bar.set_postfix(**figures, refresh=left == 0)
    bar.update(bar.total - left - bar.n)
