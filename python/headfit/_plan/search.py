"""The order of a plan's attempts: the size asked for, then what tells why it failed, or less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headfit._base.dtypes import NARROW
from headfit._base.tolerances import Tolerances
from headfit._fit.result import Fit
from headfit._plan.attempt import PlanAttempt, Purpose, Question, run
from headfit._plan.clock import Clock
from headfit._plan.formats import check_formats
from headfit._plan.proofs import Proved, prove
from headfit._plan.source import Source
from headfit._target.target import Target
from headfit.errors import InputError, TooLargeError

STEP = 4
"""A pattern that does not certify is tried at n / 64, n / 16, n / 4: so many times the last n."""

LOOSER = (6, 2)
"""By what leak and distortion are multiplied where they are not met, the loosest first."""

LOOSEST_LEAK = 0.5

FEWEST_TOKENS = 32
SPARSE = 4
"""A smaller n is worth a try if it is at least this, and so many times the nonzeros of a row."""

MOST_LIMITS = 5
"""The most smaller bounds on logits that are tried."""

MOST_DIMS = 8
"""The most smaller head sizes that are tried."""


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
            found.proved = prove(target, self.question.tolerances, clock.part("bound"))
            if found.proved.refutes(self.question.dim, self.question.tolerances):
                return found
        clock.measure(source.n, self.question.dim, self.question.threads)
        if target is None or not clock.affords(source.n):
            failed = self._smaller_n()
            if failed is not None:
                self._relax(failed)
        elif self._try("asked", self.question, target, clock.part("asked")):
            self._smaller_logits(target)
            self._smaller_dims(target)
        else:
            if self.found.asked is not None:  # there was memory enough
                self._relax(target)
                self._loosen(target)
            self._smaller_n()
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

    def _try(self, purpose: Purpose, question: Question, target: Target, seconds: float) -> bool:
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
        the sizes below n, the largest.
        """
        best = self.found.best
        if best is None:
            return True
        if attempt.purpose == "smaller n":
            return best.purpose == "smaller n" and attempt.n > best.n
        if attempt.purpose == "smaller logits":
            return True
        return attempt.purpose == "looser" and best.purpose == "looser"

    def _smaller_logits(self, target: Target) -> None:
        """Halve the bound on logits while it certifies, in a part of the time that is left."""
        first, proved = self.found.attempts[-1], self.found.proved
        least = 0.0 if proved is None else proved.least_logit
        clock = Clock(self.clock.part("smaller logits"))
        limit = first.max_logit / 2
        for _ in range(MOST_LIMITS):
            if limit <= least or clock.left < 2 * first.seconds:
                return
            asked = self.question.with_max_logit(limit)
            if not self._try("smaller logits", asked, target, clock.part("one of these")):
                return
            limit = self.found.attempts[-1].max_logit / 2

    def _relax(self, target: Target) -> None:
        """Take back one demand at a time, to tell which one stood in the way."""
        question = self.question
        if question.dtype in NARROW:
            wide = replace(question, dtype="float32")
            self._try("float32", wide, target, self.clock.part("relaxed"))
        if question.logits_dtype in NARROW:
            exact = replace(question, logits_dtype=None)
            self._try("exact logits", exact, target, self.clock.part("relaxed"))
        if question.tolerances.max_logit is not None:
            self._try(
                "free logits", question.with_max_logit(None), target, self.clock.part("relaxed")
            )

    def _loosen(self, target: Target) -> None:
        """Try wider tolerances, the loosest first; stop at the first that does not certify."""
        asked = self.question.tolerances
        for times in LOOSER:
            wide = Tolerances(
                max(asked.leak, min(LOOSEST_LEAK, times * asked.leak)),
                times * asked.distortion,
                asked.max_logit,
            )
            question = replace(self.question, tolerances=wide)
            if not self._try("looser", question, target, self.clock.part("looser")):
                return

    def _smaller_n(self) -> Target | None:
        """Climb from small n, where certificates are quick, to the first that does not certify.

        Return the target of that one, or None when there is none.
        """
        if not self.source.has_smaller:
            return None
        for n in self._sizes():
            try:
                target = self.source.at(n)
            except InputError:  # a pattern that exists for some n only, such as powers of two
                continue
            if SPARSE * target.mean_per_row > n:
                continue
            if not self._try("smaller n", self.question, target, self.clock.part("smaller n")):
                return target
        return None

    def _sizes(self) -> list[int]:
        """Return the smaller n to try, in ascending order, whose certificates the time allows."""
        top = self.source.n // STEP
        while top >= FEWEST_TOKENS and not self.clock.affords(top):
            top //= STEP
        sizes = [top // STEP**2, top // STEP, top]
        return [size for size in sizes if size >= FEWEST_TOKENS]

    def _smaller_dims(self, target: Target) -> None:
        """Halve the size while it certifies, then bisect, in a part of the time that is left."""
        question, proved, first = self.question, self.found.proved, self.found.attempts[0]
        taken = first.exempt * (2 if question.dtype in NARROW else 1)
        lower = 1 if proved is None or proved.lower is None else proved.lower.dim
        holds, fails = question.dim, max(lower - 1, taken)
        clock = Clock(self.clock.part("smaller dims"))
        for _ in range(MOST_DIMS):
            if holds - fails <= 1 or clock.left < 2 * first.seconds:
                return
            used = min(a.dim_used for a in self.found.attempts if a.holds)
            middle = used if fails < used < holds else (holds + fails) // 2
            smaller = replace(question, dim=middle)
            if self._try("smaller dim", smaller, target, clock.part("one of these")):
                holds = middle
            else:
                fails = middle
