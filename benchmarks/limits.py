"""Limits of this machine that tasks are compared with: products, exponentials and stores.

They are measured in a separate process, where BLAS uses one thread and each thread has its own
buffers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The rates of all threads together."""

    multiply: dict[int, float]
    """float32 multiply-adds a second for each inner dimension, the result in cache."""
    exp: float
    """float32 exponentials a second, in cache (NumPy's)."""
    store: float
    """Bytes a second, to memory larger than the caches."""

    def product_seconds(self, n: int, d: int) -> float:
        """Return seconds for n x n products of inner dimension d."""
        return n * n * d / self.multiply[d]

    def attention_seconds(self, n: int, d: int) -> float:
        """Return seconds for the products, their exponentials and the stores, one after another."""
        return self.product_seconds(n, d) + n * n / self.exp + 4 * n * n / self.store


def measured(threads: int, *dims: int) -> Limits:
    """Return the limits, measured in a separate process."""
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    arguments = [sys.executable, __file__, str(threads), *map(str, dims)]
    found = json.loads(subprocess.check_output(arguments, text=True, env={**os.environ, **one}))
    found["multiply"] = {int(d): rate for d, rate in found["multiply"].items()}
    return Limits(**found)


def _seconds(work, items):
    times = []
    with ThreadPoolExecutor(len(items)) as pool:
        for _ in range(4):
            start = time.perf_counter()
            list(pool.map(work, items))
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main():
    import numpy as np

    threads, *dims = map(int, sys.argv[1:])
    rng = np.random.default_rng(0)
    side, multiply = 256, {}
    for d in dims:
        repeat = max(1, int(1e9 / (side * side * d)))
        operands = [
            (rng.random((side, d), np.float32), rng.random((d, side), np.float32),
             np.empty((side, side), np.float32))
            for _ in range(threads)
        ]  # fmt: skip

        def products(pair, repeat=repeat):
            for _ in range(repeat):
                np.matmul(pair[0], pair[1], out=pair[2])

        multiply[d] = threads * repeat * side * side * d / _seconds(products, operands)

    size, repeat = 2**14, 800
    buffers = [(np.linspace(-20, 0, size, dtype=np.float32), np.empty(size, np.float32))
               for _ in range(threads)]  # fmt: skip

    def exponentials(pair):
        for _ in range(repeat):
            np.exp(pair[0], out=pair[1])

    exp = threads * size * repeat / _seconds(exponentials, buffers)
    large = [np.empty(2**25, np.float32) for _ in range(threads)]
    store = threads * large[0].nbytes / _seconds(lambda x: x.fill(1.0), large)
    print(json.dumps({"multiply": multiply, "exp": exp, "store": store}))


if __name__ == "__main__":
    main()
