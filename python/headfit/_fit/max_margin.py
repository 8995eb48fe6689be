"""Rung two: queries for given keys, the shortest that meet the tolerances, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arguments import as_choice
from headfit._base.memory import require_memory
from headfit._fit.head import Head, tightened
from headfit._fit.key_table import KeyTable
from headfit._target.target import Target
from headfit._target.witnesses import FaceWitness, FarkasWitness, Multiplier
from headfit.errors import InputError

FORMS = ("tolerance", "equality")


def check_form(form: str) -> None:
    """Raise an InputError for a form that does not exist."""
    as_choice(form, "form", FORMS, "one of ")


def key_table(keys: Any, n: int, dim: int | None, dtype: str, seed: int) -> KeyTable:
    """Return the keys that `fit` was asked to use: a name, an array, or a table."""
    if isinstance(keys, KeyTable):
        table = keys
    elif isinstance(keys, str):
        if keys not in ("random", "cyclic"):
            raise InputError(
                f'keys must be "random", "cyclic", an array or a KeyTable; got {keys!r}'
            )
        if dim is None:
            raise InputError(f"dim must be given with keys={keys!r}")
        if keys == "random":
            return KeyTable.random(n, dim, rng=seed, dtype=dtype)
        return KeyTable.cyclic(n, dim, dtype=dtype)
    else:
        table = KeyTable(keys)
    if table.n != n:
        raise InputError(f"keys must have one row for each of the {n} rows of A; got {table.n}")
    if dim is not None and table.dim != dim:
        raise InputError(f"dim must be that of the keys, {table.dim}, or not given; got {dim}")
    if np.result_type(table.keys, np.dtype(dtype)) != np.dtype(dtype):
        raise InputError(f"keys must not be wider than dtype={dtype!r}; got {table.keys.dtype}")
    return table


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
) -> Head:
    """Return the shortest query of every row for these keys, and proofs where there is none.

    Per row, with L = log(1/leak), delta = log(1 + distortion) and free c and b:
    min ||q|| subject to |q.k_j - c - log A_ij| <= delta / 2 and q.k_j >= b + L on the support,
    q.k_j <= b elsewhere ("tolerance"); or q.k_j - c = log A_ij on the support and
    q.k_j - c <= min log A - L - delta elsewhere ("equality": log-ratios met to rounding).
    Cutting planes: the constraints elsewhere are found by scans of the logit tiles, and a
    dual active-set method (Goldfarb and Idnani 1983) re-solves from its last working set.
    `reserve` is kept of the logarithms of both tolerances, for the rounding of the queries.
    """
    require_memory(8 * target.n * table.dim * 4, f"a head of size dim = {table.dim}")
    keys = np.ascontiguousarray(table.keys, dtype=np.float64)
    options = _core.MaxMarginOptions(equality=form == "equality", max_norm=max_norm)

    def solve(
        asked: _core.Target, leak: float, distortion: float
    ) -> tuple[Any, list[str], Any, list[Any], int]:
        q, status, norms, proofs, scans = _core.max_margin_queries(
            asked, keys, _core.Tolerances(leak, distortion), options, threads
        )
        return q, list(status), norms, proofs, scans

    q, status, norms, proofs, scans = solve(target.core, *tightened(leak, distortion, reserve))
    failed = _not_optimal(status)
    if failed.size:
        # Once more without the share left to rounding: a proof must speak of what was asked.
        again, exact, lengths, proofs, more = solve(_only_rows(target, failed), leak, distortion)
        scans += more
        q[failed], norms[failed] = again[failed], lengths[failed]
        for row in failed:
            status[row] = exact[row]
        failed = _not_optimal(status)
    q[failed] = 0.0  # what the solver left there is no answer, and may be enormous
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
        reports = _core.face_reports(target.core, keys, failed.astype(np.int64), threads)
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


def _not_optimal(status: list[str]) -> NDArray[np.intp]:
    return np.flatnonzero(np.array([s != "optimal" for s in status], dtype=np.bool_))


def _only_rows(target: Target, rows: NDArray[np.intp]) -> _core.Target:
    """Return the target with all other rows empty: those ask for nothing."""
    keep = np.zeros(target.n, dtype=np.bool_)
    keep[rows] = True
    offsets, columns, weights = target.csr_arrays
    counts = np.diff(offsets)
    entries = np.repeat(keep, counts)
    left = np.concatenate(([0], np.cumsum(np.where(keep, counts, 0))))
    return _core.Target(left.astype(np.int64), columns[entries], weights[entries], target.core.mask)
