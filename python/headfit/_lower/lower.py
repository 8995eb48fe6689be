"""Lower bounds on the head size, each with a witness."""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass
from typing import Any

from headfit._base.arguments import as_generator, check_between
from headfit._base.display import Pictured, mask_text, named, plain_dict
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._lower.bounded import Apart, Groups, Limits, Separated
from headfit._lower.family_search import bounded
from headfit._lower.hull import Hull, hull_proofs
from headfit._lower.problem import Candidate, Problem, Witness, best_proof
from headfit._lower.traces import NoOrder, Traces, order_proofs, traces
from headfit._lower.weights import Block, weight_proofs
from headfit._target.target import as_target

SECONDS = 5.0  # the default of `time_limit`


@dataclass(frozen=True, repr=False, eq=False)
class LowerBound(Pictured):
    """A proved lower bound on the head size that a target needs at some tolerances.

    Attributes
    ----------
    dim : int
        No head of a smaller size meets the tolerances within the bounds, whatever its dtype.
    reason, witness : str, object
        The argument in a sentence, and the evidence, which `verify` checks; None for dim 1.
    candidates : tuple of Candidate
        Every bound that was tried.
    tolerances : Tolerances
        What it is proved for.
    mask, max_norm, masked_logits : object, float or None, bool
        The options of `lower`. No `max_norm`: any norms.
    impossible : bool
        Whether no head of any size meets the tolerances within the bounds. `dim` is then n + 1: a
        head of any size has the logits of one of size n, with no larger norms.
    """

    dim: int
    reason: str
    witness: Witness | None
    candidates: tuple[Candidate, ...]
    tolerances: Tolerances
    mask: Any = None
    max_norm: float | None = None
    masked_logits: bool = False
    impossible: bool = False

    def verify(self, A: Any) -> bool:
        """Check the witness, and that of every candidate, against a target.

        The checks read the target and the witness alone, and allow for rounding.

        Parameters
        ----------
        A : target
            The target that was given to `lower`.

        Returns
        -------
        bool
            Whether every witness proves the head size that is claimed for it.

        Raises
        ------
        InputError
            If `A` is not a target.
        """
        target = as_target(A, mask=self.mask)
        limits = Limits(self.max_norm, self.tolerances.max_logit, self.masked_logits)

        def holds(dim: int, witness: Witness | None) -> bool:
            if isinstance(witness, Separated) and witness.limits != limits:
                return False
            return dim <= (1 if witness is None else witness.proves(target, self.tolerances))

        is_whole = self.impossible == (self.dim > target.n) and holds(self.dim, self.witness)
        return is_whole and all(holds(c.dim or 0, c.witness) for c in self.candidates)

    @property
    def claim(self) -> str:
        """The bound in words: "d >= 3", or "no size suffices"."""
        return "no size suffices" if self.impossible else f"d >= {self.dim}"

    def in_words(self) -> str:
        """Return the bound, what it is proved for, and the argument in a line."""
        leak, distortion, max_logit = astuple(self.tolerances)
        words = [f"leak {leak:g}", f"distortion {distortion:g}"]
        if max_logit is not None:
            words.append(f"|logit| <= {max_logit:g}{' (masked pairs too)' * self.masked_logits}")
        if self.max_norm is not None:
            words.append(f"scale max|q| max|k| <= {self.max_norm:g}")
        return f"{self.claim} for {', '.join(words)}: {self.reason}"

    def tried(self) -> list[tuple[str, str, str]]:
        """Return name, size and argument of every bound that was tried, in words."""
        sizes = {None: "not finished", self.dim: self.claim}
        return [(c.name, sizes.get(c.dim, f"d >= {c.dim}"), c.reason) for c in self.candidates]

    def to_dict(self) -> dict[str, Any]:
        """Return all but the witnesses as plain Python values, for JSON."""
        own = named(self, "dim", "impossible", "reason", "max_norm", "masked_logits")
        tried = [named(c, "name", "dim", "status", "reason") for c in self.candidates]
        return plain_dict({
            **own, **asdict(self.tolerances), "candidates": tried,
            "mask": None if self.mask is None else mask_text(self.mask),
        })  # fmt: skip

    def __repr__(self) -> str:
        under = "" if self.mask is None else f", mask={mask_text(self.mask)}"
        return f"LowerBound({self.claim}: {self.reason}{under})"


