"""`describe`: measures of what heads attend to, in a table with one row per head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention, HeadLike
from headfit._attention.head_table import HeadTable
from headfit._attention.logits import LogitKeywords, names_logit_options
from headfit._attention.profile import Counts, Measures, Profile, mean_of
from headfit._base.arguments import as_count, thread_count
from headfit._base.arrays import FloatArray
from headfit._base.calls import interruptible, standard_arithmetic
from headfit._base.display import named
from headfit._base.types import ArrayLike
from headfit.errors import InputError

# Triangular factors of so many numbers are held at once, or those of a single head.
MOST_NUMBERS = 2**18


@names_logit_options()
@standard_arithmetic()
def describe(
    Q: HeadLike,
    K: ArrayLike | None = None,
    *,
    tokens: ArrayLike | None = None,
    per_row: int = 8,
    per_column: int | None = None,
    share: float = 0.9,
    shares: float | Sequence[float] = (0.9, 0.95, 0.99),
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> HeadTable:
    """Measure heads: how sparse they are, where they attend, and the rank of their logits.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, sinks, num_threads
        As in `Attention`; leading axes are batch or layers, and heads. Instead, Q may be
        an `Attention` (or a `Fit`), which has its own keys and options.
    tokens : array_like of int, shape (n,) or (..., n), optional
        The token at each position, for the induction score. Leading axes, if there are any, are
        the first ones of Q.
    per_row, share : int and float, default 8 and 0.9
        The definition of a row's support: its largest entries until they hold `share` of its
        mass, but at most `per_row` of them.
    per_column : int, optional
        The most rows that may have a column in their support for the head to be called sparse;
        `per_row` when None.
    shares : float or sequence of float in (0, 1], default (0.9, 0.95, 0.99)
        For each share, the fewest keys of a row that hold it are counted.

    Returns
    -------
    HeadTable
        Its attributes are arrays with the leading axes of Q; its repr is a table.

    Raises
    ------
    InputError
        For arguments of the wrong kind, range or shape.
    NonFiniteError
        For NaN or infinity in Q, K or bias.

    Notes
    -----
    Takes O(n m d) time per head in one pass over the logits, and O(n + m) memory per head
    besides Q, K and their triangular factors (for the rank): never an n x m array. The rank is
    that of scale * Q K^T, with rotary positions but before bias, softcap and mask.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> X = 8 * np.eye(16)
    >>> table = hf.describe(X, np.roll(X, -1, axis=0), per_row=1)  # row i reads key i - 1
    >>> table.previous.round(3), bool(table.sparse), int(table.rank)
    (np.float64(1.0), True, 16)
    >>> print(table.statement())
    sparse at 1 a row and 1 a column: 100% of the rows hold 90% of their mass in 1 key (100% on
    average, 100% at worst); column 0 serves 1 of 16 rows
    """
    attention = Attention.of(Q, K, **options)
    n, m = attention.n, attention.m
    if 0 in (n, m):
        raise InputError(f"Q and K must have rows; got {n} and {m}")
    measures = Measures(min(as_count(per_row, "per_row", 1), m), per_column, share, shares)
    threads = thread_count(num_threads)
    profile = Profile.of(attention, measures, tokens, threads)
    rows = np.maximum(profile.present.sum(axis=-1), 1)[..., np.newaxis]
    column_mass, offset_mass = profile.column_mass / rows, profile.offset_mass / rows
    offsets = np.arange(1 - n, m)
    distance = np.asarray(offset_mass @ np.abs(offsets).astype(np.float64))
    key_mass = profile.over_rows(np.nanmean, profile.key_mass)
    if attention.sinks is not None:
        distance = distance / np.where(key_mass > 0, key_mass, np.nan)
    rank, rank_99 = _ranks(attention, threads)
    return HeadTable(
        n=n,
        m=m,
        **vars(measures),
        **named(profile, "keys", "top_mass", "load", "sink_columns", "sparse"),
        keys_mean=profile.over_keys(np.nanmean),
        keys_median=profile.over_keys(np.nanmedian),
        keys_max=profile.over_keys(np.nanmax),
        top_mass_mean=profile.over_rows(np.nanmean, profile.top_mass),
        top_mass_worst=profile.over_rows(np.nanmin, profile.top_mass),
        max_load=profile.load.max(axis=-1),
        gamma=profile.over_rows(np.nanmax, profile.gamma),
        gamma_median=profile.over_rows(np.nanmedian, profile.gamma),
        entropy=profile.over_rows(np.nanmean, profile.entropy),
        key_mass=key_mass,
        column_mass=column_mass,
        sink_mass=(column_mass * profile.sink_columns).sum(axis=-1),
        offsets=offsets,
        offset_mass=offset_mass,
        distance=distance,
        previous=mean_of(*profile.at_offset(1)),
        diagonal=mean_of(*profile.at_offset(0)),
        induction=profile.over_rows(np.nanmean, profile.induction),
        rank=rank,
        rank_99=rank_99,
    )


def _ranks(attention: Attention, threads: int) -> tuple[Counts, Counts]:
    """Return numerical ranks, and how many singular values hold 99% of the squared sum.

    The second number is that of the logits with the mean of each row subtracted.
    """
    spectra = product_spectrum(attention.core, math.prod(attention.lead), attention.dim, threads)
    values, centred = (x.reshape((*attention.lead, attention.dim)) for x in spectra)
    # A singular value counts if it exceeds this share of the largest one.
    least = max(attention.n, attention.m) * float(np.finfo(attention.dtype).eps)
    rank = (values > least * values[..., :1]).sum(axis=-1)
    top = centred[..., :1]
    energy = np.cumsum((centred / np.where(top > 0, top, 1)) ** 2, axis=-1)
    # If all keys are equal, nothing but rounding errors is left after subtracting the means: the
    # centred logits count as zero where they are below the threshold of the rank.
    nonzero = top[..., 0] > least * values[..., 0]
    return rank, np.where(nonzero, (energy < 0.99 * energy[..., -1:]).sum(axis=-1) + 1, 0)


def product_spectrum(
    logits: _core.Logits, heads: int, dim: int, threads: int
) -> tuple[FloatArray, FloatArray]:
    """Return the singular values, largest first, of Q K^T of every head, and of its centred rows.

    Centred means without the mean of each row, which softmax does not see. Scale, softcap, bias
    and mask are left out, rotary positions are not; padding keys count as no keys.

    With QR decompositions Q = U R and K = V T, the singular values of Q K^T are those of the
    small matrix R T^T; keys less their mean give logits without the means of their rows. Time
    O((n + m) dim^2) and memory O(dim^2) for each head.
    """
    values, centred = np.empty((heads, dim)), np.empty((heads, dim))
    step = max(1, MOST_NUMBERS // dim**2)
    for first in range(0, heads, step):
        some = slice(first, min(first + step, heads))
        queries, *both = _core.triangular_factors(logits, first, some.stop - first, threads)
        for result, keys in zip((values, centred), both, strict=True):
            products = queries @ keys.swapaxes(-1, -2)
            result[some] = interruptible(10.0 * dim * products.size, np.linalg.svdvals, products)
    return values, centred
