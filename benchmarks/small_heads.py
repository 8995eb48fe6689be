"""The smallest heads that the learned method certifies, each judged by a separate NumPy scan.

Targets: random k-regular, gamma 2, unless a table says otherwise; leak 0.05 and distortion
expm1(0.1); float32 Q and K. With --peers, compared with full-batch Adam on the cross-entropy in
torch and JAX, on the same target, until the same tolerances hold or --limit seconds are over.
"""

from __future__ import annotations

import resource
import statistics
import time

import numpy as np

import headfit as hf
import measure
from peers import FIRST_TRY, TUNED, adam_in_jax, adam_in_torch

LEAK, DISTORTION = 0.05, np.expm1(0.1)

# Each case is n, k, head size.
QUICK = [(128, 3, 7)]
DEFAULT = [(512, 4, 7), (1024, 4, 8), (2048, 4, 9), (512, 8, 12), (1024, 8, 14), (2048, 8, 16),
           (512, 16, 21)]  # fmt: skip
SMALLEST = [(512, 4, 6), (1024, 4, 7), (2048, 4, 7), (512, 8, 11), (1024, 8, 12), (2048, 8, 14),
            (512, 16, 19), (2048, 16, 26)]  # fmt: skip
LARGE = [(4096, 4, 8), (4096, 8, 16), (10_000, 4, 10), (10_000, 4, 9), (10_000, 8, 20),
         (10_000, 8, 18), (20_000, 4, 10)]  # fmt: skip
LARGEST = [(100_000, 4, 16)]
# Near the most tokens of each size, found with more effort and many reheats.
PATIENT = [(160, 4, 5), (768, 4, 6), (2560, 4, 7), (6144, 4, 8), (96, 8, 8), (224, 8, 9),
           (2048, 16, 25)]  # fmt: skip
NARROW = {"bfloat16": [(512, 4, 8), (512, 4, 7), (2048, 4, 8), (2048, 8, 16), (2048, 8, 15)],
          "float16": [(2048, 4, 8), (2048, 4, 7), (2048, 8, 14)]}  # fmt: skip
PEERS = [(512, 4, 8), (1024, 4, 9), (2048, 4, 12), (512, 8, 13), (2048, 8, 18), (4096, 4, 10),
         (10_000, 4, 10)]  # fmt: skip
FIRST_TRIED = {case for case in QUICK + PEERS if case[0] <= 2048}  # also run with untuned Adam


def scan(A, Q, K, scale, block=512):
    """Return the worst leak and log-distortion of all n**2 logits, by plain NumPy in float64."""
    leak, spread = -np.inf, 0.0
    q, keys = Q.astype(np.float64), K.astype(np.float64)
    for start in range(0, A.shape[0], block):
        S = scale * (q[start : start + block] @ keys.T)
        rows = A[start : start + block].tocoo()
        i, j = rows.coords
        on = S[i, j]
        least = np.full(S.shape[0], np.inf)
        np.minimum.at(least, i, on)
        excess = on - np.log(rows.data)
        high, low = np.full(S.shape[0], -np.inf), np.full(S.shape[0], np.inf)
        np.maximum.at(high, i, excess)
        np.minimum.at(low, i, excess)
        S[i, j] = -np.inf
        leak = max(leak, float((S.max(1) - least).max()))
        spread = max(spread, float((high - low).max()))
    return float(np.exp(leak)), spread


def judged(A, head):
    """Return whether the head is certified; raise an error if the NumPy scan disagrees."""
    leak, spread = scan(A, head.Q, head.K, head.scale)
    assert (leak <= LEAK and spread <= 0.1) or not head.certificate.holds, "a false certificate"
    return head.certificate.holds


def fitted(A, dim, options, **more):
    """Return a head of this size, or for None of the smallest found, as all tables have it."""
    return hf.fit(
        A,
        dim,
        leak=LEAK,
        distortion=DISTORTION,
        certificate_mass=False,
        num_threads=options.threads,
        **more,
    )


