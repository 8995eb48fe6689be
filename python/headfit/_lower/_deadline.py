"""The deadline of a search for a lower bound."""

from __future__ import annotations

import time


class OutOfTimeError(Exception):
    """A search has passed its deadline."""


def check_time(deadline: float) -> None:
    """Raise an OutOfTimeError if the deadline has passed."""
    if time.monotonic() > deadline:
        raise OutOfTimeError
