"""The attempts of a plan: the size in question, then smaller ones, or what tells why it failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np

from headfit import bounds
from headfit._attention.attention import Attention
from headfit._base.dtypes import HALVES, NARROW
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances, log_inverse
from headfit._fit.result import Fit
from headfit._plan.attempt import Clock, PlanAttempt, Question, Source, recorded, run
from headfit._target.certify import certify
from headfit._target.target import Target
from headfit.errors import InputError, TooLargeError

LONGEST_BOUND = 3.0  # seconds of a search for a lower bound, which finds little more in more
MOST_NONZEROS = 10**7  # of patterns in which a lower bound is looked for
MOST_LIMITS, MOST_DIMS = 5, 8  # smaller bounds on logits, and head sizes, that are tried
PATIENCE, LEAST_PATIENCE = 10, 1.0  # times the first one's seconds for better heads; seconds
STEP, SIZES = 4, 4  # as many smaller n are tried, each `STEP` times the last
FEWEST_TOKENS, SPARSE = 32, 4  # a smaller n is at least this, and so many times the row's nonzeros

# Leak and distortion that are not met are multiplied by WIDER: if that certifies, by LEAST_WIDER
# too, and by WIDEST otherwise. The leak is widened to WIDEST_LEAK at most.
WIDER, LEAST_WIDER, WIDEST, WIDEST_LEAK = 6, 2, 10, 0.5

# The kernels of 16 bits that may read the best head, which round Q and K, or logits too.
READERS = (("rounded", "flash"), ("rounded logits", "eager"))


def least_logit(target: Target, leak: float) -> float:
    """Return the least bound on |logit| with which any head, of any size, can meet the leak.

    A row that attends to some visible columns and not to others needs logits that differ by
    log(1 / leak). 0 where no such row is known, as under masks other than "causal".
    """
    is_causal = isinstance(target.mask, str) and target.mask == "causal"
    if target.mask is not None and not is_causal:
        return 0.0
    sizes = np.diff(target.csr_arrays[0])
    visible = np.arange(1, target.n + 1) if is_causal else target.n
    return log_inverse(leak) / 2 if np.any((sizes > 0) & (sizes < visible)) else 0.0


@dataclass
class Planner:
    """Runs the attempts of a plan within its time, and holds what came of them."""

    source: Source
    question: Question
    clock: Clock
    say: Callable[[str], None]
    target: Target | None = None
    lower_bound: bounds.LowerBound | None = None
    projection_dim: int | None = None
    least_logit: float = 0.0
    attempts: list[PlanAttempt] = field(default_factory=list)
    best: PlanAttempt | None = None
    fit: Fit | None = None
    first: Fit | None = None

    def carry_out(self) -> Planner:
        """Run all attempts that the time allows, and return this object."""
        source, question = self.source, self.question
        try:
            self.target = source.at(source.n)
        except TooLargeError:
            if not source.has_smaller:
                raise
        if self.target is not None:
            self.say(f"bounds that are proved for n = {source.n:,}")
            self._prove(self.target, self.clock.part("bound"))
            too_small = self.lower_bound is not None and self.lower_bound.dim > question.dim
            if too_small or question.tolerances.logit_limit < self.least_logit:
                return self
        self.clock.measure(source.n, question.dim, question.num_threads)
        self._attempts(self.target)
        if self.fit is not None and self.best is not None:
            self.say("what narrower formats do to the best head")
            self._check_formats(self.best, self.fit)
        return self

    def _prove(self, target: Target, seconds: float) -> None:
        """Look for what is proved about the size and the logits, in about so many seconds."""
        tolerances = self.question.tolerances
        if target.nonzeros <= MOST_NONZEROS:
            limit = max(min(seconds, LONGEST_BOUND), 1e-3)
            exact = tolerances.before_rounding(self.question.kernel)
            self.lower_bound = bounds.lower(target, tolerances=exact, time_limit=limit)
        with suppress(InputError):  # the size would be 2**62 or more
            self.projection_dim = bounds.projection_dim(
                target.n, target.per_row, target.gamma, tolerances.leak, tolerances.distortion
            )
        self.least_logit = least_logit(target, tolerances.leak)

    def _attempts(self, target: Target | None) -> None:
        if target is None or not self.clock.affords(self.source.n):
            failed = self._smaller_n()
            if failed is not None:
                self._relax(failed)
        elif self._attempt("asked", self.question, target, self.clock.part("asked")):
            self._smaller_logits(target)
            self._smaller_dims(target)
        elif self.first is None:  # the memory was too small
            self._smaller_n()
        else:
            # Where time ran out, smaller n come first: they are quick, and tell how much it needs.
            was_cut = self.first.stopped == "time limit"
            if was_cut:
                self._smaller_n()
            self._relax(target)
            self._loosen(target)
            if not was_cut:
                self._smaller_n()

    def _attempt(self, purpose: str, question: Question, target: Target, seconds: float) -> bool:
        """Make one attempt, if the time left allows a certificate; return whether it holds."""
        if self.clock.certificate(target.n) > self.clock.left:
            return False
        self.say(f"n = {target.n:,}, d = {question.dim}, {question.dtype} ({purpose})")
        time_limit = seconds - self.clock.certificate(target.n)
        attempt, fit = run(purpose, question, target, time_limit)
        self.attempts.append(attempt)
        if purpose == "asked":
            self.first = fit
        if attempt.holds and self._is_better(attempt):
            self.best, self.fit = attempt, fit
        return attempt.holds

    def _is_better(self, attempt: PlanAttempt) -> bool:
        """Return whether a certified head answers the question better than the best so far.

        The first relaxation that holds is kept; it answers better than sizes below n.
        """
        best = self.best
        if best is None or attempt.purpose == "smaller logits":
            return True
        if best.purpose == "smaller n":
            is_larger = attempt.purpose == "smaller n" and attempt.n > best.n
            return is_larger or attempt.n == self.source.n
        return attempt.purpose == "looser" and best.purpose == "looser"

    def _smaller_logits(self, target: Target) -> None:
        """Halve the bound on logits while it certifies, in a part of the time that is left."""
        first = self.attempts[-1]
        clock = Clock(self.clock.part("better"))
        limit = first.max_logit / 2
        for _ in range(MOST_LIMITS):
            if limit <= self.least_logit or clock.left < first.seconds:
                return
            smaller = self.question.with_max_logit(limit)
            if not self._attempt("smaller logits", smaller, target, _patience(clock, first)):
                return
            limit = self.attempts[-1].max_logit / 2

    def _smaller_dims(self, target: Target) -> None:
        """Halve the size while it certifies, then bisect, in a part of the time that is left."""
        first, lower = self.attempts[0], self.lower_bound
        fails = max(0 if lower is None else lower.dim - 1, self.question.own_dims(first.exempt))
        holds = self.question.dim
        clock = Clock(self.clock.part("better"))
        for _ in range(MOST_DIMS):
            if holds - fails <= 1 or clock.left < first.seconds:
                return
            used = min(a.dim_used for a in self.attempts if a.holds)
            middle = used if fails < used < holds else (holds + fails) // 2
            smaller = replace(self.question, dim=middle)
            if self._attempt("smaller dim", smaller, target, _patience(clock, first)):
                holds = middle
            else:
                fails = middle

    def _relax(self, target: Target) -> None:
        """Take back one demand at a time, to tell which one stood in the way."""
        question = self.question
        relaxed: dict[str, Question] = {}
        if question.dtype in NARROW:
            wide = question.kernel.of_wide_head()
            relaxed["float32"] = replace(question, dtype="float32", kernel=wide)
        if question.kernel.rounds_logits:
            relaxed["float32 logits"] = replace(question, kernel=Kernel.named("float32"))
        if question.tolerances.max_logit is not None:
            relaxed["free logits"] = question.with_max_logit(None)
        for purpose, easier in relaxed.items():
            self._attempt(purpose, easier, target, self.clock.part("relaxed"))

    def _loosen(self, target: Target) -> None:
        """Try wider tolerances; if they certify, narrower ones, and otherwise still wider ones."""
        limits = self.question.tolerances

        def holds(times: int) -> bool:
            leak = max(limits.leak, min(WIDEST_LEAK, times * limits.leak))
            wide = Tolerances(leak, times * limits.distortion, limits.max_logit)
            question = replace(self.question, tolerances=wide)
            return self._attempt("looser", question, target, self.clock.part("relaxed"))

        holds(LEAST_WIDER if holds(WIDER) else WIDEST)

    def _smaller_n(self) -> Target | None:
        """Climb from small n to the first that does not certify, and return its target, if any."""
        if not self.source.has_smaller:
            return None
        top = self.source.n // STEP
        while top >= FEWEST_TOKENS and not self.clock.affords(top):
            top //= STEP
        for n in (top // STEP**by for by in reversed(range(SIZES))):
            try:
                target = self.source.at(n) if n >= FEWEST_TOKENS else None
            except InputError:  # a pattern that exists for some n only, such as powers of two
                continue
            if target is None or SPARSE * target.mean_per_row > n:
                continue
            if not self._attempt("smaller n", self.question, target, self.clock.part("smaller n")):
                return target
        return None

    def _check_formats(self, best: PlanAttempt, head: Fit) -> None:
        """Certify the best head with other kernels of 16 bits, as far as the time allows."""
        target = self.source.at(best.n)
        attention = Attention(head.Q, head.K, scale=head.scale, mask=head.mask)
        threads, limits = self.question.num_threads, best.tolerances
        certified = partial(certify, target, attention, tolerances=limits, num_threads=threads)
        for (purpose, reader), dtype in product(READERS, HALVES):
            kernel = Kernel.named(f"{reader}-{dtype}")
            if dtype == best.dtype and (purpose == "rounded" or kernel == best.kernel):
                continue
            if self.clock.certificate(target.n) > self.clock.left:
                break
            begin = time.perf_counter()
            try:
                certificate = certified(kernel=kernel, certificate_mass=False)
            except InputError:  # numbers beyond the range of the format
                continue
            rounded = replace(self.question, dtype=dtype, kernel=kernel)
            seconds = time.perf_counter() - begin
            check = recorded(purpose, rounded, head, certificate, best.exempt, seconds)
            self.attempts.append(check)


def _patience(clock: Clock, first: PlanAttempt) -> float:
    """Return the seconds for a head that is better than the first one that certified."""
    return min(clock.part("one"), max(PATIENCE * first.seconds, LEAST_PATIENCE))
