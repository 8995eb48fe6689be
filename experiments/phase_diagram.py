"""When do random keys have a query for every row? Over (k / d, d / n), against Donoho and Tanner.

Gaussian keys, supports of k keys drawn at random. Two questions about a row:

- "faces": is there a query that gives the keys of the support one logit and all others less? Then
  the support spans a face of the keys' convex hull, and every tolerance can be met, at some norm.
- "order": is there a query for which the keys of the support are the top k, in any order?

Beside it, the norms that this takes: random keys and cyclic ones, whose queries always exist from
d = 2 k on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import common
import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr

import headfit as hf

# Any leak and distortion can be met by scaling a query that separates a face. Where only the order
# counts, so large a distortion and so weak a leak that the logits on the support are free.
ORDER = hf.Tolerances(leak=0.99, distortion=1e30)
# For norms: the tolerances that the project's tables use.
ASKED = hf.Tolerances(leak=0.05, distortion=0.1)


def excess(t: float) -> float:
    """Return E max(g - t, 0)**2 for a standard normal g."""
    density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    return float((1 + t * t) * ndtr(-t) - t * density)


def faces_need(sparsity: float) -> float:
    """Return the d / n above which most sets of k = sparsity * n keys are faces.

    The weak threshold of Donoho and Tanner (2005) for randomly projected simplices, in the form
    of Amelunxen, Lotz, McCoy and Tropp (2014): the squared distance of a Gaussian vector to the
    cone of all vectors that are a constant c on the support and at most c elsewhere, divided by n.
    """
    result = minimize_scalar(
        lambda t: sparsity * (1 + t * t) + (1 - sparsity) * excess(t),
        bounds=(-10, 40),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(result.fun)


def order_needs(sparsity: float) -> float:
    """Return the d / n above which most sets of k = sparsity * n keys are the top k of a query.

    The same distance for the cone of all vectors that are at least c on the support and at most c
    elsewhere.
    """
    result = minimize_scalar(
        lambda t: sparsity * excess(-t) + (1 - sparsity) * excess(t),
        bounds=(-10, 40),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(result.fun)


def threshold(needs: Callable[[float], float], share: float) -> float:
    """Return the k / d up to which keys with d / n = share serve most rows, at most 1."""
    low, high = 1e-12, share
    if needs(high) <= share:  # even k = d is served
        return 1.0
    return float(brentq(lambda s: needs(s) - share, low, high, xtol=1e-14)) / share


def gaussian_keys(n: int, d: int, seed: int) -> hf.methods.KeyTable:
    """Return standard normal keys."""
    return hf.methods.KeyTable(np.random.default_rng([seed, n, d]).standard_normal((n, d)))


def share_found(
    n: int, d: int, k: int, seed: int, method: hf.methods.MaxMargin, asked: Any
) -> float:
    """Return the share of n random rows that have a query; no undecided row is counted as one."""
    A = hf.patterns.random_regular(n, k, rng=[seed, n, d, k])
    found = hf.fit(
        A, method=method, tolerances=asked, dtype="float64", certificate_mass=False, num_threads=1
    )
    return common.rounded(found.settings["rows"].get("optimal", 0) / n)


def diagram(n: int, d: int, k: int, seed: int) -> dict[str, Any]:
    """Return how many of n random supports are faces, and top k of a query."""
    keys = gaussian_keys(n, d, seed)
    return {
        "faces": share_found(
            n, d, k, seed, hf.methods.MaxMargin(keys=keys, form="equality"), ASKED
        ),
        "order": share_found(n, d, k, seed, hf.methods.MaxMargin(keys=keys), ORDER),
    }


def norms(n: int, d: int, k: int, seed: int, keys: str) -> dict[str, Any]:
    """Return the norm that the queries of a pattern take, and the formats that certify it."""
    A = hf.patterns.random_regular(n, k, rng=[seed, n, k])
    make = hf.methods.KeyTable.random if keys == "random" else hf.methods.KeyTable.cyclic
    options: dict[str, Any] = {"rng": seed} if keys == "random" else {}
    result: dict[str, Any] = {}
    for dtype in ("float64", "float32", "bfloat16"):
        table = make(n, d, dtype="float64" if dtype == "float64" else "float32", **options)
        found = hf.fit(
            A,
            method=hf.methods.MaxMargin(keys=table),
            tolerances=ASKED,
            dtype=dtype,
            certificate_mass=False,
            num_threads=1,
        )
        if dtype == "float64":
            longest = float(np.linalg.norm(table.keys, axis=1).max())
            per_unit = found.settings["largest_query"] * longest / -np.log(ASKED.leak)
            result["found"] = common.rounded(found.settings["rows"].get("optimal", 0) / n)
            result["norm"] = common.rounded(per_unit)
            if result["found"] < 1:  # no other dtype finds the queries that do not exist
                return result | {"float64": False, "float32": False, "bfloat16": False}
        result[dtype] = bool(found.certificate.holds)
    return result


def point(part: str, n: int, d: int, k: int, seed: int, keys: str) -> dict[str, Any]:
    """Return the result of one point of the plan."""
    return diagram(n, d, k, seed) if part == "diagram" else norms(n, d, k, seed, keys)


def diagram_points(
    n: int, shares: Sequence[float], ratios: Sequence[float], seeds: int
) -> list[Any]:
    """Return the points of a grid over d / n and k / d; equal ones once."""
    sizes = {(max(1, round(s * n)), r) for s in shares for r in ratios}
    pairs = sorted({(d, max(1, round(r * d))) for d, r in sizes})
    return [
        {"part": "diagram", "n": n, "d": d, "k": k, "seed": seed, "keys": "gaussian"}
        for d, k in pairs
        if k <= 0.9 * n
        for seed in range(seeds)
    ]


def norm_points(n: int, k: int, sizes: Sequence[int]) -> list[Any]:
    """Return the points of the comparison of norms."""
    return [
        {"part": "norms", "n": n, "d": d, "k": k, "seed": 0, "keys": keys}
        for keys in ("random", "cyclic")
        for d in sizes
    ]


SLICE = 0.25  # the d / n at which several n are compared


def plan(chosen: common.Settings) -> list[Any]:
    """Return the points of a setting."""
    grid: Any = chosen.pick(
        tiny=(24, [0.25, 0.75], [0.2, 0.6], 1),
        quick=(96, np.arange(1, 13) / 13, np.arange(1, 13) / 13, 1),
        full=(192, np.arange(1, 24) / 24, np.arange(1, 24) / 24, 1),
    )
    slices: Any = chosen.pick(tiny=[24], quick=[32, 64, 128], full=[32, 64, 128, 256, 512])
    sizes: Any = chosen.pick(
        tiny=[4, 12], quick=[8, 12, 16, 24, 32, 48, 64],
        full=[8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128],
    )  # fmt: skip
    lengths: Any = chosen.pick(
        tiny=[(24, 2)], quick=[(256, 4)], full=[(64, 4), (256, 4), (1024, 4)]
    )
    points = diagram_points(*grid)
    ratios = np.arange(2, 17) / 24
    for n in slices:
        points += diagram_points(n, [SLICE], ratios, 4 if n < 256 else 1)
    for n, k in lengths:
        points += norm_points(n, k, sizes)
    return list({tuple(p.items()): p for p in points}.values())


def draw(chosen: common.Settings, rows: Sequence[common.Row]) -> None:
    """Draw the diagram, a slice of it for several n, and the norms."""
    import matplotlib.pyplot as plt

    counts = [r for r in rows if r["part"] == "diagram"]
    n_grid = plan(chosen)[0]["n"]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    share = np.linspace(0.01, 0.99, 99)
    grid: dict[tuple[float, float], list[float]] = {}
    for r in counts:
        if r["n"] == n_grid:
            grid.setdefault((r["d"] / r["n"], r["k"] / r["d"]), []).append(r["faces"])
    where = np.array(list(grid))
    side = 200 / len({d for d, _ in grid})
    color = [np.mean(v) for v in grid.values()]
    dots = axes[0].scatter(*where.T, c=color, cmap="viridis", s=side**2, marker="s", vmin=0, vmax=1)
    figure.colorbar(dots, ax=axes[0], label="share of supports that are faces")
    axes[0].plot(share, [threshold(faces_need, s) for s in share], "r", label="Donoho, Tanner")
    bound = [threshold(order_needs, s) for s in share]
    axes[0].plot(share, bound, "r:", label="order only")
    axes[0].plot(share, np.minimum(1, 1 / (2 * np.log(1 / share))), color="black", ls="--", lw=1,
                 label="d = 2 k ln(n / d)")  # fmt: skip
    axes[0].axhline(0.5, color="orange", lw=1, label="cyclic keys: every support, d = 2 k")
    axes[0].set(xlabel="d / n", ylabel="k / d", ylim=(0, 1), xlim=(0, 1),
                title=f"Random keys, n = {n_grid}")  # fmt: skip
    axes[0].legend(fontsize=7, loc="lower right", facecolor="white")

    for i, n in enumerate(sorted({r["n"] for r in counts})):
        some = [r for r in counts if r["n"] == n and r["d"] == round(SLICE * n)]
        if not some:
            continue
        ks = sorted({r["k"] for r in some})
        for name, style in (("faces", "-"), ("order", ":")):
            y = [np.mean([r[name] for r in some if r["k"] == k]) for k in ks]
            axes[1].plot(np.array(ks) / round(SLICE * n), y, style, color=f"C{i}",
                         label=f"n = {n}" if name == "faces" else None)  # fmt: skip
    axes[1].axvline(threshold(faces_need, SLICE), color="r", lw=1)
    axes[1].axvline(threshold(order_needs, SLICE), color="r", lw=1, ls=":")
    axes[1].set(xlabel="k / d", ylabel="share of supports", xlim=(0.05, 0.75),
                title=f"d / n = {SLICE}: faces (full), order (dotted)")  # fmt: skip
    axes[1].legend(fontsize=8)

    lengths = [r for r in rows if r["part"] == "norms"]
    shown = enumerate(sorted({(r["n"], r["k"], r["keys"]) for r in lengths}))
    for i, (n, k, keys) in shown:
        some = sorted((r for r in lengths if (r["n"], r["k"], r["keys"]) == (n, k, keys)),
                      key=lambda r: r["d"])  # fmt: skip
        d, size = (np.array([r[name] for r in some], float) for name in ("d", "norm"))
        whole = np.array([r["found"] == 1 for r in some])
        axes[2].plot(d[whole], size[whole], "-", color=f"C{i}", label=f"{keys}, n = {n}, k = {k}")
        for name, marker in (("float32", "o"), ("bfloat16", "s")):
            ok = whole & np.array([r[name] for r in some])
            axes[2].plot(d[ok], size[ok], marker, color=f"C{i}", ms=4 if name == "float32" else 8,
                         mfc="none" if name == "bfloat16" else None)  # fmt: skip
    axes[2].set(xscale="log", yscale="log", xlabel="d", ylabel="largest ||q|| ||k|| / ln(1 / leak)",
                title="Norms (dot: float32 certifies, square: bfloat16)")  # fmt: skip
    ticks = [d for d in (8, 16, 32, 64, 128) if d <= max(r["d"] for r in lengths)]
    axes[2].set_xticks(ticks, labels=map(str, ticks), minor=False)
    axes[2].set_xticks([], minor=True)
    axes[2].title.set_fontsize(10)
    axes[2].legend(fontsize=8)
    common.save(figure, chosen, rows=rows)


def main(arguments: Sequence[str] | None = None) -> list[common.Row]:
    """Run the experiment, and return its rows."""
    return common.compute_and_draw(
        "phase_diagram",
        str(__doc__),
        point,
        lambda chosen, rows: rows.of(plan(chosen)),
        draw,
        arguments,
    )


if __name__ == "__main__":
    import phase_diagram  # a sweep's function is imported by its name

    phase_diagram.main()
