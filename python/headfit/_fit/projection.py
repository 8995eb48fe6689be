"""The projection method, the algorithm of the paper's proof: a sketch of the target logits.

Likhosherstov, Choromanski and Weller, *On the Expressive Power of Self-Attention
Matrices*, arXiv 2106.03764.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import svd

from headfit import _core
from headfit._base.arguments import as_choice
from headfit._base.calls import calls_until
from headfit._base.machine import require_memory
from headfit._fit.head import Head, Problem
from headfit._fit.method import Attempt, Method, Patience, bisected
from headfit._fit.result import Search


@dataclass(frozen=True)
class Projection(Method):
    """Project the target logits at random: proved to work, but only with large heads.

    Parameters
    ----------
    sketch : "rademacher" or "gaussian", default "rademacher"
        The entries of the random projection. Rademacher keys have equal norms, so that the
        logits of a support carry less noise.
    factor : "identity" or "svd", default "identity"
        How the target logits are factored. "svd" takes O(n**3) time and O(n**2) memory and needs a
        bound on the nonzeros per column as well; it is meant for comparison.

    Raises
    ------
    InputError
        For a word that is none of these.

    See Also
    --------
    bounds.projection_dim : a size that suffices.

    Notes
    -----
    Takes O(nonzeros * d) time, and its certificate O(n**2 d). The method does not bound the logits;
    whether they keep to `Tolerances.max_logit` is for the certificate to judge.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.band(32, 1)
    >>> method = hf.methods.Projection(sketch="gaussian")
    >>> hf.fit(A, 1024, method=method, leak=0.3, distortion=2.0).certificate.holds
    True

    The projection alone, without a certificate; every method can be called like this:

    >>> head = method.head(hf.methods.Problem(hf.Target(A), hf.Tolerances(0.3, 2.0)), 1024)
    >>> hf.Attention(head.Q, head.K, scale=1.0).dim
    1024
    """

    sketch: str = "rademacher"
    factor: str = "identity"

    name = "projection"

    def __post_init__(self) -> None:
        as_choice(self.factor, "factor", ("identity", "svd"), "one of ")
        as_choice(self.sketch, "sketch", ("gaussian", "rademacher"), "one of ")

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return Q and K with E[Q K^T] = B, the target logits of `bounds.projection_dim`.

        identity: B = B I, so K = G / sqrt(d) and a query is the logit-weighted sum of the keys on
        its support, in O(nonzeros d) time. svd: B = U S V^T, Q = U S^(1/2) G / sqrt(d) and
        K = V S^(1/2) G / sqrt(d), in O(n**3) time.
        """
        n, dtype = problem.target.n, problem.working_dtype
        target, tolerances = problem.target.core, problem.tolerances.core
        settings = {"factor": self.factor, "sketch": self.sketch}
        require_memory(2 * n * dim * dtype.itemsize, f"a head of size dim = {dim}")
        with calls_until(problem.deadline):
            if self.factor == "identity":
                q, k = np.empty((n, dim), dtype), np.empty((n, dim), dtype)
                options = _core.ProjectionOptions(sketch=self.sketch, seed=problem.seed)
                _core.project_identity(target, tolerances, options, q, k, problem.threads)
                return Head(q, k, settings=settings)
            require_memory(5 * 8 * n**2, f"the singular value decomposition of n = {n}")
            B = problem.target.matrix.copy()
            B.data = _core.target_logits(target, tolerances)
            u, s, vt = svd(B.toarray(), check_finite=False)
            g = np.empty((n, dim))
            _core.fill_sketch(g, self.sketch, problem.seed, problem.threads)
            g /= math.sqrt(dim)
            return Head((u * np.sqrt(s)) @ g, (vt.T * np.sqrt(s)) @ g, settings=settings)

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Double from 16, then bisect."""
        return bisected(problem, attempt, 16)

    def advice(self, head: Head) -> str | None:
        """Say what it means if a random projection misses the tolerances."""
        if head.ended != "stalled":
            return None
        return (
            f"This draw of the projection misses the tolerances at d = {head.dim}, which proves "
            "nothing: try a larger dim (bounds.projection_dim suffices), another rng, or "
            'method="learned", which reaches far smaller heads.'
        )
