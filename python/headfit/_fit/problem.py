"""What a fit asks of a method: one checked object, the same for every method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention
from headfit._base import arrays
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances, with_margin
from headfit._cluster.cluster import Cluster
from headfit._filter.remainder import Parts
from headfit._filter.stencil import Stencil
from headfit._target.append_dims import heavier_by, leak_without, without_columns
from headfit._target.structure import Blocks
from headfit._target.target import Target

# Part of the distortion's logarithm that the other columns leave to exempt ones in a narrow
# format.
EXEMPT_RESERVE = 0.05

NO_COLUMNS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Problem:
    """A target, the tolerances of a head for it, and how the head will be stored.

    `fit` makes it from its checked arguments and hands it to the functions of a `Method`.

    Attributes
    ----------
    target : Target
        ``target.matrix`` is the pattern as a csr_array, ``target.mask`` its mask.
    tolerances : Tolerances
    dtype : "float32", "float64", "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2"
        What the head is stored in. Methods return float32 or float64 arrays; `fit` rounds.
    kernel : Kernel
        What the certificate of the stored head is about.
    scale : float or None
        The scale of the logits where there is no module; `scale_for` says which one holds.
    module : SelfAttention or None
    seed, threads : int
    deadline : float
        The value of ``time.perf_counter()`` at which the time limit comes; infinite without one.
    exempt : ndarray of int
        The columns with a coordinate of their own. `Method.head` gets a problem without them;
        `Method.search` gets the whole one.
    ignored : ndarray of int
        Columns, of a problem without exempt ones, whose logits do not matter: the exempt ones.
    watch : callable or None
        Shows progress when called: ``watch(rows_left, name=figure, ...)``.
    proved_dim : int
        No head below this size meets the tolerances; 1 when nothing is proved.
    cluster : Cluster or None
        The workers of the fit's client, to which a method may give its scans of the logits.
    """

    target: Target
    tolerances: Tolerances
    dtype: str = "float32"
    kernel: Kernel = field(default_factory=Kernel)
    scale: float | None = None
    module: SelfAttention | None = None
    seed: int = 0
    threads: int = 1
    deadline: float = math.inf
    exempt: NDArray[np.int64] = field(default_factory=lambda: NO_COLUMNS)
    ignored: NDArray[np.int64] = field(default_factory=lambda: NO_COLUMNS)
    watch: Callable[..., Any] | None = None
    proved_dim: int = 1
    cluster: Cluster | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether Q and K are stored in fewer bits than the methods work with."""
        return self.dtype in arrays.NARROW

    @property
    def working_dtype(self) -> Any:
        """The NumPy dtype of the arrays that a head is stored in."""
        return arrays.array_dtype(self.dtype)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit, at least 0."""
        return max(0.0, self.deadline - time.perf_counter())

    @property
    def logit_limit(self) -> float | None:
        """The bound on |logit|: that of the tolerances, or what a narrow format of logits needs."""
        if self.tolerances.max_logit is not None:
            return self.tolerances.max_logit
        return self.kernel.logit_limit(math.log1p(self.tolerances.distortion) / 2, self.known_scale)

    @property
    def logit_step(self) -> float:
        """By how much rounding the logits may move two of them against each other."""
        limit = self.logit_limit
        return 0.0 if limit is None else self.kernel.logit_step(limit, self.known_scale)

    @property
    def known_scale(self) -> float | None:
        """The scale of the logits where it does not depend on the head size; else None."""
        return self.scale if self.module is None else self.module.scale

    def scale_for(self, dim: int) -> float:
        """Return the scale of the logits at a head size."""
        return self.module.scale if self.module is not None else check_scale(self.scale, dim)

    @property
    def exempt_dims(self) -> int:
        """The coordinates that the exempt columns take: one each, two in a narrow dtype."""
        return int(self.exempt.size) * (2 if self.is_narrow else 1)

    @cached_property
    def other_columns(self) -> Target:
        """The target without the exempt columns: what a method makes a head for."""
        return without_columns(self.target, self.exempt) if self.exempt.size else self.target

    @cached_property
    def stencil(self) -> Stencil:
        """What the pattern wants at each offset, exempt columns left out.

        Raises an InputError where the pattern is not translation-invariant.
        """
        return Stencil.of(self.target, self.exempt if self.exempt.size else self.ignored)

    @cached_property
    def blocks(self) -> Blocks | None:
        """The blocks that the pattern consists of; None if there are none."""
        return Blocks.of(self.target)

    @cached_property
    def parts(self) -> Parts:
        """The offsets that nearly all rows attend to, and what there is beside them.

        Raises an InputError where there are no such offsets.
        """
        return Parts.of(self.target, self.exempt if self.exempt.size else self.ignored)

    @cached_property
    def other_leak(self) -> float:
        """The leak that the other columns need for the whole to keep to its own."""
        leak = self.tolerances.leak
        return leak_without(self.target, self.exempt, leak) if self.exempt.size else leak

    def without_exempt(self, dim: int) -> Problem:
        """Return the problem of the other columns, for a head of size `dim` with all columns."""
        delta = math.log1p(self.tolerances.distortion)
        limit = self.logit_limit
        # Exempt logits may lie above the others by this much, and the others leave them room.
        above = heavier_by(self.target, self.exempt) + delta
        spare = EXEMPT_RESERVE * delta if self.is_narrow else 0.0
        tolerances = Tolerances(
            *with_margin(self.other_leak, self.tolerances.distortion, spare),
            None if limit is None else max(limit - above, limit / 2),
        )
        return replace(
            self,
            target=self.other_columns,
            tolerances=tolerances,
            scale=self.scale_for(dim),
            module=None,
            exempt=NO_COLUMNS,
            ignored=self.exempt,
        )
