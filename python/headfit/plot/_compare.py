"""`compare` and `keys`: a head beside its target, entry by entry, and the keys of one row."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import headfit.plot._axes as _axes
from headfit._attention.attention import attention_in
from headfit._base.arguments import as_count, as_flag
from headfit._base.arrays import FloatArray, widened
from headfit._base.display import number
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._fit.result import Fit
from headfit._target.certify import certify
from headfit._target.target import as_target
from headfit.errors import InputError
from headfit.plot._drawing import BLUE, GREY, INK, ORANGE, Axes, AxesImage, matplotlib
from headfit.plot._matrix import Style, add_colorbar, common_norm, draw_cells
from headfit.plot._tiles import Pool, Source, one_of_batch, source

_RINGS = ("o", "\u25cb"), ("s", "\u25a1")  # markers of the worst entries, and as characters
_HUGE = 1e12  # stands for an infinite share of a tolerance, since colours need finite numbers
_NOISE = 1e-6  # smaller leaks and distortions are not marked: rounding errors of float32
_NARROW = 0.1  # a margin below this share of the range of logits cannot be seen on a linear axis
_MANY = 4000  # more keys off the support than this are small dots, as pixels in vector formats


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
    left, right = source(A, "A"), source(M)
    if left.shape != right.shape:
        raise InputError(f"A and M must have one shape; got {left.shape} and {right.shape}")
    style = Style(relative, pixels, cmap, norm)
    _axes.check_tokens(tokens, left.shape)
    colorbar = axes is None if colorbar is None else as_flag(colorbar, "colorbar")
    known = M.tolerances if isinstance(M, Fit) else None
    allowed = as_tolerances(known if tolerances is None else tolerances)
    places = _axes.new_axes(1, 3, (16.2, 4.8)) if axes is None else _axes.checked_axes(axes)
    if len(places) not in (2, 3):
        raise InputError(f"axes must be two or three; got {len(places)}")
    pixels = _axes.half_pixels(places[0]) if pixels is None else pixels
    drawn = style.draw(places[:2], [A, M], pixels)
    texts = [("target", style.label), ("attention", style.label)]
    if len(places) == 3:
        limits = _limits(left, allowed)
        drawn.append(_draw_errors(places[2], left, right, limits, pixels))
        texts.append(
            ("share of the tolerance used", "share of the tolerance")
            if "leak" in limits
            else ("absolute difference", "|target - attention|")
        )
    for image, (title, label) in zip(drawn, texts, strict=True):
        image.axes.set_title(title)
        if colorbar:
            add_colorbar(image, label)
        _axes.label_tokens(image.axes, tokens)
    for ax in places[1:]:
        ax.set_ylabel("")
    return tuple(drawn)


def _limits(A: Source, allowed: Tolerances) -> dict[str, float]:
    """Return the tolerances of the errors of a pattern, by kind; 1 for differences of others.

    A pattern is a matrix of which at most half is nonzero; queries and keys have no zeros.
    """
    if A.attention is None:
        entries = A.block(0, A.shape[0]) if A.sparse is None else A.sparse.data
        if 2 * np.count_nonzero(entries) <= A.shape[0] * A.shape[1]:
            return {"leak": allowed.leak, "distortion": allowed.distortion}
    return {"difference": 1.0}


def _leak_and_distortion(A: Source, M: Source, start: int, stop: int) -> dict[str, FloatArray]:
    """Return the leak of each entry off the support of its row, and the distortion of those on it.

    They are the entry's weight over the smallest weight on the support, and the ratio of attention
    to target over the smallest such ratio of the row, minus 1.
    """
    target = A.block(start, stop)
    on = target != 0

    def above_least(values: FloatArray) -> FloatArray:
        """Subtract the least value of each row on its support, infinity without any."""
        return np.asarray(values - np.where(on, values, np.inf).min(axis=1, keepdims=True))

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Up to a constant per row. Logits do not underflow as weights do.
        if M.attention is not None:
            logs = M.attention.logits(rows=slice(start, stop))
        else:
            logs = np.log(M.block(start, stop))
        wide = logs.astype(np.float64)
        leak = np.where(on, 0.0, np.exp(above_least(wide)))
        distortion = np.where(on, np.expm1(above_least(wide - np.log(target))), 0.0)
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
    is_pattern = "leak" in limits
    for start, stop in M.blocks():
        if is_pattern:
            by_kind = _leak_and_distortion(A, M, start, stop)
        else:
            by_kind = {"difference": np.abs(A.block(start, stop) - M.block(start, stop))}
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = (np.where(x > 0, x / limits[kind], 0) for kind, x in by_kind.items())
            pool.add(start, np.asarray(sum(shares)))
        for kind, values in by_kind.items():
            row, column = map(int, np.unravel_index(values.argmax(), values.shape))
            value = float(values[row, column])
            if value > worst.get(kind, (_NOISE,))[0]:
                worst[kind] = value, start + row, column
    cmap: Any = "Blues"
    norm, cells = common_norm(None, pool.cells), pool.cells
    if is_pattern:
        cmap = matplotlib().colormaps["Blues"].with_extremes(over=ORANGE)
        cmap.colorbar_extend = "max"
        norm, cells = matplotlib().colors.Normalize(0.0, 1.0), np.minimum(cells, _HUGE)
    image = draw_cells(ax, cells, M.shape, cmap, norm)
    lines = ["key"]
    kinds = sorted(worst.items(), reverse=True)  # leak before distortion
    for (kind, (value, row, column)), (shape, sign) in zip(kinds, _RINGS, strict=False):
        label = f"{kind} {number(value, 3)}" + (f" of {limits[kind]:g}" if is_pattern else "")
        ax.plot(column, row, shape, ms=11, mfc="none", mec=INK, mew=1.4, clip_on=False, label=label)
        lines.append(f"{sign} {label} at row {row}, column {column}")
    ax.set_xlabel("\n".join(lines))
    return image


def keys(
    A: Any, M: Any, row: int | None = None, *, batch: int | None = None, ax: Axes | None = None
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
    if not seen[chosen].all():
        raise InputError(f"row {row} of A attends to keys that M hides")
    logits -= logits[chosen].min()  # a shift of all logits leaves the softmax unchanged
    q, k = head.rotated().stored
    height = np.zeros(len(k))
    height[seen] = _remaining(widened(q[row]), widened(k[seen]))
    ax = _axes.axes_or_new(ax, 6.4, 4.6)
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
            ax.xaxis.get_major_locator().set_params(numticks=7)  # type: ignore[call-arg]
    # The legend is below the axes, since keys may be anywhere within.
    _axes.finish(ax, "logit beside the smallest on the support", "key, leading remaining direction")
    ax.grid(False)
    ax.margins(x=0.06, y=0.1)
    return drawn


def _remaining(query: FloatArray, K: FloatArray) -> FloatArray:
    """Return the keys' leading principal component after the query's direction is removed."""
    along = query.astype(np.float64) / (np.abs(query).max() or 1.0)
    rest = K - (K.astype(np.float64) / len(K)).sum(axis=0)
    rest -= np.outer(rest @ along, along) / (along @ along or 1.0)
    near_one = rest / (np.abs(rest).max() or 1.0)  # float64 holds its squares
    direction = np.linalg.eigh(near_one.T @ near_one)[1][:, -1]
    # Eigenvectors have an arbitrary sign; this choice gives the same picture every time.
    return np.asarray(rest @ direction * np.sign(direction[np.abs(direction).argmax()]))
