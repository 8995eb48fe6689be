"""The max-margin method: for a table of keys, the shortest query of every row."""

import math
import operator
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain, starmap
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arguments import as_choice, as_count, as_positive, seed_from, shown
from headfit._base.arrays import FloatArray, as_float_dtype, as_matrix, check_finite, round_to
from headfit._base.calls import calls_until, standard_arithmetic
from headfit._base.machine import require_memory
from headfit._base.types import Seed
from headfit._cluster.cluster import hold, run_blocks
from headfit._fit.head import Ending, Head, Problem, tightened, with_narrow_queries
from headfit._fit.method import Attempt, Method, Patience, bisected, check_norm
from headfit._fit.result import Search
from headfit._target.target import Target
from headfit._target.witnesses import FaceWitness, FarkasWitness, Multiplier
from headfit.errors import HeadfitError, InputError

# The part of the distortion's logarithm that is reserved for rounding queries to a narrow format.
NARROW_RESERVE = 0.3
# About how many scans of the logits a query takes: workers get blocks smaller by this factor.
SCANS = 8


@dataclass(frozen=True, eq=False, repr=False)
class KeyTable:
    """Keys that stay as they are while queries are fitted to one pattern after another.

    Parameters
    ----------
    keys : array_like, shape (n, d)
        Copied, and read-only from then on.
    kind : str, default "given"
        Where the keys come from.

    Attributes
    ----------
    keys : ndarray, shape (n, d)
    kind : str
    n, dim : int

    Raises
    ------
    InputError
        For keys that are no finite matrix with a column, or a kind that is no text.

    Examples
    --------
    >>> import headfit as hf
    >>> table = hf.methods.KeyTable.random(64, 24, rng=0)
    >>> for seed in range(2):
    ...     A = hf.patterns.random_regular(64, 2, rng=seed)
    ...     print(hf.fit(A, method=hf.methods.MaxMargin(keys=table)).certificate.holds)
    True
    True
    """

    keys: FloatArray
    _: KW_ONLY
    kind: str = "given"

    def __post_init__(self) -> None:
        keys = np.array(as_matrix(self.keys, "keys"), order="C")
        check_finite(keys, "keys")
        if not isinstance(self.kind, str):
            raise InputError(f"kind must be a text; got {shown(self.kind)}")
        if keys.shape[1] == 0:
            raise InputError(f"keys must have at least one column; got shape {keys.shape}")
        keys.flags.writeable = False
        vars(self).update(keys=keys)

    @property
    def n(self) -> int:
        """The number of keys."""
        return int(self.keys.shape[0])

    @property
    def dim(self) -> int:
        """The head size."""
        return int(self.keys.shape[1])

    def __repr__(self) -> str:
        return f"KeyTable({self.kind}, n={self.n}, dim={self.dim}, {self.keys.dtype})"

    @classmethod
    @standard_arithmetic()
    def random(cls, n: int, dim: int, *, rng: Seed = 0, dtype: Any = np.float32) -> Self:
        """Return random keys on the unit sphere.

        Parameters
        ----------
        n, dim : int
        rng : seed or Generator, default 0
        dtype : float32 or float64

        Notes
        -----
        Gaussian keys, normalised: on the sphere more supports are faces than with Gaussian
        lengths. See `bounds.random_keys_dim` for the size at which almost every support is one.
        """
        _check_size(n, dim, dtype)
        g = np.empty((int(n), int(dim)))
        _core.fill_sketch(g, "gaussian", seed_from(rng), 1)
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        return cls(g.astype(dtype), kind="random")

    @classmethod
    @standard_arithmetic()
    def cyclic(cls, n: int, dim: int, *, dtype: Any = np.float64) -> Self:
        """Return points of the trigonometric moment curve, cos and sin of 2 pi f j / n.

        Parameters
        ----------
        n, dim : int
            An even `dim` uses the frequencies 1 ... dim / 2. Odd ones are refused.
        dtype : float32 or float64

        Notes
        -----
        The cyclic polytope with dim = 2 k is neighbourly: every k of its vertices span a
        face, whatever n (Gale 1963), so dim = 2 k serves every pattern in exact arithmetic. Its
        margins shrink like (k / n)**(2 k): the certificate tells whether a dtype suffices.
        """
        _check_size(n, dim, dtype)
        if dim % 2:
            raise InputError(f"cyclic keys need an even dim; got {dim}")
        turns = 2 * math.pi * np.arange(n)[:, np.newaxis] / n * np.arange(1, dim // 2 + 1)
        return cls(np.hstack([np.cos(turns), np.sin(turns)]).astype(dtype), kind="cyclic")


def _check_size(n: int, dim: int, dtype: Any) -> None:
    as_count(n, "n", 1, 2**31 - 1)
    as_count(dim, "dim", 1)
    as_float_dtype(dtype)
    require_memory(20 * int(n) * int(dim), f"a table of n = {n} keys of size dim = {dim}")


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
        as_choice(self.form, "form", ("tolerance", "equality"), "one of ")
        keys = self.keys
        if isinstance(keys, str) and keys not in ("random", "cyclic"):
            raise InputError(
                f'keys must be "random", "cyclic", an array or a KeyTable; got {shown(keys)}'
            )
        if not isinstance(keys, (str, KeyTable)):
            keys = KeyTable(keys)
        vars(self).update(keys=keys, max_norm=as_positive(self.max_norm, "max_norm"))

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size of the head, or that of the keys or of the module."""
        check_norm(self.max_norm, problem)
        size, table, taken = super().check(problem, dim), self.keys, problem.exempt_dims
        beside = f" + {taken} for exempt columns" if taken else ""
        if not isinstance(table, KeyTable):
            if table == "cyclic" and size is not None and (size - taken) % 2:
                raise InputError(f"cyclic keys need an even dim{beside}; got {size}")
            return size
        n = problem.target.n
        size = table.dim + taken if size is None else size
        if table.n != n:
            raise InputError(f"keys must have one row for each of the {n} rows of A; got {table.n}")
        if taken < size != table.dim + taken:  # `fit` refuses any that is not above `taken`
            raise InputError(
                f"dim must be that of the keys, {table.dim}{beside}, or not given; got {size}"
            )
        round_to(table.keys, problem.dtype, "keys")
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
            parts = solve(np.arange(table.n, dtype=np.int64), *room)
            q, status, norms, proofs, scans = _joined(parts)
            failed = np.flatnonzero(status != "optimal")
            if failed.size:
                # Solve these rows again without that room: a proof must be about the tolerances.
                parts = solve(failed, leak, distortion)
                q[failed], status[failed], norms[failed], proofs, more = _joined(parts)
                scans += more
                failed = failed[status[failed] != "optimal"]
            # The numbers that the solver leaves in failed rows are no queries, and may be enormous.
            q[failed] = 0.0
            limits = leak, distortion, self.form == "equality"
            witnesses: list[FarkasWitness | FaceWitness] = [
                FarkasWitness(row, tuple(starmap(Multiplier, terms)), residual, gap, norm, *limits)
                for row, terms, residual, gap, norm in proofs
            ]
            reports = list(chain(*solve(failed))) if failed.size else []
            of_rows = zip(failed.tolist(), reports, strict=True)
            witnesses += [
                FaceWitness(row, tuple(inside), tuple(with_others), *numbers)
                for row, (verdict, _, inside, with_others, *numbers) in of_rows
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
            is_proof = self._is_proof(problem, table.keys, witnesses)
            ended: Ending = "infeasible" if is_proof else "stalled"
            head = Head(q, table.keys, failed, tuple(witnesses), settings, ended)
            if problem.is_narrow:
                return with_narrow_queries(problem, head, None, self.max_norm)
            return head

    def _is_proof(
        self, problem: Problem, keys: FloatArray, witnesses: list[FarkasWitness | FaceWitness]
    ) -> bool:
        """Return whether it is proved that no query of some row meets what is asked of the head."""
        kernel, proofs = problem.kernel, [w for w in witnesses if isinstance(w, FarkasWitness)]
        is_exact = kernel.relative_error == 0 and kernel.weights is None and kernel.scale != "root"
        if not (proofs and is_exact and self.form == "tolerance"):
            return False
        best = max(proofs, key=lambda proof: proof.norm_bound)
        longest = np.linalg.norm(keys.astype(np.float64), axis=1).max() * (1 - 1e-12)
        limit = (self.max_norm or math.inf) / longest if longest else math.inf
        with suppress(HeadfitError):  # of a witness whose gap is lost in rounding
            return best.norm_bound > limit or best.excludes_any_norm(problem.target, keys)
        return False

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
        else:
            table = KeyTable.cyclic(n, dim, dtype=dtype) if self.keys == "cyclic" else self.keys
        return KeyTable(round_to(table.keys, problem.dtype), kind=table.kind)

    def _solver(self, problem: Problem, table: KeyTable) -> Callable[..., list[Any]]:
        """Return a function of rows, and perhaps tolerances, that returns a list of results.

        Without a cluster there is one, of all rows. Otherwise the workers, which hold the problem,
        solve blocks of rows, each of which is a problem of its own: rows of two blocks share no
        scan.
        """
        keys = np.ascontiguousarray(table.keys, dtype=np.float64)
        longest = float(np.linalg.norm(keys, axis=1).max())
        # |q.k| <= ||q|| ||k||: a bound on the norms bounds the logits too.
        limits = [x for x in (self.max_norm, problem.logit_limit) if x is not None]
        limit = min(limits) / longest if limits and longest > 0 else math.inf
        solve = partial(_solve_rows, problem.target, keys, self.form == "equality", limit)
        if problem.cluster is None:
            return lambda *call: [solve(problem.threads, *call)]
        cluster = replace(problem.cluster, deadline=problem.deadline)
        held = hold(cluster, partial(solve, cluster.threads))
        known = cluster, operator.call, held, SCANS * keys.size, "max-margin queries"
        return partial(run_blocks, *known)


def _solve_rows(
    target: Target,
    keys: NDArray[np.float64],
    equality: bool,
    max_norm: float,
    threads: int,
    rows: NDArray[np.int64],
    *tolerances: float,
) -> Any:
    """Return the shortest queries of some rows for leak and distortion, or proofs.

    Without tolerances: whether the keys of each row are a face of the polytope of all keys.
    """
    if not tolerances:
        return _core.face_reports(target.core, keys, rows, threads)
    options = _core.MaxMarginOptions(equality=equality, max_norm=max_norm)
    limits = _core.Tolerances(*tolerances)
    return _core.max_margin_queries(target.core, keys, limits, options, threads, rows)


def _joined(parts: list[Any]) -> tuple[Any, ...]:
    """Return queries, the status and the norm of each row, proofs, and scans, of blocks of rows."""
    q, status, norms, proofs, scans = zip(*parts, strict=True)
    words = np.array(list(chain(*status)), dtype=object)
    return np.concatenate(q), words, np.concatenate(norms), list(chain(*proofs)), sum(scans)
