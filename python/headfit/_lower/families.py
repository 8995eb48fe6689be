"""Families of rows and columns that the supports tell apart: the witnesses of `bounded`.

Whoever reads a proof needs the checks of this file only. They are plain loops that share no code
with the searches for families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

import numpy as np

from headfit._lower.problem import Visibility, are_places, packed, support_of
from headfit._target.target import Target

Kind = Literal["rows", "columns"]
KINDS = get_args(Kind)


class Facts(NamedTuple):
    """What a family that was checked says about every head, with tau = ln(1 / leak).

    Attributes
    ----------
    points : int
        How many members the family has.
    share : Fraction
        The gap between its members is this share of tau.
    joint : bool
        Whether queries and keys are told apart together (`Groups`), not one of them (`Apart`).
    in_rows : bool
        Whether each member's own row has the gap to all other members.
    closed : bool
        Whether every row of the family sees all of its columns.
    """

    points: int
    share: Fraction
    joint: bool
    in_rows: bool
    closed: bool

    def follow_from(self, others: Facts) -> bool:
        """Return whether the facts of another family of the same form say all of these."""
        fewer = self.points <= others.points and self.share <= others.share
        return fewer and self.in_rows <= others.in_rows and self.closed <= others.closed


@dataclass(frozen=True, repr=False)
class Apart:
    """Columns of which every two are told apart by a row, or rows told apart by their supports.

    A row that sees two columns tells them apart if it attends to one of them. Two rows are told
    apart if each attends to a column that the other sees and does not attend to.

    Attributes
    ----------
    kind : "rows" or "columns"
    members : tuple of int
    within : tuple of int or None
        The columns (or rows) that tell them apart, all of which see, or are seen by, all members.
        None: any row, for columns; all columns, for rows without a mask.
    """

    kind: Kind
    members: tuple[int, ...]
    within: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Apart({len(self.members)} {self.kind})"

    def facts(self, target: Target) -> Facts | None:
        """Return what the family proves; None if it is not what it says."""
        n, members = target.n, self.members
        within = range(n) if self.within is None else self.within
        if self.kind not in KINDS or not members or not are_places(n, members, tuple(within)):
            return None
        sight = Visibility(target.mask, n)
        closed = not sight.limited or self.within is not None
        if self.kind == "rows":
            good = closed and _all_seen(sight, members, within)
            good = good and _no_row_contains_another(target, members, within)
        elif closed:
            good = _all_seen(sight, within, members) and _columns_differ(target, within, members)
        else:
            good = _columns_apart(target, sight, members)
        return Facts(len(members), Fraction(1), False, False, closed) if good else None


@dataclass(frozen=True, repr=False)
class Groups:
    """Rows, each with the same number of columns of its support, few of which are common.

    Row t comes with a group of columns T_t in its support, and attends to no further column of
    all groups. Every row sees all columns of all groups. Or the same of columns, with groups of
    rows that attend to them.

    Attributes
    ----------
    kind : "rows" or "columns"
        What the members are.
    members : tuple of int
    groups : tuple of tuple of int
        Of equal sizes. Those of size 1 are a matching.
    """

    kind: Kind
    members: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    def __repr__(self) -> str:
        return f"Groups({len(self.members)} {self.kind} with {len(self.groups[0])} each)"

    def facts(self, target: Target) -> Facts | None:
        """Return what the family proves; None if it is not what it says."""
        members, groups = self.members, self.groups
        if self.kind not in KINDS or not groups or len(groups) != len(members):
            return None
        size, used = len(groups[0]), tuple(sorted({x for group in groups for x in group}))
        if size == 0 or any(len(set(g)) != size or len(g) != size for g in groups):
            return None
        rows, columns = (members, used) if self.kind == "rows" else (used, members)
        if not are_places(target.n, rows, columns):
            return None
        if not _all_seen(Visibility(target.mask, target.n), rows, columns):
            return None
        in_rows = self.kind == "rows"
        lines = {i: set(support_of(target, i)) for i in rows} if in_rows else _attending(target)
        wanted = set(used)
        if any(
            lines.get(m, set()) & wanted != set(g) for m, g in zip(members, groups, strict=True)
        ):
            return None
        common = max(_most_common(groups))
        if common == size:
            return None
        share = Fraction(size - common, size)
        return Facts(len(members), share, True, in_rows or common == 0, True)


def _attending(target: Target) -> dict[int, set[int]]:
    """Return the rows that attend to each column."""
    rows: dict[int, set[int]] = defaultdict(set)
    for i in range(target.n):
        for j in support_of(target, i):
            rows[j].add(i)
    return dict(rows)


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


def _all_seen(sight: Visibility, rows: Iterable[int], columns: Iterable[int]) -> bool:
    """Return whether every row sees every column."""
    if not sight.limited:
        return True
    wanted = np.array(list(columns), dtype=np.intp)
    return all(sight.sees(i, wanted) for i in rows)


def _columns_differ(target: Target, rows: Iterable[int], columns: Sequence[int]) -> bool:
    """Return whether no two of the columns are attended to by the same of these rows."""
    inside, attending = set(rows), _attending(target)
    return len({frozenset(attending.get(j, set()) & inside) for j in columns}) == len(columns)


def _columns_apart(target: Target, sight: Visibility, columns: tuple[int, ...]) -> bool:
    """Return whether every two columns are told apart by a row that sees both of them.

    For each column, the members before it that its own rows tell from it are collected as bits of
    an integer; the others are looked at one by one, from the rows that attend to those.
    """
    order = sorted(columns)
    places = {j: place for place, j in enumerate(order)}
    attending = _attending(target)
    for place, j in enumerate(order):
        told = 0
        for i in attending.get(j, ()):
            off = _visible_bits(sight, i, order)
            for x in support_of(target, i):
                if x in places:
                    off &= ~(1 << places[x])
            told |= off
        missing = ~told & ((1 << place) - 1)
        while missing:
            lowest = missing & -missing
            missing ^= lowest
            other = order[lowest.bit_length() - 1]
            rows = attending.get(other, set()) - attending.get(j, set())
            if not any(sight.sees(i, np.array([other, j])) for i in rows):
                return False
    return True


def _visible_bits(sight: Visibility, i: int, order: list[int]) -> int:
    """Return which of some columns in ascending order a row sees, as bits."""
    if sight.window is not None:
        first, stop = sight.span(i)
        return (1 << bisect_left(order, stop)) - (1 << bisect_left(order, first))
    return packed(sight.row(i)[order])


def _no_row_contains_another(target: Target, rows: tuple[int, ...], columns: Iterable[int]) -> bool:
    """Return whether, within the columns, no row's support contains another's."""
    inside = set(columns)
    supports = [inside.intersection(support_of(target, i)) for i in rows]
    if len(rows) > 1 and not all(supports):
        return False
    shared = _most_common(supports)
    return not any(s == len(support) for s, support in zip(shared, supports, strict=True))
