"""`offsets`: the share of attention at each distance between query and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.describe import describe
from headfit._attention.head_table import HeadTable
from headfit._base.arguments import as_choice, shown
from headfit._base.arrays import as_count
from headfit._base.drawing import BLUE
from headfit._fit.result import Fit
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, check_colors
from headfit.plot._matrix import add_colorbar, root_norm
from headfit.plot._source import entry_of_batch
from headfit.plot._tiles import largest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.image import AxesImage
    from matplotlib.patches import StepPatch

_MOST_BARS = 48
_MOST_NAMES = 40
_COLUMNS = 400  # more distances than this are pooled to as many columns by their maximum


def offsets(
    heads: HeadTable | Attention | Fit | Any,
    *,
    batch: int | None = None,
    bins: Literal["auto", "each", "doubling"] = "auto",
    ax: Axes | None = None,
    cmap: Any = "viridis",
) -> BarContainer | StepPatch | AxesImage:
    """Draw the share of attention at each distance i - j from a query back to its key.

    Parameters
    ----------
    heads : HeadTable, Attention or Fit
        The table of `describe`, or one or more heads.
    batch : int, optional
        Which entry of a batch to draw, for heads of shape (..., batch, heads, n, d), or
        (batch, n, d) of one head, or the table of such heads. All are drawn when None.
    bins : "auto", "each" or "doubling", default "auto"
        "each" shows every distance. "doubling" adds up the shares over the distances 0, 1, 2,
        3-4, 5-8, ..., and the same for keys ahead of the query, with negative distances. The sums
        add up to 1 and are readable for sequences of any length. "auto" takes "each" if at most
        48 distances occur.
    ax : matplotlib Axes, optional
    cmap : optional
        The colour map of the image for several heads.

    Returns
    -------
    BarContainer, StepPatch or AxesImage
        For one head bars, or a filled area if "each" shows more than 48 distances; for several
        heads an image with a row per head.

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
    as_choice(bins, "bins", ("auto", "each", "doubling"))
    check_colors(cmap=cmap)
    profile = _Profile.of(heads, batch)
    distance, mass = profile.occurring()
    each = bins == "each" or (bins == "auto" and distance.size <= _MOST_BARS)
    names = [f"{d}".replace("-", "\u2212") for d in distance]
    if not each:
        names, mass = _doubling(distance, mass)
    if profile.shape:
        ax = axes_or_new(ax, 7.0, min(9.0, max(2.6, 0.16 * len(mass) + 1.4)))
        return _heat_map(ax, distance if each else None, names, mass, profile.shape, cmap)
    ax = axes_or_new(ax, 7.0, 3.6)
    ax.set(xlabel="distance from query back to key", ylabel="share of attention")
    if each and distance.size > _MOST_BARS:
        return _area(ax, distance, mass[0])
    place = np.arange(len(names))
    bars = ax.bar(place, mass[0], color=BLUE, width=0.85)
    _name_bins(ax, names)
    return bars


