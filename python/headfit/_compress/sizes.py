"""Maps of every size looked at: descended from closed forms and from smaller maps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headfit import _core
from headfit._compress.closed_forms import ClosedForm, closed_forms
from headfit._compress.judge import Closeness, judged
from headfit._compress.maps import Maps, StoredMaps, identity
from headfit._compress.passages import Passages
from headfit._soft.descent import EXACT, check_effort

DESCENT = "descent"

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
    def maps(self) -> Maps:
        """The maps that are taken."""
        return self.candidates[self.taken]


@dataclass
class Sizes:
    """Maps of one head, of every size looked at."""

    calibration: Passages
    validation: Passages | None
    effort: str | int
    dtype: str
    deadline: float
    threads: int
    callback: Callback | None = None
    found: dict[int, MapsOfSize] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps, self.tolerance = check_effort(self.effort)
        self.loss = self._loss(self.calibration)
        self.judge = None if self.validation is None else self._loss(self.validation)
        self.forms = closed_forms(self.calibration, self.loss, self.threads)

    def _loss(self, passages: Passages) -> _core.CompressLoss:
        return _core.CompressLoss([a.core for a in passages.attentions], self.threads)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit; negative after it."""
        return self.deadline - time.perf_counter()

    @property
    def best_form(self) -> ClosedForm:
        """The closed form whose metric is closest to that of the loss."""
        return self.forms["attended"]

    def smaller(self, dim: int) -> MapsOfSize | None:
        """Return what was found at the next smaller size."""
        before = [d for d in self.found if d < dim]
        return self.found[max(before)] if before else None

    def _closed(self, dim: int) -> dict[str, Maps]:
        whole = [self.calibration.scale * np.eye(self.calibration.dim)] * self.calibration.heads
        return {name: form.maps(whole, dim) for name, form in self.forms.items()}

    def _starts(self, dim: int, closed: dict[str, Maps]) -> dict[str, Maps]:
        before = self.smaller(dim)
        if before is None:
            return closed
        extended = self.best_form.extended(before.descended, self.calibration.scale, dim)
        # With queries zero in the new columns the loss is that of the smaller size, exactly, and
        # its gradient is not zero.
        silent = extended.copy()
        silent[: -self.calibration.dim, before.dim :] = 0
        return {**closed, "extended": extended, "silent": silent}

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
        passages, closed = self.calibration, self._closed(dim)
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
        limits = _core.DescentLimits(
            max_steps=self.steps,
            tolerance=self.tolerance,
            enough=EXACT,
            time_limit=max(self.seconds_left, 0.0),
            progress=self._progress(),
        )
        descended, stopped_early, history, report = self.loss.fit(
            self.judge, starts[first], limits, self.threads
        )
        report.update(start=first, kl=[float(history[0]), float(history[-1])])
        candidates = {**closed, DESCENT: self.best_form.balanced(stopped_early)}
        before = self.smaller(dim)
        if before is not None:
            candidates[f"size {before.dim}"] = np.pad(before.maps, ((0, 0), (0, dim - before.dim)))
        found = {name: self._judged(maps) for name, maps in candidates.items()}
        taken = min(found, key=lambda name: found[name].tv_mean)
        return MapsOfSize(
            dim,
            descended=descended,
            kl=float(history[-1]),
            candidates=candidates,
            taken=taken,
            judged=found[taken],
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

        Sizes are doubled from 1, where a fit costs least, and then bisected.
        """
        low, high = 0, 1
        while not self.is_close(high, tv):
            if high == self.calibration.dim:
                return high, "no size is close enough in this dtype"
            if self.seconds_left <= 0:
                return self.calibration.dim, "the time limit"
            low, high = high, min(2 * high, self.calibration.dim)
        while high - low > 1:
            if self.seconds_left <= 0:
                return high, "the time limit"
            middle = (low + high) // 2
            low, high = (low, middle) if self.is_close(middle, tv) else (middle, high)
        return high, "bisected to neighbouring sizes"
