"""What a construction method is: four functions and a name. `fit` knows methods only by these."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol, runtime_checkable

from headfit._base.arguments import check_between
from headfit._fit.head import Head
from headfit._fit.problem import Problem
from headfit._fit.result import Search, Trial
from headfit._fit.search import bisected
from headfit.errors import InputError

Patience = Literal["full", "search", "brief"]
"""How long a method may try one size: as long as it likes, since there is no other size;
less, since a search has other sizes to try; or briefly, since a larger size is tried next."""


class Attempt(Protocol):
    """What a search calls to try a size: the method runs, and the certificate judges."""

    def __call__(self, dim: int, brief: bool = False) -> Trial: ...


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
        ...

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
        ...

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


def set_options(method: Method, **checked: Any) -> None:
    """Put checked values in the place of options of a method that is a frozen dataclass."""
    for name, value in checked.items():
        object.__setattr__(method, name, value)


def as_max_norm(max_norm: Any) -> float | None:
    """Return a checked bound on scale * max ||q|| * max ||k||; None is no bound."""
    return None if max_norm is None else check_between(max_norm, "max_norm", 0, math.inf)


def check_norm(max_norm: float | None, problem: Problem) -> None:
    """Raise an InputError for a bound on norms that exempt columns cannot keep to."""
    if max_norm is not None and problem.exempt.size:
        raise InputError(
            "max_norm must not be given beside exempt_columns, whose coordinates have norms of "
            "their own; max_logit bounds the logits"
        )
