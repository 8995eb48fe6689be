"""What shrinking a head gives: the smaller head, and how far its attention is from the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.sparsify import Sparsified
from headfit._base.frames import data_frame
from headfit._base.plain import plain_dict
from headfit._base.shown import Shown, html_table, picture
from headfit._fit.result import Fit
from headfit._soft.compare import Comparison
from headfit._soft.fit_soft import SoftFit

__all__ = ["ShrinkResult", "TvCurve"]


@dataclass(frozen=True, eq=False)
class TvCurve:
    """Total variation from the original against head size.

    Attributes
    ----------
    dim : ndarray of int
        The head sizes, in increasing order.
    tv_mean, tv_worst : ndarray, the shape of dim
        The mean and the largest total variation of the rows of the attention matrix.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q, K = np.random.default_rng(0).normal(size=(2, 30, 8)) * 2.0 ** -np.arange(8) * 4
    >>> hf.shrink(Q, K, dim=2, curve_dims=(2, 4)).curve.dim
    array([2, 4])
    """

    dim: NDArray[np.int64]
    tv_mean: NDArray[np.float64]
    tv_worst: NDArray[np.float64]

    @classmethod
    def of(cls, found: Mapping[int, Comparison]) -> TvCurve:
        """Return the curve of comparisons by head size."""
        sizes = sorted(found)
        return cls(
            np.array(sizes, dtype=np.int64),
            np.array([found[d].tv_mean for d in sizes]),
            np.array([found[d].tv_worst for d in sizes]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as lists, for JSON."""
        return plain_dict(vars(self))

    def to_pandas(self) -> Any:
        """Return the columns ``tv_mean`` and ``tv_worst`` as a pandas DataFrame, by size.

        Raises
        ------
        ImportError
            Without pandas.
        """
        return data_frame(vars(self), "").set_index("dim")

    def __repr__(self) -> str:
        points = ", ".join(
            f"{d}: {mean:.3g}" for d, mean in zip(self.dim, self.tv_mean, strict=True)
        )
        return f"TvCurve(mean total variation by size: {points})"

    def _repr_html_(self) -> str:
        rows = [
            (str(d), f"{mean:.3g}", f"{worst:.3g}")
            for d, mean, worst in zip(self.dim, self.tv_mean, self.tv_worst, strict=True)
        ]
        title = "TvCurve: total variation by size"
        return html_table(title, ("size", "mean", "worst"), rows) + picture(self)


@dataclass(frozen=True, repr=False, eq=False)
class ShrinkResult(Shown):
    """A smaller head, and how far its attention is from that of the original.

    Attributes
    ----------
    fit : SoftFit or Fit
        The head. A `Fit` where a pattern was kept: its certificate is about the sparsified
        matrix.
    tv_mean, tv_worst : float
        Total variation between the rows of the attention of `fit` and of the *original* head.
    baseline : TvCurve
        The truncated SVD of the row-centred logits (`svd_head`), in the same dtype.
    curve : TvCurve
        The heads that were found, for every size tried: the closest of each size where no
        sparsity is assumed, the certified ones where a pattern is kept.
    original_dim : int
    reached : bool
        Whether the head does what was asked: its total variation is within the bounds, or its
        certificate holds.
    stopped : str
        Why the search ended.
    sparsified : Sparsified or None
        The pattern that was kept.
    appended : tuple of int
        Columns that have a coordinate of their own: `exempt_columns` of `fit`.
    ways : mapping of str to int or None
        The smallest size certified by each way to keep a pattern; None: it found none.
    comparison : Comparison
        The comparison with the original, row by row.
    seconds : float
    """

    fit: SoftFit | Fit
    tv_mean: float
    tv_worst: float
    baseline: TvCurve
    curve: TvCurve
    original_dim: int
    reached: bool
    stopped: str
    comparison: Comparison
    sparsified: Sparsified | None = None
    appended: tuple[int, ...] = ()
    ways: Mapping[str, int | None] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def dim(self) -> int:
        """The size of the head that was found."""
        return self.fit.dim

    @property
    def shrunk(self) -> bool:
        """Whether a smaller head does what was asked; if not, the original size is the smallest."""
        return self.reached and self.dim < self.original_dim

    @property
    def attention(self) -> Attention:
        """The attention of the head, evaluated when asked for."""
        return self.fit.attention

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON; without the heads' arrays."""
        return plain_dict(
            {
                "dim": self.dim,
                "original_dim": self.original_dim,
                "shrunk": self.shrunk,
                "reached": self.reached,
                "tv_mean": self.tv_mean,
                "tv_worst": self.tv_worst,
                "stopped": self.stopped,
                "appended": self.appended,
                "ways": self.ways,
                "curve": self.curve,
                "baseline": self.baseline,
                "seconds": self.seconds,
                "fit": self.fit.to_dict(),
            }
        )

    def _facts(self) -> dict[str, str]:
        if self.shrunk:
            size = f"size {self.original_dim} -> {self.dim}"
        elif self.reached:
            size = f"size {self.original_dim} is already the smallest found"
            size += f"; this head has {self.dim}" if self.dim != self.original_dim else ""
        else:
            size = f"NOT within what was asked at size {self.dim} of {self.original_dim}"
        facts = {
            "size": size,
            "total variation": f"mean {self.tv_mean:.3g}, worst {self.tv_worst:.3g}",
        }
        at = np.flatnonzero(self.baseline.dim == self.dim)
        if at.size:
            facts["truncated SVD of that size:"] = f"mean {self.baseline.tv_mean[at[0]]:.3g}"
        if isinstance(self.fit, Fit) and self.sparsified is not None:
            facts[f"certificate of the pattern of {self.sparsified.per_row} per row"] = (
                self.fit.status
            )
        if self.appended:
            count = len(self.appended)
            facts["appended"] = f"{count} column{'s' if count > 1 else ''} appended"
        return {**facts, "ended": f"{self.stopped}, {self.seconds:.3g} s"}

    def __repr__(self) -> str:
        unnamed = ("size", "appended", "ended")
        said = (text if name in unnamed else f"{name} {text}" for name, text in
                self._facts().items())  # fmt: skip
        return f"ShrinkResult({'; '.join(said)})"
