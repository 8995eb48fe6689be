"""The arguments that compressing one head shares with compressing many: checked once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headfit._attention.logits import LogitOptions
from headfit._base.arguments import as_flag, as_generator, as_number, check_callable, shown
from headfit._base.arrays import check_between, seed_from, thread_count
from headfit._base.dtypes import check_dtype
from headfit._base.positions import Rotary, as_rotary
from headfit._compress.passages import Parts, Passages
from headfit._compress.sizes import Sizes
from headfit._shrink.descent import check_effort
from headfit.errors import InputError


@dataclass(frozen=True)
class Request:
    """How heads are compressed, whatever their size; all checked.

    Every head with as many passages is divided in the same way.
    """

    options: LogitOptions
    held_out: float
    validation: float
    dtype: str
    effort: str | int
    deadline: float
    callback: Callable[[int, float], Any] | None
    seed: int
    threads: int
    commute: Any = False

    @classmethod
    def of(
        cls,
        options: LogitOptions,
        *,
        held_out: float,
        validation: float,
        commute: Any,
        dtype: str,
        effort: str | int,
        time_limit: float | None,
        callback: Callable[[int, float], Any] | None,
        rng: Any,
        num_threads: int | None,
    ) -> Request:
        """Check what a user passes."""
        start = time.perf_counter()
        if not isinstance(commute, (str, tuple)):
            commute = as_flag(commute, "commute")
        held_out = check_between(held_out, "held_out", 0, 1)
        validation = as_number(validation, "validation")
        if not 0 <= validation < 1:
            raise InputError(f"validation must lie in [0, 1); got {validation}")
        check_effort(effort)
        check_callable(callback, "callback")
        dtype = check_dtype(dtype)
        threads = thread_count(num_threads)
        if time_limit is not None:
            time_limit = check_between(time_limit, "time_limit", 0, math.inf)
        return cls(
            options,
            held_out,
            validation,
            dtype,
            effort,
            math.inf if time_limit is None else start + time_limit,
            callback,
            seed_from(rng),
            threads,
            commute,
        )

    def positions(self, passages: Passages) -> Rotary | None:
        """Return the rotary positions that maps are to commute with; None for any maps."""
        if self.commute is False:
            return None
        if self.commute is True:
            if passages.positions is None:
                raise InputError(
                    "commute=True needs passages of the same rotary positions, which position= "
                    'gives, as in position="rope"; for queries and keys that have been rotated, '
                    "commute= takes the position itself"
                )
            return passages.positions
        rotary = as_rotary(self.commute, passages.dim)
        if rotary is None:
            raise InputError(
                "commute must be True, False, or the rotary position by which passages have been "
                f"rotated; got {shown(self.commute)}"
            )
        if passages.rotary:
            raise InputError(
                "commute must be True where passages have rotary positions of their own; got "
                f"{shown(self.commute)}"
            )
        return rotary

    def parts(self, passages: Passages) -> Parts:
        """Divide the passages of a head."""
        generator = as_generator(self.seed)
        return Parts.of(len(passages.attentions), self.held_out, self.validation, generator)

    def sizes(self, passages: Passages, parts: Parts) -> Sizes:
        """Return the sizes of a head, none of them fitted yet."""
        return Sizes(
            calibration=passages.part(parts.calibration),
            validation=passages.part(parts.validation) if parts.validation.size else None,
            effort=self.effort,
            dtype=self.dtype,
            deadline=self.deadline,
            threads=self.threads,
            callback=self.callback,
            rotary=self.positions(passages),
        )
