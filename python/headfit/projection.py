"""Rung one, the algorithm of the paper's proof: a random projection of the target logits.

Likhosherstov, Choromanski and Weller, *On the Expressive Power of Self-Attention
Matrices*, arXiv 2106.03764.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg

from headfit import _core
from headfit._files import require_memory
from headfit.errors import InputError
from headfit.methods import Head
from headfit.targets import Target

FACTORS = ("identity", "svd")
SKETCHES = ("gaussian", "rademacher")


def check_options(factor: str, sketch: str) -> None:
    """Raise an InputError for a factor or a sketch that does not exist."""
    if factor not in FACTORS:
        raise InputError(f"factor must be one of {FACTORS}; got {factor!r}")
    if sketch not in SKETCHES:
        raise InputError(f"sketch must be one of {SKETCHES}; got {sketch!r}")


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
) -> Head:
    """Return Q and K with E[Q K^T] = B, the target logits of `bounds.projection_dim`.

    identity: B = B I, so K = G / sqrt(d) and a query is the logit-weighted sum of the keys it
    must find; O(nnz d). svd: B = U S V^T, Q = U S^(1/2) G / sqrt(d), K = V S^(1/2) G / sqrt(d);
    O(n**3), there for comparison.
    """
    settings = {"factor": factor, "sketch": sketch}
    require_memory(2 * target.n * dim * np.dtype(dtype).itemsize, f"a head of size {dim}")
    if factor == "identity":
        q = np.empty((target.n, dim), dtype)
        k = np.empty((target.n, dim), dtype)
        _core.project_identity(*target.parts, leak, distortion, sketch, seed, 1.0, q, k, threads)
        return Head(q, k, settings=settings)
    require_memory(5 * 8 * target.n**2, f"the singular value decomposition of n = {target.n}")
    B = target.matrix.copy()
    B.data = _core.target_logits(*target.parts, leak, distortion)
    u, s, vt = scipy.linalg.svd(B.toarray(), check_finite=False)
    g = np.empty((target.n, dim), np.float64)
    _core.fill_sketch(g, sketch, seed, threads)
    g /= math.sqrt(dim)
    return Head((u * np.sqrt(s)) @ g, (vt.T * np.sqrt(s)) @ g, settings=settings)
