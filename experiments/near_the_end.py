"""Curve 10: what makes a fit cheaper near the most tokens that a head size holds.

Random 4-regular patterns at d = 5, where the share of patterns that certify falls from all at 128
tokens to none at 256. Each way has the same budget of steps per pattern, all of its stages
and starts together. Then two of the ways with more steps, and for larger heads.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import mean, median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from common import Row, Rows, Settings, compute_and_draw, rounded, save
from scipy.optimize import linear_sum_assignment

import headfit as hf

ASKED = {"leak": 0.05, "distortion": 0.1}
LOOSE = {"leak": 0.5, "distortion": 2.0}  # those of the first stage
CUT = 12_000  # the most steps of one of many starts, and of a head to start from
SHARE = 0.7  # of the tokens that a smaller pattern keeps
PATIENT = hf.methods.Learned(effort="medium", reheats=100)
STAGED = replace(PATIENT, stages=4)

Start = tuple[np.ndarray, np.ndarray]


def from_spectrum(A: Any, dim: int, rng: np.random.Generator) -> Start:
    """Return queries and keys from the largest singular vectors of the centred pattern."""
    dense = A.toarray()
    U, s, Vt = np.linalg.svd(dense - dense.mean())
    root = np.sqrt(s[:dim])
    return with_gap(A, U[:, :dim] * root, Vt[:dim].T * root)


def from_code(A: Any, dim: int, rng: np.random.Generator) -> Start:
    """Return keys that form a spherical code, near the pattern's singular vectors.

    The code comes from points that repel each other; tokens are assigned to its points so that
    the keys have the largest sum of inner products with their singular vectors.
    """
    code = rng.normal(size=(A.shape[0], dim))
    code /= np.linalg.norm(code, axis=1, keepdims=True)
    for step in np.geomspace(0.2, 0.002, 400):
        gram = code @ code.T
        np.fill_diagonal(gram, -1)
        push = np.exp(20 * (gram - gram.max(axis=1, keepdims=True)))
        code -= step * (push / push.sum(axis=1, keepdims=True)) @ code
        code /= np.linalg.norm(code, axis=1, keepdims=True)
    near = from_spectrum(A, dim, rng)[1]
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    _, places = linear_sum_assignment(-near @ code.T)
    return means_of_supports(A, code[places])


def means_of_supports(A: Any, K: np.ndarray) -> Start:
    """Return the mean key of every support as its row's query, and the keys."""
    support = (A > 0).astype(float)
    return with_gap(A, support @ K / support.sum(axis=1)[:, np.newaxis], K)


def with_gap(A: Any, Q: np.ndarray, K: np.ndarray) -> Start:
    """Scale queries so that supports have a logit of 6 on average, the other keys of 0."""
    Q = Q - Q.mean(axis=0)
    logits = Q @ K.T
    on = A.toarray() > 0
    return 6 * Q / (logits[on].mean() - logits[~on].mean()), K


def until(steps: int) -> Callable[[int, int, float], bool]:
    """Return a callback that ends a fit after so many steps."""
    return lambda step, *_: step < steps


def one_fit(method: hf.methods.Learned, start: Any = None, asked: Any = ASKED) -> Any:
    """Return a way that is a single fit."""

    def fits(A: Any, dim: int, steps: int, seed: int) -> Iterator[Any]:
        init = None if start is None else start(A, dim, np.random.default_rng(seed))
        yield hf.fit(A, dim, method=replace(method, callback=until(steps), init=init), rng=seed,
                     num_threads=1, **asked)  # fmt: skip

    return fits


def from_fewer_tokens(A: Any, dim: int, steps: int, seed: int) -> Iterator[Any]:
    """Start from the keys of a head for the first tokens, and random ones for the others."""
    few = int(SHARE * A.shape[0])
    part = sp.lil_array(A[:few, :few])
    for i in np.flatnonzero(np.diff(A[:few, :few].indptr) == 0):
        part[i, i] = 1.0  # a row whose keys have all been left out attends to itself
    part = sp.csr_array(part)
    part = sp.csr_array(part / part.sum(axis=1)[:, np.newaxis])
    (head,) = one_fit(PATIENT)(part, dim, CUT, seed)
    yield head
    others = np.random.default_rng(seed).normal(size=(A.shape[0] - few, dim)) * head.K.std(axis=0)
    start = means_of_supports(A, np.concatenate([head.K, others]))
    yield from one_fit(PATIENT, lambda *_: start)(A, dim, steps - CUT, seed)


def from_larger_head(A: Any, dim: int, steps: int, seed: int) -> Iterator[Any]:
    """Start from the largest singular vectors of the logits of a head with one dimension more."""
    (head,) = one_fit(PATIENT)(A, dim + 1, CUT, seed)
    yield head
    U, s, Vt = np.linalg.svd(head.scale * head.Q.astype(float) @ head.K.T.astype(float))
    root = np.sqrt(s[:dim])
    start = U[:, :dim] * root, Vt[:dim].T * root
    yield from one_fit(PATIENT, lambda *_: start)(A, dim, steps - CUT, seed)


