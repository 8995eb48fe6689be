"""Calls of every public function with bad arguments from a table, each in a separate process.

``python -m tests.adversarial.bad_inputs`` runs all of it; ``test_bad_inputs.py`` a share. A call
must raise a HeadfitError whose message names the argument, within ten seconds: no other exception,
no answer, no crash. The process is forked from one that has everything loaded, and may take little
memory beyond that, so that thousands of calls take a minute or two.

A parameter gets the bad values of its kind, except for those that it does accept (`without`).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import inspect
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

SECONDS = 10
ROOM = 6 * 2**30
"""Bytes of addresses above what is in use: a request for more must be refused, not tried."""

N, DIM = 6, 3


class Unusable:
    """An object that is no valid argument, and whose repr raises an error."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Untrue:
    """An object whose comparisons have no truth value."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # type: ignore[assignment]


def ragged() -> Any:
    return [[1.0, 2.0], [3.0]]


NOT_TEXT = [None, 5, 1.5, b"text", [], Unusable(), Untrue(), np.array(["a", "b"]), True, np.nan]
MISREAD: list[Any] = ["0.05", "8", b"8", b"\1", np.complex128(0.5 + 1j), np.complex64(2)]
"""Texts and complex numbers that Python or NumPy would read as real numbers."""

MISREAD_ARRAYS = [
    *([value] for value in MISREAD),
    *(np.full((N, N), value) for value in ("0.5", 1 + 0j)),
    np.full((N, N), 0.5, object),
]
JUNK = ["x", b"x", Unusable(), Untrue(), {"a": 1}, {1, 2}, object, lambda: 1, 2j, "\0", ...]
JUNK += MISREAD
ROTATED = [*JUNK, 5, True, "alibi", ("rope", -1), ("rope", "x"), ("rope", [1.0])]
NOT_NUMBER = [*JUNK, "", "1,0", True, [0.1], np.array([0.1]), np.nan, None]
NOT_ARRAY = [None, *JUNK, ragged(), [["a"]], [[1j]], np.array([[None]]), sp.eye_array(N), np.nan]
NOT_ARRAY += MISREAD_ARRAYS
BAD_MATRIX = [
    *NOT_ARRAY,
    np.float64(1),
    [],
    np.empty((0, 0)),
    np.ones(N),
    np.ones((N, DIM), dtype="M8[s]"),
    np.ma.masked_array(np.ones((N, N)), mask=True),
    np.ones((N, DIM), np.longdouble) * np.longdouble(1) if np.longdouble != np.float64 else "x",
]
NOT_FLAG = [0, 1, 1.0, "True", "", "yes", [], [True], np.array([True, False]), None, Unusable()]
NOT_SEED = ["x", -1, 1.5, True, {"a": 1}, Unusable(), object, [-1], ["a"], np.nan, 2j]
NOT_SEED += [*MISREAD, *MISREAD_ARRAYS]
NOT_PATH = [None, 5, 1.5, b"x.npz", "", "a\0b", ["x.npz"], Unusable(), True, np.nan]
ODD_MASKS = [np.array([0, 2, 255] * (N * N // 3), np.uint8).view(bool).reshape(N, N)]
ODD_MASKS += [ODD_MASKS[0][0]]
"""Booleans of bytes other than 0 and 1: a mask of them may be refused, or read as NumPy does."""

NOT_MASK = [
    *ODD_MASKS,
    *(("window", value) for value in (*MISREAD, np.array([3]))),
    *MISREAD_ARRAYS,
    True,
    False,
    5,
    0.5,
    "Causal",
    "",
    b"causal",
    ("window",),
    ("window", 0),
    ("window", -1),
    ("window", 1.5),
    ("window", True),
    ("window", "3"),
    ("window", None),
    ("window", (1,)),
    ("window", (1, 2, 3)),
    ("window", (-1, 2)),
    ("causal", 3),
    (),
    ["causal"],
    np.ones((N, N)),
    np.ones((N, N), np.int8),
    np.ones((N + 1, N + 1), bool),
    np.ones((1, 1, 1, N, N), bool),
    np.array(True),
    sp.eye_array(N),
    sp.eye_array(N + 1, dtype=bool),
    np.ma.masked_array(np.ones((N, N), bool), mask=True),
    [[True], [True, False]],
    {"a": 1},
    Unusable(),
    Untrue(),
]


def spoilt_sparse(dtype: Any = float) -> list[Any]:
    """Return sparse matrices with indices or offsets out of range, or with wrong shapes."""
    bad = []
    for form in ("csr", "csc", "coo", "bsr", "lil", "dok", "dia"):
        x = getattr(sp, f"{form}_array")(np.eye(N, dtype=dtype))
        if form in ("csr", "csc", "bsr"):
            for what in (10**8, -1, 2**32 + 3):
                y = x.copy()
                y.indices = y.indices.astype(np.int64)
                y.indices[2] = what
                bad.append(y)
            for offsets in ([0, 1, 2, 1, 4, 5, 6], [0, 1, 2, 3, 4, 5, 10**8]):
                y = sp.csr_array(x) if form == "bsr" else x.copy()
                y.indptr = np.array(offsets)
                bad.append(y)
        elif form == "coo":
            x.coords = (x.coords[0], x.coords[1].astype(np.int64) + 2**40)
            bad.append(x)
        elif form == "lil":
            x.rows[1] = [10**8]
            bad.append(x)
        elif form == "dok":
            x._dict[(10**9, 0)] = x[0, 0]
            bad.append(x)
        else:
            x.offsets = np.array([10**9])
            bad.append(x)
    one = np.ones(1, dtype)
    bad.append(sp.coo_array((one, ([0], [0])), shape=(2**31 - 1, 2**31 - 1)))
    return bad


def bad_files(folder: Path) -> list[Any]:
    """Return paths that name no file of any kind that headfit reads."""
    good = folder / "good.npz"
    sp.save_npz(good, sp.eye_array(N).tocsr())
    raw = good.read_bytes()
    made: dict[str, bytes] = {
        "empty.npz": b"",
        "half.npz": raw[: len(raw) // 2],
        "text.npz": b"not an archive",
        "empty.mtx": b"",
        "huge.mtx": b"%%MatrixMarket matrix coordinate real general\n9 9 999999999999\n1 1 1\n",
        "far.mtx": b"%%MatrixMarket matrix coordinate real general\n3 3 1\n1 9 1\n",
        "empty.safetensors": b"",
        "long.safetensors": b"\xff" * 16,
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    for i, spoilt in enumerate(x for x in spoilt_sparse() if x.format in ("csr", "csc")):
        parts = {"data": spoilt.data, "indices": spoilt.indices, "indptr": spoilt.indptr}
        form = spoilt.format.encode()
        np.savez(folder / f"bad{i}.npz", format=form, shape=np.array(spoilt.shape), **parts)
    for i, array in enumerate(MISREAD_ARRAYS[-3:-1]):
        np.savez(folder / f"bad-numbers{i}.npz", Q=array, K=array)
    sp.save_npz(folder / "bad-complex.npz", sp.eye_array(N).tocsr() * (1 + 0j))
    nested = np.array("[" * 100_000)
    np.savez(folder / "nested.npz", about=nested, Q=np.eye(2), K=np.eye(2))
    pipe = folder / "pipe.npz"
    if not pipe.exists():
        os.mkfifo(pipe)
    files = [folder / name for name in made] + sorted(folder.glob("bad*.npz"))
    absent = [folder / "absent.npz", folder / "no folder" / "x.npz", folder, Path("/dev/zero")]
    return [*files, folder / "nested.npz", pipe, *absent, str(folder / ("x" * 300))]


def counts(least: int, most: int | None = None) -> list[Any]:
    bad: list[Any] = [*JUNK, "3", 1.5, 2.0, True, np.nan, np.inf, [3], np.array([3]), least - 1]
    bad += [-(2**70), 2**70, np.float32(3)]
    return [*bad, most + 1] if most is not None else bad


def between(low: float, high: float) -> list[Any]:
    bad = [*NOT_NUMBER, low, np.nan, -np.inf, low - 1, 10**400, np.inf]
    return [*bad, high, high + 1] if np.isfinite(high) else bad


RECORDS = (
    "AttentionStats", "Certificate", "Compressed", "CompressedHeads",
    "FaceWitness", "FarkasWitness", "Fit", "Head", "HeadTable", "Method", "Plan", "PlanAttempt",
    "PlanTrend", "Problem", "RopeFilter", "Search", "ShrinkResult", "Comparison",
    "SelectionCertificate", "Sparsified", "ModelTable", "sweep.Sweep", "Trial", "TvCurve",
    "bounds.GeneralBound", "bounds.LowerBound",
    "torch.CapturedHeads", "torch.CapturedLayer",
    "torch.FittedAttention", "torch.SmallerHeads",
)  # fmt: skip
"""What functions return, and what `fit` and methods hand each other: nobody makes one by hand."""


@dataclasses.dataclass(frozen=True)
class Door:
    """A public callable, arguments that it takes, and the bad values of each parameter."""

    name: str
    call: Callable[..., Any]
    good: dict[str, Any]
    bad: dict[str, list[Any]]
    says: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: a door, a parameter and the bad value's place in its list."""

    door: Door
    parameter: str
    index: int

    @property
    def value(self) -> Any:
        return self.door.bad[self.parameter][self.index]

    def __str__(self) -> str:
        try:
            shown = repr(self.value).replace("\n", " ")[:70]
        except RuntimeError:
            shown = "Unusable()"
        return f"{self.door.name}({self.parameter}={shown})"


def optional(values: list[Any]) -> list[Any]:
    """Return the bad values of a parameter that may be None."""
    return [v for v in values if v is not None]


def without(values: list[Any], *valid: Any) -> list[Any]:
    """Return the bad values except those that this parameter accepts, told by type and repr."""
    keys = {(type(v), repr(v)) for v in valid}
    return [v for v in values if isinstance(v, Unusable) or (type(v), repr(v)) not in keys]


def columns_of() -> list[Any]:
    """Return values that are neither None, "auto" nor numbers of columns."""
    return optional([*NOT_ARRAY, [N], [-1], [0.5], [[0]], "x", True, 1.5])


