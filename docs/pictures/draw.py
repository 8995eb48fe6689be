"""Draw the pictures of the pages, and that of README.md, as SVG files.

`python docs/pictures/draw.py FOLDER` writes them to a folder: this one when none is named.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import csr_array

import headfit as hf

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a8f94"  # distinguished by colour-blind readers


def tutorial_pattern() -> csr_array:
    """Return the pattern of the tutorial."""
    return hf.patterns.random_regular(64, k=3, gamma=2.0, rng=0)


@cache
def tutorial_head() -> hf.results.Fit:
    """Return the head that the tutorial finds for it."""
    return hf.fit(tutorial_pattern(), time_limit=4, rng=0, num_threads=1)


def tutorial_search() -> Figure:
    """Draw the sizes that the tutorial's search tries."""
    figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    hf.plot.search(tutorial_head(), ax=ax)
    return figure


def tutorial_compare() -> Figure:
    """Draw the tutorial's pattern, its head's attention, and what of the tolerances is used."""
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained")
    hf.plot.compare(tutorial_pattern(), tutorial_head(), axes=list(axes))
    return figure


def tutorial_certificate() -> Figure:
    """Draw how many rows leak and distort how much."""
    figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    hf.plot.certificate(tutorial_head(), ax=ax)
    return figure


def tutorial_module() -> Figure:
    """Draw five patterns, and the attention of one module with five inputs."""
    module = hf.SelfAttention.random(8, rng=0)
    asked = [hf.patterns.band(64, 1), hf.patterns.permutation(64, rng=0), hf.patterns.tree(64),
             hf.patterns.hypercube(64), tutorial_pattern()]  # fmt: skip
    names = ["band", "permutation", "tree", "hypercube", "random"]
    heads = [hf.fit(A, 8, module=module, rng=0, num_threads=1) for A in asked]
    titles = [*names, *(f"{name}: d = 8" for name in names)]
    drawn = hf.plot.heads_grid([asked, heads], titles=titles, relative=True)
    return np.ravel(drawn)[0].figure


def tolerances() -> Figure:
    """Draw one row of attention and what leak and distortion compare in it."""
    wanted = {3: 0.4, 7: 0.4, 12: 0.2}
    row = np.array([0.006, 0.012, 0.004, 0.375, 0.01, 0.003, 0.008, 0.36, 0.005, 0.017, 0.004,
                    0.006, 0.185, 0.003, 0.002])  # fmt: skip
    row[-1] += 1 - row.sum()
    figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    on = np.isin(np.arange(row.size), list(wanted))
    ax.bar(np.flatnonzero(on), row[on], color=BLUE, label="attention M on the support")
    ax.bar(np.flatnonzero(~on), row[~on], color=ORANGE, label="attention M off it")
    ax.hlines(list(wanted.values()), [j - 0.45 for j in wanted], [j + 0.45 for j in wanted],
              color="black", label="the pattern A")  # fmt: skip
    ax.annotate(
        "smallest on the support", (12, row[12]), (9.2, 0.27), arrowprops={"arrowstyle": "->"}
    )
    ax.annotate("largest off it", (9, row[9]), (8.2, 0.12), arrowprops={"arrowstyle": "->"})
    ratio = np.array([row[j] / w for j, w in wanted.items()])
    leak, distortion = row[~on].max() / row[on].min(), ratio.max() / ratio.min() - 1
    ax.set(xlabel="key j", ylabel="weight", ylim=(0, 0.45),
           title=f"one row: leak {leak:.3f}, distortion {distortion:.3f}")  # fmt: skip
    ax.legend(frameon=False, loc="upper right")
    return figure


def idea_logits() -> Figure:
    """Draw a pattern, its target logits, and the logits and attention of a small head."""
    A = hf.patterns.random_regular(40, k=3, gamma=2.0, rng=1)
    head = hf.fit(A, 6, rng=0, num_threads=1)
    dense = A.toarray()
    with np.errstate(divide="ignore"):
        logits = np.where(dense > 0, np.log(dense / 0.15) + 3, 0)
    made = head.scale * head.Q @ head.K.T
    panels = [("the pattern A", dense), ("target logits", logits),
              (f"logits of a head, d = {head.dim}", made - made.max(axis=1, keepdims=True)),
              ("its attention", head.attention.matrix())]  # fmt: skip
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
    for ax, (title, matrix) in zip(axes, panels, strict=True):
        image = ax.imshow(matrix, cmap="cividis", interpolation="nearest")
        ax.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=ax, shrink=0.7)
    axes[0].set(xlabel="key", ylabel="query")
    return figure


