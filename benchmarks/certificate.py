"""The certificate compared with a scan of the same logits in NumPy, by blocks of rows."""

from __future__ import annotations

import os
import resource
import time

import measure

PARSER = measure.parser(__doc__)
PARSER.add_argument("--million", action="store_true", help="a certificate of a million tokens")
OPTIONS = PARSER.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

import numpy as np  # noqa: E402

import headfit as hf  # noqa: E402
import limits  # noqa: E402

RATES = limits.measured(OPTIONS.threads, 16, 64)


def numpy_scan(A, Q, K, scale, mass, block=512):
    """Return leak and distortion (and stray mass) of every row, computed by blocks of rows."""
    n = A.shape[0]
    leak, distortion, stray = np.empty(n), np.empty(n), np.zeros(n)
    k = np.diff(A.indptr)[0]
    columns, logs = A.indices.reshape(n, k), np.log(A.data.reshape(n, k))
    for start in range(0, n, block):
        rows = slice(start, min(start + block, n))
        S = (Q[rows] * np.float32(scale)) @ K.T
        on = np.take_along_axis(S, columns[rows], 1).astype(np.float64)
        np.put_along_axis(S, columns[rows], -np.inf, 1)
        top = S.max(1)
        leak[rows] = np.exp(top - on.min(1))
        excess = on - logs[rows]
        distortion[rows] = np.expm1(excess.max(1) - excess.min(1))
        if mass:
            top = np.maximum(top, on.max(1))[:, None]
            off = np.exp(S - top.astype(np.float32)).sum(1, dtype=np.float64)
            stray[rows] = off / (off + np.exp(on - top).sum(1))
    return leak, distortion, stray


def compare(n, d):
    A = hf.patterns.random_regular(n, 4, gamma=2.0, rng=0)
    rng = np.random.default_rng(0)
    K = rng.standard_normal((n, d)).astype(np.float32)
    Q = (2 * np.sqrt(d) * (A @ K)).astype(np.float32)
    scale = d**-0.5
    figures = {}
    for mass in (False, True):

        def ours(mass=mass):
            return hf.certify(A, Q, K, certificate_mass=mass, num_threads=OPTIONS.threads)

        def peer(mass=mass):
            return numpy_scan(A, Q, K, scale, mass)

        c, (leak, distortion, stray) = ours(), peer()
        np.testing.assert_allclose(c.row_leak, leak, rtol=1e-3)
        np.testing.assert_allclose(c.row_distortion, distortion, rtol=1e-3, atol=1e-3)
        assert (c.row_leak >= leak * (1 - 1e-5)).all()
        if mass:
            np.testing.assert_allclose(c.row_stray, stray, rtol=1e-3)
        repeat = 1 if n > 50_000 else max(1, OPTIONS.repeat // 2)
        seconds = measure.interleaved({"headfit": ours, "blocked NumPy": peer}, repeat)
        what = "with tv and stray mass" if mass else "compare only"
        measure.ratios(f"certificate, n={n}, d={d}, {what}", seconds, "headfit")
        print(f"\n{n * n / seconds['headfit'] / 1e9:.2f} 10^9 logits a second")
        limit = RATES.product_seconds(n, d) + (n * n / RATES.exp if mass else 0)
        measure.summarise(f"certificate, n={n:,}, d={d}, {what}", seconds["headfit"],
                          "blocked NumPy", seconds["blocked NumPy"], limit)  # fmt: skip
        figures["mass" if mass else "compare"] = seconds
    return figures


def alone(n, d):
    """Measure time and peak memory for sizes that the NumPy scan could not finish."""
    A = hf.Target(hf.patterns.random_regular(n, 4, gamma=2.0, rng=0))
    K = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    Q = (2 * np.sqrt(d) * (A.matrix @ K)).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    c = hf.certify(A, Q, K, certificate_mass=False, num_threads=OPTIONS.threads)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    some = np.random.default_rng(1).choice(n, 512, replace=False)
    leak, distortion, _ = numpy_scan(A.matrix[some], Q[some], K, d**-0.5, False)
    np.testing.assert_allclose(c.row_leak[some], leak, rtol=1e-3)
    np.testing.assert_allclose(c.row_distortion[some], distortion, rtol=1e-3, atol=1e-3)
    title = f"certificate, n={n:,}, d={d}, compare only"
    print(f"\n{title}: {seconds:.0f} s, peak of the process {peak / 1024:.0f} MB, "
          f"{(peak - before) / 1024:.0f} MB above what it was")  # fmt: skip
    measure.summarise(title, seconds, "-", None, RATES.product_seconds(n, d))
    return {"seconds": seconds, "peak_mb": peak / 1024}


def main():
    print(f"{measure.machine()}; {OPTIONS.threads} threads")
    sizes = [(1024, 16)] if OPTIONS.quick else [(20_000, 16), (20_000, 64), (100_000, 16)]
    figures = {f"n={n} d={d}": compare(n, d) for n, d in sizes}
    if OPTIONS.million and not OPTIONS.quick:
        figures["million"] = alone(1_000_000, 16)
    measure.finish(OPTIONS, figures)


if __name__ == "__main__":
    main()
