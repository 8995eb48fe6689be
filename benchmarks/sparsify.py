"""Streamed sparsify compared with PyTorch's full matrix and topk: time and peak memory, float32.

Each task runs in a process of its own, so that its peak memory can be measured. There is no
counterpart of the bound on columns: a topk does not bound them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import measure


def options():
    parser = measure.parser(__doc__)
    parser.add_argument("--work", choices=sorted(WORK), help="run one piece of work, in this one")
    parser.add_argument("--tokens", type=int, help="n of it")
    return parser.parse_args()


def heads(n, d=64):
    import numpy as np

    return 1.5 * np.random.default_rng(0).standard_normal((2, n, d), dtype=np.float32)


def streamed(n, threads, **bounds):
    import headfit as hf

    Q, K = heads(n)
    warm = hf.sparsify(Q[:256], K[:256], per_row=8, num_threads=threads)

    def run():
        return hf.sparsify(
            Q, K, per_row=8, num_threads=threads, on_empty="keep-max", **bounds
        ).matrix

    return run, warm


def in_torch(n, threads):
    import torch

    torch.set_num_threads(threads)
    Q, K = (torch.from_numpy(x) for x in heads(n))

    def run(rows=slice(None)):
        return torch.topk(torch.softmax(Q[rows] @ K.T / 8, dim=-1), 8)

    return run, run(slice(256))


WORK = {
    "headfit, 8 a row": lambda n, t: streamed(n, t),
    "headfit, 8 a row and 8 a column": lambda n, t: streamed(n, t, per_column=8),
    "headfit, the same with sinks free": lambda n, t: streamed(
        n, t, per_column=8, exempt_columns="auto"
    ),
    "torch, full matrix and topk": in_torch,
}


def child(name, n, threads):
    """Print seconds, the growth of peak memory in MiB, and the columns of the first rows."""
    import resource
    import time
    from pathlib import Path

    import numpy as np

    run, _ = WORK[name](n, threads)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    start = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    if hasattr(found, "indptr"):
        assert np.diff(found.indptr).max() <= 8
        assert name != "headfit, 8 a row and 8 a column" or np.bincount(found.indices).max() <= 8
        columns = found.indices[: found.indptr[64]]
    else:
        columns = np.sort(found.indices[:64].numpy(), axis=1).ravel()
    print(seconds, grown, *columns.tolist())


def main():
    given = options()
    if given.work:
        child(given.work, given.tokens, given.threads)
        return
    n = 1024 if given.quick else 16384
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
    found: dict[str, list[list[float]]] = {name: [] for name in WORK}
    for _ in range(1 if given.quick else min(given.repeat, 3)):
        for name in WORK:
            arguments = ["--work", name, "--tokens", str(n), "--threads", str(given.threads)]
            out = subprocess.run(
                [sys.executable, __file__, *arguments],
                capture_output=True, text=True, check=True, env=environment,
            )  # fmt: skip
            found[name].append([float(x) for x in out.stdout.split()])
    ours, theirs = "headfit, 8 a row", "torch, full matrix and topk"
    same = [a == b for a, b in zip(found[ours][0][2:], found[theirs][0][2:], strict=True)]
    assert sum(same) > 0.99 * len(same), "the two keep different entries"
    rows = [["work", "s", "peak MiB more"]]
    figures = {}
    for name, runs in found.items():
        seconds, memory = (statistics.median(run[i] for run in runs) for i in (0, 1))
        figures[name] = {"seconds": seconds, "MiB": memory}
        rows.append([name, f"{seconds:.2f}", f"{memory:.0f}"])
    print(f"{measure.machine()}; {given.threads} threads")
    measure.table(f"sparsify, n={n}, d=64", rows)
    measure.finish(given, {f"sparsify n={n} d=64": figures})


if __name__ == "__main__":
    main()
