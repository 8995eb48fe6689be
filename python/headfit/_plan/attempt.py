"""One attempt of a plan: a fit, or a check of a head that an earlier fit made."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from headfit._base.dtypes import NARROW
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Ending, Obstacle
from headfit._fit.fit import fit
from headfit._fit.method import Method
from headfit._fit.result import Fit
from headfit._target.certificate import Certificate
from headfit._target.heavy import global_columns
from headfit._target.target import Target
from headfit.errors import TooLargeError

Purpose = Literal[
    "asked",
    "float32",
    "float32 logits",
    "free logits",
    "looser",
    "smaller n",
    "smaller logits",
    "smaller dim",
    "rounded",
    "rounded logits",
]
LEAST_SECONDS = 1e-3


@dataclass(frozen=True)
class Question:
    """What a head must meet, and how it is sought; checked once, and passed to every step."""

    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    method: str | Method
    seed: int
    threads: int

    def with_max_logit(self, limit: float | None) -> Question:
        """Return the same question with another bound on the logits."""
        return replace(self, tolerances=replace(self.tolerances, max_logit=limit))

    def own_dims(self, columns: int) -> int:
        """Return how many coordinates so many global columns take for themselves."""
        return columns * (2 if self.dtype in NARROW else 1)


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
    n, dim : int
    dtype : str
        The format of Q and K.
    kernel : Kernel
        What the certificate is about.
    tolerances : Tolerances
        Those of this attempt.
    method : str
        The name of the method that made the head.
    holds : bool
        Whether it is certified.
    leak, distortion : float
        Upper bounds that the certificate proved, whether it holds or not; infinite without one.
    share_held : float
        The share of rows that meet the tolerances.
    max_logit : float
        The largest |logit|.
    max_norm : float
        scale * max ||q|| * max ||k||.
    exempt : int
        How many global columns got a coordinate of their own.
    dim_used : int
        The size that the method worked with; further columns are zeros.
    seconds : float
    stopped : str
        Why it ended, in the words of `Fit.stopped`, or "memory".
    obstacle : str or None
        What stood in the way, in the words of `Fit.obstacle`, or "memory".
    """

    purpose: Purpose
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

    @property
    def is_check(self) -> bool:
        """Whether it is a check of the best head in another format, and no head of its own."""
        return self.purpose.startswith("rounded")


def run(
    purpose: Purpose, question: Question, target: Target, seconds: float
) -> tuple[PlanAttempt, Fit | None]:
    """Fit a head within so many seconds, without the certificate; no fit where memory is short."""
    columns = global_columns(target).size
    # The other columns need a dimension too.
    is_exempt = 0 < question.own_dims(columns) < question.dim
    try:
        head = fit(
            target,
            question.dim,
            method=question.method,
            dtype=question.dtype,
            tolerances=question.tolerances,
            exempt_columns="auto" if is_exempt else None,
            kernel=question.kernel,
            time_limit=max(seconds, LEAST_SECONDS),
            rng=question.seed,
            num_threads=question.threads,
        )
    except TooLargeError:
        asked = (question.dim, question.dtype, question.kernel, question.tolerances)
        return PlanAttempt(purpose, target.n, *asked, dim_used=question.dim), None
    attempt = recorded(purpose, question, head, head.certificate, columns * is_exempt, head.seconds)
    return replace(attempt, stopped=head.stopped or "stalled", obstacle=head.obstacle), head


def recorded(
    purpose: Purpose,
    question: Question,
    head: Fit,
    certificate: Certificate,
    exempt: int,
    seconds: float,
) -> PlanAttempt:
    """Return the record of a head and of a certificate of it."""
    return PlanAttempt(
        purpose=purpose,
        n=certificate.n,
        dim=head.dim,
        dtype=question.dtype,
        kernel=question.kernel,
        tolerances=certificate.tolerances,
        method=head.method,
        holds=certificate.holds,
        leak=certificate.leak,
        distortion=certificate.distortion,
        share_held=certificate.share_held,
        max_logit=certificate.max_logit,
        max_norm=certificate.max_norm,
        exempt=exempt,
        dim_used=int(head.settings.get("dim_used", head.dim)),
        seconds=seconds,
        stopped="certified" if certificate.holds else "stalled",
        obstacle=None if certificate.holds else "format",
    )
