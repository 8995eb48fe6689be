"""The time of a plan: which share of it each step may take, and what a certificate will take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from headfit._attention.attention import Attention
from headfit._target.certify import certify
from headfit._target.target import Target

SECONDS = 60.0
"""The time limit of a plan that names none."""

SHARES = {
    "bound": 0.05,
    "asked": 0.6,
    "relaxed": 0.35,  # each of float32, logits in float32 and without a bound, looser tolerances
    "smaller n": 0.5,
    "better": 0.4,  # all attempts at smaller logits together, and likewise at smaller sizes
    "one of these": 0.6,
}
"""The most that each step may take of the time that is left when it begins."""

AFFORDABLE = 0.25
"""A size is tried only if its certificate is predicted to take at most this share of the rest."""

MEASURED, MEASURES = 2048, 3
"""The tokens of the certificate that is timed, to predict the time of others, and how often."""


@dataclass
class Clock:
    """The deadline of a plan, and the measured rate of certificates.

    Attributes
    ----------
    limit : float
        The seconds that the plan may take.
    start : float
        The value of ``time.perf_counter()`` when the plan began.
    rate : float
        Seconds of a certificate for each entry, as measured; 0 before it is.
    """

    limit: float
    start: float = field(default_factory=time.perf_counter)
    rate: float = 0.0

    @property
    def spent(self) -> float:
        """The seconds since the plan began."""
        return time.perf_counter() - self.start

    @property
    def left(self) -> float:
        """The seconds left, at least 0."""
        return max(0.0, self.limit - self.spent)

    def part(self, step: str) -> float:
        """Return the seconds that a step which begins now may take."""
        return SHARES[step] * self.left

    def measure(self, n: int, dim: int, threads: int) -> None:
        """Measure what a certificate takes, for random queries and keys of `MEASURED` tokens.

        The time of a certificate grows with n**2 d, and rows that hold take less than those of
        random queries, so that the prediction is rather too long. It is the least of `MEASURES`
        times: what else the machine does only adds to them.
        """
        size = min(n, MEASURED)
        q, k = np.random.default_rng(0).standard_normal((2, size, dim), dtype=np.float32)
        identity = Target(sp.eye_array(size), num_threads=threads)
        seconds = []
        for _ in range(MEASURES):
            begin = time.perf_counter()
            certify(identity, Attention(q, k), certificate_mass=False, num_threads=threads)
            seconds.append(time.perf_counter() - begin)
        self.rate = min(seconds) / size**2

    def certificate(self, n: int) -> float:
        """Return the predicted seconds of a certificate for n tokens."""
        return self.rate * n**2

    def affords(self, n: int) -> bool:
        """Return whether a certificate for n tokens is predicted to leave time for a fit."""
        return self.certificate(n) <= AFFORDABLE * self.left
