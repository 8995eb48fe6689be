"""Curve 3: the head size against precision: leak, distortion, weight ratios, nonzeros per row.

One of them is varied at a time around a base point. The theorem's construction is proved to need
of the order of k R^2 / delta^2 dimensions, with R = log(1/leak) + log(1 + distortion) + log(gamma)
and delta = log(1 + distortion); beside these exponents stand those of the sizes found.
"""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
from common import compute_and_draw, save
from fits import Search, make_searches, run, smallest

import headfit as hf

BASE = {"k": 4, "leak": 0.05, "distortion": 0.1, "gamma": 2.0}
VALUES = {
    "leak": (0.3, 0.1, 0.05, 0.01, 1e-3, 1e-4),
    "distortion": (0.5, 0.2, 0.1, 0.05, 0.02, 0.01),
    "gamma": (1.0, 2.0, 5.0, 10.0, 30.0, 100.0),
    "k": (1, 2, 4, 8, 16, 32),
}
PLANS = {
    # Tokens, steps of a fit, seeds of one part after the other, values of each of the four
    "tiny": (32, 1000, ((0,),), {"leak": (0.1, 0.05), "k": (1, 2)}),
    "quick": (128, 5000, ((0,),), VALUES),
    "full": (512, 5000, ((0,), (0, 1, 2)), VALUES),
}


def guess(n, k):
    """Return the head size to start from."""
    return max(2, round(1.5 + 1.08 * k + 0.13 * k * math.log2(n / 512)))


def searches(n, steps, seeds, values):
    """Return the searches of one plan, those for small k first."""
    varied = [(name, value) for name, given in values.items() for value in given]
    cells = [{"n": n, "steps": steps, **BASE, name: value} for name, value in varied]
    unique = {tuple(cell.items()): cell for cell in cells}.values()
    return [Search(c, guess(n, c["k"]), seeds) for c in sorted(unique, key=lambda c: c["k"])]


def logit_range(at):
    """Return R, the largest target logit."""
    return hf.bounds.logit_range(at["gamma"], at["leak"], at["distortion"])


# For each of the four: what the bound is a power of, its name, and the exponent in the bound.
VARIABLES = {
    "leak": (logit_range, "R", 2),
    "distortion": (lambda at: 1 / math.log1p(at["distortion"]), "1/$\\delta$", 2),
    "gamma": (logit_range, "R", 2),
    "k": (lambda at: at["k"], "k", 1),
}


def table(rows, n, steps):
    """Return the smallest size found for each value of each of the four."""
    found = {}
    for name, values in VALUES.items():
        for value in values:
            at = {**BASE, name: value}
            best = smallest(rows, {"n": n, "steps": steps, **at})
            if best:
                at_x = VARIABLES[name][0](at)
                found.setdefault(name, []).append((value, at_x, best["dim"], best["norm"]))
    return {name: given for name, given in found.items() if len(given) > 1}


def exponent(x, dims):
    """Return the least-squares slope of log d over log x, and its standard error."""
    x, y = np.log(x), np.log(dims)
    about = x - x.mean()
    rise = about @ y / (about @ about)
    left = y - y.mean() - rise * about
    error = math.sqrt(left @ left / (x.size - 2) / (about @ about)) if x.size > 2 else math.nan
    return (float(rise) if abs(rise) > 1e-9 else 0.0), float(error)


def draw(chosen, rows):
    """Draw size and norm for each of the four, with their exponents and those of the bound."""
    n, steps = max((row["n"], row["steps"]) for row in rows)
    found = table(rows, n, steps)
    figure, axes = plt.subplots(
        2, len(found), figsize=(3.3 * len(found), 6.2), layout="constrained", sharey="row",
        squeeze=False, height_ratios=(3, 2),
    )  # fmt: skip
    for (top, bottom), (name, given) in zip(axes.T, found.items(), strict=True):
        values, x, dims, norms = (np.array(part, dtype=float) for part in zip(*given, strict=True))
        _, symbol, bound = VARIABLES[name]
        powers = [exponent(x, y) for y in (dims, norms)]
        for what, y, (rise, error) in zip(("d", "N"), (dims, norms), powers, strict=True):
            print(f"{name} {values.tolist()}: {what} = {y.astype(int).tolist()}, power {rise:.2f} "
                  f"of {symbol}, standard error {error:.2f}; bound of d: {bound}")  # fmt: skip
        order = np.argsort(x)
        middle = np.argmin(np.abs(values - BASE[name]))
        top.plot(x[order], dims[middle] * (x[order] / x[middle]) ** bound, "--", color="#D55E00",
                 label=f"the bound's power, {symbol}$^{bound}$")  # fmt: skip
        for ax, y, (rise, _), color in zip((top, bottom), (dims, norms), powers,
                                           ("#0072B2", "#009E73"), strict=True):  # fmt: skip
            ax.plot(x, y, "o-", color=color, label=f"found: {symbol}$^{{{rise:.2f}}}$")
            ax.set(xscale="log", yscale="log")
            ax.xaxis.set_minor_formatter(plt.NullFormatter())
            ax.grid(alpha=0.25, linewidth=0.6)
            ax.legend(fontsize=8, frameon=False, loc="upper left")
        for one, place, dim in zip(values, x, dims, strict=True):
            top.annotate(f"{one:g}", (place, dim), xytext=(0, -13), textcoords="offset points",
                         ha="center", fontsize=7.5, color="#1b1b1b")  # fmt: skip
        top.set_title(f"{name}, as written below the points", fontsize=9)
        bottom.set_xlabel(symbol)
    axes[0, 0].set(ylabel="head size d", ylim=(1.5, 100))
    axes[0, 0].set_yticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
    axes[0, 0].minorticks_off()
    axes[1, 0].set(ylabel="N = scale · max‖q‖ · max‖k‖", ylim=(30, 9000))
    note = (f"n = {n}, learned method; around k = 4, leak 0.05, distortion 0.1, gamma 2; smallest "
            f"found within {steps:,} steps")  # fmt: skip
    save(figure, chosen, note, rows)


def compute(chosen, rows):
    """Make the searches of the plan."""
    n, steps, seeds, values = chosen.pick(**PLANS)
    for part in seeds:
        make_searches(rows, searches(n, steps, part, values))


if __name__ == "__main__":
    compute_and_draw("precision", __doc__, run, compute, draw)