def idea_projection() -> Figure:
    """Draw how projected logits gather around their targets as the head grows."""
    A = hf.patterns.band(256, 1)
    on = A.toarray() > 0
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained", sharey=True)
    for ax, d in zip(axes, (64, 512, 4096), strict=True):
        options = {"leak": 0.3, "distortion": 1.0, "rng": 0, "num_threads": 1}
        logits = hf.fit(A, d, method="projection", **options).attention.logits()
        bins = np.linspace(-2.5, 5, 60)
        for values, colour, label in ((logits[~on], ORANGE, "off the support"),
                                      (logits[on], BLUE, "on it")):  # fmt: skip
            ax.hist(values, bins, color=colour, density=True, alpha=0.8, label=label)
        ax.set(title=f"d = {d}", xlabel="logit")
    axes[0].set_ylabel("density")
    axes[0].legend(frameon=False)
    return figure


def idea_margin() -> Figure:
    """Draw the keys as one query of the tutorial's head sees them."""
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    hf.plot.keys(tutorial_pattern(), tutorial_head(), ax=ax)
    return figure


def teach_circle() -> Figure:
    """Draw keys on a circle: a head of size 2 that attends to any one key."""
    n = 12
    turn = 2 * np.pi * np.arange(n) / n
    keys = np.column_stack([np.cos(turn), np.sin(turn)])
    query = keys[2]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained",
                                         width_ratios=(1, 1.4))  # fmt: skip
    colours = [BLUE if j == 2 else ORANGE for j in range(n)]
    left.scatter(*keys.T, color=colours)
    left.annotate("", 0.8 * query, (0, 0), arrowprops={"arrowstyle": "->"})
    left.text(*(0.35 * query + (-0.45, 0.02)), "query")
    for j in range(n):
        left.text(*(1.17 * keys[j]), str(j), ha="center", va="center")
    left.set(aspect="equal", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), xticks=[], yticks=[],
             title="twelve keys on a circle")  # fmt: skip
    for length, style in ((5, ":"), (15, "--"), (40, "-")):
        logits = length * keys @ query
        weights = np.exp(logits - logits.max())
        right.plot(weights / weights.sum(), style, color="black", label=f"|q| = {length}")
    right.set(xlabel="key j", ylabel="attention of the query", title="a longer query is sharper")
    right.legend(frameon=False)
    return figure


def printed(notebook: str, heading: str) -> np.ndarray:
    """Return the table of numbers that a saved notebook prints below a line."""
    cells = json.loads((NOTEBOOKS / notebook).read_text(encoding="utf-8"))["cells"]
    lines = "".join(
        "".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", [])
    ).splitlines()
    table = []
    for line in lines[lines.index(heading) + 1 :]:
        if re.search(r"[^\d.\s]", line) or not line:
            break
        table.append([float(word) for word in line.split()])
    return np.array(table)


def how_small() -> Figure:
    """Draw the head size against the number of tokens, by three methods, from notebook 02."""
    head = "    n  proved d >=  learned  max-margin  projection"
    n, needed, learned, margin, projected = printed("02-how-small-can-a-head-be.ipynb", head).T
    enough = [hf.bounds.projection_dim(int(size), 4, 2.0, 0.3, 1.0) for size in n]
    figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    ax.plot(n, enough, ":", color="0.4", label="projection: proved to suffice")
    for found, style, name in (
        (projected, "^-", "projection"),
        (margin, "s-", "max-margin, random keys"),
        (learned, "o-", "learned"),
    ):
        ax.plot(n, found, style, label=name)
    ax.plot(n, needed, "--", color="0.4", label="proved to be needed")
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="head size d")
    ax.set_xticks(n, [f"{size:.0f}" for size in n])
    ax.xaxis.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def a_real_head() -> Figure:
    """Draw the loss of a model with all heads shrunk, from notebook 03."""
    dims, ours, cut = printed("03-a-real-head.ipynb", "size  shrunk  truncated SVD").T
    figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    ax.plot(dims, ours, "o-", label="shrunk")
    ax.plot(dims, cut, "s--", label="truncated SVD")
    ax.axhline(1.097, color="0.3", linestyle=":", label="all 16 dimensions")
    ax.set(xscale="log", xlabel="size of every head", ylabel="loss, nats per character")
    ax.set_xticks(dims, [f"{dim:.0f}" for dim in dims])
    ax.minorticks_off()
    ax.legend()
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "tutorial-search": tutorial_search,
    "tutorial-certificate": tutorial_certificate,
    "tutorial-compare": tutorial_compare,
    "tutorial-module": tutorial_module,
    "tolerances": tolerances,
    "idea-logits": idea_logits,
    "idea-projection": idea_projection,
    "idea-margin": idea_margin,
    "teach-circle": teach_circle,
    "how-small": how_small,
    "a-real-head": a_real_head,
}


def main(folder: Path) -> None:
    """Draw every picture into a folder."""
    # Fixed names of parts and no date: what is drawn again from the same data is the same file.
    plt.rcParams.update({"svg.hashsalt": "headfit", "figure.facecolor": "white"})
    for name, draw in PICTURES.items():
        figure = draw()
        figure.savefig(folder / f"{name}.svg", dpi=200, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
