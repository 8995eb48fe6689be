"""How far a sweep is, and about how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from headfit._base.arguments import shown
from headfit._base.progress import Counter, tqdm_class
from headfit.errors import InputError

Say = Callable[[str], Any]


def check_progress(progress: Any) -> bool | Say:
    """Return True, False or a function of a line of text; None is False, and True needs tqdm."""
    if progress is None or isinstance(progress, bool):
        if progress:
            tqdm_class()
        return bool(progress)
    if not callable(progress):
        raise InputError(f"progress must be True, False or callable; got {shown(progress)}")
    say: Say = progress
    return say


class Pace:
    """Counts points that are done; shows a bar of tqdm, or gives lines of text to a function."""

    def __init__(self, total: int, progress: bool | Say) -> None:
        self._total, self._done, self._failed = total, 0, 0
        self._start = time.monotonic()
        self._bar = Counter(total, "point") if progress is True else None
        self._say = None if isinstance(progress, bool) else progress

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)

    def step(self, failed: bool) -> None:
        """Count a point."""
        self._done += 1
        self._failed += failed
        if self._bar is not None:
            self._bar.step(f"{self._failed} failed" if self._failed else "")
        self._show()

    def _show(self) -> None:
        if self._say is not None:
            self._say(self.line())

    def line(self) -> str:
        """Return how many points are done, how many failed, and about how long the rest takes."""
        parts = [f"{self._done} of {self._total} points"]
        if self._failed:
            parts.append(f"{self._failed} failed")
        if 0 < self._done < self._total:
            seconds = (time.monotonic() - self._start) / self._done * (self._total - self._done)
            parts.append(f"about {duration(seconds)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return a duration in words, in its two largest units."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"
