"""How many dimensions each of several heads gets from one budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.frames import data_frame
from headfit._base.plain import plain_dict
from headfit._base.shown import html_table

__all__ = ["TradeOff"]

MOST_ROWS = 20
"""How many totals a notebook shows."""


@dataclass(frozen=True, eq=False)
class TradeOff:
    """Closeness against the number of dimensions of all heads, on the validation passages.

    Attributes
    ----------
    total : ndarray of int
        Dimensions of all heads together, rising.
    tv_mean : ndarray
        The mean over heads of their mean total variation.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> heads = np.random.default_rng(0).normal(size=(2, 12, 2, 20, 4))
    >>> hf.compress_heads(list(map(list, heads)), total=4, effort=1).trade_off.total
    array([2, 5, 8])
    """

    total: NDArray[np.int64]
    tv_mean: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as lists, for JSON."""
        return plain_dict(vars(self))

    def to_pandas(self) -> Any:
        """Return ``tv_mean`` as a pandas DataFrame, by the total of dimensions.

        Raises
        ------
        ImportError
            Without pandas.
        """
        return data_frame(vars(self), "").set_index("total")

    def __repr__(self) -> str:
        return (
            f"TradeOff({self.total[0]} dimensions: total variation {self.tv_mean[0]:.3g}, ..., "
            f"{self.total[-1]}: {self.tv_mean[-1]:.3g})"
        )

    def _repr_html_(self) -> str:
        # Both ends are among the rows.
        places = np.unique(np.linspace(0, self.total.size - 1, MOST_ROWS).round().astype(int))
        rows = [(str(self.total[i]), f"{self.tv_mean[i]:.3g}") for i in places]
        left = self.total.size - places.size
        return html_table(
            "TradeOff: mean total variation of all heads by the total of their dimensions",
            ("dimensions", "total variation"),
            rows,
            [f"and {left} totals between these"] if left else [],
        )


def shared_out(
    curves: Mapping[Any, Mapping[int, float]], total: float
) -> tuple[dict[Any, int], TradeOff]:
    """Return a size for each head with at most `total` dimensions, and the path to all of them.

    Every head begins at its least size; the step that lowers total variation most for each
    dimension it takes is made next, over any number of sizes of one head. So a head is always at
    a corner of the convex hull of its curve, and no other sizes with as many dimensions as a
    point of the path have less total variation. Steps that do not fit `total` any more are left
    out for good.
    """
    sizes = {name: min(curve) for name, curve in curves.items()}
    path = [(sum(sizes.values()), _mean(curves, sizes))]
    chosen = dict(sizes)
    while True:
        steps = [
            ((curve[sizes[name]] - curve[dim]) / (dim - sizes[name]), -place, name, dim)
            for place, (name, curve) in enumerate(curves.items())
            for dim in curve
            if dim > sizes[name] and curve[dim] < curve[sizes[name]]
        ]
        if not steps:
            break
        _, _, name, dim = max(steps, key=lambda step: (*step[:2], -step[3]))
        left = total - sum(chosen.values())
        if chosen[name] == sizes[name] and dim - sizes[name] <= left:
            chosen[name] = dim
        sizes[name] = dim
        path.append((sum(sizes.values()), _mean(curves, sizes)))
    totals, means = zip(*path, strict=True)
    return chosen, TradeOff(np.array(totals, dtype=np.int64), np.array(means))


def _mean(curves: Mapping[Any, Mapping[int, float]], sizes: Mapping[Any, int]) -> float:
    return float(np.mean([curves[name][dim] for name, dim in sizes.items()]))
