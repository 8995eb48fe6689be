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

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from headfit._base.arguments import as_flag, as_positive
from headfit._base.tolerances import Tolerances
from headfit._lower import exact
from headfit._lower.problem import Visibility, Witness
from headfit._lower.supports import KINDS, Kind, are_places, line
from headfit._target.target import Target, support_of
from headfit.errors import InputError

SQUARE_BITS = 80  # Squares of ratios, and powers of entries, are rounded up to so many digits
MOST_POWER = 1000  # Entries of a matrix are raised to this power at most


@dataclass(frozen=True)
class Limits:
    """Bounds on scale × max ‖q‖ × max ‖k‖ and on |logit|, perhaps of masked pairs too."""

    max_norm: float | None = None
    max_logit: float | None = None
    masked_logits: bool = False

    def __post_init__(self) -> None:
        checked = {name: as_positive(vars(self)[name], name) for name in ("max_norm", "max_logit")}
        vars(self).update(checked, masked_logits=as_flag(self.masked_logits, "masked_logits"))
        if self.masked_logits and self.max_logit is None:
            raise InputError(
                "masked_logits must be False without max_logit, the bound of those logits; got True"
            )

    @property
    def any(self) -> bool:
        """Whether anything is bounded."""
        return self.max_norm is not None or self.max_logit is not None


class Facts(NamedTuple):
    """What a family that was checked says about every head, with tau = ln(1 / leak).

    The gap between its members, of which there are `points`, is a share of tau. `joint`: queries
    and keys are told apart together (`Groups`), not one of them (`Apart`). `in_rows`: each member's
    own row has the gap to all others. `closed`: every row of the family sees all of its columns.
    """

    points: int
    share: Fraction
    joint: bool
    in_rows: bool
    closed: bool


@dataclass(frozen=True, repr=False)
class Apart:
    """Columns of which every two are told apart by a row, or rows told apart by their supports.

    A row that sees two columns tells them apart if it attends to one of them. Two rows are told
    apart if each attends to a column that the other sees and does not attend to. `within` has the
    columns (or rows) that tell them apart, all of which are seen by (or see) all members. None: any
    row, for columns; all columns, for rows without a mask.
    """

    kind: Kind
    members: tuple[int, ...]
    within: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.members)} {self.kind})"

    def facts(self, target: Target) -> Facts | None:
        """Return what the family proves; None if it is not what it says."""
        n, members = target.n, self.members
        within = range(n) if self.within is None else self.within
        if self.kind not in KINDS or not members or not are_places(n, members, tuple(within)):
            return None
        sight = Visibility(target.mask, n)
        closed = not sight.limited or self.within is not None
        if self.kind == "rows":
            good = closed and sight.all_see(members, within)
            good = good and _no_row_contains_another(target, members, within)
        elif closed:
            attending, inside = _attending(target), set(within)
            distinct = {frozenset(attending[j] & inside) for j in members}
            good = len(distinct) == len(members) and sight.all_see(within, members)
        else:
            good = _columns_apart(target, sight, members)
        return self.says(closed) if good else None

    def says(self, closed: bool) -> Facts:
        """Return what the family proves if it is what it says, and `closed` in this sense."""
        return Facts(len(self.members), Fraction(1), False, False, closed)


@dataclass(frozen=True, repr=False)
class Groups:
    """Rows, each with the same number of columns of its support, few of which are common.

    Row t comes with a group of columns T_t in its support, and attends to no further column of
    all groups. Every row sees all columns of all groups. Or the same of columns, with groups of
    rows that attend to them. Groups have equal sizes; those of size 1 are a matching.
    """

    kind: Kind
    members: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    __repr__ = Apart.__repr__

    def facts(self, target: Target) -> Facts | None:
        """Return what the family proves; None if it is not what it says."""
        members, groups = self.members, self.groups
        if self.kind not in KINDS or not groups or len(groups) != len(members):
            return None
        size, used = len(groups[0]), tuple(sorted({x for group in groups for x in group}))
        if size == 0 or any(len(set(g)) != size or len(g) != size for g in groups):
            return None
        of_rows = self.kind == "rows"
        rows, columns = (members, used) if of_rows else (used, members)
        sight = Visibility(target.mask, target.n)
        if not are_places(target.n, rows, columns) or not sight.all_see(rows, columns):
            return None
        lines = {i: set(support_of(target, i)) for i in rows} if of_rows else _attending(target)
        wanted = set(used)
        if any(lines[m] & wanted != set(g) for m, g in zip(members, groups, strict=True)):
            return None
        common = max(_most_common(groups))
        return None if common == size else self.says(common)

    def says(self, common: int) -> Facts:
        """Return what the family proves if no two groups share more than so many elements."""
        share = 1 - Fraction(common, len(self.groups[0]))
        return Facts(len(self.members), share, True, self.kind == "rows" or common == 0, True)


