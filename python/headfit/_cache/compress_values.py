"""Smaller caches of values: principal components weighted by squares of attention."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headfit import _core
from headfit._attention.attention import HeadLike
from headfit._attention.heads import existing_keys
from headfit._base.arguments import seed_from, shown, thread_count
from headfit._base.arrays import as_float_array, check_finite
from headfit._base.calls import standard_arithmetic
from headfit._base.types import ArrayLike, FloatArray, Seed
from headfit._cache.compress_keys import latent_options, side_by_side, spectrum
from headfit._cache.result import CompressedLayerValues, CompressedValues
from headfit._compress.passages import Passages, checked_shares, given_alone, of_each
from headfit.errors import InputError

SHARE = 0.4  # of the size of a value: its bytes where a call does not say


@standard_arithmetic()
def compress_values(
    layers: Mapping[Any, Sequence[tuple[HeadLike | tuple[ArrayLike, ArrayLike], ArrayLike]]],
    *,
    bytes: float | None = None,
    rank: int | None = None,
    bits: int | None = None,
    held_out: float = 0.25,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> CompressedLayerValues:
    """Find how to store the values of layers in few bytes, so that outputs change least.

    The values of all key heads of a layer become one latent of a few numbers of a few bits each:
    ``z = round((v - mean) @ encode)``. What is read from it is ``z @ decode + mean``. Nothing is
    descended: maps are principal components, where a token counts by the squares of the attention
    that it gets.

    Parameters
    ----------
    layers : mapping of any name to a sequence of (heads, V)
        What each layer computes in some passages: an `Attention` or (Q, K) as `compress_keys` takes
        them, and the values V of shape (key heads, m, dv), or (m, dv) for keys without that axis.
        ``heads.layer_passages(values=True)`` of a capture gives such a mapping.
    bytes : float, optional
        What a token may take for each key head, with all that is stored for it; values in 16 bits
        take 2 dv. 0.4 dv, a fifth of that, where none of `bytes`, `rank` and `bits` is given.
    rank, bits : int, optional
        In place of `bytes`: the number of latents of a layer, and the bits of each, from 1 to 8.
        Without `bits` latents are stored in float16; without `rank` there are as many as numbers
        in the values.
    held_out : float, default 0.25
        The share of the passages that judge the result; as in `compress`. A single one does both.
    rng : seed or Generator, default 0
        For the division of the passages, and the rotation of latents.
    num_threads : int, optional
        The result does not depend on it.

    Returns
    -------
    CompressedLayerValues
        ``result[name].store(V)`` is what a cache holds, ``result[name].read(stored)`` the values.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit; those of a layer name it.

    Notes
    -----
    The error e_j of the value of token j changes the output of row i by p_ij e_j, p its attention.
    Where errors of tokens have nothing to do with each other, the squares of all outputs change by
    the sum over j of w_j |e_j|^2 with w_j the sum of p_ij^2 over rows and query heads. With one key
    head the least such error of a rank is that of the principal components of values with the
    weights w; with several it is near that where they attend alike. Without weights nothing is
    spent on the value of a first token that attention sinks into (Xiao and others 2024), of which
    outputs largely consist. A thousandth of the mean weight is added to each, since other tokens
    would hardly count beside such a one. Bits are spent, mixed and stored as in `compress_keys`.

    Takes O(heads n (m D + dv)) time and O(heads (m + n dv)) memory for a passage of n rows and m
    keys, and O(tokens W^2 + W^3) time for width W = dv times key heads.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> mix = rng.normal(size=(16, 2, 8))  # two key heads of size 8 that have much in common
    >>> def passage():
    ...     x = rng.normal(size=(60, 16)) * 2.0 ** -np.arange(16)
    ...     q, k = rng.normal(size=(2, 2, 60, 8))
    ...     return hf.Attention(q, k, mask="causal"), np.einsum("nw,whd->hnd", x, mix)
    >>> passages = [passage() for _ in range(8)]
    >>> small = hf.compress_values({"a layer": passages}, bytes=3)["a layer"]
    >>> small.bytes, small.whole_bytes, small.error < small.error_of_4_bits
    (3.0, 16, True)
    >>> stored = small.store(passages[0][1])
    >>> stored.shape, small.read(stored).shape
    ((60, 6), (2, 60, 8))
    """
    begun = time.perf_counter()
    shares, seed, threads = checked_shares(held_out, 0), seed_from(rng), thread_count(num_threads)

    def checked(own: Any) -> tuple[Passages, list[FloatArray], _core.LatentOptions]:
        passages, values = _checked(own, shares, seed)
        sizes = passages.key_heads, values[0].shape[-1], SHARE, bytes, rank, bits
        return passages, values, latent_options(*sizes, seed=seed, steps=0, rows=0)

    def found(layer: tuple[Passages, list[FloatArray], _core.LatentOptions]) -> CompressedValues:
        started, (passages, values, options) = time.perf_counter(), layer
        parts, fitted = passages.parts, passages.part(passages.parts.calibration)
        # A floor for tokens beside one that nearly all attention is on. Where no row attends to
        # anything, all tokens but padding count alike.
        weights = [
            (mass + 0.001 * mass.mean() + 1e-200) * existing_keys(a)
            for a, mass in ((a, _core.squared_mass(a.core, threads).sum(0)) for a in fitted)
        ]
        of_values = spectrum([side_by_side(values[i]) for i in parts.calibration], weights)
        each, (encode, decode, mean) = _core.principal_latents(of_values, options)
        result = CompressedValues(
            encode, decode, mean[0], tuple(each) or None, passages.key_heads, None,
            **vars(parts), seconds=time.perf_counter() - started,
        )  # fmt: skip
        judging = [(passages.attentions[i], values[i]) for i in parts.judging]
        return _judged(result, judging, threads)

    each = of_each(of_each(layers, "layer", checked), "layer", found)
    return CompressedLayerValues(each, time.perf_counter() - begun)


@np.errstate(over="ignore")
def _checked(given: Any, shares: Any, seed: int) -> tuple[Passages, list[FloatArray]]:
    pairs = given if isinstance(given, (list, tuple)) else [given]
    if not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and not isinstance(pair[0], np.ndarray)
        for pair in pairs
    ):
        raise InputError(
            f"passages must be pairs (heads, V), as layer_passages(values=True); got {shown(given)}"
        )
    passages = Passages.divided(given_alone([pair[0] for pair in pairs]), None, None, shares, seed)
    values = [as_float_array(V, f"V of passage {i}") for i, (_, V) in enumerate(pairs)]
    for i, (attention, v) in enumerate(zip(passages.attentions, values, strict=True)):
        expected = (*attention.stored[1].shape[:-1], values[0].shape[-1])
        if v.shape != expected or not v.size:
            raise InputError(f"V of passage {i} must be {expected}, not empty; got {v.shape}")
        values[i] = v.astype(np.float32, copy=False)
        check_finite(values[i], f"V of passage {i}, in float32,")
    return passages, values


def _judged(result: CompressedValues, passages: Any, threads: int) -> CompressedValues:
    """Return a result with the errors of the outputs in pairs of an `Attention` and values."""
    sums = np.zeros(3)
    for attention, v in passages:
        stored = result.store(v, num_threads=threads)
        read = result.read(stored, num_threads=threads).reshape(v.shape)
        low, high = v.min(axis=-1, keepdims=True), v.max(axis=-1, keepdims=True)
        step = np.where(high > low, high - low, 1) / 15
        # Attention is linear in values: one pass for the output and for both errors.
        of_each = np.concatenate([v, read - v, low + np.round((v - low) / step) * step - v], -1)
        outputs = attention.apply(of_each, num_threads=threads)
        sums += np.square(outputs.reshape(-1, 3, v.shape[-1]), dtype=np.float64).sum(axis=(0, 2))
    errors = np.sqrt(sums[1:] / (sums[0] or 1.0)).tolist()
    return replace(result, error=errors[0], error_of_4_bits=errors[1])
