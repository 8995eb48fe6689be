"""Lower bounds for heads whose norms or logits are bounded.

Let tau = ln(1 / leak), and let the scale be a part of the queries q_i; k_j are the keys and
S_ij = q_i.k_j the logits. The leak says S_ij - S_il >= tau for every column j on the support of row
i and every visible column l off it. N bounds |q_i| |k_j| for all i and j (`max_norm`), B bounds
|S_ij| (`max_logit`).

**Apart, norms.** A row i that sees two columns and attends to one of them has
tau <= q_i.(k_j - k_l) <= max|q| |k_j - k_l|. So m columns of which every two are told apart are m
points in a ball with radius over distance of N / tau at most. For two rows that each attend to a
column which is visibly off the other's support, (q_i - q_l).(k_j - k_x) >= 2 tau, and
|k_j - k_x| <= 2 max|k|: the same ratio.

**Groups, norms.** Let x_t and y_t be vectors with (x_t - x_s).(y_t - y_s) >= 2 c for all t != s.
Multiply them by numbers so that both have norms up to sqrt(N), and let p_t = (x_t + y_t) / sqrt(2).
Then |p_t - p_s|^2 = |x_t - x_s + y_t - y_s|^2 / 2 >= 2 (x_t - x_s).(y_t - y_s) >= 4 c, as
|a + b|^2 = |a - b|^2 + 4 a.b, and |p_t| <= sqrt(2 N): points in a ball with squared ratio
N / (2 c). For rows with groups T_t of g columns take x_t = q_t and y_t the mean key of T_t.
Columns that two groups share cancel, so row t gives x_t.(y_t - y_s) >= c with
c = tau (g - o) / g where no two groups share more than o. For columns with groups of rows take the
mean query and the key.

**Range.** With logits bounded on all pairs of a family, |x| = max_i |q_i.x| is a seminorm in which
the points are gap or more apart and at most 2 B: m <= (1 + 2 B / gap)^d, by the volume of balls of
radius gap / 2 and the isodiametric inequality, which holds in every norm.

**John.** Logits of rank d with |S_ij| <= B have queries and keys with N <= B sqrt(d) (John 1948):
the bounds for norms apply.

**Powers** (after Alon 2003). Let M_ts = x_t.y_s be a square matrix of rank d with |M_ts| <= B and
M_tt - M_ts >= c for t != s. In row t subtract (M_tt - c - B) / 2, so that the entries off the
diagonal are at most (M_tt - c + B) / 2 in size, and divide by the entry that is now on the
diagonal, (M_tt + c + B) / 2. This gives a matrix of rank d + 1 with ones on its diagonal and
entries of at most e = (2 B - c) / (2 B + c) elsewhere. Its p-th power by entries has rank
C(d + p, p) at most, and at least m / (1 + (m - 1) e^(2 p)), as |trace|^2 <= rank |.|_F^2.

A head of any size can be projected on the span of the m keys (or queries, or mean keys) of the
family, so that what excludes d = m excludes every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

from headfit._base.arguments import as_flag
from headfit._base.arrays import check_between
from headfit._base.tolerances import Tolerances
from headfit._lower.exact import (
    Most,
    least_dim,
    log_above,
    log_below,
    log_most,
    root_above,
    shortened,
)
from headfit._lower.families import Apart, Facts, Groups
from headfit._lower.family_search import families
from headfit._lower.problem import Candidate, Problem
from headfit._target.target import Target
from headfit.errors import InputError

SQUARE_BITS = 80
"""Squares of ratios, and powers of entries, are rounded up to so many binary digits."""

MOST_POWER = 1000
"""Entries of a matrix are raised to this power at most."""


@dataclass(frozen=True)
class Limits:
    """Bounds on scale × max ‖q‖ × max ‖k‖ and on |logit|, perhaps of masked pairs too."""

    max_norm: float | None = None
    max_logit: float | None = None
    masked_logits: bool = False

    def __post_init__(self) -> None:
        for name in ("max_norm", "max_logit"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_between(value, name, 0, math.inf))
        object.__setattr__(self, "masked_logits", as_flag(self.masked_logits, "masked_logits"))
        if self.masked_logits and self.max_logit is None:
            raise InputError(
                "masked_logits must be False without max_logit, the bound of those logits; got True"
            )

    @property
    def any(self) -> bool:
        """Whether anything is bounded."""
        return self.max_norm is not None or self.max_logit is not None


@dataclass(frozen=True, repr=False)
class Separated:
    """A family that is told apart, in a head with bounded norms or logits."""

    family: Apart | Groups
    limits: Limits

    def __repr__(self) -> str:
        return f"Separated({self.family})"

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the head size that this witness proves necessary; 0 if it is not valid.

        target.n + 1 says that no head of any size meets the leak.
        """
        facts = self.family.facts(target)
        return 0 if facts is None else needed(facts, self.limits, tolerances.leak, target.n)[0]


