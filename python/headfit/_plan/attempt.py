"""One attempt of a plan: a fit, or a check of one that was found, with what it reached."""

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
    """What is asked of a head, and how it is sought; checked once, and passed to every step."""

    dim: int
    dtype: str
    kernel: Kernel
    tolerances: Tolerances
    method: str | Method
    seed: int
    threads: int

    def with_max_logit(self, limit: float | None) -> Question:
        """Return the same question with another bound on the logits."""
        asked = replace(self.tolerances, max_logit=limit)
        return replace(self, tolerances=asked)


@dataclass(frozen=True)
class PlanAttempt:
    """One head that a plan tried, or one way to store a head that it had found.

    Attributes
    ----------
    purpose : str
        Why it was tried. "asked": what the plan was asked for. "float32", "float32 logits" (not
        rounded to fewer bits), "free logits" (not bounded) and "looser" tolerances: the same with
        one demand relaxed. "smaller n", "smaller logits", "smaller dim". "rounded",
        "rounded logits": a head that was found, its Q and K rounded to 16 bits, read by a kernel
        that keeps logits in float32 or by an eager one.
    n, dim : int
    dtype : str
        The format of Q and K.
    kernel : Kernel
        What the certificate is about.
    tolerances : Tolerances
        What was asked of this attempt.
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
    method: str
    holds: bool
    leak: float
    distortion: float
    share_held: float
    max_logit: float
    max_norm: float
    exempt: int
    dim_used: int
    seconds: float
    stopped: Ending | Literal["memory"]
    obstacle: Obstacle | Literal["memory"] | None


def run(
    purpose: Purpose, question: Question, target: Target, seconds: float
) -> tuple[PlanAttempt, Fit | None]:
    """Fit a head within so many seconds, without the certificate; no fit where memory is short."""
    columns = global_columns(target)
    taken = columns.size * (2 if question.dtype in NARROW else 1)
    is_exempt = 0 < taken < question.dim  # the other columns need a dimension too
    try:
        found = fit(
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
        return _without_memory(purpose, question, target.n), None
    made = recorded(
        purpose, question, found, found.certificate, columns.size if is_exempt else 0, found.seconds
    )
    return replace(made, stopped=found.stopped or "stalled", obstacle=found.obstacle), found


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


def _without_memory(purpose: Purpose, question: Question, n: int) -> PlanAttempt:
    return PlanAttempt(
        purpose=purpose,
        n=n,
        dim=question.dim,
        dtype=question.dtype,
        kernel=question.kernel,
        tolerances=question.tolerances,
        method="",
        holds=False,
        leak=math.inf,
        distortion=math.inf,
        share_held=0.0,
        max_logit=math.inf,
        max_norm=math.inf,
        exempt=0,
        dim_used=question.dim,
        seconds=0.0,
        stopped="memory",
        obstacle="memory",
    )
