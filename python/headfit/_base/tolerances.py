"""The tolerances of a certificate: their defaults and their check, stated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headfit import _core
from headfit._base.arguments import as_number, check_between, shown
from headfit._base.arrays import DIGITS
from headfit._base.kernel import Kernel
from headfit.errors import InputError


@dataclass(frozen=True)
class Tolerances:
    """How far attention may be from a sparse target; `Certificate` defines each quantity.

    Parameters
    ----------
    leak : float, default 0.05
        The largest weight off the support over the smallest weight on it, in every row:
        0 < leak < 1.
    distortion : float, default 0.1
        By how much the ratio of two weights on the support may differ from the target's:
        ratios may grow by the factor 1 + distortion. At least 0; functions that store a head
        need more than 0, since rounding alone moves ratios.
    max_logit : float, optional
        A bound on the absolute value of every logit that the mask allows. None: no bound.

    Raises
    ------
    InputError
        For a value out of range.

    Examples
    --------
    >>> import headfit as hf
    >>> loose = hf.Tolerances(leak=0.3, distortion=1.0)
    >>> hf.fit(hf.patterns.band(32, 1), 4, tolerances=loose).tolerances == loose
    True
    >>> hf.Tolerances()
    Tolerances(leak=0.05, distortion=0.1, max_logit=None)
    """

    leak: float = 0.05
    distortion: float = 0.1
    max_logit: float | None = None

    def __post_init__(self) -> None:
        checked = {name: as_number(vars(self)[name], name) for name in ("leak", "distortion")}
        _core.Tolerances(**checked)  # which checks their ranges
        if self.max_logit is not None:
            checked["max_logit"] = check_between(self.max_logit, "max_logit", 0, math.inf)
        vars(self).update(checked)

    @property
    def logit_limit(self) -> float:
        """The bound on every |logit|; infinite when there is none."""
        return math.inf if self.max_logit is None else self.max_logit

    def before_rounding(self, kernel: Kernel) -> Tolerances:
        """Return what exact logits meet if those of a kernel meet these tolerances.

        Proofs about exact logits start from this. Without a bound on the logits only the order of
        rounded ones says something about exact ones.
        """
        relative = kernel.relative_error
        if relative == 0:
            return self
        # Relative to the exact logit, and with room for subnormal numbers and for this arithmetic.
        moved = 2 * relative * self.logit_limit * (1 + 2 * relative) + 1e-6
        leak = self.leak * math.exp(min(moved, 700.0))
        distortion = (1 + self.distortion) * math.exp(min(moved, 600.0)) - 1
        highest = None if self.max_logit is None else self.max_logit * (1 + 2 * relative)
        return Tolerances(min(leak, math.nextafter(1, 0)), min(distortion, 1e300), highest)

    @property
    def core(self) -> _core.Tolerances:
        """The tolerances as the core takes them."""
        return _core.Tolerances(self.leak, self.distortion, self.logit_limit)

    def check_storable(self, dtype: str) -> None:
        """Raise an InputError for a distortion of 0, which no numbers of a dtype can meet."""
        if self.distortion == 0:
            least = 8 * 2.0 ** -DIGITS[dtype]
            raise InputError(
                "distortion must be above 0: no stored number meets a ratio exactly; rounding in "
                f"{dtype} alone moves ratios by about {least:.1g} times the logits, the least "
                "that can be certified"
            )


def log_inverse(leak: float) -> float:
    """Return log(1 / leak), also where the quotient overflows."""
    return math.log(1 / leak) if 1 / leak < math.inf else -math.log(leak)


def with_margin(leak: float, distortion: float, margin: float) -> tuple[float, float]:
    """Return tolerances that leave room for differences of logits to change by a margin."""
    least = math.ulp(0.0)  # a leak must be above 0
    return max(leak * math.exp(-margin), least), math.expm1(math.log1p(distortion) - margin)


def as_tolerances(tolerances: Any = None, **numbers: Any) -> Tolerances:
    """Return the tolerances that a caller passed, as an object or as single numbers, not both."""
    named = {name: value for name, value in numbers.items() if value is not None}
    if tolerances is None:
        return Tolerances(**named)
    if not isinstance(tolerances, Tolerances):
        raise InputError(f"tolerances must be a Tolerances or None; got {shown(tolerances)}")
    if named:
        first = next(iter(named))
        raise InputError(
            f"{first} and tolerances must not both be given; got {first}={shown(named[first])} "
            f"and {tolerances!r}"
        )
    return tolerances
