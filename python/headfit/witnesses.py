"""Witnesses: why a row cannot be had with given keys, checkable in rational arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from headfit.errors import HeadfitError
from headfit.targets import as_target

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


def _exact_keys(K: Any) -> Any:
    array = np.asarray(K)

    def row(j: int) -> list[Fraction]:
        return [Fraction(float(x)) for x in array[j]]

    return row


def _root_above(x: Fraction) -> float:
    """Return a double at least sqrt(x)."""
    root = math.sqrt(float(x))
    while Fraction(root) ** 2 < x:
        root = math.nextafter(root, math.inf)
    return root


def _ratio_below(a: Fraction, b: float) -> float:
    """Return a double at most a / b."""
    value = float(a / Fraction(b))
    while Fraction(value) > a / Fraction(b):
        value = math.nextafter(value, -math.inf)
    return value


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

    def verify(self, A: Any, K: Any) -> float:
        """Confirm the witness in rational arithmetic; return the norm it proves necessary.

        Parameters
        ----------
        A : target
        K : array_like, shape (n, d)
            The keys that the row was tried with, with plain products as logits.

        Returns
        -------
        float
            A lower bound of ||q||; inf when no query exists at any norm.

        Raises
        ------
        HeadfitError
            When the multipliers prove nothing.
        """
        target = as_target(A)
        start, stop = target.matrix.indptr[self.row : self.row + 2]
        columns = [int(j) for j in target.matrix.indices[start:stop]]
        # Logarithms are right to a few units in the last place: the gap is lowered by that.
        logs = {
            j: Fraction(math.log(float(w)))
            for j, w in zip(columns, target.matrix.data[start:stop], strict=True)
        }
        largest = max(1.0, -math.log(self.leak), *(abs(float(x)) for x in logs.values()))
        slack = Fraction(4 * float(np.finfo(np.float64).eps) * largest)
        half = Fraction(math.log1p(self.distortion)) / 2
        level = Fraction(-math.log(self.leak))
        key = _exact_keys(K)
        offsets = [Fraction(0), Fraction(0)]
        gap = Fraction(0)
        residual = [Fraction(0)] * int(np.asarray(K).shape[1])
        for term in self.terms:
            m = Fraction(term.value)
            outside = term.kind == "outside"
            if (term.column in logs) == outside or (m < 0 and term.kind != "ratio equal"):
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
            residual = [r - signed * x for r, x in zip(residual, key(term.column), strict=True)]
        if any(offsets):
            raise HeadfitError(f"{self!r} does not cancel the offsets")
        if gap <= 0:
            raise HeadfitError(f"{self!r} leaves no gap")
        square = sum((r * r for r in residual), Fraction(0))
        return math.inf if square == 0 else _ratio_below(gap, _root_above(square))


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

    def verify(self, A: Any, K: Any) -> float:
        """Confirm the witness in rational arithmetic; return the norm it proves necessary.

        The norm is that of a query with equal logits on the support and all others at least
        1 lower; inf when the two combinations are exactly equal.

        Raises
        ------
        HeadfitError
            When the combinations prove nothing.
        """
        target = as_target(A)
        start, stop = target.matrix.indptr[self.row : self.row + 2]
        support = {int(j) for j in target.matrix.indices[start:stop]}
        key = _exact_keys(K)
        difference = [Fraction(0)] * int(np.asarray(K).shape[1])
        totals, others = [], Fraction(0)
        for terms, sign in ((self.inside, 1), (self.with_others, -1)):
            weights = [Fraction(w) for _, w in terms]
            if any(w < 0 for w in weights) or not sum(weights):
                raise HeadfitError(f"{self!r} has a negative weight")
            total = sum(weights, Fraction(0))
            totals.append(total)
            for (j, _), w in zip(terms, weights, strict=True):
                share = w / total  # combinations are made exactly convex here
                if j not in support:
                    if sign > 0:
                        raise HeadfitError(f"{self!r} uses column {j} as if on the support")
                    others += share
                difference = [x + sign * share * y for x, y in zip(difference, key(j), strict=True)]
        if others <= 0:
            raise HeadfitError(f"{self!r} uses no key off the support")
        square = sum((x * x for x in difference), Fraction(0))
        return math.inf if square == 0 else _ratio_below(others, _root_above(square))
