"""Maps of one head, of every size looked at: descended from closed forms and from smaller maps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headfit import _core
from headfit._base.arguments import as_generator
from headfit._base.arrays import as_array, as_count
from headfit._compress.commuting_maps import CommutingMaps
from headfit._compress.free_maps import FreeMaps
from headfit._compress.maps import Closeness, Family, Limits, Maps, StoredMaps, identity, judged
from headfit._compress.pairs import PairWeights
from headfit._compress.passages import Parts, Passages, commuting_positions
from headfit._compress.result import Compressed
from headfit._shrink.descent import EXACT, Callback, check_effort, progress_of
from headfit._shrink.result import TvCurve
from headfit.errors import InputError

DESCENT, SMALLER = "descent", "size "


@dataclass(frozen=True)
class Request:
    """How heads are compressed, whatever their size; all checked."""

    held_out: float
    validation: float
    commute: Any
    dtype: str
    effort: str | int
    deadline: float
    callback: Callback | None
    seed: int
    threads: int


@dataclass(frozen=True)
class MapsOfSize:
    """What was found at one size.

    `descended` has the least loss on the calibration passages, and is where larger sizes may
    start. `taken` has the least mean total variation on the validation passages of all
    `candidates`, which are the closed forms, the descent, and the maps taken at a smaller size;
    `judged` and `calibration_kl` are about what is taken.
    """

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


class Sizes:
    """Maps of one head, of every size looked at so far.

    Every head with as many passages is divided in the same way into those that maps are fitted to,
    those that choose, and those that judge. With `rotary`, maps commute with these positions; else
    they may have any numbers.
    """

    def __init__(self, passages: Passages, request: Request) -> None:
        self.passages, self.request = passages, request
        self.rotary = commuting_positions(request.commute, passages)
        self.step = 1 if self.rotary is None else 2
        count, generator = len(passages.attentions), as_generator(request.seed)
        self.parts = Parts.of(count, request.held_out, request.validation, generator)
        self.tried: dict[int, MapsOfSize] = {}

    def checked(self, sizes: Any, name: str) -> list[int]:
        """Return sizes that a user asks for, checked."""
        found = []
        for value in np.atleast_1d(as_array(sizes, name)).tolist():
            found.append(as_count(value, name, 1, self.passages.dim))
            if found[-1] % self.step:
                raise InputError(
                    f"{name} must be even for maps that commute with rotations; got {found[-1]}"
                )
        return found

    @cached_property
    def chosen_by(self) -> Passages:
        """The passages that choose: those of validation; the fitted ones where there are none."""
        parts = self.parts
        return self.passages.part(parts.validation if parts.validation.size else parts.calibration)

    @cached_property
    def loss(self) -> _core.CompressLoss:
        """The mean divergence on the calibration passages."""
        return self._loss(self.passages.part(self.parts.calibration))

    @cached_property
    def judge(self) -> _core.CompressLoss | None:
        """The mean divergence on the validation passages, where there are any."""
        return self._loss(self.chosen_by) if self.parts.validation.size else None

    @cached_property
    def family(self) -> Family:
        """The kind of maps."""
        calibration, threads = self.passages.part(self.parts.calibration), self.request.threads
        if self.rotary is None:
            return FreeMaps.of(calibration, self.loss, threads)
        return CommutingMaps.of(calibration, self.loss, self.rotary, threads)

    def _loss(self, passages: Passages) -> _core.CompressLoss:
        return _core.CompressLoss([a.core for a in passages.attentions], self.request.threads)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit; negative after it."""
        return self.request.deadline - time.perf_counter()

    def smaller(self, dim: int) -> int | None:
        """Return the next smaller size that was tried."""
        return max((d for d in self.tried if d < dim), default=None)

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

    def fit_all(self, dims: Iterable[int], dim: int) -> None:
        """Try sizes as long as there is time, and `dim` in any case; larger ones start from
        smaller ones."""
        for size in sorted({*dims, dim}):
            if size == dim or self.seconds_left > 0:
                self.fit(size)

    def _fit(self, dim: int) -> MapsOfSize:
        passages, request, closed = self.passages, self.request, self.family.closed(dim)
        if dim == passages.dim:
            maps = identity(passages.heads, dim, passages.scale)
            candidates, report = {**closed, DESCENT: maps}, {"status": "exact"}
            return MapsOfSize(maps, 0.0, candidates, DESCENT, self._judged(maps), 0.0, report)
        starts, before = closed, self.smaller(dim)
        if before is not None:
            starts = {**closed, **self.family.extended(self.tried[before].descended, dim)}
        losses = {name: self.loss.value(maps, request.threads) for name, maps in starts.items()}
        first = min(losses, key=lambda name: losses[name])
        steps, tolerance = check_effort(request.effort)
        limits = Limits(
            max_steps=steps,
            tolerance=tolerance,
            enough=EXACT,
            time_limit=max(self.seconds_left, 0.0),
            progress=progress_of(request.callback),
        )
        found = self.family.descend(starts[first], self.judge, limits)
        candidates = {**closed, DESCENT: found.judged}
        if before is not None:
            padded = self.family.padded(self.tried[before].maps, dim)
            candidates[f"{SMALLER}{before}"] = padded
        distances = {name: self._judged(maps) for name, maps in candidates.items()}
        taken = min(distances, key=lambda name: distances[name].tv_mean)
        return MapsOfSize(
            descended=found.maps,
            kl=found.last,
            candidates=candidates,
            taken=taken,
            judged=distances[taken],
            calibration_kl=self.loss.value(candidates[taken], request.threads),
            report={**found.report, "start": first, "kl": [found.first, found.last]},
        )

    def _judged(self, maps: Maps, passages: Passages | None = None) -> Closeness:
        """Return how close stored maps are on the passages that choose, or on others."""
        return judged(passages or self.chosen_by, self._stored(maps), self.request.threads)

    def _stored(self, maps: Maps) -> StoredMaps:
        return StoredMaps.of(maps, self.passages.lead, self.request.dtype)

    def smallest(self, tv: float) -> tuple[int, str]:
        """Return the smallest size found that is close enough, and why the search ended.

        Sizes are doubled from the least, where a fit costs least, and then bisected.
        """
        step, largest = self.step, self.passages.dim

        def is_close(dim: int) -> bool:
            return self.fit(dim).judged.tv_mean <= tv

        low, high = 0, step
        while not is_close(high):
            if high == largest:
                return high, "no size is close enough in this dtype"
            if self.seconds_left <= 0:
                return largest, "the time limit"
            low, high = high, min(2 * high, largest)
        while high - low > step:
            if self.seconds_left <= 0:
                return high, "the time limit"
            middle = (low + high) // (2 * step) * step
            low, high = (low, middle) if is_close(middle) else (middle, high)
        return high, "bisected to neighbouring sizes"

    def result(self, dim: int, *, tv: float | None, stopped: str, begun: float) -> Compressed:
        """Read the held-out passages, and return the maps of a size with curves of all sizes."""
        held_out, parts, size = self.passages.part(self.parts.held_out), self.parts, self.tried[dim]
        curves: dict[str, dict[int, Closeness]] = {}
        for d in sorted(self.tried):
            found = self.tried[d]
            names = [name for name in found.candidates if not name.startswith(SMALLER)]
            distances = {n: self._judged(found.candidates[n], held_out) for n in names}
            taken = distances.get(found.taken) or self._judged(found.maps, held_out)
            for name, closeness in {**distances, "taken": taken}.items():
                curves.setdefault(name, {})[d] = closeness
        maps, closeness = self._stored(size.maps), curves["taken"][dim]
        of_pairs: dict[str, Any] = {}
        if self.rotary is not None:
            pairs = PairWeights.of_maps(size.maps, self.rotary).pairs
            of_pairs = {
                "pairs": pairs,
                "position": self.rotary.of_pairs(pairs).position,
                "original_position": self.rotary.position,
            }
        return Compressed(
            P_q=maps.P_q,
            P_k=maps.P_k,
            dim=dim,
            original_dim=self.passages.dim,
            original_scale=self.passages.scale,
            dtype=self.request.dtype,
            rotary=self.passages.rotary or self.rotary is not None,
            **of_pairs,
            tv_mean=closeness.tv_mean,
            tv_95=closeness.tv_95,
            tv_worst=closeness.tv_worst,
            kl=closeness.kl_mean,
            calibration_kl=size.calibration_kl,
            validation_kl=size.judged.kl_mean if parts.validation.size else math.nan,
            taken=size.taken,
            reached=tv is None or size.judged.tv_mean <= tv,
            stopped=stopped,
            curves={name: TvCurve.of(curve) for name, curve in curves.items()},
            calibration=parts.calibration,
            validation=parts.validation,
            held_out=parts.held_out,
            seconds=time.perf_counter() - begun,
            settings={
                "dim": dim,
                "tv": tv,
                "effort": self.request.effort,
                "descents": {d: self.tried[d].report for d in sorted(self.tried)},
            },
        )
