"""One fixed module, many patterns: only the input X changes, never the weights.

100 random patterns and 20 structured ones of 128 tokens, on a module with random weights and on
the eight heads of a trained model, whose W_Q and W_K nobody made for the purpose. Two inputs each:

- "free": X = [Q K] pinv([W_Q W_K]) for a head found without the module;
- "normed": an X that the model's own layer norm lets through, rows of mean 0 and variance 1 times
  its gain, found by a descent on such rows.

Every statement is a certificate of `hf.certify` about the module's exact products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import common
import numpy as np
import trained_heads
from numpy.typing import NDArray

import headfit as hf

ASKED = hf.Tolerances(leak=0.05, distortion=0.1)
N, DIM, WIDTH = 128, trained_heads.SIZE, 64

Array = NDArray[np.float64]


def _points() -> Any:
    return np.random.default_rng(0).standard_normal((N, 2))


STRUCTURED: dict[str, Callable[[], Any]] = {
    "band 1": lambda: hf.patterns.band(N, 1),
    "band 2": lambda: hf.patterns.band(N, 2),
    "band 3": lambda: hf.patterns.band(N, 3),
    "ring": lambda: hf.patterns.band(N, 2, boundary="wrap"),
    "causal 4": lambda: hf.patterns.causal_band(N, 4),
    "causal 8": lambda: hf.patterns.causal_band(N, 8),
    "previous": lambda: hf.patterns.previous_token(N),
    "circulant": lambda: hf.patterns.circulant(N, [1, 5, 25]),
    "dilated": lambda: hf.patterns.dilated(N, 2, 4),
    "strided": lambda: hf.patterns.strided(N, 16),
    "tree": lambda: hf.patterns.tree(N),
    "tree of 4": lambda: hf.patterns.tree(N, 4),
    "grid": lambda: hf.patterns.grid2d(8, 16),
    "king's grid": lambda: hf.patterns.grid2d(8, 16, diagonals=True),
    "hypercube": lambda: hf.patterns.hypercube(N),
    "block 4": lambda: hf.patterns.block(N, 4),
    "block 8": lambda: hf.patterns.block(N, 8),
    "neighbours": lambda: hf.patterns.knn(_points(), 4, 8),
    "induction": lambda: hf.patterns.induction(np.random.default_rng(0).integers(0, 32, N)),
    "window, global": lambda: hf.patterns.window_global(N, 3, 1, causal=False),
}


@cache
def pattern_of(name: str, index: int, n: int, k: int) -> Any:
    """Return a structured pattern by its name, or the random one of an index."""
    if name != "random":
        return STRUCTURED[name]()
    return hf.patterns.random_regular(n, k, gamma=2.0, rng=[index, n, k])


@cache
def module_of(name: str) -> hf.SelfAttention:
    """Return a trained head, "random" weights as wide as its own, or a "rotation" of 2 d."""
    if name == "rotation":
        return hf.SelfAttention.random(DIM, rng=0)
    if name == "random":
        W = np.random.default_rng(0).standard_normal((WIDTH, 2 * DIM)) / np.sqrt(WIDTH)
        return hf.SelfAttention(*np.split(W.astype(np.float32), 2, axis=1))
    return trained_heads.module(name)


def gain(name: str) -> Any:
    """Return the gain of the layer norm before a module; ones for modules without a model."""
    if name in trained_heads.NAMES:
        return trained_heads.gain(name)
    return np.ones(module_of(name).width, np.float32)


@cache
def fitted(name: str, index: int, n: int, k: int) -> hf.results.Fit:
    """Return a head of the modules' size for a pattern, found without any module."""
    A = pattern_of(name, index, n, k)
    return hf.fit(A, DIM, tolerances=ASKED, time_limit=10, certificate_mass=False, num_threads=1)


def seen_weights(name: str) -> Array:
    """Return the weights as rows of mean 0 and variance 1 see them: diag(gain) W, centred.

    A row u of mean 0 gives (gain * u) W = u V, with V = P diag(gain) W and P = I - 11^T / D.
    """
    scaled = module_of(name).weights.astype(np.float64) * gain(name)[:, np.newaxis]
    return np.asarray(scaled - scaled.mean(axis=0))


def norm_needed(name: str, Q: Any, K: Any) -> Array:
    """Return, for each row, the least norm of a centred u with u V = [q k], over sqrt(D).

    An input that the layer norm lets through has exactly 1. One with u V = [q k] exists if and
    only if the number is at most 1: a vector of the null space of V^T, orthogonal to 1, makes up
    the rest of the norm (it exists, since D >= 2 d + 2 here).
    """
    V = seen_weights(name)
    wanted = np.concatenate([Q, K], axis=1).astype(np.float64)
    least = np.linalg.lstsq(V.T, wanted.T, rcond=None)[0]
    return np.asarray(np.linalg.norm(least, axis=0) / np.sqrt(V.shape[0]))


