"""The projection method, the algorithm of the paper's proof: a sketch of the target logits.

Likhosherstov, Choromanski and Weller, *On the Expressive Power of Self-Attention
Matrices*, arXiv 2106.03764.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.logits import check_scale
from headfit._base.arguments import as_choice
from headfit._base.arrays import as_count, seed_from, thread_count
from headfit._base.deadline import calls_until
from headfit._base.dtypes import round_to
from headfit._base.memory import require_memory
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._base.types import MaskLike, Seed
from headfit._fit.head import Head
from headfit._fit.method import Attempt, Method, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.search import double_and_bisect, largest_dim
from headfit._target.target import Target, TargetLike, as_target

__all__ = ["Projection", "project_attention"]

FACTORS = ("identity", "svd")
SKETCHES = ("gaussian", "rademacher")


@dataclass(frozen=True)
class Projection(Method):
    """Project the target logits at random: proved to work, but only with large heads.

    Parameters
    ----------
    sketch : "rademacher" or "gaussian", default "rademacher"
        The entries of the random projection. Rademacher keys have equal norms, so that the
        logits of a support carry less noise.
    factor : "identity" or "svd", default "identity"
        How the target logits are factored. "svd" costs O(n**3) and needs a bound on the nonzeros
        per column as well; it is meant for comparison.

    Raises
    ------
    InputError
        For a word that is none of these.

    See Also
    --------
    project : the projection alone, without a certificate.
    bounds.projection_dim : a size that suffices.

    Notes
    -----
    Takes O(nonzeros * d) time. The method does not bound the logits; whether they keep to
    `Tolerances.max_logit` is for the certificate to judge.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.band(32, 1)
    >>> method = hf.methods.Projection(sketch="gaussian")
    >>> hf.fit(A, 1024, method=method, leak=0.3, distortion=2.0).certificate.holds
    True
    """

    sketch: str = "rademacher"
    factor: str = "identity"

    name = "projection"

    def __post_init__(self) -> None:
        as_choice(self.factor, "factor", FACTORS, "one of ")
        as_choice(self.sketch, "sketch", SKETCHES, "one of ")

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return the projection with `dim` columns."""
        with calls_until(problem.deadline):
            return project(
                problem.target,
                dim,
                dtype=str(problem.working_dtype),
                factor=self.factor,
                sketch=self.sketch,
                leak=problem.tolerances.leak,
                distortion=problem.tolerances.distortion,
                seed=problem.seed,
                threads=problem.threads,
            )

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Double from 16, then bisect."""
        largest, why = largest_dim(problem)
        return double_and_bisect(
            attempt, 16, largest, why, deadline=problem.deadline, offset=problem.exempt_dims
        )

    def advice(self, head: Head) -> str | None:
        """Say what it means if a random projection misses the tolerances."""
        if head.ended != "stalled":
            return None
        return (
            f"This draw of the projection misses the tolerances at d = {head.dim}, which proves "
            "nothing: try a larger dim (bounds.projection_dim suffices), another rng, or "
            'method="learned", which reaches far smaller heads.'
        )


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

    identity: B = B I, so K = G / sqrt(d) and a query is the logit-weighted sum of the keys on
    its support, in O(nonzeros d) time. svd: B = U S V^T, Q = U S^(1/2) G / sqrt(d) and
    K = V S^(1/2) G / sqrt(d), in O(n**3) time.
    """
    settings = {"factor": factor, "sketch": sketch}
    require_memory(2 * target.n * dim * np.dtype(dtype).itemsize, f"a head of size dim = {dim}")
    if factor == "identity":
        q = np.empty((target.n, dim), dtype)
        k = np.empty((target.n, dim), dtype)
        options = _core.ProjectionOptions(sketch=sketch, seed=seed, scale=scale)
        tolerances = _core.Tolerances(leak, distortion)
        _core.project_identity(target.core, tolerances, options, q, k, threads)
        return Head(q, k, settings=settings)
    require_memory(5 * 8 * target.n**2, f"the singular value decomposition of n = {target.n}")
    B = target.matrix.copy()
    B.data = _core.target_logits(target.core, _core.Tolerances(leak, distortion))
    from scipy.linalg import svd

    u, s, vt = svd(B.toarray(), check_finite=False)
    g = np.empty((target.n, dim), np.float64)
    _core.fill_sketch(g, sketch, seed, threads)
    g /= math.sqrt(dim)
    return Head((u * np.sqrt(s)) @ g / scale, (vt.T * np.sqrt(s)) @ g, settings=settings)


def project_attention(
    A: TargetLike,
    dim: int,
    *,
    leak: float | None = None,
    distortion: float | None = None,
    tolerances: Tolerances | None = None,
    factor: str = "identity",
    sketch: str = "rademacher",
    dtype: str = "float32",
    scale: float | None = None,
    mask: MaskLike = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Attention:
    """Run the paper's projection alone, without a certificate.

    The parameters are those of `fit` and of `Projection`. `fit` also certifies: the projection
    costs O(nonzeros * d), a certificate O(n**2 d). A `max_logit` among the tolerances plays no
    part, since the projection does not bound its logits; `certify` judges it.

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
    method = Projection(sketch=sketch, factor=factor)
    asked = as_tolerances(tolerances, leak=leak, distortion=distortion)
    dtype = as_choice(dtype, "dtype", ("float32", "float64"))
    asked.check_storable(dtype)
    size = as_count(dim, "dim", 1)
    target = as_target(A, mask=mask, num_threads=num_threads)
    used = check_scale(scale, size)
    head = project(
        target,
        size,
        dtype=dtype,
        factor=method.factor,
        sketch=method.sketch,
        leak=asked.leak,
        distortion=asked.distortion,
        seed=seed_from(rng),
        threads=thread_count(num_threads),
        scale=used,
    )
    Q, K = (round_to(x, dtype) for x in (head.Q, head.K))
    return Attention(Q, K, scale=used, mask=target.mask)
