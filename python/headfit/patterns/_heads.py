"""Patterns of heads in trained transformers: the previous token, and induction."""

from __future__ import annotations

from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from headfit._base.arguments import as_choice
from headfit._base.arrays import as_array
from headfit.errors import InputError
from headfit.patterns._build import (
    Boundary,
    Pattern,
    Style,
    Weighting,
    check_boundary,
    check_entries,
    checked_tokens,
    from_edges,
    from_rows,
    pattern,
    row_starts,
    token_numbers,
)

__all__ = ["induction", "previous_token"]


@pattern
def previous_token(n: int, *, boundary: Boundary = "clip", **style: Unpack[Weighting]) -> Pattern:
    """Return the pattern in which each token attends to the one before it, with weight 1.

    Parameters
    ----------
    boundary : {"clip", "wrap"}
        Token 0, which has no token before it, attends to itself (so that column 0 has two
        nonzeros), or with "wrap" to the last token (a cyclic shift).

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.previous_token(4).indices
    array([0, 0, 1, 2], dtype=int32)
    """
    n = checked_tokens(n)
    check_boundary(boundary)
    check_entries(n, n)
    columns = token_numbers(n)[:, np.newaxis] - 1
    if boundary == "wrap":
        columns[0] = n - 1
    return from_rows(columns, n, Style.of(**style))


@pattern
def induction(
    tokens: ArrayLike, *, which: Literal["latest", "all"] = "latest", **style: Unpack[Weighting]
) -> Pattern:
    """Return the pattern of an induction head, for what followed earlier equal tokens.

    Row ``i`` has the columns ``p + 1`` for positions ``p < i`` with ``tokens[p] == tokens[i]``.
    A token that has not occurred before attends to itself. The pattern is causal, since
    ``p + 1 <= i``; a token that equals its predecessor attends to itself. Columns have at most
    two nonzeros with "latest"; with "all" there is no bound.

    Parameters
    ----------
    tokens : sequence
        One label per position: integers, strings, or the characters of a string.
    which : {"latest", "all"}
        Whether only the latest earlier occurrence counts, or all of them (then a token that
        occurs ``c`` times gives about ``c**2 / 2`` nonzeros).

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.induction("abcab").indices
    array([0, 1, 2, 1, 2], dtype=int32)
    """
    labels = as_array(list(tokens) if isinstance(tokens, str) else tokens, "tokens")
    if labels.ndim != 1 or labels.size == 0:
        raise InputError(
            f"tokens must be a sequence of one or more labels; got shape {labels.shape}"
        )
    as_choice(which, "which", ("latest", "all"))
    n = labels.size
    try:
        values, ids = np.unique(labels, return_inverse=True)
    except TypeError:
        raise InputError("tokens must be labels that can be sorted; got mixed types") from None
    order = np.argsort(ids, kind="stable")  # the positions, grouped by token
    first = row_starts(np.bincount(ids, minlength=values.size))[ids[order]]
    seen = np.arange(n) - first  # how often the token at position order[a] occurred before it
    taken = seen if which == "all" else np.minimum(seen, 1)
    check_entries(2 * int(taken.sum()), n)
    # The position order[a] attends to what follows the `taken[a]` positions before it in `order`.
    starts = row_starts(taken)
    last = np.repeat(np.arange(n) + starts[:-1] - 1, taken)
    columns = order.astype(np.int32)[last - np.arange(starts[-1])] + 1
    return from_edges(order.repeat(taken), columns, n, Style.of(**style))
