"""Curve 7: how hard the search for small heads is in practice.

Left: near the largest n that a head size holds, how many of the random patterns certify within
the budget, and after how many steps. Middle: one pattern, many starts of the search. Right: for few
tokens, how often the proved lower bound and the smallest head found meet.
"""

from __future__ import annotations

from functools import partial
from math import inf
from statistics import mean, median
from typing import Any

import matplotlib.pyplot as plt
import rings
from common import Row, Rows, Settings, Value, compute_and_draw, rounded, save
from fits import Search, changed, fitted, make_searches, proved, smallest

import headfit as hf

BASE: dict[str, Value] = {
    "method": "learned", "n": 64, "k": 4, "steps": 40_000, "dim": None, "seed": 0, "start": None,
}  # fmt: skip
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8a8f94"


complete = partial(changed, BASE)


def run(
    *, method: str, n: int, k: int, steps: int, dim: int | None, seed: int, start: int | None
) -> Row:
    """Search one head from one start, or prove a lower bound.

    `seed` makes the pattern; `start` the first queries and keys, as `seed` does when it is None.
    """
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=seed)
    if method == "lower bound":
        return proved(A, time_limit=2.0)
    assert dim is not None
    return fitted(A, method, dim, steps, seed if start is None else 1000 + start)


def by_hand(n, seed):
    """Return the fit of rings on a circle or a sphere, for a pattern with k = 2."""
    A = hf.patterns.random_regular(n, 2, gamma=2.0, rng=seed)
    dim = 2 if len(rings.rings(A)) == 1 else 3
    return complete(method=rings.WAY, n=n, k=2, dim=dim, seed=seed)


def near(dim, sizes, seeds, steps=40_000):
    """Return fits of one head size to patterns of several n."""
    return [complete(n=n, dim=dim, seed=s, steps=steps) for n in sizes for s in range(seeds)]


def starts(n, dim, patterns, count, steps=40_000):
    """Return fits from several starts for each of some patterns."""
    return [
        complete(n=n, dim=dim, seed=s, start=t, steps=steps)
        for s in range(patterns)
        for t in range(count)
    ]


# Tokens, nonzeros per row, and how many patterns of each.
FEW = {
    "tiny": ((8, 16), (2,), 1),
    "quick": ((8, 12, 16, 24, 32), (2, 4), 2),
    "full": ((8, 12, 16, 24, 32, 48, 64), (2, 3, 4), 5),
}
FEW_STEPS = 10_000
CUTS = (1500, 3000, 6000, 12_000)  # steps after which a start might be ended
NEAR = {
    "tiny": near(4, (16, 24), 1, 3000),
    "quick": near(5, (64, 96, 128), 3),
    "full": near(5, (64, 96, 112, 128, 144, 160), 6) + near(6, (384, 512, 768), 3)
    + near(5, (80, 192), 10) + near(5, (64, 96, 112, 128, 144, 160), 10)
    + near(6, (256, 384, 512, 640, 768, 1024), 5),
}  # fmt: skip
STARTS = {
    "tiny": starts(16, 4, 1, 2, 3000),
    "quick": starts(128, 5, 1, 4),
    "full": starts(128, 5, 4, 8) + starts(128, 5, 10, 10),
}


def few(sizes, degrees, seeds):
    """Return the searches for few tokens, and the points of lower bounds and of heads by hand."""
    cells = [{"n": n, "k": k} for n in sizes for k in degrees if k < n]
    # Each pattern has a search of its own: its size shall be compared with its own bound.
    searches = [
        Search({**c, "steps": FEW_STEPS}, c["k"], (s,), further=12)
        for c in cells for s in range(seeds)
    ]  # fmt: skip
    bounds = [complete(**c, method="lower bound", seed=s) for c in cells for s in range(seeds)]
    drawn = [by_hand(n, s) for n in sizes for s in range(seeds) if 2 in degrees and n > 2]
    return searches, bounds + drawn


