"""Rung one, the algorithm of the paper's proof: a random projection of the target logits.

Likhosherstov, Choromanski and Weller, *On the Expressive Power of Self-Attention
Matrices*, arXiv 2106.03764.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.logits import check_scale
from headfit._base.arguments import as_choice
from headfit._base.arrays import as_count, check_between, seed_from, thread_count
from headfit._base.dtypes import round_to
from headfit._base.memory import require_memory
from headfit._fit.head import Head
from headfit._target.target import Target, as_target

FACTORS = ("identity", "svd")
SKETCHES = ("gaussian", "rademacher")


def check_options(factor: str, sketch: str) -> None:
    """Raise an InputError for a factor or a sketch that does not exist."""
    as_choice(factor, "factor", FACTORS, "one of ")
    as_choice(sketch, "sketch", SKETCHES, "one of ")


def project(
    target: Target,
    dim: int,
    *,
    dtype: Any,
    factor: str,
    sketch: str,
    leak: float,
    distortion: float,
    seed: int,
    threads: int,
    scale: float = 1.0,
) -> Head:
    """Return Q and K with E[scale Q K^T] = B, the target logits of `bounds.projection_dim`.

    identity: B = B I, so K = G / sqrt(d) and a query is the logit-weighted sum of the keys it
    must find; O(nnz d). svd: B = U S V^T, Q = U S^(1/2) G / sqrt(d), K = V S^(1/2) G / sqrt(d);
    O(n**3), there for comparison.
    """
    settings = {"factor": factor, "sketch": sketch}
    require_memory(2 * target.n * dim * np.dtype(dtype).itemsize, f"a head of size dim = {dim}")
    if factor == "identity":
        q = np.empty((target.n, dim), dtype)
        k = np.empty((target.n, dim), dtype)
        _core.project_identity(
            *target.csr_arrays, leak, distortion, sketch, seed, scale, q, k, threads
        )
        return Head(q, k, settings=settings)
    require_memory(5 * 8 * target.n**2, f"the singular value decomposition of n = {target.n}")
    B = target.matrix.copy()
    B.data = _core.target_logits(*target.csr_arrays, leak, distortion)
    from scipy.linalg import svd

    u, s, vt = svd(B.toarray(), check_finite=False)
    g = np.empty((target.n, dim), np.float64)
    _core.fill_sketch(g, sketch, seed, threads)
    g /= math.sqrt(dim)
    return Head((u * np.sqrt(s)) @ g / scale, (vt.T * np.sqrt(s)) @ g, settings=settings)


def project_attention(
    A: Any,
    dim: int,
    *,
    leak: float = 0.05,
    distortion: float = 0.1,
    factor: str = "identity",
    sketch: str = "rademacher",
    dtype: str = "float32",
    scale: float | None = None,
    mask: Any = None,
    rng: Any = 0,
    normalize: bool = False,
    num_threads: int | None = None,
) -> Attention:
    """Run the paper's projection alone, without judging what it made.

    The parameters are those of `fit`, which also certifies: the projection costs
    O(nonzeros * d), a certificate O(n**2 d).

    Returns
    -------
    Attention
        Its Q and K; `certify` takes it.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.band(32, 1)
    >>> attention = hf.project(A, 1024, leak=0.3, distortion=2.0)
    >>> hf.certify(A, attention, leak=0.3, distortion=2.0).holds
    True
    """
    check_options(factor, sketch)
    dtype = as_choice(dtype, "dtype", ("float32", "float64"))
    size = as_count(dim, "dim", 1)
    target = as_target(A, mask=mask, normalize=normalize, num_threads=num_threads)
    used = check_scale(scale, size)
    head = project(
        target,
        size,
        dtype=dtype,
        factor=factor,
        sketch=sketch,
        leak=check_between(leak, "leak", 0, 1),
        distortion=check_between(distortion, "distortion", 0, math.inf),
        seed=seed_from(rng),
        threads=thread_count(num_threads),
        scale=used,
    )
    Q, K = (round_to(x, dtype) for x in (head.Q, head.K))
    return Attention(Q, K, scale=used, mask=target.mask)
