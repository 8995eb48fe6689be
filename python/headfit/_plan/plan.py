"""`plan`: is a head of this size and format enough for a pattern, and how large are its logits?"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from headfit._base.arguments import as_flag
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_count, check_between, seed_from, thread_count
from headfit._base.kernel import KernelLike, of_head
from headfit._base.progress import Counter
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._base.types import MaskLike, Seed
from headfit._fit.method import Method
from headfit._fit.registry import as_method
from headfit._plan.attempt import SECONDS, Clock, Question
from headfit._plan.result import Plan
from headfit._plan.search import Planner
from headfit._plan.source import source_of
from headfit._plan.text import advice_of
from headfit._target.heavy import global_columns
from headfit._target.target import TargetLike

__all__ = ["plan"]


@standard_arithmetic()
def plan(
    pattern: TargetLike | Callable[[int], TargetLike],
    n: int | None = None,
    dim: int = 64,
    dtype: str | None = None,
    *,
    method: str | Method = "auto",
    leak: float | None = None,
    distortion: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    mask: MaskLike = None,
    kernel: KernelLike | None = None,
    time_limit: float = SECONDS,
    progress: bool | Callable[[str], None] = False,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> Plan:
    """Answer whether a head of this size is enough for a pattern, and how large its logits are.

    Parameters
    ----------
    pattern : function of n, or target
        A function that returns the pattern of n tokens, such as
        ``functools.partial(hf.patterns.causal_band, neighbors=64)``; or one pattern: a `Target`, a
        sparse or dense array, or a path.
    n : int, optional
        The number of tokens; needed for a function. A matrix has its own.
    dim : int, default 64
        The head size.
    dtype : "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32" or "float64", optional
        The format of queries and keys, as in `fit`. None: what the `kernel` reads, or bfloat16.
    method, leak, distortion, max_logit, tolerances, kernel, num_threads
        As in `fit`.
    mask : optional
        As in `fit`. Where it is an array, no smaller n is tried.
    time_limit : float, default 60
        The most seconds that the plan may take. Certificates are not cut short; a size is tried
        only if its certificate is predicted to take a quarter of the time that is left.
    progress : bool or callable, default False
        True shows what is being tried, and counts the steps, on a tqdm bar (needs tqdm). A
        function is called with a line of text for each step.
    rng : seed or Generator, default 0

    Returns
    -------
    Plan
        Its text is the answer in one screen.

    Raises
    ------
    InputError, TargetError
        For arguments that can never be right, before any work starts.

    See Also
    --------
    fit : finds one head, with all the time that it needs.
    bounds.lower : what is proved about the size.

    Notes
    -----
    The plan first looks for proofs that no such head exists. Then it fits a head as asked, in up
    to 60% of its time. Where that certifies, it looks for smaller heads. Where it does not, it
    takes back one demand at a time (the format in favour of float32, the rounding and the bound of
    the logits, the tolerances) to tell which one stood in the way, and tries the pattern at
    n / 256, n / 64, n / 16 and n / 4. What it says of larger n is then a trend, and called one.
    An n at which a certificate alone would take too long is not tried. Global columns, to which
    most rows attend, always get coordinates of their own (`exempt_columns` of `fit`), where the
    head has room for them.

    Smaller sizes of a matrix are its leading blocks, which are whole rows if no token attends to
    a later one; otherwise only its own n is tried.

    Examples
    --------
    >>> import headfit as hf
    >>> from functools import partial
    >>> found = hf.plan(partial(hf.patterns.causal_band, neighbors=2), n=64, dim=8, time_limit=5,
    ...                 mask="causal")
    >>> found.verdict, found.fit.dim
    ('yes', 8)
    >>> str(found).splitlines()[0]
    'Yes: head size 8 in bfloat16 is enough for causal_band(neighbors=2) at n = 64; certified, ...'
    """
    asked = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    kernel, dtype = of_head(kernel, dtype, "bfloat16")
    asked.check_storable(dtype)
    question = Question(
        dim=as_count(dim, "dim", 1),
        dtype=dtype,
        kernel=kernel,
        tolerances=asked,
        method=as_method(method),
        rng=seed_from(rng),
        num_threads=thread_count(num_threads),
    )
    limit = check_between(time_limit, "time_limit", 0, math.inf)
    has_bar = not callable(progress) and as_flag(progress, "progress")
    source = source_of(pattern, n, mask, num_threads)
    with Counter(None, "step") if has_bar else nullcontext() as bar:
        say = progress if callable(progress) else (lambda _: None) if bar is None else bar.step
        return concluded(Planner(source, question, Clock(limit), say).carry_out())


def concluded(planner: Planner) -> Plan:
    """Return what the attempts of a planner say."""
    question, target = planner.question, planner.target
    late = None if planner.asked is None else planner.asked.lower_bound
    bounds = [bound for bound in (planner.lower_bound, late) if bound is not None]
    plan = Plan(
        name=planner.source.name,
        n=planner.source.n,
        target=target,
        global_columns=0 if target is None else int(global_columns(target).size),
        dim=question.dim,
        dtype=question.dtype,
        kernel=question.kernel,
        tolerances=question.tolerances,
        attempts=tuple(planner.attempts),
        fit=planner.fit,
        best=planner.best,
        lower_bound=max(bounds, key=lambda bound: bound.dim, default=None),
        projection_dim=planner.projection_dim,
        least_logit=planner.least_logit,
        advice="",
        time_limit=planner.clock.limit,
        seconds=planner.clock.spent,
    )
    return replace(plan, advice=advice_of(planner, plan))
