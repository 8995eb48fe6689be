"""Where the targets of a plan come from: a function of n, or one matrix with its leading blocks."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headfit._attention.attention import attention_in
from headfit._base.arguments import shown
from headfit._base.arrays import as_count
from headfit._target.target import Target, as_target
from headfit.errors import FileError, HeadfitError, InputError, TooLargeError

MOST_TOKENS = 2**31 - 1
LONGEST_NAME = 48


@dataclass(frozen=True)
class Source:
    """The pattern of a plan: its name, the n that is asked for, and its target at any size.

    `at` returns the target of an n. Sizes other than `n` exist only where `has_smaller` is True.
    """

    name: str
    n: int
    at: Callable[[int], Target]
    has_smaller: bool


def source_of(pattern: Any, n: Any, mask: Any, num_threads: int | None) -> Source:
    """Return the source of a plan from its checked arguments.

    Raises
    ------
    InputError
        For a pattern that is neither a function of n nor a matrix, a missing `n` of a function,
        and an `n` that is not the matrix's own.
    """
    if attention_in(pattern) is not None:
        raise InputError(
            "pattern must be sparse; a head is dense: see shrink and sparsify; "
            f"got {shown(pattern)}"
        )
    if callable(pattern) and not isinstance(pattern, Target):
        return _of_function(pattern, n, mask, num_threads)
    size = None if n is None else as_count(n, "n", 1, MOST_TOKENS)
    target = _checked("pattern", pattern, mask, num_threads)
    if size is not None and size != target.n:
        raise InputError(
            f"n must be the matrix's own, {target.n}, or left out; got {size}. Give a function of "
            "n to plan for another length"
        )
    path = isinstance(pattern, (str, os.PathLike))
    name = os.path.basename(os.fspath(pattern)) if path else "the matrix"
    has_smaller = target.looks_back and (mask is None or isinstance(target.mask, (str, tuple)))

    def block(size: int) -> Target:
        if size == target.n:
            return target
        return as_target(target.matrix[:size, :size], mask=target.mask, num_threads=num_threads)

    return Source(_short(name), target.n, block, has_smaller)


def _of_function(
    pattern: Callable[[int], Any], n: Any, mask: Any, num_threads: int | None
) -> Source:
    if n is None:
        raise InputError("n must be given: the pattern is a function of n")
    has_smaller = mask is None or isinstance(mask, (str, tuple))

    @functools.cache
    def at(size: int) -> Target:
        target = _checked("pattern(n)", _called(pattern, size), mask, num_threads)
        if target.n != size:
            raise InputError(
                f"pattern must return a matrix of {size} tokens for n = {size}; it returned "
                f"one of {target.n}"
            )
        return target

    return Source(_name_of(pattern), as_count(n, "n", 1, MOST_TOKENS), at, has_smaller)


def _called(pattern: Callable[[int], Any], n: int) -> Any:
    try:
        return pattern(n)
    except TypeError as error:
        raise InputError(
            f"pattern must be a function of n alone; calling it with n = {n} raised a TypeError: "
            f"{error}"
        ) from error
    except TooLargeError:
        raise
    except MemoryError as error:
        raise TooLargeError(f"the pattern of n = {n} tokens does not fit in memory") from error


def _checked(name: str, matrix: Any, mask: Any, num_threads: int | None) -> Target:
    """Return a target; messages about `A`, the argument of `as_target`, name this one instead."""
    try:
        return as_target(matrix, mask=mask, num_threads=num_threads)
    except HeadfitError as error:
        message = re.sub(r"^A\b", name, str(error))
        of_file = (error.errno, error.filename) if isinstance(error, FileError) else ()
        raise type(error)(message, *of_file) from error


def _name_of(pattern: Any) -> str:
    """Return a short name of a function, with the arguments of a partial one but its seed."""
    if isinstance(pattern, functools.partial):
        values = [shown(v) for v in pattern.args]
        values += [f"{name}={shown(v)}" for name, v in pattern.keywords.items() if name != "rng"]
        name = _name_of(pattern.func)
        return _short(f"{name}({', '.join(values)})" if values else name)
    name = getattr(pattern, "__name__", type(pattern).__name__)
    return "the pattern" if name == "<lambda>" else _short(str(name))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
