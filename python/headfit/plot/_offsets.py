"""`offsets`: the share of attention at each distance between query and key."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.describe import describe
from headfit._attention.head_table import HeadTable
from headfit._base.arguments import as_count, shown
from headfit._fit.result import Fit
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, check_colors, head_names
from headfit.plot._drawing import BLUE
from headfit.plot._matrix import add_colorbar, root_norm
from headfit.plot._tiles import entry_of_batch
from headfit.plot._types import Axes, AxesImage, BarContainer

_MOST_BARS = 48
_MOST_NAMES = 40


def offsets(
    heads: HeadTable | Attention | Fit | Any,
    *,
    batch: int | None = None,
    ax: Axes | None = None,
    cmap: Any = "viridis",
) -> BarContainer | AxesImage:
    """Draw the share of attention at each distance i - j from a query back to its key.

    Where more than 48 distances occur, shares are added up over the distances 0, 1, 2, 3-4,
    5-8, ..., and the same for keys ahead of the query, with negative distances. The sums add up to
    1 and are readable for sequences of any length; `HeadTable.offset_mass` has every distance.

    Parameters
    ----------
    heads : HeadTable, Attention or Fit
        The table of `describe`, or one or more heads.
    batch : int, optional
        Which entry of a batch to draw, for heads of shape (..., batch, heads, n, d), or
        (batch, n, d) of one head, or the table of such heads. All are drawn when None.
    ax : matplotlib Axes, optional
    cmap : optional
        The colour map of the image for several heads.

    Returns
    -------
    BarContainer or AxesImage
        Bars for one head; for several heads an image with a row per head.

    Raises
    ------
    InputError
        For shapes and arguments that do not fit together.

    Notes
    -----
    Takes the time of `describe` for heads, O(n m d) per head without storing an n x m array,
    and O(n + m) for a table.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from matplotlib.figure import Figure
    >>> X = 8 * np.eye(16)
    >>> table = hf.describe(X, np.roll(X, -1, axis=0), mask="causal")  # row i reads key i - 1
    >>> bars = hf.plot.offsets(table, ax=Figure().subplots())
    >>> [f"{bar.get_height():.2f}" for bar in bars[:3]]
    ['0.06', '0.94', '0.00']
    """
    check_colors(cmap=cmap)
    distance, mass, shape = _shares(heads, batch)
    names = [f"{d}".replace("-", "\u2212") for d in distance]
    if distance.size > _MOST_BARS:
        names, mass = _doubling(distance, mass)
    height = min(9.0, max(2.6, 0.16 * len(mass) + 1.4)) if shape else 3.6
    ax = axes_or_new(ax, 7.0, height)
    ax.set_xlabel("distance from query back to key")
    long = max(map(len, names)) > 3 and len(names) > 9
    sloped: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks(range(len(names)), names, fontsize=8 if len(names) <= 24 else 7, **sloped)
    if not shape:
        ax.set_ylabel("share of attention")
        return ax.bar(np.arange(len(names)), mass[0], color=BLUE, width=0.85)
    image = ax.imshow(mass, aspect="auto", cmap=cmap, norm=root_norm(mass), interpolation="nearest")
    labels = head_names(shape)
    step = -(-len(labels) // _MOST_NAMES)
    ax.set_yticks(range(0, len(labels), step), labels[::step], fontsize=8)
    ax.set_ylabel("head")
    add_colorbar(image, "share of attention")
    return image


def _shares(
    heads: Any, batch: Any
) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[int, ...]]:
    """Return the distances with any attention, its shares by head there, and the heads' shape."""
    head = attention_in(heads)
    if head is None and not isinstance(heads, HeadTable):
        raise InputError(f"heads must be a HeadTable, an Attention or a Fit; got {shown(heads)}")
    lead = heads.shape if head is None else head.lead
    if batch is not None and not lead:
        raise InputError("batch must not be given for one head without an axis of a batch")
    axis = max(-2, -len(lead))  # the axis before the heads, or that of one head
    if head is None:
        mass = heads.offset_mass
        if batch is not None:
            entry = as_count(batch, "batch", 0, lead[axis] - 1)
            mass = np.take(mass, entry, axis % len(lead))
        table, shape = heads, mass.shape[:-1]
    else:
        shape, single = (lead, [head]) if batch is None else entry_of_batch(head, batch, axis)
        tables = [describe(one, shares=()) for one in single]
        table, mass = tables[0], np.stack([table.offset_mass for table in tables])
    mass = np.nan_to_num(mass.reshape((-1, table.offsets.size)))
    some = np.flatnonzero((mass > 0).any(axis=0))
    part = slice(some[0], some[-1] + 1) if some.size else slice(table.n - 1, table.n)
    return table.offsets[part], mass[:, part], shape


def _doubling(
    distance: NDArray[np.int64], mass: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """Return names and sums of the bins 0, 1, 2, 3-4, 5-8, ... behind and ahead of the query."""
    size = np.ceil(np.log2(2 * np.maximum(np.abs(distance), 0.5))).astype(int)
    octave = np.sign(distance) * size
    first = np.flatnonzero(np.diff(octave, prepend=octave[0] - 1))
    names = []
    for o in octave[first]:
        high = int(2.0 ** (abs(o) - 1))
        low = high // 2 + (o != 0)
        ends = [f"{end // 1024}k" if end >= 4096 else f"{end}" for end in sorted({low, high})]
        names.append(("\u2212" if o < 0 else "") + "\u2013".join(ends))
    return names, np.add.reduceat(mass, first, axis=1)
