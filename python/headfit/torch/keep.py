"""`Keep`: which queries and keys of a captured model stay in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headfit._base.arguments import shown
from headfit._base.arrays import as_count
from headfit.errors import InputError

__all__ = ["Keep"]

_KEPT_TOKENS = 4096
"""How many tokens of each layer are kept unless `Keep` says otherwise.

In float32, a layer of 768 dimensions takes 25 MB for them.
"""


@dataclass(frozen=True)
class Keep:
    """Which queries and keys `capture` keeps.

    Parameters
    ----------
    layers : sequence of str or int, optional
        The layers, by name or by their number in the order of their first calls; all when None.
    heads : sequence of int, optional
        The query heads of each layer; all when None.
    tokens : int, default 4096
        Calls of a layer are kept as long as their keys, batch times m, add up to at most so many.
        A call that does not fit is not kept, while smaller ones after it may be.

    Raises
    ------
    InputError
        For arguments of the wrong kind.

    Examples
    --------
    >>> import headfit as hf, headfit.torch
    >>> hf.torch.Keep(layers=[0, 1], tokens=100_000)
    Keep(layers=(0, 1), heads=None, tokens=100000)
    """

    layers: Sequence[str | int] | None = None
    heads: Sequence[int] | None = None
    tokens: int = _KEPT_TOKENS

    def __post_init__(self) -> None:
        layers, heads = _items(self.layers, "keep.layers"), _items(self.heads, "keep.heads")
        if layers is not None:
            layers = tuple(x if isinstance(x, str) else _index(x, "keep.layers") for x in layers)
        if heads is not None:
            heads = tuple(sorted({_index(x, "keep.heads") for x in heads}))
        tokens = as_count(self.tokens, "keep.tokens", 0)
        vars(self).update(layers=layers, heads=heads, tokens=tokens)

    @classmethod
    def of(cls, keep: Any) -> Keep:
        """Return what a user's `keep` means: None, a number of tokens, or a `Keep`."""
        if keep is None:
            return cls()
        if isinstance(keep, cls):
            return keep
        try:
            return cls(tokens=as_count(keep, "keep", 0))
        except InputError as error:
            raise InputError(
                f"keep must be None, a number of tokens or a Keep; got {shown(keep)}"
            ) from error

    def has_layer(self, number: int, name: str) -> bool:
        """Return whether a layer is to be kept."""
        return self.layers is None or number in self.layers or name in self.layers


def _items(given: Any, name: str) -> tuple[Any, ...] | None:
    if given is None:
        return None
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise InputError(f"{name} must be a sequence; got {shown(given)}")
    return tuple(given)


def _index(value: Any, name: str) -> int:
    return as_count(value, name, 0)