def million(options, dim=21, checked=2048):
    """Learn and certify a head for a million tokens; scan some of its rows by NumPy too."""
    n = 1_000_000
    A = hf.patterns.random_regular(n, 4, gamma=2.0, rng=0)
    start = time.perf_counter()
    head = fitted(A, dim, options, time_limit=3600, rng=0)
    seconds = time.perf_counter() - start
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # as Linux counts
    proof = head.certificate
    rows = np.sort(np.random.default_rng(0).choice(n, checked, replace=False))
    leak, spread = scan(A[rows], head.Q[rows], head.K, head.scale)
    assert proof.holds
    assert leak <= proof.leak
    assert np.expm1(spread) <= proof.distortion
    report = head.settings["learned"]
    measure.table("a learned head for a million tokens, k = 4", [
        ["d", "certified", "minutes", "steps", "scans", "GB", "leak", "distortion", "max |logit|"],
        [str(dim), str(proof.holds), f"{seconds / 60:.1f}", str(report["steps"]),
         str(report["scans"]), f"{gigabytes:.2f}", f"{proof.leak:.4f}", f"{proof.distortion:.4f}",
         f"{proof.max_logit:.0f}"],
    ])  # fmt: skip
    return {"n": n, "k": 4, "dim": dim, "certified": bool(proof.holds), "seconds": seconds,
            "gigabytes": gigabytes}  # fmt: skip


def regular(cases, seeds, options, dtype="float32", method="auto"):
    """Fit random regular patterns of several seeds; print and return the results."""
    rows = [["n", "k", "d", "certified", "seconds", "scale max|q| max|k|"]]
    figures = []
    for n, k, dim in cases:
        heads = []
        for seed in range(seeds):
            A = hf.patterns.random_regular(n, k, gamma=2.0, rng=seed)
            head = fitted(A, dim, options, method=method, dtype=dtype, time_limit=options.limit,
                          rng=seed)  # fmt: skip
            heads.append((judged(A, head), head.seconds, head.certificate))
        seconds = [s for _, s, _ in heads]
        norms = [c.q_norm * c.k_norm * c.scale for _, _, c in heads]
        certified = [bool(h) for h, _, _ in heads]
        rows.append([str(n), str(k), str(dim), f"{sum(certified)}/{seeds}",
                     f"{statistics.median(seconds):.2f}", f"{max(norms):.0f}"])  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
        if all(certified) and n >= 4096:
            measure.summarise(f"learned to a certificate, n={n:,}, k={k}, d={dim}",
                              statistics.median(seconds), "-", None)  # fmt: skip
        figures.append({"n": n, "k": k, "dim": dim, "certified": certified,
                        "seconds": seconds, "norms": norms})  # fmt: skip
    measure.table(f"learned heads in {dtype}, {seeds} seeds", rows)
    return figures


def structured(options):
    """Search the smallest size for each structured pattern, with uniform weights and gamma 2."""
    p = hf.patterns
    makers = {
        "block of 8": lambda **w: p.block(400, 8, **w),
        "grid 20 x 20": lambda **w: p.grid2d(20, 20, **w),
        "binary tree": lambda **w: p.tree(400, **w),
        "band |i - j| <= 4": lambda **w: p.band(400, 4, **w),
        "strided": lambda **w: p.strided(400, 40, neighbors=4, **w),
        "bigbird": lambda **w: p.bigbird(400, 3, 2, 3, **w),
        "digits 8-NN": lambda **w: p.digits_knn(**w),
    }
    rows = [["pattern", "n", "k row/col", "weights", "found", "proved", "tried", "seconds"]]
    figures = []
    for name, make in makers.items():
        for weights in ({}, {"gamma": 2.0}):
            A = make(rng=0, **weights)
            head = fitted(A, None, options, method=hf.methods.Learned(effort="medium"),
                          time_limit=options.limit)  # fmt: skip
            judged(A, head)
            tried = " ".join(f"{t.dim}{'' if t.holds else ' no'}," for t in head.search.trials)
            target, drawn = hf.Target(A), "gamma 2" if weights else "uniform"
            rows.append(
                [name, str(target.n), f"{target.per_row}/{target.per_column}", drawn,
                 str(head.search.dim), str(head.lower_bound.dim), tried.rstrip(","),
                 f"{head.seconds:.1f}"]
            )  # fmt: skip
            print("  ".join(rows[-1]), flush=True)
            figures.append({"pattern": name, "weights": drawn, "dim": head.search.dim,
                            "lower": head.lower_bound.dim, "seconds": head.seconds})  # fmt: skip
    measure.table(f"structured patterns, searches of {options.limit:.0f} s at most", rows)
    return figures


