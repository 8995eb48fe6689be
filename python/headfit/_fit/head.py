"""What every method returns, and how it is rounded to a narrow format.

A method never judges itself: the certificate does. Narrow formats hold rounded keys, and queries
whose coordinates are rounded so that their errors cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arrays import FloatArray, round_to
from headfit._base.tolerances import with_margin
from headfit._fit.ending import Ending
from headfit._fit.problem import Problem
from headfit.errors import InputError

# Part of each tolerance that is reserved for rounding Q and K to the dtype they are stored in.
ROUNDING_SHARE = 0.02
# The part of the distortion's logarithm that the descent keeps in reserve for rounding.
FIRST_RESERVE = 0.4
# What exact queries keep, in turn: less for rows that have no query otherwise, and more for rows
# whose queries do not bear their rounding.
LESS, MORE = (FIRST_RESERVE, 0.25, 0.1), (0.6, 0.8)


def tightened(leak: float, distortion: float, logit_step: float = 0.0) -> tuple[float, float]:
    """Return tolerances with room for the rounding of Q and K, and of logits to steps."""
    delta = math.log1p(distortion)
    margin = ROUNDING_SHARE * min(1.0, delta) + logit_step
    if margin >= delta:
        raise InputError(
            f"distortion={distortion:.6g} leaves no room for logits that are rounded to steps of "
            f"{logit_step:.3g}: ask for a smaller max_logit or another kernel"
        )
    return with_margin(leak, distortion, margin)


@dataclass(frozen=True, eq=False)
class Head:
    """Queries and keys whose plain products q.k are the logits that a method found.

    Parameters
    ----------
    Q, K : ndarray, shape (n, d)
        float32 or float64. `fit` divides Q by the scale of the logits, rounds both to its dtype,
        and certifies what is then stored.
    failed_rows : ndarray of int, optional
        Rows that the method itself gave up; None when it cannot tell.
    witnesses : tuple, optional
        Proofs for failed rows.
    settings : dict, optional
        What `Fit.settings` adds to the arguments of the fit: plain values that JSON can hold.
    ended : str, default "stalled"
        Why the method stopped, in a word of `Fit.stopped`, should the certificate not hold.
    steps : int, optional
        The steps that an iterative method took.
    restarts : int, default 0
        How often it started over.
    method : str, optional
        What `Fit.method` says; the name of the method when None. For methods that choose among
        others.

    Notes
    -----
    Making one raises no error: `fit` checks what a method returns.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> hf.methods.Head(10 * np.eye(3), np.eye(3)).dim
    3
    """

    Q: FloatArray
    K: FloatArray
    failed_rows: NDArray[np.intp] | None = None
    witnesses: tuple[Any, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    ended: Ending = "stalled"
    steps: int | None = None
    restarts: int = 0
    method: str | None = None

    @property
    def dim(self) -> int:
        """The head size."""
        return int(self.Q.shape[1])

    @property
    def rows_left(self) -> int:
        """How many rows the method itself gave up; 0 when it cannot tell."""
        return 0 if self.failed_rows is None else int(self.failed_rows.size)

    @property
    def left(self) -> str:
        """A text such as " with 3 rows left", empty if no row is left."""
        rows = self.rows_left
        return f" with {rows} row{'' if rows == 1 else 's'} left" if rows else ""

    @classmethod
    def of_zeros(cls, n: int, dim: int, ended: Ending, method: str | None = None) -> Head:
        """Return a head that is nothing: all n rows are given up."""
        zeros = np.zeros((n, dim), np.float32)
        return cls(zeros, zeros, failed_rows=np.arange(n), ended=ended, method=method)

    def padded(self, dim: int) -> Head:
        """Return the same logits with zero columns up to a larger size."""
        if dim == self.dim:
            return self
        zeros = ((0, 0), (0, dim - self.dim))
        settings = {**self.settings, "dim_used": self.settings.get("dim_used", self.dim)}
        return replace(self, Q=np.pad(self.Q, zeros), K=np.pad(self.K, zeros), settings=settings)

    def stored(self, scale: float, dtype: str) -> tuple[FloatArray, FloatArray]:
        """Return Q / scale and K as numbers of a dtype: what is stored, and certified."""
        return round_to(self.Q / self.Q.dtype.type(scale), dtype), round_to(self.K, dtype)


def with_narrow_queries(
    problem: Problem,
    head: Head,
    target: _core.Target | None = None,
    max_norm: float | None = None,
) -> Head:
    """Round queries to the format of the problem, so that the errors of their coordinates cancel.

    They keep to the tolerances for `target`, that of the problem when None, and to a bound on
    max ||q|| max ||k||.
    """
    tolerances, limit = problem.tolerances, problem.logit_limit
    met = with_margin(tolerances.leak, tolerances.distortion, problem.logit_step)
    queries = _core.round_queries(
        problem.target.core if target is None else target,
        np.ascontiguousarray(head.Q, dtype=np.float32),
        np.ascontiguousarray(head.K, dtype=np.float32),
        _core.Tolerances(*met, math.inf if limit is None else limit),
        _core.Storage(problem.dtype, problem.scale_for(head.dim), max_norm or 0.0),
        problem.threads,
    )
    return replace(head, Q=queries)


def reserved(problem: Problem, share: float) -> tuple[float, float]:
    """Return leak and distortion with a part of the distortion's logarithm in reserve."""
    leak, distortion = problem.tolerances.leak, problem.tolerances.distortion
    return with_margin(leak, distortion, share * math.log1p(distortion))


def narrowed(problem: Problem, head: Head, max_norm: float | None) -> Head:
    """Return a head whose keys and queries / scale the format of the problem holds exactly.

    Keys are rounded to nearest. Rows that these keys no longer suit get exact queries, and all
    queries are rounded so that their errors cancel. `failed_rows` are those that have no query for
    the rounded keys, or none that bears its rounding; if there are any of the first kind, keys and
    queries are returned as they were before rounding. Logits must be free of a bound.
    """

    def met(*shares: float) -> list[_core.Tolerances]:
        return [_core.Tolerances(*tightened(*reserved(problem, share))) for share in shares]

    k, (stored,) = round_to(head.K, problem.dtype), met(0.0)
    options = _core.NarrowOptions(
        stored=stored,
        rounded=_core.Tolerances(*reserved(problem, 0.0)),
        less=met(*LESS),
        more=met(*MORE),
        storage=_core.Storage(problem.dtype, problem.scale_for(head.dim)),
        max_norm=max_norm or 0.0,
    )
    q = np.ascontiguousarray(head.Q, dtype=np.float32)
    q, failed, fit = _core.narrow_queries(problem.target.core, q, k, options, problem.threads)
    return replace(head, Q=q, K=k if fit else head.K, failed_rows=failed)