def doors(folder: Path) -> Iterator[Door]:
    """Yield every public function, constructor and method that takes arguments of users."""
    import headfit as hf

    rng = np.random.default_rng(0)
    A = hf.patterns.band(N, 1)
    Q, K, V = rng.standard_normal((3, N, DIM))
    whole = hf.Attention(Q, K)
    loose = {"leak": 0.3, "distortion": 1.0}
    head = hf.fit(A, DIM, **loose)
    searched = hf.fit(A, time_limit=1, **loose)
    table = hf.methods.KeyTable.random(N, 4, rng=0)
    failing = hf.fit(
        A, 2, method=hf.methods.MaxMargin(keys=hf.methods.KeyTable.random(N, 2, rng=0))
    )
    files = bad_files(folder)
    threads = optional(counts(1, 2**15))
    target = [*without(BAD_MATRIX, sp.eye_array(N)), *spoilt_sparse(), *files, head, table]
    target += [np.ones((N, N + 1)), -np.eye(N), np.eye(N) * 2, sp.eye_array(N) * 1j, N, True]
    masks = [*NOT_MASK, *spoilt_sparse(bool)]
    tolerances = {
        "leak": optional(between(0, 1)), "distortion": optional(without(between(0, np.inf), 0)),
        "tolerances": [0.1, "x", (0.05, 0.1), {"leak": 0.1}, Unusable(), True, hf.Tolerances],
    }  # fmt: skip
    of_logits = optional(between(0, np.inf))
    yield Door("Tolerances", hf.Tolerances, {}, {
        "leak": between(0, 1), "distortion": without(between(0, np.inf), 0),
        "max_logit": of_logits,
    })  # fmt: skip
    # NumPy's other names of a dtype, such as "f4", are taken.
    dtypes: list[Any] = ["int8", "", np.int32, np.complex64, *NOT_TEXT]
    texts = ["", "Learned", "x", *NOT_TEXT]
    vectors = optional([*NOT_ARRAY, [0.5], [N], [-1 - N], [[0]], [True], N, 0.5, ragged()])
    logits = {
        "scale": optional([*NOT_NUMBER, 0, np.inf, 10**400]),
        "mask": masks,
        "key_lengths": optional([*NOT_ARRAY, -1, N + 1, 1.5, [1, 2], True]),
        "bias": optional([*without(NOT_ARRAY, np.nan), np.ones((N + 1, N)), np.ones((2, N, N))]),
        "softcap": optional(between(0, np.inf)),
        "key_mask": optional([
            *NOT_ARRAY, *ODD_MASKS, True, 1, [1.0] * N, [2] + [1] * (N - 1), [1] * (N + 1)]),
        "sinks": optional([*NOT_ARRAY, np.inf, [0.0, 1.0], [[0.0]], [np.nan]]),
        "position": [
            "rotary", "", 5, True, ("rope",), ("rope", 1), ("rope", "x"), ("rope", np.nan),
            ("rope", np.inf), ("rope", True), ("rope", [1.0]), ("alibi", "x"), ("alibi", np.nan),
            ("alibi", [1, 2]), ("alibi", ragged()), (),
            *((kind, value) for kind in ("rope", "alibi") for value in (*MISREAD, *MISREAD_ARRAYS)),
            {"a": 1}, Unusable(), Untrue(), "rope", "rope-half",
        ],
        "num_threads": threads,
    }  # fmt: skip
    heads = {"Q": [*BAD_MATRIX, np.ones((N, DIM + 1))], "K": [*BAD_MATRIX, np.ones((N, 0))]}
    says = {"K": "Q and K|K", "Q": "Q and K|Q", "position": "position|rope|alibi"}
    good = {"Q": Q, "K": K}
    rows = {"rows": [*vectors, slice("a"), slice(0, 1, 0), slice(1.5)]}
    outs: list[Any] = [0, "x", np.empty((N, N), np.float32), np.empty((N, 1)), [[0.0] * N] * N]
    outs += [np.empty((N, N), order="F"), np.empty((N + 1, N)), Unusable()]
    for name in ("attention_matrix", "attention_logits"):
        # Without a sparse mask there is no sparse answer.
        bad = {**heads, **logits, **rows, "out": outs, "sparse": [*NOT_FLAG, True]}
        if name == "attention_logits":
            del bad["sinks"]  # they belong to the softmax
        yield Door(name, getattr(hf, name), good, bad, says)
    top = {**heads, **logits, "k": [*counts(1, N), None], "renormalize": NOT_FLAG}
    top["values"] = texts
    no_client = ["tcp://127.0.0.1:8786", *JUNK, 5, True, [], np.eye(2)]
    by_workers = {"client": no_client, "progress": [*NOT_FLAG, True]}  # progress needs a client
    top |= by_workers
    yield Door("attention_topk", hf.attention_topk, {**good, "k": 2}, top, says)
    applied = {**heads, **logits, **rows, "V": [*BAD_MATRIX, np.ones((N + 1, 2))]}
    yield Door("attention_apply", hf.attention_apply, {**good, "V": V}, applied, says)
    shares = [*without(NOT_ARRAY, []), 0, 1.5, -1, [0.5, 2], [[0.5]], True, [True], np.nan]
    stats = {**heads, **logits, "shares": shares}
    yield Door("attention_stats", hf.attention_stats, good, stats, says)
    described = {
        **heads, **logits, "shares": shares, "share": [*between(0, 1)[:-2], 2],
        "tokens": optional([*NOT_ARRAY, [1.0] * N, [1] * (N + 1)]),
        "per_row": [*without(counts(1), 2**70), None],
        "per_column": optional(counts(1)),
    }  # fmt: skip
    described["K"] = [*described["K"]]
    yield Door("describe", hf.describe, good, described, {**says, "K": "K"})
    attention = {**heads, **logits}
    attention.pop("num_threads", None)
    yield Door("Attention", hf.Attention, good, attention, says)
    measured = hf.describe(Q[None], K[None])
    places = [None, "x", 1, -1, 1.5, True, [0], slice(1), np.array([0]), Unusable(), 2**70]
    yield Door("HeadTable.statement", lambda head: measured.statement(head), {}, {"head": places})
    yield Door("Attention.matrix", whole.matrix, {}, {
        **rows, "out": outs, "sparse": [*NOT_FLAG, True], "num_threads": threads,
    })  # fmt: skip
    yield Door("Attention.logits", whole.logits, {}, {
        **rows, "sparse": [*NOT_FLAG, True], "num_threads": threads,
    })  # fmt: skip
    of_top = {"k": top["k"], "values": texts, "renormalize": NOT_FLAG, "num_threads": threads}
    of_top |= by_workers
    yield Door("Attention.topk", whole.topk, {"k": 2}, of_top)
    yield Door("Attention.stats", whole.stats, {}, {"shares": shares, "num_threads": threads})
    yield Door("Attention.apply", whole.apply, {"V": V}, {"V": applied["V"]})

    yield Door("Target", hf.Target, {"A": A}, {
        "A": target, "mask": masks, "normalize": NOT_FLAG, "num_threads": threads,
        "sum_tolerance": optional([*NOT_NUMBER, -1, np.inf, np.nan]),
    })  # fmt: skip
    yield Door("load", hf.load, {}, {"path": [*NOT_PATH, *files]})
    yield Door("ModelTable.load", hf.results.ModelTable.load, {}, {"path": [*NOT_PATH, *files]})
    unfit = [folder / "x", folder / "x.npy", folder / "x.npz.gz", folder / "no folder" / "x.npz"]
    unfit += [folder, Path("/proc/x.npz"), folder / "pipe.npz"]
    unfit += [folder / "no folder" / "x.safetensors", Path("/proc/x.safetensors")]
    yield Door("Fit.save", head.save, {}, {"path": [*NOT_PATH, *unfit]})

    kernels = [
        *texts,
        {"a": 1},
        {"logits": "x"},
        {"name": "eager-float16"},
        {5: 6},
        hf.Kernel,
        "eager-float64",
    ]
    judged = {
        "A": target, "Q": optional([*BAD_MATRIX, np.ones((N, DIM + 1)), np.ones((N + 1, DIM))]),
        "K": [*BAD_MATRIX, np.ones((N, DIM + 1))], "scale": logits["scale"], "mask": masks,
        **tolerances, "max_logit": of_logits, "kernel": kernels,
        "certificate_mass": NOT_FLAG,
        "num_threads": threads, **by_workers,
    }  # fmt: skip
    yield Door("certify", hf.certify, {"A": A, **good, "leak": 0.3}, judged, says)
    small = [*BAD_MATRIX, np.ones((N, 1)), np.ones((N + 1, 2)), np.full((N, 2), 0.1)]
    selected = {
        **heads, **logits, "Q_index": small, "K_index": small, "keys": counts(4),
        "window": counts(1), "first": counts(0), "mass": between(0, 1), "columns": NOT_FLAG,
        "form": texts, "kernel": kernels,
    }  # fmt: skip
    del selected["bias"], selected["position"]
    asked = {**good, "Q_index": np.eye(N, 2), "K_index": np.eye(N, 2), "keys": 4, "window": 2}
    asked["first"] = 1
    yield Door("certify_selection", hf.certify_selection, asked, selected, {
        **says, "window": "window|keys", "first": "first|keys",
    })  # fmt: skip
    of_matrix = [x for x in BAD_MATRIX if x is not None and not sp.issparse(x)]
    of_matrix += [np.ones((N, DIM)), -np.eye(N), np.full((N, N), np.inf)]
    of_matrix += [sp.csr_array(-np.eye(N)), sp.eye_array(N + 1)]
    roundings = optional(texts)
    yield Door("Kernel", hf.Kernel, {}, {
        "accumulate": texts, "scale": texts, "fused": NOT_FLAG, "operands": roundings,
        "sum_bits": between(2, 24),
        "product": roundings, "logits": roundings, "bias": roundings, "weights": roundings,
        "scale_dtype": roundings,
    })  # fmt: skip
    yield Door("Kernel.named", hf.Kernel.named, {"name": "flash-bfloat16"}, {
        "name": texts, "weights": NOT_FLAG,
    }, {"name": "kernel"})  # fmt: skip
    yield Door("certify(matrix)", hf.certify, {"A": A}, {"matrix": of_matrix})
    pairs: list[Any] = ["ab", 5, (Q,), (Q, K, V), (Q, None), (Q, "x"), ragged(), (Q, K[:, :0])]
    pairs += [(Q, np.full_like(K, np.nan)), {"a": 1}, Unusable(), (ragged(), K), True]
    calls = [5, "x", True, [], Unusable()]
    modules = [5, "x", True, whole, np.eye(3), Unusable(), hf.SelfAttention]
    fitted = {
        "A": target, "dim": optional(counts(1)), "method": [*texts, hf.methods.Learned, object()],
        "module": modules, "dtype": optional(dtypes), **tolerances, "scale": logits["scale"],
        "mask": masks, "max_logit": of_logits, "kernel": optional(kernels),
        "time_limit": optional(between(0, np.inf)), "exempt_columns": columns_of(),
        "progress": NOT_FLAG, "rng": NOT_SEED, "strict": NOT_FLAG,
        "certificate_mass": NOT_FLAG, "num_threads": threads, "client": no_client,
    }  # fmt: skip
    keyed = [*without(BAD_MATRIX, "x"), "x", np.ones((N, 0))]
    efforts = [*counts(1, 10**9), "max", None]
    norms = optional(between(0, np.inf))
    fitted["distortion"] = [*tolerances["distortion"], 0]
    yield Door("Learned", hf.methods.Learned, {}, {
        "effort": efforts, "init": pairs, "callback": calls, "max_norm": norms,
        "reheats": [*counts(0, 10**9), None], "stages": [*counts(1, 100), None],
    })  # fmt: skip
    yield Door(
        "MaxMargin", hf.methods.MaxMargin, {}, {"keys": keyed, "form": texts, "max_norm": norms}
    )
    turning = [5, "x", [], [0.0], [4.0], [-1.0], [[1.0]], [np.nan], [2j], [True], Unusable()]
    turning += [*MISREAD, *MISREAD_ARRAYS]
    yield Door("Toeplitz", hf.methods.Toeplitz, {}, {"frequencies": turning, "max_norm": norms})
    yield Door("Mixed", hf.methods.Mixed, {}, {"filter_dim": [*optional(counts(2)), 3]})
    yield Door("Projection", hf.methods.Projection, {}, {"sketch": texts, "factor": texts})
    yield Door("fit", hf.fit, {"A": A, "dim": DIM, **loose}, fitted)

    no_patterns = [v for v in target if not (callable(v) and v is not object)]
    yield Door("plan", hf.plan, {"pattern": A, "dim": DIM, "time_limit": 1, **loose}, {
        **{name: fitted[name] for name in ("method", "dtype", "mask", "max_logit", "rng")},
        **{name: fitted[name] for name in ("kernel", "leak", "distortion", "tolerances")},
        "pattern": [*no_patterns, lambda: 1, lambda n: 1, lambda n: A[:-1], hf.patterns.band],
        "n": [*optional(counts(1)), N + 1], "dim": [*counts(1), None], "num_threads": threads,
        "time_limit": between(0, np.inf), "progress": NOT_FLAG,
    }, {"n": "n must|n = "})  # fmt: skip

    def by_keys(keys: Any, dim: Any) -> Any:
        return hf.fit(A, dim, method=hf.methods.MaxMargin(keys=keys), **loose)

    yield Door("fit(max-margin)", by_keys, {"keys": "random", "dim": 4}, {
        "keys": [*keyed, np.ones((N + 1, 4)), np.ones((N, 4))[:, :3]], "dim": fitted["dim"],
    }, {"keys": "keys"})  # fmt: skip
    learned = lambda init: hf.fit(A, DIM, method=hf.methods.Learned(init=init), **loose)  # noqa: E731
    starts = [np.ones((2, N + 1, DIM)), np.ones((2, N, DIM + 1))]
    yield Door("fit(init)", learned, {}, {"init": starts})
    M = whole.matrix()
    dense = [*without(BAD_MATRIX, None), A.toarray() * 3, M[:, :2] * 9, None]
    yield Door("compare", hf.compare, {"target": M, "attention": whole}, {
        "target": dense, "attention": [None, Q, 5, A, "x", Unusable()], "mask": masks,
        "num_threads": threads,
    })  # fmt: skip
    close = {
        **heads, "tv": optional(between(0, 1)), "tv_worst": optional(between(0, 1)),
        "mask": masks, "scale": logits["scale"], "dtype": dtypes,
        "effort": [*counts(0, 10**9), "max", None], "time_limit": fitted["time_limit"],
        "rng": NOT_SEED,
        "curve_dims": optional([5, "x", ["x"], [0], [DIM + 1], [1.5], True, Unusable(),
                               *MISREAD, *MISREAD_ARRAYS]),
        "num_threads": threads,
    }  # fmt: skip
    quick = {**good, "effort": 1, "curve_dims": ()}
    says_shrink = {**says, "tv": "tv", "K": "K|Q and K|the target"}
    yield Door("shrink", hf.shrink, quick, {**close, "callback": calls}, says_shrink)
    sized = {"dim": optional(counts(1, N)), "module": modules}
    yield Door("shrink(dim)", hf.shrink, {**quick, "dim": 2}, sized)
    of_dense = {"Q": dense, "mask": masks, "scale": [1.0]}
    yield Door("shrink(matrix)", hf.shrink, {"Q": M, "dim": 2}, of_dense, {"Q": "Q|the target"})
    yield from compress_doors(hf, {**close, **logits, "callback": calls}, folder)
    yield from cache_doors(hf, {**close, **logits, "callback": calls}, folder)
    yield from index_doors(hf, {**close, **logits, "callback": calls, "texts": texts}, folder)
    columns = columns_of()
    sparse = {
        "mask": masks, "per_row": optional(without(counts(1), 2**70)),
        "per_column": optional(counts(1)), "exempt_columns": columns, "method": texts,
        "mass": optional([*between(0, 1)[:-2], 1.5]),
        "on_empty": texts, "num_threads": threads,
    }  # fmt: skip
    bare = [*without(BAD_MATRIX, None, sp.eye_array(N), []), *spoilt_sparse(), -M, M * np.nan]
    bare = [v for v in bare if not (isinstance(v, np.ndarray) and v.shape == (N, DIM))]
    bare = [v for v in bare if not sp.issparse(v) or v.shape != (N, N)]
    sparsify = {"M": M, "per_row": 2}
    yield Door("sparsify", hf.sparsify, sparsify, {"M": [*bare, *spoilt_sparse()], **sparse}, {
        "M": "M|matrix",
    })  # fmt: skip
    both = {"M": [*optional(heads["Q"]), *heads["K"][-1:]], "K": optional(heads["K"]), **logits}
    queries = {"M": Q, "K": K, "per_row": 2}
    yield Door("sparsify(Q, K)", hf.sparsify, queries, both, {**says, "M": "M|Q"})
    appended = {"A": A, "head": whole, "columns": [0]}
    yield Door("append_dims", hf.methods.append_dims, appended, {
        "A": target, "head": [None, Q, 5, "x", A, Unusable()], "columns": [*columns, None],
        "leak": tolerances["leak"], "max_logit": of_logits, "scale": logits["scale"],
        "tolerances": tolerances["tolerances"],
    })  # fmt: skip

    turned = {"pattern": 2, "n": N, "dim": 4, "leak": 0.3, "distortion": 1.0}
    inv_freq: list[Any] = [*optional(NOT_ARRAY), [], [[0.5]], [-1.0], [np.inf], 0.5, True]
    widths = [0, -1, N + 1, 1.5, 2**70, Untrue(), A, "x", None, True, Unusable()]
    of_rope = {
        "dim": [*optional(counts(2, 2**15)), 3], "base": optional(between(1, np.inf)),
        "causal": NOT_FLAG, "max_norm": optional(between(0, np.inf)), "max_logit": of_logits,
        "leak": tolerances["leak"], "distortion": [*tolerances["distortion"], 0, 1e-6],
        "tolerances": tolerances["tolerances"],
    }  # fmt: skip
    yield Door("rope.filter", hf.rope.filter, turned, {
        **of_rope, "pattern": widths, "n": [*counts(1, 2**24), None, 1], "inv_freq": inv_freq,
        "mask": [*masks, "causal"],
    }, {"pattern": "pattern|A", "n": r"\bn\b|width"})  # fmt: skip
    no_list: list[Any] = [None, 5, "x", [0], ["x"], [True], Unusable(), [2, None], 2j]
    no_list += [*MISREAD, *MISREAD_ARRAYS]
    loosely = {"pattern": A, "dim": 4, **loose}
    yield Door("rope.filter(A)", hf.rope.filter, loosely, {
        "pattern": [*without(target, N), 0, 2], "mask": masks, "n": [N], "causal": [False],
    }, {"pattern": "pattern|A|n must", "n": r"\bn\b"})  # fmt: skip
    yield Door("rope.windows", hf.rope.windows, {"widths": [2], "n": N, "dims": [4]}, {
        "widths": [*no_list, [N + 1], [2.5]], "n": counts(1, 2**24), "causal": NOT_FLAG,
        "dims": [*no_list, [3], [2**16]], "bases": [*no_list, [1], [np.nan]],
        "tolerances": [0.1, "x", [0.05], Unusable(), True], "max_norm": of_rope["max_norm"],
    }, {"dims": "dims?", "bases": "bases?", "widths": "width"})  # fmt: skip
    sharp = hf.rope.filter(**turned)
    yield Door("RopeFilter.attention", sharp.attention, {}, {
        "n": optional(counts(1, N)), "dtype": [*dtypes, "bfloat16"],
    })  # fmt: skip
    yield Door("RopeFilter.rounding", sharp.rounding, {}, {"dtype": dtypes})

    yield Door("KeyTable", hf.methods.KeyTable, {"keys": Q}, {
        "keys": [*BAD_MATRIX, np.full((N, 2), np.nan), np.ones((N, 0))], "kind": NOT_TEXT,
    })  # fmt: skip
    sizes = {"n": [*counts(1, 2**31 - 1), None], "dim": [*counts(1), 2**40, None]}
    keyed_dtypes = [*without(dtypes, None), "bfloat16", "float16", None]
    with_torch: list[Any] = []
    try:
        import torch

        with_torch = [torch.bfloat16, torch.float32]
    except ImportError:
        pass
    for name in ("random", "cyclic"):
        bad = {**sizes, "dtype": [*keyed_dtypes, *with_torch]}
        bad |= {"rng": NOT_SEED} if name == "random" else {}
        yield Door(f"KeyTable.{name}", getattr(hf.methods.KeyTable, name), {"n": 8, "dim": 4}, bad)
    weights = [*BAD_MATRIX, np.ones((4, 0)), np.full((4, 2), np.inf)]
    W = rng.standard_normal((2, 4, 2))
    yield Door("SelfAttention", hf.SelfAttention, {"W_Q": W[0], "W_K": W[1]}, {
        "W_Q": weights, "W_K": weights, "scale": logits["scale"],
    })  # fmt: skip
    canonical = {"dim": [*counts(1), None], "scale": logits["scale"]}
    canonical["dtype"] = [*keyed_dtypes, *with_torch]
    yield Door("SelfAttention.canonical", hf.SelfAttention.canonical, {"dim": 2}, canonical)
    huge = lambda dim: hf.SelfAttention.canonical(dim).weights  # noqa: E731
    yield Door("SelfAttention.weights", huge, {}, {"dim": [2**20, 2**40]})
    module = hf.SelfAttention(*W)
    inputs = [*BAD_MATRIX, np.ones((N, 5)), np.full((N, 4), np.nan)]
    yield Door("SelfAttention()", module.__call__, {"X": np.ones((N, 4))}, {
        "X": inputs, "mask": masks,
    })  # fmt: skip
    halves = [*BAD_MATRIX, np.ones((N, 5)), np.full((N, 2), np.nan)]
    pair = {"Q": np.ones((N, 2)), "K": np.ones((N, 2))}
    yield Door("SelfAttention.input_for", module.input_for, pair, {"Q": halves, "K": halves})
    rotated = {"dim": sizes["dim"], "rng": NOT_SEED, "dtype": canonical["dtype"]}
    yield Door("SelfAttention.random", hf.SelfAttention.random, {"dim": 2}, rotated)

    for witness in failing.witnesses or ():
        keys = hf.methods.KeyTable.random(N, 2, rng=failing.settings["seed"]).keys
        bad = {"A": target, "K": [*BAD_MATRIX, np.ones((N + 1, 2))], "mask": masks}
        name = f"{type(witness).__name__}.verify"
        yield Door(name, witness.verify, {"A": A, "K": keys}, bad)
    bound = hf.bounds.lower(A)
    yield Door("LowerBound.verify", bound.verify, {}, {"A": target})
    yield Door("bounds.lower", hf.bounds.lower, {"A": A, "time_limit": 0.5}, {
        "A": target, **tolerances, "mask": masks, "rng": NOT_SEED,
        "time_limit": between(0, np.inf),
        "max_norm": of_logits, "max_logit": of_logits,
        "masked_logits": [*NOT_FLAG, True],  # True needs a max_logit
    })  # fmt: skip
    few = {"n": [*counts(1), None], "k": [*counts(1), None]}
    gamma = [*NOT_NUMBER, 0, 0.5, np.nan]
    yield Door("bounds.projection_dim", hf.bounds.projection_dim, {"n": 64, "k": 4}, {
        **few, "gamma": gamma, **tolerances, "failure": [*NOT_NUMBER, 0, 1.5],
        "tolerances": [*tolerances["tolerances"], hf.Tolerances(max_logit=9.0)],
        "distortion": [*tolerances["distortion"], 0],
    })  # fmt: skip
    yield Door("bounds.logit_range", hf.bounds.logit_range, {"gamma": 2.0}, {
        "gamma": gamma, **tolerances,
    })  # fmt: skip
    stray = {"n": 64, "k": 4}
    stray_leak = {**stray, "leak": 0.1}
    yield Door("bounds.stray_for_leak", hf.bounds.stray_for_leak, stray_leak, {
        **few, "leak": between(0, 1),
    })  # fmt: skip
    leak_stray = {**stray, "stray": 0.1}
    yield Door("bounds.leak_for_stray", hf.bounds.leak_for_stray, leak_stray, {
        **few, "stray": between(0, 1),
    })  # fmt: skip
    for name in ("counting", "every_subset", "random_keys_dim"):
        call = getattr(hf.bounds, name)
        taken = inspect.signature(call).parameters
        known = {**few, **tolerances, "gamma": gamma, "failure": [*NOT_NUMBER, 0, 1.5]}
        known["all_subsets"] = NOT_FLAG
        known.update(max_norm=of_logits, max_logit=of_logits)
        known["exceptions"] = optional([*NOT_NUMBER, 0, 1.5])
        bad = {p: known[p] for p in taken if p in known}
        yield Door(f"bounds.{name}", call, {p: v for p, v in stray.items() if p in taken}, bad)

    yield from pattern_doors(hf.patterns, files)
    yield from plot_doors(hf, A, whole, head, searched, masks, target)
    yield from sweep_doors(hf, threads, folder)
    yield from command_doors(folder)
    if with_torch:
        yield from torch_doors(head, threads, logits["scale"])
        measures = {name: described[name] for name in ("per_row", "per_column", "share", "shares")}
        yield from model_doors({**measures, "num_threads": threads}, folder)


