"""Maps of every size looked at: descended from closed forms and from smaller maps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headfit import _core
from headfit._base.positions import Rotary
from headfit._compress.commuting_maps import CommutingMaps
from headfit._compress.family import Family, Limits
from headfit._compress.free_maps import FreeMaps
from headfit._compress.judge import Closeness, judged
from headfit._compress.maps import Maps, StoredMaps, identity
from headfit._compress.passages import Passages
from headfit._shrink.descent import EXACT, check_effort

DESCENT, SMALLER = "descent", "size "

Callback = Callable[[int, float], Any]


@dataclass(frozen=True)
class MapsOfSize:
    """What was found at one size.

    `descended` has the least loss on the calibration passages, and is where larger sizes may
    start. `taken` has the least mean total variation on the validation passages of all
    `candidates`, which are the closed forms, the descent, and the maps taken at a smaller size;
    `judged` and `calibration_kl` are about what is taken.
    """

    dim: int
    descended: Maps
    kl: float
    candidates: dict[str, Maps]
    taken: str
    judged: Closeness
    calibration_kl: float
    report: dict[str, Any]

    @property
    def named(self) -> list[str]:
        """The candidates that every size has: the closed forms and the descent."""
        return [name for name in self.candidates if not name.startswith(SMALLER)]

    @property
    def maps(self) -> Maps:
        """The maps that are taken."""
        return self.candidates[self.taken]


@dataclass
class Sizes:
    """Maps of one head, of every size looked at.

    With `rotary` they commute with these positions; else they may have any numbers.
    """

    calibration: Passages
    validation: Passages | None
    effort: str | int
    dtype: str
    deadline: float
    threads: int
    callback: Callback | None = None
    rotary: Rotary | None = None
    found: dict[int, MapsOfSize] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps, self.tolerance = check_effort(self.effort)
        self.loss = self._loss(self.calibration)
        self.judge = None if self.validation is None else self._loss(self.validation)
        self.family = self._family()

    def _family(self) -> Family:
        if self.rotary is None:
            return FreeMaps.of(self.calibration, self.loss, self.threads)
        return CommutingMaps.of(self.calibration, self.loss, self.rotary, self.threads)

    def _loss(self, passages: Passages) -> _core.CompressLoss:
        return _core.CompressLoss([a.core for a in passages.attentions], self.threads)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit; negative after it."""
        return self.deadline - time.perf_counter()

    def smaller(self, dim: int) -> MapsOfSize | None:
        """Return what was found at the next smaller size."""
        before = [d for d in self.found if d < dim]
        return self.found[max(before)] if before else None

    def _starts(self, dim: int, closed: dict[str, Maps]) -> dict[str, Maps]:
        before = self.smaller(dim)
        return closed if before is None else {
            **closed, **self.family.extended(before.descended, dim)
        }  # fmt: skip

    def fit(self, dim: int) -> MapsOfSize:
        """Return the maps of a size.

        The calibration loss never rises with the size: where a smaller size that is fitted later
        does better, larger ones are descended again from it.
        """
        if dim not in self.found:
            self.found[dim] = self._fit(dim)
            for larger in sorted(d for d in self.found if d > dim):
                if self.found[larger].kl > self.found[dim].kl:
                    self.found[larger] = self._fit(larger)
        return self.found[dim]

    def _fit(self, dim: int) -> MapsOfSize:
        passages, closed = self.calibration, self.family.closed(dim)
        if dim == passages.dim:
            maps = identity(passages.heads, dim, passages.scale)
            return MapsOfSize(
                dim,
                descended=maps,
                kl=0.0,
                candidates={**closed, DESCENT: maps},
                taken=DESCENT,
                judged=self._judged(maps),
                calibration_kl=0.0,
                report={"status": "exact"},
            )
        starts = self._starts(dim, closed)
        losses = {name: self.loss.value(maps, self.threads) for name, maps in starts.items()}
        first = min(losses, key=lambda name: losses[name])
        limits = Limits(
            max_steps=self.steps,
            tolerance=self.tolerance,
            enough=EXACT,
            time_limit=max(self.seconds_left, 0.0),
            progress=self._progress(),
        )
        found = self.family.descend(starts[first], self.judge, limits)
        report = {**found.report, "start": first, "kl": [found.first, found.last]}
        candidates = {**closed, DESCENT: found.judged}
        before = self.smaller(dim)
        if before is not None:
            candidates[f"{SMALLER}{before.dim}"] = self.family.padded(before.maps, dim)
        distances = {name: self._judged(maps) for name, maps in candidates.items()}
        taken = min(distances, key=lambda name: distances[name].tv_mean)
        return MapsOfSize(
            dim,
            descended=found.maps,
            kl=found.last,
            candidates=candidates,
            taken=taken,
            judged=distances[taken],
            calibration_kl=self.loss.value(candidates[taken], self.threads),
            report=report,
        )

    def _judged(self, maps: Maps) -> Closeness:
        """Return how close maps are where they are chosen."""
        passages = self.calibration if self.validation is None else self.validation
        return judged(passages, self.stored(maps), self.threads)

    def _progress(self) -> Any:
        callback = self.callback
        return None if callback is None else lambda *state: callback(*state) is not False

    def stored(self, maps: Maps) -> StoredMaps:
        """Return maps in the dtype of the result."""
        return StoredMaps.of(maps, self.calibration.lead, self.dtype)

    def is_close(self, dim: int, tv: float) -> bool:
        """Whether the mean total variation of a size is small enough where maps are chosen."""
        return self.fit(dim).judged.tv_mean <= tv

    def smallest(self, tv: float) -> tuple[int, str]:
        """Return the smallest size found that is close enough, and why the search ended.

        Sizes are doubled from the least, where a fit costs least, and then bisected.
        """
        step = self.family.step
        low, high = 0, step
        while not self.is_close(high, tv):
            if high == self.calibration.dim:
                return high, "no size is close enough in this dtype"
            if self.seconds_left <= 0:
                return self.calibration.dim, "the time limit"
            low, high = high, min(2 * high, self.calibration.dim)
        while high - low > step:
            if self.seconds_left <= 0:
                return high, "the time limit"
            middle = (low + high) // (2 * step) * step
            low, high = (low, middle) if self.is_close(middle, tv) else (middle, high)
        return high, "bisected to neighbouring sizes"
