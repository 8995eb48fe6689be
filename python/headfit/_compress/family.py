"""`Family`: a kind of maps, as the search for a size uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from headfit import _core
from headfit._compress.maps import Maps


@dataclass(frozen=True)
class Limits:
    """When a descent of maps ends, as in `_core.DescentLimits`."""

    max_steps: int
    tolerance: float
    enough: float
    time_limit: float
    progress: Any  # called with (step, mean divergence); returns whether to go on


@dataclass(frozen=True)
class Descended:
    """What a descent gives.

    Attributes
    ----------
    maps : Maps
        Those with the least loss.
    judged : Maps
        Those of the steps with the least loss on the passages of the judge.
    first, last : float
        The loss at the start, and of `maps`.
    report : dict
        How the descent went.
    """

    maps: Maps
    judged: Maps
    first: float
    last: float
    report: dict[str, Any]


class Family(Protocol):
    """Maps of one kind: which sizes there are, where descents start, and how they go."""

    @property
    def step(self) -> int:
        """Sizes are multiples of it."""

    def closed(self, dim: int) -> dict[str, Maps]:
        """Return the closed forms of a size by name."""

    def extended(self, maps: Maps, dim: int) -> dict[str, Maps]:
        """Return starts of a larger size, by name, that are made of descended maps."""

    def padded(self, maps: Maps, dim: int) -> Maps:
        """Return maps of a larger size with the same logits."""

    def descend(self, start: Maps, judge: _core.CompressLoss | None, limits: Limits) -> Descended:
        """Descend the loss of the calibration passages."""
