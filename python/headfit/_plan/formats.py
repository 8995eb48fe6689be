"""What kernels of 16 bits make of a head that was found: they round Q and K, or logits too."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

from headfit._attention.attention import Attention
from headfit._base.dtypes import HALVES
from headfit._base.kernel import Kernel
from headfit._fit.result import Fit
from headfit._plan.attempt import PlanAttempt, Purpose, Question, recorded
from headfit._plan.clock import Clock
from headfit._target.certify import certify
from headfit._target.target import Target
from headfit.errors import InputError

PATHS: tuple[tuple[Purpose, str], ...] = (("rounded", "flash"), ("rounded logits", "eager"))


def check_formats(
    best: PlanAttempt, head: Fit, target: Target, question: Question, clock: Clock
) -> list[PlanAttempt]:
    """Certify the head with fused and with eager kernels of 16 bits, but for the one asked for.

    Each check is one certificate; those that the time does not allow are left out.
    """
    checks: list[PlanAttempt] = []
    attention = Attention(head.Q, head.K, scale=head.scale, mask=head.mask)
    for (purpose, path), dtype in product(PATHS, HALVES):
        kernel = Kernel.named(f"{path}-{dtype}")
        if dtype == best.dtype and (purpose == "rounded" or kernel == best.kernel):
            continue
        if clock.certificate(target.n) > clock.left:
            break
        begin = time.perf_counter()
        try:
            certificate = certify(
                target,
                attention,
                tolerances=best.tolerances,
                kernel=kernel,
                certificate_mass=False,
                num_threads=question.threads,
            )
        except InputError:  # numbers beyond the range of the format
            continue
        asked = replace(question, dim=best.dim, dtype=dtype, kernel=kernel)
        seconds = time.perf_counter() - begin
        checks.append(recorded(purpose, asked, head, certificate, best.exempt, seconds))
    return checks
