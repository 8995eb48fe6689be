"""The design of a filter of a given size: frequencies are chosen, amplitudes are programmed.

Frequencies are laid out in combs of harmonics, and a few low ones.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np

from headfit._filter.demand import Demand
from headfit._filter.linear_program import COARSE, Solved, is_out_of_reach, solve, solve_with_moves
from headfit._filter.stencil import Floats, Stencil


@dataclass(frozen=True)
class Shape:
    """What the offsets of a stencil look like: a run of equal spacing, and repeats far away.

    Attributes
    ----------
    width : int
        The offsets of the longest run, in steps of `spacing`.
    spacing : int
        The distance of neighbouring offsets in the run.
    stride : int or None
        The distance of the offsets outside the run, if they are evenly spaced.
    reach : int
        The largest |offset| that the mask allows.
    """

    width: int
    spacing: int
    stride: int | None
    reach: int

    @classmethod
    def of(cls, stencil: Stencil) -> Self:
        """Describe a stencil."""
        offsets, reach = stencil.offsets, max(-stencil.first, stencil.last, 1)
        if stencil.wraps:  # one period says all
            offsets = offsets[(offsets > -stencil.n / 2) & (offsets <= stencil.n / 2)]
        steps = np.diff(offsets)
        if steps.size == 0:
            return cls(1, 1, None, reach)
        spacing = int(steps[np.argmin(np.abs((offsets[1:] + offsets[:-1]) / 2))])
        runs = np.split(offsets, np.flatnonzero(steps != spacing) + 1)
        sizes, counts = np.unique(steps[steps != spacing], return_counts=True)
        stride = int(sizes[np.argmax(counts)]) if sizes.size else None
        return cls(max(map(len, runs)), spacing, stride, reach)


Tried: TypeAlias = "Layout | Modulated"


def _changed(layout: Tried, options: Mapping[str, Sequence[Any]]) -> Iterator[Tried]:
    """Yield layouts in which one number has another of the values that it may have."""
    for name, values in options.items():
        for value in values:
            if value != getattr(layout, name):
                yield replace(layout, **{name: value})


@dataclass(frozen=True)
class Layout:
    """A set of frequencies, described by a few numbers that are searched one at a time.

    Attributes
    ----------
    phase : float
        The phase of the first harmonic over the width of the window. Below 2 pi the window does
        not reach its own repeat; above about 4 the harmonics suffice for a sharp edge.
    lows : int
        How many low frequencies tell the repeats of the window apart, spaced evenly in logarithm.
    lowest : float
        The least of them, in multiples of pi over the largest offset.
    top : float
        The largest of them, as a share of the first harmonic.
    share : float
        The share of all frequencies that goes to each comb of a spacing or stride.
    """

    phase: float = 5.5
    lows: int = 3
    lowest: float = 1.25
    top: float = 0.5
    share: float = 0.3

    def neighbours(self, shape: Shape) -> Iterator[Tried]:
        """Yield layouts that differ in a single number."""
        lows = [self.lows + more for more in (1, -1, 2, -2) if self.lows + more >= 0]
        has_combs = shape.spacing > 1 or shape.stride is not None
        options = {n: x for n, x in OPTIONS.items() if has_combs or n != "share"}
        return _changed(self, {"lows": lows, **options})

    def frequencies(self, stencil: Stencil, shape: Shape, count: int) -> Floats | None:
        """Return at most `count` frequencies; None if so few cannot be laid out this way."""
        most = max(1, round(self.share * count))
        combs = [
            2 * np.pi / period * np.arange(1, min(period // 2, most) + 1)
            for period in (shape.spacing, shape.stride)
            if period is not None and period > 1
        ]
        harmonics = count - self.lows - sum(comb.size for comb in combs)
        if harmonics < 0 or self.lows < 0 or (harmonics == 0 and not combs):
            return None
        span = shape.width * shape.spacing
        # No harmonic exceeds pi: a small window has a longer period instead.
        base = min(self.phase, np.pi * span / max(harmonics, 1)) / span
        largest = min(self.top * base, np.pi)
        least = min(self.lowest * np.pi / shape.reach, largest)
        low = np.geomspace(least, largest, self.lows, endpoint=self.top < 1 or self.lows == 1)
        frequencies = np.concatenate([base * np.arange(1, harmonics + 1), *combs, low])
        if stencil.wraps:
            step = 2 * np.pi / stencil.n
            frequencies = step * np.maximum(np.round(frequencies / step), 1)
        return np.unique(np.round(np.minimum(frequencies, np.pi), 12))


# What is tried for each number of a layout, likely ones first.
OPTIONS: dict[str, tuple[float, ...]] = {
    "phase": (5.5, 5.8, 5.0, 4.5, 4.0),
    "share": (0.3, 0.15, 0.5),
    "top": (0.5, 1.0, 0.3),
    "lowest": (1.25, 0.9),
}
# Each low frequency tells repeats apart over about so many octaves of distance.
OCTAVES = 2.6


@dataclass(frozen=True)
class Modulated:
    """Harmonics of a stride, and bands on both sides of each: for a window beside a stride.

    Logits that repeat with the stride, plus a slowly falling envelope times others that do: the
    first produce the stride, the second the window and nothing at its repeats. The product of
    cos(v x) and cos(w x) has the frequencies w - v and w + v.

    Attributes
    ----------
    teeth : int
        How many harmonics of the stride there are at most.
    sides : int
        How many low frequencies the envelope has.
    lowest : float
        The least of them, in multiples of pi over the largest offset.
    """

    teeth: int = 24
    sides: int = 2
    lowest: float = 1.2

    def neighbours(self, shape: Shape) -> Iterator[Tried]:
        """Yield layouts that differ in a single number."""
        options = {"teeth": (6, 10, 16, 24, 32), "sides": (1, 2, 3), "lowest": (1.2, 2.4, 0.9)}
        return _changed(self, options)

    def frequencies(self, stencil: Stencil, shape: Shape, count: int) -> Floats | None:
        """Return at most `count` frequencies; None if so few cannot be laid out this way."""
        if shape.stride is None or stencil.wraps:
            return None
        base = 2 * np.pi / shape.stride
        teeth = base * np.arange(1, min(self.teeth, shape.stride // 2) + 1)
        slow = self.lowest * np.pi / shape.reach
        most = max(slow, base / 8)
        low = np.array([4 * slow]) if self.sides == 1 else np.geomspace(slow, most, self.sides)
        core = np.concatenate([teeth, low])
        if core.size > count:
            return None
        bands = np.sort(np.concatenate([np.add.outer(teeth, low), np.subtract.outer(teeth, low)]))
        parts = [core, np.sort(bands.ravel())[: count - core.size]]
        spare = count - core.size - parts[1].size
        if spare > 0:  # halfway between the harmonics, for the edges of the window
            parts.append(base * (np.arange(1, spare + 1) - 0.5))
        frequencies = np.unique(np.round(np.concatenate(parts), 12))
        return frequencies[(frequencies > 0) & (frequencies <= np.pi)]


def first_layouts(shape: Shape, count: int) -> list[Tried]:
    """Return layouts that are likely to suit a stencil."""
    octaves = math.log2(max(1.0, shape.reach / (shape.width * shape.spacing)))
    plain = Layout(lows=min(round(octaves / OCTAVES), max(count // 3, 1)))
    if shape.stride is None:
        return [plain]
    few, many = Modulated(teeth=6, sides=1), Modulated(teeth=24)
    return [plain, many, few, *few.neighbours(shape), *many.neighbours(shape)]


# A layout is better if its norm is below this share of the best one's.
ENOUGH = 0.99
# The first radius of the moves, in radians at the farthest offset, and the least one.
FIRST, LEAST = 1.0, 1e-3
# A step that gains this share of what the program predicted lets the radius grow.
TRUSTED = 0.5


def design(
    demand: Demand,
    dim: int,
    *,
    max_norm: float = math.inf,
    deadline: float = math.inf,
    moves: int = 20,
) -> Solved | None:
    """Return the filter of least norm that is found at a size, or None if none is feasible.

    Parameters
    ----------
    demand : Demand
    dim : int
        At most so many dimensions, two for each frequency.
    max_norm : float
        Filters whose amplitudes sum to more are none.
    deadline : float
        The value of ``time.perf_counter()`` after which nothing more is tried.
    moves : int
        The most steps that move the frequencies of the best layout.

    Notes
    -----
    The amplitudes are optimal for their frequencies, up to 2%. Layouts of frequencies are
    searched one number at a time, until no neighbour of the best is better; then its frequencies
    are moved as long as the norm falls. Other frequencies are not tried.
    """
    if dim < 2:
        return None
    shape, stencil = Shape.of(demand.stencil), demand.stencil
    even, starts = stencil.is_symmetric, first_layouts(shape, dim // 2)
    options: Any = {"even": even, "deadline": deadline}

    def searched(demand: Demand, starts: Sequence[Tried]) -> tuple[Solved, Tried] | None:
        """Return the best filter that is found by changing one number of a layout at a time."""
        best: tuple[Solved, Tried] | None = None
        seen: set[bytes] = set()
        waiting: list[Tried] = [*starts, *starts[0].neighbours(shape)]
        while waiting and time.perf_counter() < deadline:
            layout = waiting.pop(0)
            frequencies = layout.frequencies(stencil, shape, dim // 2)
            if frequencies is None or frequencies.tobytes() in seen:
                continue
            seen.add(frequencies.tobytes())
            limit = max_norm if best is None else best[0].filter.norm * ENOUGH
            if math.isfinite(limit) and is_out_of_reach(frequencies, demand, limit, even):
                continue
            solved = solve(frequencies, demand, norm_limit=limit, directions=COARSE, **options)
            if solved is not None and solved.meets and solved.filter.norm < limit:
                best = solved, layout
                waiting = list(layout.neighbours(shape))
        return best

    solved = searched(demand, starts)
    if solved is None and demand.tolerances.max_logit is not None:
        # A bound on the logits leaves few layouts: begin with one that is good without it.
        near = searched(Demand(stencil, replace(demand.tolerances, max_logit=None)), starts)
        solved = near and searched(demand, [near[1]])
    if solved is None:
        return None
    # Where offsets wrap around, frequencies must stay multiples of 2 pi / n.
    best = solved[0] if stencil.wraps else _moved(solved[0], demand, moves, shape.reach, options)
    final = solve(best.filter.frequencies, demand, best.offsets, **options)
    is_better = final and final.meets and final.filter.norm <= best.filter.norm * (1 + 1e-9)
    return final if is_better else best


def _moved(start: Solved, demand: Demand, steps: int, reach: int, options: Any) -> Solved:
    """Return a filter of no larger norm, whose frequencies lie near those of another.

    Each step solves the program linearised in the frequencies, within a radius, and then the exact
    one for the frequencies that come out: a trust-region method.
    """
    best, radius = start, FIRST
    for _ in range(steps):
        if time.perf_counter() >= options["deadline"] or radius < LEAST:
            break
        radii = radius * np.minimum(1 / reach, 0.3 * best.filter.frequencies)
        moved, norm = solve_with_moves(best, demand, radii, options["even"]), best.filter.norm
        solved = moved and solve(
            moved[0], demand, best.offsets, norm_limit=norm, directions=COARSE, **options
        )
        if moved and solved and solved.meets and solved.filter.norm < norm:
            radius *= 2 if norm - solved.filter.norm > TRUSTED * (norm - moved[1]) else 1
            best = solved
        else:
            radius /= 3
    return best
