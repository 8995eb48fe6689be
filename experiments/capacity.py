"""Curve 9: capacity, the largest n whose random patterns a head size certifies.

For a head size d the tokens n climb a ladder, four rungs for each doubling, until no pattern of a
rung certifies within the budget of steps: with the six reheats that a quench has by default
(`Learned`), and with a hundred. Left: the share of the patterns that certify, over n. Middle: the
largest n of each size, and by what it grows per dimension. Right: the steps that the fits took,
which grow near the end of every ladder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from common import Row, Rows, Settings, compute_and_draw, rounded, save, write_csv
from fits import fitted

import headfit as hf

LADDER = tuple(step << double for double in range(15) for step in (4, 5, 6, 7))
COLORS = ("#8a8f94", "#56B4E9", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#000000")
FEW, MANY = 6, 100  # reheats


class FewestLeft:
    """A callback that ends a fit after some steps, and keeps the scan with the fewest rows left."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rows: int | None = None
        self.deficit = 0.0

    def __call__(self, step: int, left: int, deficit: float) -> bool:
        """Look at a scan, and tell whether to go on."""
        if self.rows is None or (left, deficit) < (self.rows, self.deficit):
            self.rows, self.deficit = left, deficit
        return step < self.steps


def run(*, n: int, k: int, dim: int, steps: int, effort: int, reheats: int, seed: int) -> Row:
    """Fit a head to a random pattern, and return what came out.

    `fewest_left` is the smallest number of rows outside the tolerances that a scan found, and
    `worst_deficit` by how many units of logits the worst of them missed.
    """
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=seed)
    best = FewestLeft(steps)
    method = hf.methods.Learned(effort=effort, reheats=reheats, callback=best)
    found = fitted(A, method, dim, steps, seed, leak=0.05, distortion=0.1)
    return {**found, "fewest_left": best.rows, "worst_deficit": rounded(best.deficit, 3)}


@dataclass(frozen=True)
class Climb:
    """The rungs to try for one head size, with a number of patterns on each.

    From `first`, which is a guess, the climb goes down until every pattern certifies, and up until
    none does.
    """

    k: int
    dim: int
    first: int
    seeds: int = 3
    steps: int = 60_000
    effort: int = 1000
    reheats: int = MANY

    def points(self, n: int) -> list[Row]:
        """Return the points of a rung."""
        return [
            {"n": n, "k": self.k, "dim": self.dim, "steps": self.steps, "effort": self.effort,
             "reheats": self.reheats, "seed": seed}
            for seed in range(self.seeds)
        ]  # fmt: skip

    def make(self, rows: Rows) -> None:
        """Compute the points of this climb that the CSV file lacks."""

        def held(n: int) -> int:
            return sum(bool(row["certified"]) for row in rows.of(self.points(n)))

        start = LADDER.index(self.first)
        lowest = next(at for at, n in enumerate(LADDER) if n > self.k)
        at = start
        while held(LADDER[at]) < self.seeds and at > lowest:
            at -= 1
        at = start
        while held(LADDER[at]) > 0:
            at += 1


