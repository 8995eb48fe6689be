"""Curve 7: how hard the search for small heads is in practice.

Left: near the largest n that a head size holds, how many of the random patterns certify within
the budget, and after how many steps. Middle: one pattern, many starts of the search. Right: for few
tokens, how often the proved lower bound and the smallest head found meet.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from common import Row, Rows, Settings, Value, rounded, save, settings
from fits import Search, fitted, make_searches, proved, smallest

import headfit as hf

BASE: dict[str, Value] = {
    "method": "learned", "n": 64, "k": 4, "steps": 40_000, "dim": None, "seed": 0, "start": None,
}  # fmt: skip
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8a8f94"


def complete(**changes: Value) -> Row:
    """Return a point that differs from the base point in some values."""
    return {**BASE, **changes}


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
    """Return the searches for few tokens, and the points of their lower bounds."""
    cells = [{"n": n, "k": k} for n in sizes for k in degrees if k < n]
    # Each pattern has a search of its own: its size shall be compared with its own bound.
    searches = [
        Search({**c, "steps": FEW_STEPS}, c["k"], (s,), further=12)
        for c in cells for s in range(seeds)
    ]  # fmt: skip
    bounds = [complete(**c, method="lower bound", seed=s) for c in cells for s in range(seeds)]
    return searches, bounds


def meetings(rows: list[Row]) -> list[Row]:
    """Return for each n and k how often bound and head meet, and the gaps."""
    gaps: dict[tuple[Any, Any], list[int]] = {}
    for row in rows:
        if row["method"] == "lower bound":
            about = {"method": "learned", "n": row["n"], "k": row["k"], "seed": row["seed"],
                     "steps": FEW_STEPS, "start": None}  # fmt: skip
            best = smallest(rows, about)
            if best:
                gap = int(best["dim"] or 0) - int(row["dim_found"] or 0)
                gaps.setdefault((row["k"], row["n"]), []).append(gap)
    return [
        {"k": k, "n": n, "patterns": len(found), "met": found.count(0), "gaps": median(found),
         "most": max(found)}
        for (k, n), found in sorted(gaps.items())
    ]  # fmt: skip


def draw(chosen: Settings, rows: list[Row]) -> None:
    """Draw the three pictures of the module's docstring, and print their numbers."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    draw_near(left, rows)
    draw_starts(middle, rows)
    draw_meetings(right, meetings(rows))
    note = ("random k-regular patterns, leak 0.05, distortion 0.1, weight ratios up to 2; learned "
            "method; a fit that is not certified was not found within its budget")  # fmt: skip
    save(figure, chosen, note, rows)


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
                ax.annotate(thousands(median(steps)), (n, share), xytext=(0, 6), fontsize=7.5,
                            textcoords="offset points", ha="center", color=color)  # fmt: skip
    ax.set(
        ylim=(-0.04, 1.16), xlabel="tokens n", ylabel="share of patterns certified", xscale="log"
    )
    ax.set_title("Near the largest n: success, and median steps", fontsize=10)
    set_ticks(ax, sorted({n for by_n in tried.values() for n in by_n}))
    ax.legend(fontsize=8, frameon=False, loc="lower left")
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
        ax.plot([x] * len(held), held, "o", color=BLUE, alpha=0.7,
                label="certified" if x == 0 else None)  # fmt: skip
        if lost:
            ax.plot([x], [limit], "X", color=ORANGE, markersize=8,
                    label="not within the budget" if x == 0 else None)  # fmt: skip
            ax.annotate(f"{lost} of {len(tried)}", (x, limit), xytext=(0, 7), fontsize=8,
                        textcoords="offset points", ha="center", color=ORANGE)  # fmt: skip
    ax.set(yscale="log", xlabel="pattern", ylabel="steps", xlim=(-0.6, len(by_seed) - 0.4))
    ax.set_ylim(top=2 * limit)
    ax.set_xticks(range(len(by_seed)))
    ax.set_title(f"Restarts: n = {any_row['n']}, k = {any_row['k']}, d = {any_row['dim']}",
                 fontsize=10)  # fmt: skip
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    ax.grid(alpha=0.25, linewidth=0.6)


def draw_meetings(ax, met):
    """Draw how many dimensions lie between the proved bound and the head found."""
    degrees = sorted({row["k"] for row in met})
    for k, color in zip(degrees, (BLUE, ORANGE, GREEN), strict=False):
        part = [row for row in met if row["k"] == k]
        ax.plot([r["n"] for r in part], [r["gaps"] for r in part], "o-", color=color,
                label=f"k = {k}")  # fmt: skip
        for r in part:
            print(f"k = {k}, n = {r['n']}: met on {r['met']} of {r['patterns']}, median gap "
                  f"{r['gaps']}, largest {r['most']}")  # fmt: skip
            if r["met"]:
                ax.annotate(f"{r['met']}/{r['patterns']}", (r["n"], r["gaps"]), xytext=(0, 6),
                            textcoords="offset points", ha="center", fontsize=7.5,
                            color=color)  # fmt: skip
    ax.set(xlabel="tokens n", ylabel="dimensions between", xscale="log")
    ax.set_ylim(-0.2, 0.6 + max((r["gaps"] for r in met), default=1))
    ax.set_title("Proved bound and smallest head found: median gap,\nand how often they meet",
                 fontsize=10)  # fmt: skip
    set_ticks(ax, sorted({r["n"] for r in met}))
    ax.legend(fontsize=8, frameon=False)
    ax.grid(alpha=0.25, linewidth=0.6)


def set_ticks(ax, values):
    """Label a logarithmic axis at these values."""
    ax.set_xticks(values, [f"{v:,}" for v in values], fontsize=8)
    ax.minorticks_off()


def thousands(count: float) -> str:
    """Return a number of steps in short."""
    return f"{rounded(count / 1000, 2):g}k"


def main() -> None:
    """Run the plan of the size asked for, and draw it."""
    chosen = settings("hardness", __doc__)
    rows = Rows(chosen, run)
    if not chosen.only_draw:
        searches, bounds = few(*chosen.pick(**FEW))
        rows.of(bounds)
        make_searches(rows, searches, complete)
        rows.of(chosen.pick(**STARTS))
        rows.of(chosen.pick(**NEAR))
    draw(chosen, rows.rows)


if __name__ == "__main__":
    main()
