"""What shrinking a head gives: the smaller head; and `compare`, how far it is from the original."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import HeadLike, attention_in
from headfit._attention.heads import core_target_of, one_head, target_matrix
from headfit._attention.logits import LogitOptions
from headfit._base.arguments import thread_count
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Figures, Shown, Tabular, mask_text, named, plain_dict
from headfit._base.types import MaskLike
from headfit._fit.head import FittedHead


class Result(Shown):
    """A result whose text is one line of its facts, the first and the last without their names."""

    def __repr__(self) -> str:
        (_, first), *named, (_, last) = self._facts().items()
        facts = [first, *(f"{name} {text}" for name, text in named), last]
        return f"{type(self).__name__}({'; '.join(facts)})"


Each = TypeVar("Each")


class ResultByName(Result, Generic[Each]):
    """The results of several heads or layers, by the names of a call."""

    # The field that has them.
    _field: ClassVar[str] = "heads"
    _figures: ClassVar[tuple[str, ...]] = ("bytes", "seconds")
    # For `spend`: the figures of what each takes and of what it loses, and the power of the latter.
    _spent: ClassVar[Any] = None

    def __getitem__(self, name: Hashable) -> Each:
        return getattr(self, self._field)[name]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return iter(getattr(self, self._field))

    def _mean(self, figure: str) -> float:
        return float(np.mean([getattr(x, figure) for x in getattr(self, self._field).values()]))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of each and of all as plain Python values, for JSON; without maps."""
        each = {name: one.to_dict() for name, one in getattr(self, self._field).items()}
        return plain_dict({self._field: each, **named(self, *self._figures)})


@dataclass(frozen=True, eq=False)
class TvCurve(Figures, Tabular):
    """Distances from the original against head size, by which a table of them is indexed.

    Attributes
    ----------
    dim : ndarray of int
        The head sizes, in increasing order.
    tv_mean, tv_worst : ndarray, the shape of dim
        The mean and the largest total variation of the rows of the attention matrix.
    kl_mean : ndarray, the shape of dim
        The mean KL divergence of the rows, in nats.

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
    kl_mean: NDArray[np.float64]

    @classmethod
    def of(cls, distances: Mapping[int, object]) -> Self:
        """Return the curve of what has these distances, by head size."""
        sizes = sorted(distances)
        columns = ([getattr(distances[d], f.name) for d in sizes] for f in fields(cls)[1:])
        return cls(np.array(sizes, dtype=np.int64), *map(np.array, columns))

    def _table(self) -> tuple[dict[Any, Any], list[str]]:
        return vars(self), ["dim"]

    def __repr__(self) -> str:
        points = ", ".join(
            f"{d}: {mean:.3g}" for d, mean in zip(self.dim, self.tv_mean, strict=True)
        )
        return f"TvCurve(mean total variation by size: {points})"


@dataclass(frozen=True, repr=False, eq=False)
class ShrinkResult(Result, FittedHead):
    """A smaller head, and how far its attention is from that of the original.

    Attributes
    ----------
    Q, K : ndarray, shape (n, d) and (m, d)
        The logits are ``scale * Q @ K.T``.
    scale : float
    mask : object
        That of the original, and what key lengths, key masks and -inf in a bias forbid.
    module : SelfAttention
        That of the call, or the canonical one of this size.
    dim, original_dim : int
        The sizes of this head and of the original; for a matrix, that at which every matrix of
        its shape has a head.
    dtype : str
    comparison : Comparison
        Total variation and KL divergence from the original, of every row, computed in float64 for
        the stored Q and K.
    curve : TvCurve
        The closest head of every size that was tried.
    baseline : TvCurve
        The truncated SVD of the row-centred logits, in the same dtype.
    reached : bool
        Whether the total variation is within the bounds of the call.
    stopped : str
        Why the search ended.
    seconds : float
    settings : dict
        ``settings["descent"]`` says how the descent to this head went and why it ended; None
        for the truncated SVD.
    """

    original_dim: int
    comparison: Comparison
    curve: TvCurve
    baseline: TvCurve
    reached: bool
    stopped: str
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def tv_mean(self) -> float:
        """The mean total variation of the rows from those of the original."""
        return self.comparison.tv_mean

    @property
    def tv_worst(self) -> float:
        """The largest total variation of a row from that of the original."""
        return self.comparison.tv_worst

    @property
    def shrunk(self) -> bool:
        """Whether the head is smaller and within the bounds; else the original size is needed."""
        return self.reached and self.dim < self.original_dim

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON; without the head's arrays."""
        own = named(
            self, "dim", "original_dim", "dtype", "scale", "shrunk", "reached", "tv_mean",
            "tv_worst", "stopped", "curve", "baseline", "seconds", "settings",
        )  # fmt: skip
        own["mask"] = None if self.mask is None else mask_text(self.mask)
        return plain_dict({**own, "comparison": self.comparison.to_dict()})

    def _facts(self) -> dict[str, str]:
        if self.shrunk or self.stopped == "one size":
            size = f"size {self.original_dim} -> {self.dim}"
        elif self.reached:
            size = f"size {self.original_dim} is already the smallest found"
            size += f"; this head has {self.dim}" if self.dim != self.original_dim else ""
        else:
            size = f"NOT within the bounds at size {self.dim} of {self.original_dim}"
        facts = {
            "size": size,
            "total variation": f"mean {self.tv_mean:.3g}, worst {self.tv_worst:.3g}",
        }
        at = np.flatnonzero(self.baseline.dim == self.dim)
        if at.size:
            facts["truncated SVD of that size:"] = f"mean {self.baseline.tv_mean[at[0]]:.3g}"
        return {**facts, "ended": f"{self.stopped}, {self.seconds:.3g} s"}


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Shown, Tabular):
    """How far attention M is from a dense target A, over the rows that ask for something.

    A table of all rows has the columns ``kl`` and ``tv``.

    Attributes
    ----------
    kl_mean, kl_worst : float
        KL(A_i || M_i) in nats; infinite where A has mass that M's mask forbids.
    tv_mean, tv_worst : float
        Total variation, half the sum of |A_ij - M_ij|, between 0 and 1. What a sink (see
        `attention_matrix`) takes of a row counts as the weight of one more key, also in KL.
    worst_row : int
        The row of `tv_worst`.
    row_kl, row_tv : ndarray, shape (n,)
        The same of every row, float64. Rows that are zero in both are 0.
    """

    kl_mean: float
    kl_worst: float
    tv_mean: float
    tv_worst: float
    worst_row: int
    row_kl: NDArray[np.float64]
    row_tv: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """Return the scalars as plain Python values, for JSON; `to_pandas` has the rows."""
        own = named(self, "kl_mean", "kl_worst", "tv_mean", "tv_worst", "worst_row")
        return plain_dict({"n": self.row_tv.size, **own})

    def _table(self) -> tuple[dict[Any, Any], str]:
        return {"kl": self.row_kl, "tv": self.row_tv}, "row"

    def _facts(self) -> dict[str, str]:
        return {
            "n": str(self.row_tv.size),
            "total variation": f"mean {self.tv_mean:.4g}, worst {self.tv_worst:.4g} "
            f"(row {self.worst_row})",
            "KL": f"mean {self.kl_mean:.4g}, worst {self.kl_worst:.4g} nats",
        }