def descend(A: Any, V: Any, steps: int, rate: float = 0.1, seed: int = 0) -> tuple[Array, int]:
    """Find rows u of mean 0 and variance 1 whose queries and keys u V meet the tolerances.

    The objective of the learned method (docs/learned-method.md), for dense matrices: squared
    errors of the logits on the support, and squared violations off it; Adam, with rows put back
    to mean 0 and variance 1 after each step. Returns the rows, and the steps taken.
    """
    V = V.astype(np.float32)
    (n, _), (width, dim) = A.shape, (V.shape[0], V.shape[1] // 2)
    first, column, row = A.indptr[:-1], A.indices, np.repeat(np.arange(n), np.diff(A.indptr))
    log_weight = np.log(A.data).astype(np.float32)
    count = np.diff(A.indptr).astype(np.float32)
    lightest = np.minimum.reduceat(log_weight, first)
    gap, ratio = -np.log(ASKED.leak), np.log1p(ASKED.distortion)
    scale = np.float32(dim**-0.5)

    def placed(u: Any) -> Any:
        u = u - u.mean(axis=1, keepdims=True)
        return u * np.sqrt(np.float32(width)) / np.linalg.norm(u, axis=1, keepdims=True)

    u = placed(np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32))
    mean, square = np.zeros_like(u), np.zeros_like(u)
    for step in range(steps):
        q, k = u @ V[:, :dim], u @ V[:, dim:]
        logits = scale * (q @ k.T)
        inside = logits[row, column]
        error = inside - log_weight
        center = np.add.reduceat(error, first) / count
        error -= center[row]
        spread = np.maximum.reduceat(error, first) - np.minimum.reduceat(error, first)
        logits[row, column] = -np.inf
        leak = logits.max(axis=1) - np.minimum.reduceat(inside, first)
        if np.all(spread <= 0.99 * ratio) and np.all(leak <= -gap - 1e-3):
            return np.asarray(u, np.float64), step
        limit = center + lightest - gap - ratio - 0.3
        slope = np.maximum(logits - limit[:, np.newaxis], 0)
        slope[row, column] = error - (slope.sum(axis=1) / count)[row]
        pull = scale * ((slope @ k) @ V[:, :dim].T + (slope.T @ q) @ V[:, dim:].T)
        pull -= u * (pull * u).sum(axis=1, keepdims=True) / width
        mean = 0.9 * mean + 0.1 * pull
        square = 0.9 * square + 0.1 * pull * pull
        warm = 1 - 0.9 ** (step + 1)
        length = rate * 0.01 ** (step / steps)
        u = placed(u - length * (mean / warm) / (np.sqrt(square / warm) + 1e-12))
    return np.asarray(u, np.float64), steps


def normed_input(name: str, u: Array) -> Any:
    """Return what the layer norm gives for these rows, so large that its epsilon vanishes."""
    return np.asarray(trained_heads.layer_norm(1e6 * u, gain(name)), np.float32)


def judged(prefix: str, A: Any, name: str, X: Any) -> dict[str, Any]:
    """Certify a module's attention for an input."""
    certificate = hf.certify(
        A, module_of(name)(X), tolerances=ASKED, certificate_mass=False, num_threads=1
    )
    return {
        f"{prefix}_holds": bool(certificate.holds),
        f"{prefix}_leak": common.rounded(certificate.leak),
        f"{prefix}_distortion": common.rounded(certificate.distortion),
    }


def point(part: str, module: str, pattern: str, index: int, n: int, k: int) -> dict[str, Any]:
    """Return the result of one point of the plan."""
    if part == "natural":
        return natural(module)
    A = pattern_of(pattern, index, n, k)
    result: dict[str, Any] = {}
    if part == "patterns":
        head = fitted(pattern, index, n, k)
        result |= judged("free", A, module, module_of(module).input_for(head.Q, head.K))
    if module != "rotation":  # 2 d inputs leave no room for a mean and a norm
        if part == "patterns":
            needed = norm_needed(module, head.Q, head.K)
            result["needed_median"] = common.rounded(float(np.median(needed)))
            result["needed_max"] = common.rounded(float(needed.max()))
        u, steps = descend(A, seen_weights(module), 800 if part == "patterns" else 1000)
        result |= {"steps": steps, **judged("normed", A, module, normed_input(module, u))}
    return result


def natural(name: str) -> dict[str, Any]:
    """Return the sizes of a trained head's queries, keys and logits on real text, and their limits.

    `product` is scale * max ||q|| * max ||k||; no input behind the layer norm exceeds `limit`.
    """
    X = trained_heads.natural_inputs()[int(name[1])]
    head = module_of(name)(X)
    V = seen_weights(name)
    largest = [float(np.linalg.norm(part, 2)) for part in np.split(V, 2, axis=1)]
    lengths = [float(np.linalg.norm(part, axis=1).max()) for part in (head.Q, head.K)]
    needed = norm_needed(name, head.Q, head.K)
    return {
        "product": common.rounded(head.scale * lengths[0] * lengths[1]),
        "limit": common.rounded(head.scale * V.shape[0] * largest[0] * largest[1]),
        "needed_median": common.rounded(float(np.median(needed))),
        "needed_max": common.rounded(float(needed.max())),
    }


