"""What every method returns. A method never judges itself: the certificate does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._arrays import FloatArray


@dataclass(frozen=True)
class Head:
    """Queries and keys whose plain products q.k are the logits that a method found.

    `failed_rows` and `witnesses` are None unless the method can tell; `settings` are added to
    those of the fit.
    """

    Q: FloatArray
    K: FloatArray
    failed_rows: NDArray[np.intp] | None = None
    witnesses: tuple[Any, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        """The head size."""
        return int(self.Q.shape[1])

    def padded(self, dim: int) -> Head:
        """Return the same logits with zero columns up to a larger size."""
        if dim == self.dim:
            return self
        zeros = ((0, 0), (0, dim - self.dim))
        settings = {**self.settings, "dim_used": self.settings.get("dim_used", self.dim)}
        return replace(self, Q=np.pad(self.Q, zeros), K=np.pad(self.K, zeros), settings=settings)

    def stored(self, scale: float, dtype: Any) -> tuple[FloatArray, FloatArray]:
        """Return Q / scale and K in a dtype: what is stored, and what is certified."""
        q = np.ascontiguousarray(self.Q / self.Q.dtype.type(scale), dtype=dtype)
        return q, np.ascontiguousarray(self.K, dtype=dtype)
