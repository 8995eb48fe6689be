"""What an `Attention` is made of: queries, keys and logit options, checked once, never changed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.logits import (
    LogitOptions,
    Logits,
    Rows,
    as_sinks,
    check_scale,
    checked_logits,
)
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import FloatArray, as_array, computed_in, is_sparse, widened
from headfit._base.masks import as_allowed, as_key_mask, frozen_mask, same_mask
from headfit._base.shown import Shown
from headfit._base.text import mask_text
from headfit._base.types import ArrayLike, MaskLike, PositionLike
from headfit.errors import InputError


class AttentionInputs(Shown):
    """Queries, keys and logit options, with their shapes; `Attention` describes each of them.

    A pickle holds what was given. All else is derived from it when it is asked for.
    """

    stored: tuple[NDArray[Any], NDArray[Any]]
    options: LogitOptions
    errors: tuple[NDArray[np.float64], ...] | None

    @standard_arithmetic()
    def __init__(
        self,
        Q: ArrayLike,
        K: ArrayLike,
        *,
        scale: float | None = None,
        mask: MaskLike = None,
        key_lengths: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        softcap: float | None = None,
        position: PositionLike = None,
        key_mask: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
    ) -> None:
        # The core keeps copies of sparse masks and of small arrays. They are frozen so that the
        # attributes always show what the core computes with.
        if mask is not None and not isinstance(mask, (str, tuple)):
            mask = frozen_mask(mask) if is_sparse(mask) else as_allowed(mask)
        options = LogitOptions(
            scale=scale,
            mask=mask,
            key_lengths=None
            if key_lengths is None
            else np.array(as_array(key_lengths, "key_lengths")),
            bias=bias,
            softcap=softcap,
            position=position,
            key_mask=None if key_mask is None else _frozen(as_key_mask(key_mask)),
            sinks=None if sinks is None else _frozen(as_sinks(sinks)),
        )
        logits = checked_logits(Q, K, options)
        scale = check_scale(scale, logits.stored[0].shape[-1])
        vars(self).update(
            stored=logits.stored,
            options=LogitOptions(**{**vars(options), "scale": scale}),
            errors=None,
            _logits=logits,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an Attention is never changed; {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Attention is never changed; {name!r} cannot be deleted")

    def __getstate__(self) -> dict[str, Any]:
        kept = {"stored", "options", "errors"}  # everything else is derived from these
        return {name: value for name, value in vars(self).items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _facts(self) -> dict[str, str]:
        q, k = self.stored
        more = [name for name in self.options.given() if name not in ("scale", "mask")]
        facts = {
            "Q": str(q.shape),
            "K": str(k.shape),
            "dtype": str(computed_in(q, k)),
            "scale": f"{self.scale:.6g}",
            "mask": mask_text(self.mask),
        }
        return {**facts, "with": ", ".join(more)} if more else facts

    @cached_property
    def _logits(self) -> Logits:
        return checked_logits(*self.stored, self.options)

    def _logits_of(self, rows: Rows) -> Logits:
        return self._logits if rows is None else self._logits.of_rows(rows)

    @property
    def checked(self) -> Logits:
        """The checked logits: the form of the core, and the shapes."""
        return self._logits

    @property
    def core(self) -> _core.Logits:
        """The logits as the core reads them."""
        return self._logits.core

    @cached_property
    def Q(self) -> FloatArray:
        """The queries, as float32 or float64."""
        return widened(self.stored[0])

    @cached_property
    def K(self) -> FloatArray:
        """The keys, as float32 or float64."""
        return widened(self.stored[1])

    @property
    def dim(self) -> int:
        """The head size d."""
        return int(self.stored[0].shape[-1])

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of Q: batch and heads."""
        return self._logits.lead

    @property
    def n(self) -> int:
        """The number of queries of a head."""
        return self._logits.rows

    @property
    def m(self) -> int:
        """The number of keys of a head."""
        return self._logits.keys

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which attention is computed: float32 or float64."""
        return self._logits.dtype

    @property
    def scale(self) -> float:
        """The factor that the products of queries and keys are multiplied by."""
        assert self.options.scale is not None
        return self.options.scale

    @property
    def mask(self) -> Any:
        """The mask, which says where attention is allowed, in the form that it was given in."""
        return self.options.mask

    @property
    def key_lengths(self) -> Any:
        """How many keys exist in each entry of a padded batch; None if all do."""
        return self.options.key_lengths

    @property
    def bias(self) -> Any:
        """The term that is added to the logits, or None."""
        return self.options.bias

    @property
    def softcap(self) -> float | None:
        """The bound c of soft-capped logits c tanh(logits / c), or None."""
        return self.options.softcap

    @property
    def position(self) -> Any:
        """The positional encoding that is not yet part of Q and K, or None."""
        return self.options.position

    @property
    def key_mask(self) -> NDArray[np.bool_] | None:
        """Which keys may be attended to, as booleans; None if all may."""
        found: NDArray[np.bool_] | None = self.options.key_mask
        return found

    @property
    def sinks(self) -> NDArray[np.float64] | None:
        """The logits that heads have in the denominator alone, or None."""
        found: NDArray[np.float64] | None = self.options.sinks
        return found

    def check_plain(self, caller: str, *also: str) -> None:
        """Raise an InputError unless the logits are scale * q.k under a mask, and no more.

        `also` names further options that the caller takes.
        """
        more = [name for name in self.options.given() if name not in ("scale", "mask", *also)]
        if more:
            spoken = " and ".join(["scale * q.k under a mask", *also])
            raise InputError(
                f"{caller} speaks about {spoken}; this attention has {more[0]} too"
                + ("; attention.turned() applies rotary positions" if more[0] == "position" else "")
            )

    def check_settings(self, asked: LogitOptions) -> None:
        """Raise an InputError if an option given beside this attention is not equal to its own."""
        for name in asked.given():
            theirs, mine = getattr(asked, name), getattr(self.options, name)
            if not (same_mask(theirs, mine) if name == "mask" else _same(theirs, mine, name)):
                raise InputError(
                    f"{name} must not be given beside an Attention, which has its own: {self!r}"
                )


def _same(a: Any, b: Any, name: str) -> bool:
    """Return whether two values of an option are equal as written, whatever objects they are."""
    if isinstance(a, tuple) and isinstance(b, tuple):  # such as ("rope", base)
        return len(a) == len(b) and all(_same(x, y, name) for x, y in zip(a, b, strict=True))
    if b is None or isinstance(a, (str, tuple)) or isinstance(b, (str, tuple)):
        return type(a) is type(b) and bool(a == b)
    return np.array_equal(as_array(a, name), as_array(b, name))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
