"""`describe`: measures of what heads attend to, in a table with one row per head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike
from headfit._attention.head_table import AXES, Counts, Floats, HeadTable, axis_names
from headfit._attention.logits import LogitOptions
from headfit._attention.spectrum import product_spectrum
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_array, as_count, as_share, as_shares, thread_count
from headfit._base.types import ArrayLike, MaskLike, PositionLike
from headfit.errors import InputError

__all__ = ["HeadTable", "describe"]


def _previous(tokens: Any, lead: tuple[int, ...], n: int) -> Counts:
    """Return the last earlier position of each position's token, or -1; shape (heads, n)."""
    array = as_array(tokens, "tokens")
    if array.dtype.kind not in "iu" or array.ndim < 1 or array.shape[-1] != n:
        raise InputError(
            f"tokens must be integers of shape (..., {n}); got shape {array.shape} of {array.dtype}"
        )
    batch = array.shape[:-1] + (1,) * (len(lead) - array.ndim + 1)
    order = np.argsort(array, axis=-1, kind="stable")
    in_order = np.take_along_axis(array, order, axis=-1)
    before = np.where(in_order[..., 1:] == in_order[..., :-1], order[..., :-1], -1)
    previous = np.full(array.shape, -1, dtype=np.int64)
    np.put_along_axis(previous, order[..., 1:], before, axis=-1)
    try:
        of_heads = np.broadcast_to(previous.reshape((*batch, n)), (*lead, n))
    except ValueError as error:
        raise InputError(
            f"tokens must have the leading axes {lead} or the first of them; got {array.shape[:-1]}"
        ) from error
    return np.ascontiguousarray(of_heads.reshape((math.prod(lead), n)))


def _ranks(values: Floats, centred: Floats, least: float) -> tuple[Counts, Counts]:
    """Return the numerical rank, and how many singular values hold 99% of the squared sum.

    Parameters
    ----------
    values : ndarray, shape (..., d)
        Singular values of the logits, largest first.
    centred : ndarray, shape (..., d)
        Those of the logits with the mean of each row subtracted.
    least : float
        A singular value counts if it exceeds this share of the largest one.
    """
    rank = (values > least * values[..., :1]).sum(axis=-1)
    energy = np.cumsum(centred**2, axis=-1)
    # If all keys are equal, nothing but rounding errors is left after subtracting the means: the
    # centred logits count as zero where they are below the threshold of the rank.
    nonzero = centred[..., 0] > least * values[..., 0]
    rank_99 = np.where(nonzero, (energy < 0.99 * energy[..., -1:]).sum(axis=-1) + 1, 0)
    return np.asarray(rank), np.asarray(rank_99)


def _over_rows(
    function: Callable[..., Any], values: NDArray[Any], present: NDArray[np.bool_]
) -> Floats:
    """Apply a NaN-aware reduction over a head's nonempty rows; NaN for a head without any."""
    masked = np.where(present, values, np.nan)
    some = present.any(axis=-1)
    result = np.full(some.shape, np.nan)
    result[some] = function(masked[some], axis=-1)
    return result


