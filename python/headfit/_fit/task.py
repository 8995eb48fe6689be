"""What a fit has to do: its checked arguments, and how each method is called with them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention
from headfit._base import dtypes
from headfit._base.deadline import calls_until
from headfit._base.masks import core_mask
from headfit._fit import projection
from headfit._fit.ending import Ending
from headfit._fit.head import Head
from headfit._fit.key_table import KeyTable
from headfit._fit.learned import HASTE, PATIENCE, learned, search_patience
from headfit._fit.max_margin import key_table, max_margin
from headfit._fit.result import Trial
from headfit._fit.search import ample_dim
from headfit._target.append_columns import (
    appended,
    heavier_by,
    in_two_parts,
    leak_without,
    without_columns,
)
from headfit._target.certificate import Certificate, certify
from headfit._target.target import Target

# Part of the distortion that max-margin leaves to queries in a narrow format.
NARROW_RESERVE = 0.3
# Part of it that the other columns leave to exempt ones in a narrow format.
EXEMPT_RESERVE = 0.05


@dataclass(frozen=True)
class Task:
    """Everything that a method needs to know, checked."""

    target: Target
    method: str
    dtype: str
    leak: float
    distortion: float
    scale: float | None
    module: SelfAttention | None
    seed: int
    threads: int
    factor: str
    sketch: str
    keys: Any
    form: str
    max_norm: float | None
    max_logit: float | None
    logits_dtype: str | None
    effort: str | int
    init: Any
    callback: Any
    deadline: float
    # Columns with a coordinate of their own, beside a head for the rest.
    exempt: NDArray[np.int64]

    @property
    def is_narrow(self) -> bool:
        """Whether Q and K are stored in fewer bits than the methods work with."""
        return self.dtype in dtypes.NARROW

    @property
    def size_limit(self) -> float | None:
        """The bound on |logit|: as asked, or what a narrow format of the logits needs."""
        if self.max_logit is not None or self.logits_dtype not in dtypes.NARROW:
            return self.max_logit
        return dtypes.logits_with_spacing(math.log1p(self.distortion) / 2, self.logits_dtype)

    @property
    def logit_step(self) -> float:
        """By how much rounding the logits may move two of them against each other."""
        limit = self.size_limit
        if limit is None or self.logits_dtype is None:
            return 0.0
        return dtypes.spacing_below(limit, self.logits_dtype)

    @property
    def norm_limit(self) -> float | None:
        """The bound on max ||q|| max ||k||: as asked, or what a narrow format can resolve.

        Rounding moves a logit by about ||q|| ||k|| 2**-digits, less what cancels; a limit of a
        few times the distortion's logarithm over that was found to leave the smallest heads.
        """
        if self.max_norm is not None or not self.is_narrow:
            return self.max_norm
        delta = math.log1p(self.distortion)
        least = 20 * (delta - math.log(self.leak))
        return max(6 * delta * 2.0 ** dtypes.DIGITS[self.dtype], least)

    def scale_for(self, dim: int) -> float:
        """Return the scale of the logits at a size."""
        return self.module.scale if self.module is not None else check_scale(self.scale, dim)

    @cached_property
    def rest(self) -> Target:
        """The target without the exempt columns: what the method is asked for."""
        return without_columns(self.target, self.exempt) if self.exempt.size else self.target

    @cached_property
    def rest_leak(self) -> float:
        """The leak that the method is asked for."""
        return leak_without(self.target, self.exempt, self.leak) if self.exempt.size else self.leak

    @property
    def beside(self) -> int:
        """The coordinates of the exempt columns: two each in a narrow dtype."""
        return int(self.exempt.size) * (2 if self.is_narrow else 1)

    def head(self, dim: int, patience: float = PATIENCE) -> Head:
        """Run the method at one size; logits are the plain products of what comes back."""
        if self.exempt.size:
            return self._beside_columns(dim, patience)
        if self.method == "max-margin":
            return self._max_margin(dim)
        if self.method == "learned":
            return self._learned(dim, patience)
        return projection.project(
            self.target,
            dim,
            dtype=str(dtypes.array_dtype(self.dtype)),
            factor=self.factor,
            sketch=self.sketch,
            leak=self.leak,
            distortion=self.distortion,
            seed=self.seed,
            threads=self.threads,
        )

    def timed_head(self, dim: int, patience: float = PATIENCE) -> Head:
        """The same, within the time limit: where a method has nothing by then, zeros."""
        if self.method == "learned":  # has a clock of its own, and what it found so far
            return self.head(dim, patience)
        try:
            with calls_until(self.deadline):
                return self.head(dim, patience)
        except TimeoutError:
            zeros = np.zeros((self.target.n, dim), dtypes.array_dtype(self.dtype))
            rows = np.arange(self.target.n)
            return Head(zeros, zeros, failed_rows=rows, ended="time limit")

    def _beside_columns(self, dim: int, patience: float) -> Head:
        """Run the method for the other columns, and give the exempt ones coordinates."""
        scale, count = self.scale_for(dim), self.exempt.size
        limit = math.inf if self.size_limit is None else self.size_limit
        # Exempt logits may lie above the others, which leave them room.
        above = heavier_by(self.target, self.exempt) + math.log1p(self.distortion)
        spare = EXEMPT_RESERVE * math.log1p(self.distortion) if self.is_narrow else 0.0
        rest = replace(
            self,
            target=self.rest,
            leak=self.rest_leak * math.exp(-spare),
            distortion=math.expm1(math.log1p(self.distortion) - spare),
            scale=scale,
            max_logit=None if self.size_limit is None else max(limit - above, limit / 2),
            module=None,
            exempt=self.exempt[:0],
        )
        head = rest.head(dim - self.beside, patience)
        q, k = appended(self.target, head.Q, head.K, self.exempt, self.leak, limit)
        if self.is_narrow:
            q = in_two_parts(q, count, lambda x: dtypes.round_to(x / scale, self.dtype) * scale)
            k = np.hstack([k, k[:, -count:]])
        dtype = dtypes.array_dtype(self.dtype)
        settings = {**head.settings, "exempt_columns": self.exempt.tolist()}
        settings["dim_used"] = settings.get("dim_used", head.dim) + self.beside
        # What is proved of the others' rows is not about the whole pattern.
        ended: Ending = "stalled" if head.ended == "infeasible" else head.ended
        return replace(
            head,
            Q=q.astype(dtype),
            K=k.astype(dtype),
            witnesses=None,
            settings=settings,
            ended=ended,
        )

    def _max_margin(self, dim: int) -> Head:
        working = str(dtypes.array_dtype(self.dtype))
        table = key_table(self.keys, self.target.n, dim, working, self.seed)
        if self.is_narrow:
            table = KeyTable(dtypes.round_to(table.keys, self.dtype), kind=table.kind)
        longest = float(np.linalg.norm(table.keys.astype(np.float64), axis=1).max())
        # |q.k| <= ||q|| ||k||: a bound on the norms bounds the logits too.
        limits = [x for x in (self.max_norm, self.size_limit) if x is not None]
        head = max_margin(
            self.target,
            table,
            form=self.form,
            leak=self.leak,
            distortion=self.distortion,
            max_norm=min(limits) / longest if limits and longest > 0 else math.inf,
            reserve=self.logit_step
            + (NARROW_RESERVE * math.log1p(self.distortion) if self.is_narrow else 0.0),
            threads=self.threads,
        )
        return self._with_narrow_queries(head) if self.is_narrow else head

    def _with_narrow_queries(self, head: Head) -> Head:
        step = self.logit_step
        queries = _core.round_queries(
            *self.target.csr_arrays,
            core_mask(self.target.mask, (), (self.target.n, self.target.n)),
            np.ascontiguousarray(head.Q, dtype=np.float32),
            np.ascontiguousarray(head.K, dtype=np.float32),
            self.leak * math.exp(-step),
            math.expm1(math.log1p(self.distortion) - step),
            math.inf if self.size_limit is None else self.size_limit,
            self.dtype,
            self.scale_for(head.dim),
            self.threads,
        )
        return replace(head, Q=queries)

    def _learned(self, dim: int, patience: float) -> Head:
        """Learn at a size that is sure to be enough, and pad with zeros up to a larger one.

        A step costs d**3 a row, and a pattern that fits a small head fits a large one.
        """
        bounded = (self.max_norm, self.init, self.size_limit) != (None, None, None)
        size = dim if bounded else min(dim, ample_dim(self.target.n, self.target.mean_per_row))
        while True:
            head = learned(
                self.target,
                size,
                leak=self.leak,
                distortion=self.distortion,
                seed=self.seed,
                threads=self.threads,
                effort=self.effort,
                max_norm=self.norm_limit or 0.0,
                max_logit=math.inf if self.size_limit is None else self.size_limit,
                logit_step=self.logit_step,
                storage=self.dtype if self.is_narrow else "",
                query_unit=self.scale_for(dim) if self.is_narrow else 1.0,
                time_limit=max(0.0, self.deadline - time.perf_counter()),
                patience=patience if size == dim else search_patience(self.target.n),
                init=self.init,
                callback=self.callback,
            )
            failed = head.failed_rows is not None and head.failed_rows.size > 0
            stopped = head.settings["learned"]["status"] in ("stopped", "time limit")
            if not failed or stopped or size == dim:
                return head.padded(dim)
            size = min(dim, math.ceil(1.5 * size))

    def judge(self, attention: Attention, mass: bool) -> Certificate:
        """Certify an attention against the target, read as the dtypes say."""
        deployed = self.is_narrow or self.logits_dtype is not None
        return certify(
            self.target,
            attention,
            leak=self.leak,
            distortion=self.distortion,
            max_logit=self.max_logit,
            accumulate="float32" if deployed else "exact",
            logits_dtype=self.logits_dtype,
            mass=mass,
            num_threads=self.threads,
        )

    def trial(self, dim: int, haste: bool) -> tuple[Trial, Head]:
        """Run the method at one size and judge what would be stored, without a module."""
        begin = time.perf_counter()
        head = self.timed_head(dim, HASTE if haste else search_patience(self.target.n))
        used = self.scale_for(dim)
        q, k = head.stored(used, self.dtype)
        try:
            with calls_until(self.deadline):
                c = self.judge(Attention(q, k, scale=used, mask=self.target.mask), False)
            judged = (c.holds, c.leak, c.distortion)
            reason: Ending = "certified" if c.holds else head.ended
        except TimeoutError:
            judged, reason = (False, math.inf, math.inf), "time limit"
        report = head.settings.get("learned", {"quenches": 1, "reheats": 0})
        restarts = max(report["quenches"] - 1, 0) + report["reheats"]  # some need no quench
        seconds = time.perf_counter() - begin
        return Trial(dim, *judged, seconds, restarts, reason), head
