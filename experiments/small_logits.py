"""Curve 2: the price of small logits: the head size against N = scale max ||q|| max ||k||.

Small heads have long queries and keys. With a bound on N the smallest head found grows; the
lower bounds for bounded norms say how much of that is necessary. Heads in narrow dtypes
have a limit on N of their own, since rounding moves logits in proportion to it. With 8 bits it is
so low that several are tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import matplotlib.pyplot as plt
from common import compute_and_draw, save
from fits import Search, make_searches, point, run, smallest
from matplotlib.patheffects import withStroke

STEPS = 2000
FURTHER = 24  # how many sizes above that of the next larger bound are tried
NORMS = (256.0, 128.0, 64.0, 48.0, 32.0, 24.0, 16.0, 12.0, 10.0, 8.0)
FEWER_NORMS = (256.0, 64.0, 32.0, 16.0)
FREE = ("float32", "float16", "bfloat16")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Part:
    """What to search for one n and k.

    The sizes of float32 heads for each of `norms`, the bounds on N; the sizes in each of `dtypes`
    without a bound; and those in each of `short`, dtypes of 8 bits, for each of `short_norms`.
    """

    n: int
    k: int
    norms: tuple[float, ...] = ()
    dtypes: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    short_norms: tuple[float, ...] = (8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
    steps: int = STEPS


PLANS = {
    "tiny": (Part(32, 2, (32.0,), FREE[:1]),),
    "quick": (Part(128, 4, (128.0, 64.0, 32.0, 16.0), FREE, FLOAT8[:1]),),
    "full": (
        Part(512, 4, NORMS, FREE, FLOAT8), Part(512, 8, NORMS, FREE, FLOAT8),
        Part(4096, 4, NORMS[:-2], FREE), Part(16_384, 4, FEWER_NORMS, FREE),
        Part(4096, 8, FEWER_NORMS, FREE), Part(16_384, 8, FEWER_NORMS[:-1], FREE),
        Part(4096, 4, short=FLOAT8, short_norms=(24.0, 32.0)),
        # With 2,000 steps no size up to 44 certifies here.
        Part(4096, 4, NORMS[-2:], steps=10_000),
    ),
}  # fmt: skip
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = {2: "-.", 4: "--", 8: ":"}
MARKERS = {"float32": "o", "float16": "s", "bfloat16": "D", "float8_e4m3fn": "^",
           "float8_e5m2": "v"}  # fmt: skip


def first(n, k):
    """Return the size to start from without a bound on N."""
    return max(2, round(1.5 + 1.08 * k + 0.2 * k * (n.bit_length() - 10)))


def search(rows, part):
    """Search the size without a bound, then for each bound from that of the next larger one on."""
    n, k = part.n, part.k
    cell = {"n": n, "k": k, "steps": part.steps}
    make_searches(rows, [
        Search({**cell, "dtype": dtype}, first(n, k), (0,)) for dtype in part.dtypes
    ] + [
        Search({**cell, "dtype": dtype, "max_norm": norm}, 4 * k, (0,), further=8 * k)
        for dtype in part.short for norm in part.short_norms
    ])  # fmt: skip
    for norm in part.norms:
        larger = [
            row["dim"] for row in table(rows.rows)
            if (row["n"], row["k"], row["dtype"]) == (n, k, "float32")
            and (row["max_norm"] or math.inf) > norm
        ]  # fmt: skip
        start = max(larger, default=first(n, k))
        make_searches(rows, [Search({**cell, "max_norm": norm}, start, (0,), further=FURTHER)])


def table(rows):
    """Return the smallest size for each bound on N, and for each dtype without one.

    Where a cell was searched with several budgets of steps, the largest budget counts.
    """
    cells = {}
    for row in rows:
        if row["method"] == "learned":
            cell = tuple(row[name] for name in ("n", "k", "dtype", "max_norm"))
            cells.setdefault(cell, []).append(row)
    found = []
    for (n, k, dtype, norm), tried in sorted(
        cells.items(), key=lambda item: (*item[0][:3], item[0][3] or math.inf)
    ):
        steps = max(row["steps"] for row in tried)
        best = smallest(tried, {"steps": steps})
        if best:
            found.append({"n": n, "k": k, "dtype": dtype, "max_norm": norm, "steps": steps, **best})
    return found


def draw(chosen, rows):
    """Draw the frontier of each n and k, the lower bounds, and where dtypes stand on it."""
    found = table(rows)
    figure, ax = plt.subplots(figsize=(10.6, 5.0), layout="constrained")
    cells = sorted({(row["n"], row["k"]) for row in found})
    for (n, k), color in zip(cells, COLORS[: len(cells)], strict=True):
        part = [row for row in found if (row["n"], row["k"]) == (n, k)]
        bounded = [row for row in part if row["max_norm"] and row["dtype"] not in FLOAT8]
        ax.plot([r["max_norm"] for r in bounded], [r["dim"] for r in bounded], "o-", color=color,
                label=f"n = {n:,}, k = {k}: found")  # fmt: skip
        for row in part:
            print(f"n = {n}, k = {k}, {row['dtype']}, N <= {row['max_norm'] or 'any'}: "
                  f"d = {row['dim']}, N = {row['norm']:.0f}")  # fmt: skip
        free = [row for row in part if not row["max_norm"]]
        for dtype in FLOAT8:
            tried = [row for row in part if row["dtype"] == dtype]
            free += sorted(tried, key=lambda row: row["dim"])[:1]
        # Dtypes of one size share a marker where their norms are alike.
        places = {}
        for row in free:
            places.setdefault((row["dim"], round(2 * math.log(row["norm"]))), []).append(row)
        for (dim, _), here in places.items():
            norm = max(row["norm"] for row in here)
            ax.plot(norm, dim, MARKERS[here[0]["dtype"]], color=color, markersize=9,
                    markerfacecolor="white", markeredgewidth=1.5)  # fmt: skip
            # At the right of float32, which is often near float16, and below what is left.
            where = {"float16": (-4, -16), "float32": (8, -3)}.get(here[-1]["dtype"], (6, -13))
            ax.annotate(", ".join(row["dtype"] for row in here), (norm, dim), xytext=where,
                        textcoords="offset points", fontsize=8, color=color,
                        path_effects=[withStroke(linewidth=2.5, foreground="white")])  # fmt: skip
        proofs = sorted(
            (row["max_norm"], row["dim_found"])
            for row in rows
            if row["method"] == "lower bound" and (row["n"], row["k"]) == (n, k)
        )
        if proofs:
            print(f"n = {n}, k = {k}, proved: " + ", ".join(f"N <= {x:g}: {d}" for x, d in proofs))
            # What is proved for a bound holds for every smaller one.
            ax.plot(*zip(*proofs, strict=True), DASHES[k], color=color, linewidth=1.2,
                    drawstyle="steps-pre",
                    label=f"n = {n:,}, k = {k}: proved necessary")  # fmt: skip
    ax.set(xscale="log", xlabel="N = scale · max‖q‖ · max‖k‖", ylabel="head size d")
    ax.set_yscale("log", base=2)
    low, high = (round(limit) for limit in ax.get_ylim())
    ax.set_yticks(
        [d for d in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192) if low <= d <= high]
    )
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.margins(x=0.12)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_title(
        "The price of small logits; open markers: as small as the dtype allows", fontsize=10
    )
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    note = (f"leak 0.05, distortion 0.1, gamma 2; learned method, smallest found within {STEPS:,} "
            "steps")  # fmt: skip
    note += "".join(
        f" ({row['steps']:,} at n = {row['n']:,}, N = {row['max_norm']:g})"
        for row in found
        if row["steps"] != STEPS
    )
    note += ", one seed"
    save(figure, chosen, note, rows)


def compute(chosen, rows):
    """Prove the lower bounds of the plan, and make its searches."""
    for part in chosen.pick(**PLANS):
        rows.of(
            point(method="lower bound", n=part.n, k=part.k, max_norm=norm) for norm in part.norms
        )
        search(rows, part)


if __name__ == "__main__":
    compute_and_draw("small_logits", __doc__, run, compute, draw)