def meetings(rows: list[Row]) -> list[Row]:
    """Return for each n and k the mean bound and head, and on how many patterns they meet."""
    pairs: dict[tuple[Any, Any], list[tuple[int, int]]] = {}
    for row in rows:
        if row["method"] == "lower bound":
            about = {"method": "learned", "n": row["n"], "k": row["k"], "seed": row["seed"],
                     "steps": FEW_STEPS, "start": None}  # fmt: skip
            best = smallest(rows, about)
            if best:
                pair = int(row["dim_found"] or 0), int(best["dim"] or 0)
                pairs.setdefault((row["k"], row["n"]), []).append(pair)
    return [
        {"k": k, "n": n, "patterns": len(found), "met": sum(low == high for low, high in found),
         "proved": mean(low for low, _ in found), "found": mean(high for _, high in found),
         "gap": max(high - low for low, high in found)}
        for (k, n), found in sorted(pairs.items())
    ]  # fmt: skip


def draw(chosen: Settings, rows: list[Row]) -> None:
    """Draw the three pictures of the module's docstring, and print their numbers."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    draw_near(left, rows)
    draw_starts(middle, rows)
    draw_meetings(right, meetings(rows))
    note = ("random k-regular patterns, leak 0.05, distortion 0.1, weight ratios up to 2; learned "
            "method; a fit that is not certified was not found within its budget")  # fmt: skip
    save(figure, chosen, note, rows)
    proofs = {(r["n"], r["k"], r["seed"]): r["dim_found"] for r in rows
              if r["method"] == "lower bound"}  # fmt: skip
    drawn = [r for r in rows if r["method"] == rings.WAY]
    met = [r for r in drawn if r["certified"] and proofs[r["n"], 2, r["seed"]] == r["dim"]]
    print(f"k = 2, {rings.WAY}: certified at the size that is proved necessary on {len(met)} of "
          f"{len(drawn)}")  # fmt: skip


def draw_near(ax, rows):
    """Draw the share of patterns that certify, over n, for each size."""
    tried: dict[Any, dict[Any, list[Row]]] = {}
    for row in rows:
        if row["method"] == "learned" and row["start"] is None and row["steps"] != FEW_STEPS:
            tried.setdefault(row["dim"], {}).setdefault(row["n"], []).append(row)
    for (dim, by_n), color in zip(sorted(tried.items()), (BLUE, ORANGE, GREEN), strict=False):
        sizes = sorted(by_n)
        shares = [sum(bool(r["certified"]) for r in by_n[n]) / len(by_n[n]) for n in sizes]
        most = max(int(r["steps"] or 0) for n in sizes for r in by_n[n])
        ax.plot(sizes, shares, "o-", color=color, label=f"d = {dim}, {most:,} steps at most")
        for n, share in zip(sizes, shares, strict=True):
            steps = [int(r["steps_taken"] or 0) for r in by_n[n] if r["certified"]]
            print(f"d = {dim}, n = {n}: {share:.0%} of {len(by_n[n])} certified; steps "
                  f"{min(steps, default=0):,} to {max(steps, default=0):,}, median "
                  f"{median(steps) if steps else 0:,.0f}")  # fmt: skip
            if steps:
                ax.annotate(thousands(median(steps)), (n, share), xytext=(-3, 5), fontsize=7.5,
                            textcoords="offset points", rotation=55, color=color)  # fmt: skip
    ax.set(ylim=(-0.04, 1.2), xlabel="tokens n", ylabel="share of patterns certified", xscale="log")
    ax.set_title("Near the largest n: success, and median steps", fontsize=10)
    sizes = [n for by_n in tried.values() for n in by_n] or [64]
    set_ticks(ax, [2**e for e in range(4, 11) if min(sizes) <= 2**e <= 1.4 * max(sizes)])
    if tried:
        ax.legend(fontsize=8, frameon=False, loc="center left")
    ax.grid(alpha=0.25, linewidth=0.6)


def draw_starts(ax, rows):
    """Draw the steps until each start certified, for each pattern, sorted."""
    by_seed: dict[Any, list[Row]] = {}
    for row in rows:
        if row["start"] is not None:
            by_seed.setdefault(row["seed"], []).append(row)
    if not by_seed:
        return
    any_row = next(iter(by_seed.values()))[0]
    limit = int(any_row["steps"] or 0)
    for x, (seed, tried) in enumerate(sorted(by_seed.items())):
        held = [int(r["steps_taken"] or 0) for r in tried if r["certified"]]
        lost = len(tried) - len(held)
        print(f"pattern {seed}: {len(held)} of {len(tried)} starts certified; steps {sorted(held)}")
        taken, certified = [r["steps_taken"] for r in tried], [r["certified"] for r in tried]
        costs = {cut: cost_of_restarts(taken, certified, cut) for cut in (*CUTS, limit)}
        print("  mean steps with restarts after "
              + ", ".join(f"{cut:,}: {cost:,.0f}" for cut, cost in costs.items()))  # fmt: skip
        ax.plot([x] * len(held), held, "o", color=BLUE, alpha=0.7,
                label="certified" if x == 0 else None)  # fmt: skip
        if lost:
            ax.plot([x], [limit], "X", color=ORANGE, markersize=8)
            ax.annotate(f"{lost} of {len(tried)}", (x, limit), xytext=(0, 7), fontsize=8,
                        textcoords="offset points", ha="center", color=ORANGE)  # fmt: skip
    ax.plot([], [], "X", color=ORANGE, markersize=8, label="not within the budget")
    ax.set(yscale="log", xlabel="pattern", ylabel="steps", xlim=(-0.6, len(by_seed) - 0.4))
    ax.set_ylim(top=5 * limit)
    ax.set_xticks(range(len(by_seed)))
    ax.set_title(f"Restarts: n = {any_row['n']}, k = {any_row['k']}, d = {any_row['dim']}",
                 fontsize=10)  # fmt: skip
    ax.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
    ax.grid(alpha=0.25, linewidth=0.6)


def cost_of_restarts(steps: list[int], certified: list[bool], cut: int) -> float:
    """Return the mean steps until a start certifies, where each is ended after `cut` steps.

    The starts that were made stand for all; infinite where none of them certifies by then.
    """
    held = [taken for taken, holds in zip(steps, certified, strict=True) if holds and taken <= cut]
    if not held:
        return inf
    return mean(held) + cut * (len(steps) - len(held)) / len(held)


def draw_meetings(ax, met):
    """Draw the means of the heads found and of the bounds proved, and how often they meet."""
    degrees = sorted({row["k"] for row in met})
    for k, color in zip(degrees, (BLUE, ORANGE, GREEN), strict=False):
        part = [row for row in met if row["k"] == k]
        sizes = [row["n"] for row in part]
        ax.plot(sizes, [r["found"] for r in part], "o-", color=color, label=f"k = {k}: found")
        ax.plot(sizes, [r["proved"] for r in part], "o--", color=color, markersize=4,
                markerfacecolor="white", label=f"k = {k}: proved")  # fmt: skip
        for r in part:
            print(f"k = {k}, n = {r['n']}: mean found {r['found']:.1f}, proved "
                  f"{r['proved']:.1f}; met on {r['met']} of {r['patterns']}, at most "
                  f"{r['gap']} apart")  # fmt: skip
            if r["met"]:
                ax.annotate(f"{r['met']}/{r['patterns']}", (r["n"], r["found"]), xytext=(0, 6),
                            textcoords="offset points", ha="center", fontsize=7.5,
                            color=color)  # fmt: skip
    ax.set(xlabel="tokens n", ylabel="head size d, mean of the patterns", xscale="log")
    ax.set_ylim(0, 1.45 * max((r["found"] for r in met), default=1))
    ax.set_title("Few tokens: found and proved, and how often they meet", fontsize=10)
    set_ticks(ax, sorted({r["n"] for r in met}))
    ax.legend(fontsize=7.5, frameon=False, ncols=len(degrees), loc="upper left", columnspacing=1.0)
    ax.grid(alpha=0.25, linewidth=0.6)


def set_ticks(ax, values):
    """Label a logarithmic axis at these values."""
    ax.set_xticks(values, [f"{v:,}" for v in values], fontsize=8)
    ax.minorticks_off()


def thousands(count: float) -> str:
    """Return a number of steps in short."""
    return f"{rounded(count / 1000, 2):g}k"


def compute(chosen: Settings, rows: Rows) -> None:
    """Compute the rows of the plan."""
    searches, bounds = few(*chosen.pick(**FEW))
    rows.of(bounds)
    make_searches(rows, searches, complete)
    rows.of(chosen.pick(**STARTS))
    rows.of(chosen.pick(**NEAR))


if __name__ == "__main__":
    compute_and_draw("hardness", __doc__, run, compute, draw)