def compress_doors(hf: Any, known: dict[str, list[Any]], folder: Path) -> Iterator[Door]:
    """Yield the functions that compress heads, and the methods of their results.

    `known` has the bad values of the arguments that they share with other functions.
    """
    Q, K = np.random.default_rng(0).standard_normal((2, 4, N, DIM))
    passages = list(zip(Q, K, strict=True))
    quick = {"passages": passages, "effort": 1, "curve_dims": ()}
    no_passages: list[Any] = [*NOT_ARRAY, [], passages[:1], [passages[0], "x"], [(Q[0],)] * 4]
    no_passages += [[passages[0], (Q[0], K[0][:, :2])], [(Q[0], None)] * 4, [Unusable()] * 4]
    no_passages += [[passages[0], (Q[0, :, :2], K[0, :, :2])], [(Q[:2], K[:2])] * 4, Q, passages[0]]
    no_passages += [[passages[0], (Q[0] * np.nan, K[0])], hf.Attention(Q[0], K[0])]
    shared = {
        **{name: known[name] for name in ("scale", "mask", "bias", "softcap", "position")},
        "key_mask": known["key_mask"],
        **{name: known[name] for name in ("dtype", "effort", "time_limit", "callback", "rng")},
        "num_threads": known["num_threads"], "tv": known["tv"],
        "dim": optional(counts(1, DIM)), "held_out": between(0, 1),
        "validation": [*without(NOT_NUMBER, None), None, -0.1, 1, 1.5, np.inf, 10**400],
    }  # fmt: skip
    says = {"passages": "passages?|Q|K", "position": "position|rope|alibi"}
    yield Door("compress", hf.compress, quick, {
        **shared, "passages": no_passages, "key_lengths": known["key_lengths"],
        "sinks": known["sinks"],
        "curve_dims": known["curve_dims"], "rotated": ROTATED,
        "length": [*optional(counts(N)), 2 * N],  # without positions to move
    }, {**says, "rotated": "rotated|rope"})  # fmt: skip
    even = [(np.pad(q, [(0, 0), (0, 1)]), np.pad(k, [(0, 0), (0, 1)])) for q, k in passages]
    yield Door("compress(position)", hf.compress, {**quick, "passages": even, "position": "rope"}, {
        "length": optional(counts(N)), "rotated": [*ROTATED, "rope"],
    }, {"rotated": "rotated|rope"})  # fmt: skip
    stacks = [*BAD_MATRIX, K[:3], K[:, :, :2], K[0], K[None, None], K * np.nan]
    yield Door("compress(Q, K)", hf.compress, {**quick, "passages": Q, "K": K}, {
        "passages": stacks, "K": stacks,
    }, {**says, "K": "K"})  # fmt: skip
    both = {**quick, "dim": 2}
    yield Door("compress(dim)", hf.compress, both, {"tv": [0.1, "x", Unusable()]})
    no_heads: list[Any] = [{}, {1, 2}]
    no_heads += [{"a": bad} for bad in (None, "x", [], passages[:1], Unusable())]
    many = {"passages": {"a": passages, "b": passages}, "effort": 1}
    for name, given in {"dim": 2, "tv": 0.3}.items():
        if name == "dim":
            tried = {key: values for key, values in shared.items() if key != "tv"}
            tried |= {"dim": [x for x in tried["dim"] if x is not None], "tv": [0.1, "x"]}
            tried["passages"] = no_heads
        else:
            tried = {"tv": shared["tv"], "dim": [2, "x"]}
        yield Door(f"compress({name} of heads)", hf.compress, {**many, name: given}, tried, says)
    of_sizes = [hf.compress(**many, dim=dim) for dim in (1, 2)]
    other = hf.compress({"a": passages}, dim=1, effort=1)
    costs = [{"a": bad, "b": 1} for bad in (*NOT_NUMBER, np.nan, np.inf)]
    yield Door("spend", hf.spend, {"results": of_sizes, "size": 1.5}, {
        "results": [*NOT_ARRAY, [], [of_sizes[0], other], [*of_sizes, "x"], of_sizes[0], [3]],
        "size": [*without(NOT_NUMBER, None), None, 0, 0.9, np.nan, np.inf],
        "costs": [*without(JUNK, None), {}, {"a": 1}, {"a": 1, "c": 1}, *costs],
    })  # fmt: skip
    small = hf.compress(passages, dim=2, effort=1, curve_dims=())
    options = {name: known[name] for name in ("mask", "key_lengths", "bias", "softcap", "position")}
    heads = [*BAD_MATRIX, np.ones((N, DIM + 1)), np.ones((2, N, DIM))]
    yield Door("Compressed.apply", small.apply, {"Q": Q[0], "K": K[0]}, {
        **options, "Q": heads, "K": heads, "scale": [1.0, None, "x", Unusable()],
    }, {**says, "Q": "Q", "K": "Q and K|K"})  # fmt: skip
    weights = [*optional(BAD_MATRIX), np.ones((4, DIM + 1)), np.ones((2, 4, DIM))]
    weights = [w for w in weights if getattr(w, "shape", None) != (N, DIM) or w.dtype.kind != "f"]
    bad = {"W_Q": weights, "W_K": weights}
    yield Door("Compressed.tensors", small.tensors, {}, bad)
    unfit = [folder / "x", folder / "x.npz", folder, folder / "no folder" / "x.safetensors"]
    made = {"path": folder / "made.safetensors"}
    paths = [*NOT_PATH, *unfit, Path("/proc/x.safetensors")]
    yield Door("Compressed.save", small.save, made, {"path": paths, **bad})


