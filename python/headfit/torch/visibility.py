"""`Visible`: which keys the queries of a call see, and which queries and keys are padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


class Passage(NamedTuple):
    """The part of one batch entry that is no padding.

    Attributes
    ----------
    rows, keys : slice or ndarray of int
        Its queries and its keys.
    mask : object
        None, "causal", a window, or a boolean array of shape (1 or heads, rows, keys).
    """

    rows: Any
    keys: slice
    mask: Any


@dataclass(frozen=True)
class Visible:
    """Which keys the queries of a batch see.

    Attributes
    ----------
    mask : object
        For the whole batch: None, "causal", a window, or a boolean array that broadcasts to
        (batch, heads, n, m).
    key_mask : ndarray of bool, shape (batch, m), or None
        Where the keys are that are no padding, if `mask` does not say it.
    passages : tuple of (Passage or None), or None
        One for each entry of the batch, None for an entry that is padding alone. None if no entry
        has padding and all have the same mask.
    """

    mask: Any
    key_mask: Bools | None
    passages: tuple[Passage | None, ...] | None

    @classmethod
    def read(cls, allowed: Any, rows: Bools | None, shape: tuple[int, int, int], own: bool) -> Any:
        """Return what a mask says.

        Parameters
        ----------
        allowed : ndarray of bool, shape (1 or batch, 1 or heads, n, m), "causal" or None
            Which keys may be attended to. "causal" aligns the last query with the last key.
        rows : ndarray of bool, shape (batch, n), or None
            Which queries are no padding. None if nobody said so: then queries at the places of
            keys that no query sees are taken for padding.
        shape : tuple of int
            The batch, n and m.
        own : bool
            Whether queries and keys belong to the same tokens, the last query to the last key.
        """
        batch, n, m = shape
        full = rows is None or bool(rows.all())
        if allowed is None and full:
            return cls(None, None, None)
        if isinstance(allowed, str) and full:
            return cls(allowed, None, None)
        if allowed is None or isinstance(allowed, str):
            allowed = np.ones((n, m), bool) if allowed is None else np.tri(n, m, m - n, dtype=bool)
            allowed = allowed[np.newaxis, np.newaxis]
        if rows is None:
            rows = np.ones((batch, n), bool)
            if own:
                rows = rows & allowed.any(axis=(1, 2))[:, m - n :]
        # All entries of the batch are alike: one mask for them, read once.
        if len(allowed) == 1 and rows.all():
            mask = mask_form(allowed[0])
            return cls(mask if not isinstance(mask, np.ndarray) else allowed, None, None)
        places = [_places(allowed[b % len(allowed)], rows[b], own) for b in range(batch)]
        parts = [
            None if at is None else allowed[b % len(allowed)][:, at[0], at[1]]
            for b, at in enumerate(places)
        ]
        longest = max((p for p in parts if p is not None), key=np.size, default=None)
        common = None if longest is None else mask_form(longest)
        found = [
            None
            if at is None or part is None
            else Passage(*at, common if _has_form(part, common) else mask_form(part))
            for at, part in zip(places, parts, strict=True)
        ]
        band = not isinstance(common, np.ndarray)
        if not band or any(p is not None and p.mask is not common for p in found):
            return cls(allowed, None, tuple(found))
        key_mask = np.zeros((batch, m), bool)
        for b, passage in enumerate(found):
            if passage is not None:
                key_mask[b, passage.keys] = True
        if key_mask.all() and rows.all():
            return cls(common, None, None)
        return cls(common, None if key_mask.all() else key_mask, tuple(found))


def _places(allowed: Bools, rows: Bools, own: bool) -> tuple[Any, slice] | None:
    """Return the queries and the keys of an entry that are no padding, or None."""
    n, m = allowed.shape[1:]
    at = np.flatnonzero(rows)
    if not at.size:
        return None
    seen = np.flatnonzero(allowed[:, at].any(axis=(0, 1)))
    if not seen.size:
        return None
    first, end = int(seen[0]), int(seen[-1]) + 1
    if own:  # keep the last query of the entry at the place of its last key
        first, end = min(first, int(at[0]) + m - n), max(end, int(at[-1]) + 1 + m - n)
    whole = at.size == at[-1] - at[0] + 1
    return slice(int(at[0]), int(at[-1]) + 1) if whole else at, slice(first, end)


def _band(n: int, m: int, left: int, right: int) -> Bools:
    """Return where keys are at most `left` places before a query and `right` after it."""
    inside = np.tri(n, m, m - n + right, dtype=bool)
    inside &= ~np.tri(n, m, m - n - left - 1, dtype=bool)
    return inside


def _has_form(allowed: Bools, form: Any) -> bool:
    """Return whether a mask of shape (1 or heads, n, m) says the same as None or a name."""
    n, m = allowed.shape[1:]
    if form is None:
        return bool(allowed.all())
    if isinstance(form, np.ndarray):
        return False
    left, right = (m, 0) if form == "causal" else form[1]
    return bool((allowed == _band(n, m, left, right)).all())


def mask_form(allowed: Bools) -> Any:
    """Return a mask of shape (1 or heads, n, m) as None, "causal" or a window where it is one.

    Examples
    --------
    >>> import numpy as np
    >>> mask_form(np.tri(3, dtype=bool)[None]), mask_form(np.ones((1, 2, 3), bool))
    ('causal', None)
    >>> mask_form(np.tri(3, dtype=bool)[None] & ~np.tri(3, 3, -2, dtype=bool))
    ('window', (1, 0))
    """
    n, m = allowed.shape[1:]
    if allowed.all():
        return None
    one = allowed[0]
    if (allowed == one).all() and one.any(axis=-1).all():
        position = np.arange(n) + m - n
        left = int((position - one.argmax(axis=-1)).max())
        right = int((m - 1 - one[:, ::-1].argmax(axis=-1) - position).max())
        if left >= 0 and right >= 0 and (one == _band(n, m, left, right)).all():
            return "causal" if right == 0 and left == m - 1 else ("window", (left, right))
    return allowed
