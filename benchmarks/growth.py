"""How the time of each task grows with n, d, k and threads: exponents and a picture.

Each series changes one size and keeps the others. The exponent is the slope of log seconds
against log size; "expected" is the exponent of the algorithm's complexity.
"""

from __future__ import annotations

import math
import time

import numpy as np

import headfit as hf
import masks
import measure
from headfit import _core

LEAK, DISTORTION = 0.05, math.expm1(0.1)


def head(n, d):
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((n, d)).astype(np.float32) for _ in range(2))


def attention(n, d, threads):
    Q, K = head(n, d)
    out = np.empty((n, n), np.float32)
    return lambda: hf.attention_matrix(Q, K, out=out, num_threads=threads)


def topk(n, d, threads):
    Q, K = head(n, d)
    return lambda: hf.attention_topk(Q, K, 8, num_threads=threads)


def apply(n, d, threads):
    Q, K = head(n, d)
    return lambda: hf.attention_apply(Q, K, K, num_threads=threads)


def within_mask(n, keys, threads):
    Q, K = head(n, 64)
    attention = hf.Attention(Q, K, mask=masks.random(n, keys))
    return lambda: attention.apply(K, num_threads=threads)


def certificate(n, d, threads, mass=False):
    A = hf.Target(hf.patterns.random_regular(n, 4, gamma=2.0, rng=0))
    K = head(n, d)[1]
    Q = (2 * math.sqrt(d) * (A.matrix @ K)).astype(np.float32)
    return lambda: hf.certify(A, Q, K, certificate_mass=mass, num_threads=threads)


def projection(n, d, threads):
    target = hf.Target(hf.patterns.random_regular(n, 8, gamma=2.0, rng=0)).core
    tolerances = _core.Tolerances(LEAK, DISTORTION)
    options = _core.ProjectionOptions(sketch="rademacher", seed=7)
    q, k = np.empty((n, d), np.float32), np.empty((n, d), np.float32)
    return lambda: _core.project_identity(target, tolerances, options, q, k, threads)


def max_margin(n, k, threads):
    A = hf.Target(hf.patterns.random_regular(n, k, gamma=2.0, rng=0))
    table = hf.methods.KeyTable.random(n, 12 * k, rng=0)
    return lambda: hf.fit(
        A, method=hf.methods.MaxMargin(keys=table), certificate_mass=False, num_threads=threads
    )


def learned_steps(n, k, threads):
    """Make a fixed number of steps, at a size so small that no fit ends before them."""
    A = hf.Target(hf.patterns.random_regular(n, k, gamma=2.0, rng=0))

    def stop(step, left, deficit):
        return step < 150

    def run():
        method = hf.methods.Learned(callback=stop)
        head = hf.fit(A, k + 1, method=method, certificate_mass=False, num_threads=threads)
        assert head.settings["learned"]["steps"] >= 150

    return run


SERIES = (
    # Title, the size that changes, the task for a size, the sizes, the expected exponent.
    ("attention matrix, d=64", "n", lambda s, t: attention(s, 64, t), (1024, 2048, 4096, 8192), 2),
    ("attention matrix, n=2048", "d", lambda s, t: attention(2048, s, t), (32, 64, 128, 256), 1),
    ("top-8, d=64", "n", lambda s, t: topk(s, 64, t), (2048, 4096, 8192, 16384), 2),
    ("attention x V, d=64", "n", lambda s, t: apply(s, 64, t), (2048, 4096, 8192), 2),
    ("attention x V, d=64, 64 random keys a row", "n", lambda s, t: within_mask(s, 64, t),
     (16384, 65536, 262144), 1),
    ("certificate, d=16", "n", lambda s, t: certificate(s, 16, t),
     (8192, 16384, 32768, 65536), 2),
    ("certificate with mass, d=16", "n", lambda s, t: certificate(s, 16, t, True),
     (8192, 16384, 32768), 2),
    ("projection, k=8, d=512", "n", lambda s, t: projection(s, 512, t),
     (16384, 32768, 65536, 131072), 1),
    ("max-margin, k=8, d=96", "n", lambda s, t: max_margin(s, 8, t), (1024, 2048, 4096), 2),
    ("learned, 150 steps, k=4, d=5", "n", lambda s, t: learned_steps(s, 4, t),
     (2048, 4096, 8192), 2),
    ("learned, 150 steps, n=1024, d=k+1", "k", lambda s, t: learned_steps(1024, s, t),
     (4, 8, 16), 3),
)  # fmt: skip


def seconds_of(work, repeat):
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--plot", help="draw into this file")
    options = parser.parse_args()
    print(f"{measure.machine()}; {options.threads} threads")
    threads = f"{options.threads} threads"
    rows = [["work", "size", "sizes", "seconds", "exponent", "expected at most", threads]]
    figures = []
    for title, symbol, make, sizes, expected in SERIES:
        sizes = [s // 8 if symbol == "n" else s for s in sizes] if options.quick else sizes
        taken = [seconds_of(make(s, options.threads), 3) for s in sizes]
        alone = seconds_of(make(sizes[-1], 1), 3)
        slope = float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])
        figures.append({"work": title, "size": symbol, "sizes": list(sizes), "seconds": taken,
                        "exponent": slope, "expected": expected,
                        "one_thread": alone})  # fmt: skip
        rows.append([title, symbol, " ".join(map(str, sizes)),
                     " ".join(f"{t:.3g}" for t in taken), f"{slope:.2f}", str(expected),
                     f"{alone / taken[-1]:.2f}x"])  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    measure.table("growth", rows)
    if options.plot:
        draw(figures, options.plot)
    measure.finish(options, {"growth": figures})


def draw(figures, path):
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    shown = [f for f in figures if f["size"] == "n"]
    markers, colours = "os^vDP*X<>", plt.get_cmap("tab10").colors
    for f, marker, colour in zip(shown, markers, colours, strict=False):
        label = f"{f['work']}: n^{f['exponent']:.2f}"
        ax.loglog(f["sizes"], f["seconds"], marker=marker, color=colour, label=label)
    ax.set_xlabel("tokens n")
    ax.set_ylabel("seconds")
    ax.set_xscale("log", base=2)
    ax.grid(alpha=0.3, which="both")
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    ax.set_title(measure.machine(), fontsize=9)
    fig.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