def cache_doors(hf: Any, known: dict[str, list[Any]], folder: Path) -> Iterator[Door]:
    """Yield `compress_keys` and `compress_values`, and the methods of their results."""
    Q, K = np.random.default_rng(0).standard_normal((2, 4, 2, N, 4))
    passages = list(zip(Q, K, strict=True))
    quick = {"layers": {"a": passages}, "effort": 1}
    no_passages: list[Any] = [*NOT_ARRAY, [], [passages[0], "x"], [(Q[0],)] * 4, passages[0]]
    no_passages += [[passages[0], (Q[0], K[0][:, :, :2])], [(Q[0], None)] * 4, [Unusable()] * 4]
    no_passages += [[passages[0], (Q[0], K[0, :1])], [(Q[None, 0], K[None, 0])] * 2]
    no_passages += [[passages[0], (Q[0] * np.nan, K[0])], hf.Attention(Q[0], K[0])]
    no_layers = [*NOT_ARRAY, {}, {1, 2}, passages, *({"a": bad} for bad in no_passages)]
    yield Door("compress_keys", hf.compress_keys, quick, {
        **{name: known[name] for name in ("effort", "callback", "rng", "num_threads")},
        "layers": no_layers, "held_out": between(0, 1),
        "validation": [*without(NOT_NUMBER, None), None, -0.1, 1, 1.5, np.inf, 10**400],
        "bytes": [*without(NOT_NUMBER, None), -1, 0, 1.4, np.inf],
        "rank": optional(counts(1, 8)), "bits": optional(counts(1, 8)),
        "rotated": ROTATED, "step": [*JUNK, None, 0, 2.5, True, ["token"]],
        "length": [*optional(counts(N)), 2 * N],  # without positions to move
    }, {"layers": "layers?|passages?|Q|K", "rotated": "rotated|rope"})  # fmt: skip
    small = hf.compress_keys(quick["layers"], effort=0, rotated="rope")["a"]
    options = {name: known[name] for name in ("mask", "softcap")}
    # What would fit two heads is left out.
    options["key_lengths"] = without(known["key_lengths"], [1, 2])
    options["bias"] = [x for x in known["bias"] if getattr(x, "shape", None) != (2, N, N)]
    options["position"] = without(known["position"], ("alibi", [1, 2]), "rope")
    others = [*BAD_MATRIX, np.ones((2, N, 5)), np.ones((3, N, 4))]
    yield Door("CompressedKeys.apply", small.apply, {"Q": Q[0], "K": K[0]}, {
        **options, "Q": others, "K": others,
    }, {"Q": "Q", "K": "Q and K|K", "position": "position|rope|alibi"})  # fmt: skip
    firsts = without(counts(0), 2**70)
    yield Door("CompressedKeys.store", small.store, {"states": K[0]}, {
        "states": others, "first": firsts,
    })  # fmt: skip
    stored = small.store(K[0])
    bad: list[Any] = [None, *JUNK, stored[:, :1], stored[0], stored.astype(int), stored.tolist()]
    yield Door("CompressedKeys.read", small.read, {"stored": stored}, {
        "stored": bad, "first": firsts,
    })  # fmt: skip
    weights = [*optional(BAD_MATRIX), np.ones((4, 9)), np.ones((2, 4, 8))]
    yield Door("CompressedKeys.tensors", small.tensors, {}, {"weights": weights})
    paths = [*NOT_PATH, folder / "x", folder, folder / "no folder" / "x.npz", Path("/proc/x.npz")]
    made = {"path": folder / "made.safetensors"}
    yield Door("CompressedKeys.save", small.save, made, {"path": paths, "weights": weights})
    V = np.random.default_rng(1).standard_normal((4, 2, N, 3))
    pairs = [(passage, v) for passage, v in zip(passages, V, strict=True)]
    no_pairs: list[Any] = [*NOT_ARRAY, [], passages[0], [pairs[0], "x"], [passages[0]]]
    no_pairs += [[(passages[0],)], [(passages[0], V[0], V[0])], [(V[0], V[0])], [(None, V[0])]]
    no_values = [*BAD_MATRIX, V[0][:1], V[0][0], V[0][:, :2], V[0][..., :0], V[0] * np.nan]
    no_pairs += [[pairs[0], (passages[1], bad)] for bad in [*no_values, V[0][..., :2]]]
    given = {"layers": {"a": pairs}}
    yield Door("compress_values", hf.compress_values, given, {
        **{name: known[name] for name in ("rng", "num_threads")},
        "layers": [*NOT_ARRAY, {}, {1, 2}, pairs, *({"a": bad} for bad in no_pairs)],
        "held_out": between(0, 1), "bytes": [*without(NOT_NUMBER, None), -1, 0, 1.4, np.inf],
        "rank": optional(counts(1, 6)), "bits": optional(counts(1, 8)),
    }, {"layers": "layers?|passages?|Q|K|V"})  # fmt: skip
    values = hf.compress_values(given["layers"])["a"]
    yield Door("CompressedValues.store", values.store, {"states": V[0]}, {
        "states": [*BAD_MATRIX, V[0][:1], V[0][..., :2]], "first": firsts,
    })  # fmt: skip


