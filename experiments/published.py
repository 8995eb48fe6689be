"""Every pair of n documents the top 2 of some query: published figures, their methods, and ours.

LIMIT (Weller, Boratko, Naim and Lee, arXiv 2508.21038) trains free embeddings of size d for all
pairs of n documents, and reports the largest n that is solved. Wang et al. (arXiv 2601.20844)
report the least d for given n. Their methods are run here as their papers state them, beside
max-margin queries for cyclic and random keys and heads learned for all pairs at once. What is ours
is certified: for "float32" and "bfloat16" for all that kernels accumulating in float32 may compute,
for "float64" in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import common
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import headfit as hf

LIMIT = dict(zip(range(4, 46), (
    10, 14, 19, 24, 28, 32, 36, 42, 47, 54, 62, 70, 79, 89, 99, 109, 120, 132, 144, 157, 170, 184,
    198, 213, 229, 245, 261, 278, 296, 314, 333, 352, 372, 392, 413, 434, 460, 484, 505, 545, 605,
    626), strict=True))  # fmt: skip
"""Critical n for each d: Table 6 of arXiv 2508.21038."""

LIMIT_CUBIC = (-10.5322, 4.0309, 0.0520, 0.0037)
"""Coefficients of 1, d, d**2, d**3 of the curve fitted to that table: section 4 there."""

CENTROID = {10: 5, 20: 8, 40: 9, 80: 12, 160: 15, 320: 19, 640: 24}
"""The least d found for each n by queries that are means of their documents, and k = 2:
table upper_bound_witness_table of arXiv 2601.20844 (its repository, commit 36f04f0). The same
table has d = 4 for cyclic documents and every n."""

ASKED = {
    # Only the order counts: any leak below 1, and logits on the support as they like.
    "order": hf.Tolerances(leak=0.99, distortion=1e30),
    # The two documents get nearly all of the attention, in nearly equal parts.
    "attention": hf.Tolerances(leak=0.05, distortion=0.1),
}

SOUGHT = {
    "order": hf.Tolerances(leak=0.5, distortion=1e30),
    "attention": hf.Tolerances(leak=0.005, distortion=0.05),
}
"""What max-margin queries are asked for: more than is certified, so that rounding may take some."""

Array = NDArray[np.float32]


def all_pairs(n: int) -> NDArray[np.int64]:
    """Return all pairs of n documents, those first whose places on a circle are close."""
    pairs = np.array(list(combinations(range(n), 2)))
    apart = pairs[:, 1] - pairs[:, 0]
    return pairs[np.argsort(np.minimum(apart, n - apart), kind="stable")]


def targets(n: int) -> Iterator[Any]:
    """Yield patterns of n rows that together have a row for every pair; some pairs come twice."""
    pairs = all_pairs(n)
    pairs = np.concatenate([pairs, pairs[: -len(pairs) % n]])
    for part in np.split(pairs, len(pairs) // n):
        entries = np.full(2 * n, 0.5), (np.repeat(np.arange(n), 2), part.ravel())
        yield sp.csr_array(entries, shape=(n, n))


def holds(A: Any, head: hf.results.Fit, asked: str, dtype: str, mask: Any = None) -> bool:
    """Certify a head: its stored numbers, for float64 exactly, else as kernels multiply them."""
    certificate = hf.certify(
        A,
        head.Q,
        head.K,
        scale=head.certificate.scale,
        mask=mask,
        tolerances=ASKED[asked],
        kernel="exact" if dtype == "float64" else "float32",
        certificate_mass=False,
        num_threads=1,
    )
    return bool(certificate.holds)


def max_margin(n: int, d: int, dtype: str, asked: str, keys: str, seed: int) -> dict[str, Any]:
    """Fit queries for all pairs to one table of keys, until a pair has none."""
    stored = "float64" if dtype == "float64" else "float32"
    if keys == "cyclic":
        table = hf.methods.KeyTable.cyclic(n, d, dtype=stored)
    else:
        table = hf.methods.KeyTable.random(n, d, rng=[seed, n, d], dtype=stored)
    for A in targets(n):
        head = hf.fit(
            A,
            method=hf.methods.MaxMargin(keys=table),
            tolerances=SOUGHT[asked],
            dtype=dtype,
            certificate_mass=False,
            num_threads=1,
        )
        if not holds(A, head, asked, dtype):
            return {"solved": False}
    return {"solved": True}


def learned(n: int, d: int, dtype: str, asked: str, seed: int) -> dict[str, Any]:
    """Learn keys and queries for all pairs at once: a row for each, which sees the n documents."""
    pairs = all_pairs(n)
    rows = len(pairs)
    entries = np.full(2 * rows, 0.5), (np.repeat(np.arange(rows), 2), pairs.ravel())
    A = sp.csr_array(entries, shape=(rows, rows))
    mask = np.broadcast_to(np.arange(rows) < n, (rows, rows))
    head = hf.fit(
        A,
        d,
        tolerances=ASKED[asked],
        dtype=dtype,
        mask=mask,
        rng=seed,
        certificate_mass=False,
        num_threads=1,
    )
    return {"solved": holds(A, head, asked, dtype, mask)}


class Adam:
    """Adam (Kingma and Ba 2014) for a list of arrays."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.means = [np.zeros_like(a) for a in arrays]
        self.squares = [np.zeros_like(a) for a in arrays]
        self.count = 0

    def steps(self, slopes: Sequence[Array], rate: float) -> list[Array]:
        """Return what to subtract from each array."""
        self.count += 1
        for mean, square, slope in zip(self.means, self.squares, slopes, strict=True):
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope * slope - square)
        short, wide = 1 - 0.9**self.count, 1 - 0.999**self.count
        return [
            rate * (m / short) / (np.sqrt(s / wide) + 1e-8)
            for m, s in zip(self.means, self.squares, strict=True)
        ]


