"""What a plan is about, one attempt (a fit, or a check of its head), and the time for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp

from headfit._attention.attention import Attention
from headfit._base.dtypes import NARROW
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Ending, Obstacle
from headfit._fit.fit import fit
from headfit._fit.method import Method
from headfit._fit.result import Fit
from headfit._target.certificate import Certificate
from headfit._target.certify import certify
from headfit._target.heavy import global_columns
from headfit._target.target import Target
from headfit.errors import TooLargeError

CERTIFIED = ("holds", "leak", "distortion", "share_held", "max_logit", "max_norm")
SECONDS = 60.0  # the default of `time_limit`

# The most that each step may take of the time that is left when it begins. "better" are all
# attempts at smaller logits together, and likewise at smaller sizes.
SHARES = {"bound": 0.05, "asked": 0.6, "relaxed": 0.35, "smaller n": 0.5, "better": 0.4, "one": 0.6}

AFFORDABLE = 0.25  # the most of the time left that the certificate of a size may take
MEASURED, MEASURES = 2048, 3  # tokens of the certificate that is timed, and how often it is


@dataclass(frozen=True)
class Question:
    """What a head must meet, and how it is sought: checked arguments of `fit`, by their names."""

    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    method: str | Method
    rng: int
    num_threads: int

    def with_max_logit(self, limit: float | None) -> Question:
        """Return the same question with another bound on the logits."""
        return replace(self, tolerances=replace(self.tolerances, max_logit=limit))

    def own_dims(self, columns: int) -> int:
        """Return how many coordinates so many global columns take for themselves."""
        return columns * (2 if self.dtype in NARROW else 1)


@dataclass(frozen=True)
class Source:
    """The pattern of a plan: its target at n, and at other sizes too if `has_smaller`."""

    name: str
    n: int
    at: Callable[[int], Target]
    has_smaller: bool


@dataclass(frozen=True)
class PlanAttempt:
    """One head that a plan tried, or one way to store a head that it already had.

    Attributes
    ----------
    purpose : str
        Why it was tried. "asked": the question as it is. "float32", "float32 logits" (not
        rounded to fewer bits), "free logits" (not bounded) and "looser" tolerances: the same with
        one demand relaxed. "smaller n", "smaller logits", "smaller dim". "rounded",
        "rounded logits": the best head, its Q and K rounded to 16 bits, read by a kernel that
        keeps logits in float32 or by an eager one.
    n, dim, dtype, kernel, tolerances : int, int, str, Kernel, Tolerances
        The size of the head, the format of its Q and K, and what its certificate is about.
    method : str
        The name of the method that made the head.
    holds, leak, distortion, share_held, max_logit, max_norm : bool, float, ...
        As of its `Certificate`, whether it holds or not; infinite without one.
    exempt, dim_used : int
        How many global columns got a coordinate of their own, and the size that the method worked
        with; further columns are zeros.
    seconds : float
    stopped, obstacle : str
        Why it ended, and what stood in the way (or None), in the words of `Fit`, or "memory".
    """

    purpose: str
    n: int
    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    method: str = ""
    holds: bool = False
    leak: float = math.inf
    distortion: float = math.inf
    share_held: float = 0.0
    max_logit: float = math.inf
    max_norm: float = math.inf
    exempt: int = 0
    dim_used: int = 0
    seconds: float = 0.0
    stopped: Ending | Literal["memory"] = "memory"
    obstacle: Obstacle | Literal["memory"] | None = "memory"


def run(
    purpose: str, question: Question, target: Target, seconds: float
) -> tuple[PlanAttempt, Fit | None]:
    """Fit a head within so many seconds, without the certificate; no fit where memory is short."""
    columns = global_columns(target).size
    # The other columns need a dimension too.
    exempt = columns if 0 < question.own_dims(columns) < question.dim else 0
    try:
        head = fit(
            target,
            exempt_columns="auto" if exempt else None,
            time_limit=max(seconds, 1e-3),
            **vars(question),
        )
    except TooLargeError:
        dim, dtype, kernel = question.dim, question.dtype, question.kernel
        failed = PlanAttempt(purpose, target.n, dim, dtype, kernel, question.tolerances)
        return replace(failed, dim_used=dim), None
    attempt = recorded(purpose, question, head, head.certificate, exempt, head.seconds)
    return replace(attempt, stopped=head.stopped or "stalled", obstacle=head.obstacle), head


def recorded(
    purpose: str, question: Question, head: Fit, proof: Certificate, exempt: int, seconds: float
) -> PlanAttempt:
    """Return the record of a head and of a certificate of it."""
    return PlanAttempt(
        purpose,
        proof.n,
        head.dim,
        question.dtype,
        question.kernel,
        proof.tolerances,
        method=head.method,
        **{name: getattr(proof, name) for name in CERTIFIED},
        exempt=exempt,
        dim_used=int(head.settings.get("dim_used", head.dim)),
        seconds=seconds,
        stopped="certified" if proof.holds else "stalled",
        obstacle=None if proof.holds else "format",
    )


@dataclass
class Clock:
    """The seconds that a plan may take since `start`, and those of a certificate for each entry."""

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

        Its time grows with n**2 d. Rows that hold take less, so that predictions are rather too
        long; and the least of `MEASURES` times is taken, as other work only adds to them.
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
