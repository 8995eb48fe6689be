"""Maps of one head, of every size looked at: descended from closed forms and from smaller maps."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arguments import as_generator
from headfit._compress.free_maps import FreeMaps
from headfit._compress.maps import Closeness, Maps, StoredMaps, identity, judged
from headfit._compress.passages import Parts, Passages
from headfit._compress.result import Compressed
from headfit._shrink.descent import Running, checked_sizes, powers_of_two, smallest_size
from headfit._shrink.result import TvCurve
from headfit.errors import InputError

DESCENT, SMALLER = "descent", "size "


@dataclass(frozen=True)
class MapsOfSize:
    """The maps of one size."""

    descended: Maps  # of the least loss on the calibration passages: where larger sizes may start
    kl: float  # that loss
    candidates: dict[str, Maps]  # closed forms, the descent, and what is taken at a smaller size
    taken: str  # the candidate of the least mean total variation where maps are chosen
    judged: Closeness  # how close it is there
    report: dict[str, Any]

    @property
    def maps(self) -> Maps:
        """The maps that are taken."""
        return self.candidates[self.taken]


class Sizes:
    """Maps of one head, of every size looked at so far.

    Every head with as many passages is divided in the same way into those that maps are fitted to,
    those that choose, and those that judge.
    """

    def __init__(self, passages: Passages, shares: tuple[float, float], running: Running) -> None:
        self.passages, self.running = passages, running
        self.parts = Parts.of(len(passages.attentions), *shares, as_generator(running.seed))
        self.tried: dict[int, MapsOfSize] = {}
        self.dims: list[int] = []  # the sizes of the curves
        self.dim, self.stopped, self.seconds = 0, "one size", 0.0

    def curve_sizes(self, given: Any, several: bool, in_budget: bool) -> list[int]:
        """Return the sizes for the curves, which are those that the head may have in a budget."""
        largest = self.passages.dim
        if given is not None:
            dims = checked_sizes(given, "curve_dims", largest)
            if in_budget and not dims:
                raise InputError(
                    "curve_dims must not be empty beside total: a head has one of them"
                )
            return dims
        if in_budget:
            return sorted({max(1, round(largest * part / 8)) for part in range(1, 9)})
        return [] if several else powers_of_two(largest)

    @cached_property
    def chosen_by(self) -> list[Attention]:
        """The passages that choose: those of validation; the fitted ones where there are none."""
        return self.passages.part(self.parts.choosing)

    @cached_property
    def loss(self) -> _core.CompressLoss:
        """The mean divergence on the calibration passages."""
        return self._loss(self.passages.part(self.parts.calibration))

    @cached_property
    def judge(self) -> _core.CompressLoss | None:
        """The mean divergence on the validation passages, where there are any."""
        return self._loss(self.chosen_by) if self.parts.validation.size else None

    @cached_property
    def family(self) -> FreeMaps:
        """Closed forms, and the descent from them."""
        return FreeMaps(self.passages, self.loss)

    def _loss(self, passages: Sequence[Attention]) -> _core.CompressLoss:
        return _core.CompressLoss([a.core for a in passages], self.running.threads)

    def fit(self, dim: int) -> MapsOfSize:
        """Return the maps of a size.

        The calibration loss never rises with the size: where a smaller size that is fitted later
        does better, larger ones are descended again from it.
        """
        if dim not in self.tried:
            self.tried[dim] = self._fit(dim)
            for larger in sorted(d for d in self.tried if d > dim):
                if self.tried[larger].kl > self.tried[dim].kl:
                    self.tried[larger] = self._fit(larger)
        return self.tried[dim]

    def search(self, tv: float | None) -> None:
        """Find the smallest size that is close enough, and fit those of the curves.

        Without a bound the size is that of the call. It is fitted in any case, and others as long
        as there is time; larger ones start from smaller ones.
        """
        begun, largest = time.perf_counter(), self.passages.dim
        if tv is not None:
            size, _, self.stopped = smallest_size(
                lambda dim: self.fit(dim).judged.tv_mean <= tv, largest, self.running
            )
            self.dim = size or largest
        for dim in sorted({*self.dims, self.dim}):
            if dim == self.dim or self.running.seconds_left > 0:
                self.fit(dim)
        self.seconds += time.perf_counter() - begun

    def _fit(self, dim: int) -> MapsOfSize:
        passages, closed = self.passages, self.family.closed(dim)
        if dim == passages.dim:
            maps = identity(passages.heads, dim, passages.scale)
            candidates = {**closed, DESCENT: maps}
            return MapsOfSize(
                maps, 0.0, candidates, DESCENT, self._judged(maps), {"status": "exact"}
            )
        starts = closed
        before = max((d for d in self.tried if d < dim), default=None)
        if before is not None:
            starts = {**closed, **self.family.extended(self.tried[before].descended, dim)}
        losses = {name: self._value(maps) for name, maps in starts.items()}
        first = min(losses, key=losses.__getitem__)
        descended = self.family.descend(starts[first], self.judge, self.running)
        candidates = {**closed, DESCENT: descended.judged}
        if before is not None:
            smaller = self.tried[before].maps
            candidates[f"{SMALLER}{before}"] = np.pad(smaller, ((0, 0), (0, dim - before)))
        distances = {name: self._judged(maps) for name, maps in candidates.items()}
        taken = min(distances, key=lambda name: distances[name].tv_mean)
        report = {**descended.report, "start": first, "kl": [descended.first, descended.last]}
        return MapsOfSize(
            descended.maps, descended.last, candidates, taken, distances[taken], report
        )

    def _value(self, maps: Maps) -> float:
        return self.loss.value(maps, self.running.threads)

    def _judged(self, maps: Maps, passages: Sequence[Attention] | None = None) -> Closeness:
        """Return how close stored maps are on the passages that choose, or on others."""
        return judged(passages or self.chosen_by, self._stored(maps), self.running.threads)

    def _stored(self, maps: Maps) -> StoredMaps:
        return StoredMaps.of(maps, self.passages.lead, self.running.dtype)

    def result(self, tv: float | None) -> Compressed:
        """Read the held-out passages, and return the maps with curves of all sizes."""
        begun, dim = time.perf_counter(), self.dim
        held_out, parts, size = self.passages.part(self.parts.held_out), self.parts, self.tried[dim]
        curves: dict[str, dict[int, Closeness]] = {}
        for d, of_size in sorted(self.tried.items()):
            for name, maps in {**of_size.candidates, "taken": of_size.maps}.items():
                if not name.startswith(SMALLER):
                    curves.setdefault(name, {})[d] = self._judged(maps, held_out)
        closeness = curves["taken"][dim]
        return Compressed(
            **self._stored(size.maps)._asdict(),
            dim=dim,
            original_dim=self.passages.dim,
            original_scale=self.passages.scale,
            rotary=self.passages.rotary is not None,
            tv_mean=closeness.tv_mean,
            tv_95=closeness.tv_95,
            tv_worst=closeness.tv_worst,
            kl=closeness.kl_mean,
            calibration_kl=0.0 if dim == self.passages.dim else self._value(size.maps),
            validation_kl=size.judged.kl_mean if parts.validation.size else math.nan,
            taken=size.taken,
            reached=tv is None or size.judged.tv_mean <= tv,
            stopped=self.stopped,
            curves={name: TvCurve.of(curve) for name, curve in curves.items()},
            **vars(parts),
            seconds=self.seconds + time.perf_counter() - begun,
            settings={
                "dim": dim,
                "tv": tv,
                "effort": self.running.effort,
                "descents": {d: self.tried[d].report for d in sorted(self.tried)},
            },
        )