def index_doors(hf: Any, known: dict[str, list[Any]], folder: Path) -> Iterator[Door]:
    """Yield `index`, and the methods of its result."""
    Q, K = np.random.default_rng(0).standard_normal((2, 4, N, 4))
    passages = list(zip(Q, K, strict=True))
    quick = {"passages": passages, "dim": 2, "keys": 4, "window": 1, "first": 1, "effort": 1}
    no_passages: list[Any] = [*NOT_ARRAY, [], [passages[0], "x"], [(Q[0],)] * 4, {}, {"a": []}]
    no_passages += [[passages[0], (Q[0], K[0][:, :2])], [(Q[0], None)] * 4, [Unusable()] * 4]
    no_passages += [[passages[0], (Q[0, :, :2], K[0, :, :2])], [(Q[:2], K[:2])] * 4, passages[0]]
    no_passages += [[passages[0], (Q[0] * np.nan, K[0])], hf.Attention(Q[0], K[0]), {"a": "x"}]
    says = {"passages": "passages?|Q|K", "rotated": "rotated|rope"}
    yield Door("index", hf.index, quick, {
        **{name: known[name] for name in ("effort", "callback", "rng", "num_threads")},
        "passages": no_passages, "dim": optional(counts(1, 4)), "keys": counts(3),
        "window": counts(1), "first": counts(0), "dtype": known["texts"], "form": known["texts"],
        "rotated": ROTATED, "length": optional(counts(N)), "held_out": between(0, 1),
        "validation": [*without(NOT_NUMBER, None), None, -0.1, 1, 1.5, np.inf, 10**400],
        "curve_dims": [*JUNK, None, (0,), (5,), ["x"]], "curve_dtypes": [*JUNK, 5, ["x"], [None]],
        "curve_keys": [*JUNK, 2, (2,), (7.5,), ["x"]],
    }, says)  # fmt: skip
    by_mass = {name: value for name, value in quick.items() if name != "dim"}
    yield Door("index(mass)", hf.index, by_mass, {"mass": optional(between(0, 1))})
    yield Door("index(dim)", hf.index, {**quick, "dim": 2}, {"mass": [0.5, "x", Unusable()]})
    found = hf.index(**{**quick, "effort": 0})
    others = [*BAD_MATRIX, np.ones((N, 5)), np.ones((2, N, 4))]
    names = ("mask", "key_lengths", "key_mask", "softcap", "sinks", "scale", "position")
    options = {name: known[name] for name in names}
    options |= {"bias": [*known["bias"], 1.0], "num_threads": known["num_threads"]}
    options["position"] = without(known["position"], "rope", "rope-half")
    said = {"Q": "Q", "K": "Q and K|K|key head", "position": "position|rope|alibi"}
    keys = optional(without(counts(3), 2**70))
    for name in ("scores", "select", "apply"):
        yield Door(f"Index.{name}", getattr(found, name), {"Q": Q[0], "K": K[0]}, {
            **options, "Q": others, "K": others, **({} if name == "scores" else {"keys": keys}),
        }, said)  # fmt: skip
    dots = hf.index(**{**quick, "effort": 0, "form": "dot"})
    yield Door("Index.certify", dots.certify, {"Q": Q[0], "K": K[0]}, {
        **options, "Q": others, "K": others, "keys": keys, "mass": between(0, 1),
        "columns": NOT_FLAG, "kernel": ["x", "exact", *optional(NOT_TEXT)],
    }, said)  # fmt: skip
    yield Door("Index.judge", found.judge, {"passages": passages}, {
        "passages": [x for x in no_passages if not isinstance(x, dict)], "keys": keys,
        "num_threads": known["num_threads"],
    }, says)  # fmt: skip
    causal = hf.Attention(Q[0], K[0], mask="causal")
    yield Door("Index.limits", found.limits, {"passage": causal, "num_threads": 1}, {
        "passage": [*NOT_ARRAY, passages, passages[0], hf.Attention(Q[0], K[0])], "keys": keys,
        **{name: known[name] for name in ("time_limit", "rng", "num_threads")},
    }, {"passage": "passages?"})  # fmt: skip
    all_heads = hf.index(**{**quick, "passages": {"a": passages}, "effort": 0})
    yield Door("Indexes.judge", all_heads.judge, {"passages": {"a": passages}}, {
        "passages": [*no_passages, passages, {"b": passages}], "keys": keys,
        "num_threads": known["num_threads"],
    }, says)  # fmt: skip
    layers = hf.index(**{**quick, "passages": {("a", 0): passages}, "effort": 0})
    yield Door("Indexes.sharing", layers.sharing, {"passages": {("a", 0): passages}}, {
        "passages": [*no_passages, passages, {"b": passages}], "keys": keys,
        "num_threads": known["num_threads"],
    }, says)  # fmt: skip
    yield Door("Index.store", found.store, {"K": K[0]}, {"K": others})
    paths = [*NOT_PATH, folder / "x", folder, folder / "no folder" / "x.npz", Path("/proc/x.npz")]
    yield Door("Index.save", found.save, {"path": folder / "made.npz"}, {
        "path": paths, "certificate": optional(NOT_NUMBER),
        "W_Q": optional([*BAD_MATRIX, np.eye(2)]), "W_K": optional([*BAD_MATRIX, np.eye(2)]),
    })  # fmt: skip


