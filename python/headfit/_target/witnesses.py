"""Witnesses that a row has no query for given keys, which rational arithmetic can check."""

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from headfit import _core
from headfit._base.arrays import FloatArray, as_stored_matrix, check_finite, widened
from headfit._base.masks import core_mask
from headfit._target.target import Target, as_target, support_of
from headfit.errors import HeadfitError, InputError

Kind = Literal["ratio upper", "ratio lower", "margin", "outside", "ratio equal"]
Multiples = list[tuple[int, Fraction]]


@dataclass(frozen=True)
class Multiplier:
    """One term of a Farkas witness: a constraint, given by kind and column, and its multiplier."""

    kind: Kind
    column: int
    value: float


def _norm_proved(gap: Fraction, vector: list[Fraction]) -> float:
    """Return a float that is at most gap / ||vector||; inf if the vector is 0."""
    square = sum((x * x for x in vector), Fraction(0))
    if square == 0:
        return math.inf
    # Take the integer square root, which rounds down, of the squared quotient scaled to 128 bits.
    ratio = gap * gap / square
    shift = max(0, 128 - ratio.numerator.bit_length() + ratio.denominator.bit_length())
    shift += shift % 2
    root = Fraction(math.isqrt((ratio.numerator << shift) // ratio.denominator), 1 << (shift // 2))
    value = float(min(root, Fraction(sys.float_info.max)))
    return value if Fraction(value) <= root else math.nextafter(value, 0.0)


def _exact(value: float, what: str) -> Fraction:
    if not math.isfinite(value):
        raise HeadfitError(f"{what} must be finite; got {value}")
    return Fraction(value)


@dataclass(frozen=True, repr=False)
class Witness:
    """What has been proved about one row of a target, whatever its query."""

    row: int

    def verify(self, A: Any, K: Any, *, mask: Any = None) -> float:
        """Check the witness, in O(terms d) fractions, and return the norm that it proves necessary.

        Parameters
        ----------
        A : target
            The target of the fit.
        K : array_like, shape (n, d)
            The keys of the fit. Logits are the plain products q.k, without a scale.
        mask : optional
            As in `Attention`; the target's own when None.

        Returns
        -------
        float
            A lower bound on the norm of a query as the witness describes it; inf if no query of
            any norm is one.

        Raises
        ------
        HeadfitError
            If the witness proves nothing for this target and these keys.
        InputError
            If `A` or `K` is not as described.
        """
        target, row = as_target(A, mask=mask), self.row
        keys = as_stored_matrix(K, "K")
        check_finite(keys, "K")
        if keys.shape[0] != target.n:
            raise InputError(f"K must have {target.n} rows; got shape {keys.shape}")
        if not 0 <= row < target.n:
            raise HeadfitError(f"the target has no row {row}")
        gap, multiples = self._proof(support_of(target, row))
        mask = core_mask(target.mask, (), target.matrix.shape)
        allowed = _core.allowed_columns(mask, row, target.n)
        total = [Fraction(0)] * keys.shape[1]
        for column, factor in multiples:
            if not 0 <= column < target.n or not allowed[column]:
                raise HeadfitError(f"column {column} does not exist for this row")
            key = widened(keys[column]).tolist()
            total = [x + factor * Fraction(y) for x, y in zip(total, key, strict=True)]
        return _norm_proved(gap, total)

    def _proof(self, row: dict[int, float]) -> tuple[Fraction, Multiples]:
        """Return a gap and multiples of keys, with whose sum r every such query has q.r >= gap.

        `row` has the weights of the row by their columns.
        """
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class FarkasWitness(Witness):
    """Multipliers that prove a lower bound on the norm of a row's query for given tolerances.

    The bound can be infinite: then no query exists. These are the constraints on a query q and
    free offsets c and b, for the support S, log-weights a, delta = log(1 + distortion) and
    L = log(1 / leak):

    - "ratio upper": c - q.k_j >= -(a_j + delta / 2), j in S
    - "ratio lower": q.k_j - c >= a_j - delta / 2, j in S
    - "margin": q.k_j - b >= L, j in S
    - "outside": b - q.k_j >= 0, j not in S; if `equality`, c - q.k_j >= L + delta - min a
    - "ratio equal" (only if `equality`): c - q.k_j = -a_j, j in S; its multiplier may be
      negative

    Add up these constraints, each times its multiplier. The multipliers are such that the
    offsets cancel exactly, which leaves ``q . r >= gap > 0``. Hence ``||q|| >= gap / ||r||``, and
    r = 0 excludes every q.

    Attributes
    ----------
    row : int
        The row of the target.
    terms : tuple of Multiplier
        The constraints that are used, with their multipliers.
    residual, gap : float
        ||r|| and the gap, in floating-point arithmetic.
    norm_bound : float
        The norm of q that is proved necessary; inf if the residual is exactly 0.
    leak, distortion : float
        The tolerances that the witness is about.
    equality : bool
        Whether log-ratios had to be met exactly.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> keys = [[0.0], [1.0], [-1.0]]  # key 0 lies between the others
    >>> head = hf.fit(np.eye(3), method=hf.methods.MaxMargin(keys=keys))
    >>> farkas, face = head.witnesses
    >>> farkas.verify(np.eye(3), head.K)
    inf
    """

    terms: tuple[Multiplier, ...]
    residual: float
    gap: float
    norm_bound: float
    leak: float
    distortion: float
    equality: bool

    kind = "farkas"

    def excludes_any_norm(self, target: Target, keys: FloatArray) -> bool:
        """Return whether it is proved that no query of any norm exists.

        By these multiples m, or by others nearby. Let M have a column for each constraint: its key
        above what it says of both offsets. If M has full rank and the least singular value s, some
        x within ||M m|| / s of m has M x = 0. It is a proof if its numbers have the signs of m and
        leave a gap. Each of the bounds below has ample room for rounding.
        """
        gap, multiples = self._proof(row := support_of(target, self.row))
        columns, m = zip(*[(column, float(factor)) for column, factor in multiples], strict=True)
        of_b = np.array([term.kind in ("margin", "outside") for term in self.terms])
        matrix = np.vstack([keys[list(columns)].T, of_b, ~of_b]).astype(np.float64)
        matrix = matrix[matrix.any(axis=1)]  # Terms of b alone do not ask for c.
        sizes = np.linalg.svd(matrix, compute_uv=False)
        error = 1e-13 * len(m) * sizes[0]
        off = np.linalg.norm(matrix @ m) + error * np.linalg.norm(m)
        off /= max(sizes[-1] - 2 * error, 1e-16 * sizes[0])
        least = np.abs(np.log(list(row.values()))).max() + math.log1p(self.distortion)
        is_left = 2 * off * len(m) * (least - math.log(self.leak)) < float(gap)
        is_near = off < np.abs(m).min() and len(matrix) <= len(m) and not self.equality
        return bool(is_near and is_left) or math.isinf(self.verify(target, keys))

    def __repr__(self) -> str:
        return (
            f"FarkasWitness(row {self.row}: leak {self.leak:.6g} and distortion "
            f"{self.distortion:.6g} need ||q|| >= {self.norm_bound:.4g}; "
            f"{len(self.terms)} multipliers, residual {self.residual:.2g})"
        )

    def _proof(self, row: dict[int, float]) -> tuple[Fraction, Multiples]:
        if not (0 < self.leak < 1 and 0 <= self.distortion < math.inf) or not row:
            raise HeadfitError(f"{self!r} speaks of no tolerances")
        logs = {j: Fraction(math.log(w)) for j, w in row.items()}
        # Computed logarithms have errors of a few units in the last place; the gap is lowered by
        # a bound of their effect.
        limits = -math.log(self.leak), math.log1p(self.distortion)
        largest = max(1.0, *limits, *(abs(float(x)) for x in logs.values()))
        slack = Fraction(4 * float(np.finfo(np.float64).eps) * largest)
        level, half = Fraction(limits[0]), Fraction(limits[1]) / 2
        off = level + 2 * half - min(logs.values()) if self.equality else Fraction(0)
        offsets, gap = [Fraction(0), Fraction(0)], Fraction(0)
        multiples: Multiples = []
        for term in self.terms:
            m, a = _exact(term.value, "a multiplier"), logs.get(term.column, Fraction(0))
            # Each constraint is  sign * (offset - q.k) >= least.
            sign, least, is_allowed = {
                "ratio upper": (1, -a - half, not self.equality and m >= 0),
                "ratio lower": (-1, a - half, not self.equality and m >= 0),
                "margin": (-1, level, not self.equality and m >= 0),
                "outside": (1, off, m >= 0),
                "ratio equal": (1, -a, self.equality),
            }.get(term.kind, (0, a, False))
            if not is_allowed or (term.column in logs) == (term.kind == "outside"):
                raise HeadfitError(f"{self!r} has a wrong term {term}")
            # The offset is b for margins and columns off the support, and c for all else.
            offsets[term.kind in ("margin", "outside") and not self.equality] += sign * m
            gap += m * least - abs(m) * 4 * slack
            multiples.append((term.column, sign * m))
        if any(offsets):
            raise HeadfitError(f"{self!r} does not cancel the offsets")
        if gap <= 0:
            raise HeadfitError(f"{self!r} leaves no gap")
        return gap, multiples


@dataclass(frozen=True, repr=False)
class FaceWitness(Witness):
    """A proof that the keys of a support are not those of a face of the keys' convex hull.

    A convex combination of keys of the support equals one that also uses other keys. Hence no
    query has equal logits on the support that exceed all others, and an arbitrarily small leak
    is impossible for this support, whatever the norm. This does not tell whether the requested
    tolerances can be met.

    Attributes
    ----------
    row : int
        The row of the target.
    inside : tuple of (column, weight)
        A convex combination of keys of the support.
    with_others : tuple of (column, weight)
        An equal convex combination that has weight off the support.
    residual : float
        The distance of the two combinations, in floating-point arithmetic.
    others_weight : float
        The weight of `with_others` off the support.
    norm_bound : float
        If the residual is not exactly 0: a lower bound on the norm of a query whose logits are
        equal on the support and at least 1 lower elsewhere.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> keys = [[0.0], [1.0], [-1.0]]  # key 0 is half key 1 and half key 2
    >>> farkas, face = hf.fit(np.eye(3), method=hf.methods.MaxMargin(keys=keys)).witnesses
    >>> face.with_others
    ((1, 0.5), (2, 0.5))
    """

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

    def _proof(self, row: dict[int, float]) -> tuple[Fraction, Multiples]:
        shares: Multiples = []
        for terms, sign in ((self.inside, 1), (self.with_others, -1)):
            weights = [_exact(w, "a weight") for _, w in terms]
            if any(w < 0 for w in weights) or not sum(weights):
                raise HeadfitError(f"{self!r} has a negative weight")
            total = sum(weights, Fraction(0))  # divided by it, the weights sum to 1 exactly
            shares += [(j, sign * w / total) for (j, _), w in zip(terms, weights, strict=True)]
        off = [(j, share) for j, share in shares if j not in row]
        if misplaced := {j for j, _ in off} & {j for j, _ in self.inside}:
            raise HeadfitError(f"{self!r} uses column {min(misplaced)} as if on the support")
        others = -sum((share for _, share in off), Fraction(0))
        if others <= 0:
            raise HeadfitError(f"{self!r} uses no key off the support")
        return others, shares
