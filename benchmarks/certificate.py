"""The certificate against a blocked NumPy scan of the same logits."""

from __future__ import annotations

import os

import measure

OPTIONS = measure.arguments(__doc__)
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

import numpy as np  # noqa: E402

import headfit as hf  # noqa: E402


def numpy_scan(A, Q, K, scale, mass, block=512):
    """Leak and distortion (and stray mass) of every row, a block of rows at a time."""
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
            return hf.certify(A, Q, K, mass=mass, num_threads=OPTIONS.threads)

        def peer(mass=mass):
            return numpy_scan(A, Q, K, scale, mass)

        c, (leak, distortion, stray) = ours(), peer()
        np.testing.assert_allclose(c.row_leak, leak, rtol=1e-3)
        np.testing.assert_allclose(c.row_distortion, distortion, rtol=1e-3, atol=1e-3)
        assert (c.row_leak >= leak * (1 - 1e-5)).all()
        if mass:
            np.testing.assert_allclose(c.row_stray, stray, rtol=1e-3)
        seconds = measure.interleaved(
            {"headfit": ours, "blocked NumPy": peer}, max(1, OPTIONS.repeat // 2)
        )
        what = "with tv and stray mass" if mass else "compare only"
        measure.ratios(f"certificate, n={n}, d={d}, {what}", seconds, "headfit")
        print(f"\n{n * n / seconds['headfit'] / 1e9:.2f} 10^9 logits a second")
        figures["mass" if mass else "compare"] = seconds
    return figures


def main():
    print(f"{measure.machine()}; {OPTIONS.threads} threads")
    sizes = [(1024, 16)] if OPTIONS.quick else [(20_000, 16), (20_000, 64)]
    measure.finish(OPTIONS, {f"n={n} d={d}": compare(n, d) for n, d in sizes})


if __name__ == "__main__":
    main()
