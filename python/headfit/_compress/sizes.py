"""Maps of one head, of every size looked at: descended from closed forms and from smaller maps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headfit import _core
from headfit._base.arguments import as_generator
from headfit._compress.commuting_maps import CommutingMaps, PairWeights
from headfit._compress.free_maps import FreeMaps
from headfit._compress.maps import Closeness, Maps, StoredMaps, identity, judged
from headfit._compress.passages import Parts, Passages, commuting_positions
from headfit._compress.result import Compressed
from headfit._shrink.descent import Running, checked_sizes, smallest_size
from headfit._shrink.result import TvCurve

DESCENT, SMALLER = "descent", "size "


@dataclass(frozen=True)
class MapsOfSize:
    """The maps of one size."""

    descended: Maps  # of the least loss on the calibration passages: where larger sizes may start
    kl: float  # that loss
    candidates: dict[str, Maps]  # closed forms, the descent, and what is taken at a smaller size
    taken: str  # the candidate of the least mean total variation where maps are chosen
    judged: Closeness  # how close it is there
    calibration_kl: float  # its loss on the calibration passages
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

    def __init__(
        self, passages: Passages, held_out: float, validation: float, commute: Any, running: Running
    ) -> None:
        self.passages, self.running = passages, running
        self.rotary = commuting_positions(commute, passages)
        self.step = 1 if self.rotary is None else 2
        count, generator = len(passages.attentions), as_generator(running.seed)
        self.parts = Parts.of(count, held_out, validation, generator)
        self.tried: dict[int, MapsOfSize] = {}

    def checked(self, sizes: Any, name: str) -> list[int]:
        """Return the sizes of a user."""
        return checked_sizes(sizes, name, self.passages.dim, self.step)

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
    def family(self) -> FreeMaps | CommutingMaps:
        """The kind of maps."""
        calibration = self.passages.part(self.parts.calibration)
        if self.rotary is None:
            return FreeMaps(calibration, self.loss)
        return CommutingMaps(calibration, self.loss, self.rotary, self.running.threads)

    def _loss(self, passages: Passages) -> _core.CompressLoss:
        return _core.CompressLoss([a.core for a in passages.attentions], self.running.threads)

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
            if size == dim or self.running.seconds_left > 0:
                self.fit(size)

    def _fit(self, dim: int) -> MapsOfSize:
        passages, threads, closed = self.passages, self.running.threads, self.family.closed(dim)
        if dim == passages.dim:
            maps = identity(passages.heads, dim, passages.scale)
            candidates, report = {**closed, DESCENT: maps}, {"status": "exact"}
            return MapsOfSize(maps, 0.0, candidates, DESCENT, self._judged(maps), 0.0, report)
        starts, before = closed, self.smaller(dim)
        if before is not None:
            starts = {**closed, **self.family.extended(self.tried[before].descended, dim)}
        losses = {name: self.loss.value(maps, threads) for name, maps in starts.items()}
        first = min(losses, key=lambda name: losses[name])
        found = self.family.descend(starts[first], self.judge, self.running)
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
            calibration_kl=self.loss.value(candidates[taken], threads),
            report={**found.report, "start": first, "kl": [found.first, found.last]},
        )

    def _judged(self, maps: Maps, passages: Passages | None = None) -> Closeness:
        """Return how close stored maps are on the passages that choose, or on others."""
        return judged(passages or self.chosen_by, self._stored(maps), self.running.threads)

    def _stored(self, maps: Maps) -> StoredMaps:
        return StoredMaps.of(maps, self.passages.lead, self.running.dtype)

    def smallest(self, tv: float) -> tuple[int, str]:
        """Return the smallest size found that is close enough, and why the search ended."""

        def is_close(dim: int) -> bool:
            return self.fit(dim).judged.tv_mean <= tv

        size, _, stopped = smallest_size(is_close, self.passages.dim, self.running, self.step)
        return size or self.passages.dim, stopped

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
            dtype=self.running.dtype,
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
            **vars(parts),
            seconds=time.perf_counter() - begun,
            settings={
                "dim": dim,
                "tv": tv,
                "effort": self.running.effort,
                "descents": {d: self.tried[d].report for d in sorted(self.tried)},
            },
        )
