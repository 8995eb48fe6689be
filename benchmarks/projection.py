"""The projection method: identity compared with SVD factors, and with scikit-learn's sketch."""

from __future__ import annotations

import time

import numpy as np
from sklearn.random_projection import GaussianRandomProjection

import headfit as hf
import limits
import measure
from headfit import _core

OPTIONS = measure.arguments(__doc__)


def target_logits(A):
    B = A.copy()
    B.data = _core.target_logits(hf.Target(A).core, _core.Tolerances(0.05, 0.1))
    return B


def against_sklearn(n, k, dim):
    """Compare B times a Gaussian sketch: ours adds up its rows, scikit-learn multiplies."""
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=0)
    B = target_logits(A).astype(np.float32)

    def ours(sketch):
        problem = hf.methods.Problem(hf.Target(A), hf.Tolerances(), seed=7, threads=OPTIONS.threads)
        return hf.methods.Projection(sketch=sketch).head(problem, dim)

    head = ours("gaussian")

    def peer():
        projector = GaussianRandomProjection(dim, random_state=0)
        # One row suffices to fit, since the sketch depends on the number of columns alone.
        return projector.fit(B[:1]), projector

    _, projector = peer()
    projector.components_ = np.ascontiguousarray(head.K.T)  # the same sketch gives the same answer
    np.testing.assert_allclose(projector.transform(B), head.Q, rtol=1e-3, atol=1e-4)
    del head
    repeat = max(1, OPTIONS.repeat // 2)
    seconds = measure.interleaved(
        {
            "headfit Gaussian": lambda: ours("gaussian"),
            "headfit Rademacher": lambda: ours("rademacher"),
            "scikit-learn, sketch and product": lambda: peer()[1].transform(B),
            "scikit-learn, product alone": lambda: projector.transform(B),
        },
        repeat,
    )
    title = f"projection, n={n:,}, k={k}, d={dim}"
    measure.ratios(f"{title}, float32", seconds, "headfit Gaussian")
    # The limit: read k rows of keys for every query, as numbers or signs, and store both results at
    # the rate of stores. It does not count that the system clears the pages of both results first.
    store = limits.measured(OPTIONS.threads).store
    for kind, bits in (("Gaussian", 32), ("Rademacher", 1)):
        limit = n * dim * (k * bits / 8 + 8) / store
        measure.summarise(f"{title}, {kind}", seconds[f"headfit {kind}"], "scikit-learn",
                          seconds["scikit-learn, sketch and product"], limit)  # fmt: skip
    return seconds


def against_svd(n, dim):
    """Compare both factorisations for a target: their times and the errors of their logits."""
    A = hf.patterns.random_regular(n, 4, gamma=2.0, rng=0)
    B = target_logits(A)
    seconds, errors = {}, {}
    for factor in ("identity", "svd"):
        start = time.perf_counter()
        tolerances = hf.Tolerances(0.05, 0.1)
        problem = hf.methods.Problem(
            hf.Target(A), tolerances, "float64", seed=3, threads=OPTIONS.threads
        )
        head = hf.methods.Projection(sketch="gaussian", factor=factor).head(problem, dim)
        seconds[factor] = time.perf_counter() - start
        errors[factor] = float(np.abs(head.Q @ head.K.T - B.toarray()).std())
    # Both are unbiased sketches of the same B, so their errors must be similar.
    assert 0.5 < errors["identity"] / errors["svd"] < 2, errors
    title = f"projection by identity factor, n={n:,}, d={dim}"
    measure.ratios(title, seconds, "identity")
    measure.summarise(title, seconds["identity"], "by SVD", seconds["svd"])
    print(f"\nstandard deviation of the logits' error: {errors}")
    return {"seconds": seconds, "errors": errors}


def regular(n, k):
    """Measure the time of a random regular pattern, and check its rows and columns."""
    start = time.perf_counter()
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=0)
    seconds = time.perf_counter() - start
    assert (np.diff(A.indptr) == k).all()
    assert (np.bincount(A.indices, minlength=n) == k).all()
    measure.summarise(f"random_regular, n={n:,}, k={k}", seconds, "-", None)
    return seconds


def main():
    print(f"{measure.machine()}; {OPTIONS.threads} threads")
    sizes = [(2048, 128)] if OPTIONS.quick else [(65_536, 1024), (1_000_000, 512)]
    figures = {f"sklearn n={n} d={dim}": against_sklearn(n, 8, dim) for n, dim in sizes}
    figures["random_regular"] = regular(10_000 if OPTIONS.quick else 1_000_000, 8)
    n = 256 if OPTIONS.quick else 4096
    figures[f"svd n={n}"] = against_svd(n, 256)
    measure.finish(OPTIONS, figures)


if __name__ == "__main__":
    main()
