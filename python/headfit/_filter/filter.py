"""A filter: the trigonometric polynomial of the offset that a head's logits are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import FloatArray

# Angles are computed for so many positions at a time, in float64.
ROWS = 65536

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Filter:
    """Logits p(x) = sum of a_f cos(w_f x) + b_f sin(w_f x), with x = i - j.

    Each frequency costs two dimensions: keys sqrt(r_f) (cos w_f j, sin w_f j), and queries of the
    same length turned by the phase of (a_f, b_f), where r_f = hypot(a_f, b_f).

    Attributes
    ----------
    frequencies : ndarray of float64, shape (F,)
        Radians per position, in (0, pi].
    cosines, sines : ndarray of float64, shape (F,)
        The amplitudes a_f and b_f.
    """

    frequencies: Floats
    cosines: Floats
    sines: Floats

    @property
    def dim(self) -> int:
        """The size of the head, two for each frequency."""
        return 2 * self.frequencies.size

    @property
    def amplitudes(self) -> Floats:
        """The amplitude r_f of each frequency."""
        return np.hypot(self.cosines, self.sines)

    @property
    def norm(self) -> float:
        """max ||q|| max ||k||, the sum of all amplitudes: no logit is larger."""
        return float(self.amplitudes.sum())

    def logits_between(self, first: int, last: int) -> Floats:
        """Return the logits at the offsets first ... last.

        With x = first + s u + v, the angle of u and that of v are multiplied as complex numbers:
        O(sqrt(last - first) F) sines, and O((last - first) F) multiplications.
        """
        count = last - first + 1
        step = max(1, math.isqrt(count))
        coarse = first + step * np.arange(-(-count // step))
        fine = np.arange(step)
        turned = np.exp(1j * np.multiply.outer(coarse, self.frequencies))
        turned *= self.cosines - 1j * self.sines
        values = turned.real @ np.cos(np.multiply.outer(self.frequencies, fine))
        values -= turned.imag @ np.sin(np.multiply.outer(self.frequencies, fine))
        return np.asarray(values.ravel()[:count])

    def head(self, n: int, block: int = 1, dtype: str = "float64") -> tuple[FloatArray, FloatArray]:
        """Return Q and K of n tokens, `block` of which share a position; shape (n, dim) each."""
        q, k = (np.empty((n, self.dim), dtype=dtype) for _ in range(2))
        root = np.sqrt(self.amplitudes)
        phase = np.arctan2(self.sines, self.cosines)
        for start in range(0, n, ROWS):
            rows = slice(start, min(start + ROWS, n))
            angles = np.multiply.outer(np.arange(rows.start, rows.stop) // block, self.frequencies)
            k[rows, 0::2], k[rows, 1::2] = root * np.cos(angles), root * np.sin(angles)
            angles -= phase
            q[rows, 0::2], q[rows, 1::2] = root * np.cos(angles), root * np.sin(angles)
        return q, k
