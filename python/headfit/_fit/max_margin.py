"""The max-margin method: for given keys, the shortest query of every row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from headfit._base.arguments import as_choice, shown
from headfit._base.arrays import round_to
from headfit._base.calls import calls_until
from headfit._base.machine import require_memory
from headfit._fit.ending import Ending
from headfit._fit.head import Head, tightened
from headfit._fit.key_table import KeyTable
from headfit._fit.method import Attempt, Method, Patience, as_max_norm, check_norm, set_options
from headfit._fit.narrow import with_narrow_queries
from headfit._fit.on_workers import RowSolver, row_solver
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.search import bisected
from headfit._target.witnesses import FaceWitness, FarkasWitness, Multiplier
from headfit.errors import InputError

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
        keys = self.keys
        if isinstance(keys, str) and keys not in KEYS:
            raise InputError(
                f'keys must be "random", "cyclic", an array or a KeyTable; got {shown(keys)}'
            )
        if not isinstance(keys, (str, KeyTable)):
            keys = KeyTable(keys)
        set_options(self, keys=keys, max_norm=as_max_norm(self.max_norm))

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size of the head, or that of the keys or of the module."""
        check_norm(self.max_norm, problem)
        size, table, taken = super().check(problem, dim), self.keys, problem.exempt_dims
        if not isinstance(table, KeyTable):
            return size
        n, dtype = problem.target.n, problem.working_dtype
        size = table.dim + taken if size is None else size
        if table.n != n:
            raise InputError(f"keys must have one row for each of the {n} rows of A; got {table.n}")
        if taken < size != table.dim + taken:  # `fit` refuses any that is not above `taken`
            raise InputError(
                f"dim must be that of the keys, {table.dim}, or not given; got {size - taken}"
            )
        if (largest := np.abs(table.keys).max()) > np.finfo(dtype).max:
            raise InputError(
                f"keys must be in the range of {dtype}; got numbers up to {largest:.3g}"
            )
        return size

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return the shortest query of every row for these keys, and proofs where there is none.

        Per row, with L = log(1/leak), delta = log(1 + distortion) and free c and b:
        min ||q|| subject to |q.k_j - c - log A_ij| <= delta / 2 and q.k_j >= b + L on the support,
        q.k_j <= b elsewhere ("tolerance"); or q.k_j - c = log A_ij on the support and
        q.k_j - c <= min log A - L - delta elsewhere ("equality": log-ratios met to rounding).
        Cutting planes: the constraints elsewhere are found by scans of the logit tiles, and a
        dual active-set method (Goldfarb and Idnani 1983) re-solves from its last working set.
        With a cluster its workers solve the rows, each of which is a problem of its own.
        """
        leak, distortion = problem.tolerances.leak, problem.tolerances.distortion
        with calls_until(problem.deadline):
            table = self._table(problem, dim)
            require_memory(8 * table.n * table.dim * 4, f"a head of size dim = {table.dim}")
            solve = self._solver(problem, table)
            # The rounding of queries and of logits needs room.
            reserve = NARROW_RESERVE * math.log1p(distortion) if problem.is_narrow else 0.0
            room = tightened(leak, distortion, problem.logit_step + reserve)
            parts = solve("queries", np.arange(table.n, dtype=np.int64), *room)
            q, status, norms, proofs, scans = _joined(parts)
            failed = np.flatnonzero(status != "optimal")
            if failed.size:
                # Solve these rows again without that room: a proof must be about the tolerances.
                parts = solve("queries", failed, leak, distortion)
                q[failed], status[failed], norms[failed], proofs, more = _joined(parts)
                scans += more
                failed = failed[status[failed] != "optimal"]
            # The numbers that the solver leaves in failed rows are no queries, and may be enormous.
            q[failed] = 0.0
            witnesses: list[FarkasWitness | FaceWitness] = [
                FarkasWitness(
                    row,
                    tuple(Multiplier(*term) for term in terms),
                    residual,
                    gap,
                    norm_bound,
                    leak,
                    distortion,
                    equality=self.form == "equality",
                )
                for row, terms, residual, gap, norm_bound in proofs
            ]
            reports = list(chain(*solve("face_reports", failed))) if failed.size else []
            witnesses += [
                FaceWitness(int(row), tuple(inside), tuple(with_others), *numbers)
                for row, (verdict, _, inside, with_others, *numbers) in zip(
                    failed, reports, strict=True
                )
                if verdict == "not a face"
            ]
            settings = {
                "keys": table.kind,
                "form": self.form,
                "rows": dict(sorted(Counter(status).items())),
                "scans": scans,
                "largest_query": float(np.max(norms[status == "optimal"], initial=0.0)),
                "max_norm": self.max_norm,
            }
            ended: Ending = "infeasible" if witnesses else "stalled"
            head = Head(q, table.keys, failed, tuple(witnesses), settings, ended)
            if problem.is_narrow:
                return with_narrow_queries(problem, head, None, self.max_norm)
            return head

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Double from twice the nonzeros per row, then bisect; cyclic keys have even sizes."""
        step = 2 if self.keys == "cyclic" else 1
        return bisected(problem, attempt, 2 * problem.other_columns.per_row, step)

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
        return KeyTable(round_to(table.keys, problem.dtype), kind=table.kind)

    def _solver(self, problem: Problem, table: KeyTable) -> Callable[..., list[Any]]:
        keys = np.ascontiguousarray(table.keys, dtype=np.float64)
        longest = float(np.linalg.norm(keys, axis=1).max())
        # |q.k| <= ||q|| ||k||: a bound on the norms bounds the logits too.
        limits = [x for x in (self.max_norm, problem.logit_limit) if x is not None]
        limit = min(limits) / longest if limits and longest > 0 else math.inf
        is_equal, cluster = self.form == "equality", problem.cluster
        solver = RowSolver(problem.target, keys, problem.threads, is_equal, limit)
        return row_solver(solver, cluster and cluster.until(problem.deadline))


def _joined(parts: list[Any]) -> tuple[Any, ...]:
    """Return queries, the status and the norm of each row, proofs, and scans, of blocks of rows."""
    q, status, norms, proofs, scans = zip(*parts, strict=True)
    words = np.array(list(chain(*status)), dtype=object)
    return np.concatenate(q), words, np.concatenate(norms), list(chain(*proofs)), sum(scans)