def plan(chosen: common.Settings) -> list[Any]:
    """Return the points of a setting."""
    names: Any = chosen.pick(
        tiny=("rotation", "L1H1"),
        full=("rotation", "random", "L0H0", "L1H1"),
    )
    every: Any = chosen.pick(
        tiny=names, quick=names, full=("rotation", "random", *trained_heads.NAMES)
    )
    count: Any = chosen.pick(tiny=1, quick=10, full=100)
    structured: Any = chosen.pick(tiny=["tree"], full=list(STRUCTURED))
    sizes: Any = chosen.pick(
        tiny=[(32, 2)],
        quick=[(n, k) for n in (64, 128) for k in (2, 4, 6, 8)],
        full=[(n, k) for n in (64, 128) for k in (1, 2, 3, 4, 5, 6, 7, 8, 10)]
        + [(256, k) for k in (1, 2, 3, 4, 5, 6, 8)]
        + [(512, k) for k in (1, 2, 3)],
    )
    points = [
        {"part": "patterns", "module": name, "pattern": kind, "index": index, "n": N, "k": k}
        for kind, index, k in [("random", i, 4) for i in range(count)]
        + [(kind, 0, 0) for kind in structured]
        for name in (every if index < 10 else names)
    ]
    points += [
        {"part": "limits", "module": name, "pattern": "random", "index": 0, "n": n, "k": k}
        for n, k in sizes
        for name in names
        if name in ("random", "L0H0", "L1H1")
    ]
    points += [
        {"part": "natural", "module": name, "pattern": "text", "index": 0, "n": N, "k": 0}
        for name in every
        if name in trained_heads.NAMES
    ]
    return points


def draw(chosen: common.Settings, rows: Sequence[common.Row]) -> None:
    """Draw what was certified, the norms, and how far inputs behind a layer norm go."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    tried = [r for r in rows if r["part"] == "patterns"]
    for prefix, color, label in (("free", "C0", "any X"), ("normed", "C1", "X behind the norm")):
        some = [r for r in tried if r.get(f"{prefix}_leak") is not None]
        held = sum(bool(r[f"{prefix}_holds"]) for r in some)
        axes[0].plot([r[f"{prefix}_distortion"] for r in some],
                     [r[f"{prefix}_leak"] for r in some], ".", color=color, ms=4, alpha=0.5,
                     label=f"{label}: {held} of {len(some)} certified")  # fmt: skip
    axes[0].axhline(ASKED.leak, color="gray", lw=1)
    axes[0].axvline(ASKED.distortion, color="gray", lw=1)
    axes[0].set(xlabel="distortion", ylabel="leak", title="Certificates, and the limits asked for",
                xlim=(-0.003, 1.1 * ASKED.distortion), ylim=(0, 1.1 * ASKED.leak))  # fmt: skip
    axes[0].legend(fontsize=8, loc="center left")

    names = [m for m in dict.fromkeys(r["module"] for r in tried) if m != "rotation"]
    values = [[r["needed_max"] for r in tried if r["module"] == m] for m in names]
    axes[1].boxplot(values, tick_labels=names, whis=(0, 100))
    axes[1].axhline(1, color="C1", label="what the layer norm lets through")
    real = [r for r in rows if r["part"] == "natural"]
    axes[1].plot([names.index(r["module"]) + 1 for r in real], [r["needed_max"] for r in real],
                 "kx", label="queries and keys of real text")  # fmt: skip
    axes[1].tick_params(axis="x", rotation=45)
    axes[1].set(yscale="log", xlabel="module", ylabel="norm that the longest row of X needs",
                title="X for a head found without the module")  # fmt: skip
    axes[1].legend(fontsize=8)

    limits = [r for r in rows if r["part"] == "limits"]
    tokens = sorted({r["n"] for r in limits})
    for i, name in enumerate(sorted({r["module"] for r in limits})):
        best = [max([r["k"] for r in limits
                     if (r["module"], r["n"]) == (name, n) and r["normed_holds"]], default=0)
                for n in tokens]  # fmt: skip
        axes[2].plot(tokens, np.array(best) + 0.05 * i, "o-", label=name)
    axes[2].set(xscale="log", xlabel="n", ylabel="largest k certified", ylim=(0, None),
                title="Behind the norm: random patterns")  # fmt: skip
    axes[2].set_xticks(tokens, labels=map(str, tokens))
    axes[2].set_xticks([], minor=True)
    axes[2].legend(title="module", fontsize=8)
    common.save(figure, chosen, rows=rows)


def main(arguments: Sequence[str] | None = None) -> list[common.Row]:
    """Run the experiment, and return its rows."""
    return common.compute_and_draw(
        "one_module",
        str(__doc__),
        point,
        lambda chosen, rows: rows.of(plan(chosen)),
        draw,
        arguments,
    )


if __name__ == "__main__":
    import one_module  # a sweep's function is imported by its name

    one_module.main()