PLANS = {
    "tiny": (Climb(2, 3, 8, 1, 2000, 100), Climb(4, 4, 14, 1, 2000, 100, FEW)),
    "quick": (
        Climb(4, 3, 10, 3, 10_000), Climb(4, 4, 24, 3, 10_000), Climb(4, 5, 128, 3, 10_000),
        Climb(4, 4, 20, 3, 10_000, reheats=FEW), Climb(4, 5, 96, 3, 10_000, reheats=FEW),
        Climb(2, 3, 16, 3, 10_000),
    ),
    "full": (
        Climb(4, 3, 6), Climb(4, 4, 28, 8), Climb(4, 5, 192, 9, 200_000),
        Climb(4, 3, 6, reheats=FEW), Climb(4, 4, 20, 8, reheats=FEW),
        Climb(4, 5, 128, reheats=FEW),
        Climb(2, 2, 5), Climb(2, 3, 24), Climb(8, 6, 16, steps=20_000),
        Climb(4, 6, 896, 6, 200_000),
        Climb(8, 7, 28, steps=20_000), Climb(8, 8, 56, steps=20_000),
        Climb(8, 9, 128, steps=20_000), Climb(8, 10, 448, steps=20_000),
        Climb(4, 7, 2560, steps=30_000),
        # From here on hours.
        Climb(4, 7, 3072, steps=100_000), Climb(4, 8, 6144, steps=30_000),
        Climb(8, 11, 768, steps=20_000), Climb(8, 12, 1280, steps=20_000),
        Climb(4, 6, 512, steps=30_000, reheats=FEW), Climb(2, 3, 24, reheats=FEW),
        Climb(8, 6, 16, steps=20_000, reheats=FEW),
    ),
}  # fmt: skip


def rungs(rows: Iterable[Row]) -> list[Row]:
    """Return for each size and n how many patterns were tried and held, and the steps of these.

    Where a pattern was tried with several budgets of steps, the fit with the largest counts.
    """
    longest: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: int(row["steps"] or 0)):
        longest[tuple(row[name] for name in ("k", "reheats", "dim", "n", "seed"))] = row
    tried: dict[tuple[Any, ...], list[Row]] = {}
    for (*cell, _), row in longest.items():
        tried.setdefault(tuple(cell), []).append(row)
    return [
        {"k": k, "reheats": reheats, "dim": dim, "steps": max(r["steps"] for r in found), "n": n,
         "patterns": len(found), "certified": len(held),
         "median_steps": median(r["steps_taken"] for r in held) if held else None,
         "median_norm": median(r["norm"] for r in held) if held else None,
         "fewest_left": min(r["fewest_left"] for r in found),
         "cpu_seconds": median(r["cpu_seconds"] for r in found)}
        for (k, reheats, dim, n), found in sorted(tried.items())
        for held in [[r for r in found if r["certified"]]]
    ]  # fmt: skip


def largest(table: Iterable[Row]) -> list[Row]:
    """Return for each k and size the largest n at which every, most, and any patterns certified.

    Most are at least half of them; `growth` is this n in multiples of that of one dimension less.
    """
    ladders: dict[tuple[Any, ...], list[Any]] = {}
    for row in table:
        ladders.setdefault((row["k"], row["reheats"], row["dim"]), []).append(row)
    most: dict[tuple[Any, ...], int] = {}
    found: list[Row] = []
    for (k, reheats, dim), ladder in sorted(ladders.items()):
        held = [(r["n"], r["certified"] / r["patterns"]) for r in ladder if r["certified"]]
        if not held:
            continue
        most[k, reheats, dim] = max((n for n, share in held if share >= 0.5), default=0)
        before = most.get((k, reheats, dim - 1))
        found.append({
            "k": k, "reheats": reheats, "dim": dim, "steps": max(r["steps"] for r in ladder),
            "patterns": max(r["patterns"] for r in ladder),
            "every": max((n for n, share in held if share == 1), default=None),
            "most": most[k, reheats, dim], "any": max(n for n, _ in held),
            "tried": max(r["n"] for r in ladder),
            "growth": rounded(most[k, reheats, dim] / before, 3) if before else None,
        })  # fmt: skip
    return found


def draw(chosen: Settings, rows: list[Row]) -> None:
    """Draw the three pictures of the module's docstring, and print and write their numbers."""
    table = rungs(rows)
    ends = largest(table)
    write_csv(chosen.out / "capacity-largest.csv", ends)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.8), layout="constrained")
    draw_ladders(left, right, table)
    draw_largest(middle, ends)
    for row in table:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    for row in ends:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    note = ("random k-regular patterns, leak 0.05, distortion 0.1, weight ratios up to 2; learned "
            "method; a fit that is not certified was not found within its budget")  # fmt: skip
    save(figure, chosen, note, rows)


