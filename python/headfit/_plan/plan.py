"""`plan`: is a head of this size and format enough for a pattern, and how large are its logits?"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from headfit._attention.attention import attention_in
from headfit._base.arguments import as_count, as_flag, check_between, seed_from, shown, thread_count
from headfit._base.calls import count_step, standard_arithmetic, tqdm_class
from headfit._base.tolerances import KernelLike, Tolerances, as_tolerances, of_head
from headfit._base.types import MaskLike, Seed
from headfit._fit.method import Method
from headfit._fit.registry import as_method
from headfit._plan.result import Plan
from headfit._plan.search import SECONDS, Clock, Planner, Question, Source, about
from headfit._target.target import Target, TargetLike, as_target
from headfit.errors import InputError, TooLargeError, input_errors

MOST_TOKENS, LONGEST_NAME = 2**31 - 1, 48


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
        The most seconds that the plan may take. Certificates are not cut short: an n is tried only
        if one is predicted to take at most a quarter of the time left, further heads if one fits.
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
    The plan looks for proofs, and fits a head in up to 60% of its time. Where that certifies, it
    looks for smaller ones; where it does not, it takes back one demand at a time, and tries smaller
    n, to tell what stood in the way. docs/planning.md says more.

    Examples
    --------
    >>> import headfit as hf
    >>> from functools import partial
    >>> plan = hf.plan(partial(hf.patterns.causal_band, neighbors=2), n=64, dim=8, time_limit=5,
    ...                mask="causal")
    >>> plan.verdict, plan.fit.dim
    ('yes', 8)
    >>> str(plan).splitlines()[0]
    'Yes: head size 8 in bfloat16 is enough for causal_band(neighbors=2) at n = 64; certified, ...'
    """
    tolerances = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    kernel, dtype = of_head(kernel, dtype, "bfloat16")
    tolerances.check_storable(dtype)
    question = Question(
        dim=as_count(dim, "dim", 1),
        dtype=dtype,
        kernel=kernel,
        tolerances=tolerances,
        method=as_method(method),
        rng=seed_from(rng),
        num_threads=thread_count(num_threads),
    )
    limit = check_between(time_limit, "time_limit", 0, math.inf)
    has_bar = not callable(progress) and as_flag(progress, "progress")
    source = source_of(pattern, n, mask, num_threads)
    with tqdm_class()(unit="step") if has_bar else nullcontext() as bar:
        say = (lambda _: None) if bar is None else functools.partial(count_step, bar)
        say = progress if callable(progress) else say
        return Planner(source, question, Clock(limit), say).carry_out()


def source_of(pattern: Any, n: Any, mask: Any, num_threads: int | None) -> Source:
    """Return the source of a plan from its arguments, which are checked."""
    if attention_in(pattern) is not None:
        raise InputError(
            "pattern must be sparse; a head is dense: see shrink and sparsify; "
            f"got {shown(pattern)}"
        )
    size = None if n is None else as_count(n, "n", 1, MOST_TOKENS)
    if callable(pattern) and not isinstance(pattern, Target):
        if size is None:
            raise InputError("n must be given: the pattern is a function of n")
        has_smaller = mask is None or isinstance(mask, (str, tuple))
        at = functools.cache(lambda m: _target_at(pattern, m, mask, num_threads))
        return Source(_short(_name_of(pattern)), size, at, has_smaller)
    with about("pattern"):
        target = as_target(pattern, mask=mask, num_threads=num_threads)
    if size is not None and size != target.n:
        raise InputError(
            f"n must be the matrix's own, {target.n}, or left out; got {size}. Give a function of "
            "n to plan for another length"
        )
    is_path = isinstance(pattern, (str, os.PathLike))
    name = os.path.basename(os.fspath(pattern)) if is_path else "the matrix"
    has_smaller = target.looks_back and isinstance(target.mask, (str, tuple, type(None)))

    def block(m: int) -> Target:
        A = target if m == target.n else target.matrix[:m, :m]
        return as_target(A, mask=target.mask, num_threads=num_threads)

    return Source(_short(name), target.n, block, has_smaller)


def _target_at(pattern: Callable[[int], Any], n: int, mask: Any, num_threads: int | None) -> Target:
    alone = f"pattern must be a function of n alone; calling it with n = {n} raised a TypeError"
    try:
        with input_errors(alone, TypeError):
            matrix = pattern(n)
    except TooLargeError:
        raise
    except MemoryError as error:
        raise TooLargeError(f"the pattern of n = {n} tokens does not fit in memory") from error
    with about("pattern(n)"):
        target = as_target(matrix, mask=mask, num_threads=num_threads)
    if target.n != n:
        raise InputError(
            f"pattern must return a matrix of {n} tokens for n = {n}; it returned one of {target.n}"
        )
    return target


def _name_of(pattern: Any) -> str:
    """Return a short name of a function, with the arguments of a partial one but its seed."""
    if isinstance(pattern, functools.partial):
        values = [shown(v) for v in pattern.args]
        values += [f"{name}={shown(v)}" for name, v in pattern.keywords.items() if name != "rng"]
        name = _name_of(pattern.func)
        return f"{name}({', '.join(values)})" if values else name
    name = getattr(pattern, "__name__", type(pattern).__name__)
    return "the pattern" if name == "<lambda>" else str(name)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
