"""How far the attention of a head is from a dense target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike, attention_in
from headfit._attention.dense_target import check_one_head, core_target_of, target_matrix
from headfit._attention.logits import LogitOptions
from headfit._base.arguments import thread_count
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Shown, data_frame, plain_dict
from headfit._base.types import MaskLike
from headfit.errors import InputError


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """How far attention M is from a dense target A, over the rows that ask for something.

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
        names = ("kl_mean", "kl_worst", "tv_mean", "tv_worst", "worst_row")
        return plain_dict({"n": self.row_tv.size, **{name: getattr(self, name) for name in names}})

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame with the columns ``kl`` and ``tv``.

        Raises
        ------
        ImportError
            Without pandas.
        """
        return data_frame({"kl": self.row_kl, "tv": self.row_tv}, "row")

    def _facts(self) -> dict[str, str]:
        return {
            "n": str(self.row_tv.size),
            "total variation": f"mean {self.tv_mean:.4g}, worst {self.tv_worst:.4g} "
            f"(row {self.worst_row})",
            "KL": f"mean {self.kl_mean:.4g}, worst {self.kl_worst:.4g} nats",
        }


@standard_arithmetic()
def compare(
    target: HeadLike,
    attention: HeadLike,
    *,
    mask: MaskLike = None,
    num_threads: int | None = None,
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
    O(n m (d + D)) time for head sizes d and D, and O((n + m)(d + D)) memory. Where both have few
    entries in a sparse mask, these take the place of n m.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> flat = hf.Attention(np.zeros((2, 1)), np.zeros((2, 1)))
    >>> hf.compare(np.array([[1.0, 0.0], [0.5, 0.5]]), flat).row_tv
    array([0.5, 0. ])
    """
    threads = thread_count(num_threads)
    head, target = attention_in(attention), attention_in(target) or target
    if head is None:
        raise InputError(f"attention must be an Attention or a fit; got {type(attention).__name__}")
    check_one_head(head, "attention")
    if isinstance(target, Attention):
        check_one_head(target, "the target")
        target.check_settings(LogitOptions(mask=mask))
        target = target.rotated()
    else:
        target = target_matrix(target)
        mask = head.mask if mask is None else mask
    kl, tv, asks = _core.compare_soft(core_target_of(target, mask), head.rotated().core, threads)
    asks |= tv > 0
    worst = int(np.argmax(tv))
    return Comparison(
        float(kl[asks].mean()) if asks.any() else 0.0,
        float(kl.max()),
        float(tv[asks].mean()) if asks.any() else 0.0,
        float(tv[worst]),
        worst,
        kl,
        tv,
    )