@dataclass(frozen=True)
class _Profile:
    """The share of attention of heads of any shape at each of their distances."""

    distance: NDArray[np.int64]
    mass: NDArray[np.float64]  # (..., distances)
    zero: int  # the place of distance 0

    @classmethod
    def of(cls, heads: Any, batch: Any) -> _Profile:
        """Return the shares of a table, or measure those of heads."""
        if isinstance(heads, HeadTable):
            return cls._of_table(heads, batch)
        head = attention_in(heads)
        if head is None:
            raise InputError(
                f"heads must be a HeadTable, an Attention or a Fit; got {shown(heads)}"
            )
        if batch is None:
            return cls._of_table(describe(head, shares=()), None)
        shape, single = entry_of_batch(head, batch, _batch_axis(head.lead))
        tables = [describe(one, shares=()) for one in single]
        first = tables[0]
        mass = np.stack([table.offset_mass for table in tables]).reshape(*shape, -1)
        return cls(first.offsets, mass, first.n - 1)

    @classmethod
    def _of_table(cls, table: HeadTable, batch: Any) -> _Profile:
        mass: NDArray[np.float64] = table.offset_mass
        if batch is not None:
            axis = _batch_axis(table.shape)
            entry = as_count(batch, "batch", 0, table.shape[axis] - 1)
            mass = np.take(mass, entry, axis % len(table.shape))
        return cls(table.offsets, mass, table.n - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mass.shape[:-1]

    def occurring(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the range of distances with any attention, and the shares there per head."""
        mass = np.nan_to_num(self.mass.reshape((-1, self.distance.size)))
        some = np.flatnonzero((mass > 0).any(axis=0))
        part = slice(some[0], some[-1] + 1) if some.size else slice(self.zero, self.zero + 1)
        return self.distance[part], mass[:, part]


def _batch_axis(lead: tuple[int, ...]) -> int:
    """Return which leading axis is the batch: the one before the heads, or that of one head."""
    if not lead:
        raise InputError("batch must not be given for one head without an axis of a batch")
    return max(-2, -len(lead))


def _doubling(
    distance: NDArray[np.int64], mass: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """Return names and sums of the bins 0, 1, 2, 3-4, 5-8, ... behind and ahead of the query."""
    size = np.abs(distance)
    octave = np.sign(distance) * np.where(
        size > 0, np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64) + 1, 0
    )
    first = np.flatnonzero(np.diff(octave, prepend=octave[0] - 1))
    names = []
    for start in octave[first]:
        o = int(abs(start))
        low, high = (0, 0) if o == 0 else (2 ** (o - 2) + 1 if o > 1 else 1, 2 ** max(o - 1, 0))
        sign = "\u2212" if start < 0 else ""
        text = sign + (_short(low) if low == high else f"{_short(low)}\u2013{_short(high)}")
        names.append(text)
    return names, np.add.reduceat(mass, first, axis=1)


def _short(count: int) -> str:
    """Return a power of two, or that plus 1, as a short text."""
    return f"{count // 1024}k" if count >= 4096 else f"{count}"


def _area(ax: Axes, distance: NDArray[np.int64], mass: NDArray[np.float64]) -> StepPatch:
    most, starts = largest(mass, _COLUMNS)
    edges = np.append(distance[starts], distance[-1] + 1) - 0.5
    ax.set_xlim(edges[0], edges[-1])
    area = ax.stairs(most, edges, fill=True, color=BLUE, linewidth=0.8)
    ax.set_ylim(bottom=0)
    return area


def _heat_map(
    ax: Axes,
    distance: NDArray[np.int64] | None,
    names: list[str],
    mass: NDArray[np.float64],
    shape: tuple[int, ...],
    cmap: Any,
) -> AxesImage:
    extent = None
    if distance is not None:
        mass, _ = largest(mass, _COLUMNS)
        extent = (distance[0] - 0.5, distance[-1] + 0.5, len(mass) - 0.5, -0.5)
    image = ax.imshow(
        mass, aspect="auto", interpolation="nearest", cmap=cmap, norm=root_norm(mass), extent=extent
    )
    if distance is None:
        _name_bins(ax, names)
    heads = [".".join(map(str, i)) for i in np.ndindex(shape)]
    step = -(-len(heads) // _MOST_NAMES)
    ax.set_yticks(range(0, len(heads), step), heads[::step], fontsize=8)
    ax.set(xlabel="distance from query back to key", ylabel="head")
    add_colorbar(image, "share of attention")
    return image


def _name_bins(ax: Axes, names: list[str]) -> None:
    step = -(-len(names) // _MOST_NAMES)
    long = max(len(name) for name in names) > 3 and len(names) > 9
    ax.set_xticks(
        range(0, len(names), step),
        names[::step],
        rotation=60 if long else 0,
        ha="right" if long else "center",
        rotation_mode="anchor",
        fontsize=8 if len(names) <= 24 else 7,
    )
