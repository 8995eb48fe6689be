"""Filters, what they must meet, and the limits on their logits as rows of linear programs."""

import math
from dataclasses import dataclass, replace

import numpy as np

from headfit._base.arrays import FloatArray
from headfit._base.tolerances import Tolerances
from headfit._filter.stencil import Floats, Offsets, Stencil

# How far, in logits, a filter may exceed what a linear program was to meet.
SLACK = 5e-4
# Angles are computed for so many positions at a time, in float64.
ROWS = 65536


@dataclass(frozen=True, eq=False)
class Filter:
    """Logits p(x) = sum of a_f cos(w_f x) + b_f sin(w_f x), with x = i - j.

    Each frequency costs two dimensions: keys sqrt(r_f) (cos w_f j, sin w_f j), and queries of the
    same length turned by the phase of (a_f, b_f), where r_f = hypot(a_f, b_f).

    Attributes
    ----------
    frequencies : ndarray of float64, shape (F,)
        Radians per position, at least 0.
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

    def head(
        self, n: int, block: int = 1, dtype: str = "float64", times: float = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Return Q, K of shape (n, dim), for `times` the logits; `block` tokens share a place."""
        q, k = (np.empty((n, self.dim), dtype=dtype) for _ in range(2))
        root = np.sqrt(self.amplitudes * times)
        phase = np.arctan2(self.sines, self.cosines)
        for start in range(0, n, ROWS):
            rows = slice(start, min(start + ROWS, n))
            angles = np.multiply.outer(np.arange(rows.start, rows.stop) // block, self.frequencies)
            k[rows, 0::2], k[rows, 1::2] = root * np.cos(angles), root * np.sin(angles)
            angles -= phase
            q[rows, 0::2], q[rows, 1::2] = root * np.cos(angles), root * np.sin(angles)
        return q, k


@dataclass(frozen=True, eq=False)
class Demand:
    """A stencil, and the tolerances to meet.

    With c and m free: |p(x) - c - log_weights| <= spread / 2 and p(x) >= m where x is in the
    stencil, p(x) <= m - gap at all other allowed offsets, and |p(x)| <= max_logit at all of them.
    Rows near the ends, which have only a part of the stencil, meet the same limits.
    """

    stencil: Stencil
    tolerances: Tolerances

    @property
    def of_rows(self) -> "Demand":
        """What every filter meets that meets each row with a c and m of its own.

        All of it where a row has all offsets, and for symmetric stencils: the mean of p(x) and
        p(-x) meets it. Otherwise that of rows which have the same part of the stencil or more.
        """
        stencil, n, (low, high) = self.stencil, self.stencil.n, self.stencil.offsets[[0, -1]]
        if stencil.is_symmetric or stencil.last - stencil.first < n:
            return self
        # A row with the whole stencil, as near the middle as there is; the middle one without any.
        row = n // 2 if high - low >= n else min(max(n // 2, high), low + n - 1)
        start, end = np.searchsorted(stencil.offsets, [row - n + 1, row + 1])
        inside, weights = stencil.offsets[start:end], stencil.log_weights[start:end]
        around = np.concatenate([[stencil.first - 1], stencil.offsets, [stencil.last + 1]])
        first = max(int(around[start]) + 1, int(inside[-1]) - n + 1)
        last = min(int(around[end + 1]) - 1, int(inside[0]) + n - 1)
        return replace(self, stencil=Stencil(n, inside, weights, first, last))

    @property
    def spread(self) -> float:
        """By how much logits in the stencil, less the logarithms of weights, may differ."""
        return math.log1p(self.tolerances.distortion)

    @property
    def gap(self) -> float:
        """How far below the least logit in the stencil all others must lie."""
        return -math.log(self.tolerances.leak)

    def deficits(self, filter_: Filter) -> tuple[Floats, Floats, Floats]:
        """Return what a filter lacks: in the spread, at each other offset, and in |logit|.

        Positive numbers are logits that are missing. The spread's is one number; the other two
        have one for each of the stencil's `others` and for each allowed offset.
        """
        stencil = self.stencil
        p = filter_.logits_between(stencil.first, stencil.last)
        inside = p[stencil.offsets - stencil.first]
        error = inside - stencil.log_weights
        spread = np.array([error.max() - error.min() - self.spread])
        above = p[stencil.others - stencil.first] - (inside.min() - self.gap)
        return spread, above, np.abs(p) - self.tolerances.logit_limit

    def lacks(self, filter_: Filter) -> float:
        """Return the largest deficit of a filter; at most `SLACK` when it meets the demand."""
        return float(max(part.max(initial=-math.inf) for part in self.deficits(filter_)))


@dataclass(frozen=True, eq=False)
class Limits:
    """Rows `sign p(offset) + on_c c + on_m m <= right`; each attribute has one entry per row.

    c is the level of the logits in the stencil less the logarithms of weights, and m the least
    logit in the stencil.
    """

    offsets: Offsets
    signs: Floats
    on_c: Floats
    on_m: Floats
    right: Floats

    @classmethod
    def of(cls, demand: Demand, inside: Offsets, outside: Offsets, limited: Offsets) -> "Limits":
        """Return the limits at some offsets in the stencil, at some others, and on |logit|."""
        stencil, half = demand.stencil, demand.spread / 2
        weights = stencil.log_weights[np.searchsorted(stencil.offsets, inside)]
        parts = [
            (inside, 1.0, -1.0, 0.0, half + weights),
            (inside, -1.0, 1.0, 0.0, half - weights),
            (inside, -1.0, 0.0, 1.0, np.zeros(inside.size)),
            (outside, 1.0, 0.0, -1.0, np.full(outside.size, -demand.gap)),
        ]
        limit = demand.tolerances.logit_limit
        if math.isfinite(limit):
            at = np.union1d(np.union1d(limited, inside), outside)
            most = np.full(at.size, limit)
            parts += [(at, sign, 0.0, 0.0, most) for sign in (1.0, -1.0)]
        offsets, right = (np.concatenate([part[i] for part in parts]) for i in (0, 4))
        sizes = [part[0].size for part in parts]
        signs, on_c, on_m = (np.repeat([part[i] for part in parts], sizes) for i in (1, 2, 3))
        return cls(offsets, signs, on_c, on_m, right)

    def matrix(self, frequencies: Floats) -> Floats:
        """Return the coefficients of the cosines, of the sines, and of c and m."""
        angles = np.multiply.outer(self.offsets, frequencies)
        signs, on_c, on_m = (x[:, np.newaxis] for x in (self.signs, self.on_c, self.on_m))
        return np.hstack([signs * np.cos(angles), signs * np.sin(angles), on_c, on_m])

    def slopes(self, filter_: Filter) -> Floats:
        """Return the derivatives of `sign p(offset)` by the frequencies of a filter."""
        angles = np.multiply.outer(self.offsets, filter_.frequencies)
        slopes = filter_.sines * np.cos(angles) - filter_.cosines * np.sin(angles)
        return np.asarray((self.signs * self.offsets)[:, np.newaxis] * slopes)

    def least_norm(self, frequencies: Floats, multipliers: Floats) -> float:
        """Return a lower bound of the norm of every filter of these frequencies, by weak duality.

        With multipliers y >= 0 for which the coefficients of c and m cancel, the rows add up to
        `sum of l(x) p(x) <= -D` with l = sum of y sign and D = -(sum of y right). A filter whose
        amplitudes sum to N has |sum of l(x) p(x)| <= N max |sum of l(x) exp(i w x)|, the largest
        over its frequencies w. So N >= D / max, whatever made the multipliers; good ones are those
        of a linear program. An allowance for the rounding of the sums is subtracted.
        """
        y = np.maximum(multipliers, 0.0)
        for column in (self.on_c, self.on_m):
            up, down = (float(y[column == sign].sum()) for sign in (1.0, -1.0))
            if min(up, down) == 0.0:
                y[column != 0.0] = 0.0
            elif up > down:
                y[column == 1.0] *= down / up
            else:
                y[column == -1.0] *= up / down
        used = y > 0.0
        angles = np.multiply.outer(frequencies, self.offsets[used])
        weights = y[used] * self.signs[used]
        sums = np.hypot(np.cos(angles) @ weights, np.sin(angles) @ weights)
        terms = -y * self.right
        largest = max(1.0, float(np.abs(angles).max(initial=0.0)))
        rounding = 2.0**-52 * (y.size + 4 + largest) * float(y.sum())
        deficit = float(terms.sum()) - 2.0**-52 * (y.size + 4) * float(np.abs(terms).sum())
        return max(0.0, deficit / (float(sums.max(initial=0.0)) + rounding)) if used.any() else 0.0
