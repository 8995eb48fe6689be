"""The truth about the rows of an attention matrix, in exact arithmetic.

Written from the definitions alone. For row i with support S (the nonzeros w of the target's row):

- leak = max over allowed j off S of exp(s_j) / min over j in S of exp(s_j);
- distortion = max over j, l in S of (exp(s_j) / w_j) / (exp(s_l) / w_l), minus 1;
- size = max over allowed j of |s_j|.

Every `exceeds` method answers exactly. Floats only decide cases that are clear by a margin
hundreds of times wider than all their errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import mpmath
import numpy as np
from tests.adversarial import dyadic

MARGIN = 2.0**-44
SINGLE = -149  # float32, bfloat16 and float16 numbers are integers times 2**-149


def allowed_matrix(mask: object, n: int) -> np.ndarray:
    """Return where a mask, as users write it, allows attention."""
    if mask is None:
        return np.ones((n, n), bool)
    place = np.arange(n)
    back = place[:, np.newaxis] - place
    if isinstance(mask, str):
        return back >= 0
    if isinstance(mask, tuple):
        width = mask[1]
        before, after = width if isinstance(width, tuple) else (width - 1, 0)
        return (back <= before) & (-back <= after)
    if hasattr(mask, "toarray"):
        return mask.toarray()
    return np.broadcast_to(np.asarray(mask), (n, n))


@dataclass
class Pattern:
    """The supports of a target, the weights there, and what the mask allows off them."""

    weights: np.ndarray
    allowed: np.ndarray

    def __post_init__(self) -> None:
        self.n = len(self.weights)
        self.on, self.off, self.open, self.row_weights = [], [], [], []
        for weights, allowed in zip(self.weights.tolist(), self.allowed.tolist(), strict=True):
            self.on.append([j for j, w in enumerate(weights) if w])
            self.open.append([j for j, ok in enumerate(allowed) if ok])
            self.off.append([j for j in self.open[-1] if not weights[j]])
            self.row_weights.append([w for w in weights if w])
        self.log_weights = [[math.log(w) for w in row] for row in self.row_weights]


def _ratio(x: float) -> tuple[int, int]:
    return x.as_integer_ratio()


def leak_exceeds(m: int, e: int, bound: float) -> bool:
    """Whether exp(m 2**e) > bound."""
    if math.isnan(bound) or bound <= 0:
        return True
    return not math.isinf(bound) and dyadic.exceeds_log(m, e, *_ratio(bound))


def distortion_exceeds(m: int, e: int, high: float, low: float, bound: float) -> bool:
    """Whether exp(m 2**e) low / high - 1 > bound, for a pair of weights `high` and `low`."""
    if math.isnan(bound) or bound <= -1:
        return True
    if math.isinf(bound):
        return False
    (a, b), (c, d), (p, q) = _ratio(bound), _ratio(high), _ratio(low)
    return dyadic.exceeds_log(m, e, (a + b) * c * q, b * d * p)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


@dataclass
class Row:
    """Logits of one row as integers times 2**e: `high` and `low` where they may vary.

    None stands for a logit of -inf. `undefined` rows have a logit of +inf or NaN.
    """

    e: int
    on_high: list
    on_low: list
    off_high: list
    size: int | None  # the largest magnitude; None: infinite
    weights: list
    logs: list
    undefined: bool = False
    vanishes: bool = False  # a logit of -inf is a weight of exactly zero

    @cached_property
    def gap(self) -> int | float | None:
        """The logarithm of the leak: an integer, or -inf, +inf; NaN for 0/0."""
        if not self.on_low or not self.off_high:
            return -math.inf
        finite = [x for x in self.off_high if x is not None]
        if any(x is None for x in self.on_low):
            return math.inf if finite else math.nan
        return max(finite) - min(self.on_low) if finite else -math.inf

    @cached_property
    def log_leak(self) -> float:
        return self.gap if isinstance(self.gap, float) else dyadic.to_float(self.gap, self.e)

    def leak_exceeds(self, bound: float) -> bool:
        if isinstance(self.gap, float):  # no logits off the support: 0; 0/0 or x/0: unbounded
            if self.gap == -math.inf:
                return not bound >= 0
            return bound != math.inf
        x, y = self.log_leak, _log(bound)
        if not math.isnan(bound) and abs(x - y) > MARGIN * (abs(x) + abs(y)):
            return x > y
        return leak_exceeds(self.gap, self.e, bound)

    @cached_property
    def lost(self) -> bool:
        """Whether a weight on a support of more than one is exactly zero."""
        return len(self.on_low) > 1 and any(x is None for x in self.on_low)

    @cached_property
    def pairs(self) -> list[tuple[float, int, int]]:
        """Tuples (logarithm of the distortion, j, l) for pairs of the support, largest first."""
        found = []
        for j, high in enumerate(self.on_high):
            for k, low in enumerate(self.on_low):
                if j != k and high is not None and low is not None:
                    x = dyadic.to_float(high - low, self.e)
                    found.append((x - (self.logs[j] - self.logs[k]), j, k))
        return sorted(found, reverse=True)

    @cached_property
    def error(self) -> float:
        """A generous bound on the errors of the logarithms in `pairs`."""
        widest = max(map(abs, self.logs), default=0.0)
        if len(self.on_high) > 1 and not self.lost:
            spread = max(self.on_high) - min(self.on_low)
            widest += abs(dyadic.to_float(spread, self.e))
        return MARGIN * widest + 2.0**-1000

    @property
    def log_distortion(self) -> float:
        if self.lost:
            return math.inf
        return max(0.0, self.pairs[0][0]) if self.pairs else 0.0

    def distortion_exceeds(self, bound: float) -> bool:
        if math.isnan(bound):
            return True
        if self.lost:
            return bound != math.inf
        if len(self.on_low) < 2:
            return bound < 0
        if bound <= -1:
            return True
        y = math.log1p(bound) if bound < math.inf else math.inf
        error = self.error + MARGIN * abs(y) if y < math.inf else self.error
        for x, j, k in self.pairs:
            if x > y + error:
                return True
            if x < y - error:
                return False
            difference = self.on_high[j] - self.on_low[k]
            high, low = self.weights[j], self.weights[k]
            if distortion_exceeds(difference, self.e, high, low, bound):
                return True
        return False

    def size_exceeds(self, bound: float) -> bool:
        if math.isnan(bound):
            return True
        if self.size is None:
            return bound != math.inf
        return dyadic.exceeds_number(self.size, self.e, bound)

    def leak(self) -> float:
        """The leak, to the last place of a float."""
        if isinstance(self.gap, float):
            return math.exp(self.gap)
        with mpmath.workprec(120):
            return float(mpmath.exp(mpmath.ldexp(mpmath.mpf(self.gap), self.e)))

    def distortion(self) -> float:
        """The distortion, to the last places of a float."""
        if not self.pairs or self.lost:
            return math.inf if self.lost else 0.0
        if self.pairs[0][0] > 709:
            return math.inf
        _, j, k = self.pairs[0]
        with mpmath.workprec(120):
            x = mpmath.ldexp(mpmath.mpf(self.on_high[j] - self.on_low[k]), self.e)
            ratio = mpmath.exp(x) * mpmath.mpf(self.weights[k]) / mpmath.mpf(self.weights[j])
            return max(0.0, float(ratio - 1))


@dataclass
class Truth:
    """The truth about a case: for each row of its target, all rows of logits that may be computed.

    `radii` bound the errors of a careful scan in float64 in the logits of each row (infinite
    where even intermediate results may overflow).
    """

    rows: list[list[Row]]
    radii: list[float]
    # Answers are kept, since certificates of one head with several tolerances state equal bounds.
    known: dict[tuple, bool] = field(default_factory=dict)

    def misses(self, i: int, leak: float, distortion: float, size: float) -> bool:
        """Whether row i misses a tolerance in one of its possible results."""
        return (
            any(row.undefined for row in self.rows[i])
            or self.leak_exceeds(i, leak)
            or self.distortion_exceeds(i, distortion)
            or (size < math.inf and self.size_exceeds(i, size))
        )

    def leak_exceeds(self, i: int, bound: float) -> bool:
        return self._any(i, bound, "leak_exceeds")

    def distortion_exceeds(self, i: int, bound: float) -> bool:
        return self._any(i, bound, "distortion_exceeds")

    def size_exceeds(self, i: int, bound: float) -> bool:
        return self._any(i, bound, "size_exceeds")

    def _any(self, i: int, bound: float, which: str) -> bool:
        key = i, bound, which
        if key not in self.known:
            self.known[key] = any(
                not row.undefined and getattr(row, which)(bound) for row in self.rows[i]
            )
        return self.known[key]

    def should_be_decided(self, i: int, leak: float, distortion: float, size: float) -> bool:
        """Whether row i lies further from the tolerances than rounding can account for.

        It must be further than a thousandth of the leak, distortion or largest logit, and than
        four times the radius of its logits. Tolerances near the least floats are left out.
        """
        radius = self.radii[i]
        rows = self.rows[i]
        if leak < 2.0**-1000 or not radius < math.inf or any(r.undefined for r in rows):
            return False
        all_clear = True
        for limit, value, part in self._gaps(rows, leak, distortion, size):
            need = max(part, 4 * radius + 2.0**-44 * (1 + abs(limit)))
            if value > limit + need:
                return True
            all_clear &= value < limit - need
        return all_clear

    @staticmethod
    def _gaps(rows: list[Row], leak: float, distortion: float, size: float):
        if rows[0].on_low and rows[0].off_high:
            yield math.log(leak), max(r.log_leak for r in rows), 1e-3
        if len(rows[0].on_low) > 1:
            limit, value = math.log1p(distortion), max(r.log_distortion for r in rows)
            logs = 2.0**-40 * (1 + max(map(abs, rows[0].logs)))
            yield limit, value, max(-1e-3 * math.expm1(-max(limit, value)), logs)
        if size < math.inf:
            value = max(dyadic.to_float(r.size or 0, r.e) for r in rows)
            yield size, value, 1e-3 * size


def exact_rows(pattern: Pattern, logits: list, e: int) -> list[list[Row]]:
    """Return the rows of exact logits, integers times 2**e."""
    rows = []
    for i, s in enumerate(logits):
        on = [s[j] for j in pattern.on[i]]
        off = [s[j] for j in pattern.off[i]]
        size = max((abs(s[j]) for j in pattern.open[i]), default=0)
        row = Row(e, on, on, off, size, pattern.row_weights[i], pattern.log_weights[i])
        rows.append([row])
    return rows


def _whole(x: float) -> int | None:
    return None if x == -math.inf else int(math.ldexp(x, -SINGLE))


def narrow_row(pattern: Pattern, i: int, high: list[float], low: list[float]) -> Row:
    """Return a row of logits that are floats of 32 bits or fewer, each between low and high."""
    opened = pattern.open[i]
    largest = [high[j] for j in opened]
    undefined = any(math.isnan(x) or x == math.inf for x in largest)
    undefined |= bool(opened) and all(x == -math.inf for x in largest)
    if undefined:
        size = None
        on = on_low = off = []
    else:
        on = [_whole(high[j]) for j in pattern.on[i]]
        on_low = [_whole(low[j]) for j in pattern.on[i]]
        off = [_whole(high[j]) for j in pattern.off[i]]
        extremes = [abs(low[j]) for j in opened] + [abs(high[j]) for j in opened]
        most = max(extremes, default=0.0)
        size = None if most == math.inf else int(math.ldexp(most, -SINGLE))
    weights, logs = pattern.row_weights[i], pattern.log_weights[i]
    return Row(SINGLE, on, on_low, off, size, weights, logs, undefined, size is None)


def rounded_rows(pattern: Pattern, logits: list, e: int, name: str) -> list[list[Row]]:
    """Return the rows of exact logits rounded to a format."""
    rows = []
    for i, s in enumerate(logits):
        x = [0.0] * pattern.n
        for j in pattern.open[i]:
            x[j] = dyadic.rounded(s[j], e, name)
        rows.append([narrow_row(pattern, i, x, x)])
    return rows


# Given matrices ----------------------------------------------------------------------------


@dataclass
class MatrixRow:
    """One row of a given attention matrix: entries that are floats, compared by cross products."""

    on: list[float]
    off: list[float]
    weights: list[float]
    undefined: bool = False
    vanishes: bool = False

    @cached_property
    def most(self) -> float:
        return max(self.off, default=0.0)

    @cached_property
    def least(self) -> float:
        return min(self.on, default=0.0)

    def leak_exceeds(self, bound: float) -> bool:
        if self.on and self.least == 0:  # some key on the support has weight 0
            return bound != math.inf
        if not self.on or not self.off:
            return not bound >= 0
        if not bound >= 0:
            return True
        if bound == math.inf:
            return False
        (a, b), (c, d), (p, q) = _ratio(self.most), _ratio(self.least), _ratio(bound)
        return a * d * q > p * c * b

    def distortion_exceeds(self, bound: float) -> bool:
        if len(self.on) < 2:
            return not bound >= 0
        if self.least == 0:
            return bound != math.inf
        if not bound >= 0:
            return True
        if bound == math.inf:
            return False
        p, q = _ratio(bound)
        high, low = self.extremes
        return high[0] * low[1] * q > (p + q) * high[1] * low[0]

    @cached_property
    def extremes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The largest and the smallest ratio of entry to weight, as fractions of integers."""
        found = []
        for m, w in zip(self.on, self.weights, strict=True):
            (a, b), (c, d) = _ratio(m), _ratio(w)
            found.append(Fraction(a * d, b * c))
        high, low = max(found), min(found)
        return (high.numerator, high.denominator), (low.numerator, low.denominator)

    def size_exceeds(self, bound: float) -> bool:
        return False

    def leak(self) -> float:
        if not self.on or not self.off or self.least == 0:
            return 0.0
        return float(Fraction(self.most) / Fraction(self.least))

    def distortion(self) -> float:
        if len(self.on) < 2 or self.least == 0:
            return 0.0
        high, low = self.extremes
        return _as_float(Fraction(*high) / Fraction(*low) - 1)

    @property
    def log_leak(self) -> float:
        if not self.on or not self.off or self.most == 0:
            return -math.inf
        return math.log(self.most) - math.log(self.least) if self.least else math.inf

    @property
    def log_distortion(self) -> float:
        return math.log1p(self.distortion())

    @property
    def on_low(self) -> list[float]:
        return self.on

    @property
    def off_high(self) -> list[float]:
        return self.off

    @cached_property
    def logs(self) -> list[float]:
        return [math.log(w) for w in self.weights]


def _as_float(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf


def matrix_rows(pattern: Pattern, M: np.ndarray) -> list[list[MatrixRow]]:
    """Return the rows of a given matrix."""
    wide = M.tolist()
    return [
        [MatrixRow([row[j] for j in on], [row[j] for j in off], weights)]
        for row, on, off, weights in zip(
            wide, pattern.on, pattern.off, pattern.row_weights, strict=True
        )
    ]
