"""What narrow formats do to a head that was found: its Q and K, or its logits, are rounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from headfit._attention.attention import Attention
from headfit._base.dtypes import HALVES, round_to
from headfit._fit.result import Fit
from headfit._plan.attempt import PlanAttempt, Purpose, Question, recorded
from headfit._plan.clock import Clock
from headfit._target.certify import certify
from headfit._target.target import Target
from headfit.errors import InputError


def check_formats(
    best: PlanAttempt, head: Fit, target: Target, question: Question, clock: Clock
) -> list[PlanAttempt]:
    """Certify the head with Q and K, and with logits, rounded to each narrow format.

    Each check is one certificate; those that the time does not allow are left out.
    """
    checks = []
    for purpose, asked in _roundings(best, question):
        if clock.certificate(target.n) > clock.left:
            break
        begin = time.perf_counter()
        try:
            q, k = round_to(head.Q, asked.dtype), round_to(head.K, asked.dtype)
        except InputError:  # numbers beyond the range of the format
            continue
        certificate = certify(
            target,
            Attention(q, k, scale=head.scale, mask=head.mask),
            tolerances=best.tolerances,
            accumulate="float32",
            logits_dtype=asked.logits_dtype,
            certificate_mass=False,
            num_threads=question.threads,
        )
        seconds = time.perf_counter() - begin
        checks.append(recorded(purpose, asked, head, certificate, best.exempt, seconds))
    return checks


def _roundings(best: PlanAttempt, question: Question) -> Iterator[tuple[Purpose, Question]]:
    """Yield the formats to check: those of Q and K first, then those of the logits."""
    stored = replace(question, dtype=best.dtype, logits_dtype=best.logits_dtype, dim=best.dim)
    for dtype in HALVES:
        if dtype != best.dtype:
            yield "rounded", replace(stored, dtype=dtype)
    for dtype in HALVES:
        if dtype != best.logits_dtype:
            yield "rounded logits", replace(stored, logits_dtype=dtype)
