"""Every option of an `Attention` against every function that takes one: honoured, or refused.

An option is honoured where the answer is what explicit NumPy makes of the logits with it, and not
what it makes of those without it. It is refused where an InputError names it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import pickle
import re
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit import cli
from headfit._attention.logits import LogitOptions

plot = pytest.importorskip("headfit.plot")
figure = pytest.importorskip("matplotlib.figure")

Options = dict[str, Any]
RNG = np.random.default_rng
N, D, HEADS = 12, 4, 2
Q, K, V = RNG(0).standard_normal((3, N, D))
Q_HEADS, K_HEADS = RNG(1).standard_normal((2, HEADS, N, D))
BAND = 0.5 * (np.eye(N) + np.eye(N, k=-1))
BAND[0] = np.eye(N)[0]
OPEN = (RNG(3).random((N, N)) < 0.6) | (BAND > 0)
BIAS = RNG(4).standard_normal((HEADS, N, N))
CLOSED = np.where(OPEN[::-1] | (BAND > 0), BIAS[1], -np.inf)
KEYS = ~np.isin(np.arange(N), [3, 7])
OTHER = hf.Attention(V, K, mask=sp.csr_array(OPEN))

OPTIONS: dict[str, Options] = {
    "scale": {"scale": -0.3},
    "causal": {"mask": "causal"},
    "window": {"mask": ("window", (3, 1))},
    "dense": {"mask": OPEN},
    "sparse": {"mask": sp.csr_array(OPEN)},
    "lengths": {"key_lengths": 9},
    "keys": {"key_mask": KEYS},
    "bias": {"bias": BIAS[0]},
    "closed": {"bias": CLOSED},  # forbids with -inf
    "softcap": {"softcap": 0.5},
    "rope": {"position": "rope"},
    "halves": {"position": ("rope-half", 50.0)},
    "alibi": {"position": ("alibi", 0.4)},
    "sinks": {"sinks": 0.5},
    # Stacks of heads, each with an option of its own; in the last one they share their keys.
    "masks": {"mask": np.stack([OPEN, np.tri(N, dtype=bool)])},
    "lengths*": {"key_lengths": [9, 11]},
    "keys*": {"key_mask": np.stack([KEYS, KEYS[::-1]])},
    "bias*": {"bias": BIAS},
    "slopes": {"position": ("alibi", [0.4, 0.1])},
    "sinks*": {"sinks": [0.5, -1.0]},
    "grouped": {"scale": -0.3},
}
STACKS = [*OPTIONS][-7:]

# h: honoured; r: refused by name; .: has no part in what is asked, as sinks have none in logits.
# plot.translation draws heads whose logits depend on the offset alone, and refuses all others.
HEADER = (
    "scale causal window dense sparse lengths keys bias closed softcap rope halves alibi sinks"
    " masks lengths* keys* bias* slopes sinks* grouped"
)
TABLE = {
    #                          sc ca wi de sp le ke bi cl so ro ha al si | m  l  k  b  s  si g
    "Attention.matrix":       " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "Attention.logits":       " h  h  h  h  h  h  h  h  h  h  h  h  h  .   h  h  h  h  h  .  h",
    "Attention.topk":         " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "Attention.apply":        " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "Attention.stats":        " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "Attention.rotated":      " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "Attention.of":           " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "pickle":                 " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "attention_matrix":       " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "attention_logits":       " h  h  h  h  h  h  h  h  h  h  h  h  h  r   h  h  h  h  h  r  h",
    "attention_topk":         " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "attention_apply":        " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "attention_stats":        " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "describe":               " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "sparsify":               " h  h  h  h  h  h  h  h  h  h  h  h  h  .   h  h  h  h  h  .  h",
    "compare":                " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  r",
    "shrink":                 " h  h  h  h  h  h  h  h  h  h  h  h  h  r   h  h  h  h  h  r  h",
    "certify":                " h  h  h  h  h  r  r  h  h  h  r  r  r  r   r  r  r  r  r  r  r",
    "certify_selection":      " h  h  h  h  h  h  h  r  r  h  r  r  r  h   r  r  r  r  r  h  h",
    "methods.append_dims":    " h  h  h  h  h  r  r  r  r  r  r  r  r  r   r  r  r  r  r  r  r",
    "compress":               " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  h",
    "compress, several":      " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  h",
    "compress_keys":          " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "compress_values":        " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "results.CompressedKeys.apply":
                              " h  h  h  h  h  h  h  h  h  h  r  r  h  h   h  h  h  h  h  h  h",
    "index":                  " h  h  h  h  h  h  h  r  r  h  h  h  r  h   r  r  r  r  r  h  h",
    "results.Index.apply":    " h  h  h  h  h  h  h  r  r  h  h  h  r  h   r  r  r  r  r  h  h",
    "results.Index.certify":  " h  h  h  h  h  h  h  r  r  h  h  h  r  h   r  r  r  r  r  h  h",
    "results.Index.scores":   " .  h  h  h  h  h  h  r  r  .  h  h  r  .   r  r  r  r  r  .  .",
    "results.Index.select":   " .  h  h  h  h  h  h  r  r  .  h  h  r  .   r  r  r  r  r  .  .",
    "results.Compressed.apply": " r  h  h  h  h  h  h  h  h  h  r  r  h  h   r  r  r  r  r  r  r",
    "plot.attention":         " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  r",
    "plot.tiles":             " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  r",
    "plot.compare":           " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  r",
    "plot.heads_grid":        " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "plot.offsets":           " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "plot.keys":              " h  h  h  h  h  h  h  h  h  h  h  h  h  .   r  r  r  r  r  r  r",
    "plot.translation":       " h  h  h  r  r  r  r  r  r  h  h  h  h  .   r  r  r  r  r  r  r",
    "headfit describe":       " h  h  h  h  h  h  h  h  h  h  h  h  h  h   h  h  h  h  h  h  h",
    "headfit shrink":         " h  h  h  h  h  h  h  h  h  h  h  h  h  r   h  h  h  h  h  r  h",
    "headfit compress":       " h  h  h  h  h  h  h  h  h  h  h  h  h  h   r  r  r  r  r  r  h",
}  # fmt: skip
CELLS = {
    (function, option): cell
    for function, cells in TABLE.items()
    for option, cell in zip(HEADER.split(), cells.split(), strict=True)
}

# Public functions whose parameters could hold a head, by their types, and hold something else.
TAKE_NO_HEAD = {
    "Attention.check_plain", "Attention.check_settings", "SelfAttention.input_for",
    "patterns.from_graph", "plot.curve", "results.Index.limits", "results.IndexQualities.by_way",
    "results.IndexQualities.over", "results.Indexes.judge", "results.Indexes.sharing",
    "results.TvCurve.of", "spend", "sweep.run",
    "torch.CapturedHeads.run", "torch.FittedAttention.with_fits",
    "torch.SmallCache", "torch.from_projections", "torch.indexed", "torch.rotary_position",
    "torch.smaller_heads", "torch.to_multihead_attention",
}  # fmt: skip
# Parameters that are no heads in any function.
NO_HEADS = {
    "A", "K", "K_index", "Q_index", "V", "W_Q", "W_K", "X", "axes", "client", "cmap", "columns",
    "dtype", "init", "mask", "norm", "options", "path", "pattern", "rng", "states", "store",
    "values", "weights", "widths",
}  # fmt: skip


# The reference --------------------------------------------------------------------------


def turned(q: np.ndarray, k: np.ndarray, position: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rotate queries and keys by rotary positions; others leave them as they are."""
    kind, base = position if isinstance(position, tuple) else (position, 10000.0)
    if kind not in ("rope", "rope-half"):
        return q, k
    d = q.shape[-1]
    angle = np.arange(N)[:, None] * base ** (-np.arange(0, d, 2) / d)
    first = slice(0, d // 2) if kind == "rope-half" else slice(0, d, 2)
    second = slice(d // 2, d) if kind == "rope-half" else slice(1, d, 2)

    def one(x: np.ndarray) -> np.ndarray:
        z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle)
        out = np.empty_like(x)
        out[..., first], out[..., second] = z.real, z.imag
        return out

    return one(q), one(k)


def logits(q: np.ndarray, k: np.ndarray, options: Options) -> np.ndarray:
    """The logits of one head or of a stack, -inf where masked."""
    if q.ndim == 3:
        own = {name: split(name, value) for name, value in options.items()}
        heads = [{name: part[h] for name, part in own.items()} for h in range(len(q))]
        return np.stack(
            [logits(*x) for x in zip(q, np.broadcast_to(k, q.shape), heads, strict=True)]
        )
    position = options.get("position")
    q, k = turned(q, k, position)
    s = q @ k.T * options.get("scale", q.shape[1] ** -0.5)
    if "softcap" in options:
        s = options["softcap"] * np.tanh(s / options["softcap"])
    i, j = np.indices(s.shape)
    kind, slope = position if isinstance(position, tuple) else (position, 2.0**-8)
    s = s + options.get("bias", 0.0) - (slope * abs(i - j) if kind == "alibi" else 0.0)
    mask = options.get("mask", np.ones(s.shape, bool))
    if isinstance(mask, str):
        mask = j <= i
    elif isinstance(mask, tuple):
        mask = (j >= i - mask[1][0]) & (j <= i + mask[1][1])
    elif sp.issparse(mask):
        mask = mask.toarray()
    mask = mask & (j < options.get("key_lengths", N)) & options.get("key_mask", True)
    return np.where(mask, s, -np.inf)


def split(name: str, value: Any) -> list[Any]:
    """An option of a stack, head by head."""
    if name == "position":
        return [("alibi", slope) for slope in value[1]]
    return [value] * HEADS if np.ndim(value) == 0 else list(value)


def weights(q: np.ndarray, k: np.ndarray, options: Options) -> np.ndarray:
    """The attention of one head or of a stack."""
    e = np.exp(logits(q, k, options))
    sinks = np.asarray(options.get("sinks", -np.inf), float)[..., None, None]
    return np.asarray(e / (e.sum(axis=-1, keepdims=True) + np.exp(sinks)))


def shares(matrix: np.ndarray) -> np.ndarray:
    return np.asarray(matrix / matrix.sum(axis=-1, keepdims=True))


def heaviest(matrix: np.ndarray, count: int) -> np.ndarray:
    """The matrix with the largest entries of its rows alone."""
    least = np.sort(matrix, axis=-1)[..., -count, None]
    return np.where(matrix >= least, matrix, 0.0)


def tv(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Total variation of rows, where a sink takes what keys do not."""
    differences = abs(one - other).sum(axis=-1) + abs(one.sum(axis=-1) - other.sum(axis=-1))
    return np.asarray(differences / 2)


def by_offset(matrix: np.ndarray) -> np.ndarray:
    """The mean weight of the rows at each distance i - j from which there is any."""
    found = [np.trace(matrix, -x, axis1=-2, axis2=-1) / N for x in range(1 - N, N)]
    every = np.stack(found, axis=-1)
    some = np.flatnonzero(every.reshape(-1, 2 * N - 1).any(axis=0))
    return np.asarray(every[..., some[0] : some[-1] + 1])


# The functions: each returns an answer, and what NumPy expects it to be for some options. ----

Answer = tuple[Any, Callable[[Options], Any]]
FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray, Options], Answer]] = {}


def function(*names: str) -> Callable[[Any], Any]:
    def register(check: Any) -> Any:
        FUNCTIONS.update(dict.fromkeys(names, check))
        return check

    return register


def each(found: Any, read: Callable[[Any], Any]) -> np.ndarray:
    """What is read from a result, or from that of every head."""
    return np.stack([read(x) for x in found]) if isinstance(found, np.ndarray) else read(found)


def axes(count: int = 1) -> Any:
    return figure.Figure().subplots(1, count)


def dense(found: Any) -> np.ndarray:
    """The weights of `topk` as a matrix."""
    if sp.issparse(found):
        return found.toarray()
    columns, values = found
    matrix = np.zeros((*columns.shape[:-1], N))
    np.put_along_axis(matrix, columns, values, axis=-1)
    return matrix


def register(name: str, read: Any, expected: Any) -> None:
    """Register a method of `Attention`, and the function that takes queries and keys."""

    def method(q: np.ndarray, k: np.ndarray, options: Options) -> Answer:
        head = hf.Attention(q, k, **options)
        return read(lambda *a: getattr(head, name)(*a), k), lambda o: expected(q, k, o)

    def function(q: np.ndarray, k: np.ndarray, options: Options) -> Answer:
        own = getattr(hf, f"attention_{name}")
        return read(lambda *a: own(q, k, *a, **options), k), lambda o: expected(q, k, o)

    FUNCTIONS[f"Attention.{name}"], FUNCTIONS[f"attention_{name}"] = method, function


def statistics(q: np.ndarray, k: np.ndarray, options: Options) -> list[np.ndarray]:
    w = weights(q, k, options)
    return [w.max(axis=-1), w.sum(axis=-1)]


register("matrix", lambda call, k: call(), weights)
register("logits", lambda call, k: call(), logits)
register("topk", lambda call, k: dense(call(3)), lambda *a: heaviest(weights(*a), 3))
register("apply", lambda call, k: call(np.cos(k)), lambda q, k, o: weights(q, k, o) @ np.cos(k))
register("stats", lambda call, k: [call().max_weight, call().key_mass], statistics)


@function("Attention.rotated")
def _turned(q, k, options):
    return hf.Attention(q, k, **options).rotated().matrix(), lambda o: weights(q, k, o)


@function("Attention.of")
def _of(q, k, options):
    return hf.Attention.of(hf.Attention(q, k, **options)).matrix(), lambda o: weights(q, k, o)


@function("pickle")
def _pickle(q, k, options):
    again = pickle.loads(pickle.dumps(hf.Attention(q, k, **options)))
    return again.matrix(), lambda o: weights(q, k, o)


@function("describe")
def _describe(q, k, options):
    return hf.describe(hf.Attention(q, k, **options)).column_mass, lambda o: weights(q, k, o).mean(
        axis=-2
    )


@function("sparsify")
def _sparsify(q, k, options):
    kept = hf.sparsify(hf.Attention(q, k, **options), per_row=2)
    return each(kept, lambda x: x.matrix.toarray()), lambda o: shares(heaviest(weights(q, k, o), 2))


@function("compare")
def _compare(q, k, options):
    head = hf.Attention(q, k, **options)
    found = [hf.compare(*pair).row_tv for pair in ((head, OTHER), (OTHER, head))]
    return found, lambda o: [tv(weights(q, k, o), OTHER.matrix())] * 2


def closeness(q, k, found):
    """The distances of a smaller head from the original, and where it must not attend."""
    small = each(found, lambda x: x.attention.matrix())
    got = each(found, lambda x: x.comparison.row_tv), np.zeros_like(small)
    return got, lambda o: [
        tv(weights(q, k, o), small), np.where(weights(q, k, o) == 0, small, 0.0)
    ]  # fmt: skip


QUICK: Options = {"effort": "low", "dtype": "float64"}


@function("shrink")
def _shrink(q, k, options):
    head = hf.Attention(q, k, **options)
    return closeness(q, k, hf.shrink(head, dim=2, curve_dims=(), **QUICK))


@function("certify")
def _certify(q, k, options):
    def leaks(o: Options) -> np.ndarray:
        s = logits(q, k, o)
        off, on = np.where(BAND > 0, -np.inf, s), np.where(BAND > 0, s, np.inf)
        return np.exp(off.max(axis=1) - on.min(axis=1))

    return hf.certify(BAND, hf.Attention(q, k, **options), leak=0.5).row_leak, leaks


SMALL_Q, SMALL_K = RNG(6).standard_normal((2, N, 3)).astype(np.float32)
KEEPS: Options = {"keys": 4, "window": 1, "first": 1, "num_threads": 1}


def kept_mass(scores: np.ndarray, q: np.ndarray, k: np.ndarray, options: Options) -> np.ndarray:
    """The mass of the keys that an index finds by its scores; 1 where a row sees none."""
    seen = logits(q.reshape(-1, *q.shape[-2:])[0], k.reshape(-1, *k.shape[-2:])[0],
                  {name: x for name, x in options.items() if name != "sinks"})  # fmt: skip
    found = chosen(np.where(np.isfinite(seen), scores, -np.inf))
    return np.where(found.any(axis=1), (weights(q, k, options) * found).sum(axis=-1), 1.0)


@function("certify_selection")
def _certify_selection(q, k, options):
    found = hf.certify_selection(q, k, SMALL_Q, SMALL_K, **options, **KEEPS)
    scores = SMALL_Q.astype(float) @ SMALL_K.astype(float).T
    return found.row_mass, lambda o: kept_mass(scores, q, k, o)


@function("methods.append_dims")
def _append_dims(q, k, options):
    whole = hf.methods.append_dims(BAND, hf.Attention(q, k, **options), [0])
    return whole.logits()[2:, 1:], lambda o: logits(q, k, o)[2:, 1:]


def held_out(pairs, options, result):
    """The mean distance in the passages that were held out, and what it should be."""
    small = [result.apply(hf.Attention(*pairs[i], **options)).matrix() for i in result.held_out]

    def mean(o: Options) -> float:
        wide = [weights(*pairs[i], o) for i in result.held_out]
        return float(np.mean([tv(w, s) for w, s in zip(wide, small, strict=True)]))

    return result.tv_mean, mean


def passages(q, k):
    """Pairs of queries and keys with the axes of these."""
    drawn = RNG(5)
    return [(drawn.standard_normal(q.shape), drawn.standard_normal(k.shape)) for _ in range(6)]


MAPS: Options = {"dim": 2, "effort": "low", "dtype": "float64"}


def in_place(k, options) -> Options:
    """Return the length with which passages with rotary positions are not moved to others."""
    return {"length": k.shape[-2]} if "rope" in str(options.get("position")) else {}


@function("compress")
def _compress(q, k, options):
    pairs = passages(q, k)
    given = [hf.Attention(*pair, **options) for pair in pairs]
    return held_out(
        pairs, options, hf.compress(given, curve_dims=(), **MAPS, **in_place(k, options))
    )


@function("compress, several")
def _compress_several(q, k, options):
    pairs = passages(q, k)
    given = [hf.Attention(*pair, **options) for pair in pairs]
    return held_out(pairs, options, hf.compress({"a": given}, **MAPS, **in_place(k, options))["a"])


@function("compress_keys")
def _compress_keys(q, k, options):
    pairs = passages(q, k)
    given = [hf.Attention(*pair, **options) for pair in pairs]
    return held_out(pairs, options, hf.compress_keys({0: given}, bits=3, effort=2)[0])


@function("compress_values")
def _compress_values(q, k, options):
    """Whether the mean is that of the values but padding, each as attention squared says."""
    pairs = passages(q, k)
    given = [(hf.Attention(*pair, **options), pair[1]) for pair in pairs]
    small = hf.compress_values({0: given}, bits=3)[0]

    def expected(o: Options) -> float:
        squares = [weights(*pairs[i], o) ** 2 for i in small.calibration]
        of_passages = [x.sum(axis=tuple(range(x.ndim - 1))) for x in squares]
        exist = np.reshape(o.get("key_mask", np.ones(N, bool)), (-1, N)).any(axis=0)
        exist = exist & (np.arange(N) < np.max(o.get("key_lengths", N)))
        w = np.concatenate([(x + 0.001 * x.mean()) * exist for x in of_passages])
        v = np.concatenate([np.hstack(pairs[i][1]) if k.ndim > 2 else pairs[i][1]
                            for i in small.calibration])  # fmt: skip
        return float(np.allclose(small.mean, w @ v / w.sum(), atol=1e-5))

    return 1.0, expected


@function("results.CompressedKeys.apply")
def _apply_keys(q, k, options):
    small = hf.compress_keys({0: passages(q, k)}, bits=3, effort=0)[0]

    def expected(o: Options) -> np.ndarray:
        whole, keys = turned(q, k, o.get("position"))
        read = small.read(small.store(keys))
        scale = {} if "scale" not in o else {"scale": o["scale"]}
        rest = {**{n: x for n, x in of_maps(o).items() if n != "scale"}, **scale}
        return weights(whole, read if k.ndim == 3 else read[0], rest)

    return small.apply(q, k, **options).matrix(), expected


# Of the four keys of a row, its own and the first that it sees are kept anyway.
FINDS: Options = {"dim": 2, "keys": 4, "window": 1, "first": 1, "dtype": "float32", "effort": 0}


def mapped_keys(small: Any, k: np.ndarray) -> np.ndarray:
    """What an index stores of keys: of several key heads the sum."""
    maps = small.P_k.reshape(-1, *small.P_k.shape[-2:])
    return sum(x @ p for x, p in zip(k.reshape(-1, N, D), maps, strict=True))


def scores_of(small: Any, q: np.ndarray, k: np.ndarray, options: Options) -> np.ndarray:
    """The scores of an index: the logarithm of the sum over heads of softmaxes of products."""
    q, k = turned(q, k, options.get("position"))
    mask = {name: x for name, x in options.items() if name in ("mask", "key_lengths", "key_mask")}
    mapped = [x @ p for x, p in zip(q.reshape(-1, N, D), small.P_q, strict=True)]
    each = [weights(x, mapped_keys(small, k), {**mask, "scale": 1.0}) for x in mapped]
    with np.errstate(divide="ignore"):
        return np.log(sum(each))


def chosen(values: np.ndarray) -> np.ndarray:
    """The keys that each row attends to, by values that are -inf where it must not."""
    kept = np.zeros((N, N), bool)
    for i, row in enumerate(values):
        seen = np.flatnonzero(np.isfinite(row))
        own = np.unique([*seen[:1], *seen[seen == i]])
        free = np.setdiff1d(seen, own)
        kept[i, [*own, *free[np.argsort(-row[free])][:2]]] = True
    return kept


def about(found: Any, expected: Callable[[Options], Any]) -> Answer:
    """An answer in float32: what it differs from another by, where that is more than rounding."""
    found = np.asarray(found)

    def differences(o: Options) -> np.ndarray:
        other = np.asarray(expected(o))
        same = (found == other) | np.isclose(found, other, rtol=1e-4, atol=1e-5)
        return np.where(same, 0.0, 1.0)

    return np.zeros(found.shape), differences


@function("index")
def _index(q, k, options):
    pairs = passages(q, k)
    small = hf.index([hf.Attention(*pair, **options) for pair in pairs], **FINDS)

    def expected(o: Options) -> list[float]:
        found, exact = [], []
        for own in (pairs[i] for i in small.held_out):
            p = weights(*own, o).reshape(-1, N, N).mean(axis=0)
            seen = np.where(p > 0, np.log(np.where(p > 0, p, 1)), -np.inf)
            for columns, masses in ((chosen(scores_of(small, *own, o)), found),
                                    (chosen(seen), exact)):  # fmt: skip
                masses += [
                    *(p * columns).sum(axis=1)[(p > 0).sum(axis=1) > chosen(seen).sum(axis=1)]
                ]
        return [float(np.mean(found)), float(np.mean(exact))]

    return about([small.quality.mass, small.quality.exact_mass], expected)


def an_index(q: np.ndarray, k: np.ndarray, options: Options) -> Any:
    """An index for the positions and the scale of what it is used for, which it must know."""
    known = {name: value for name, value in options.items() if name in ("position", "scale")}
    return hf.index([hf.Attention(*pair, **known) for pair in passages(q, k)], **FINDS)


@function("results.Index.apply")
def _apply_index(q, k, options):
    small = an_index(q, k, options)

    def expected(o: Options) -> np.ndarray:
        found = chosen(scores_of(small, q, k, o))
        return weights(q, k, {**o, "mask": found if q.ndim == 2 else [found] * HEADS})

    return about(small.apply(q, k, **options).matrix(), expected)


@function("results.Index.certify")
def _certify_index(q, k, options):
    known = {name: value for name, value in options.items() if name in ("position", "scale")}
    given = [hf.Attention(*pair, **known) for pair in passages(q, k)]
    small = hf.index(given, **FINDS, form="dot")

    def expected(o: Options) -> np.ndarray:
        mapped, keys = turned(q, k, o.get("position"))
        mapped = sum(x @ p for x, p in zip(mapped.reshape(-1, N, D), small.P_q, strict=True))
        return kept_mass(mapped @ mapped_keys(small, keys).T, q, k, o)

    return about(small.certify(q, k, num_threads=1, **options).row_mass, expected)


@function("results.Index.scores")
def _scores(q, k, options):
    small = an_index(q, k, options)
    found = small.scores(hf.Attention(q, k, **options))
    return about(found, lambda o: scores_of(small, q, k, o))


@function("results.Index.select")
def _select(q, k, options):
    small = an_index(q, k, options)
    columns = np.zeros((N, N + 1), bool)
    found = small.select(hf.Attention(q, k, **options))
    np.put_along_axis(columns, found, True, axis=1)
    return columns[:, :N], lambda o: chosen(scores_of(small, q, k, o))


def of_maps(options: Options) -> Options:
    """The options of a smaller head: rotations have been applied, and maps hold the scale."""
    rest = dict(options)
    if "alibi" not in str(rest.get("position")):
        rest.pop("position", None)
    return {**rest, "scale": 1.0}


@function("results.Compressed.apply")
def _apply_maps(q, k, options):
    small = hf.compress(passages(Q, K), curve_dims=(), **MAPS)

    def expected(o: Options) -> np.ndarray:
        mapped = (x @ p for x, p in zip(turned(q, k, o.get("position")), maps, strict=True))
        return weights(*mapped, of_maps(o))

    maps = small.P_q, small.P_k
    return small.apply(hf.Attention(q, k, **options)).matrix(), expected


@function("plot.attention")
def _plot_attention(q, k, options):
    image = plot.attention(hf.Attention(q, k, **options), ax=axes())
    return image.get_array(), lambda o: weights(q, k, o)


@function("plot.tiles")
def _plot_tiles(q, k, options):
    return plot.tiles(hf.Attention(q, k, **options), N), lambda o: weights(q, k, o)


@function("plot.compare")
def _plot_compare(q, k, options):
    head = hf.Attention(q, k, **options)
    drawn = [plot.compare(*pair, axes=axes(2), relative=False) for pair in
             ((BAND, head), (head, BAND))]  # fmt: skip
    found = [drawn[0][1].get_array(), drawn[1][0].get_array()]
    return found, lambda o: [weights(q, k, o)] * 2


@function("plot.heads_grid")
def _plot_heads_grid(q, k, options):
    head = hf.Attention(q, k, **options)
    count = 1 if q.ndim == 2 else len(q)
    images = plot.heads_grid([head] if q.ndim == 2 else head, axes=np.ravel(axes(count)))
    found = np.stack([image.get_array() for image in images])
    return found.reshape((*q.shape[:-2], N, N)), lambda o: weights(q, k, o)


@function("plot.offsets")
def _plot_offsets(q, k, options):
    drawn = plot.offsets(hf.Attention(q, k, **options), ax=axes())
    if q.ndim == 3:
        return drawn.get_array(), lambda o: by_offset(weights(q, k, o))
    return [bar.get_height() for bar in drawn], lambda o: by_offset(weights(q, k, o))


@function("plot.keys")
def _plot_keys(q, k, options):
    drawn = plot.keys(BAND, hf.Attention(q, k, **options), 5, ax=axes())
    places = np.vstack([drawn.support.get_offsets(), drawn.others.get_offsets()])

    def expected(o: Options) -> np.ndarray:
        s = logits(q, k, o)[5]
        return np.sort((s - s[[4, 5]].min())[np.isfinite(s)])

    return np.sort(places[:, 0]), expected


@function("plot.translation")
def _plot_filter(q, k, options):
    q, k = np.ones_like(q), np.ones_like(k) * [1.0, -0.5, 2.0, 1.5]
    line = plot.translation(hf.Attention(q, k, **options), ax=axes()).logits

    def expected(o: Options) -> np.ndarray:
        s = logits(q, k, o)
        rows = np.concatenate([s[0, :0:-1], s[-1, ::-1]])
        return rows[np.isfinite(rows)]

    return line.get_ydata(), expected


class Command:
    """The command line on a file of heads."""

    def __init__(self, q: np.ndarray, k: np.ndarray, options: Options) -> None:
        self.arrays, self.words = {"Q": q, "K": k}, ["--json", "--num-threads", "1"]
        for name, value in self.as_read(options, q).items():
            if name == "position":
                self.words += ["--position", value if isinstance(value, str) else value[0]]
            elif isinstance(value, tuple):
                self.words += ["--mask", "window:3,1"]
            else:
                self.arrays[name] = value.toarray() if sp.issparse(value) else np.asarray(value)

    @staticmethod
    def as_read(options: Options, q: np.ndarray) -> Options:
        """The options that a command has: positions have no base and no slopes there."""
        if "position" not in options:
            return options
        kind = np.ravel(np.array(options["position"], dtype=object))[0]
        return {**options, "position": (kind, [2.0**-4, 2.0**-8]) if q.ndim == 3 else kind}

    def __call__(self, name: str, *words: str) -> tuple[Any, dict[str, np.ndarray]]:
        """Return the figures that a command prints, and the arrays that it writes."""
        out, err = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            file, made = Path(folder, "heads.npz"), Path(folder, "out.npz")
            np.savez(file, **self.arrays)
            more = [] if name == "describe" else ["-o", str(made)]
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli.main([name, str(file), *self.words, *words, *more])
            if status == 2:
                raise hf.errors.InputError(err.getvalue())
            return json.loads(out.getvalue()), dict(np.load(made)) if more else {}


@function("headfit describe")
def _describe_command(q, k, options):
    run = Command(q, k, options)
    found = run("describe")[0]

    def expected(o: Options) -> list[np.ndarray]:
        w = weights(q, k, run.as_read(o, q))
        return [np.trace(w, -x, axis1=-2, axis2=-1) / (N - x) for x in (0, 1)]

    return [found["diagonal"], found["previous"]], expected


@function("headfit shrink")
def _shrink_command(q, k, options):
    run = Command(q, k, options)
    which = [()] if q.ndim == 2 else [("--head", str(h)) for h in range(HEADS)]
    words = ("--dim", "2", "--effort", "low", "--dtype", "float64")
    found = [run("shrink", *words, *head) for head in which]
    small = [
        hf.attention_matrix(x["Q"], x["K"], scale=x["scale"].item(), mask=mask_of(x))
        for _, x in found
    ]

    def expected(o: Options) -> list[float]:
        wide = weights(q, k, run.as_read(o, q)).reshape(-1, N, N)
        return [tv(w, s).mean() for w, s in zip(wide, small, strict=True)]

    return [figures["tv_mean"] for figures, _ in found], expected


def mask_of(arrays: Any) -> Any:
    if "mask" not in arrays:
        return None
    mask = arrays["mask"]
    return {"causal": "causal", "window:3,1": ("window", (3, 1))}.get(str(mask), mask)


@function("headfit compress")
def _compress_command(q, k, options):
    pairs = passages(q, k)
    run = Command(*(np.stack(x) for x in zip(*pairs, strict=True)), options)
    line = ["compress", "--dim", "2", "--effort", "low", "--dtype", "float64"]
    for name, value in in_place(k, run.as_read(options, q)).items():
        line += [f"--{name}", str(value)]
    found, maps = run(*line)

    def expected(o: Options) -> float:
        o, read, distances = run.as_read(o, q), run.as_read(options, q), []
        for i in found["held_out"]:
            turns = turned(*pairs[i], read.get("position"))
            small = (x @ maps[name] for x, name in zip(turns, ("P_q", "P_k"), strict=True))
            distances.append(tv(weights(*pairs[i], o), weights(*small, of_maps(read))))
        return float(np.mean(distances))

    return found["tv_mean"], expected


# The table -------------------------------------------------------------------------------

WORDS = {
    "lengths": "key_lengths", "keys": "key_mask", "closed": "bias", "rope": "position",
    "halves": "position", "alibi": "position", "slopes": "position", "masks": "mask",
    "grouped": "scale",
}  # fmt: skip
STACK = "one head|one key head|one attention matrix|leading axes|must be matrices|must be a matrix"


def heads_of(option: str) -> tuple[np.ndarray, np.ndarray]:
    if option not in STACKS:
        return Q, K
    return Q_HEADS, K_HEADS[:1] if option == "grouped" else K_HEADS


def agrees(got: Any, expected: Any) -> bool:
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        return all(agrees(*pair) for pair in zip(got, expected, strict=True))
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    return got.shape == expected.shape and np.allclose(got, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "option"), CELLS)
def test_an_option_is_honoured_or_refused_by_name(name: str, option: str) -> None:
    options, cell = OPTIONS[option], CELLS[name, option]
    if cell == "r":
        word = WORDS.get(option.rstrip("*"), option.rstrip("*"))
        words = f"{word}|{STACK}" if option in STACKS else word
        if name == "plot.translation":
            words += "|must be a filter"
        with pytest.raises((hf.errors.InputError, TypeError), match=words):
            FUNCTIONS[name](*heads_of(option), options)
        return
    got, expected = FUNCTIONS[name](*heads_of(option), options)
    assert agrees(got, expected(options))
    # Were the option left out, this test would see it, unless it has no part in the answer.
    assert agrees(got, expected({})) == (cell == ".")


@pytest.mark.parametrize("name", [n for n in TABLE if not re.match("Att|att|headfit|pickle", n)])
def test_a_result_with_a_head_is_a_head(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = hf.Attention

    def wrapped(*args: Any, **options: Any) -> Any:
        return SimpleNamespace(attention=head(*args, **options))

    monkeypatch.setattr(hf, "Attention", wrapped)
    got, expected = FUNCTIONS[name](Q, K, {"mask": "causal"})
    assert agrees(got, expected({"mask": "causal"}))


def surface() -> Iterator[tuple[str, Any]]:
    """The public functions, and the methods of public classes."""
    modules = ["bounds", "methods", "patterns", "plot", "results", "rope", "sweep"]
    modules += ["torch"] if find_spec("torch") else []
    places = {"": hf} | {f"{name}.": import_module(f"headfit.{name}") for name in modules}
    for prefix, place in places.items():
        for name in place.__all__:
            found = getattr(place, name)
            if inspect.isclass(found):
                for method, own in inspect.getmembers(found, callable):
                    if method[0] != "_" and "headfit" in (getattr(own, "__module__", "") or ""):
                        yield f"{prefix}{name}.{method}", own
            elif callable(found):
                yield f"{prefix}{name}", found


def may_take_heads(function: Any) -> bool:
    kinds = {
        name: inspect.formatannotation(p.annotation)
        .replace("typing.", "")
        .replace("tuple[Any, ...]", "")
        for name, p in inspect.signature(function).parameters.items()
    }
    return any(
        re.search(r"HeadLike|\bAttention\b", kind)
        or ("Any" in kind and "[Any]" not in kind and name not in NO_HEADS)
        for name, kind in kinds.items()
    )


def test_no_public_function_is_left_out() -> None:
    every = dict(surface())
    found = {
        name
        for name, function in every.items()
        if name.lower().startswith(("attention.", "attention_")) or may_take_heads(function)
    }
    own = {name for name in TABLE if " " not in name and name != "pickle"}
    assert sorted(found - TAKE_NO_HEAD - own) == []
    assert own <= {*every}
    assert {*FUNCTIONS} == {*TABLE}
    assert {*LogitOptions().__dict__} == {name for options in OPTIONS.values() for name in options}


@pytest.mark.parametrize(
    "call",
    [
        lambda head: hf.attention_matrix(head, K),
        lambda head: hf.SelfAttention.canonical(D).input_for(head, head),
        lambda head: hf.plot.curve(head),
        lambda head: hf.fit(head),
        lambda head: hf.plan(head),
        lambda head: hf.spend([head], 4),
    ],
)
def test_a_head_is_refused_where_none_is_taken(call: Any) -> None:
    says = r"must have a curve|got \[?(Attention|Fit)\("
    for head in (hf.Attention(Q, K), hf.fit(BAND, 4)):
        with pytest.raises(hf.errors.InputError, match=says):
            call(head)
