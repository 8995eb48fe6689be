"""The attempts of a plan: the size in question, then smaller ones, or what tells why it failed."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import bounds
from headfit._attention.attention import Attention
from headfit._base.arrays import HALVES, NARROW, float_above
from headfit._base.display import named
from headfit._base.machine import require_memory
from headfit._base.tolerances import Kernel, Tolerances
from headfit._fit.fit import fit
from headfit._fit.head import Problem
from headfit._fit.method import Method
from headfit._fit.result import Fit
from headfit._lower.exact import log_below
from headfit._plan.result import Plan, PlanAttempt, advice_of
from headfit._target.certificate import Certificate
from headfit._target.certify import certify
from headfit._target.target import Target, global_columns
from headfit.errors import FileError, HeadfitError, InputError, TooLargeError

LONGEST_BOUND = 3.0  # seconds of a search for a lower bound, which finds little more in more
MOST_NONZEROS = 10**7  # of patterns in which a lower bound is looked for
MOST_BETTER = 8  # smaller bounds on logits that are tried, and likewise smaller head sizes
PATIENCE, LEAST_PATIENCE = 10, 1.0  # times the first one's seconds for better heads; seconds
STEP, SIZES = 4, 4  # as many smaller n are tried, each `STEP` times the last
FEWEST_TOKENS, SPARSE = 32, 4  # a smaller n is at least this, and so many times the row's nonzeros

# Leak and distortion that are not met are multiplied by WIDER: if that certifies, by LEAST_WIDER
# too, and by WIDEST otherwise. The leak is widened to WIDEST_LEAK at most.
WIDER, LEAST_WIDER, WIDEST, WIDEST_LEAK = 6, 2, 10, 0.5

# The kernels of 16 bits that may read the best head, which round Q and K, or logits too.
READERS = (("rounded", "flash"), ("rounded logits", "eager"))

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
    method: Method
    rng: int
    num_threads: int

    def with_max_logit(self, limit: float | None) -> Self:
        """Return the same question with another bound on the logits."""
        return replace(self, tolerances=replace(self.tolerances, max_logit=limit))

    def own_dims(self, columns: int) -> int:
        """Return how many coordinates so many global columns take for themselves."""
        return columns * (2 if self.dtype in NARROW else 1)

    def exempt(self, target: Target) -> NDArray[np.int64]:
        """Return the global columns if they may have coordinates of their own, else none."""
        columns = global_columns(target)
        # These break a bound on norms; the other columns need a dimension too.
        has_bound = getattr(self.method, "max_norm", None) is not None
        return columns[: 0 if has_bound or self.own_dims(columns.size) >= self.dim else None]


@dataclass(frozen=True)
class Source:
    """The pattern of a plan: its target at n, and at other sizes too if `has_smaller`."""

    name: str
    n: int
    at: Callable[[int], Target]
    has_smaller: bool


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
        require_memory(8 * size * dim, f"a head of size dim = {dim}")
        q, k = np.random.default_rng(0).standard_normal((2, size, dim), dtype=np.float32)
        identity = Target(sp.eye_array(size), num_threads=threads)
        seconds = []
        for _ in range(MEASURES):
            begin = time.perf_counter()
            certify(identity, Attention(q, k), certificate_mass=False, num_threads=threads)
            seconds.append(time.perf_counter() - begin)
            if not self.left:
                break
        self.rate = min(seconds) / size**2

    def certificate(self, n: int) -> float:
        """Return the predicted seconds of a certificate for n tokens."""
        return self.rate * n**2

    def affords(self, n: int) -> bool:
        """Return whether a certificate for n tokens is predicted to leave time for a fit."""
        return self.certificate(n) <= AFFORDABLE * self.left


@contextmanager
def about(name: str) -> Iterator[None]:
    """Make messages about `A`, the argument of others, name this one instead."""
    try:
        yield
    except HeadfitError as error:
        message = re.sub(r"(^|of |where )A\b", rf"\1{name}", str(error))
        of_file = (error.errno, error.filename) if isinstance(error, FileError) else ()
        raise type(error)(message, *of_file) from error


def least_logit(target: Target, leak: float, kernel: Kernel) -> float:
    """Return the least bound on |logit| with which any head, of any size, can meet the leak.

    A row that attends to some visible columns and not to others needs logits that differ by
    log(1 / leak). 0 where no such row is known, as under masks other than "causal", and for weights
    that are rounded, to zero perhaps.
    """
    is_causal = isinstance(target.mask, str) and target.mask == "causal"
    if kernel.weights is not None or (target.mask is not None and not is_causal):
        return 0.0
    sizes = np.diff(target.matrix.indptr)
    visible = np.arange(1, target.n + 1) if is_causal else target.n
    least = -float_above(-log_below(1 / Fraction(leak)) / 2)
    return least if np.any((sizes > 0) & (sizes < visible)) else 0.0


def recorded(
    purpose: str, question: Question, head: Fit, proof: Certificate, **more: Any
) -> PlanAttempt:
    """Return the record of a head and of a certificate of it."""
    return PlanAttempt(
        purpose, proof.n, head.dim, question.dtype, question.kernel, proof.tolerances, head.method,
        dim_used=int(head.settings.get("dim_used", head.dim)), **more,
        **named(proof, "holds", "leak", "distortion", "share_held", "max_logit", "max_norm"),
    )  # fmt: skip


class Planner:
    """Runs the attempts of a plan within its time, and adds what comes of them to the plan."""

    def __init__(
        self, source: Source, question: Question, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self.source, self.question, self.clock, self.say = source, question, clock, say
        asked = named(question, "dim", "dtype", "kernel", "tolerances")
        self.plan = Plan(source.name, source.n, time_limit=clock.limit, **asked)
        self.first: Fit | None = None

    def _add(self, **known: Any) -> None:
        self.plan = replace(self.plan, **known)

    def carry_out(self) -> Plan:
        """Run all attempts that the time allows, and return what they say."""
        source, question = self.source, self.question
        try:
            target = source.at(source.n)
        except TooLargeError:
            if not source.has_smaller:
                raise
            target = None
        if target is not None:
            problem = Problem(target, exempt=question.exempt(target),
                              **named(question, "tolerances", "dtype", "kernel"))  # fmt: skip
            with about("pattern"):
                question.method.check(problem, question.dim)
            self.say(f"bounds that are proved for n = {source.n:,}")
            self._add(target=target, global_columns=int(global_columns(target).size))
            self._prove(target, self.clock.part("bound"))
        if self.plan.verdict != "no":
            self.clock.measure(source.n, question.dim, question.num_threads)
            self._attempts(target)
            if self.plan.fit is not None and self.plan.best is not None:
                self.say("what narrower formats do to the best head")
                self._check_formats(self.plan.best, self.plan.fit)
        of_fit = ""
        if self.first is not None:
            of_fit, late = self.first.advice, self.first.lower_bound
            proved = [bound for bound in (self.plan.lower_bound, late) if bound is not None]
            self._add(lower_bound=max(proved, key=lambda bound: bound.dim, default=None))
        self._add(seconds=self.clock.spent)
        certificate = self.clock.certificate(source.n)
        self._add(advice=advice_of(self.plan, of_fit, source.has_smaller, certificate))
        return self.plan

    def _prove(self, target: Target, seconds: float) -> None:
        """Look for what is proved about the size and the logits, in about so many seconds."""
        tolerances = self.question.tolerances
        if target.nonzeros <= MOST_NONZEROS:
            limit = max(min(seconds, LONGEST_BOUND), 1e-3)
            exact = tolerances.before_rounding(self.question.kernel)
            self._add(lower_bound=bounds.lower(target, tolerances=exact, time_limit=limit))
        with suppress(InputError):  # the size would be 2**62 or more
            leak, distortion = tolerances.leak, tolerances.distortion
            size = bounds.projection_dim(target.n, target.per_row, target.gamma, leak, distortion)
            self._add(projection_dim=size)
        least = least_logit(target, tolerances.leak, self.question.kernel)
        self._add(least_logit=least)

    def _attempts(self, target: Target | None) -> None:
        if target is None or not self.clock.affords(self.source.n):
            failed = self._smaller_n()
            if failed is not None:
                self._relax(failed)
        elif self._attempt("asked", self.question, target, self.clock.part("asked")):
            self._better("smaller logits", target, self._with_smaller_logits)
            self._better("smaller dim", target, self._with_smaller_dim)
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
        certificate = self.clock.certificate(target.n)
        if certificate > self.clock.left:
            return False
        self.say(f"n = {target.n:,}, d = {question.dim}, {question.dtype} ({purpose})")
        exempt, head = question.exempt(target), None
        try:
            head = fit(
                target,
                exempt_columns=exempt,
                time_limit=max(seconds - certificate, 1e-3),
                **vars(question),
            )
        except TooLargeError:
            attempt = PlanAttempt(purpose, target.n, question.dim, question.dtype, question.kernel,
                                  question.tolerances, dim_used=question.dim)  # fmt: skip
        except InputError:  # a method with keys or a start of its own, for one size or n alone
            if purpose == "asked":
                raise
            return False
        else:
            attempt = recorded(
                purpose, question, head, head.certificate, exempt=exempt.size, seconds=head.seconds,
                stopped=head.stopped or "stalled", obstacle=head.obstacle,
            )  # fmt: skip
        self._add(attempts=(*self.plan.attempts, attempt))
        if purpose == "asked":
            self.first = head
        if attempt.holds and self._is_better(attempt):
            self._add(best=attempt, fit=head)
        return attempt.holds

    def _is_better(self, attempt: PlanAttempt) -> bool:
        """Return whether a certified head answers the question better than the best so far.

        The first relaxation that holds is kept; it answers better than sizes below n.
        """
        best = self.plan.best
        if best is None or attempt.purpose == "smaller logits":
            return True
        if best.purpose == "smaller n":
            is_larger = attempt.purpose == "smaller n" and attempt.n > best.n
            return is_larger or attempt.n == self.source.n
        return attempt.purpose == "looser" and best.purpose == "looser"

    def _better(self, purpose: str, target: Target, smaller: Callable[[], Question | None]) -> None:
        """Look for heads that are better than the first one, in a part of the time that is left."""
        first, clock = self.plan.attempts[0], Clock(self.clock.part("better"))
        for _ in range(MOST_BETTER):
            question = smaller()
            if question is None or clock.left < first.seconds:
                return
            patience = max(PATIENCE * first.seconds, LEAST_PATIENCE)
            self._attempt(purpose, question, target, min(clock.part("one"), patience))

    def _with_smaller_logits(self) -> Question | None:
        """Return the question with half the logits of the last head, if that is certified."""
        last = self.plan.attempts[-1]
        limit = last.max_logit / 2
        is_open = last.holds and limit > self.plan.least_logit
        return self.question.with_max_logit(limit) if is_open else None

    def _with_smaller_dim(self) -> Question | None:
        """Return the question with a size between those that hold and those that do not."""
        attempts, lower = self.plan.attempts, self.plan.lower_bound
        fails = [a.dim for a in attempts if a.purpose == "smaller dim" and not a.holds]
        fails += [0 if lower is None else lower.dim - 1, self.question.own_dims(attempts[0].exempt)]
        least, most = max(fails), min(a.dim for a in attempts if a.holds)
        used = min(a.dim_used for a in attempts if a.holds)
        middle = used if least < used < most else (most + least) // 2
        return replace(self.question, dim=middle) if most - least > 1 else None

    def _relax(self, target: Target) -> None:
        """Take back one demand at a time, to tell which one stood in the way."""
        question = self.question
        relaxed: dict[str, Question] = {}
        if question.dtype in NARROW:
            wide = question.kernel.of_wide_head()
            relaxed["float32"] = replace(question, dtype="float32", kernel=wide)
        if question.kernel.rounds_logits:
            kept = named(question.kernel, "sum_bits", "weights")
            relaxed["float32 logits"] = replace(question, kernel=Kernel("float32", **kept))
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
            except Exception:  # a pattern that exists for some n only, such as powers of two
                continue
            if target is None or SPARSE * target.mean_per_row > n:
                continue
            if not self._attempt("smaller n", self.question, target, self.clock.part("smaller n")):
                return target
        return None

    def _check_formats(self, best: PlanAttempt, head: Fit) -> None:
        """Certify the best head with other kernels of 16 bits, as far as the time allows."""
        target, threads = self.source.at(best.n), self.question.num_threads
        attention = Attention(head.Q, head.K, scale=head.scale, mask=head.mask)
        for (purpose, reader), dtype in product(READERS, HALVES):
            has_weights = self.question.kernel.weights is not None
            kernel = Kernel.named(f"{reader}-{dtype}", weights=has_weights)
            if dtype == best.dtype and (purpose == "rounded" or kernel == best.kernel):
                continue
            if self.clock.certificate(target.n) > self.clock.left:
                break
            begin = time.perf_counter()
            with suppress(InputError):  # numbers beyond the range of the format
                proof = certify(target, attention, tolerances=best.tolerances, kernel=kernel,
                                certificate_mass=False, num_threads=threads)  # fmt: skip
                rounded = replace(self.question, dtype=dtype, kernel=kernel)
                check = recorded(
                    purpose, rounded, head, proof, exempt=best.exempt,
                    seconds=time.perf_counter() - begin,
                    stopped="certified" if proof.holds else "stalled",
                    obstacle=None if proof.holds else "format",
                )  # fmt: skip
                self._add(attempts=(*self.plan.attempts, check))
