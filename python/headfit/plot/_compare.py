"""`compare`: a target, the attention of a head, and where the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_flag
from headfit._base.display import number
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._fit.result import Fit
from headfit.errors import InputError
from headfit.plot._axes import check_tokens, checked_axes, half_pixels, label_tokens, new_axes
from headfit.plot._drawing import INK, ORANGE, matplotlib
from headfit.plot._matrix import Style, add_colorbar, draw_cells, root_norm
from headfit.plot._tiles import Pool, Source, one_of_batch, source
from headfit.plot._types import Axes, AxesImage

_RINGS = ("o", "\u25cb"), ("s", "\u25a1")  # markers of the worst entries, and as characters
_HUGE = 1e12  # stands for an infinite share of a tolerance, since colours need finite numbers
_NOISE = 1e-6  # smaller leaks and distortions are not marked: rounding errors of float32

Floats = NDArray[np.float64]


def compare(
    A: Any,
    M: Any,
    *,
    batch: int | None = None,
    axes: Sequence[Axes] | None = None,
    tokens: Sequence[Any] | None = None,
    relative: bool = True,
    tolerances: Tolerances | None = None,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
    colorbar: bool | None = None,
) -> tuple[AxesImage, ...]:
    """Draw a target, the attention that should reproduce it, and where it leaks and distorts.

    The third picture shows which share of its tolerance each entry uses. Off the pattern this is
    the leak (its weight over the smallest weight of the row on the pattern), divided by the
    tolerance; on the pattern the distortion (how much larger its ratio of attention to target is
    than the smallest such ratio of the row), divided by the tolerance. Shares up to 1 are blue,
    larger ones orange. Markers show the worst entry of either kind. If the target is not sparse,
    the picture shows absolute differences of the weights.

    Parameters
    ----------
    A : Target, Sparsified, sparse or dense matrix, Attention or a result with one
        The target. A matrix counts as sparse if at most half of its entries are nonzero.
    M : Attention, a result with one, sparse or dense matrix
        The attention.
    batch : int, optional
        Which entry to draw of those of `A` and `M` that are a batch, as in `attention`.
    axes : sequence of two or three matplotlib Axes, optional
        Two for target and attention alone.
    tokens, pixels, cmap, norm, colorbar : optional
        As in `attention`; `norm` is for the first two pictures, which share one scale.
    relative : bool, default True
        Draw each weight divided by the largest of its row. These ratios within a row are what a
        certificate is about. With False, mass off the support makes the support darker.
    tolerances : Tolerances, optional
        Those of `M` when None, if it is a `Fit`; otherwise the defaults.

    Returns
    -------
    tuple of matplotlib AxesImage
        One for each of the axes.

    Raises
    ------
    InputError
        For matrices of different shapes, stacks of heads without `batch`, or labels of another
        number.

    Notes
    -----
    Takes O(n m d) time for queries and keys, twice, and the memory of a block of rows, never
    n x m. The shares have the rounding errors of the arrays' dtype; `certify` proves them.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> A = hf.patterns.tree(32)
    >>> images = hf.plot.compare(A, hf.fit(A, 1024), axes=Figure().subplots(1, 3))
    >>> [image.axes.get_title() for image in images]
    ['target', 'attention', 'share of the tolerance used']
    """
    A, M = one_of_batch(batch, A, M)
    left, right = source(A), source(M)
    if left.shape != right.shape:
        raise InputError(f"A and M must have one shape; got {left.shape} and {right.shape}")
    style = Style(relative, pixels, cmap, norm)
    check_tokens(tokens, left.shape)
    colorbar = axes is None if colorbar is None else as_flag(colorbar, "colorbar")
    known = M.tolerances if isinstance(M, Fit) else None
    allowed = as_tolerances(known if tolerances is None else tolerances)
    places = new_axes(1, 3, (16.2, 4.8)) if axes is None else checked_axes(axes)
    if len(places) not in (2, 3):
        raise InputError(f"axes must be two or three; got {len(places)}")
    pixels = half_pixels(places[0]) if pixels is None else pixels
    drawn = style.draw(places[:2], [A, M], pixels)
    texts = [("target", style.label), ("attention", style.label)]
    if len(places) == 3:
        limits = _limits(left, allowed)
        drawn.append(_draw_errors(places[2], left, right, limits, pixels))
        texts.append(
            ("share of the tolerance used", "share of the tolerance")
            if limits
            else ("absolute difference", "|target - attention|")
        )
    for image, (title, label) in zip(drawn, texts, strict=True):
        image.axes.set_title(title)
        if colorbar:
            add_colorbar(image, label)
        label_tokens(image.axes, tokens)
    for ax in places[1:]:
        ax.set_ylabel("")
    return tuple(drawn)


def _limits(A: Source, allowed: Tolerances) -> dict[str, float]:
    """Return the tolerances of the errors of a pattern, by kind; nothing for another target.

    A pattern is a matrix of which at most half is nonzero; queries and keys have no zeros.
    """
    if A.attention is None:
        entries = A.block(0, A.shape[0]) if A.sparse is None else A.sparse.data
        if 2 * np.count_nonzero(entries) <= A.shape[0] * A.shape[1]:
            return {"leak": allowed.leak, "distortion": allowed.distortion}
    return {}


def _leak_and_distortion(A: Source, M: Source, start: int, stop: int) -> dict[str, Floats]:
    """Return the leak of each entry off the support of its row, and the distortion of those on it.

    They are the entry's weight over the smallest weight on the support, and the ratio of attention
    to target over the smallest such ratio of the row, minus 1.
    """
    target = A.block(start, stop)
    on = target != 0
    logs = M.logarithms(start, stop).astype(np.float64)

    def above_least(values: Floats) -> Floats:
        """Subtract the least value of each row on its support, infinity without any."""
        return np.asarray(values - np.where(on, values, np.inf).min(axis=1, keepdims=True))

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        leak = np.where(on, 0.0, np.exp(above_least(logs)))
        distortion = np.where(on, np.expm1(above_least(logs - np.log(target))), 0.0)
    # NaN is -inf minus -inf, both on the support or both off it: no error.
    errors = {"leak": leak, "distortion": distortion}
    return {kind: np.nan_to_num(x, nan=0.0, posinf=np.inf) for kind, x in errors.items()}


def _draw_errors(
    ax: Axes, A: Source, M: Source, limits: dict[str, float], pixels: int
) -> AxesImage:
    """Draw which share of its tolerance each entry uses, or differences where there is none.

    Shares are blue, and orange beyond a tolerance. The worst entries are marked; the marks are
    explained below the label of the axis.
    """
    pool, worst = Pool(M.shape, pixels), dict[str, tuple[float, int, int]]()
    for start, stop in M.blocks():
        if limits:
            by_kind = _leak_and_distortion(A, M, start, stop)
            with np.errstate(invalid="ignore", divide="ignore"):
                shares = (np.where(x > 0, x / limits[kind], 0) for kind, x in by_kind.items())
                pool.add(start, np.asarray(sum(shares)))
        else:
            by_kind = {"difference": np.abs(A.block(start, stop) - M.block(start, stop))}
            pool.add(start, by_kind["difference"])
        for kind, values in by_kind.items():
            row, column = map(int, np.unravel_index(values.argmax(), values.shape))
            value = float(values[row, column])
            if value > worst.get(kind, (_NOISE,))[0]:
                worst[kind] = value, start + row, column
    cmap: Any = "Blues"
    norm, cells = root_norm(pool.cells), pool.cells
    if limits:
        cmap = matplotlib().colormaps["Blues"].with_extremes(over=ORANGE)
        cmap.colorbar_extend = "max"
        norm, cells = matplotlib().colors.Normalize(0.0, 1.0), np.minimum(cells, _HUGE)
    image = draw_cells(ax, cells, M.shape, cmap, norm)
    lines = ["key"]
    kinds = sorted(worst.items(), reverse=True)  # leak before distortion
    for (kind, (value, row, column)), (shape, sign) in zip(kinds, _RINGS, strict=False):
        limit = f" of {limits[kind]:g}" if limits else ""
        label = f"{kind} {number(value, 3)}{limit}"
        ax.plot(column, row, shape, ms=11, mfc="none", mec=INK, mew=1.4, clip_on=False, label=label)
        lines.append(f"{sign} {label} at row {row}, column {column}")
    ax.set_xlabel("\n".join(lines))
    return image
