"""`RopeFilter`: what a RoPE can express without content, and at which norm."""

import decimal
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headfit._attention.attention import Attention
from headfit._base.arguments import as_count
from headfit._base.arrays import DIGITS, as_float_dtype, check_dtype
from headfit._base.display import Pictured, named, number, plain_dict
from headfit._base.tolerances import Tolerances
from headfit._filter.demand import Filter
from headfit._filter.stencil import Floats, Stencil
from headfit.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class RopeFilter(Pictured):
    """The shortest queries and keys, equal in all rows, that meet a pattern by rotation alone.

    `str` tells the result in words.

    Attributes
    ----------
    stencil : Stencil
        The pattern: the offsets i - j that are attended to, with the logarithms of their weights.
    mask : object
    base : float or None
        The base of the frequencies; None for other ones.
    frequencies : ndarray of float64, shape (dim / 2,)
        In radians per position.
    tolerances : Tolerances
    max_norm : float
        The norm above which the pattern counts as out of reach.
    filter : Filter or None
        The logits as a function of the offset; None without one.
    least_norm : float
        A proved lower bound: no head of these frequencies whose queries are all equal and whose
        keys are all equal before rotation meets the tolerances with a smaller norm. This follows
        from multipliers of a linear program by weak duality, whatever the solver says.
    """

    stencil: Stencil
    mask: Any
    base: float | None
    frequencies: Floats
    tolerances: Tolerances
    max_norm: float
    filter: Filter | None
    least_norm: float

    @property
    def status(self) -> Literal["found", "out of reach", "undecided"]:
        """Whether a filter was found, or is proved to need a norm above `max_norm`, or neither."""
        if self.filter is not None:
            return "found"
        return "out of reach" if self.least_norm > self.max_norm else "undecided"

    @property
    def n(self) -> int:
        """The number of tokens."""
        return self.stencil.n

    @property
    def dim(self) -> int:
        """The number of rotated dimensions."""
        return 2 * self.frequencies.size

    @property
    def width(self) -> int | None:
        """The width of the window; None for other patterns."""
        offsets, weights = self.stencil.offsets, self.stencil.log_weights
        width = int(offsets[-1]) + 1
        expected = np.arange(0 if self.mask == "causal" else 1 - width, width)
        is_window = np.array_equal(offsets, expected) and not weights.any()
        return width if is_window and self.mask in (None, "causal") else None

    @property
    def norm(self) -> float:
        """scale * ||q|| * ||k|| of the filter, the sum of its amplitudes; infinite without one."""
        return math.inf if self.filter is None else self.filter.norm

    @property
    def max_logit(self) -> float:
        """The largest |logit| at an offset that the mask allows; infinite without a filter."""
        if self.filter is None:
            return math.inf
        logits = self.filter.logits_between(self.stencil.first, self.stencil.last)
        return float(np.abs(logits).max())

    @property
    def q(self) -> Floats:
        """The query of all tokens before rotation, shape (dim,), for the scale 1 / sqrt(dim)."""
        return np.asarray(self._existing().head(1, times=math.sqrt(self.dim))[0][0])

    @property
    def k(self) -> Floats:
        """The key of all tokens before rotation, shape (dim,); as long as the query."""
        return np.asarray(self._existing().head(1, times=math.sqrt(self.dim))[1][0])

    def attention(self, n: int | None = None, dtype: Any = "float64") -> Attention:
        """Return the attention of n tokens whose queries are all `q` and whose keys are all `k`.

        Its position is ``("rope", base)``, or has the frequencies where these were given;
        ``attention().rotated()`` is what `certify` takes.

        Parameters
        ----------
        n : int, optional
            The number of tokens, those of the pattern by default.
        dtype : float64 or float32

        Raises
        ------
        InputError
            If no filter was found, or for an argument out of range.
        """
        dtype = as_float_dtype(dtype)
        n = self.n if n is None else as_count(n, "n", 1, self.n)
        q, k = (np.tile(x.astype(dtype), (n, 1)) for x in (self.q, self.k))
        position = ("rope", self.frequencies if self.base is None else self.base)
        return Attention(q, k, mask=self.mask, position=position)

    def rounding(self, dtype: str) -> float:
        """Return by how much logits may move if rotated queries and keys are rounded to a dtype.

        An upper bound, for products that are summed exactly; the rounding of cosines and sines, and
        of the angles of far positions, comes on top.
        """
        unit = 2.0 ** -DIGITS[check_dtype(dtype)]
        return self.norm * unit * (2 + unit)

    def _existing(self) -> Filter:
        if self.filter is None:
            raise InputError(f"this RopeFilter holds no filter: the pattern is {self.status}")
        return self.filter

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON; without frequencies and filter."""
        return plain_dict(named(
            self, "status", "n", "dim", "base", "width", "tolerances", "max_norm", "norm",
            "least_norm", "max_logit",
        ))  # fmt: skip

    @property
    def _limits(self) -> str:
        allowed = self.tolerances
        text = f"leak {allowed.leak:.3g}, distortion {allowed.distortion:.3g}"
        most = allowed.max_logit
        return text if most is None else f"{text}, |logit| up to {most:.6g}"

    def __repr__(self) -> str:
        what = f"a pattern of {self.stencil.offsets.size} offsets"
        if self.width is not None:
            keys = self.width if self.mask == "causal" else 2 * self.width - 1
            what = f"a window of {keys} keys" + " back" * (self.mask == "causal")
        of = "given frequencies" if self.base is None else f"RoPE of base {self.base:,.10g}"
        where = f"{what} at n = {self.n:,}, {of} in {self.dim} dimensions"
        lines = [f"RopeFilter: {where} ({self._limits})"]
        least = number(self.least_norm, 4, decimal.ROUND_FLOOR)
        if self.filter is not None:
            lines += [
                "  content is not needed: equal queries and equal keys of scale * ||q|| * ||k|| = "
                f"{self.norm:.5g} do it (proved: at least {least}), |logit| up to "
                f"{self.max_logit:.4g}",
                f"  rounding them moves logits by up to {self.rounding('float32'):.2g} in float32, "
                f"{self.rounding('bfloat16'):.2g} in bfloat16",
            ]
        elif self.status == "out of reach":
            lines.append(
                "  content is needed: equal queries and equal keys need scale * ||q|| * ||k|| of "
                f"at least {least} (proved), above max_norm = {self.max_norm:.4g}"
            )
        else:
            lines.append(
                f"  undecided: the solver found no filter of norm up to {self.max_norm:.4g}; "
                f"proved: at least {least} is needed"
            )
        return "\n".join(lines)
