"""The floating-point formats of 8 bits, as PyTorch and ml_dtypes name and define them.

NumPy lacks both. Arrays of them are widened to float32 as they are read, and results are float32
arrays of numbers that the format holds exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Float8:
    """One of the formats.

    Attributes
    ----------
    digits : int
        Significant bits, including the implicit leading one.
    least_exponent : int
        The smallest normal number is 2**least_exponent.
    largest : float
    has_infinity : bool
        Without infinities, only the code of all ones is no number.
    """

    digits: int
    least_exponent: int
    largest: float
    has_infinity: bool

    @cached_property
    def numbers(self) -> NDArray[np.float32]:
        """The numbers of all 256 codes."""
        codes = np.arange(128)
        bits = self.digits - 1
        fraction, exponent = codes & (2**bits - 1), codes >> bits
        is_normal = exponent > 0
        shift = np.where(is_normal, exponent - 1, 0) + self.least_exponent - bits
        positive = np.ldexp(fraction + 2.0**bits * is_normal, shift)
        if self.has_infinity:
            positive[exponent == exponent[-1]] = np.nan
            positive[(exponent == exponent[-1]) & (fraction == 0)] = np.inf
        else:
            positive[-1] = np.nan
        return np.concatenate([positive, -positive]).astype(np.float32)

    def widened(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the numbers of codes."""
        return self.numbers[codes]

    def codes(self, x: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the codes of numbers that the format holds exactly."""
        count = int(np.flatnonzero(self.numbers[:128] == self.largest)[0]) + 1
        places = np.searchsorted(self.numbers[:count], np.abs(x))
        return np.asarray(places | np.signbit(x) * 128, np.uint8)

    def rounded(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the nearest numbers, ties to even; infinity beyond the largest."""
        wide = np.asarray(x, np.float64)
        exponent = np.maximum(np.frexp(wide)[1] - 1, self.least_exponent)
        unit = np.ldexp(1.0, exponent - self.digits + 1)
        near = np.rint(wide / unit) * unit
        near = np.where(np.abs(near) > self.largest, np.copysign(np.inf, wide), near)
        return near.astype(np.float32)


FLOAT8 = {
    "float8_e4m3fn": Float8(4, -6, 448.0, has_infinity=False),
    "float8_e5m2": Float8(3, -14, 57344.0, has_infinity=True),
}


def float8_of(dtype: Any) -> Float8 | None:
    """Return the format of a dtype of NumPy with ml_dtypes, JAX or PyTorch; None for others."""
    return FLOAT8.get(str(dtype).removeprefix("torch."))