def draw_ladders(left: Any, right: Any, table: list[Row]) -> None:
    """Draw the shares of patterns that certify (k = 4), and the median steps, over n."""
    ladders: dict[tuple[int, int], list[Any]] = {}
    for row in table:
        if row["k"] == 4:
            ladders.setdefault((int(row["dim"] or 0), int(row["reheats"] or 0)), []).append(row)
    for (dim, reheats), ladder in sorted(ladders.items()):
        look = look_of(reheats, COLORS[dim % len(COLORS)], f"d = {dim}")
        shares = [r["certified"] / r["patterns"] for r in ladder]
        left.plot([r["n"] for r in ladder], shares, **look)
        held = [r for r in ladder if r["certified"]]
        right.plot([r["n"] for r in held], [r["median_steps"] for r in held], **look)
    left.set(ylabel="share of patterns certified", ylim=(-0.04, 1.3),
             yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])  # fmt: skip
    left.set_title("k = 4: success within the budget", fontsize=10)
    right.set(ylabel="steps of the fits that certified, median", yscale="log")
    right.set_title("k = 4: what it takes", fontsize=10)
    # The lines of the left picture leave room for its legend above them only.
    for axes, legend in ((left, {"loc": "upper center", "ncols": 3}), (right, {})):
        axes.set(xscale="log", xlabel="tokens n")
        sizes = sorted({row["n"] for ladder in ladders.values() for row in ladder})
        finish(axes, sizes, "x", **legend)


def draw_largest(axes: Any, ends: list[Row]) -> None:
    """Draw the largest n with half of the patterns certified, over d, for every k."""
    for k, reheats in sorted({(int(row["k"] or 0), int(row["reheats"] or 0)) for row in ends}):
        part = [r for r in ends if (r["k"], r["reheats"]) == (k, reheats) and r["most"]]
        look = look_of(reheats, COLORS[k % len(COLORS)], f"k = {k}")
        axes.plot([r["dim"] for r in part], [r["most"] for r in part], **look)
        for row in part:
            if row["growth"] and reheats == MANY:
                axes.annotate(f"x {rounded(float(row['growth']), 2):g}", (row["dim"], row["most"]),
                              xytext=(5, -9), textcoords="offset points", fontsize=8,
                              color=look["color"])  # fmt: skip
    axes.set(yscale="log", xlabel="head size d", ylabel="tokens n, half of the patterns certified")
    axes.set_title("The largest n, and its growth per dimension", fontsize=10)
    axes.margins(x=0.14)  # for the labels
    axes.xaxis.get_major_locator().set_params(integer=True)
    finish(axes, [row["most"] for row in ends if row["most"]], "y")


def look_of(reheats: int, color: str, label: str) -> dict[str, Any]:
    """Return how a line is drawn: solid with many reheats, dashed with few."""
    if reheats == FEW:
        return {"marker": "o", "markerfacecolor": "white", "linestyle": "--", "color": color}
    return {"marker": "o", "color": color, "label": label}


def finish(axes: Any, values: list[Any], name: str, **legend: Any) -> None:
    """Label the logarithmic axis of n at powers of two, and add a grid and a legend."""
    low, high = min(values, default=8), max(values, default=8)
    powers = [2**e for e in range(16) if low / 2 <= 2**e <= 2 * high]
    getattr(axes, f"set_{name}ticks")(powers, [f"{n:,}" for n in powers], fontsize=8)
    getattr(axes, f"{name}axis").minorticks_off()
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.plot([], [], "o--", color="#555555", markerfacecolor="white", label=f"{FEW} reheats")
    axes.legend(fontsize=8, frameon=False, **legend)


def compute(chosen: Settings, rows: Rows) -> None:
    """Make the climbs of the plan."""
    for climb in chosen.pick(**PLANS):
        climb.make(rows)


if __name__ == "__main__":
    compute_and_draw("capacity", __doc__, run, compute, draw)
