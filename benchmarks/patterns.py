"""The wide patterns that designers use: which heads certify, in which time, with which logits.

Each pattern is fitted by method "auto", with a coordinate for each global token; beside it what
the learned method reaches in the same time. Certified heads of at most 4,096 tokens without a mask
are judged again by a NumPy scan of all logits. Equal weights; leak 0.05 and distortion 0.1 unless a
table says otherwise. Processor seconds are those of all threads; they say more than seconds where
the machine does other work too.

--lengths   the numbers of tokens of the main table
--only      of the patterns whose names contain this text

--tradeoff  the least largest logit that was found for each size, windows of 16 to 1,024 keys
--million   a window of 64 keys for a million tokens: the design in seconds, one certificate
"""

from __future__ import annotations

import math
import time

import numpy as np
import scipy.sparse as sp

import headfit as hf
import measure
from small_heads import scan

p = hf.patterns
DIM = 64


def bigbird(window, block=1, causal=False):
    """Return BigBird as a function of n: a window on each side, 2 global tokens, 3 random keys.

    With `block`, tokens come in blocks of so many, and all numbers count blocks.
    """

    def pattern(n):
        allowed = p.bigbird(n // block, window, 2, 3, rng=0) != 0
        allowed = sp.csr_array(sp.kron(allowed, np.ones((block, block), dtype=bool)))
        return p.from_mask(sp.csr_array(sp.tril(allowed)) if causal else allowed)

    return pattern


# Each case is a name, a function of n, and whether it is causal.
CASES = (
    ("window 64, causal", lambda n: p.window_global(n, 64, 0), True),
    ("window 64 + 2 global, causal", lambda n: p.window_global(n, 64, 2), True),
    ("window 64 + 4 global, causal", lambda n: p.window_global(n, 64, 4), True),
    ("32 on each side + 2 global", lambda n: p.window_global(n, 33, 2, causal=False), False),
    ("32 on each side + 4 global", lambda n: p.window_global(n, 33, 4, causal=False), False),
    ("63 on each side + 2 global", lambda n: p.window_global(n, 64, 2, causal=False), False),
    ("window 64 + 2 global + stride 128, causal",
     lambda n: p.window_global(n, 64, 2, stride=128), True),
    ("blocks of 64", lambda n: p.block(n, 64), False),
    ("BigBird by blocks of 64", bigbird(1, 64), False),
    ("BigBird by blocks of 64, causal", bigbird(1, 64, causal=True), True),
    ("BigBird, window 3", bigbird(3), False),
    ("BigBird, window 3, causal", bigbird(3, causal=True), True),
    ("BigBird, window 16", bigbird(16), False),
    ("BigBird, window 16, causal", bigbird(16, causal=True), True),
    ("BigBird, window 32", bigbird(32), False),
    ("BigBird, window 32, causal", bigbird(32, causal=True), True),
)  # fmt: skip
TOLERANCES = {
    "tight": {"leak": 0.05, "distortion": 0.1},
    "middle": {"leak": 0.1, "distortion": 0.2},
    "loose": {"leak": 0.3, "distortion": 0.5},
}


def fitted(A, causal, dtype, limit, method="auto", dim=DIM, **more):
    """Fit a head, and return it with its seconds, and processor seconds."""
    start, spent = time.perf_counter(), time.process_time()
    mask = "causal" if causal else None
    more |= {"exempt_columns": "auto", "certificate_mass": False}
    fit = hf.fit(A, dim, method=method, mask=mask, dtype=dtype, time_limit=limit, **more)
    return fit, time.perf_counter() - start, time.process_time() - spent


def check(A, fit, causal):
    """Raise an error if a NumPy scan contradicts the certificate."""
    if causal or A.shape[0] > 4096 or not fit.certificate.holds:
        return  # the scan knows no mask
    leak, spread = scan(A, fit.Q, fit.K, fit.scale)
    assert leak <= 0.05 * (1 + 1e-5), "a false certificate"
    assert spread <= math.log1p(0.1) * (1 + 1e-5), "a false certificate"


def table(options):
    """Fit every pattern at every length in both formats."""
    sizes = (256,) if options.quick else options.lengths
    rows = [["pattern", "n", "dtype", "method", "certified", "seconds", "processor seconds",
             "largest logit", "learned in this time"]]  # fmt: skip
    figures = []
    for name, pattern, causal in CASES:
        for n in sizes if options.only in name else ():
            A = pattern(n)
            for dtype in ("float32", "bfloat16"):
                limit = 5 if options.quick else options.limit
                fit, seconds, spent = fitted(A, causal, dtype, limit, num_threads=options.threads)
                check(A, fit, causal)
                holds = fit.certificate.holds
                if fit.method == "learned":
                    beside = "the same"
                else:
                    peer, _, _ = fitted(A, causal, dtype, max(seconds, 1.0), "learned",
                                        num_threads=options.threads)  # fmt: skip
                    left = int(np.count_nonzero(peer.certificate.row_status))
                    beside = "certified" if peer.certificate.holds else f"{left} rows left"
                logit = float(fit.certificate.max_logit)
                figures.append({"pattern": name, "n": n, "dim": DIM, "dtype": dtype,
                                "method": fit.method, "certified": holds, "seconds": seconds,
                                "processor_seconds": spent, "largest_logit": logit,
                                "learned": beside})  # fmt: skip
                rows.append([name, f"{n:,}", dtype, fit.method, "yes" if holds else "no",
                             f"{seconds:.1f}", f"{spent:.1f}", f"{logit:.1f}" if holds else "-",
                             beside])  # fmt: skip
                print("  ".join(rows[-1]), flush=True)
    measure.table(f"patterns at d = {DIM}", rows)
    windows = [f for f in figures if f["pattern"] == CASES[1][0]]
    assert all(f["certified"] for f in windows), "a window with global tokens must certify"
    return figures


def tradeoff(options):
    """Return the largest logit of filters for each size, width and pair of tolerances."""
    from headfit._base.tolerances import Tolerances
    from headfit._filter.demand import Demand
    from headfit._filter.design import design
    from headfit._filter.stencil import Stencil

    n = 1024 if options.quick else 16384
    widths = (16,) if options.quick else options.widths
    sizes = (16, 24, 32) if options.quick else options.sizes
    rows = [["window", "tolerances", *map(str, sizes)]]
    figures = []
    for width in widths:
        stencil = Stencil.of(hf.Target(p.causal_band(n, width - 1), mask="causal"))
        for name, asked in TOLERANCES.items():
            demand = Demand(stencil, Tolerances(**asked))
            logits = []
            for dim in sizes:
                ends = time.perf_counter() + options.limit / 4
                found = design(demand, dim, max_norm=1e5, deadline=ends, moves=2)
                least = math.inf
                if found is not None:
                    assert demand.lacks(found.filter) <= 1e-3, "a filter that misses its demand"
                    values = found.filter.logits_between(stencil.first, stencil.last)
                    least = float(np.abs(values).max())
                # A smaller head, padded with zeros, is a head of this size too.
                logits.append(min([*logits, least]))
            figures.append({"width": width, "tolerances": name, "sizes": list(sizes),
                            "largest_logit": logits})  # fmt: skip
            rows.append([str(width), name, *("-" if math.isinf(x) else f"{x:.3g}" for x in logits)])
            print("  ".join(rows[-1]), flush=True)
    measure.table(f"largest logit by head size, causal windows, n = {n:,}", rows)
    if options.plot:
        draw(figures, n, options.plot)
    return figures


def draw(figures, n, path):
    """Draw the largest logit against the head size."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    widths = sorted({f["width"] for f in figures})
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(widths)))
    styles = {"tight": "-", "middle": "--", "loose": ":"}
    for f in figures:
        least = [math.nan if math.isinf(x) else x for x in f["largest_logit"]]
        ax.plot(f["sizes"], least, styles[f["tolerances"]], marker=".",
                color=colours[widths.index(f["width"])],
                label=f"{f['width']} keys, {f['tolerances']}")  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="head size d", ylabel="largest logit",
           title=f"Causal windows as filters, n = {n:,}")  # fmt: skip
    ticks = sorted({d for f in figures for d in f["sizes"]})
    ax.set_xticks(ticks, [str(d) for d in ticks])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    fig.savefig(path)


def million(options):
    """Design a window of 64 keys for a million tokens, and certify all 10**12 logits once."""
    n = 20_000 if options.quick else 1_000_000
    A = hf.Target(p.causal_band(n, 63), mask="causal")
    method = hf.methods.Toeplitz()
    fit, seconds, spent = fitted(A, True, "float32", None, method, num_threads=options.threads)
    assert fit.certificate.holds, "the window must certify"
    print(
        f"n = {n:,}: {seconds:.1f} s ({spent:.1f} processor seconds) with the certificate; {fit!r}"
    )
    return [{"n": n, "seconds": seconds, "processor_seconds": spent,
             "largest_logit": float(fit.certificate.max_logit)}]  # fmt: skip


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="the most seconds per fit")
    parser.add_argument("--lengths", type=int, nargs="+", default=(4096, 16384))
    parser.add_argument("--only", default="")
    parser.add_argument("--tradeoff", action="store_true")
    parser.add_argument("--widths", type=int, nargs="+", help="windows of the trade-off",
                        default=(16, 64, 256, 1024))  # fmt: skip
    parser.add_argument("--sizes", type=int, nargs="+", help="head sizes of the trade-off",
                        default=(16, 24, 32, 48, 64, 96, 128))  # fmt: skip
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--plot", help="draw the trade-off into this file")
    options = parser.parse_args()
    print(f"{measure.machine()}; {options.threads} threads")
    if options.tradeoff:
        figures = {"tradeoff": tradeoff(options)}
    elif options.million:
        figures = {"million": million(options)}
    else:
        figures = {"patterns": table(options)}
    measure.finish(options, figures)


if __name__ == "__main__":
    main()
