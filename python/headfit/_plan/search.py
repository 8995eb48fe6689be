"""The order of a plan's attempts: the size asked for, then what tells why it failed, or less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headfit._fit.result import Fit
from headfit._plan.attempt import PlanAttempt, Purpose, Question, run
from headfit._plan.better import smaller_dims, smaller_logits
from headfit._plan.clock import Clock
from headfit._plan.formats import check_formats
from headfit._plan.proofs import Proved, prove
from headfit._plan.relaxed import loosen, relax, smaller_n
from headfit._plan.source import Source
from headfit._target.target import Target
from headfit.errors import TooLargeError


@dataclass
class Findings:
    """What a plan has found so far."""

    target: Target | None = None
    proved: Proved | None = None
    attempts: list[PlanAttempt] = field(default_factory=list)
    best: PlanAttempt | None = None
    fit: Fit | None = None
    asked: Fit | None = None


@dataclass
class Planner:
    """Runs the attempts of a plan within its time."""

    source: Source
    question: Question
    clock: Clock
    say: Callable[[str], None]
    found: Findings = field(default_factory=Findings)

    def carry_out(self) -> Findings:
        """Run all attempts that the time allows, and return what was found."""
        source, clock, found = self.source, self.clock, self.found
        target = self._target()
        if target is not None:
            found.target = target
            self.say(f"bounds that are proved for n = {source.n:,}")
            asked = self.question
            seconds = clock.part("bound")
            found.proved = prove(target, asked.tolerances, seconds, asked.kernel)
            if found.proved.refutes(asked.dim, asked.tolerances):
                return found
        clock.measure(source.n, self.question.dim, self.question.threads)
        if target is None or not clock.affords(source.n):
            failed = smaller_n(self)
            if failed is not None:
                relax(self, failed)
        elif self.attempt("asked", self.question, target, clock.part("asked")):
            smaller_logits(self, target)
            smaller_dims(self, target)
        elif found.asked is None:  # the memory was too small
            smaller_n(self)
        elif found.asked.stopped == "time limit":
            # What was asked had most of the time, and with other demands it may take as long.
            # Smaller n are quick, and tell how much time it needs.
            smaller_n(self)
            relax(self, target)
            loosen(self, target)
        else:
            relax(self, target)
            loosen(self, target)
            smaller_n(self)
        if found.fit is not None and found.best is not None:
            at = self._target() if found.best.n == source.n else source.at(found.best.n)
            assert at is not None
            self.say("what narrower formats do to the head that was found")
            found.attempts += check_formats(found.best, found.fit, at, self.question, clock)
        return found

    def _target(self) -> Target | None:
        """Return the target at the n asked for; None if it does not fit in memory."""
        try:
            return self.source.at(self.source.n)
        except TooLargeError:
            if not self.source.has_smaller:
                raise
            return None

    def attempt(self, purpose: Purpose, question: Question, target: Target, seconds: float) -> bool:
        """Make one attempt in so many seconds, certificate included; return whether it holds.

        Nothing is attempted where the time that is left does not allow a certificate.
        """
        if self.clock.certificate(target.n) > self.clock.left:
            return False
        self.say(f"n = {target.n:,}, d = {question.dim}, {question.dtype} ({purpose})")
        time_limit = seconds - self.clock.certificate(target.n)
        attempt, fit = run(purpose, question, target, time_limit)
        self.found.attempts.append(attempt)
        if purpose == "asked":
            self.found.asked = fit
        if attempt.holds and fit is not None and self._is_better(attempt):
            self.found.best, self.found.fit = attempt, fit
        return attempt.holds

    def _is_better(self, attempt: PlanAttempt) -> bool:
        """Return whether a certified head answers the question better than the best so far.

        The first relaxation that holds is kept, since those that ask least change come first; of
        the sizes below n, the largest. A relaxation at n answers better than these.
        """
        best = self.found.best
        if best is None:
            return True
        if attempt.purpose == "smaller n":
            return best.purpose == "smaller n" and attempt.n > best.n
        if best.purpose == "smaller n" and attempt.n == self.source.n:
            return True
        if attempt.purpose == "smaller logits":
            return True
        return attempt.purpose == "looser" and best.purpose == "looser"