def on_sphere(x: Any) -> Array:
    """Return rows of length 1."""
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def free_embeddings(n: int, d: int, seed: int) -> tuple[Array, Array, int]:
    """Train unit queries and documents as LIMIT states it; return them, and the steps taken.

    InfoNCE over all documents at temperature 0.1, all queries in one batch, Adam at 0.01, rows put
    back to length 1 after each step. The end is 100% accuracy, looked at every 50 steps, or 1,000
    steps without a loss lower by 1e-5, or 100,000 steps.
    """
    pairs, heat = all_pairs(n), np.float32(0.1)
    rows = np.arange(len(pairs))[:, np.newaxis]
    rng = np.random.default_rng(seed)
    queries = on_sphere(rng.standard_normal((len(pairs), d)))
    documents = on_sphere(rng.standard_normal((n, d)))
    adam, least, waited = Adam([queries, documents]), np.inf, 0
    for step in range(100_000):
        logits = queries @ documents.T / heat
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        total = weights.sum(axis=1, keepdims=True)
        loss = float((np.log(total) - logits[rows, pairs]).mean())
        weights /= total
        weights[rows, pairs] -= 0.5
        weights /= np.float32(len(pairs)) * heat
        moves = adam.steps([weights @ documents, weights.T @ queries], 0.01)
        queries, documents = on_sphere(queries - moves[0]), on_sphere(documents - moves[1])
        if loss < least - 1e-5:
            least, waited = loss, 0
        else:
            waited += 1
        if waited >= 1000 or (step % 50 == 0 and top_two_right(queries, documents) == 1):
            break
    return queries, documents, step + 1


def top_two_right(queries: Array, documents: Array) -> float:
    """Return the share of all pairs that are the two documents their query scores highest."""
    top = np.argsort(-(queries @ documents.T), axis=1)[:, :2]
    return float(np.mean(np.all(np.sort(top, axis=1) == all_pairs(len(documents)), axis=1)))