@standard_arithmetic()
def describe(
    Q: HeadLike,
    K: ArrayLike | None = None,
    *,
    scale: float | None = None,
    mask: MaskLike = None,
    key_lengths: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    per_row: int = 8,
    per_column: int | None = None,
    share: float = 0.9,
    shares: float | Sequence[float] = (0.9, 0.95, 0.99),
    axes: Sequence[str] = AXES,
    num_threads: int | None = None,
) -> HeadTable:
    """Measure heads: how sparse they are, where they attend, and the rank of their logits.

    Parameters
    ----------
    Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, sinks, num_threads
        As in `attention_matrix`; leading axes are batch or layers, and heads. Instead, Q may be
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
    axes : sequence of str, default ("batch", "head")
        The names of the leading axes of Q, for the table, such as ("layer", "batch", "head"). The
        default means ("head",) for one leading axis, and ("axis0", ..., "batch", "head") for more
        than two.

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
    Takes O(n m d) time per head in two passes over the logits, and O(n + m) memory per head
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
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position, key_mask, sinks)
    attention = Attention.of(Q, K, options)
    lead, n, m = attention.lead, attention.n, attention.m
    if 0 in (n, m):
        raise InputError(f"Q and K must have rows; got {n} and {m}")
    names = axis_names(axes, len(lead))
    per_row = min(as_count(per_row, "per_row", 1), m)
    per_column = per_row if per_column is None else as_count(per_column, "per_column", 1)
    wanted = np.array([as_share(share, "share"), *as_shares(shares, "shares")])
    if tokens is not None and n != m:
        raise InputError(f"tokens need as many queries as keys; got {n} and {m}")
    previous = None if tokens is None else _previous(tokens, lead, n)
    threads = thread_count(num_threads)
    found = _core.attention_stats(attention.core, wanted[1:], threads)
    entropy, key_mass = (found[i].reshape((*lead, n)) for i in (0, 4))
    keys = found[3].reshape((*lead, n, wanted.size - 1))
    profile = {
        name: array.reshape((*lead, array.shape[-1]))
        for name, array in _core.head_profile(
            attention.core, per_row, wanted[0], previous, threads
        ).items()
    }
    present = profile["kept"] > 0
    rows = present.sum(axis=-1)
    share_of = np.where(rows > 0, rows, 1)[..., np.newaxis]
    load, top_mass = profile["load"], profile["top_mass"]
    sink_columns = (2 * load > rows[..., np.newaxis]) & (load > per_column)
    column_mass = profile["column_mass"] / share_of
    offset_mass = profile["offset_mass"] / share_of
    offsets = np.arange(1 - n, m)
    distance = np.asarray(offset_mass @ np.abs(offsets).astype(np.float64))
    mean_key_mass = _over_rows(np.nanmean, key_mass, present)
    if attention.sinks is not None:
        distance = distance / np.where(mean_key_mass > 0, mean_key_mass, np.nan)

    def over_keys(function: Callable[..., Any]) -> Floats:
        each = [_over_rows(function, keys[..., s], present) for s in range(keys.shape[-1])]
        return np.stack(each, axis=-1) if each else np.empty((*lead, 0))

    worst = _over_rows(np.nanmin, top_mass, present)
    max_load = load.max(axis=-1)

    def at_offset(offset: int) -> Floats:
        key = np.arange(n) + m - n - offset
        count = (present & (key >= 0) & (key < m)).sum(axis=-1)
        total = profile["offset_mass"][..., offset + n - 1] if 1 - n <= offset < m else 0.0
        return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)

    induction = np.full(lead, np.nan)
    if previous is not None:
        score = profile["induction"]
        induction = _over_rows(np.nanmean, score, ~np.isnan(score))
    spectra = product_spectrum(attention.core, math.prod(lead), attention.dim, threads)
    values, centred = (x.reshape((*lead, -1)) for x in spectra)
    least = max(n, m) * float(np.finfo(attention.dtype).eps)
    rank, rank_99 = _ranks(values, centred, least)
    with np.errstate(over="ignore"):
        gammas = np.exp(profile["log_gamma"])
    return HeadTable(
        n=n,
        m=m,
        shares=tuple(float(s) for s in wanted[1:]),
        keys=keys,
        keys_mean=over_keys(np.nanmean),
        keys_median=over_keys(np.nanmedian),
        keys_max=over_keys(np.nanmax),
        per_row=per_row,
        per_column=per_column,
        share=float(wanted[0]),
        top_mass=top_mass,
        top_mass_mean=_over_rows(np.nanmean, top_mass, present),
        top_mass_worst=worst,
        load=load,
        max_load=max_load,
        gamma=_over_rows(np.nanmax, gammas, present),
        gamma_median=_over_rows(np.nanmedian, gammas, present),
        entropy=_over_rows(np.nanmean, entropy, present),
        column_mass=column_mass,
        key_mass=mean_key_mass,
        sinks=sink_columns,
        sink_mass=(column_mass * sink_columns).sum(axis=-1),
        offsets=offsets,
        offset_mass=offset_mass,
        distance=distance,
        previous=at_offset(1),
        diagonal=at_offset(0),
        induction=induction,
        rank=rank,
        rank_99=rank_99,
        sparse=(worst >= wanted[0] - 1e-12) & (max_load <= per_column),
        axes=names,
    )
