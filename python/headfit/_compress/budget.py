"""How many dimensions each of several heads gets from one budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headfit._compress.maps import Closeness
from headfit._shrink.result import TvCurve


def shared_out(
    curves: Mapping[Any, Mapping[int, Closeness]], total: float
) -> tuple[dict[Any, int], TvCurve]:
    """Return a size for each head with at most `total` dimensions, and the path to all of them.

    Every head begins at its least size; the step that lowers total variation most for each
    dimension it takes is made next, over any number of sizes of one head. So a head is always at
    a corner of the convex hull of its curve, and no other sizes with as many dimensions as a
    point of the path have less total variation. Steps that do not fit `total` any more are left
    out for good.
    """
    sizes = {name: min(curve) for name, curve in curves.items()}
    path, chosen = [dict(sizes)], dict(sizes)
    while True:
        steps = [
            ((curve[sizes[name]].tv_mean - curve[dim].tv_mean) / (dim - sizes[name]),
             -place, -dim, name)
            for place, (name, curve) in enumerate(curves.items())
            for dim in curve
            if dim > sizes[name] and curve[dim].tv_mean < curve[sizes[name]].tv_mean
        ]  # fmt: skip
        if not steps:
            break
        _, _, dim, name = max(steps, key=lambda step: step[:3])
        left = total - sum(chosen.values())
        if chosen[name] == sizes[name] and -dim - sizes[name] <= left:
            chosen[name] = -dim
        sizes[name] = -dim
        path.append(dict(sizes))
    return chosen, TvCurve.of({sum(s.values()): _of_all(curves, s) for s in path})


def _of_all(curves: Mapping[Any, Mapping[int, Closeness]], sizes: Mapping[Any, int]) -> Closeness:
    """Return the means over heads, and the largest total variation of any row."""
    each = [curves[name][dim] for name, dim in sizes.items()]
    means = {name: float(np.mean([getattr(c, name) for c in each]))
             for name in ("tv_mean", "tv_95", "kl_mean")}  # fmt: skip
    return Closeness(**means, tv_worst=max(c.tv_worst for c in each))