def sweep_doors(hf: Any, threads: list[Any], folder: Path) -> Iterator[Door]:
    """Yield sweeps and what reads their tables."""
    table = folder / "sweep.jsonl"
    point = {"pattern": "band", "n": 8, "neighbors": 1, "dim": 6}
    hf.sweep.run([point], table, workers=0, num_threads=1)
    no_tables = [*NOT_PATH, folder, folder / "no folder", folder / "good.npz", Path("/proc/x")]
    yield Door(
        "sweep.grid", hf.sweep.grid, {}, {"axes": [[], (), range(0), np.ones((2, 2)), np.array(1)]}
    )
    yield Door("sweep.run", hf.sweep.run, {"points": [point], "path": table}, {
        "points": [None, *JUNK, [], [None], [5], {"pattern": "band"}, True, [{5: 1}], [{}],
                   [{**point, "n": np.nan}], [{**point, "n": [8]}], [{**point, "x": 1}],
                   *([{**point, "dim": value}] for value in MISREAD),
                   *([{**point, "leak": value}] for value in MISREAD)],
        "path": [*NOT_PATH, folder, folder / "good.npz", Path("/proc/x"),
                 folder / "good.npz" / "x"],
        "function": [5, *JUNK, True, max, hf.Target, lambda n: {}],
        "version": [5, "x", True, [], Unusable()],
        "executor": [5, *JUNK, True], "workers": optional(counts(0, 2**12)),
        "num_threads": threads, "retry_failed": NOT_FLAG,
        "dry_run": NOT_FLAG, "progress": [5, "x", [], b"x", Unusable()],
    }, {"points": "points|pattern|n|x|neighbors|leak"})  # fmt: skip
    yield Door("sweep.load", hf.sweep.load, {}, {"path": no_tables})