def needed(facts: Facts, limits: Limits, leak: float, n: int) -> tuple[int, str]:
    """Return the least head size that is not excluded, and the name of the proof."""
    points, largest = facts.points, min(facts.points, n)
    gap = facts.share * log_below(1 / Fraction(leak))
    proofs: list[Callable[[int], Most]] = []

    def in_ball(norm: Fraction, dim: int) -> Most:
        ratio = norm / (2 * gap) if facts.joint else (norm / gap) ** 2
        return log_most(dim, shortened(ratio, SQUARE_BITS))

    sizes = []
    if limits.max_norm is not None:
        norm = Fraction(limits.max_norm)
        sizes.append(norm)
        proofs.append(lambda d: in_ball(norm, d))
    if limits.max_logit is not None and (facts.closed or limits.masked_logits):
        logit = Fraction(limits.max_logit)
        sizes.append(logit)
        if facts.in_rows or not facts.joint:
            proofs.append(lambda d: _range(d, logit, gap))
        proofs.append(lambda d: in_ball(logit * root_above(Fraction(d)), d))
    if sizes and facts.joint and facts.in_rows and points > 1:
        proofs.append(lambda d: _powers(d, points, min(sizes), gap))
    sizes_needed = [least_dim(proof, points, largest) for proof in proofs]
    dim, reason = max([(1, "a head has at least one dimension"), *sizes_needed], key=itemgetter(0))
    return (n + 1 if dim > largest else dim), reason


def _range(dim: int, logit: Fraction, gap: Fraction) -> Most:
    """Return the bound on the logarithm of the number of points for the range of the logits."""
    if 2 * logit < gap:
        return Fraction(0), "range of the logits"
    return dim * log_above(1 + 2 * logit / gap), "range of the logits"


def _powers(dim: int, points: int, logit: Fraction, gap: Fraction) -> Most:
    """Return a number that is at least ln(points) if matrices with powers of this rank exist."""
    if 2 * logit < gap:
        return Fraction(0), "range of the logits"
    entry = shortened((2 * logit - gap) / (2 * logit + gap), SQUARE_BITS)
    if entry == 0:
        return log_above(dim + 1), "powers of the logits"
    # Where logits are so large that the entry is 1 to rounding, no power says anything.
    decay = -2 * math.log(entry)
    if decay * MOST_POWER <= math.log(points):
        return log_above(points), "powers of the logits"
    # The bound is about best where the two summands of the rank balance.
    middle = max(1.0, math.log(points) / decay)
    powers = [min(MOST_POWER, max(1, round(f * middle))) for f in (0.7, 0.85, 1.0, 1.2, 1.5)]
    ranks = [
        math.comb(dim + p, p) * (1 + (points - 1) * shortened(entry ** (2 * p), SQUARE_BITS))
        for p in powers
    ]
    return log_above(min(ranks)), "powers of the logits"


NAMES = ("keys apart", "queries apart", "queries and keys apart")
"""The kinds of bounds for bounded heads."""


def bounded(problem: Problem, limits: Limits) -> list[Candidate]:
    """Return the best bounds for a head whose norms or logits are bounded."""
    best: dict[str, tuple[Candidate, Facts | None]] = {
        name: (Candidate(name, None, "not finished", "no family found"), None) for name in NAMES
    }
    for family, facts in families(problem.within(0.5)):
        name = NAMES[2 if facts.joint else family.kind == "rows"]
        candidate, known = best[name]
        if facts.points < 2 or (known is not None and facts.follow_from(known)):
            continue
        dim, proof = needed(facts, limits, problem.tolerances.leak, problem.target.n)
        if dim > (candidate.dim or 0):
            reason = "nothing found" if dim == 1 else _reason(facts, name, proof)
            witness = None if dim == 1 else Separated(family, limits)
            best[name] = Candidate(name, dim, "proved", reason, witness), facts
    return [candidate for candidate, _ in best.values()]


def _reason(facts: Facts, name: str, proof: str) -> str:
    gap = "ln(1/leak)" if facts.share == 1 else f"{facts.share} ln(1/leak)"
    what = f"{facts.points} {name.removesuffix(' apart')}"
    return f"{what} are apart by a gap of {gap} in bounded heads ({proof})"
