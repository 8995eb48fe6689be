"""Heads for patterns of two keys per row and column, drawn by hand: rings on a sphere.

The rows of a 2-regular pattern join its columns in rings. Let the keys of a ring lie on a circle of
latitude of a sphere. If these circles are far enough apart, two neighbours are an edge of the hull
of all keys: a query prefers both to all others, and max-margin queries exist. So d = 3 is enough,
and d = 2 if there is one ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WAY = "rings on a sphere"
ROOM = 1.1  # by how much circles are farther apart than is necessary
SPAN = 2.0  # the least distance from the first circle to the last, as logarithms of their radii


def rings(A: Any) -> list[list[int]]:
    """Return the columns of each ring of a 2-regular pattern, in their order around it."""
    neighbours: list[list[int]] = [[] for _ in range(A.shape[1])]
    for a, b in A.indices.reshape(-1, 2).tolist():
        neighbours[a].append(b)
        neighbours[b].append(a)
    found, seen = [], np.zeros(A.shape[1], np.bool_)
    for start in range(A.shape[1]):
        ring: list[int] = []
        ahead = [] if seen[start] else [start]
        while ahead:
            ring.append(ahead[0])
            seen[ahead[0]] = True
            ahead = [j for j in neighbours[ahead[0]] if not seen[j]]
        if ring:
            found.append(ring)
    return found


def keys(A: Any, dim: int) -> NDArray[np.float64]:
    """Return keys with a ring on each circle of latitude, the longest one on the equator."""
    by_length = sorted(rings(A), key=len)
    order = by_length[0::2] + by_length[1::2][::-1]
    # Two keys alone are put next to each other, as of a hexagon: opposite ones are no edge.
    sides = np.array([6 if len(ring) == 2 else len(ring) for ring in order])
    # An edge of a polygon with this many sides is nearer to the centre than its corners. It is seen
    # from outside if the next circles have radii g times larger and smaller, g + 1/g > 2 / cos.
    needed = np.arccosh(ROOM / np.cos(np.pi / sides))
    gaps = np.maximum(needed[1:], needed[:-1])
    gaps *= max(1.0, SPAN / gaps.sum()) if gaps.size else 1.0
    radii = np.concatenate([[0.0], np.cumsum(gaps)])
    radii -= radii[np.argmax(sides)]
    placed = np.zeros((A.shape[1], 3))
    for ring, side, radius in zip(order, sides, radii, strict=True):
        angle = 2 * np.pi * np.arange(len(ring)) / side
        placed[ring, 0] = np.cos(angle) / np.cosh(radius)
        placed[ring, 1] = np.sin(angle) / np.cosh(radius)
        placed[ring, 2] = np.tanh(radius)
    return placed[:, :dim]
