"""Smaller caches of keys: latents of a few bits for all key heads of a layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import HeadLike
from headfit._attention.heads import existing_keys
from headfit._base.arguments import LARGEST, as_count, as_number
from headfit._base.calls import interruptible, standard_arithmetic
from headfit._base.positions import Positions, as_positions, turn
from headfit._base.types import ArrayLike, PositionLike, Seed
from headfit._cache.packing import latents_per_step
from headfit._cache.result import CompressedKeys, CompressedLayers
from headfit._compress.free_maps import Moment
from headfit._compress.maps import Closeness
from headfit._compress.passages import Passages, checked_shares, given_alone, of_each
from headfit._fit.learned import effort_steps
from headfit._shrink.descent import Running
from headfit.errors import InputError

EFFORTS = {"low": 80, "medium": 320, "high": 1280}
SHARE = 0.275  # of D: the bytes of a key where a call does not say
ROWS = 96  # of one passage in every step


@standard_arithmetic()
def compress_keys(
    layers: Mapping[Any, Sequence[HeadLike | tuple[ArrayLike, ArrayLike]]],
    *,
    bytes: float | None = None,
    rank: int | None = None,
    bits: int | None = None,
    step: str | int = "token",
    rotated: PositionLike = None,
    length: int | None = None,
    held_out: float = 0.25,
    validation: float = 0.25,
    effort: str | int = "medium",
    callback: Callable[[Any, float], Any] | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> CompressedLayers:
    """Find how to store the keys of layers in few bytes, so that attention changes least.

    The keys of all heads of a layer, before rotary positions, become one latent of a few numbers
    of a few bits each: ``z = round((k - mean) @ encode)``. What is read from it is
    ``z @ decode + mean``, turned to the position of the token. Attention is that of the whole
    queries and the keys that were read: this makes a cache smaller, not its arithmetic; for that
    see `compress`.

    Parameters
    ----------
    layers : mapping of any name to a sequence of Attention or of (Q, K)
        Queries and keys of each layer in some passages, with the leading axis heads: Q of shape
        (heads, n, D), K of shape (key heads, n, D). An `Attention` has masks and other options;
        ``heads.layer_passages()`` of a capture gives such a mapping.
    bytes : float, optional
        What a token may take for each key head, with all that is stored for it; keys in 16 bits
        take 2 D. The bits go where the keys vary, 8 for a latent at most: near that more bytes
        gain nothing. Without `bytes`, `rank` and `bits` 0.275 D, and 3 for a token at least.
    rank, bits : int, optional
        In place of `bytes`: the number of latents of a layer, and the bits of each, from 1 to 8.
        Without `bits` latents are stored in float16; without `rank` there are as many as numbers
        in the keys.
    step : "token", "latent" or int, default "token"
        What has a step, by which its latents of a few bits are multiplied: each token, in 2 bytes;
        each latent, found with the maps, for layers of which 2 bytes are a large part: keys far
        larger than those of the passages are cut off then; or, with a number, so many latents of a
        token together, in 2 bytes for each group.
    rotated : rotary position, optional
        The position by which queries and keys have been rotated already, as those that
        `headfit.torch.capture` reads: ("rope-half", inv_freq), ... The first key of a passage has
        position 0; with padding on the left a model needs `position_ids` for that. Passages with a
        `position` of their own need none. Without either, maps act on keys as they are.
    length : int, optional
        Keys are stored as they are after rotary positions, and need not be turned back, which takes
        more latents. Maps then act on positions up to `length`: passages are moved as far, queries
        and keys alike, and longer ones warn.
    held_out, validation : float, default 0.25
        The shares of the passages that judge the result, and of the others that choose among the
        steps of the descent; as in `compress`. A single passage does all three.
    effort : "low", "medium", "high" or int, default "medium"
        The steps of the descent: 80, 320 or 1280. 0 takes the principal components.
    callback : callable, optional
        Called after each layer with its name and its `validation_kl`. What it returns is not used.
    rng : seed or Generator, default 0
        For the division of the passages, the start, and the rows of each step.
    num_threads : int, optional
        Layers are fitted side by side. The result does not depend on it.

    Returns
    -------
    CompressedLayers
        ``result[name].store(K)`` is what a cache holds, ``result[name].read(stored)`` the keys.

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit; those of a layer name it.

    See Also
    --------
    compress_values, spend : the values of the same cache; one budget for all layers.

    Notes
    -----
    Before the rotation keys of different heads of a layer have much in common, and no map has to
    know positions: what is fitted to short passages holds for long ones. The start are principal
    components. Bits are spent on them where each lowers the squared error most (reverse
    water-filling in steps); those with as many bits are mixed by a random rotation, and scaled to
    the best step for normal numbers. From there Adam descends the mean KL divergence of all query
    heads from their own attention, on a few rows of one passage per step, with the rounding inside:
    a shift by a constant, while steps of a token change with its latents. In a language model
    this halves the divergence of the principal components, or more.

    A step costs O(rows m heads D + m W rank) for width W = D times key heads; memory is that
    of the passages, three times.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> mix = rng.normal(size=(16, 2, 8))  # two key heads of size 8 that have much in common
    >>> def passage():
    ...     x = rng.normal(size=(60, 16)) * 2.0 ** -np.arange(16) * 4
    ...     k = np.einsum("nw,whd->hnd", x, mix)
    ...     q = np.repeat(np.roll(k, 1, axis=1), 2, axis=0)
    ...     return hf.Attention(q, k, position="rope", mask="causal")
    >>> passages = [passage() for _ in range(8)]
    >>> small = hf.compress_keys({"a layer": passages}, bytes=4)["a layer"]
    >>> small.bytes, small.whole_bytes, small.kl < 0.1
    (4.0, 16, True)
    >>> stored = small.store(passages[0].rotated().K)
    >>> stored.shape, small.read(stored).shape
    ((60, 8), (2, 60, 8))
    """
    begun = time.perf_counter()
    shares = checked_shares(held_out, validation)
    running = Running.of(effort=effort, callback=callback, rng=rng, num_threads=num_threads)
    steps = effort_steps(effort, EFFORTS, least=0)
    together = latents_per_step(step)

    def checked(own: Any) -> tuple[_Layer, _core.LatentOptions]:
        layer = _Layer.divided(given_alone(own), rotated, length, shares, running.seed)
        layer = layer if length is None else layer.moved(running.seed)
        given = layer.key_heads, layer.dim, SHARE, bytes, rank, bits, together
        return layer, latent_options(*given, steps=steps, rows=ROWS, seed=running.seed)

    found, options = zip(*of_each(layers, "layer", checked).values(), strict=True)
    names = list(layers)
    done = None if callback is None else lambda at, kl: callback(names[at], kl)
    cores = [layer.core(turned=length is None) for layer in found]
    fits = _core.fit_layers(cores, options, done, running.threads)
    how = {
        "step": step if isinstance(step, str) else together,
        "length": length and found[0].length,
    }
    results = [x.result(fit, running.threads, how) for x, fit in zip(found, fits, strict=True)]
    return CompressedLayers(dict(zip(names, results, strict=True)), time.perf_counter() - begun)


class _Layer(Passages):
    def core(self, turned: bool) -> Any:
        position = self.position if turned else None
        longest = max(a.m for a in self.attentions)
        positions = as_positions(position, (), (0, longest), self.dim, np.float32)
        fitted = self.part(self.parts.calibration)
        of_keys = spectrum([_flat_keys(a.K, positions)[existing_keys(a)] for a in fitted])
        choosing = self.moves * self.parts.validation.size
        return _core.LayerPassages(
            self.fitted, positions.table, positions.halves, of_keys, choosing
        )

    def result(self, fit: Any, threads: int, how: dict[str, Any]) -> CompressedKeys:
        bits, (encode, decode, mean), start, loss, seconds = fit
        found = CompressedKeys(
            encode, decode, mean[0], tuple(bits) or None, self.key_heads, self.position,
            **vars(self.parts), start_kl=start, validation_kl=loss, seconds=seconds,
            **how,
        )  # fmt: skip
        originals = self.part(self.parts.judging)
        smaller = (found.apply(a, num_threads=threads) for a in originals)
        return replace(found, **Closeness.of(originals, smaller, threads)._asdict())


def _flat_keys(k: NDArray[np.float32], positions: Positions) -> NDArray[np.float32]:
    """Return the keys of all heads side by side, before positions."""
    if positions.table is not None:
        cosines, sines = np.hsplit(positions.table[: k.shape[-2]], 2)
        k = turn(k, cosines, -sines, positions.halves, np.empty_like(k))
    return side_by_side(k)


def latent_options(
    heads: int, dim: int, share: float, bytes: Any, rank: Any, bits: Any, together: int = LARGEST,
    **descent: int,
) -> _core.LatentOptions:  # fmt: skip
    """Return the sizes of the latents of a layer, and the descent, as the core takes them.

    Where a call does not say, a token takes a share of `dim` bytes for each head. So many latents
    `together` share a step of a token; with 0 tokens have no steps.
    """
    own: Any = {"latents_per_step": together, **descent}
    if rank is None and bits is None:
        least = (3 if together else 1) / heads
        size = max(least, share * dim) if bytes is None else as_number(bytes, "bytes")
        if not least <= size < np.inf:
            raise InputError(
                f"bytes must be at least {least!r} for {heads} key heads: 8 bits of latents for a "
                f"token{' and a step of 2 bytes' if together else ''}; got {size!r}"
            )
        total = int(min(size, 3 * dim) * heads + 1e-6)
        return _core.LatentOptions(bits=[], rank=0, total_bits=8 * total, **own)
    if bytes is not None:
        raise InputError("bytes must not be given beside rank or bits, which it decides")
    width = dim * heads
    rank = as_count(width if rank is None else rank, "rank", 1, width)
    if bits is None and together != LARGEST:
        raise InputError("step must not be given with rank alone, whose latents have no bits")
    each = [] if bits is None else [as_count(bits, "bits", 1, 8)] * rank
    return _core.LatentOptions(bits=each, rank=rank, total_bits=0, **own)


def side_by_side(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what a layer has of each token, of all heads beside each other."""
    return x if x.ndim == 2 else np.hstack(list(x))


def spectrum(
    tokens: Sequence[NDArray[np.float32]], weights: Sequence[Moment] | None = None
) -> tuple[Moment, Moment, Moment]:
    """Return the mean of tokens, their variances along principal components, falling, and these.

    A token counts as much as its weight.
    """
    weights = [np.ones(len(x)) for x in tokens] if weights is None else weights
    total: Any = np.concatenate(weights).sum() or 1.0
    mean = sum(w @ x for w, x in zip(weights, tokens, strict=True)) / total
    moment = np.zeros((len(mean), len(mean)))
    for w, x in zip(weights, tokens, strict=True):
        centred = x - mean
        moment += (centred.T * w) @ centred / total
    variances, components = interruptible(9.0 * len(mean) ** 3, np.linalg.eigh, moment)
    return mean[np.newaxis], variances[np.newaxis, ::-1].clip(0), components[:, ::-1].copy()
