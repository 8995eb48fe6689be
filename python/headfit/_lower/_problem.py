"""What the searches for lower bounds share: the target, the time, and what they return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from headfit._base.tolerances import Tolerances
from headfit._lower._visibility import Ints, Visibility
from headfit._target.target import Target


class OutOfTimeError(Exception):
    """A search has passed its deadline."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A target and the tolerances that a head shall meet, with what the searches need.

    Attributes
    ----------
    sight : Visibility
        Which columns each row may attend to.
    supports, logs : csr_array, shape (n, n)
        On the supports ones, and log A.
    deadline : float
        The value of `time.monotonic` at which the search must end.
    rng : Generator
        The source of randomness of the searches.
    """

    target: Target
    tolerances: Tolerances
    sight: Visibility
    supports: sp.csr_array
    logs: sp.csr_array
    deadline: float
    rng: np.random.Generator

    @classmethod
    def of(cls, target: Target, tolerances: Tolerances, seconds: float, rng: Any = 0) -> Problem:
        """Return the problem of a checked target, with so many seconds for the searches."""
        m = target.matrix
        supports = sp.csr_array((np.ones(m.nnz, np.int64), m.indices, m.indptr), shape=m.shape)
        logs = sp.csr_array((np.log(m.data), m.indices, m.indptr), shape=m.shape)
        sight, deadline = Visibility(target.mask, target.n), time.monotonic() + seconds
        generator = np.random.default_rng(rng)
        return cls(target, tolerances, sight, supports, logs, deadline, generator)

    @property
    def seconds(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def within(self, share: float) -> Problem:
        """Return the same problem for a search that may use this share of the time left."""
        return replace(self, deadline=time.monotonic() + share * self.seconds)

    def check_time(self) -> None:
        """Raise an OutOfTimeError if the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise OutOfTimeError

    def rectangles(self) -> list[tuple[Ints, Ints]]:
        """Return sets of rows, each with columns that all of them see, most promising first."""
        return self.sight.rectangles(self.check_time)


class Witness(Protocol):
    """Evidence for a lower bound."""

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Check the evidence and return the head size that it proves necessary; 0 for none."""


@dataclass(frozen=True, repr=False)
class Candidate:
    """One bound that was tried.

    Attributes
    ----------
    name : str
        The kind of the bound.
    dim : int or None
        The head size that it proves necessary; None if nothing was proved.
    status : str
        "proved", or "not finished" if nothing was proved before the time ended.
    reason : str
        The argument in a sentence.
    witness : object or None
        The evidence; see `LowerBound.verify`.
    """

    name: str
    dim: int | None
    status: str
    reason: str
    witness: Witness | None = None

    def __repr__(self) -> str:
        value = self.status if self.dim is None else f"d >= {self.dim}"
        return f"Candidate({self.name}: {value}; {self.reason})"


Proof = tuple[int, str, Witness | None]
"""A head size that is proved necessary, the argument in a sentence, and the evidence."""


def best_proof(
    name: str, problem: Problem, search: Callable[[Problem], Iterator[Proof]]
) -> Candidate:
    """Return the largest size of all proofs that a search yields before its time ends."""
    best: Proof | None = None
    ended = ""
    try:
        for proof in search(problem):
            if best is None or proof[0] > best[0]:
                best = proof
    except OutOfTimeError:
        ended = "; the time ended"
    if best is None and ended:
        return Candidate(name, None, "not finished", f"nothing found{ended}")
    dim, reason, witness = (1, "nothing found", None) if best is None else best
    return Candidate(name, dim, "proved", f"{reason}{ended}", witness)


def line(m: sp.csr_array | sp.csc_array, at: int) -> Any:
    """Return the columns stored in a row of a csr_array, or the rows in a column of a csc_array."""
    stored: Any = m.indices[m.indptr[at] : m.indptr[at + 1]]
    return stored


def support_of(target: Target, i: int) -> dict[int, float]:
    """Return the columns and weights of one row, in a form for the checks of witnesses."""
    m = target.matrix
    start, stop = m.indptr[i], m.indptr[i + 1]
    return dict(zip(m.indices[start:stop].tolist(), m.data[start:stop].tolist(), strict=True))


def are_places(n: int, *families: tuple[int, ...]) -> bool:
    """Return whether the numbers of each family are distinct and in the range 0 ... n - 1."""
    return all(len(set(f)) == len(f) and all(0 <= x < n for x in f) for f in families)