def command_doors(folder: Path) -> Iterator[Door]:
    """Yield the commands; a call raises an InputError for a refusal in one line, with status 2."""
    import headfit as hf
    from headfit._cli.fitting import options_of_kind
    from headfit.errors import InputError

    target, head = folder / "A.npz", folder / "head.npz"
    sp.save_npz(target, hf.patterns.band(N, 1))
    hf.fit(target, DIM, leak=0.3, distortion=1.0).save(head)
    np.save(folder / "points.npy", np.random.default_rng(0).standard_normal((N, 2)))
    (folder / "text.txt").write_text("a b a b", encoding="utf-8")

    def command(words: list[str]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            from headfit import cli

            line = list(words)
            for name, value in given.items():
                line[line.index("{" + name + "}")] = str(value)
            optional_words = [w for w in line if "{" not in w]
            said = folder / f"said-{os.getpid()}"
            stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(stream, 2)
            status = cli.main(optional_words)
            lines = said.read_text(encoding="utf-8").splitlines()
            if status == 2 and len(lines) == 1:
                raise InputError(lines[0])
            if status or not lines:
                raise RuntimeError(f"status {status}, {len(lines)} lines: {lines[-1:]}")

        return call

    files = [str(f) for f in bad_files(folder)]
    numbers = ["", "x", "-1", "nan", "-inf", "1e999", "0x10", "1+0j"]
    whole = ["", "x", "-1", "1.5", "nan", "0", "1+0j", str(2**70)]
    output = [str(folder), str(folder / "x"), str(folder / "x.txt"), str(folder / "pipe.npz")]
    output += [str(folder / "no" / "x.npz"), "/proc/x.npz", "/dev/null"]
    made = str(folder / "made.npz")
    options = {
        "--leak": [*numbers, "0", "1", "2"], "--distortion": [*numbers, "0"], "--dim": whole,
        "--method": ["", "x"], "--dtype": ["", "x", "int8"], "--effort": ["", "x", "0", "-1"],
        "--reheats": ["", "x", "-1", "1.5"], "--stages": ["", "x", "0", "1.5"],
        "--time-limit": [*numbers, "0"], "--max-norm": [*numbers, "0"],
        "--max-logit": [*numbers, "0"], "--kernel": ["", "x", "a=1", "logits=x"], "--mask": [
            "", "x", "window", "window:", "window:0", "window:-1", "window:1,2,3", "causal:1"],
        "--keys": ["", "x"], "--form": ["", "x"], "--sketch": ["", "x"], "--factor": ["", "x"],
        "--seed": ["", "x", "-1", "1.5"], "--module": [*files, str(target)],
    }  # fmt: skip
    common = ["fit", str(target), "--dim", "3", "-o", made]
    for option, values in options.items():
        words = [w for w in common if option != "--dim" or w not in ("--dim", "3")]
        name = option.removeprefix("--").replace("-", "_")
        says = {name: f"{option}|{name}|{option[2:]}|size|folder|file|window"}
        yield Door(f"$ fit {option}", command([*words, option, f"{{{name}}}"]), {},
                   {name: values}, says)  # fmt: skip
    anything = {"file": r"\S"}
    plain = {"file": files}
    yield Door("$ fit A", command(["fit", "{file}", "--dim", "3", "-o", made]), {}, plain, anything)
    outputs = {"file": output}
    yield Door("$ fit -o", command([*common[:-1], "{file}"]), {}, outputs, anything)
    yield Door("$ certify A", command(["certify", "{file}", str(head)]), {}, plain, anything)
    yield Door("$ certify HEAD", command(["certify", str(target), "{file}"]), {}, plain, anything)
    yield Door("$ info", command(["info", "{file}"]), {}, plain, anything)
    band = ["pattern", "band", "8", "1"]
    yield Door("$ pattern -o", command([*band, "-o", "{file}"]), {}, outputs, anything)
    for option, values in {"--gamma": numbers, "--seed": options["--seed"]}.items():
        call = command([*band, option, "{file}", "-o", made])
        yield Door(f"$ pattern {option}", call, {}, {"file": values}, anything)
    for kind in hf.patterns.__all__:
        count = sum(each.words == (each.name,) for each in options_of_kind(kind))
        if kind in ("digits_knn", "induction") or not count:
            continue
        first = {"knn": str(folder / "points.npy"), "from_graph": str(target)}.get(kind, "8")
        values = files if kind in ("knn", "from_graph", "from_mask") else whole
        words = ["pattern", kind, first, *["1"] * (count - 1), "-o", made]
        words[2] = "{file}"
        yield Door(f"$ pattern {kind}", command(words), {}, {"file": values}, anything)
    induction = ["pattern", "induction", "{file}", "-o", made]
    texts = [f for f in files if not os.path.isfile(f) or f.endswith("long.safetensors")]
    yield Door("$ pattern induction", command(induction), {}, {"file": texts}, anything)
    planned = {"pattern": [f for f in files if f], "n": whole, "plot": output,
               "arg": ["", "x", "x=1", "neighbors=", "neighbors=x"]}  # fmt: skip
    plan = ["plan", "causal_band", "--n", "8", "--arg", "neighbors=1", "--time-limit", "1"]
    for name, place in {"pattern": 1, "arg": 5, "n": 3}.items():
        words = ["plan", "{pattern}"] if name == "pattern" else list(plan)
        words[place] = f"{{{name}}}"
        yield Door(f"$ plan {name}", command(words), {}, {name: planned[name]}, {name: r"\S"})
    yield Door("$ plan --plot", command([*plan, "--plot", "{plot}"]), {}, {"plot": output}, {
        "plot": r"\S",
    })  # fmt: skip
    qk = folder / "qk.npz"
    passages = np.random.default_rng(0).standard_normal((2, 4, N, DIM))
    np.savez(qk, Q=passages[0], K=passages[1])
    one = ["--head", "1", "-o", made]
    picture = str(folder / "made.png")
    for words in (["describe", "{file}"], ["shrink", "{file}", *one],
                  ["compress", "{file}", "--dim", "2", "-o", made],
                  ["plot", "{file}", "-o", picture]):  # fmt: skip
        yield Door(f"$ {words[0]} FILE", command(words), {}, plain, anything)
    plot = ["plot", str(qk), "-o", "{file}"]
    yield Door("$ plot -o", command(plot), {}, outputs, anything)
    of_heads = {
        "--scale": ["", "x", "nan", "-inf", "0"],
        "--mask": options["--mask"],
        "--position": ["", "x"],
    }
    more: dict[str, dict[str, list[str]]] = {
        "describe": {"--per-row": whole[:-1], "--per-column": whole, "--share": numbers},
        "shrink": {"--tv": numbers, "--tv-worst": numbers, "--dim": whole, "--head": ["", "x", "9"],
                   "--effort": ["", "x", "-1"], "--time-limit": numbers},
        "compress": {"--tv": numbers, "--dim": whole, "--held-out": numbers, "--dtype": ["x"]},
        "plot": {"--kind": ["", "x", "search"], "--head": ["", "x", "9"], "--target": files},
    }  # fmt: skip
    start = {"describe": [], "shrink": one, "compress": ["-o", made], "plot": ["-o", picture]}
    for name, own in more.items():
        for option, values in {**of_heads, **own, "--num-threads": whole}.items():
            if name == "plot" and option == "--num-threads":
                continue
            words = [name, str(qk), *start[name], option, "{file}"]
            yield Door(f"$ {name} {option}", command(words), {}, {"file": values}, anything)
    table, toml = str(folder / "sweep.jsonl"), str(folder / "sweep.toml")
    Path(toml).write_text(
        'grid = {pattern = "band", n = 8, neighbors = 1, dim = 6}', encoding="utf-8"
    )
    no_tables = [str(folder), str(folder / "pipe.npz"), "/proc/x", str(target)]
    for option, values in {
        "--out": no_tables,
        "--workers": without(whole, "0"),
        "--num-threads": whole,
        "--scheduler": ["x", "tcp://x:y", "pigeon://x:1"],
    }.items():
        words = ["sweep", toml, "--out", table, option, "{value}"]
        yield Door(f"$ sweep {option}", command(words), {}, {"value": values}, {"value": r"\S"})
    yield Door("$ sweep FILE", command(["sweep", "{file}", "--out", table]), {}, plain, anything)
    demo = ["demo", "--out", "{file}"]
    yield Door("$ demo", command(demo), {}, {"file": output[:-2]}, anything)


def pattern_doors(patterns: Any, files: list[Any]) -> Iterator[Door]:
    """Yield every kind of pattern."""
    points = np.random.default_rng(0).standard_normal((N, 2))
    big = [2**31 - 1]
    least = {"neighbors": 0, "n_global": 0, "n_random": 0}
    good: dict[str, Any] = {
        "n": 8, "k": 2, "neighbors": 1, "width": 1, "dilation": 2, "offsets": [0, 1], "stride": 2,
        "size": 2, "n_global": 1, "n_random": 1, "tokens": [1, 2, 1], "height": 2,
        "points": points, "graph": np.eye(3), "arity": 2, "mask": np.tri(N, dtype=bool),
    }  # fmt: skip
    choices = ["", "x", *NOT_TEXT]
    special: dict[str, list[Any]] = {
        "weights": optional(choices),
        "boundary": choices,
        "which": choices,
        "on_short": choices,
        "gamma": [*NOT_NUMBER, 0, 0.5, np.inf, np.nan],
        "rng": NOT_SEED,
        "causal": NOT_FLAG,
        "diagonals": NOT_FLAG,
        "self_loops": NOT_FLAG,
        "bandwidth": optional([*NOT_NUMBER, 0, -1, np.inf]),
        "per_column": optional(counts(1)),
        "stages": optional([
            *without(counts(0, 2), {1, 2}), *MISREAD_ARRAYS, ["x"], [-1], [1.5], [True]]),
        "offsets": [*NOT_ARRAY, [], [0.5], [[0]], [True]],
        "tokens": [None, 5, 1.5, [], ragged(), [[1]], Unusable(), [1, "a", None], 2j, True],
        "points": [*NOT_ARRAY, [], [1.0], [[]], np.ones((2, 2, 2)), [[np.inf, 0]] * 3, [1e300, 0]],
        "graph": [
            *without(NOT_ARRAY, sp.eye_array(N)), *spoilt_sparse(), np.ones((2, 3)), [], [1.0],
            np.full((2, 2), np.nan), np.zeros((2, 2)),
        ],
        # A mask of one matrix has neither axis: any index of them is refused.
        "batch": optional([*counts(0), 0]),
        "head": optional([*counts(0), 0]),
        "mask": [
            *without(NOT_MASK, np.ones((N, N), np.int8), np.ones((N + 1, N + 1), bool),
                     np.ones((1, 1, 1, N, N), bool), sp.eye_array(N + 1, dtype=bool)),
            *NOT_ARRAY, *spoilt_sparse(bool), np.zeros((N, N), bool), np.ones((N, N + 1), bool),
            np.ones((2, N, N), bool), np.ones((2, 1, N, N), bool), np.ones((2, 1, 1, N, N), bool),
            np.full((N, N), np.nan), np.full((N, N), -np.inf), 2 * np.eye(N, dtype=int),
            np.ones((N, N), "M8[s]"), np.empty((0, 0), bool), np.empty((0, N, N), bool),
            sp.csr_array((N, N), dtype=bool), sp.csr_array(2 * np.eye(N, dtype=int)),
        ],
    }  # fmt: skip
    for name in patterns.__all__:
        call = getattr(patterns, name)
        bad: dict[str, list[Any]] = {}
        given: dict[str, Any] = {}
        for parameter, about in inspect.signature(call).parameters.items():
            if about.default is inspect.Parameter.empty:
                given[parameter] = good[parameter]
            if parameter == "self_loops" and about.default is None:
                bad[parameter] = optional(NOT_FLAG)
            elif parameter in special:
                bad[parameter] = special[parameter]
            else:
                bad[parameter] = [*counts(least.get(parameter, 1)), None]
                reaches = ("neighbors", "dilation", "stride", "size", "arity")
                if parameter in reaches and name != "grid2d":  # these may exceed the tokens
                    bad[parameter] = without(bad[parameter], 2**70)
                if parameter == "n" and name != "tree":
                    bad[parameter] += big
        if name == "strided":
            bad["neighbors"] = optional(counts(0))
        if name == "window_global":
            bad["width"], bad["stride"] = [*counts(1), None], optional(counts(1))
        says = {"per_column": "per_column", "n": "n = |n must"}
        yield Door(f"patterns.{name}", call, given, bad, says)


def plot_doors(
    hf: Any, A: Any, whole: Any, head: Any, searched: Any, masks: list[Any], target: list[Any]
) -> Iterator[Door]:
    """Yield every picture."""
    from matplotlib.figure import Figure

    def axes(count: int = 1) -> Any:
        return Figure().subplots(1, count)

    no_axes = [5, "x", True, [], Unusable(), Figure]
    colors = {"cmap": ["", "no map", 5, Unusable(), []], "norm": ["x", 5, True, Unusable()]}
    matrices = [None, "x", 5, ragged(), np.ones(3), np.empty((0, 0)), np.array([[None]]), 2j]
    matrices += [np.ones((2, 3, 3)), Unusable(), *spoilt_sparse(), np.ma.masked_all((3, 3))]
    matrices += [*MISREAD, *MISREAD_ARRAYS]
    labels = [5, "ab", ["a"], Unusable(), True]
    pixels = optional(counts(1))
    flags = optional(NOT_FLAG)
    batches = [0, 0.5, "x", -1, True, Unusable(), *MISREAD]  # what is drawn has no axis of a batch
    drawn = {
        "batch": batches, "M": matrices, "ax": no_axes, "tokens": labels, "relative": NOT_FLAG,
        "pixels": pixels, "colorbar": flags, **colors,
    }  # fmt: skip
    drawn["pixels"] = pixels
    yield Door("plot.attention", hf.plot.attention, {"M": A, "ax": axes()}, drawn, {"M": "M|pict"})
    compared = {
        **drawn, "A": matrices, "axes": [5, [], [1, 2], "ab", axes(1), [None, None], Unusable()],
        "tolerances": [0.1, "x", (0.05, 0.1), Unusable(), True, hf.Tolerances],
    }  # fmt: skip
    del compared["ax"]
    both = {"A": A, "M": head, "axes": axes(3)}
    says = {"A": "A|M|pict", "M": "M|A and M|pict"}
    yield Door("plot.compare", hf.plot.compare, both, compared, says)
    plans = {"plan": [None, A, head, 5, "x", Unusable()], "ax": no_axes}
    planned = hf.plan(A, dim=DIM, time_limit=1, leak=0.3, distortion=1.0)
    yield Door("plot.plan", hf.plot.plan, {"plan": planned, "ax": axes()}, plans)
    rows = optional(counts(0, N - 1))
    of_keys = {"A": target, "M": [None, A, 5, "x", Unusable()], "row": rows, "ax": no_axes,
               "batch": batches}  # fmt: skip
    yield Door("plot.keys", hf.plot.keys, {"A": A, "M": head, "ax": axes()}, of_keys)
    certificates = {"c": [None, A, 5, "x", Unusable(), whole], "ax": no_axes}
    yield Door("plot.certificate", hf.plot.certificate, {"c": head, "ax": axes()}, certificates)
    searches = {"fit": [None, A, head, 5, "x", Unusable()], "ax": no_axes}
    yield Door("plot.search", hf.plot.search, {"fit": searched, "ax": axes()}, searches)
    Q = np.random.default_rng(0).standard_normal((2, 3, N, 2))
    many = {
        "heads": [None, "x", 5, [], ragged(), Q[0, 0], np.array([[None]]), A, Unusable(), 2j],
        "titles": [5, "ab", ["a"], Unusable()],
        "batch": [0.5, "x", -1, N, True, Unusable(), *MISREAD],
        "axes": [5, [], [1] * 6, "abcdef", [None] * 6, Unusable()], "relative": NOT_FLAG,
        "pixels": pixels, **colors,
    }  # fmt: skip
    given = {"heads": hf.Attention(Q, Q), "axes": axes(6)}
    yield Door("plot.heads_grid", hf.plot.heads_grid, given, many, {"heads": "heads|M"})
    offsets = {
        "heads": many["heads"][:-1], "ax": no_axes, "cmap": colors["cmap"], "batch": many["batch"],
    }  # fmt: skip
    offsets["heads"] = [h for h in offsets["heads"] if h is not many["heads"][5]]
    given = {"heads": hf.Attention(Q, Q), "ax": axes()}
    yield Door("plot.offsets", hf.plot.offsets, given, offsets)
    sharp = hf.rope.filter(2, n=N, dim=4, leak=0.3, distortion=1.0)
    yield Door("plot.translation", hf.plot.translation, {"head": sharp, "ax": axes()}, {
        "head": [None, 5, "x", A, whole, Q, Unusable(), Untrue(), hf.rope.RopeFilter],
        "A": optional(target), "ax": no_axes,
        "tolerances": [0.1, "x", (0.05, 0.1), Unusable(), True],
    })  # fmt: skip
    yield Door("plot.rope", hf.plot.rope, {"found": sharp, "ax": axes()}, {
        "found": [None, 5, "x", [], [5], [None], sharp.filter, whole, Unusable()], "ax": no_axes,
    })  # fmt: skip
    result = hf.shrink(whole, dim=1, curve_dims=(), effort="low")
    yield Door("plot.curve", hf.plot.curve, {"result": result, "ax": axes()}, {
        "result": [None, 5, "x", {"dim": [1]}, A, head, whole, Unusable()],
        "tv": optional([*NOT_NUMBER, -1, np.inf]), "ax": no_axes,
    })  # fmt: skip
    heads = [*map(tuple, np.random.default_rng(0).normal(size=(4, 2, 50, 8)))]
    found = hf.index(heads, dim=2, window=8, keys=20, effort=0, curve_dims=(2,))
    yield Door("plot.index", hf.plot.index, {"result": found, "ax": axes()}, {
        "result": [None, 5, "x", {"dim": [1]}, A, whole, dataclasses.replace(found, curve=None),
                   Unusable()], "ax": no_axes,
    })  # fmt: skip
    tiled = {"batch": batches, "M": matrices, "pixels": [*counts(1), None], "relative": NOT_FLAG}
    yield Door("plot.tiles", hf.plot.tiles, {"M": A, "pixels": 4}, tiled, {"M": "M|pict"})


def torch_doors(head: Any, threads: list[Any], scales: list[Any]) -> Iterator[Door]:
    """Yield the functions of headfit.torch."""
    import torch

    import headfit.torch as ht

    no_fits = [None, 5, "x", [], [None], [head, 5], Unusable(), True]
    yield Door("torch.to_multihead_attention", ht.to_multihead_attention, {"fits": head}, {
        "fits": no_fits, "head_dim": optional([*counts(8), 9, 2**30]), "batch_first": NOT_FLAG,
        "rng": NOT_SEED,
    })  # fmt: skip
    model = ht.to_multihead_attention(head)
    yield Door("FittedAttention.with_fits", model.with_fits, {}, {"fits": [*no_fits, [head] * 2]})
    X, W_q, W_k = torch.zeros(N, 8), torch.zeros(4, 8), torch.zeros(4, 8)
    matrices = [*BAD_MATRIX, torch.zeros(3), torch.full((N, 8), float("nan")), torch.zeros(4, 9)]
    biases = optional([*without(NOT_ARRAY), [1.0], torch.zeros(9), torch.full((4,), float("inf"))])
    yield Door("torch.from_projections", ht.from_projections,
        {"X": X, "W_q": W_q, "W_k": W_k, "num_heads": 2}, {
        "X": matrices, "W_q": matrices, "W_k": matrices, "b_q": biases, "b_k": biases,
        "num_heads": [*counts(1), 3, None], "num_kv_heads": optional([*counts(1), 3]),
        "scale": scales, "X_k": optional(matrices),
    }, {"num_heads": "num_heads|heads", "X": "X|Q and K"})  # fmt: skip


def model_doors(known: dict[str, list[Any]], folder: Path) -> Iterator[Door]:
    """Yield the functions that read the heads of running models, and their results' methods.

    `known` has the bad values of what is measured.
    """
    import torch

    import headfit as hf
    import headfit.torch as ht

    class Layer(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model = Layer().eval()
    batch = torch.randn(4, 1, N, DIM, generator=torch.Generator().manual_seed(0))
    no_models = [None, *JUNK, True, Layer, torch.jit.script(torch.nn.Identity())]
    items = [5, 1.5, True, "x", b"x", [1.5], [-1], [None], [True], [[0]], Unusable(), [Unusable()]]
    tokens = [*without(counts(0), 2**70), None]

    def captured(**given: Any) -> None:
        torch.set_num_threads(1)  # PyTorch's own threads do not survive the fork
        with ht.capture(**{"model": model, **given}):
            model(batch)

    yield Door("torch.capture", captured, {}, {
        **known, "model": no_models, "statistics": NOT_FLAG, "check": NOT_FLAG,
        "values": NOT_FLAG,
        "keep": tokens, "keep_layers": [*items, ["x"], [1]],
    })  # fmt: skip
    with ht.capture(model) as heads:
        model(batch)
    places = [*without(counts(0, 0), 1), None, 1, Unusable(), slice(1)]

    def one_head(layer: Any = 0, head: Any = 0, call: Any = 0) -> Any:
        return heads[layer, head, call]

    yield Door("CapturedHeads[]", one_head, {}, {
        "layer": places, "head": places, "call": optional(places),
    }, {"call": "call|heads"})  # fmt: skip

    def run(**given: Any) -> None:
        torch.set_num_threads(1)
        with ht.capture(model) as watched:
            watched.run(**{"batches": [batch], **given})

    yield Door("CapturedHeads.run", run, {}, {
        "batches": [None, 5, True, 1.5, 2j, Unusable()],
        "call": [5, "x", True, [], Unusable()],
    })  # fmt: skip
    unfit = [folder, folder / "no folder" / "x.npz", Path("/proc/x.npz")]
    paths = [*NOT_PATH, *unfit]
    yield Door("ModelTable.save", heads.table().save, {}, {"path": paths})
    pages = [*NOT_PATH, folder, folder / "x.txt", folder / "no folder" / "x.html"]
    yield Door("CapturedHeads.report", heads.report, {"path": folder / "made.html"}, {
        "path": pages, "title": NOT_TEXT,
    })  # fmt: skip
    found = hf.compress(heads.passages(), dim=2, effort=1)
    small = found["model", 0]

    def smaller(**given: Any) -> None:
        torch.set_num_threads(1)
        with ht.smaller_heads(**{"model": model, "heads": found, **given}):
            model(batch)

    yield Door("torch.rotary_position", ht.rotary_position, {"model": model}, {
        "model": [None, *JUNK, True, Layer, model],
    })  # fmt: skip
    if hasattr(ht, "SmallCache"):
        rotary = model_with_a_rotary()
        with ht.capture(rotary, statistics=False, values=True) as seen, torch.no_grad():
            rotary(torch.arange(8).reshape(2, 4))
        kept = hf.compress_keys(seen.layer_passages(), effort=0,
                                rotated=ht.rotary_position(rotary))  # fmt: skip
        own = hf.compress_values(seen.layer_passages(values=True))
        name, keys = next(iter(kept.layers.items()))
        no_layers = [None, *JUNK, [], True, keys, {name: 5}, {"other": keys}, {0: keys}]
        yield Door("torch.SmallCache", ht.SmallCache, {"model": rotary, "found": kept}, {
            "model": [None, *JUNK, True, Layer, model], "found": no_layers,
            "values": [*no_layers[1:], kept, own[name], {"other": own[name]}],
        })  # fmt: skip
    no_maps: list[Any] = [None, *JUNK, [], {}, True, small, [small], {"model": small}]
    no_maps += [{("model", 0): 5}, {("model",): small}, {(0, 0): small}, {("model", "0"): small}]
    no_maps += [{("model", 1): small}, {("model", -1): small}, {("other", 0): small}]
    no_maps += [{("model", True): small}, {("model", 0): found}]
    yield Door("torch.smaller_heads", smaller, {}, {"model": no_models, "heads": no_maps}, {
        "heads": "heads?|layer",
    })  # fmt: skip
    found = hf.index(heads.passages(), dim=2, effort=0, keys=2, window=1, first=0)
    small = found["model", 0]

    def selecting(**given: Any) -> None:
        torch.set_num_threads(1)
        with ht.indexed(**{"model": model, "heads": found, **given}):
            model(batch)

    no_indexes: list[Any] = [None, *JUNK, [], {}, True, small, [small], {"other": small}]
    no_indexes += [{("model", 0): 5}, {("model", 7): small}, {("other", 0): small}]
    yield Door("torch.indexed", selecting, {}, {
        "model": no_models, "heads": no_indexes, "keys": counts(1),
        "num_threads": known["num_threads"],
    }, {"heads": "heads?|layer"})  # fmt: skip


def model_with_a_rotary() -> Any:
    """Return a tiny model of transformers with rotary positions."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def uncovered(folder: Path) -> list[str]:
    """Return the parameters of public functions and classes that the table lacks.

    The records that only headfit makes are left out.
    """
    import headfit as hf

    tried: dict[str, set[str]] = {}
    for door in doors(folder):
        tried.setdefault(door.name.split("(")[0], set()).update(door.bad)
    modules = {"": hf, "bounds.": hf.bounds, "patterns.": hf.patterns, "plot.": hf.plot,
               "sweep.": hf.sweep}  # fmt: skip
    if "torch" in dir(hf):
        modules["torch."] = hf.torch
    lacking = []
    for prefix, module in modules.items():
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or prefix + name in RECORDS or hasattr(hf.errors, name):
                continue
            known = tried.get(prefix + name, set()) | tried.get(name, set())
            parameters = inspect.signature(thing).parameters
            # Further options, `**options`, are those of a class that has rows of its own.
            named = [key for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
            lacking += [f"{prefix}{name}({p})" for p in named if p not in known]
    return lacking


def cases(folder: Path) -> list[Case]:
    """Return every call of the table."""
    made = []
    for door in doors(folder):
        for parameter, values in door.bad.items():
            made += [Case(door, parameter, i) for i in range(len(values))]
    return made


def outcome(case: Case) -> str:
    """Make the call; return "" if it is refused as it should be, else what happened instead."""
    import re

    from headfit.errors import HeadfitError

    arguments = {**case.door.good, case.parameter: case.value}
    try:
        case.door.call(**arguments)
    except HeadfitError as error:
        words = case.door.says.get(case.parameter, re.escape(case.parameter))
        named = re.search(rf"(?<![A-Za-z_])({words})", str(error))
        return "" if named else f"does not name it: {str(error)[:150]}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}".replace("\n", " ")
    return "" if any(case.value is mask for mask in ODD_MASKS) else "an answer"


def outcome_in_a_fork(case: Case) -> str:
    """Return the outcome of a call in a separate process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        room = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.write(writer, outcome(case).encode("utf-8", "replace") or b"refused")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGALRM:
            return f"more than {SECONDS} seconds"
        return f"killed by signal {number}"
    return "" if said == "refused" else said or "nothing was said"


def run(chosen: list[Case]) -> list[tuple[Case, str]]:
    """Return the calls that were not refused as they should be, with what happened."""
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    failures = []
    for case in chosen:
        found = outcome_in_a_fork(case)
        if found:
            failures.append((case, found))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description="The table of bad inputs.")
    parser.add_argument("--door", default="", help="only doors whose names contain this")
    parser.add_argument("--every", type=int, default=1, help="only every so many calls")
    given = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [c for c in cases(Path(folder)) if given.door in c.door.name][:: given.every]
        lacking = [] if given.door else uncovered(Path(folder))
        failures = run(chosen)
    for parameter in lacking:
        print(f"{parameter} is not in the table")
    for case, found in failures:
        print(f"{case}: {found}")
    names = {case.door.name for case in chosen}
    seconds = time.monotonic() - start
    print(f"{len(chosen)} calls of {len(names)} doors: {len(failures)} failures, {seconds:.0f} s")
    return 1 if failures or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