def many_starts(method: hf.methods.Learned) -> Any:
    """Return a way that makes fits from one start after the other, each ended early."""

    def fits(A: Any, dim: int, steps: int, seed: int) -> Iterator[Any]:
        for start in range(steps // CUT):
            yield from one_fit(method)(A, dim, CUT, 1000 * seed + start)

    return fits


WAYS: dict[str, Any] = {
    "the default, 6 reheats": one_fit(hf.methods.Learned()),
    "effort medium, 6 reheats": one_fit(hf.methods.Learned(effort="medium")),
    "100 reheats": one_fit(PATIENT),
    "effort high, 100 reheats": one_fit(hf.methods.Learned(effort="high", reheats=100)),
    f"100 reheats, starts ended after {CUT:,}": many_starts(PATIENT),
    "100 reheats, 4 stages": one_fit(STAGED),
    f"100 reheats, 4 stages, starts ended after {CUT:,}": many_starts(STAGED),
    "100 reheats, from fewer tokens": from_fewer_tokens,
    "100 reheats, from a larger head": from_larger_head,
    "100 reheats, from the spectrum": one_fit(PATIENT, from_spectrum),
    "100 reheats, from a spherical code": one_fit(PATIENT, from_code),
    # Other tolerances than the rest: they tell whether precision is at fault.
    "100 reheats, leak 0.5 and distortion 2": one_fit(PATIENT, asked=LOOSE),
}  # fmt: skip


def run(*, way: str, n: int, dim: int, steps: int, seed: int) -> Row:
    """Fit a head to a random pattern in one of the ways, and return what came out.

    `starts` is 1 where the start that was given led to the head, and no random one followed.
    """
    A = hf.patterns.random_regular(n, 4, gamma=2.0, rng=seed)
    begun, taken = time.process_time(), 0
    for head in WAYS[way](A, dim, steps, seed):
        taken += head.settings["learned"]["steps"]
        proof = head.certificate
        held = bool(proof.holds) and head.Q.shape == (n, dim)
        if held:
            break
    return {
        "certified": held,
        "steps_taken": taken,
        "starts": head.settings["learned"]["starts"],
        "rows_left": int(head.failed_rows.size),
        "cpu_seconds": rounded(time.process_time() - begun, 3),
    }


LONGER = ("100 reheats", "100 reheats, 4 stages")
PLANS = {
    # Tokens, head size, patterns, steps, ways
    "tiny": (((16,), 4, 1, 24_000, WAYS),),
    "quick": (((128,), 5, 2, 24_000, WAYS),),
    "full": (
        ((128, 160, 192, 224), 5, 12, 60_000, WAYS), ((224, 256), 5, 6, 240_000, LONGER),
        ((896,), 6, 3, 100_000, LONGER), ((2560,), 7, 3, 30_000, LONGER),
    ),
}  # fmt: skip


def compute(chosen: Settings, rows: Rows) -> None:
    """Compute the rows of the plan."""
    for sizes, dim, patterns, steps, ways in chosen.pick(**PLANS):
        for n in sizes:
            rows.of(
                {"way": way, "n": n, "dim": dim, "steps": steps, "seed": seed}
                for way in ways for seed in range(patterns)
            )  # fmt: skip


def table(rows: list[Row]) -> list[Row]:
    """Return for each way, n and budget how many patterns certified, and the steps per one.

    The steps for each certified pattern count those that were spent on the others too.
    """
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["way"], row["n"], row["steps"]), []).append(row)
    found: list[Row] = []
    for (way, n, steps), tried in sorted(
        cells.items(), key=lambda cell: (list(WAYS).index(cell[0][0]), *cell[0][1:])
    ):
        held = [row for row in tried if row["certified"]]
        spent = {key: sum(float(row[key] or 0) for row in tried)
                 for key in ("steps_taken", "cpu_seconds")}  # fmt: skip
        found.append({
            "way": way, "n": n, "steps": steps, "patterns": len(tried), "certified": len(held),
            "by_given_start": sum(row["starts"] == 1 for row in held),
            "median_steps": median(int(r["steps_taken"] or 0) for r in held) if held else None,
            "steps_for_each": spent["steps_taken"] / len(held) if held else None,
            "seconds_for_each": spent["cpu_seconds"] / len(held) if held else None,
            "rows_left": mean(int(row["rows_left"] or 0) for row in tried),
        })  # fmt: skip
    return found


def draw(chosen: Settings, rows: list[Row]) -> None:
    """Draw the share that certifies, and the steps for each; print the table."""
    found = table(rows)
    for row in found:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    # The picture has the cells that all ways have.
    ways = Counter((row["n"], row["steps"]) for row in found)
    found = [row for row in found if ways[row["n"], row["steps"]] == max(ways.values())]
    budget = int(found[0]["steps"] or 0)
    sizes = sorted({int(row["n"] or 0) for row in found})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 4.6), layout="constrained", sharey=True
    )
    places = {way: -i for i, way in enumerate(WAYS)}
    colors = plt.get_cmap("viridis")(np.linspace(0.05, 0.85, len(sizes)))
    for n, color in zip(sizes, colors, strict=True):
        part = [row for row in found if row["n"] == n]
        shift = 0.16 * (sizes.index(n) - (len(sizes) - 1) / 2)
        heights = [places[row["way"]] - shift for row in part]
        shares = [row["certified"] / row["patterns"] for row in part]
        left.barh(heights, shares, height=0.15, color=color, label=f"n = {n:,}")
        costs = [(row["steps_for_each"], y) for row, y in zip(part, heights, strict=True)
                 if row["steps_for_each"]]  # fmt: skip
        if costs:
            right.plot(*zip(*costs, strict=True), "o", color=color)
    left.set_yticks(list(places.values()), list(places), fontsize=9)
    left.set(xlabel="share of the patterns certified", xlim=(0, 1.02))
    right.set(xlabel="steps for each certified pattern, failures included", xscale="log")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=4, frameon=False)
    for ax in (left, right):
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
    note = (f"random 4-regular patterns, leak 0.05, distortion 0.1, weight ratios up to 2; at most "
            f"{budget:,} steps per pattern")  # fmt: skip
    save(figure, chosen, note, rows)


if __name__ == "__main__":
    compute_and_draw("near_the_end", str(__doc__), run, compute, draw)
