"""The max-margin method: for given keys, the shortest query of every row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base import dtypes
from headfit._base.arguments import as_choice
from headfit._base.arrays import check_between
from headfit._base.deadline import calls_until
from headfit._base.memory import require_memory
from headfit._base.tolerances import with_margin
from headfit._cluster.cluster import Cluster
from headfit._fit.given_keys import ByWorkers, GivenKeys, Here, RowStatus
from headfit._fit.head import Head, tightened
from headfit._fit.key_table import KeyTable
from headfit._fit.learned import check_norm_without_exempt
from headfit._fit.method import Attempt, Method, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.search import double_and_bisect, largest_dim
from headfit._target.target import Target
from headfit._target.witnesses import FaceWitness, FarkasWitness, Multiplier
from headfit.errors import InputError

__all__ = ["MaxMargin"]

FORMS = ("tolerance", "equality")
KEYS = ("random", "cyclic")
# The part of the distortion's logarithm that is reserved for rounding queries to a narrow format.
NARROW_RESERVE = 0.3


@dataclass(frozen=True, eq=False)
class MaxMargin(Method):
    """Take keys as given; find the shortest query of every row, or a proof that there is none.

    Parameters
    ----------
    keys : "random", "cyclic", array_like of shape (n, d), or KeyTable, default "random"
        See `KeyTable`. An array becomes a table; a table serves any number of patterns. Its size
        is then that of the head, less what exempt columns take, and its numbers are rounded to the
        dtype of the head before queries are sought: all that is proved is about the rounded ones.
    form : "tolerance" or "equality", default "tolerance"
        "tolerance" uses the allowed distortion to shorten queries; "equality" meets the
        log-ratios up to rounding.
    max_norm : float, optional
        A bound on scale * max ||q|| * max ||k||. A row that needs more fails, with a proof.

    Raises
    ------
    InputError
        For an option out of range. Keys whose shape does not suit the pattern or the size are
        refused by `fit`.

    See Also
    --------
    Learned : chooses its keys, and needs far fewer dimensions.

    Notes
    -----
    It costs a handful of scans of all logits, O(n**2 d) each, and a small quadratic program per
    row. A bound on the logits (`Tolerances.max_logit`) is kept by bounding the norms, since
    |q.k| <= ||q|| ||k||; this gives up some rows for which a query within the bound exists.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.random_regular(64, 2, rng=0)
    >>> hf.fit(A, 24, method=hf.methods.MaxMargin(form="equality")).certificate.holds
    True
    >>> fit = hf.fit(A, 24, method=hf.methods.MaxMargin(max_norm=1.0))
    >>> fit.certificate.holds, fit.witnesses[0].verify(A, fit.K) > 1.0
    (False, True)
    """

    keys: Any = "random"
    form: str = "tolerance"
    max_norm: float | None = None

    name = "max-margin"

    def __post_init__(self) -> None:
        as_choice(self.form, "form", FORMS, "one of ")
        if isinstance(self.keys, str):
            if self.keys not in KEYS:
                raise InputError(
                    f'keys must be "random", "cyclic", an array or a KeyTable; got {self.keys!r}'
                )
        elif not isinstance(self.keys, KeyTable):
            object.__setattr__(self, "keys", KeyTable(self.keys))
        if self.max_norm is not None:
            limit = check_between(self.max_norm, "max_norm", 0, math.inf)
            object.__setattr__(self, "max_norm", limit)

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size asked for, or that of the keys or of the module."""
        check_norm_without_exempt(self.max_norm, problem)
        size = dim if problem.module is None else problem.module.dim
        if not isinstance(self.keys, KeyTable):
            return size
        if size is None:
            size = self.keys.dim + problem.exempt_dims
        if size > problem.exempt_dims:  # `fit` refuses any other
            _check_table(self.keys, problem, size - problem.exempt_dims)
        return size

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return the shortest queries for these keys, or for random or cyclic ones of a size."""
        with calls_until(problem.deadline):
            table = self._table(problem, dim)
            longest = float(np.linalg.norm(table.keys.astype(np.float64), axis=1).max())
            # |q.k| <= ||q|| ||k||: a bound on the norms bounds the logits too.
            limits = [x for x in (self.max_norm, problem.logit_limit) if x is not None]
            asked = problem.tolerances
            reserve = NARROW_RESERVE * math.log1p(asked.distortion) if problem.is_narrow else 0.0
            head = max_margin(
                problem.target,
                table,
                form=self.form,
                leak=asked.leak,
                distortion=asked.distortion,
                max_norm=min(limits) / longest if limits and longest > 0 else math.inf,
                reserve=problem.logit_step + reserve,
                threads=problem.threads,
                cluster=problem.cluster and problem.cluster.until(problem.deadline),
            )
            head.settings["max_norm"] = self.max_norm
            if not problem.is_narrow:
                return head
            return with_narrow_queries(problem, head, max_norm=self.max_norm)

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Double from twice the nonzeros per row, then bisect; cyclic keys have even sizes."""
        largest, why = largest_dim(problem)
        return double_and_bisect(
            attempt,
            2 * problem.other_columns.per_row,
            largest,
            why,
            2 if self.keys == "cyclic" else 1,
            problem.deadline,
            problem.exempt_dims,
        )

    def advice(self, head: Head) -> str | None:
        """Say what proofs for these keys mean."""
        if head.ended != "infeasible":
            return None
        return (
            "It is proved for these keys that some rows have no query within the bounds (see "
            "witnesses): try other keys, a larger dim or max_norm, a wider leak or distortion, or "
            'method="learned", which chooses its keys.'
        )

    def _table(self, problem: Problem, dim: int) -> KeyTable:
        n, dtype = problem.target.n, str(problem.working_dtype)
        if self.keys == "random":
            table = KeyTable.random(n, dim, rng=problem.seed, dtype=dtype)
        elif self.keys == "cyclic":
            table = KeyTable.cyclic(n, dim, dtype=dtype)
        else:
            table = self.keys
        return KeyTable(dtypes.round_to(table.keys, problem.dtype), kind=table.kind)


