"""Curve 2: the price of small logits: the head size against N = scale max ||q|| max ||k||.

Small heads have long queries and keys. With a bound on N the smallest head found grows; the
lower bounds for bounded norms say how much of that is necessary. Heads in narrow dtypes
have a limit on N of their own, since rounding moves logits in proportion to it. With 8 bits it is
so low that several are tried.
"""

from __future__ import annotations

import math

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
FLOAT8_NORMS = (8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
PLANS = {
    # n, k, the bounds on N, the dtypes without a bound, and those with bounds of their own
    "tiny": ((32, 2, (32.0,), ("float32",), ()),),
    "quick": ((128, 4, (128.0, 64.0, 32.0, 16.0), FREE, FLOAT8[:1]),),
    "full": (
        (512, 4, NORMS, FREE, FLOAT8), (512, 8, NORMS, FREE, FLOAT8),
        (4096, 4, NORMS, FREE, ()), (16_384, 4, FEWER_NORMS, FREE, ()),
        (4096, 8, FEWER_NORMS, FREE, ()),
        (16_384, 8, (256.0, 64.0, 32.0), ("float32", "bfloat16"), ()),
    ),
}  # fmt: skip
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = {2: "-.", 4: "--", 8: ":"}
MARKERS = {"float32": "o", "float16": "s", "bfloat16": "D", "float8_e4m3fn": "^",
           "float8_e5m2": "v"}  # fmt: skip


def first(n, k):
    """Return the size to start from without a bound on N."""
    return max(2, round(1.5 + 1.08 * k + 0.2 * k * (n.bit_length() - 10)))


def search(rows, n, k, norms, dtypes, short):
    """Search the size without a bound, then for each bound from that of the next larger one on."""
    start = first(n, k)
    make_searches(rows, [
        Search({"n": n, "k": k, "dtype": dtype, "steps": STEPS}, start, (0,)) for dtype in dtypes
    ] + [
        Search({"n": n, "k": k, "dtype": dtype, "steps": STEPS, "max_norm": norm}, 4 * k, (0,),
               further=8 * k)
        for dtype in short for norm in FLOAT8_NORMS
    ])  # fmt: skip
    for norm in norms:
        cell = {"n": n, "k": k, "max_norm": norm, "steps": STEPS}
        make_searches(rows, [Search(cell, start, (0,), further=FURTHER)])
        best = smallest(rows.rows, about(n, k, norm))
        if best is None:
            return
        start = best["dim"]


def about(n, k, norm, dtype="float32"):
    """Return what the rows of one point of the frontier have in common."""
    return {"n": n, "k": k, "max_norm": norm, "dtype": dtype, "steps": STEPS}


def table(rows):
    """Return the smallest size for each bound on N, and for each dtype without one."""
    found = []
    cells = sorted({(row["n"], row["k"], row["max_norm"], row["dtype"]) for row in rows},
                   key=lambda c: (c[0], c[1], c[3], c[2] or float("inf")))  # fmt: skip
    for n, k, norm, dtype in cells:
        best = smallest(rows, about(n, k, norm, dtype))
        if best:
            found.append({"n": n, "k": k, "dtype": dtype, "max_norm": norm, **best})
    return found


def draw(chosen, rows):
    """Draw the frontier of each n and k, the lower bounds, and where dtypes stand on it."""
    found = table([row for row in rows if row["method"] == "learned"])
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
            ax.plot(*zip(*proofs, strict=True), DASHES[k], color=color, linewidth=1.2,
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
            "steps, one seed")  # fmt: skip
    save(figure, chosen, note, rows)


def compute(chosen, rows):
    """Prove the lower bounds of the plan, and make its searches."""
    for n, k, norms, dtypes, short in chosen.pick(**PLANS):
        rows.of(point(method="lower bound", n=n, k=k, max_norm=norm) for norm in norms)
        search(rows, n, k, norms, dtypes, short)


if __name__ == "__main__":
    compute_and_draw("small_logits", __doc__, run, compute, draw)
