"""The common input and output of the searches for lower bounds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from headfit._lower._visibility import Visibility
from headfit._target.target import Target


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
        The value of `time.monotonic` at which the searches must end.
    rng : Generator
        The source of randomness of the searches.
    """

    target: Target
    leak: float
    distortion: float
    sight: Visibility
    supports: sp.csr_array
    logs: sp.csr_array
    deadline: float
    rng: np.random.Generator

    @classmethod
    def of(cls, target: Target, leak: float, distortion: float, limit: float, rng: Any) -> Problem:
        """Return the problem of a checked target, with `limit` seconds for the searches."""
        m = target.matrix
        supports = sp.csr_array((np.ones(m.nnz, np.int64), m.indices, m.indptr), shape=m.shape)
        logs = sp.csr_array((np.log(m.data), m.indices, m.indptr), shape=m.shape)
        sight = Visibility(target.mask, target.n)
        clock = time.monotonic() + limit
        generator = np.random.default_rng(rng)
        return cls(target, leak, distortion, sight, supports, logs, clock, generator)

    def share(self, part: float) -> float:
        """Return the deadline of a search that may use this share of the remaining time."""
        now = time.monotonic()
        return now + part * max(0.0, self.deadline - now)


class Witness(Protocol):
    """Evidence for a lower bound."""

    def proves(self, target: Target, leak: float, distortion: float) -> int:
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


def support_of(target: Target, i: int) -> dict[int, float]:
    """Return the columns and weights of one row, in a form for the checks of witnesses."""
    m = target.matrix
    start, stop = int(m.indptr[i]), int(m.indptr[i + 1])
    pairs = zip(m.indices[start:stop].tolist(), m.data[start:stop].tolist(), strict=True)
    return dict(pairs)


def are_distinct(numbers: tuple[int, ...], n: int) -> bool:
    """Return whether these numbers are distinct and in the range 0 ... n - 1."""
    return len(set(numbers)) == len(numbers) and all(0 <= x < n for x in numbers)