def centroids(n: int, d: int, seed: int) -> tuple[Array, Array, int]:
    """Train documents so that the mean of a pair scores it highest, as Wang et al. state it.

    The hinge of every score of a pair against every other, Adam for 1,000 steps from rate
    1 / log2(n), which falls like a cosine.
    """
    pairs = all_pairs(n)
    rows = np.arange(len(pairs))[:, np.newaxis]
    documents = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    adam, steps = Adam([documents]), 1000
    for step in range(steps + 1):
        queries = documents[pairs].mean(axis=1)
        scores = queries @ documents.T
        ours = scores[rows, pairs]
        scores[rows, pairs] = -np.inf
        over = scores[:, :, np.newaxis] > ours[:, np.newaxis, :]
        if step == steps or not over.any():
            break
        slope = over.sum(axis=2, dtype=np.float32)
        slope[rows, pairs] = -over.sum(axis=1, dtype=np.float32)
        slope /= len(pairs)
        pull = slope.T @ queries
        np.add.at(pull, pairs.ravel(), np.repeat(slope @ documents / 2, 2, axis=0))
        rate = 0.5 * (1 + np.cos(np.pi * step / steps)) / np.log2(n)
        documents = np.asarray(documents - adam.steps([pull], rate)[0], np.float32)
    return queries, documents, step


TRAINED = {"free embeddings": free_embeddings, "centroids": centroids}


def point(method: str, n: int, d: int, dtype: str, asked: str, seed: int) -> dict[str, Any]:
    """Say whether a method solves all pairs of n documents in d dimensions."""
    if method in TRAINED:
        queries, documents, steps = TRAINED[method](n, d, seed)
        right = top_two_right(queries, documents)
        return {"solved": right == 1, "right": common.rounded(right), "steps": steps}
    if method == "learned":
        return learned(n, d, dtype, asked, seed)
    return max_margin(n, d, dtype, asked, method, seed)


def largest(solved: Callable[[int], bool], start: int, most: int, least: int = 3) -> int:
    """Return the largest n that is solved, of `least` (which is) to `most`.

    As in LIMIT's search: steps that double, then bisection; n is taken to be solved where a larger
    one is.
    """
    low, high, step, n = least, most + 1, 1, min(start, most)
    while high - low > 1:
        if solved(n):
            low = n
        else:
            high = n
        if high > most:  # nothing has failed yet
            n, step = min(low + step, most), 2 * step
        elif low == least:  # nothing has been solved yet
            n, step = max(high - step, least + 1), 2 * step
        else:
            n = (low + high) // 2
    return low


def plan(chosen: common.Settings) -> list[dict[str, Any]]:
    """Return the searches of a setting: for the largest n of each d, or the least d of each n."""
    sizes: Any = chosen.pick(tiny=[4], quick=[4, 5, 6], full=[4, 5, 6, 7, 8])
    cyclic: Any = chosen.pick(tiny=[4], quick=[4, 6, 8], full=[4, 6, 8, 10, 12, 16])
    most: Any = chosen.pick(tiny=12, quick=96, full=256)
    learned_sizes: Any = chosen.pick(tiny=[4], quick=[4, 5], full=[4, 5, 6])
    learned_most: Any = chosen.pick(tiny=12, quick=20, full=28)
    seeds: Any = chosen.pick(tiny=1, quick=1, full=3)
    tokens: Any = chosen.pick(tiny=[10], quick=[10, 20, 40], full=[10, 20, 40, 80])
    plain = {"dtype": "float32", "asked": "order", "seed": 0}
    searches: list[dict[str, Any]] = [
        {"method": "free embeddings", "d": d, "most": 64, "start": LIMIT[d], **plain, "seed": s}
        for d in sizes
        for s in range(seeds)
    ]
    kinds = [(dtype, asked) for dtype in ("bfloat16", "float32") for asked in ASKED]
    for dtype, asked in [*kinds, ("float64", "order")]:
        # In the wider formats the largest n is tried first: it is mostly reached.
        start = 16 if dtype == "bfloat16" else most
        more = {"dtype": dtype, "asked": asked, "seed": 0}
        searches += [
            {"method": "cyclic", "d": d, "start": start, "most": most, **more}
            for d in (cyclic if dtype != "float64" else cyclic[:1])
        ]
    searches += [
        {"method": "random", "d": d, "start": 6, "most": most, "dtype": dtype, "asked": asked,
         "seed": 0}
        for dtype, asked in kinds for d in cyclic
    ]  # fmt: skip
    searches += [{"method": m, "n": n, **plain} for n in tokens for m in ("random", "centroids")]
    searches += [
        {"method": "learned", "d": d, "start": LIMIT[d], "most": learned_most, "dtype": dtype,
         "asked": asked, "seed": 0}
        for d in learned_sizes
        for dtype, asked in kinds
    ]  # fmt: skip
    return searches


