"""Max-margin queries for random keys, compared with solvers that get every constraint.

The other solvers get a sample of rows. quadprog solves the same problem (form "equality": the
shortest query with exact log-ratios on the support and all other logits a given distance below);
SciPy's HiGHS decides only whether such a query exists. The norms must agree.
"""

from __future__ import annotations

import time

import numpy as np
import quadprog
from scipy.optimize import linprog

import headfit as hf
import measure

OPTIONS = measure.arguments(__doc__)
LEAK, DISTORTION = 0.05, float(np.expm1(0.1))


def row_problem(A, keys, i, leak, distortion):
    """Return equalities and inequalities of a row, in differences from its first support key."""
    columns, weights = A[[i]].indices, A[[i]].data
    base, log_base = keys[columns[0]], np.log(weights[0])
    equal = keys[columns[1:]] - base
    values = np.log(weights[1:]) - log_base
    others = np.delete(keys, columns, axis=0) - base
    limit = np.log(weights.min()) - log_base + np.log(leak) - np.log1p(distortion)
    return equal, values, others, np.full(len(others), limit)


def with_quadprog(problem):
    equal, values, others, limit = problem
    d = equal.shape[1]
    C = np.concatenate([equal, -others]).T
    b = np.concatenate([values, -limit])
    return quadprog.solve_qp(np.eye(d), np.zeros(d), C, b, meq=len(values))[0]


def with_highs(problem):
    equal, values, others, limit = problem
    found = linprog(np.zeros(equal.shape[1]), A_ub=others, b_ub=limit, A_eq=equal, b_eq=values,
                    bounds=(None, None), method="highs")  # fmt: skip
    return found.x if found.status == 0 else None


def compare(n, k, dim, sample):
    A = hf.patterns.random_regular(n, k, gamma=2.0, rng=0)
    target, table = hf.Target(A), hf.methods.KeyTable.random(n, dim, rng=0, dtype=np.float64)
    keys = table.keys

    method = hf.methods.MaxMargin(keys=table, form="equality")
    tolerances = hf.Tolerances(LEAK, DISTORTION)

    def ours(threads):
        problem = hf.methods.Problem(target, tolerances, "float64", threads=threads)
        return method.head(problem, dim)

    name = f"headfit, all rows, {OPTIONS.threads} threads"
    alone = "headfit, all rows, 1 thread"
    times = measure.interleaved({name: lambda: ours(OPTIONS.threads), alone: lambda: ours(1)}, 3)
    seconds = {name: t / n for name, t in times.items()}
    head = ours(OPTIONS.threads)
    assert (head.Q == ours(1).Q).all()
    rows = np.random.default_rng(0).choice(n, sample, replace=False)
    solved = [i for i in rows if i not in set(head.failed_rows)]
    tight = (LEAK * np.exp(-0.02 * np.log1p(DISTORTION)),
             np.expm1(0.98 * np.log1p(DISTORTION)))  # fmt: skip
    problems = [row_problem(A, keys, i, *tight) for i in solved]
    peers = {"quadprog": with_quadprog, "HiGHS, feasibility": with_highs}
    for peer, solve in peers.items():
        start = time.perf_counter()
        answers = [solve(p) for p in problems]
        spent = time.perf_counter() - start
        seconds[f"{peer}, {len(problems)} rows, 1 thread"] = spent / len(problems)
        assert all(x is not None for x in answers), "a row that we solved must have a query"
        if peer == "quadprog":
            norms = [np.linalg.norm(x) for x in answers]
            np.testing.assert_allclose(np.linalg.norm(head.Q[solved], axis=1), norms, rtol=1e-6)
    title = f"max-margin queries, n={n}, k={k}, d={dim}, a row, every constraint"
    rows_of_table = [["work", "ms a row", "times headfit", "times headfit on 1 thread"]]
    rows_of_table += [
        [work, f"{1e3 * s:.3f}", f"{s / seconds[name]:.1f}", f"{s / seconds[alone]:.1f}"]
        for work, s in seconds.items()
    ]
    measure.table(title, rows_of_table)
    for peer in peers:
        theirs = seconds[f"{peer}, {len(problems)} rows, 1 thread"]
        measure.summarise(f"max-margin queries, n={n:,}, k={k}, d={dim}, a row, 1 thread",
                          seconds[alone], peer, theirs)  # fmt: skip
    print(f"\nrows that have no query: {head.failed_rows.size}")
    return {"seconds_per_row": seconds, "failed": int(head.failed_rows.size)}


def main():
    print(f"{measure.machine()}; {OPTIONS.threads} threads for headfit, 1 for each peer")
    n, k, dim, sample = (512, 4, 48, 3) if OPTIONS.quick else (4096, 8, 96, 6)
    measure.finish(OPTIONS, {f"n={n} k={k} d={dim}": compare(n, k, dim, sample)})


if __name__ == "__main__":
    main()