def against_projection(options):
    """Compare the certified sizes of the projection method and the learned method."""
    rows = [["n", "k", "projection d", "learned d", "times smaller"]]
    figures = []
    for n, k in ((256, 4), (512, 4)):
        A = hf.patterns.random_regular(n, k, gamma=2.0, rng=0)
        sizes = []
        for method in ("projection", "learned"):
            head = fitted(A, None, options, method=method, time_limit=options.limit)
            judged(A, head)
            sizes.append(head.search.dim)
        assert all(sizes)
        rows.append([str(n), str(k), *map(str, sizes), f"{sizes[0] / sizes[1]:.0f}"])
        print("  ".join(rows[-1]), flush=True)
        figures.append({"n": n, "k": k, "projection": sizes[0], "learned": sizes[1]})
    measure.table("projection and learned", rows)
    return figures


def peers(cases, options):
    """Run Adam to the same certificate for n <= 2048; for larger n measure the time of a step."""
    rows = [["n", "k", "d", "headfit s", "Adam", "torch", "steps", "JAX", "steps"]]
    figures = []
    for n, k, dim in cases:
        A = hf.patterns.random_regular(n, k, gamma=2.0, rng=0)
        ours, found = "-", {"n": n, "k": k, "dim": dim}
        if n <= 2048:
            head = fitted(A, dim, options, time_limit=options.limit)
            ours = f"{head.seconds:.2f}" if judged(A, head) else "not certified"
            found["headfit"] = head.seconds
        for recipe in (FIRST_TRY, TUNED) if (n, k, dim) in FIRST_TRIED else (TUNED,):
            cells = [str(n), str(k), str(dim), ours, recipe.name]
            for name, adam in (("torch", adam_in_torch), ("jax", adam_in_jax)):
                try:
                    seconds, taken = adam(A, dim, recipe, options.limit, None if n <= 2048 else 3)
                except ImportError:
                    cells += ["not installed", "-"]
                    continue
                found[f"{name}, {recipe.name}"] = {"seconds": seconds, "steps": taken}
                if n > 2048:
                    cells += [f"{seconds / taken:.2f} s a step", str(taken)]
                    continue
                cells += ["not certified" if seconds is None else f"{seconds:.1f} s", str(taken)]
                if ours != "not certified":
                    title = f"learned to a certificate, n={n:,}, k={k}, d={dim}"
                    peer = f"Adam in {name}, {recipe.name}"
                    measure.summarise(title, head.seconds, peer, seconds)
            print("  ".join(cells), flush=True)
            rows.append(cells)
        figures.append(found)
    measure.table(f"peers, {options.limit:.0f} s at most", rows)
    return figures


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smallest", action="store_true", help="the smallest sizes too")
    parser.add_argument("--large", action="store_true", help="n = 4096 and more")
    parser.add_argument("--largest", action="store_true", help="n = 100,000, one seed")
    parser.add_argument("--million", action="store_true", help="a million tokens, about an hour")
    parser.add_argument("--patient", action="store_true", help="effort medium, 100 reheats")
    parser.add_argument("--narrow", action="store_true", help="bfloat16 and float16 heads")
    parser.add_argument("--structured", action="store_true", help="bands, grids, trees, digits")
    parser.add_argument("--projection", action="store_true", help="beside the projection rung")
    parser.add_argument("--peers", nargs="?", const="usual", choices=["usual", "smallest"],
                        help="Adam in torch and JAX; at the smallest sizes too")  # fmt: skip
    parser.add_argument("--only", action="store_true", help="leave out the table of usual sizes")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each fit and peer")
    options = parser.parse_args()
    if options.quick:
        options.limit = min(options.limit, 10)
    print(f"{measure.machine()}; {options.threads} threads; leak {LEAK}, distortion expm1(0.1)")
    cases = [] if options.only else list(DEFAULT)
    cases += (SMALLEST if options.smallest else []) + (LARGE if options.large else [])
    cases = QUICK if options.quick else cases
    figures = {"heads": regular(cases, options.seeds, options) if cases else []}
    if options.largest and not options.quick:
        figures["heads"] += regular(LARGEST, 1, options)
    if options.patient and not options.quick:
        method = hf.methods.Learned(effort="medium", reheats=100)
        figures["patient"] = regular(PATIENT, options.seeds, options, method=method)
    if options.million and not options.quick:
        figures["million"] = million(options)
    if options.narrow:
        for dtype, narrow in NARROW.items():
            figures[dtype] = regular(narrow, options.seeds, options, dtype)
    if options.structured:
        figures["structured"] = structured(options)
    if options.projection:
        figures["projection"] = against_projection(options)
    if options.peers:
        cases = PEERS + (SMALLEST if options.peers == "smallest" else [])
        figures["peers"] = peers(QUICK if options.quick else cases, options)
    measure.finish(options, figures)


if __name__ == "__main__":
    main()
