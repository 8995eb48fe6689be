"""What headfit answers, recorded and compared: fits, certificates and readings, bit for bit.

A change of how the package is written must not change its answers. `record` computes those of the
cases below and writes them to a file; `compare` computes them again and prints what differs.

    python -m benchmarks.answers record FILE
    python -m benchmarks.answers compare FILE

Nothing here depends on the clock or on the number of threads. Numbers are compared bit for bit;
those whose name begins with ``~``, the losses of descents for dense targets, to within 1e-6.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import headfit as hf

Answer = dict[str, Any]
Case = Callable[[], Answer]

THREADS = 1
HASHED = 2048
"""Of arrays with more numbers than this, the file holds a hash."""
NEAR = 1e-6
"""How far losses may move, relative to themselves."""
LEVEL = "CPU level"


# ---- public names, each in one place ------------------------------------------------------------


Learned, MaxMargin, Projection = hf.methods.Learned, hf.methods.MaxMargin, hf.methods.Projection
Toeplitz, Mixed, KeyTable = hf.methods.Toeplitz, hf.methods.Mixed, hf.methods.KeyTable
lower, counting, every_subset = hf.bounds.lower, hf.bounds.counting, hf.bounds.every_subset


def cpu_level() -> str:
    return str(hf.show_config().cpu)


def fit(A: Any, dim: int | None = None, **options: Any) -> Any:
    return hf.fit(A, dim, num_threads=THREADS, **options)


def certify(*arguments: Any, **options: Any) -> Any:
    return hf.certify(*arguments, num_threads=THREADS, **options)


def compare(*arguments: Any, **options: Any) -> Any:
    return hf.compare(*arguments, num_threads=THREADS, **options)


def soft(target: Any, dim: int, **options: Any) -> Any:
    return hf.shrink(target, dim=dim, curve_dims=(), num_threads=THREADS, **options)


def truncated(Q: Any, K: Any, dim: int) -> tuple[Any, Any]:
    small = hf.shrink(Q, K, dim=dim, effort=0, curve_dims=(), num_threads=THREADS)
    return small.Q * small.scale, small.K


def shrink(*arguments: Any, **options: Any) -> Any:
    return hf.shrink(*arguments, num_threads=THREADS, **options)


def to_sparse(attention: Any, *, tolerances: Any, **options: Any) -> Any:
    sparse = hf.sparsify(attention, num_threads=THREADS, **options)
    return fit(sparse, tolerances=tolerances, time_limit=1e6)


def compress(passages: Any, **options: Any) -> Any:
    return hf.compress(passages, num_threads=THREADS, **options)


def projected(A: Any, dim: int, **options: Any) -> Any:
    return fit(A, dim, method=Projection(), **options)


def load_matrix(path: Path) -> Any:
    return hf.Target(path).matrix


def append_columns(A: Any, head: Any, columns: Any, **options: Any) -> Any:
    return hf.methods.append_dims(A, head, columns, **options)


def rope_filter(pattern: Any, **options: Any) -> Any:
    return hf.rope.filter(pattern, **options)


def rotated(attention: Any) -> Any:
    return attention.rotated()


def rope_windows(widths: Any, **options: Any) -> Any:
    return hf.rope.windows(widths, **options)


def random_module(dim: int, seed: int, **options: Any) -> Any:
    return hf.SelfAttention.random(dim, seed, **options)


def band(n: int, each_side: int, **options: Any) -> Any:
    """Return the pattern of a token and its neighbours on each side."""
    return hf.patterns.band(n, each_side, **options)


def causal_band(n: int, before: int, **options: Any) -> Any:
    """Return the pattern of a token and some tokens before it."""
    return hf.patterns.causal_band(n, before, **options)


def pattern(name: str, *arguments: Any, **options: Any) -> Any:
    return getattr(hf.patterns, name)(*arguments, **options)


# ---- what is kept of a result -------------------------------------------------------------------

CERTIFIED = (
    "status", "leak", "distortion", "tv_mean", "tv_worst", "stray_worst", "row_leak",
    "row_distortion", "row_tv", "row_stray", "row_status", "worst_leak", "worst_distortion",
    "q_norm", "k_norm", "max_logit", "rounding_bound", "rescanned", "basis", "n", "nonzeros",
    "dtype", "scale",
)  # fmt: skip
DESCRIBED = (
    "keys", "top_mass", "load", "max_load", "gamma", "entropy", "key_mass", "column_mass", "sinks",
    "sink_mass", "offsets", "offset_mass", "distance", "previous", "diagonal", "induction", "rank",
    "rank_99", "sparse",
)  # fmt: skip
COMPARED = ["kl_mean", "kl_worst", "tv_mean", "tv_worst"]


def of_certificate(certificate: Any, prefix: str = "") -> Answer:
    return {prefix + name: getattr(certificate, name) for name in CERTIFIED}


def of_fit(head: Any) -> Answer:
    answer = {"Q": head.Q, "K": head.K, "scale": head.scale, "X": head.X}
    answer |= of_certificate(head.certificate, "certificate.")
    for place, witness in enumerate(head.witnesses or ()):
        for name, value in vars(witness).items():
            answer[f"witness {place}.{name}"] = repr(value)
    if head.failed_rows is not None:
        answer["failed rows"] = head.failed_rows
    if head.search is not None:
        answer["search"] = [head.search.dim or 0, *(trial.dim for trial in head.search.trials)]
    return answer


def of_matrix(matrix: Any) -> Answer:
    csr = sp.csr_array(matrix)
    return {"data": csr.data, "indices": csr.indices.astype(np.int64),
            "indptr": csr.indptr.astype(np.int64), "shape": csr.shape}  # fmt: skip


def of_comparison(comparison: Any, prefix: str = "") -> Answer:
    return {prefix + name: getattr(comparison, name) for name in COMPARED}


def of_soft(head: Any) -> Answer:
    return {"dim": head.dim, "dtype": head.dtype, **of_comparison(head.comparison, "~")}


def of_shrunk(result: Any) -> Answer:
    return {"dim": result.dim, "~tv_mean": result.tv_mean, "~tv_worst": result.tv_worst,
            "curve.dim": result.curve.dim, "~curve.tv_mean": result.curve.tv_mean}  # fmt: skip


def of_compressed(result: Any) -> Answer:
    answer = {"dim": result.dim, "curve.dim": result.curve.dim}
    for name in ("tv_mean", "tv_95", "tv_worst", "kl", "calibration_kl", "validation_kl"):
        answer[f"~{name}"] = getattr(result, name)
    for name in ("calibration", "validation", "held_out"):
        answer[name] = getattr(result, name)
    for name in ("tv_mean", "kl"):
        column = "kl_mean" if name == "kl" else name
        curves = {maps: getattr(curve, column) for maps, curve in result.curves.items()}
        for maps, values in curves.items():
            answer[f"~curve.{name}.{maps}"] = values
    return answer


def of_stats(stats: Any) -> Answer:
    names = ["entropy", "max_weight", "effective_support", "log_sum", "keys_for_share", "key_mass"]
    return {name: getattr(stats, name) for name in names}


def of_sparsified(kept: Any) -> Answer:
    names = ["dropped_mass", "worst_row", "per_row", "per_column", "exempt"]
    return {**of_matrix(kept.matrix), **{name: getattr(kept, name) for name in names}}


def of_bound(bound: Any, A: Any) -> Answer:
    return {"dim": bound.dim, "impossible": bound.impossible, "verified": bound.verify(A)}


def of_rope(result: Any) -> Answer:
    answer = {"least_norm": result.least_norm, "norm": result.norm, "dim": result.dim}
    if result.filter is not None:
        answer |= {"q": result.q, "k": result.k, "max_logit": result.max_logit}
    return answer


def of_table(table: Any) -> Answer:
    own = {**vars(table), "sinks": table.sink_columns}
    return {name: own[name] for name in DESCRIBED}


# ---- inputs -------------------------------------------------------------------------------------


def regular(n: int = 64, k: int = 3, gamma: float = 2.0, seed: int = 0) -> Any:
    return hf.patterns.random_regular(n, k, gamma=gamma, rng=seed)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64, by: float = 1.0) -> Any:
    return (by * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def triangle(n: int) -> Any:
    return np.tri(n, dtype=bool)


def looking_back(n: int = 48) -> Any:
    """Return a causal pattern with weights of its own in every row."""
    rng = np.random.default_rng(5)
    dense = np.zeros((n, n))
    for i in range(n):
        columns = rng.choice(i + 1, min(i + 1, 3), replace=False)
        dense[i, columns] = rng.uniform(0.5, 1.0, columns.size)
    dense[:, 0] += 1e-3 * (dense.sum(axis=1) == 0)
    return sp.csr_array(dense / dense.sum(axis=1, keepdims=True))


def graded(*lead: int, n: int = 40, dim: int = 8, seed: int = 0) -> Any:
    """Return queries and keys whose coordinates matter less and less."""
    return normal(2, *lead, n, dim, seed=seed) * 1.4 ** -np.arange(dim) * 2


MASKS: dict[str, Callable[[int], Any]] = {
    "none": lambda n: None,
    "causal": lambda n: "causal",
    "window": lambda n: ("window", (9, 2)),
    "boolean": lambda n: triangle(n) | (np.arange(n) % 7 == 0),
    "sparse": lambda n: sp.csr_array(triangle(n)),
}
DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
WIDE = {"leak": 0.3, "distortion": 1.0}
KERNELS = (
    "exact", "float32", "eager-bfloat16", "sdpa-math-bfloat16", "flash-bfloat16", "flex-bfloat16",
    "eager-float16", "sdpa-math-float16", "flash-float16", "flex-float16",
)  # fmt: skip


# ---- the cases, by name -------------------------------------------------------------------------


def fits() -> dict[str, Case]:
    A = regular()
    C = looking_back()
    sinks = pattern("window_global", 64, 3, 1, causal=True)
    start = normal(2, 64, 8, seed=3, dtype=np.float32)
    table = KeyTable.random(64, 24, rng=1)
    options: dict[str, tuple[Any, int | None, Answer]] = {
        "learned, 12": (A, 12, {}),
        "learned, 8": (A, 8, {}),
        "learned, 8, seed 7": (A, 8, {"rng": 7}),
        "learned, too small": (A, 2, {"method": Learned(effort=40, reheats=1)}),
        "learned, strict tolerances": (A, 10, {"leak": 1e-3, "distortion": 0.01}),
        "learned, max_logit": (A, 12, {"max_logit": 10.0}),
        "learned, max_norm": (A, 12, {"method": Learned(max_norm=60.0)}),
        "learned, stages": (A, 7, {"method": Learned(effort="medium", stages=3)}),
        "learned, reheats": (A, 7, {"method": Learned(reheats=12)}),
        "learned, start": (A, 8, {"method": Learned(init=tuple(start))}),
        "learned, scale": (A, 8, {"scale": 0.25}),
        "learned, search": (A, None, {"time_limit": 1e6}),
        "learned, uniform": (regular(gamma=1.0), 8, {}),
        "learned, 128 tokens": (regular(128, 4), 9, {}),
        "learned, 512 tokens": (regular(512, 4), 7, {}),
        "learned, 512 tokens, bfloat16": (regular(512, 4), 8, {"dtype": "bfloat16"}),
        "learned, 300 tokens, search": (regular(300, 4), None, {"time_limit": 1e6}),
        "learned, 1024 tokens": (regular(1024, 8), 15, {}),
        "learned, no mass": (A, 8, {"certificate_mass": False}),
        "learned, tree": (pattern("tree", 63), 8, {}),
        "learned, permutation": (pattern("permutation", 48, rng=0), 6, {}),
        "learned, normalized": (hf.Target(3 * A, normalize=True), 8, {}),
        "blocks": (pattern("block", 128, 64), 4, {}),
        "max-margin": (A, 24, {"method": "max-margin"}),
        "max-margin, cyclic": (A, 24, {"method": MaxMargin(keys="cyclic")}),
        "max-margin, equality": (A, 24, {"method": MaxMargin(form="equality")}),
        "max-margin, given": (A, 24, {"method": MaxMargin(keys=table)}),
        "max-margin, array": (A, 16, {"method": MaxMargin(keys=normal(64, 16, seed=2))}),
        "max-margin, max_norm": (A, 24, {"method": MaxMargin(max_norm=1.0)}),
        "max-margin, equality, fails": (A, 4, {"method": MaxMargin(form="equality")}),
        "max-margin, 512 tokens": (regular(512, 4), 48, {"method": "max-margin"}),
        "max-margin, max_logit": (A, 24, {"method": "max-margin", "max_logit": 20.0}),
        "max-margin, search": (A, None, {"method": "max-margin", "time_limit": 1e6}),
        "projection": (A, 1024, {"method": "projection", **WIDE}),
        "projection, gaussian": (A, 512, {"method": Projection(sketch="gaussian"), **WIDE}),
        "projection, svd": (A, 512, {"method": Projection(factor="svd"), **WIDE}),
        "projection, search": (
            band(32, 1), None,
            {"method": "projection", "leak": 0.3, "distortion": 2.0, "time_limit": 1e6},
        ),
        "toeplitz, causal": (causal_band(256, 15), 24, {"method": "toeplitz", "mask": "causal"}),
        "toeplitz, both sides": (band(192, 3), 24, {"method": "toeplitz"}),
        "toeplitz, max_norm": (band(192, 3), 24, {"method": Toeplitz(max_norm=500.0)}),
        "toeplitz, frequencies": (
            causal_band(64, 3), 16,
            {"method": Toeplitz(frequencies=0.1 + 0.35 * np.arange(8)), "mask": "causal",
             **WIDE},
        ),
        "toeplitz, auto": (causal_band(128, 39), 32, {"mask": "causal"}),
        "mixed": (pattern("bigbird", 128, 6, 1, 2, rng=0), 40,
                  {"method": "mixed", "exempt_columns": "auto"}),
        "mixed, filter": (pattern("bigbird", 128, 6, 0, 2, rng=0), 40,
                          {"method": Mixed(filter_dim=16)}),
        "exempt, auto": (sinks, 12, {"exempt_columns": "auto"}),
        "exempt, list": (sinks, 12, {"exempt_columns": [0, 5]}),
        "exempt, max-margin": (sinks, 24, {"exempt_columns": [0], "method": "max-margin"}),
        "exempt, bfloat16": (sinks, 14, {"exempt_columns": [0], "dtype": "bfloat16", **WIDE}),
        "module": (A, None, {"module": random_module(8, 0)}),
        "module, own weights": (A, 8, {"module": hf.SelfAttention(*normal(2, 40, 8), 0.5)}),
    }  # fmt: skip
    for name, mask in MASKS.items():
        for method in ("learned", "max-margin"):
            more = {"mask": mask(48), "method": method}
            if name == "window":
                options[f"{method}, mask {name}"] = (band(48, 2, gamma=2.0, rng=0), 24, more)
            else:
                options[f"{method}, mask {name}"] = (C, 24, more)
    for dtype in DTYPES:
        loose = WIDE if "8" in dtype else {}
        options[f"learned, {dtype}"] = (A, 14, {"dtype": dtype, **loose})
        options[f"max-margin, {dtype}"] = (
            A, 32, {"method": "max-margin", "dtype": dtype, **loose})  # fmt: skip
        options[f"projection, {dtype}"] = (
            A, 512, {"method": "projection", "dtype": dtype, **WIDE})  # fmt: skip
    options["toeplitz, bfloat16"] = (
        causal_band(128, 7), 24, {"method": "toeplitz", "mask": "causal", "dtype": "bfloat16",
                                  **WIDE})  # fmt: skip
    for kernel in KERNELS[1:]:
        options[f"learned, kernel {kernel}"] = (A, 16, {"kernel": kernel, **WIDE})
    return {
        f"fit: {name}": lambda A=A, dim=dim, more=more: of_fit(fit(A, dim, **more))
        for name, (A, dim, more) in options.items()
    }


def certificates() -> dict[str, Case]:
    A = regular()
    C = looking_back()

    def head(n: int, dtype: Any) -> Any:
        return normal(2, n, 12, seed=4, dtype=dtype, by=1.5)

    def judged(A: Any, *arguments: Any, **options: Any) -> Case:
        return lambda: of_certificate(certify(A, *arguments, **options))

    found: dict[str, Case] = {}
    for name, mask in MASKS.items():
        target = band(48, 2) if name == "window" else C
        for dtype in (np.float32, np.float64):
            found[f"{np.dtype(dtype)}, mask {name}"] = judged(
                target, *head(48, dtype), mask=mask(48)
            )
    for kernel in KERNELS:

        def by_kernel(kernel: str = kernel) -> Answer:
            small = fit(A, 16, dtype="float16" if "float16" in kernel else "bfloat16", **WIDE)
            return of_certificate(certify(A, small, kernel=kernel, **WIDE))

        found[f"kernel {kernel}"] = by_kernel
    weights = hf.Kernel.named("eager-bfloat16", weights=True)

    def by_weights() -> Answer:
        small = fit(A, 16, dtype="bfloat16", **WIDE)
        return of_certificate(certify(A, small, kernel=weights, **WIDE))

    def of_module() -> Answer:
        module = random_module(8, 1)
        X = fit(A, 8).X
        return of_certificate(certify(A, hf.SelfAttention(module.W_Q, module.W_K)(X)))

    def given(**options: Any) -> Answer:
        matrix = hf.attention_matrix(*head(48, np.float64), mask=options.get("mask"))
        return of_certificate(certify(C, matrix=matrix, **WIDE, **options))

    def exact() -> Answer:
        return of_certificate(certify(C, matrix=C.toarray()))

    q, k = head(64, np.float32)
    found |= {
        "kernel with weights": by_weights,
        "module": of_module,
        "matrix": given,
        "matrix, causal": lambda: given(mask="causal"),
        "matrix of the target": exact,
        "dense target": judged(A.toarray(), q, k),
        "no mass": judged(A, q, k, certificate_mass=False),
        "scale": judged(A, q, k, scale=1.0),
        "max_logit": judged(A, q, k, max_logit=3.0),
        "tolerances": judged(A, q, k, tolerances=hf.Tolerances(leak=0.5, distortion=3.0)),
        "attention": judged(C, hf.Attention(*head(48, np.float32), mask="causal")),
        "bias": judged(C, hf.Attention(*head(48, np.float32), bias=normal(48, 48, seed=8))),
        "softcap": judged(C, hf.Attention(*head(48, np.float32), softcap=5.0)),
        "rounded on purpose": judged(A, np.round(q, 1), np.round(k, 1)),
        "many rows": judged(regular(700, 5), *normal(2, 700, 16, dtype=np.float32)),
        "thousands of rows": judged(regular(3000, 5), *normal(2, 3000, 16, by=1.2)),
    }
    return {f"certify: {name}": case for name, case in found.items()}


def readings() -> dict[str, Case]:
    found: dict[str, Case] = {}
    n, values = 48, normal(48, 5, seed=9)
    q, k = normal(2, n, 8, seed=6)
    stack_q, stack_k = normal(2, 2, 3, n, 8, seed=7, dtype=np.float32)
    options: dict[str, Answer] = {f"mask {name}": {"mask": mask(n)} for name, mask in MASKS.items()}
    options |= {
        "bias": {"bias": normal(n, n, seed=8)},
        "softcap": {"softcap": 2.0},
        "rope": {"position": "rope"},
        "rope-half": {"position": ("rope-half", 500.0)},
        "alibi": {"position": ("alibi", 0.25), "mask": "causal"},
        "scale": {"scale": 0.7},
        "key_mask": {"key_mask": np.arange(n) % 5 > 0},
    }
    for name, more in options.items():

        def every(more: Answer = more) -> Answer:
            head = hf.Attention(q, k, **more)
            top = hf.attention_topk(q, k, 4, num_threads=THREADS, **more)
            return {
                "matrix": hf.attention_matrix(q, k, num_threads=THREADS, **more),
                "logits": hf.attention_logits(q, k, num_threads=THREADS, **more),
                "apply": hf.attention_apply(q, k, values, num_threads=THREADS, **more),
                "rows": head.matrix(rows=[3, 40]),
                **{f"top.{key}": value for key, value in of_matrix(top).items()},
                **of_stats(hf.attention_stats(q, k, num_threads=THREADS, **more)),
            }

        def narrow(more: Answer = more) -> Answer:
            a, b = q.astype(np.float32), k.astype(np.float32)
            more = {key: x.astype(np.float32) if key == "bias" else x for key, x in more.items()}
            return {
                "matrix": hf.attention_matrix(a, b, num_threads=THREADS, **more),
                "stats": hf.attention_stats(a, b, num_threads=THREADS, **more).entropy,
            }

        found[name], found[f"{name}, float32"] = every, narrow

    def sinks() -> Answer:
        return {"matrix": hf.attention_matrix(q, k, sinks=0.5, num_threads=THREADS)}

    def heads() -> Answer:
        columns, weights = hf.attention_topk(
            stack_q, stack_k, 3, mask="causal", values="logits", num_threads=THREADS
        )
        lengths = {"key_lengths": np.array([48, 31]), "num_threads": THREADS}
        return {
            "matrix": hf.attention_matrix(stack_q, stack_k, **lengths),
            "columns": columns, "weights": weights,
            **of_stats(hf.attention_stats(stack_q, stack_k, shares=(0.5, 0.9), **lengths)),
        }  # fmt: skip

    def module() -> Answer:
        head = random_module(6, 2, dtype=np.float64)(normal(30, 12, seed=3), mask="causal")
        own = hf.SelfAttention(*normal(2, 20, 6, seed=1), 0.3)
        X = own.input_for(*normal(2, 30, 6, seed=2))
        canonical = hf.SelfAttention.canonical(4)
        return {"Q": head.Q, "K": head.K, "matrix": head.matrix(), "X": X,
                "canonical.W_Q": canonical.W_Q, "canonical.scale": canonical.scale,
                "own": own(X).matrix()}  # fmt: skip

    def described() -> Answer:
        return of_table(hf.describe(stack_q, stack_k, mask="causal", num_threads=THREADS))

    def described_tokens() -> Answer:
        tokens = np.arange(n) % 12
        head = hf.Attention(stack_q, stack_k, mask="causal")
        return of_table(hf.describe(head, tokens=tokens, per_row=4, num_threads=THREADS))

    found |= {"sinks": sinks, "heads": heads, "modules": module, "describe": described,
              "describe, tokens": described_tokens}  # fmt: skip
    return {f"read: {name}": case for name, case in found.items()}


def sparsified() -> dict[str, Case]:
    q, k = normal(2, 40, 8, seed=6, by=1.5)
    dense = hf.attention_matrix(*normal(2, 16, 4, seed=6, by=1.5))
    options: dict[str, tuple[Any, Answer]] = {
        f"mask {name}": (
            hf.Attention(q, k, mask=mask(40)), {"per_row": 4, "per_column": 5,
                                                "on_empty": "keep-max"})
        for name, mask in MASKS.items()
    }  # fmt: skip
    options |= {
        "mass": (hf.Attention(q, k), {"mass": 0.9}),
        "exempt": (hf.Attention(q, k, mask="causal"),
                   {"per_row": 3, "per_column": 4, "exempt_columns": "auto",
                    "on_empty": "keep-max"}),
        "dense": (dense, {"per_row": 3, "per_column": 4}),
        "dense, exact": (dense, {"per_row": 3, "per_column": 4, "method": "exact"}),
        "sparse": (regular(64, 6), {"per_row": 3}),
    }  # fmt: skip
    return {
        f"sparsify: {name}": lambda M=M, more=more: of_sparsified(
            hf.sparsify(M, num_threads=THREADS, **more)
        )
        for name, (M, more) in options.items()
    }


def patterns() -> dict[str, Case]:
    import networkx

    points = normal(50, 3, seed=2)
    near = "neighbors" if "neighbors" in signature(hf.patterns.strided).parameters else "window"
    made: dict[str, tuple[str, tuple[Any, ...], Answer]] = {
        "band": ("band", (40, 2), {}),
        "band, wrapped": ("band", (40, 2), {"boundary": "wrap"}),
        "bigbird": ("bigbird", (60, 2, 2, 3), {}),
        "block": ("block", (40, 8), {}),
        "butterfly": ("butterfly", (32,), {}),
        "butterfly, stages": ("butterfly", (32,), {"stages": [0, 2]}),
        "causal_band": ("causal_band", (40, 3), {}),
        "circulant": ("circulant", (40, [0, 1, 5]), {}),
        "digits_knn": ("digits_knn", (), {}),
        "dilated": ("dilated", (40, 2, 3), {}),
        "grid2d": ("grid2d", (6, 7), {}),
        "grid2d, diagonals": ("grid2d", (6, 7), {"diagonals": True, "self_loops": True}),
        "hypercube": ("hypercube", (32,), {}),
        "induction": ("induction", (np.arange(40) % 9,), {}),
        "induction, all": ("induction", (np.arange(40) % 9,), {"which": "all"}),
        "knn": ("knn", (points, 4), {}),
        "knn, columns": ("knn", (points, 4, 5), {"weights": "gaussian"}),
        "permutation": ("permutation", (40,), {}),
        "previous_token": ("previous_token", (40,), {}),
        "random_regular": ("random_regular", (40, 3), {}),
        "strided": ("strided", (40, 8), {}),
        "strided, both": ("strided", (40, 8), {near: 3, "causal": False}),
        "tree": ("tree", (40,), {}),
        "tree, of three": ("tree", (40, 3), {"self_loops": True}),
        "window_global": ("window_global", (40, 4, 2), {}),
        "window_global, both": ("window_global", (40, 4, 1), {"causal": False, "stride": 10}),
        "from_mask": ("from_mask", (triangle(20) & (np.indices((20, 20)).sum(0) % 3 > 0)
                                    | np.eye(20, dtype=bool),), {}),
        "from_graph": ("from_graph", (networkx.petersen_graph(),), {"self_loops": True}),
    }  # fmt: skip
    found: dict[str, Case] = {}
    for label, (name, arguments, more) in made.items():

        def both(name: str = name, arguments: Any = arguments, more: Answer = more) -> Answer:
            drawn = {**more, "rng": 3}
            if "weights" not in more:
                drawn |= {"weights": "random", "gamma": 3.0}
            plain = of_matrix(pattern(name, *arguments, **{"rng": 3, **more}))
            weighted = of_matrix(pattern(name, *arguments, **drawn))
            return {**plain, **{f"drawn.{key}": value for key, value in weighted.items()}}

        found[f"pattern: {label}"] = both
    return found


def bounds() -> dict[str, Case]:
    targets: dict[str, tuple[Any, Answer]] = {
        "random": (regular(24, 2), {}),
        "two per row": (regular(32, 2, 1.0), {"leak": 0.01}),
        "band": (band(24, 1), {}),
        "band, causal": (causal_band(24, 2), {"mask": "causal"}),
        "permutation": (pattern("permutation", 20, rng=0), {}),
        "weights": (regular(16, 4, 8.0), {"distortion": 0.01}),
        "max_norm": (regular(24, 2), {"max_norm": 3.0}),
        "max_logit": (regular(24, 2), {"max_logit": 2.0}),
        "max_logit, masked": (causal_band(24, 2),
                              {"mask": "causal", "max_logit": 1.0, "masked_logits": True}),
        "tree": (pattern("tree", 15), {}),
    }  # fmt: skip
    found: dict[str, Case] = {
        f"bound: {name}": lambda A=A, more=more: of_bound(
            lower(A, time_limit=1e6, **more), hf.Target(A, mask=more.get("mask"))
        )
        for name, (A, more) in targets.items()
    }

    def closed() -> Answer:
        b = hf.bounds
        return {
            "counting": counting(4096, 8).dim,
            "counting, bounded": counting(4096, 8, max_norm=20.0, leak=0.05).dim,
            "every_subset": every_subset(4096, 8).dim,
            "every_subset, bounded": every_subset(4096, 8, leak=0.05, max_logit=5.0).dim,
            "projection": [b.projection_dim(4096, 8), b.projection_dim(512, 4, 2.0, 0.1, 0.5)],
            "random keys": [b.random_keys_dim(4096, 8), b.random_keys_dim(64, 3, all_subsets=True)],
            "range": [b.logit_range(2.0), b.logit_range(5.0, 0.01, 0.3)],
            "stray": [b.stray_for_leak(512, 4, 0.05), b.leak_for_stray(512, 4, 0.05)],
        }

    return {**found, "bound: closed forms": closed}


def dense_targets() -> dict[str, Case]:
    q, k = graded()
    head, causal = hf.Attention(q, k), hf.Attention(q, k, mask="causal")
    found: dict[str, Case] = {
        "soft, 3": lambda: of_soft(soft(head, 3)),
        "soft, causal": lambda: of_soft(soft(causal, 3)),
        "soft, low": lambda: of_soft(soft(causal, 3, effort="low")),
        "soft, float64": lambda: of_soft(soft(head, 4, dtype="float64", effort=100)),
        "soft, bfloat16": lambda: of_soft(soft(head, 4, dtype="bfloat16")),
        "soft, bias": lambda: of_soft(
            soft(hf.Attention(q, k, bias=normal(40, 40, seed=8)), 3, effort="low")
        ),
        "soft, alibi": lambda: of_soft(
            soft(hf.Attention(q, k, position=("alibi", 0.5), mask="causal"), 3, effort="low")
        ),
        "soft, sparse mask": lambda: of_soft(
            soft(hf.Attention(q, k, mask=sp.csr_array(triangle(40))), 3)
        ),
        "shrink, tv": lambda: of_shrunk(shrink(causal, tv=0.05)),
        "shrink, dim": lambda: of_shrunk(shrink(head, dim=3, curve_dims=())),
        "shrink, curve": lambda: of_shrunk(shrink(head, dim=3, curve_dims=(1, 2, 5))),
        "shrink, tv_worst": lambda: of_shrunk(shrink(head, tv_worst=0.2, curve_dims=())),
        "shrink, float16": lambda: of_shrunk(shrink(head, dim=4, dtype="float16", curve_dims=())),
    }

    def svd() -> Answer:
        Q, K = truncated(q, k, 3)
        small = hf.Attention(Q.astype(np.float64), K.astype(np.float64))
        return of_comparison(compare(head, small), "~")

    def compared() -> Answer:
        other = hf.Attention(*normal(2, 40, 3, seed=1))
        return {
            **of_comparison(compare(head, other)),
            "row_kl": compare(head, other).row_kl,
            "row_tv": compare(head.matrix(), other).row_tv,
        }

    def to_pattern() -> Answer:
        loose = hf.Tolerances(leak=0.2, distortion=0.5)
        return of_fit(to_sparse(causal, tolerances=loose, per_row=3, per_column=8,
                                        exempt_columns=[0]))  # fmt: skip

    found |= {"svd": svd, "compare": compared, "to pattern": to_pattern}

    def passages(seed: int, count: int = 6, n: int = 20, dim: int = 6) -> list[Any]:
        return [tuple(graded(n=n, dim=dim, seed=seed + p)) for p in range(count)]

    short: Answer = {"effort": "low", "curve_dims": ()}
    found |= {
        "compress, dim": lambda: of_compressed(compress(passages(0), dim=3)),
        "compress, tv": lambda: of_compressed(compress(passages(0), tv=0.1, effort="low")),
        "compress, causal": lambda: of_compressed(
            compress(passages(9), dim=3, mask="causal", **short)
        ),
        "compress, free of rope": lambda: of_compressed(
            compress(passages(9), dim=4, position="rope", mask="causal", **short)
        ),
        "compress, softcap": lambda: of_compressed(
            compress(passages(9), dim=3, softcap=3.0, **short)
        ),
    }

    return {f"dense: {name}": case for name, case in found.items()}


def the_rest() -> dict[str, Case]:
    A = regular()

    def appended() -> Answer:
        target = pattern("window_global", 64, 3, 1, causal=True)
        dense = target.toarray()
        dense[:, 0] = 0
        dense[dense.sum(axis=1) == 0, 1] = 1.0
        others = fit(dense / dense.sum(axis=1, keepdims=True), 10)
        whole = append_columns(target, others, [0], leak=0.05)
        return {"Q": whole.Q, "K": whole.K, **of_certificate(certify(target, whole))}

    def projection() -> Answer:
        head = projected(A, 64)
        return {"Q": head.Q, "K": head.K, "scale": head.scale}

    def planned(pattern: Any, **options: Any) -> Case:
        def case() -> Answer:
            plan = hf.plan(pattern, time_limit=1e6, num_threads=THREADS, **options)
            answer = {"verdict": plan.verdict, "n": plan.n, "least_logit": plan.least_logit}
            return answer | (of_fit(plan.fit) if plan.verdict == "yes" else {})

        return case

    def stored() -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "head.npz"
            head = fit(A, 8, rng=2)
            head.save(path)
            matrix = Path(folder) / "A.npz"
            sp.save_npz(matrix, sp.csr_array(A))
            return {**of_fit(hf.load(path)), **of_matrix(load_matrix(matrix))}

    def target() -> Answer:
        found = hf.Target(A, mask=None)
        names = ["n", "nonzeros", "per_row", "per_column", "mean_per_row", "gamma", "looks_back"]
        return {**{name: getattr(found, name) for name in names}, **of_matrix(found.matrix)}

    cases: dict[str, Case] = {
        "append": appended,
        "project": projection,
        "plan, yes": planned(band(32, 1), dim=8),
        "plan, causal": planned(causal_band(48, 2), dim=12, mask="causal"),
        "plan, no": planned(pattern("permutation", 20, rng=0), dim=1),
        "plan, no norm": planned(band(32, 1), dim=8, max_logit=0.5),
        "files": stored,
        "target": target,
        "rope, 4": lambda: of_rope(rope_filter(4, n=128, dim=32, **WIDE)),
        "rope, both sides": lambda: of_rope(rope_filter(3, n=128, dim=32, causal=False, **WIDE)),
        "rope, target": lambda: of_rope(
            rope_filter(causal_band(96, 2), mask="causal", dim=32, base=500.0, **WIDE)
        ),
        "rope, frequencies": lambda: of_rope(
            rope_filter(4, n=96, inv_freq=0.05 + 0.3 * np.arange(10), **WIDE)
        ),
        "rope, out of reach": lambda: of_rope(rope_filter(40, n=128, dim=16)),
        "rope, head": lambda: of_certificate(
            certify(
                causal_band(128, 3),
                rotated(rope_filter(4, n=128, dim=32, **WIDE).attention()),
                **WIDE,
            )
        ),
        "rope, windows": lambda: {
            f"{i}.{name}": value
            for i, result in enumerate(
                rope_windows([2, 4], n=64, dims=[32], bases=[1e4, 5e5],
                             tolerances=hf.Tolerances(**WIDE))
            )
            for name, value in of_rope(result).items()
        },
        "key tables": lambda: {
            "random": KeyTable.random(40, 6, rng=3).keys,
            "cyclic": KeyTable.cyclic(40, 6).keys,
        },
    }  # fmt: skip
    return {f"also: {name}": case for name, case in cases.items()}


GROUPS: tuple[Callable[[], dict[str, Case]], ...] = (
    fits, certificates, readings, sparsified, patterns, bounds, dense_targets, the_rest,
)  # fmt: skip


def all_cases() -> dict[str, Case]:
    """Return all cases by name."""
    return {name: case for group in GROUPS for name, case in group().items()}


# ---- recording and comparing --------------------------------------------------------------------


def as_stored(value: Any) -> np.ndarray:
    """Return a value as an array that a file may hold without pickling: large ones as a hash."""
    if value is None:
        return np.array("None")
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "O":
        raise TypeError(f"an answer must be numbers or text; got {value!r}")
    if array.size > HASHED:
        kind = f"{array.dtype}{array.shape}"
        return np.array(f"{kind} {hashlib.sha256(array.tobytes()).hexdigest()}")
    return array if np.ndim(value) else array.reshape(())


def computed(cases: Mapping[str, Case], *, verbose: bool = False) -> dict[str, np.ndarray]:
    """Return the answers of some cases, each as "case | name"."""
    answers: dict[str, np.ndarray] = {}
    for name, case in cases.items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                answer = case()
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
        answers |= {f"{name} | {key}": as_stored(value) for key, value in answer.items()}
        if verbose:
            print(f"{time.perf_counter() - start:7.2f} s  {name}  {answer.get('error', '')}")
    return answers


def difference(name: str, old: np.ndarray, new: np.ndarray) -> str | None:
    """Return how two answers of this name differ in words, or None."""
    if old.dtype != new.dtype and not old.dtype.kind == new.dtype.kind == "U":
        return f"dtype {old.dtype} -> {new.dtype}"
    if old.shape != new.shape:
        return f"shape {old.shape} -> {new.shape}"
    if old.dtype.kind == "U":
        return None if np.array_equal(old, new) else f"{old.tolist()} -> {new.tolist()}"
    if name.rpartition(" | ")[2].startswith("~"):
        near = np.isclose(new, old, rtol=NEAR, atol=1e-12, equal_nan=True)
        if near.all():
            return None
    elif old.tobytes() == new.tobytes():
        return None
    if old.size == 1:
        return f"{old.item()!r} -> {new.item()!r}"
    apart = ~((old == new) | ((old != old) & (new != new)))
    with np.errstate(invalid="ignore"):
        furthest = np.abs(new.astype(np.float64) - old.astype(np.float64))[apart].max(initial=0)
    return f"{apart.sum()} of {old.size} numbers, by {furthest:.3g} at most"


def differences(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> list[str]:
    """Return a line for each answer that differs, is missing, or is new."""
    lines = []
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old:
            word: str | None = "not recorded"
            word = f"{new[name]}" if name.endswith(" | error") else word
        else:
            word = difference(name, old[name], new[name]) if name in new else "no longer there"
        if word is not None:
            lines.append(f"{name}: {word}")
    return lines


def shortened(lines: list[str], most: int = 6) -> list[str]:
    """Return the first few lines of every case, and how many more it has."""
    by_case: dict[str, list[str]] = {}
    for line in lines:
        by_case.setdefault(line.partition(" | ")[0], []).append(line)
    short = []
    for case, own in by_case.items():
        short += own[:most] if len(own) > most + 1 else own
        short += [f"{case} | and {len(own) - most} more"] if len(own) > most + 1 else []
    return short


def record(file: Path, cases: Mapping[str, Case], *, verbose: bool = False) -> int:
    """Write the answers of some cases and the CPU level to a file; return how many there are."""
    answers = computed(cases, verbose=verbose)
    failed = [f"{name}: {error}" for name, error in answers.items() if name.endswith(" | error")]
    if failed:
        raise SystemExit("\n".join(failed))
    np.savez_compressed(file, **{LEVEL: np.array(cpu_level())}, **answers)
    return len(answers)


def read(file: Path, cases: Iterable[str]) -> tuple[str, dict[str, np.ndarray]]:
    """Return the CPU level and the answers of these cases that a file holds."""
    wanted = set(cases)
    with np.load(file, allow_pickle=False) as stored:
        answers = {name: stored[name] for name in stored.files
                   if name.rpartition(" | ")[0] in wanted}  # fmt: skip
        return str(stored[LEVEL]), answers


def main(arguments: list[str] | None = None) -> int:
    global THREADS
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("verb", choices=["record", "compare", "list"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--only", default="*", help="the cases whose name matches, as in 'fit: *'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print the seconds of each case")
    options = parser.parse_args(arguments)
    THREADS = options.threads
    cases = {n: case for n, case in all_cases().items() if fnmatch.fnmatchcase(n, options.only)}
    if options.verb == "list":
        print("\n".join(cases))
        return 0
    if options.file is None:
        parser.error("a file is needed")
    start = time.perf_counter()
    if options.verb == "record":
        count = record(options.file, cases, verbose=options.verbose)
        print(f"{count} answers of {len(cases)} cases, {time.perf_counter() - start:.0f} s")
        return 0
    level, old = read(options.file, cases)
    if level != cpu_level():
        print(f"recorded at CPU level {level}, here {cpu_level()}: answers may differ in bits")
    lines = differences(old, computed(cases, verbose=options.verbose))
    for line in shortened(lines):
        print(line)
    differ = {line.partition(" | ")[0] for line in lines}
    print(f"{len(lines)} of {len(old)} answers differ, in {len(differ)} of {len(cases)} cases, "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
