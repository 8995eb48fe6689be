"""Fits as points of a sweep: a random regular pattern, a method, a head size, and what came out.

Budgets are steps of the learned method, so that they mean the same on every machine. Seconds are
processor seconds of the process, with one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import rings
from common import Row, Rows, Value, rounded

import headfit as hf

BASE: dict[str, Value] = {
    "method": "learned", "n": 512, "k": 4, "gamma": 2.0, "leak": 0.05, "distortion": 0.1,
    "dtype": "float32", "max_norm": None, "steps": 15_000, "dim": None, "seed": 0,
}  # fmt: skip


LEARNED: dict[Any, dict[str, Any]] = {
    "learned": {}, "learned, with room": {},
    "learned, patient": {"effort": "medium", "reheats": 100},
}  # fmt: skip
"""The options of the learned method: as it is; for sizes well above the smallest, which take few
steps; and for sizes that it just misses."""


def changed(base: Mapping[str, Value], /, **changes: Value) -> Row:
    """Return a point that differs from a base point in some values."""
    unknown = set(changes) - set(base)
    if unknown:
        raise KeyError(unknown)
    return {**base, **changes}


point = partial(changed, BASE)


def run(
    *, method: str, n: int, k: int, gamma: float, leak: float, distortion: float, dtype: str,
    max_norm: float | None, steps: int, dim: int | None, seed: int,
) -> Row:  # fmt: skip
    """Fit a head to a random k-regular pattern, and return what came out.

    Where there is no size, the smallest one of the projection is searched for, or a lower bound on
    all sizes is proved.
    """
    A = hf.patterns.random_regular(n, k, gamma=gamma, rng=seed)
    asked = {"leak": leak, "distortion": distortion}
    if method == "lower bound":
        return proved(A, max_norm, **asked)
    if dim is None:
        return smallest_projection(A, seed, **asked)
    return fitted(A, method, dim, steps, seed, max_norm=max_norm, dtype=dtype, **asked)


def fitted(
    A: Any, method: str | hf.methods.Method, dim: int, steps: int, rng: Any, *,
    max_norm: float | None = None, **asked: Any,
) -> Row:  # fmt: skip
    """Fit a head of one size within a number of steps, and return what came out.

    A method that is an object has its own budget and bound on norms.
    """
    start = time.process_time()
    if method in LEARNED:
        how: Any = hf.methods.Learned(
            max_norm=max_norm, callback=lambda step, *_: step < steps, **LEARNED[method]
        )
    elif method == rings.WAY:
        how = hf.methods.MaxMargin(keys=rings.keys(A, dim).astype(asked.get("dtype", "float32")))
    elif method in ("random keys", "cyclic keys"):
        how = hf.methods.MaxMargin(keys=method.removesuffix(" keys"), max_norm=max_norm)
    else:
        how = method
    head = hf.fit(A, dim, method=how, rng=rng, certificate_mass=False, num_threads=1, **asked)
    proof = head.certificate
    taken = head.settings.get("learned", {}).get("steps")
    return {
        "certified": proof.holds,
        "stopped": "step budget" if head.stopped == "callback" else head.stopped,
        "steps_taken": taken,
        "rows_left": None if head.failed_rows is None else int(head.failed_rows.size),
        "norm": rounded(proof.scale * proof.q_norm * proof.k_norm),
        "max_logit": rounded(proof.max_logit),
        "cpu_seconds": rounded(time.process_time() - start, 3),
    }


def proved(A: Any, max_norm: float | None = None, time_limit: float = 20.0, **asked: Any) -> Row:
    """Prove that a size is necessary, and return it with the kind of the proof."""
    start = time.process_time()
    limits = {} if max_norm is None else {"max_norm": max_norm}
    bound = hf.bounds.lower(A, time_limit=time_limit, **limits, **asked)
    best = next((c.name for c in bound.candidates if c.dim == bound.dim), "trivial")
    seconds = rounded(time.process_time() - start, 3)
    return {"dim_found": bound.dim, "stopped": best, "cpu_seconds": seconds}


def smallest_projection(A: Any, seed: int, **asked: float) -> Row:
    """Double the size of the projection until it certifies, then bisect to 3%."""
    start = time.process_time()

    def holds(dim: int) -> bool:
        return bool(fitted(A, "projection", dim, 0, seed, **asked)["certified"])

    low, high = 512, 1024
    while not holds(high):
        low, high = high, 2 * high
    while high > 1.03 * low:
        middle = round((low * high) ** 0.5)
        low, high = (low, middle) if holds(middle) else (middle, high)
    seconds = rounded(time.process_time() - start, 3)
    return {"certified": True, "dim_found": high, "cpu_seconds": seconds}


Trials = Generator[list[tuple[int, int]], list[bool], None]


@dataclass(frozen=True)
class Search:
    """A search for the smallest size that certifies on all seeds, for a point without size.

    It starts at `first`, which is a guess or known from earlier runs, and goes down while every
    seed certifies, to `lowest` at most. Where `first` does not certify it goes up by 1, 2, 4, ...,
    `further` sizes at most, until they do, and bisects what lies between.
    """

    point: Mapping[str, Value]
    first: int
    seeds: Sequence[int] = (0, 1, 2)
    lowest: int = 1
    further: int = 6

    def trials(self) -> Trials:
        """Yield lists of (size, seed) to try; it is sent which of them were certified."""
        dim = self.first
        if (yield from self._certify(dim)):
            while dim > self.lowest and (yield from self._certify(dim - 1)):
                dim -= 1
            return
        low, step, last = dim, 1, self.first + self.further
        while low < last and not (yield from self._certify(min(low + step, last))):
            low, step = min(low + step, last), 2 * step
        high = min(low + step, last)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if (yield from self._certify(middle)) else (middle, high)

    def _certify(self, dim: int) -> Generator[list[tuple[int, int]], list[bool], bool]:
        """Try the first seed, then the others: a size is given up at the first that fails."""
        for part in (self.seeds[:1], self.seeds[1:]):
            if part and not all((yield [(dim, seed) for seed in part])):
                return False
        return True


def make_searches(
    rows: Rows, searches: Iterable[Search], complete: Callable[..., Row] = point
) -> None:
    """Make searches side by side, so that a sweep has many points at a time.

    `complete` makes a whole point of that of a search with a size and a seed.
    """
    running = [(s.point, trials, next(trials)) for s in searches for trials in [s.trials()]]
    while running:
        rows.of(complete(**p, dim=d, seed=s) for p, _, pairs in running for d, s in pairs)
        following = []
        for p, trials, pairs in running:
            held = [bool(rows[complete(**p, dim=d, seed=s)]["certified"]) for d, s in pairs]
            with suppress(StopIteration):
                following.append((p, trials, trials.send(held)))
        running = following


def smallest(rows: Iterable[Row], given: Mapping[str, Value]) -> Row | None:
    """Return the smallest size that certified on all seeds tried, with its worst figures.

    `less` tells whether one dimension less was tried, and so was not found within the budget.
    None where no size certified.
    """
    tried: dict[int, list[Row]] = {}
    for row in rows:
        if all(row[name] == value for name, value in given.items()):
            tried.setdefault(int(row["dim"] or 0), []).append(row)
    held = [dim for dim, trials in tried.items() if all(row["certified"] for row in trials)]
    if not held:
        return None
    dim = min(held)
    best = tried[dim]
    return {
        "dim": dim,
        "seeds": len(best),
        "less": dim - 1 in tried,
        "norm": max(float(row["norm"] or 0) for row in best),
        "least_norm": min(float(row["norm"] or 0) for row in best),
        "cpu_seconds": median(float(row["cpu_seconds"] or 0) for row in best),
    }
