"""`heads_grid`: small pictures of many heads on a common scale, with a row per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.logits import LogitOptions
from headfit._attention.single_heads import single_heads
from headfit._attention.sparsify import Sparsified
from headfit._base.arguments import as_flag, shown
from headfit._base.arrays import as_count, as_stored_array, is_sparse
from headfit._base.drawing import matplotlib
from headfit._fit.result import Fit
from headfit._soft.fit_soft import SoftFit
from headfit._target.target import Target
from headfit.errors import InputError
from headfit.plot._axes import check_colors, listed_axes, new_axes
from headfit.plot._batch import entry_of_batch
from headfit.plot._matrix import draw_cells, root_norm, weight_name
from headfit.plot._source import source
from headfit.plot._tiles import tiles

_PANEL = 1.35  # size of a picture in inches
_CELLS = 96  # the most tiles along a side of a picture
_MOST_PER_LINE = 8  # pictures in a row, if heads have no layers
_SINGLE_HEADS = (Attention, Fit, SoftFit, Sparsified, Target)


def heads_grid(
    heads: Any,
    K: Any = None,
    *,
    scale: float | None = None,
    mask: Any = None,
    batch: int | None = None,
    axes: Any = None,
    titles: Sequence[str] | None = None,
    relative: bool = False,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
) -> NDArray[Any]:
    """Draw the attention of many heads as small pictures on a common scale.

    Parameters
    ----------
    heads : array_like or sequence
        Queries of shape (layers, heads, n, d) or (heads, n, d), with `K` as keys; an `Attention`
        of such shapes; what `headfit.torch.capture` found, of which the first passage of each
        layer is drawn; a sequence of matrices or heads that `attention` can draw; or a sequence
        of such sequences, one for each layer. With `batch`, queries have one axis more before the
        heads.
    K : array_like, optional
        The keys, if `heads` are queries; there may be fewer heads of them, as in
        `attention_matrix`.
    scale, mask : optional
        As in `attention_matrix`, for queries and keys.
    batch : int, optional
        Which entry of a batch to draw, for queries of shape (layers, batch, heads, n, d) or
        (batch, heads, n, d).
    axes : array of matplotlib Axes, optional
        The axes to draw on, one for each head in order; those of a new figure, with a row per
        layer, when None.
    titles : sequence of str, optional
        A title for each head in order; their indices when None.
    relative, pixels, cmap, norm
        As in `attention`, the same for all heads.

    Returns
    -------
    ndarray of matplotlib AxesImage, shape (layers, heads) or (heads,)

    Raises
    ------
    InputError
        For shapes that do not fit together, no heads, or another number of axes or titles.
    ImportError
        If Matplotlib is not installed.

    Notes
    -----
    Takes O(n m d) time per head, and memory for a block of rows and the tiles of all heads.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> import matplotlib.pyplot as plt
    >>> Q, K = np.random.default_rng(0).standard_normal((2, 2, 3, 16, 4))  # 2 layers, 3 heads
    >>> images = hf.plot.heads_grid(Q, K, mask="causal")
    >>> images.shape, images[1, 2].axes.get_title()
    ((2, 3), '1.2')
    >>> plt.close("all")
    """
    matplotlib()
    shape, matrices = _heads(heads, K, scale, mask, batch)
    count = len(matrices)
    if not count:
        raise InputError("heads must have at least one; got none")
    check_colors(cmap, norm)
    as_flag(relative, "relative")
    if pixels is not None:
        pixels = as_count(pixels, "pixels", 1)
    names = [".".join(map(str, i)) for i in np.ndindex(shape)]
    if titles is not None:
        if isinstance(titles, str) or not isinstance(titles, (Sequence, np.ndarray)):
            raise InputError(f"titles must be a sequence of texts; got {shown(titles)}")
        names = [str(title) for title in titles]
        if len(names) != count:
            raise InputError(f"titles must be one for each of {count} heads; got {len(names)}")
    places = listed_axes(np.ravel(axes)) if axes is not None else _new_grid(shape)
    for name, given in (("titles", names), ("axes", places)):
        if len(given) != count:
            raise InputError(f"{name} must be one for each of {count} heads; got {len(given)}")
    cells = [tiles(M, _CELLS if pixels is None else pixels, relative=relative) for M in matrices]
    norm = root_norm(*cells) if norm is None else norm
    images = np.empty(count, dtype=object)
    for i, (ax, M) in enumerate(zip(places, matrices, strict=True)):
        images[i] = draw_cells(ax, cells[i], source(M).shape, cmap, norm)
        ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
        ax.set_title(names[i], fontsize=8, pad=2)
    if axes is None:
        figure = places[0].figure
        rows, columns = places[0].get_gridspec().get_geometry()
        bar = {"fraction": 0.15 / columns, "pad": 0.02, "aspect": 12 * rows}
        figure.colorbar(images[0], ax=figure.axes, label=weight_name(relative), **bar)
    return images.reshape(shape)


def _heads(
    heads: Any, K: Any, scale: Any, mask: Any, batch: Any
) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of the grid, and its matrices in order."""
    if hasattr(heads, "first_passages") and K is None:
        if scale is not None or mask is not None:
            raise InputError("scale and mask must not be given beside captured heads")
        heads = heads.first_passages()
    if isinstance(heads, Attention) and heads.stored[0].ndim > 2 and K is None:
        heads.check_settings(LogitOptions(scale, mask))
        return _split(heads, batch)
    if K is not None:
        q, k = as_stored_array(heads, "heads"), as_stored_array(K, "K")
        if q.ndim < 3:
            raise _unfit(q.shape)
        return _split(Attention(q, k, scale=scale, mask=mask), batch)
    for name, value in {"batch": batch, "scale": scale, "mask": mask}.items():
        if value is not None:
            raise InputError(f"{name} goes with queries and keys; got {shown(value)} without them")
    if isinstance(heads, _SINGLE_HEADS) or is_sparse(heads) or not hasattr(heads, "__len__"):
        raise InputError("heads must be queries with K, or a sequence of matrices")
    lines = [line if isinstance(line, (list, tuple)) else None for line in heads]
    if all(line is None for line in lines):
        return (len(lines),), list(heads)
    lengths = {0 if line is None else len(line) for line in lines}
    if len(lengths) != 1 or not min(lengths):
        raise InputError("heads must have as many matrices in each layer")
    return (len(lines), lengths.pop()), [M for line in lines for M in line or ()]


