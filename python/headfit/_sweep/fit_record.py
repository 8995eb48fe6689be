"""The fit that a point asks for, and what a sweep keeps of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headfit._fit.fit import fit
from headfit._fit.learned import Learned
from headfit._fit.result import Fit
from headfit._sweep.fit_points import mask_of, method_of, pattern_of, tolerances_of


def measure_fit(point: Mapping[str, Any], num_threads: int) -> dict[str, Any]:
    """Do the fit that a checked point asks for, and return its record."""
    method, steps = method_of(point), StepCounter()
    if isinstance(method, Learned):
        method = dataclasses.replace(method, callback=steps)
    A = pattern_of(point)
    named = ("dim", "dtype", "kernel", "scale", "exempt_columns", "time_limit")
    found = fit(
        A,
        method=method,
        tolerances=tolerances_of(point),
        mask=mask_of(point),
        rng=point["seed"],
        num_threads=num_threads,
        **{name: point[name] for name in named if name in point},
    )
    return fit_record(found, A.nnz, steps.total)


def fit_record(found: Fit, nonzeros: int, steps: int) -> dict[str, Any]:
    """Return what a sweep keeps of a fit: one number, text or None for each name."""
    certificate, search, failed = found.certificate, found.search, found.failed_rows
    holds = certificate.holds
    return {
        "certified": holds,
        "status": found.status,
        "dim_found": found.dim if holds else None,
        "dim_tried": found.dim,
        "lower_bound": None if found.lower_bound is None else found.lower_bound.dim,
        "stopped": found.stopped,
        "searched": None if search is None else search.stopped,
        "leak_found": certificate.leak,
        "distortion_found": certificate.distortion,
        "max_logit_found": certificate.max_logit,
        "max_norm_found": certificate.max_norm,
        "share_held": certificate.share_held,
        "failed_rows": None if failed is None else int(failed.size),
        "steps": steps or None,
        "method_used": found.method,
        "n": int(found.Q.shape[0]),
        "nnz": int(nonzeros),
        "seconds": found.seconds,
    }


class StepCounter:
    """A callback of the learned method that adds up the steps of all sizes that are tried."""

    def __init__(self) -> None:
        self._before = self._last = 0

    def __call__(self, step: int, left: int, deficit: float) -> None:
        if step < self._last:  # a new descent has begun
            self._before += self._last
        self._last = step

    @property
    def total(self) -> int:
        """The steps as of the last scan."""
        return self._before + self._last