def _check_table(table: KeyTable, problem: Problem, dim: int) -> None:
    n, dtype = problem.target.n, problem.working_dtype
    if table.n != n:
        raise InputError(f"keys must have one row for each of the {n} rows of A; got {table.n}")
    if table.dim != dim:
        raise InputError(f"dim must be that of the keys, {table.dim}, or not given; got {dim}")
    if (largest := np.abs(table.keys).max()) > np.finfo(dtype).max:
        raise InputError(f"keys must be in the range of {dtype}; got numbers up to {largest:.3g}")


def with_narrow_queries(
    problem: Problem,
    head: Head,
    target: _core.Target | None = None,
    max_norm: float | None = None,
) -> Head:
    """Round queries to a narrow format, so that the errors of a query's coordinates cancel.

    They keep to the tolerances of `target`, that of the problem when None, and to a bound on
    max ||q|| max ||k||.
    """
    step, asked = problem.logit_step, problem.tolerances
    limit = problem.logit_limit
    queries = _core.round_queries(
        problem.target.core if target is None else target,
        np.ascontiguousarray(head.Q, dtype=np.float32),
        np.ascontiguousarray(head.K, dtype=np.float32),
        _core.Tolerances(
            *with_margin(asked.leak, asked.distortion, step),
            math.inf if limit is None else limit,
        ),
        _core.Storage(problem.dtype, problem.scale_for(head.dim), max_norm or 0.0),
        problem.threads,
    )
    return replace(head, Q=queries)


def max_margin(
    target: Target,
    table: KeyTable,
    *,
    form: str,
    leak: float,
    distortion: float,
    max_norm: float,
    reserve: float = 0.0,
    threads: int,
    cluster: Cluster | None = None,
) -> Head:
    """Return the shortest query of every row for these keys, and proofs where there is none.

    Per row, with L = log(1/leak), delta = log(1 + distortion) and free c and b:
    min ||q|| subject to |q.k_j - c - log A_ij| <= delta / 2 and q.k_j >= b + L on the support,
    q.k_j <= b elsewhere ("tolerance"); or q.k_j - c = log A_ij on the support and
    q.k_j - c <= min log A - L - delta elsewhere ("equality": log-ratios met to rounding).
    Cutting planes: the constraints elsewhere are found by scans of the logit tiles, and a
    dual active-set method (Goldfarb and Idnani 1983) re-solves from its last working set.
    `reserve` is kept back from the logarithms of both tolerances, for the rounding of queries.
    With a cluster its workers solve the rows, each of which is a problem of its own.
    """
    require_memory(8 * target.n * table.dim * 4, f"a head of size dim = {table.dim}")
    keys = np.ascontiguousarray(table.keys, dtype=np.float64)
    given = GivenKeys(target, keys, form == "equality", max_norm)
    solver = Here(given, threads) if cluster is None else ByWorkers.of(given, cluster)
    rows = np.arange(target.n, dtype=np.int64)
    q, status, norms, proofs, scans = solver.queries(rows, *tightened(leak, distortion, reserve))
    failed = _not_optimal(status)
    if failed.size:
        # Solve these rows again without the reserve for rounding: a proof must be about the
        # tolerances that were asked for.
        q[failed], exact, norms[failed], proofs, more = solver.queries(failed, leak, distortion)
        scans += more
        for row, found in zip(failed, exact, strict=True):
            status[row] = found
        failed = _not_optimal(status)
    # The numbers that the solver leaves in failed rows are no queries, and may be enormous.
    q[failed] = 0.0
    witnesses: list[FarkasWitness | FaceWitness] = [
        FarkasWitness(
            row=int(row),
            terms=tuple(
                Multiplier(kind, int(column), float(value)) for kind, column, value in terms
            ),
            residual=residual,
            gap=gap,
            norm_bound=norm_bound,
            leak=leak,
            distortion=distortion,
            equality=form == "equality",
        )
        for row, terms, residual, gap, norm_bound in proofs
    ]
    if failed.size:
        reports = solver.face_reports(failed)
        witnesses += [
            FaceWitness(int(row), tuple(inside), tuple(with_others), residual, others, bound)
            for row, (verdict, _, inside, with_others, residual, others, bound) in zip(
                failed, reports, strict=True
            )
            if verdict == "not a face"
        ]
    counts = {s: status.count(s) for s in sorted(set(status))}
    return Head(
        q,
        table.keys,
        failed_rows=failed,
        witnesses=tuple(witnesses),
        settings={
            "keys": table.kind,
            "form": form,
            "rows": counts,
            "scans": scans,
            "largest_query": float(np.max(norms[[s == "optimal" for s in status]], initial=0.0)),
        },
        ended="infeasible" if witnesses else "stalled",
    )


def _not_optimal(status: list[RowStatus]) -> NDArray[np.int64]:
    return np.flatnonzero(np.array([s != "optimal" for s in status], dtype=np.bool_))
