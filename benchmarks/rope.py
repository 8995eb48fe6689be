"""What rotary positions express without content: the least norm against the width of a window.

Prints the tables of docs/rope.md; ``--plot docs/rope.svg`` draws its picture. Filters that were
found are certified at up to 2,048 tokens, as heads of that RoPE whose queries and keys are equal in
all rows. A bound is proved by the multipliers of a linear program.
"""

from __future__ import annotations

import time

import headfit as hf
import measure

N = 16384
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BASES = (1e4, 5e5, 1e6)
DIMS = (64, 128)
# As sharp as the package's default tolerances, and so loose that the window is a tendency.
TOLERANCES = {"tight": hf.Tolerances(), "loose": hf.Tolerances(leak=0.3, distortion=0.5)}
MAX_NORM = 1e5
CERTIFIED = 2048


def text(found: hf.rope.RopeFilter) -> str:
    if found.filter is not None:
        return f"{found.norm:,.3g}" if found.norm < 1000 else f"{found.norm:,.0f}"
    sign = ">" if found.status == "out of reach" else "? >"
    return f"{sign} {found.max_norm:,.0f}"


def certified(found: hf.rope.RopeFilter, threads: int) -> bool:
    """Certify the filter's head at fewer tokens, where all offsets are among those designed for."""
    n = min(CERTIFIED, found.n)
    A = hf.patterns.causal_band(n, found.width - 1)
    head = found.attention(n).rotated()
    return hf.certify(A, head, tolerances=found.tolerances, num_threads=threads).holds


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--plot", help="draw into this file")
    options = parser.parse_args()
    n, widths = (1024, WIDTHS[1:5]) if options.quick else (N, WIDTHS)
    print(f"{measure.machine()}; n = {n:,}")
    figures, every = {}, {}
    for name, tolerances in TOLERANCES.items():
        start = time.perf_counter()
        every[name] = hf.rope.windows(
            widths, n=n, dims=DIMS, bases=BASES, tolerances=tolerances, max_norm=MAX_NORM
        )
        seconds = (time.perf_counter() - start) / len(every[name])
        rows = [["base", "size", *(f"w = {width}" for width in widths)]]
        for i in range(0, len(every[name]), len(widths)):
            line = every[name][i : i + len(widths)]
            rows.append([f"{line[0].base:,.0f}", str(line[0].dim), *map(text, line)])
        measure.table(f"{name}: leak {tolerances.leak}, distortion {tolerances.distortion}", rows)
        print(f"\n{seconds:.1f} s for each entry", flush=True)
        for found in every[name]:
            assert found.status != "undecided", found
            assert found.least_norm <= found.norm, found
            assert found.filter is None or found.norm < 1.05 * found.least_norm, found
            assert found.filter is None or certified(found, options.threads), found
        figures[name] = [
            {"base": f.base, "dim": f.dim, "width": f.width, "norm": f.norm if f.filter else None,
             "least_norm": f.least_norm} for f in every[name]
        ]  # fmt: skip
    if options.plot:
        draw(every, options.plot)
    measure.finish(options, {"rope": figures})


def draw(every, path):
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(11.5, 5.2), layout="constrained", sharey=True)
    for ax, (name, found) in zip(axes, every.items(), strict=True):
        hf.plot.rope(found, ax=ax)
        asked = found[0].tolerances
        ax.set_title(f"{name}: leak {asked.leak:g}, distortion {asked.distortion:g}", fontsize=11)
    axes[1].set_ylabel("")
    axes[1].get_legend().remove()
    fig.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
