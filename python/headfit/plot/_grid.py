"""`heads_grid`: small pictures of many heads on a common scale, with a row per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.single_heads import single_heads
from headfit._base.arguments import shown
from headfit._base.arrays import is_sparse
from headfit.errors import InputError
from headfit.plot._axes import listed_axes, new_axes
from headfit.plot._matrix import check_style, draw_matrices, weight_name
from headfit.plot._source import HELD_MATRICES, entry_of_batch, source

_PANEL = 1.35  # size of a picture in inches
_CELLS = 96  # the most tiles along a side of a picture
_MOST_PER_LINE = 8  # pictures in a row, if heads have no layers


def heads_grid(
    heads: Any,
    *,
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
    heads : Attention, captured heads or sequence
        Heads of shape (layers, heads, n, d) or (heads, n, d); what `headfit.torch.capture`
        found, of which the first passage of each layer is drawn; a sequence of matrices or heads
        that `attention` can draw; or a sequence of such sequences, one for each layer.
    batch : int, optional
        Which entry of a batch to draw, for an `Attention` of shape (layers, batch, heads, n, d) or
        (batch, heads, n, d).
    axes : array of matplotlib Axes, optional
        One for each head in order; those of a new figure, with a row per layer, when None.
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

    Notes
    -----
    Takes O(n m d) time per head, and memory for a block of rows and the tiles of all heads.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> import matplotlib.pyplot as plt
    >>> Q, K = np.random.default_rng(0).standard_normal((2, 2, 3, 16, 4))  # 2 layers, 3 heads
    >>> images = hf.plot.heads_grid(hf.Attention(Q, K, mask="causal"))
    >>> images.shape, images[1, 2].axes.get_title()
    ((2, 3), '1.2')
    >>> plt.close("all")
    """
    shape, matrices = _listed(heads, batch)
    count = len(matrices)
    if not count:
        raise InputError("heads must have at least one; got none")
    check_style(relative, pixels, cmap, norm)
    for M in matrices:
        source(M)
    names: list[Any] = [".".join(map(str, i)) for i in np.ndindex(shape)]
    if titles is not None:
        if isinstance(titles, str) or not isinstance(titles, (Sequence, np.ndarray)):
            raise InputError(f"titles must be a sequence of texts; got {shown(titles)}")
        names = list(titles)
    places: list[Any] = names if axes is None else listed_axes(axes)
    for name, values in (("titles", names), ("axes", places)):
        if len(values) != count:
            raise InputError(f"{name} must be one for each of {count} heads; got {len(values)}")
    places = _new_grid(shape) if axes is None else places
    pixels = _CELLS if pixels is None else pixels
    drawn = draw_matrices(places, matrices, relative, pixels, cmap, norm)
    for ax, title in zip(places, names, strict=True):
        ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
        ax.set_title(str(title), fontsize=8, pad=2)
    if axes is None:
        figure: Any = places[0].figure
        rows, columns = places[0].get_gridspec().get_geometry()
        bar = {"fraction": 0.15 / columns, "pad": 0.02, "aspect": 12 * rows}
        figure.colorbar(drawn[0], ax=places, label=weight_name(relative), **bar)
    images = np.empty(count, dtype=object)
    images[:] = drawn
    return images.reshape(shape)


def _listed(heads: Any, batch: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of the grid, and its matrices in order."""
    if hasattr(heads, "first_passages"):
        heads = heads.first_passages()
    if isinstance(heads, Attention) and batch is not None and len(heads.lead) in (2, 3):
        return entry_of_batch(heads, batch, -2)
    if isinstance(heads, Attention) and batch is None and len(heads.lead) in (1, 2):
        return heads.lead, single_heads(heads)
    if isinstance(heads, Attention):
        raise InputError(
            "heads must have shape (layers, heads, n, d) or (heads, n, d), or one axis more and "
            f"batch=; got {heads.stored[0].shape} and batch = {shown(batch)}"
        )
    if batch is not None:
        raise InputError(f"batch must not be given without an Attention; got {shown(batch)}")
    one = isinstance(heads, HELD_MATRICES) or is_sparse(heads) or attention_in(heads) is not None
    one = one or getattr(heads, "ndim", 3) < 3
    if one or isinstance(heads, str) or not hasattr(heads, "__len__"):
        raise InputError("heads must be an Attention of several, or a sequence of matrices")
    lines = [line if isinstance(line, (list, tuple)) else None for line in heads]
    if all(line is None for line in lines):
        return (len(lines),), list(heads)
    lengths = {0 if line is None else len(line) for line in lines}
    if len(lengths) != 1 or not min(lengths):
        raise InputError("heads must have as many matrices in each layer")
    return (len(lines), lengths.pop()), [M for line in lines for M in line or ()]


def _new_grid(shape: tuple[int, ...]) -> list[Any]:
    """Return the axes of a new figure: a row per layer, or rows of `_MOST_PER_LINE` heads."""
    count, columns = int(np.prod(shape)), min(shape[-1], _MOST_PER_LINE)
    columns = shape[1] if len(shape) == 2 else columns
    rows = -(-count // columns)
    size = max(3.0, _PANEL * columns + 1), max(1.8, (_PANEL + 0.2) * rows)
    places = new_axes(rows, columns, size)
    for empty in places[count:]:
        empty.remove()
    return places[:count]