def lower(
    A: Any,
    *,
    leak: float | None = None,
    distortion: float | None = None,
    max_norm: float | None = None,
    max_logit: float | None = None,
    masked_logits: bool = False,
    tolerances: Tolerances | None = None,
    mask: Any = None,
    time_limit: float = SECONDS,
    rng: Any = 0,
) -> LowerBound:
    """Prove that every head below some size misses the tolerances for this target.

    Parameters
    ----------
    A : target
        A `Target`, or whatever makes one: a sparse or dense array, or a path.
    leak, distortion : float, optional
        See `Tolerances`, which has the defaults.
    max_norm : float, optional
        A bound on scale × max ‖q‖ × max ‖k‖, as of the methods and of `Certificate.max_norm`.
    max_logit : float, optional
        A bound on |logit| where the mask allows, as of `Tolerances` and `Certificate`.
    masked_logits : bool, default False
        Whether `max_logit` bounds the logits of masked pairs as well, as a certificate's does not.
    tolerances : Tolerances, optional
        Leak, distortion and `max_logit` as one object, in their place.
    mask : optional
        As in `Attention`; the target's own mask when None.
    time_limit : float, default 5.0
        About how many seconds the searches may take; they claim what they have proved by then.
    rng : optional
        Seed or generator of the randomised searches.

    Returns
    -------
    LowerBound
        The best bound with its witness, and every bound that was tried.

    Raises
    ------
    InputError
        For a tolerance, a bound or a time limit out of range, for `masked_logits` without
        `max_logit`, or if `A` is not a target.

    Notes
    -----
    These bounds are tried; the modules of ``headfit._lower`` prove them.

    - *order of the keys*: with d = 1 every support is at one end of a common order of the keys.
      Without a mask this is decided exactly.
    - *VC dimension, dual VC dimension, traces of columns, of rows*: each support is what an affine
      halfspace contains, and these cut so many columns or rows in so many ways only.
    - *hull of the keys*: the tolerances force certain keys to be vertices of their convex hull.
      Each support is connected by its edges, a planar graph for d = 3 and a cycle for d = 2.
      Supports that need too many edges prove d >= 4 or d >= 3, and never more.
    - *keys apart, queries apart, queries and keys apart*, with `max_norm` or `max_logit`: what some
      row must tell apart keeps a distance, and only so many points fit in a ball. These bounds grow
      like the logarithm of n; docs/bounds.md has the statements.
    - *weights of a block*: on rows and columns of common support, log A with its rows centred
      must be within the distortion of a matrix of rank d (Eckart and Young).

    With a mask, each bound uses rows that may all attend to the same columns: the last rows of a
    causal mask, for example. All are about exact logits. Deciding whether a pattern has a head of
    size d > 1 is NP-hard, so that a gap to the smallest head that is known is to be expected.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.block(64, 8)
    >>> bound = lower(A)
    >>> bound.dim, bound.verify(A)
    (2, True)
    >>> A = hf.patterns.random_regular(512, 4, gamma=2.0, rng=0)
    >>> lower(A)
    LowerBound(d >= 4: 512 keys are vertices of their hull, and 512 supports ... planar graph has)
    >>> lower(A, max_norm=5.0)
    LowerBound(d >= 9: 182 queries and keys are apart by a gap of ln(1/leak) in bounded heads ...)
    """
    tolerances = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    limits = Limits(max_norm, tolerances.max_logit, masked_logits)
    seconds = check_between(time_limit, "time_limit", 0, math.inf)
    target = as_target(A, mask=mask)
    problem = Problem.of(target, tolerances, seconds, as_generator(rng))
    candidates = (
        best_proof("order of the keys", problem.within(0.4), order_proofs),
        best_proof("hull of the keys", problem.within(0.5), hull_proofs),
        best_proof("weights of a block", problem.within(0.3), weight_proofs),
        *traces(problem, "columns"),
        *traces(problem, "rows"),
        *(bounded(problem, limits) if limits.any else ()),
    )
    trivial = Candidate("trivial", 1, "proved", "a head has at least one dimension")
    best = max(trivial, *candidates, key=lambda c: c.dim or 0)
    dim = best.dim or 1
    return LowerBound(
        dim=dim,
        **named(best, "reason", "witness"),
        candidates=candidates,
        tolerances=tolerances,
        mask=target.mask,
        **named(limits, "max_norm", "masked_logits"),
        impossible=dim > target.n,
    )


# The classes that a saved bound consists of, beside its tolerances.
SAVED = (LowerBound, Candidate, Traces, Hull, Block, NoOrder, Separated, Apart, Groups, Limits)