@dataclass(frozen=True, repr=False)
class Separated(Witness):
    """A family that is told apart, in a head with bounded norms or logits."""

    family: Apart | Groups
    limits: Limits

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the size that it proves necessary; 0 for none, target.n + 1 if none suffices."""
        facts = self.family.facts(target)
        return 0 if facts is None else needed(facts, self.limits, tolerances.leak, target.n)[0]


def needed(facts: Facts, limits: Limits, leak: float, n: int) -> tuple[int, str]:
    """Return the least head size that is not excluded, and the name of the proof."""
    points, largest = facts.points, min(facts.points, n)
    gap = facts.share * exact.log_below(1 / Fraction(leak))
    proofs: list[Callable[[int], exact.Most]] = []

    def in_ball(norm: Fraction, dim: int) -> exact.Most:
        ratio = norm / (2 * gap) if facts.joint else (norm / gap) ** 2
        return exact.log_most(dim, exact.shortened(ratio, SQUARE_BITS))

    sizes = []
    if limits.max_norm is not None:
        sizes.append(norm := Fraction(limits.max_norm))
        proofs.append(lambda d: in_ball(norm, d))
    if limits.max_logit is not None and (facts.closed or limits.masked_logits):
        sizes.append(logit := Fraction(limits.max_logit))
        if facts.in_rows or not facts.joint:
            proofs.append(lambda d: _range(d, logit, gap))
        proofs.append(lambda d: in_ball(logit * exact.root_above(Fraction(d)), d))
    if sizes and facts.joint and facts.in_rows and points > 1:
        proofs.append(lambda d: _powers(d, points, min(sizes), gap))
    sizes_needed = [exact.least_dim(proof, points, largest) for proof in proofs]
    dim, reason = max([(1, "a head has at least one dimension"), *sizes_needed], key=itemgetter(0))
    return (n + 1 if dim > largest else dim), reason


def _range(dim: int, logit: Fraction, gap: Fraction) -> exact.Most:
    """Return the bound on the logarithm of the number of points for the range of the logits."""
    most = Fraction(0) if 2 * logit < gap else dim * exact.log_above(1 + 2 * logit / gap)
    return most, "range of the logits"


def _powers(dim: int, points: int, logit: Fraction, gap: Fraction) -> exact.Most:
    """Return a number that is at least ln(points) if matrices with powers of this rank exist."""
    if 2 * logit < gap:
        return Fraction(0), "range of the logits"
    entry = exact.shortened((2 * logit - gap) / (2 * logit + gap), SQUARE_BITS)
    if entry == 0:
        return exact.log_above(dim + 1), "powers of the logits"
    # Where logits are so large that the entry is 1 to rounding, no power says anything.
    decay = -2 * math.log(entry)
    if decay * MOST_POWER <= math.log(points):
        return exact.log_above(points), "powers of the logits"
    # The bound is about best where the two summands of the rank balance.
    middle = max(1.0, math.log(points) / decay)
    powers = [min(MOST_POWER, max(1, round(f * middle))) for f in (0.7, 0.85, 1.0, 1.2, 1.5)]
    ranks = [
        math.comb(dim + p, p) * (1 + (points - 1) * exact.shortened(entry ** (2 * p), SQUARE_BITS))
        for p in powers
    ]
    return exact.log_above(min(ranks)), "powers of the logits"


def _attending(target: Target) -> dict[int, set[int]]:
    columns = target.matrix.tocsc()
    return {j: set(line(columns, j).tolist()) for j in range(target.n)}


def _most_common(groups: Sequence[Collection[int]]) -> list[int]:
    """Return for each group how many elements it shares with another one, at most."""
    holders: dict[int, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        for x in group:
            holders[x].append(place)
    shared = []
    for place, group in enumerate(groups):
        met = Counter(other for x in group for other in holders[x])
        del met[place]
        shared.append(max(met.values(), default=0))
    return shared


def _columns_apart(target: Target, sight: Visibility, columns: tuple[int, ...]) -> bool:
    """Return whether every two columns are told apart by a row that sees both of them.

    What the rows of a column tell from it is collected as bits; the others are looked at singly.
    """
    order = sorted(columns)
    places = {j: place for place, j in enumerate(order)}
    attending = _attending(target)
    for place, j in enumerate(order):
        told = 0
        for i in attending[j]:
            inside = sum(1 << places[x] for x in support_of(target, i) if x in places)
            told |= _visible_bits(sight, i, order) & ~inside
        missing = ~told & ((1 << place) - 1)
        while missing:
            other = order[missing.bit_length() - 1]
            missing ^= 1 << missing.bit_length() - 1
            rows = attending[other] - attending[j]
            if not any(sight.sees(i, np.array([other, j])) for i in rows):
                return False
    return True


def _visible_bits(sight: Visibility, i: int, order: list[int]) -> int:
    """Return which of some columns in ascending order a row sees, as bits."""
    if sight.window is not None:
        first, stop = sight.span(i)
        return (1 << bisect_left(order, stop)) - (1 << bisect_left(order, first))
    return int.from_bytes(np.packbits(sight.row(i)[order], bitorder="little").tobytes(), "little")


def _no_row_contains_another(target: Target, rows: tuple[int, ...], columns: Iterable[int]) -> bool:
    inside = set(columns)
    supports = [inside.intersection(support_of(target, i)) for i in rows]
    if len(rows) > 1 and not all(supports):
        return False
    shared = _most_common(supports)
    return not any(s == len(support) for s, support in zip(shared, supports, strict=True))
