"""`keys`: the keys in a plane with one query, and the margin that separates its support."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import attention_in
from headfit._base.arguments import as_count
from headfit._base.arrays import widened
from headfit._base.display import number
from headfit._fit.result import Fit
from headfit._target.certify import certify
from headfit._target.target import as_target
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish
from headfit.plot._drawing import BLUE, GREY, INK, ORANGE
from headfit.plot._tiles import one_of_batch
from headfit.plot._types import Axes

_NARROW = 0.1  # a margin below this share of the range of logits cannot be seen on a linear axis
_MANY = 4000  # more keys off the support than this are small dots, as pixels in vector formats


def keys(
    A: Any,
    M: Any,
    row: int | None = None,
    *,
    batch: int | None = None,
    ax: Axes | None = None,
) -> SimpleNamespace:
    """Draw the keys by their logits for one query: the support on the right, others on the left.

    The horizontal axis is the logit of the row, that is the position of the keys along the
    direction of its query. The vertical axis is the leading principal component of the keys
    after that direction is projected out, which does not affect the logits. Dashed lines mark the
    smallest logit on the support, which is shifted to 0, and the largest off it. Their difference
    is the logarithm of the row's leak, and every hyperplane between them separates the support.
    If it is small compared with the range of the logits, the axis is logarithmic outside of it.

    Parameters
    ----------
    A : Target, sparse or dense matrix
        The target; its nonzeros in the row are the support.
    M : Attention or a result with one
        Queries and keys of one head. Keys that are masked in the row are not drawn.
    row : int, optional
        The row to draw. None takes the row of largest leak, by the certificate of a `Fit` or by
        `certify`.
    batch : int, optional
        Which entry of a batch to draw, for an `Attention` of shape (batch, n, d).
    ax : matplotlib Axes, optional

    Returns
    -------
    SimpleNamespace
        ``support`` and ``others``, the points on and off the support; ``support_line`` and
        ``others_line``; and ``nearest``, the point of largest logit off the support. None for
        parts that a row does not have.

    Raises
    ------
    InputError
        If `M` is not a single head or an entry of its batch, or the row does not exist or has no
        nonzeros.

    Notes
    -----
    Takes O(n d**2) time for a given row, and O(n**2 d) to find the row of largest leak.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> A = hf.patterns.band(64, 1)
    >>> picture = hf.plot.keys(A, hf.fit(A, dim=4, rng=0), 5, ax=Figure().subplots())
    >>> len(picture.support.get_offsets()), len(picture.others.get_offsets())
    (3, 61)
    """
    if batch is not None and attention_in(M) is not None:
        (M,) = one_of_batch(batch, M)
    head = attention_in(M)
    if head is None or head.stored[0].ndim != 2:
        raise InputError(
            "M must be a Fit or an Attention of one head, or of a batch with batch=: keys have "
            "queries"
        )
    target = as_target(A, mask=head.mask)
    if target.n != head.n or target.n != head.m:
        raise InputError(f"A and M must have one shape; got n={target.n} and {head!r}")
    if row is None:
        known = isinstance(M, Fit)
        judged = M.certificate if known else certify(target, head, certificate_mass=False)
        row = int(np.argmax(judged.row_leak))
    row = as_count(row, "row", 0, target.n - 1)
    chosen = target.matrix[[row]].indices
    if not chosen.size:
        raise InputError(f"row {row} of A has no nonzeros: nothing to separate")
    logits = head.logits(rows=[row])[0].astype(np.float64)
    seen = np.isfinite(logits)
    logits -= logits[chosen].min()  # a shift of all logits leaves the softmax unchanged
    height = _remaining(*(widened(x) for x in (head.stored[0][row], head.stored[1])))
    ax = axes_or_new(ax, 6.4, 4.6)
    drawn = SimpleNamespace(others=None, others_line=None, nearest=None)
    off = np.setdiff1d(np.flatnonzero(seen), chosen)
    if off.size:
        many = off.size > _MANY
        drawn.others = ax.scatter(
            logits[off], height[off], s=3 if many else 14, color=GREY, alpha=0.6, linewidth=0,
            zorder=2.5, rasterized=many, label=f"other keys ({off.size})",
        )  # fmt: skip
    drawn.support = ax.scatter(
        logits[chosen], height[chosen], s=46, color=ORANGE, edgecolor="white", linewidth=0.7,
        zorder=3, label=f"support ({chosen.size})",
    )  # fmt: skip
    drawn.support_line = ax.axvline(0.0, color=ORANGE, linestyle="--", linewidth=1.2)
    if off.size:
        place = int(off[logits[off].argmax()])
        high = float(logits[place])
        drawn.others_line = ax.axvline(high, color=INK, linestyle="--", linewidth=1.2)
        drawn.nearest = ax.scatter(
            [high], [height[place]], s=26, color=INK, zorder=3, label=f"nearest other key, {place}"
        )
        shade = BLUE if high < 0 else ORANGE  # orange if no hyperplane separates the support
        ax.axvspan(min(0.0, high), max(0.0, high), color=shade, alpha=0.12, linewidth=0)
        with np.errstate(over="ignore"):
            leak = number(float(np.exp(high)), 3)
        ax.set_title(f"row {row}: margin {0.0 - high:.3g}, leak {leak}")
        share = abs(high) / float(np.ptp(logits[seen]) or 1.0)
        if 0 < share < _NARROW:  # a linear axis would hide the margin
            scale = max(0.6, -float(np.log10(share)) / 6)
            ax.set_xscale("symlog", linthresh=abs(high), linscale=scale)
            locator: Any = ax.xaxis.get_major_locator()
            locator.set_params(numticks=7)
    # The legend is below the axes, since keys may be anywhere within.
    finish(ax, "logit beside the smallest on the support", "key, leading remaining direction")
    ax.grid(False)
    ax.margins(x=0.06, y=0.1)
    return drawn


def _remaining(query: NDArray[Any], K: NDArray[Any]) -> NDArray[np.float64]:
    """Return the keys' leading principal component after the query's direction is removed."""
    along = query.astype(np.float64) / (np.linalg.norm(query) or 1.0)
    rest = K - K.mean(axis=0, dtype=np.float64)
    rest -= np.outer(rest @ along, along)
    direction = np.linalg.eigh(rest.T @ rest)[1][:, -1]
    # Eigenvectors have an arbitrary sign; this choice gives the same picture every time.
    return np.asarray(rest @ direction * np.sign(direction[np.abs(direction).argmax()]))
