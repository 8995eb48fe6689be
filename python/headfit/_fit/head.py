"""What every method returns. A method never judges itself: the certificate does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import FloatArray, round_to
from headfit._base.tolerances import with_margin
from headfit._fit.ending import Ending
from headfit.errors import InputError

# Part of each tolerance that is reserved for rounding Q and K to the dtype they are stored in.
ROUNDING_SHARE = 0.02


def tightened(leak: float, distortion: float, logit_step: float = 0.0) -> tuple[float, float]:
    """Return tolerances with room for the rounding of Q and K, and of logits to steps."""
    delta = math.log1p(distortion)
    margin = ROUNDING_SHARE * min(1.0, delta) + logit_step
    if margin >= delta:
        raise InputError(
            f"distortion={distortion:.6g} leaves no room for logits that are rounded to steps of "
            f"{logit_step:.3g}: ask for a smaller max_logit or another kernel"
        )
    return with_margin(leak, distortion, margin)


@dataclass(frozen=True, eq=False)
class Head:
    """Queries and keys whose plain products q.k are the logits that a method found.

    Parameters
    ----------
    Q, K : ndarray, shape (n, d)
        float32 or float64. `fit` divides Q by the scale of the logits, rounds both to its dtype,
        and certifies what is then stored.
    failed_rows : ndarray of int, optional
        Rows that the method itself gave up; None when it cannot tell.
    witnesses : tuple, optional
        Proofs for failed rows.
    settings : dict, optional
        What `Fit.settings` adds to the arguments of the fit: plain values that JSON can hold.
    ended : str, default "stalled"
        Why the method stopped, in a word of `Fit.stopped`, should the certificate not hold.
    steps : int, optional
        The steps that an iterative method took.
    restarts : int, default 0
        How often it started over.
    method : str, optional
        What `Fit.method` says; the name of the method when None. For methods that choose among
        others.

    Notes
    -----
    Making one raises no error: `fit` checks what a method returns.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> hf.methods.Head(10 * np.eye(3), np.eye(3)).dim
    3
    """

    Q: FloatArray
    K: FloatArray
    failed_rows: NDArray[np.intp] | None = None
    witnesses: tuple[Any, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    ended: Ending = "stalled"
    steps: int | None = None
    restarts: int = 0
    method: str | None = None

    @property
    def dim(self) -> int:
        """The head size."""
        return int(self.Q.shape[1])

    @property
    def rows_left(self) -> int:
        """How many rows the method itself gave up; 0 when it cannot tell."""
        return 0 if self.failed_rows is None else int(self.failed_rows.size)

    @property
    def left(self) -> str:
        """A text such as " with 3 rows left", empty if no row is left."""
        rows = self.rows_left
        return f" with {rows} row{'' if rows == 1 else 's'} left" if rows else ""

    @classmethod
    def of_zeros(cls, n: int, dim: int, ended: Ending, method: str | None = None) -> Head:
        """Return a head that is nothing: all n rows are given up."""
        zeros = np.zeros((n, dim), np.float32)
        return cls(zeros, zeros, failed_rows=np.arange(n), ended=ended, method=method)

    def padded(self, dim: int) -> Head:
        """Return the same logits with zero columns up to a larger size."""
        if dim == self.dim:
            return self
        zeros = ((0, 0), (0, dim - self.dim))
        settings = {**self.settings, "dim_used": self.settings.get("dim_used", self.dim)}
        return replace(self, Q=np.pad(self.Q, zeros), K=np.pad(self.K, zeros), settings=settings)

    def stored(self, scale: float, dtype: str) -> tuple[FloatArray, FloatArray]:
        """Return Q / scale and K as numbers of a dtype: what is stored, and certified."""
        return round_to(self.Q / self.Q.dtype.type(scale), dtype), round_to(self.K, dtype)
