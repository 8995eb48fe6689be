"""Witnesses: why a row cannot be had with given keys, checkable in rational arithmetic."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from headfit._base.arrays import as_stored_matrix, check_finite, widened
from headfit._base.masks import allowed_columns
from headfit._target.target import as_target
from headfit.errors import HeadfitError, InputError

__all__ = ["FaceWitness", "FarkasWitness", "Multiplier"]

Kind = Literal["ratio upper", "ratio lower", "margin", "outside", "ratio equal"]

# The sign of q.k in each kind of constraint, written as  offset - sign * q.k >= rhs
# with its own sign of the offset c (ratios) or b (margin, outside).
SIGNS: dict[str, int] = {
    "ratio upper": 1,
    "ratio lower": -1,
    "margin": -1,
    "outside": 1,
    "ratio equal": 1,
}


@dataclass(frozen=True)
class Multiplier:
    """One term of a Farkas witness: a constraint, named by kind and column, and its multiplier."""

    kind: Kind
    column: int
    value: float


def _norm_proved(gap: Fraction, square: Fraction) -> float:
    """Return a double at most gap / sqrt(square); inf when the square is 0."""
    if square == 0:
        return math.inf
    # (gap / sqrt(square))**2 as a fraction, its root from below in 64 more bits than a double.
    ratio = gap * gap / square
    shift = max(0, 128 - ratio.numerator.bit_length() + ratio.denominator.bit_length())
    shift += shift % 2
    root = Fraction(math.isqrt((ratio.numerator << shift) // ratio.denominator), 1 << (shift // 2))
    if root >= Fraction(sys.float_info.max):
        return sys.float_info.max
    value = float(root)
    return value if Fraction(value) <= root else math.nextafter(value, 0.0)


class _Row:
    """The row that a witness speaks of: its support, its weights, and the keys it may see."""

    def __init__(self, A: Any, K: Any, row: int, mask: Any) -> None:
        target = as_target(A, mask=mask)
        keys = as_stored_matrix(K, "K")
        check_finite(keys, "K")
        if keys.shape[0] != target.n:
            raise InputError(f"K must have {target.n} rows; got shape {keys.shape}")
        if not 0 <= row < target.n:
            raise HeadfitError(f"the target has no row {row}")
        start, stop = target.matrix.indptr[row : row + 2]
        columns = target.matrix.indices[start:stop].tolist()
        self.weights = dict(zip(columns, target.matrix.data[start:stop].tolist(), strict=True))
        self.allowed = allowed_columns(target.mask, row, target.n)
        self.dim = int(keys.shape[1])
        self._keys = keys

    def key(self, column: int) -> list[Fraction]:
        """Return a key exactly; a column that does not exist for this row proves nothing."""
        if not 0 <= column < self._keys.shape[0] or not self.allowed[column]:
            raise HeadfitError(f"column {column} does not exist for this row")
        return [Fraction(float(x)) for x in widened(self._keys[column])]


def _exact(value: float, what: str) -> Fraction:
    if not math.isfinite(value):
        raise HeadfitError(f"{what} must be finite; got {value}")
    return Fraction(value)


KINDS = {
    False: ("ratio upper", "ratio lower", "margin", "outside"),
    True: ("ratio equal", "outside"),
}
"""The constraints of either form; False: tolerance, True: equality."""


@dataclass(frozen=True, repr=False)
class FarkasWitness:
    """Multipliers that prove how long a row's query must be for the requested tolerances.

    The constraints on a query q with free offsets c and b, for support S, log-weights a,
    delta = log(1 + distortion) and L = log(1 / leak):

    - "ratio upper": c - q.k_j >= -(a_j + delta / 2), j in S
    - "ratio lower": q.k_j - c >= a_j - delta / 2, j in S
    - "margin": q.k_j - b >= L, j in S
    - "outside": b - q.k_j >= 0, j not in S; with equalities c - q.k_j >= L + delta - min a
    - "ratio equal": c - q.k_j = -a_j, j in S; its multiplier may be negative

    Multiplied and added, the offsets cancel exactly and what is left is
    ``q . r >= gap > 0``: so ``||q|| >= gap / ||r||``, and r = 0 excludes every q.

    Attributes
    ----------
    row : int
    terms : tuple of Multiplier
    residual, gap : float
        ||r|| and the gap, as computed.
    norm_bound : float
        The norm of q that is proved necessary; inf when the residual is exactly 0.
    leak, distortion : float
        The tolerances it speaks of.
    equality : bool
        Whether log-ratios had to be met exactly.
    """

    row: int
    terms: tuple[Multiplier, ...]
    residual: float
    gap: float
    norm_bound: float
    leak: float
    distortion: float
    equality: bool

    kind = "farkas"

    def __repr__(self) -> str:
        return (
            f"FarkasWitness(row {self.row}: leak {self.leak:.6g} and distortion "
            f"{self.distortion:.6g} need ||q|| >= {self.norm_bound:.4g}; "
            f"{len(self.terms)} multipliers, residual {self.residual:.2g})"
        )

    def verify(self, A: Any, K: Any, *, mask: Any = None) -> float:
        """Confirm the witness in rational arithmetic; return the norm it proves necessary.

        Parameters
        ----------
        A : target
        K : array_like, shape (n, d)
            The keys that the row was tried with, with plain products as logits.
        mask : optional
            As in `attention_matrix`; the target's when None.

        Returns
        -------
        float
            A lower bound of ||q||; inf when no query exists at any norm.

        Raises
        ------
        HeadfitError
            When the multipliers prove nothing.
        """
        row = _Row(A, K, self.row, mask)
        if not (0 < self.leak < 1 and 0 <= self.distortion < math.inf) or not row.weights:
            raise HeadfitError(f"{self!r} speaks of no tolerances")
        logs = {j: Fraction(math.log(w)) for j, w in row.weights.items()}
        # Logarithms are right to a few units in the last place: the gap is lowered by that.
        largest = max(1.0, -math.log(self.leak), *(abs(float(x)) for x in logs.values()))
        slack = Fraction(4 * float(np.finfo(np.float64).eps) * largest)
        half = Fraction(math.log1p(self.distortion)) / 2
        level = Fraction(-math.log(self.leak))
        offsets = [Fraction(0), Fraction(0)]
        gap = Fraction(0)
        residual = [Fraction(0)] * row.dim
        for term in self.terms:
            m = _exact(term.value, "a multiplier")
            outside = term.kind == "outside"
            if (
                term.kind not in KINDS[self.equality]
                or (term.column in logs) == outside
                or (m < 0 and term.kind != "ratio equal")
            ):
                raise HeadfitError(f"{self!r} has a wrong term {term}")
            a = logs.get(term.column, Fraction(0))
            rhs = {
                "ratio upper": -(a + half),
                "ratio lower": a - half,
                "margin": level,
                "outside": level + 2 * half - min(logs.values()) if self.equality else Fraction(0),
                "ratio equal": -a,
            }[term.kind]
            on_b = term.kind in ("margin", "outside") and not self.equality
            signed = SIGNS[term.kind] * m
            offsets[on_b] += signed
            gap += m * rhs - abs(m) * 4 * slack
            key = row.key(term.column)
            residual = [r - signed * x for r, x in zip(residual, key, strict=True)]
        if any(offsets):
            raise HeadfitError(f"{self!r} does not cancel the offsets")
        if gap <= 0:
            raise HeadfitError(f"{self!r} leaves no gap")
        square = sum((r * r for r in residual), Fraction(0))
        return _norm_proved(gap, square)


@dataclass(frozen=True, repr=False)
class FaceWitness:
    """A proof that a support is no face of the keys: some sharper tolerance is impossible.

    A convex combination of support keys equals one that uses other keys: no query can have
    all support logits above all others by a margin, so at this support the leak cannot be
    made as small as one likes at any norm. It says nothing about the requested tolerance.

    Attributes
    ----------
    row : int
    inside : tuple of (column, weight)
        On the support; weights sum to 1.
    with_others : tuple of (column, weight)
        The equal combination, with weight off the support.
    residual : float
        The distance between the two, as computed.
    others_weight : float
        The weight of `with_others` off the support.
    norm_bound : float
        What is proved when the residual is not exactly 0: a query whose support logits are
        equal and at least 1 above the others is longer than this.
    """

    row: int
    inside: tuple[tuple[int, float], ...]
    with_others: tuple[tuple[int, float], ...]
    residual: float
    others_weight: float
    norm_bound: float

    kind = "not a face"

    def __repr__(self) -> str:
        return (
            f"FaceWitness(row {self.row}: not a face of the keys; weight "
            f"{self.others_weight:.3g} off the support, residual {self.residual:.2g})"
        )

    def verify(self, A: Any, K: Any, *, mask: Any = None) -> float:
        """Confirm the witness in rational arithmetic; return the norm it proves necessary.

        The norm is that of a query with equal logits on the support and all others at least
        1 lower; inf when the two combinations are exactly equal.

        Raises
        ------
        HeadfitError
            When the combinations prove nothing.
        """
        row = _Row(A, K, self.row, mask)
        difference = [Fraction(0)] * row.dim
        others = Fraction(0)
        for terms, sign in ((self.inside, 1), (self.with_others, -1)):
            weights = [_exact(w, "a weight") for _, w in terms]
            if any(w < 0 for w in weights) or not sum(weights):
                raise HeadfitError(f"{self!r} has a negative weight")
            total = sum(weights, Fraction(0))
            for (j, _), w in zip(terms, weights, strict=True):
                share = w / total  # combinations are made exactly convex here
                if j not in row.weights:
                    if sign > 0:
                        raise HeadfitError(f"{self!r} uses column {j} as if on the support")
                    others += share
                key = row.key(j)
                difference = [x + sign * share * y for x, y in zip(difference, key, strict=True)]
        if others <= 0:
            raise HeadfitError(f"{self!r} uses no key off the support")
        square = sum((x * x for x in difference), Fraction(0))
        return _norm_proved(others, square)