def _split(heads: Attention, batch: Any) -> tuple[tuple[int, ...], list[Any]]:
    lead = heads.lead
    if batch is None:
        if len(lead) not in (1, 2):
            raise _unfit(heads.stored[0].shape)
        return lead, single_heads(heads)
    if len(lead) not in (2, 3):
        raise InputError(
            "batch is for queries of shape (layers, batch, heads, n, d) or (batch, heads, n, d); "
            f"got {heads.stored[0].shape}"
        )
    return entry_of_batch(heads, batch, -2)


def _unfit(shape: tuple[int, ...]) -> InputError:
    return InputError(
        f"heads must have shape (layers, heads, n, d) or (heads, n, d), or one axis more and "
        f"batch=; got {shape}"
    )


def _new_grid(shape: tuple[int, ...]) -> list[Any]:
    """Return the axes of a new figure: a row per layer, or rows of `_MOST_PER_LINE` heads."""
    import matplotlib.pyplot as plt

    if len(shape) == 2:
        rows, columns = shape
    else:
        columns = min(shape[0], _MOST_PER_LINE)
        rows = -(-shape[0] // columns)
    if rows * columns == 1:
        return list(new_axes(size=(3.6, 3.0)))
    figure, grid = plt.subplots(
        rows,
        columns,
        squeeze=False,
        figsize=(max(3.0, _PANEL * columns + 1), max(1.8, (_PANEL + 0.2) * rows)),
    )
    figure.set_layout_engine("constrained", w_pad=0.04, h_pad=0.05)
    places = list(grid.ravel())
    for empty in places[int(np.prod(shape)) :]:
        figure.delaxes(empty)
    return places[: int(np.prod(shape))]