def found(rows: common.Rows, search: dict[str, Any]) -> int:
    """Carry out a search: return the largest n of a d that was solved, or the least d of an n.

    Rounding makes solved sizes come and go near the end: for given keys, where a size that fails
    does so at once, the search ends with ten sizes in a row that fail.
    """
    fixed = {name: search[name] for name in ("method", "dtype", "asked", "seed")}

    def solved(n: int, d: int) -> bool:
        order = {"method": fixed["method"], "n": n, "d": d, **fixed}
        return bool(rows.of([order])[0]["solved"])

    if "d" in search:
        d = search["d"]
        answer = largest(lambda n: solved(n, d), search["start"], search["most"])
        n = answer
        while fixed["method"] in ("cyclic", "random") and n < min(answer + 10, search["most"]):
            n += 1
            answer = n if solved(n, d) else answer
        return answer
    n = search["n"]
    # The least d is the largest that is not solved, plus 1.
    return 1 + largest(lambda d: not solved(n, d), CENTROID[n], 4 * CENTROID[n], 0)


SERIES = (
    ("cyclic", "float64"),
    ("cyclic", "float32"),
    ("cyclic", "bfloat16"),
    ("learned", "float32"),
    ("learned", "bfloat16"),
    ("random", "float32"),
    ("random", "bfloat16"),
)
TITLES = {"order": "Top 2, in any order", "attention": "Leak 0.05, distortion 0.1"}


def draw(chosen: common.Settings, answers: Sequence[dict[str, Any]], rows: Any) -> None:
    """Draw the largest n of each d."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained", sharey=True)
    known = np.array(list(LIMIT.items()))
    for axis, asked in zip(axes, ASKED, strict=True):
        axis.plot(*known.T, "k-", lw=1, label="LIMIT, Table 6 (order)")
        run = [a for a in answers if a["method"] == "free embeddings"]
        axis.plot([a["d"] for a in run], [a["answer"] for a in run], "kx",
                  label="its method, run here (order)")  # fmt: skip
        for method, dtype in SERIES:
            some = [a for a in answers if a.get("d") is not None and
                    (a["method"], a["dtype"], a["asked"]) == (method, dtype, asked)]  # fmt: skip
            if not some:
                continue
            color = {"cyclic": "C0", "learned": "C1", "random": "C2"}[method]
            style = {"float64": "^:", "float32": "o-", "bfloat16": "s--"}[dtype]
            ended = np.array([a["answer"] >= a["most"] for a in some])
            d, n = (np.array([a[name] for a in some]) for name in ("d", "answer"))
            axis.plot(d, n, style, color=color, label=f"{method} keys, {dtype}", ms=5)
            axis.plot(d[ended], n[ended] * 1.12, marker=(3, 0, 0), color=color, ls="", ms=4)
        axis.set(xscale="log", yscale="log", xlabel="d",
                 title=TITLES[asked])  # fmt: skip
        ticks = [4, 6, 8, 12, 16, 24, 45]
        axis.set_xticks(ticks, labels=map(str, ticks))
        axis.set_xticks([], minor=True)
    axes[0].set(ylabel="largest n with every pair solved")
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    axes[1].legend(handles.values(), handles.keys(), fontsize=8, loc="lower right")
    common.save(figure, chosen, "small triangles: the largest n that was tried", rows)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the experiment, and return the answer of each search."""
    chosen = common.settings("published", str(__doc__), arguments)
    rows = common.Rows(chosen, point)
    kept = chosen.out / "published-answers.csv"
    answers: list[dict[str, Any]] = []
    if chosen.only_draw:
        answers = [dict(row) for row in common.read_csv(kept)]
    else:
        for search in plan(chosen):
            answers.append({**search, "answer": found(rows, search)})
            print("  ".join(f"{k}={v}" for k, v in answers[-1].items()), flush=True)
        common.write_csv(kept, answers)
    draw(chosen, answers, rows.rows)
    return answers


if __name__ == "__main__":
    import published  # a sweep's function is imported by its name

    published.main()
