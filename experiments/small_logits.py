"""Curve 2: the price of small logits: the head size against N = scale max ||q|| max ||k||.

Small heads have long queries and keys. With a bound on N the smallest head found grows; the
lower bounds for bounded norms say how much of that is necessary. Heads in narrow dtypes
have a limit on N of their own, since rounding moves logits in proportion to it.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from common import Rows, save, settings
from fits import Search, make_searches, point, run, smallest

STEPS = 2000
FURTHER = 24  # how many sizes above that of the next larger bound are tried
NORMS = (256.0, 128.0, 64.0, 48.0, 32.0, 24.0, 16.0, 12.0)
PLANS = {
    # Pairs of n and k, the bounds on N, and the dtypes without a bound
    "tiny": (((32, 2),), (32.0,), ("float32",)),
    "quick": (((128, 4),), (128.0, 64.0, 32.0, 16.0), ("float32", "float16", "bfloat16")),
    "full": (((512, 4), (512, 8), (4096, 4), (4096, 8), (16_384, 4)), NORMS,
             ("float32", "float16", "bfloat16")),
}  # fmt: skip
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = {"float32": "o", "float16": "s", "bfloat16": "D"}


def first(n, k):
    """Return the size to start from without a bound on N."""
    return max(2, round(1.5 + 1.08 * k + 0.2 * k * (n.bit_length() - 10)))


def compute(rows, n, k, norms, dtypes):
    """Search the size without a bound, then for each bound from that of the next larger one on."""
    start = first(n, k)
    make_searches(rows, [
        Search({"n": n, "k": k, "dtype": dtype, "steps": STEPS}, start, (0,)) for dtype in dtypes
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
    figure, ax = plt.subplots(figsize=(8.6, 5.0), layout="constrained")
    cells = sorted({(row["n"], row["k"]) for row in found})
    for (n, k), color in zip(cells, COLORS, strict=False):
        part = [row for row in found if (row["n"], row["k"]) == (n, k)]
        bounded = [row for row in part if row["max_norm"]]
        ax.plot([r["max_norm"] for r in bounded], [r["dim"] for r in bounded], "o-", color=color,
                label=f"n = {n:,}, k = {k}: found")  # fmt: skip
        for row in part:
            print(f"n = {n}, k = {k}, {row['dtype']}, N <= {row['max_norm'] or 'any'}: "
                  f"d = {row['dim']}, N = {row['norm']:.0f}")  # fmt: skip
            if not row["max_norm"]:
                ax.plot(row["norm"], row["dim"], MARKERS[row["dtype"]], color=color, markersize=9,
                        markerfacecolor="white", markeredgewidth=1.5)  # fmt: skip
                ax.annotate(row["dtype"], (row["norm"], row["dim"]), xytext=(7, 4), fontsize=8,
                            textcoords="offset points", color=color)  # fmt: skip
        proofs = sorted(
            (row["max_norm"], row["dim_found"])
            for row in rows
            if row["method"] == "lower bound" and (row["n"], row["k"]) == (n, k)
        )
        if proofs:
            print(f"n = {n}, k = {k}, proved: " + ", ".join(f"N <= {x:g}: {d}" for x, d in proofs))
            ax.plot(*zip(*proofs, strict=True), "--", color=color, linewidth=1.2,
                    label=f"n = {n:,}, k = {k}: proved necessary")  # fmt: skip
    ax.set(xscale="log", xlabel="N = scale · max‖q‖ · max‖k‖", ylabel="head size d")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_title("The price of small logits; open markers: no bound but the dtype's", fontsize=10)
    ax.grid(alpha=0.25, linewidth=0.6, which="both")
    ax.legend(fontsize=8.5, frameon=False)
    note = (f"leak 0.05, distortion 0.1, gamma 2; learned method, smallest found within {STEPS:,} "
            "steps, one seed")  # fmt: skip
    save(figure, chosen, note, rows)


def main():
    """Run the plan of the size asked for, and draw it."""
    chosen = settings("small_logits", __doc__)
    cells, norms, dtypes = chosen.pick(**PLANS)
    rows = Rows(chosen, run)
    if not chosen.only_draw:
        rows.of(point(method="lower bound", n=n, k=k, max_norm=norm) for n, k in cells
                for norm in norms)  # fmt: skip
        for n, k in cells:
            compute(rows, n, k, norms, dtypes)
    draw(chosen, rows.rows)


if __name__ == "__main__":
    main()
