"""What rotary positions can express without content: filters of a RoPE's own frequencies."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headfit._base.arguments import as_count, as_flag, as_positive, check_between, shown
from headfit._base.positions import ROPE_BASE, as_frequencies, rope_frequencies
from headfit._base.tolerances import Tolerances, as_tolerances, with_margin
from headfit._base.types import ArrayLike, MaskLike
from headfit._filter.demand import SLACK, Demand, Filter
from headfit._filter.linear_program import solve
from headfit._filter.rope_result import RopeFilter
from headfit._filter.stencil import Floats, Stencil
from headfit._target.target import as_target
from headfit.errors import InputError

__all__ = ["RopeFilter", "filter", "windows"]
__dir__ = __all__.copy

DIM = 64
MOST_TOKENS = 2**24
# Programs are solved for limits that are tighter by so many logits, so that what a certificate
# judges has room for rounding; the second where the first is not enough.
MARGINS = (1e-4, SLACK + 1e-4)
LEAST_DISTORTION = 0.002


def filter(
    pattern: Any,
    *,
    n: int | None = None,
    causal: bool = True,
    mask: MaskLike = None,
    dim: int | None = None,
    base: float | None = None,
    inv_freq: ArrayLike | None = None,
    leak: float | None = None,
    distortion: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    max_norm: float | None = None,
) -> RopeFilter:
    """Return the shortest queries and keys that attend to a window by rotary positions alone.

    All queries are equal and all keys are equal before they are rotated ("without content"), so
    that the logits are one trigonometric polynomial of the offset i - j, with the frequencies of
    the rotary embedding. How small can scale * ||q|| * ||k|| be so that attention is, say, uniform
    over the last 16 keys? Where no norm in reach suffices, a head needs content.

    Parameters
    ----------
    pattern : int, or target
        The width w of a window: tokens attend evenly to the keys at distances 0, 1, ..., w - 1.
        Or a translation-invariant target: a `Target`, a sparse or dense array, or a path.
    n : int, optional
        The number of tokens, at most 2**24. Needed with a width; a target has its own.
    causal : bool, default True
        For a width: whether the window reaches back only. False: to both sides, 2 w - 1 keys.
    mask : optional
        For a target: its mask, None, "causal" or a window; a `Target` has its own.
    dim : int, optional
        The number of rotated dimensions of the head, 64 by default: two for each frequency.
        Dimensions that are not rotated (partial rotary embeddings) only add a constant to all
        logits, and are not counted; where `max_logit` bounds these, give 0 in `inv_freq` for them.
    base : float, optional
        The base of the frequencies base**(-2 f / dim), 10,000 by default.
    inv_freq : array_like, shape (dim / 2,), optional
        The frequencies themselves, in radians per position, in place of `dim` and `base`: what
        transformers calls ``inv_freq``, with whatever scaling for long sequences.
    leak, distortion, max_logit, tolerances : optional
        The tolerances: see `Tolerances`. A distortion must be at least 0.002.
    max_norm : float, optional
        The norm above which the pattern counts as out of reach. By default
        log(1 + distortion) * 2**23, about 800,000 for the default distortion: above it the rounding
        of queries and keys to float32 alone may use up the distortion.

    Returns
    -------
    RopeFilter

    Raises
    ------
    InputError, TargetError
        For an argument out of range, or a target that is not translation-invariant.

    Notes
    -----
    For given frequencies, the least norm is a linear program, up to the amplitude
    hypot(a, b) of each frequency, for which a polygon stands that is within 2% of it. `norm` is
    that of the filter that was found, which is checked at every offset; `least_norm` is a lower
    bound for all filters of these frequencies, that follows from the program's multipliers by weak
    duality and does not rest on the solver. Where no row has all offsets, and the pattern is not
    symmetric, the filter meets more than rows ask for, and the bound is further below it. Takes
    O(n dim) time and memory for each of a few programs, whose size hardly depends on n: seconds.

    Examples
    --------
    >>> import headfit as hf
    >>> found = hf.rope.filter(4, n=256, dim=32, leak=0.3, distortion=0.5)
    >>> found.status, bool(found.least_norm <= found.norm < 1.03 * found.least_norm)
    ('found', True)
    >>> A = hf.patterns.causal_band(256, 3)  # a token and three before it
    >>> head = found.attention().rotated()
    >>> hf.certify(A, head, leak=0.3, distortion=0.5).holds
    True
    >>> hf.rope.filter(64, n=256, dim=32).status
    'out of reach'
    """
    tolerances = _tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    frequencies, base = _frequencies(dim, base, inv_freq)
    stencil, mask = _stencil(pattern, n, as_flag(causal, "causal"), mask)
    limit = as_positive(max_norm, "max_norm") or math.log1p(tolerances.distortion) * 2.0**23
    filter_, least_norm = _shortest(frequencies, Demand(stencil, tolerances), limit)
    return RopeFilter(
        stencil=stencil, mask=mask, base=base, frequencies=frequencies, tolerances=tolerances,
        max_norm=limit, filter=filter_, least_norm=least_norm,
    )  # fmt: skip


def windows(
    widths: Any,
    *,
    n: int,
    causal: bool = True,
    dims: Sequence[int] = (64, 128),
    bases: Sequence[float] = (1e4, 5e5, 1e6),
    tolerances: Tolerances | Sequence[Tolerances] | None = None,
    max_norm: float | None = None,
) -> tuple[RopeFilter, ...]:
    """Return the shortest filter for windows of several widths, head sizes and bases.

    Parameters
    ----------
    widths : sequence of int
        As in `filter`; `n`, `causal` and `max_norm` too.
    dims, bases, tolerances : sequences
        All their combinations are tried.

    Returns
    -------
    tuple of RopeFilter
        In the order of tolerances, dims, bases and widths; `plot.rope` draws them.

    Raises
    ------
    InputError
        For an argument out of range.

    Notes
    -----
    Takes a few seconds for each combination.

    Examples
    --------
    >>> import headfit as hf
    >>> loose = hf.Tolerances(leak=0.3, distortion=0.5)
    >>> found = hf.rope.windows([2, 4, 8], n=128, dims=[32], bases=[1e4], tolerances=loose)
    >>> [f.width for f in found], found[0].norm < found[1].norm < found[2].norm
    ([2, 4, 8], True)
    """
    asked = [tolerances] if isinstance(tolerances, Tolerances | None) else tolerances
    n = as_count(n, "n", 1, MOST_TOKENS)
    combinations = itertools.product(
        _listed(asked, "tolerances", _tolerances),
        _listed(dims, "dims", lambda dim: _as_dim(dim, "dims")),
        _listed(bases, "bases", lambda base: check_between(base, "bases", 1, math.inf)),
        _listed(widths, "widths", lambda width: as_count(width, "widths", 1, n)),
    )
    return tuple(
        filter(width, n=n, causal=causal, dim=dim, base=base, tolerances=limits, max_norm=max_norm)
        for limits, dim, base, width in combinations
    )


def _tolerances(tolerances: Any, **limits: float | None) -> Tolerances:
    """Return checked tolerances that a filter of given frequencies can be designed for."""
    checked = as_tolerances(tolerances, **limits)
    if checked.distortion < LEAST_DISTORTION:
        raise InputError(
            f"distortion must be at least {LEAST_DISTORTION} for a filter of given frequencies, "
            f"which is designed to within {SLACK:g} in every logit; got {checked.distortion:g}"
        )
    return checked


def _listed(values: Any, name: str, check: Callable[[Any], Any]) -> list[Any]:
    """Return checked values of a sequence."""
    try:
        listed = [values] if isinstance(values, bytes) else list(values)  # bytes are no numbers
    except TypeError as error:
        raise InputError(f"{name} must be a sequence; got {shown(values)}") from error
    return [check(value) for value in listed]


def _as_dim(dim: Any, name: str = "dim") -> int:
    size = as_count(dim, name, 2, 2**15)
    if size % 2:
        raise InputError(f"{name} must be even, two for each frequency; got {size}")
    return size


def _frequencies(dim: Any, base: Any, inv_freq: Any) -> tuple[Floats, float | None]:
    """Return checked frequencies, and their base if they have one."""
    if inv_freq is None:
        dim = DIM if dim is None else _as_dim(dim)
        base = ROPE_BASE if base is None else check_between(base, "base", 1, math.inf)
        return rope_frequencies(dim, base), base
    for name, value in (("dim", dim), ("base", base)):
        if value is not None:
            raise InputError(f"{name} and inv_freq must not both be given; got {shown(value)}")
    frequencies = as_frequencies(inv_freq, "inv_freq")
    if (frequencies < 0).any():
        raise InputError(f"inv_freq must not be negative; got {shown(inv_freq)}")
    return frequencies, None


def _stencil(pattern: Any, n: Any, causal: bool, mask: Any) -> tuple[Stencil, Any]:
    """Return the offsets that are attended to, and the mask."""
    if isinstance(pattern, (int, np.integer)) and not isinstance(pattern, bool):
        if n is None:
            raise InputError("n must be given with the width of a window")
        if mask is not None:
            raise InputError(f"mask must not be given with a width, but causal; got {shown(mask)}")
        n = as_count(n, "n", 1, MOST_TOKENS)
        width = as_count(pattern, "pattern, the width of a window,", 1, n)
        offsets = np.arange(0 if causal else 1 - width, width)
        window = Stencil(n, offsets, np.zeros(offsets.size), 0 if causal else 1 - n, n - 1)
        return window, "causal" if causal else None
    if n is not None or not causal:
        raise InputError(
            "pattern must be the width of a window, an integer, where n or causal is given (a "
            f"target has its own n and mask); got {shown(pattern)}"
        )
    target = as_target(pattern, mask=mask)
    stencil = Stencil.of(target)
    i, block, places = stencil.apart, stencil.block, stencil.offsets
    low, high = np.maximum(stencil.first, i - stencil.n + 1), np.minimum(stencil.last, i)
    # Rows of one key are as any filter has them; so are those within a window of equal weights.
    inside = np.searchsorted(places, high, "right") - np.searchsorted(places, low)
    uniform = i[(high > low) & ((inside <= high - low) | (np.ptp(stencil.log_weights) > 1e-9))]
    if block > 1 or uniform.size:
        raise InputError(
            "pattern must be translation-invariant token by token, as rotary positions are; got "
            + (f"blocks of {block} tokens" if block > 1 else f"row {uniform[0]} uniform")
        )
    return stencil, target.mask


def _shortest(frequencies: Floats, demand: Demand, max_norm: float) -> tuple[Filter | None, float]:
    """Return the shortest filter, or None, and a lower bound of the norm of all of them."""
    least, needed = 0.0, demand.of_rows
    # A proof that the norm is out of reach is found faster than the solver gives up. One for a
    # smaller norm often proves much more, and can be found where that for a larger norm cannot.
    for norm in (max_norm / 10, max_norm, max_norm / 100):
        near = solve(frequencies, needed, max_norm=norm)
        bound = 0.0 if near is None else near.least_norm(needed)
        least = max(least, bound)
        if least > max_norm:
            return None, least
        if near is not None and bound <= norm / 2:  # nothing is lacking
            break
    allowed = demand.tolerances
    for margin in MARGINS:
        limit = None if allowed.max_logit is None else max(allowed.max_logit - margin, 1e-9)
        tighter = Tolerances(*with_margin(allowed.leak, allowed.distortion, margin), limit)
        solved = near = solve(frequencies, dataclasses.replace(needed, tolerances=tighter))
        least = max(least, 0.0 if near is None else near.least_norm(needed))
        if needed is not demand:
            solved = solve(frequencies, dataclasses.replace(demand, tolerances=tighter))
        if solved is None:
            break
        if demand.lacks(solved.filter) <= -margin / 10 and solved.filter.norm <= max_norm:
            return solved.filter, least
    return None, least