@standard_arithmetic()
def compare(
    target: HeadLike, attention: HeadLike, *, mask: MaskLike = None, num_threads: int | None = None
) -> Comparison:
    """Compare attention with a dense target, row by row, in float64.

    Nothing n x n is stored: attention is streamed from its queries and keys.

    Parameters
    ----------
    target : Attention, a result with one, or array_like, shape (n, m)
        One head, or a matrix whose rows sum to 1.
    attention : Attention or a result with one
        One head of n queries and m keys.
    mask : optional
        The mask of a target that is a matrix; that of `attention` when None. An Attention has its
        own.
    num_threads : int, optional

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        When shapes do not fit, or a mask is given for a target that has its own.
    TargetError
        When a matrix has negative entries, rows that do not sum to 1, or mass where its mask
        forbids attention; it names row and column.

    Notes
    -----
    O(n m (d + D)) time for head sizes d and D, and O((n + m)(d + D)) memory. With sparse masks what
    both span in some rows takes the place of n m, or few entries that hold the target's.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> flat = hf.Attention(np.zeros((2, 1)), np.zeros((2, 1)))
    >>> hf.compare(np.array([[1.0, 0.0], [0.5, 0.5]]), flat).row_tv
    array([0.5, 0. ])
    """
    threads = thread_count(num_threads)
    head = one_head(attention, "attention")
    if attention_in(target) is not None:
        original = one_head(target, "the target")
        original.check_settings(LogitOptions(mask=mask))
        target = original.rotated()
    else:
        target = target_matrix(target)
        mask = head.mask if mask is None else mask
    kl, tv, asks = _core.compare_soft(core_target_of(target, mask), head.rotated().core, threads)
    asks |= tv > 0
    worst = int(np.argmax(tv))
    kl_mean, tv_mean = (float(x[asks].mean()) if asks.any() else 0.0 for x in (kl, tv))
    return Comparison(kl_mean, float(kl.max()), tv_mean, float(tv[worst]), worst, kl, tv)
