"""Lower bounds from the weights in a block: rows that all attend to each of its columns.

Let J be columns in the support of every row i of I, m = |J|, S_ij the logits and delta =
log(1 + distortion). In each row, S_ij - log A_ij spreads by at most delta over the support, so on
I x J we have S = B + c 1^T + E with B = log A and the entries of E in [-delta/2, delta/2].
Subtracting from each row its mean over J (H = 1 - 11^T/m) removes c: S H = B H + E H, and S H has
rank at most d, like S. The sum of squares of a row of E H is convex in the entries of E, hence
largest at a vertex of the cube: it is at most m (delta/2)^2, and (m - 1/m) (delta/2)^2 for odd m.
By Eckart and Young, in the Frobenius norm:

    sum over s > d of sigma_s(B H)^2  <=  ||E H||_F^2  <=  |I| (m - [m odd]/m) delta^2 / 4.

A d that violates this inequality is too small.

The witness is checked in integer arithmetic. log A is multiplied by 2^40 and rounded (with the
error of the logarithm, at most 2^-40 per entry), centred exactly, and multiplied to the Gram matrix
G. Lower bounds tau of the eigenvalues of G follow from Sylvester's law of inertia: from the signs
of the leading minors of G - tau 1, which Bareiss' elimination computes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.calls import interruptible
from headfit._base.tolerances import Tolerances
from headfit._lower.problem import Problem, Proof, Witness
from headfit._lower.supports import are_places, line
from headfit._target.target import Target, support_of

SLACK = 1e-7  # relative error allowed for the computed singular values
BITS = 40  # logarithms are multiplied by 2**BITS and rounded
LARGEST_BLOCK = 40  # bound on a block's smaller side; the exact check takes its fourth power


def _error_bound(rows: int, columns: int, distortion: float) -> float:
    """Return the bound on the sum of squares of the centred errors."""
    return rows * (columns - (columns % 2) / columns) * math.log1p(distortion) ** 2 / 4


def _positive_eigenvalues(matrix: Any) -> int | None:
    """Count the positive eigenvalues of a symmetric integer matrix; None if a minor is 0."""
    a, before, count = np.array(matrix, object), 1, 0
    for k in range(len(a)):
        pivot, rest = a[k, k], slice(k + 1, None)
        if pivot == 0:
            return None
        count += (pivot > 0) == (before > 0)
        a[rest, rest] = (a[rest, rest] * pivot - np.outer(a[rest, k], a[k, rest])) // before
        before = pivot
    return count


@dataclass(frozen=True, repr=False)
class Block(Witness):
    """Rows I that attend to all columns J, with weights whose logarithms have a high rank.

    `dim` is the head size that this witness is meant to prove necessary.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    dim: int

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return `dim` if integer arithmetic confirms that it is necessary, else 0."""
        m, logs = len(self.columns), []
        is_block = are_places(target.n, self.rows, self.columns)
        if not is_block or m < 2 or not self.rows or self.dim < 1:
            return 0
        for i in self.rows:
            weights = support_of(target, i)
            if any(j not in weights for j in self.columns):
                return 0
            logs.append([round(math.log(weights[j]) * 2**BITS) for j in self.columns])
        # Arrays of Python's integers, so that sums and products are exact.
        whole = np.array(logs, object)
        centred = m * whole - whole.sum(axis=1, keepdims=True)
        gram = centred @ centred.T if len(self.rows) <= m else centred.T @ centred
        unit = m * 2.0**BITS
        guess = np.linalg.eigvalsh((gram / unit**2).astype(np.float64))[::-1]
        # Each rounded entry has an error of at most 2^-BITS, and centring does not increase the
        # sum of squares of the errors.
        error = math.sqrt(len(self.rows) * m) * 2.0**-BITS
        root = math.sqrt(_error_bound(len(self.rows), m, tolerances.distortion))
        needed = (root + error) ** 2 * (1 + 1e-12)
        tail = 0.0
        for s in range(self.dim - 1, len(guess)):
            low = float(guess[s]) * (1 - SLACK / 4)
            if low <= needed * 1e-6:
                break
            cut = math.floor(low * unit**2)
            count = _positive_eigenvalues(gram - cut * np.eye(len(gram), dtype=object))
            if count is None or count <= s:
                return 0
            tail += cut / unit**2 * (1 - 1e-12)
            if tail > needed:
                return self.dim
        return 0


def block_dim(logs: NDArray[np.float64], distortion: float) -> int:
    """Return the least head size that satisfies the inequality above for log A on a block."""
    centred = logs - logs.mean(axis=1, keepdims=True)
    squares = interruptible(4.0 * logs.size * min(logs.shape), np.linalg.svdvals, centred) ** 2
    tails = np.append(np.cumsum(squares[::-1])[::-1], 0.0)  # tails[s] is the sum from s on
    needed = _error_bound(logs.shape[0], logs.shape[1], distortion) * (1 + SLACK) + 1e-9 * tails[0]
    return int(np.flatnonzero(tails <= needed)[0])


def _grow_block(problem: Problem, by_column: sp.csc_array, seed: int, best: int) -> Block | None:
    """Return the best block above a size, if any: columns of one row, dropped a few at a time."""
    m, rng = problem.supports, problem.rng
    columns = line(m, seed).astype(np.intp)
    if columns.size > LARGEST_BLOCK:
        columns = np.sort(rng.choice(columns, LARGEST_BLOCK, replace=False))
    touching = np.concatenate([line(by_column, j) for j in columns])
    near, shared = np.unique(touching, return_counts=True)
    names = near[shared > best + 1].astype(np.intp)
    if names.size <= best:
        return None
    table = m[names][:, columns].toarray().astype(np.bool_)
    kept = np.ones(columns.size, np.bool_)
    block = None
    while kept.sum() > best + 1:
        rows = names[table[:, kept].all(axis=1)]
        if rows.size > best:
            some = rows if rows.size <= 256 else np.sort(rng.choice(rows, 256, replace=False))
            chosen = columns[kept]
            dim = block_dim(problem.logs[some][:, chosen].toarray(), problem.tolerances.distortion)
            if dim > best:
                best, block = dim, Block(tuple(some.tolist()), tuple(chosen.tolist()), dim)
        left = (table & kept).sum(axis=1)
        left[left == kept.sum()] = 0
        if not left.max():
            break
        kept = kept & table[int(rng.choice(np.flatnonzero(left == left.max())))]
    return block


def weight_proofs(problem: Problem) -> Iterator[Proof]:
    """Yield the bounds from the blocks that a greedy search finds."""
    if problem.target.gamma == 1.0:
        yield 1, "every row has equal weights: nothing to find", None
        return
    overlap = np.diff(problem.supports.indptr)
    by_column, best = sp.csc_array(problem.supports), 1
    for seed in problem.rng.permutation(np.flatnonzero(overlap > 2)).tolist():
        problem.check_time()
        if overlap[seed] <= best + 1:
            continue
        block = _grow_block(problem, by_column, seed, best)
        if block and block.proves(problem.target, problem.tolerances) == block.dim:
            best = block.dim
            block_of = f"{len(block.rows)} rows x {len(block.columns)} columns of their supports"
            rank = f"no closer to rank {best - 1} than the distortion allows"
            yield best, f"log A on {block_of} is {rank} (a greedy search)", block
