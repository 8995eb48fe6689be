"""What a construction method is, and how it searches for a small size.

A method has four functions and a name; `fit` knows methods only by these.
"""

import time
from collections.abc import Callable, Generator
from typing import Literal, Protocol, runtime_checkable

from headfit import bounds
from headfit._base.machine import available_memory
from headfit._fit.head import Head, Problem
from headfit._fit.result import Search, Trial
from headfit.errors import InputError

# How long a method may try one size: as long as it likes, since there is no other size; less, since
# a search has other sizes to try; or briefly, since a larger size is tried next.
Patience = Literal["full", "search", "brief"]

# Yields a size to try, and whether to try it briefly; gets whether it certifies; and returns why
# there is no other size to try.
Sizes = Generator[tuple[int, bool], bool, str]

# What a search calls to try a size, as ``attempt(dim)`` or ``attempt(dim, brief)``: the method
# runs, and the certificate judges.
Attempt = Callable[..., Trial]

TIME_LIMIT = "the time limit"
BISECTED = "bisected to neighbouring sizes"
PROVED = "is proved necessary"
# What cut an attempt short, which then says nothing about its size.
CUT = {"time limit": TIME_LIMIT, "callback": "the callback"}


@runtime_checkable
class Method(Protocol):
    """A way to construct a head for a pattern; `fit` takes any object with these members.

    A class of your own inherits from it and defines `name` and `head`; the other functions have
    the defaults that are described below. A class that does not inherit defines them all.

    A method works with plain products q.k as logits. It never judges itself: the certificate of
    what is stored has the only say, and knows nothing of methods.

    Attributes
    ----------
    name : str
        What `Fit.method` says, and what saved files record.
    seeks_smallest : bool, default False
        Whether the sizes that the method reaches are so small that a proved lower bound
        (`bounds.lower`) is worth its time: before a search, and for a small size that was not
        certified. `Problem.proved_dim` then tells the search where to end.

    Examples
    --------
    The truncated singular value decomposition of the target logits, as a method:

    >>> import numpy as np, headfit as hf
    >>> class TruncatedSVD(hf.methods.Method):
    ...     name = "truncated-svd"
    ...
    ...     def head(self, problem, dim, patience="full"):
    ...         B = problem.target.matrix.toarray()
    ...         gap = -np.log(problem.tolerances.leak) + 1
    ...         B[B > 0] = np.log(B[B > 0] / B[B > 0].min()) + gap
    ...         u, s, vt = np.linalg.svd(B)
    ...         return hf.methods.Head((u * s)[:, :dim], vt[:dim].T)
    >>> A = hf.patterns.band(16, 1)
    >>> found = hf.fit(A, method=TruncatedSVD())
    >>> found.method, found.certificate.holds, found.search.dim == found.dim < 16
    ('truncated-svd', True, True)
    """

    @property
    def name(self) -> str:
        """What `Fit.method` says, and what saved files record."""

    @property
    def seeks_smallest(self) -> bool:
        """Whether a proved lower bound on the size is worth its time for this method."""
        return False

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size of the head to make; None to search for a small one.

        By default that is the `dim` of `fit`, or the module's. `problem` is the whole one, exempt
        columns included. Raises an InputError, which names the argument, when the method cannot
        do what it is given.
        """
        return dim if problem.module is None else problem.module.dim

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return a head of a size, or of a smaller one that zero columns fill up.

        Parameters
        ----------
        problem : Problem
            Without exempt columns, which `fit` appends afterwards.
        dim : int
            The most columns that Q and K may have.
        patience : "full", "search" or "brief"
            How long to try; a method that takes no steps has no use for it.

        Returns
        -------
        Head
            The best that was found, whether it meets the tolerances or not.

        Raises
        ------
        TimeoutError
            When the method has nothing at ``problem.deadline``; the fit then ends with zeros.
        """

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Search for a small size, by calls ``attempt(dim)``, each of which returns a `Trial`.

        By default sizes are doubled from 1 until one certifies, then bisected. They include the
        ``problem.exempt_dims`` of exempt columns.
        """
        return bisected(problem, attempt, 1)

    def advice(self, head: Head) -> str | None:
        """Return what ``head.ended`` means and what to try next, for a head that is not certified.

        None, the default, stands for the usual sentences.
        """
        return None


def check_norm(max_norm: float | None, problem: Problem) -> None:
    """Raise an InputError for a bound on norms that exempt columns cannot keep to."""
    if max_norm is not None and problem.exempt.size:
        raise InputError(
            "max_norm must not be given beside exempt_columns, whose coordinates have norms of "
            "their own; max_logit bounds the logits"
        )


def tried(sizes: Sizes, attempt: Attempt, deadline: float) -> Search:
    """Try one size after the other, until an attempt is cut short or the deadline comes."""
    trials: list[Trial] = []
    smallest = None
    dim, brief = next(sizes)
    while True:
        trial = attempt(dim, brief)
        trials.append(trial)
        if trial.holds:
            smallest = dim
        elif trial.reason in CUT:
            return Search(tuple(trials), smallest, CUT[trial.reason])
        try:
            dim, brief = sizes.send(trial.holds)
        except StopIteration as end:
            return Search(tuple(trials), smallest, end.value)
        if time.perf_counter() >= deadline:
            return Search(tuple(trials), smallest, TIME_LIMIT)


def doubled(first: int, largest: int, why_largest: str, step: int = 1, offset: int = 0) -> Sizes:
    """Double from `first` until a size certifies, then bisect.

    Sizes are multiples of `step` up to `largest`, to each of which `offset` is added: the
    coordinates that exempt columns take. `why_largest` says why there is no larger size.
    """
    most = max(largest // step, 1)
    low, high = 0, min(-(-first // step), most)
    while not (yield high * step + offset, False):
        if high == most:
            return f"stopped at {most * step + offset}, {why_largest}"
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        holds = yield middle * step + offset, False
        low, high = (low, middle) if holds else (middle, high)
    return BISECTED


def bisected(problem: Problem, attempt: Attempt, first: int, step: int = 1) -> Search:
    """Double from a size for the other columns until one certifies, then bisect.

    The largest size is what is proved to suffice for the projection, what memory allows, or what
    the module holds.
    """
    target, taken = problem.other_columns, problem.exempt_dims
    enough = bounds.projection_dim(
        target.n, target.per_row, target.gamma, problem.other_leak, problem.tolerances.distortion
    )
    largest, why = enough, "the size that is proved to suffice"
    free = available_memory()
    # Q and K, and the packed copies that a scan makes of them, must fit in half of the free memory.
    affordable = 2**20 if free is None else free // (8 * target.n * problem.working_dtype.itemsize)
    if affordable < largest:
        largest, why = max(1, int(affordable)), "what fits in memory"
    if problem.module is not None and problem.module.dim - taken < largest:
        largest, why = problem.module.dim - taken, "the size of the module"
    return tried(doubled(first, largest, why, step, taken), attempt, problem.deadline)


def galloping(first: int, lowest: int, largest: int, why_lowest: str = PROVED) -> Sizes:
    """Find a small size near a guess, for a method whose failures cost far more than successes.

    The search goes up from `first`, each size half as large again, until one certifies. These
    attempts are brief, since a larger size is tried next. Then it bisects down to the size that
    failed in a brief attempt, and tries that one again, fully. Where nothing failed, it goes down
    by 1, 2, 4, ... until a size fails, and bisects what lies between. It tries no size below
    `lowest`, for the reason `why_lowest`.
    """
    size = min(max(first, lowest), largest)
    # `doubtful` is the largest size that failed in a brief attempt alone.
    doubtful = failed = below = lowest - 1
    while not (yield size, size < largest):
        if size == largest:
            return f"stopped at {largest}"
        doubtful, size = size, min(size + (size + 1) // 2, largest)
    stride = 1
    while size - failed > 1:
        known = max(failed, doubtful)
        if known > below and size - known > 1:
            lower = (size + known) // 2
        elif doubtful > failed:
            lower = doubtful
        else:  # nothing has failed yet: gallop
            lower = max(size - stride, lowest)
            stride *= 2
        if not (yield lower, False):
            failed = lower
            continue
        size = lower
        if size <= doubtful:
            doubtful = below
    return BISECTED if failed > below else f"the bracket closed: {lowest} {why_lowest}"


def galloped(problem: Problem, attempt: Attempt, guess: int, least: int = 1) -> Search:
    """Start near a guess for the other columns, and go down while sizes certify (`galloping`)."""
    taken, module, proved = problem.exempt_dims, problem.module, problem.proved_dim
    largest = problem.other_columns.n + taken if module is None else module.dim
    lowest, why = min(max(taken + least, proved), largest), PROVED
    if taken + least > 1 and proved < lowest:
        own = "the start" if least > 1 else "one dimension beside them"
        why = f"is the size of {'the exempt columns and ' * bool(taken)}{own}"
    sizes = galloping(min(guess + taken, largest), lowest, largest, why)
    return tried(sizes, attempt, problem.deadline)
