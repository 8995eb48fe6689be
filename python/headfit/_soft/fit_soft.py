"""Fitting a dense soft target: the closest head of a size, and how far it stays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headfit._attention.attention import HeadLike
from headfit._attention.dense_target import head_to_match
from headfit._attention.fitted_head import FittedHead, placed
from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention, check_module
from headfit._base.arguments import check_callable
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_count, check_between, seed_from, thread_count
from headfit._base.dtypes import check_dtype
from headfit._base.plain import plain_dict
from headfit._base.shown import Shown
from headfit._base.text import mask_text
from headfit._base.types import MaskLike, Seed
from headfit._soft.compare import Comparison, compare
from headfit._soft.descent import EXACT, soft

__all__ = ["SoftFit", "fit_soft"]


@dataclass(frozen=True, repr=False, eq=False)
class SoftFit(Shown, FittedHead):
    """A head for a dense target, and the distance that is left.

    Attributes
    ----------
    Q, K : ndarray, shape (n, d)
        The logits are ``scale * Q @ K.T``.
    scale : float
    mask : object
        The target's.
    module : SelfAttention
        The one given, or the canonical one of this size.
    dim : int
    dtype : str
    comparison : Comparison
        Total variation and KL divergence from the target, of every row, computed in float64 for
        the stored Q and K.
    seconds : float
    settings : dict
        ``settings["soft"]`` says how the descent went and why it ended.
    """

    comparison: Comparison
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the head as plain Python values, for JSON; without its arrays."""
        return plain_dict(
            {
                "n": self.Q.shape[0],
                "dim": self.dim,
                "dtype": self.dtype,
                "scale": self.scale,
                "mask": None if self.mask is None else mask_text(self.mask),
                "comparison": self.comparison.to_dict(),
                "seconds": self.seconds,
                "settings": self.settings,
            }
        )

    def _facts(self) -> dict[str, str]:
        c, soft = self.comparison, self.settings["soft"]
        return {
            "n": str(self.Q.shape[0]),
            "dim": str(self.dim),
            "dtype": self.dtype,
            "total variation": f"mean {c.tv_mean:.3g}, worst {c.tv_worst:.3g}",
            "KL": f"mean {c.kl_mean:.3g}",
            "descent": f"{soft['status']} after {soft['steps']} steps",
            "time": f"{self.seconds:.3g} s",
        }

    def __repr__(self) -> str:
        f = self._facts()
        return (
            f"SoftFit(n={f['n']}, dim={f['dim']}, {f['dtype']}: total variation "
            f"{f['total variation']}; KL {f['KL']}; {f['descent']}, {f['time']})"
        )


@standard_arithmetic()
def fit_soft(
    target: HeadLike,
    dim: int,
    *,
    module: SelfAttention | None = None,
    dtype: str = "float32",
    scale: float | None = None,
    mask: MaskLike = None,
    effort: str | int = "medium",
    enough: float = EXACT,
    init: Any = None,
    time_limit: float | None = None,
    callback: Callable[[int, float], Any] | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> SoftFit:
    """Find the head of a size whose attention is closest to a dense one, in KL divergence.

    Parameters
    ----------
    target : Attention, Fit or another result with a head, or array_like, shape (n, n)
        The attention to come close to: another head's, whose logits are streamed and whose
        matrix is never stored, or a matrix with rows that sum to 1.
    dim : int
        The head size d.
    module : SelfAttention, optional
        The fixed module whose input is sought; its dim and scale hold.
    dtype : "float32", "float64", "bfloat16" or "float16"
        Of Q, K and X, as in `fit`; narrow ones are rounded to the nearest number.
    scale : float, optional
        Of the logits of the new head; 1 / sqrt(dim) when None.
    mask : optional
        Of a target that is a matrix; an Attention has its own.
    effort : "low", "medium", "high" or int
        How long to descend: at most 100, 500 or 5000 steps, or as many as given. The default is
        "medium" where that of `Learned` is "low": a learned fit ends as soon as every row meets
        the tolerances, whatever its effort, while this descent has no such end, and what more
        steps gain is the result.
    enough : float
        The mean over rows of the KL divergence, in nats, at which to stop. Sizes that reach it
        are all as good: of two the larger may end with more, up to `enough`, because it started
        closer and made fewer steps.
    init : (Q, K), optional
        A start of `dim` columns or fewer; logits are Q @ K.T. The truncated SVD of the target's
        logits when None.
    time_limit : float, optional
        Seconds.
    callback : callable, optional
        Called before every step with (step, mean KL); returning False ends the descent.
    rng : seed or Generator, default 0
    num_threads : int, optional
        The result does not depend on it.

    Returns
    -------
    SoftFit

    Raises
    ------
    InputError, TargetError

    See Also
    --------
    fit : for sparse patterns, with a certificate.
    svd_head : the truncated SVD alone.

    Notes
    -----
    The divergence is summed over rows, so single rows may stay far: see
    ``comparison.tv_worst``. A step costs O(n**2 (d + D)) for a target of head size D.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> Q, K = rng.normal(size=(2, 80, 16)) * 2.0 ** -np.arange(16) * 8
    >>> head = hf.fit_soft(hf.Attention(Q, K, mask="causal"), 3)
    >>> head.comparison.tv_mean < 0.1
    True
    """
    start = time.perf_counter()
    dtype = check_dtype(dtype)
    size = as_count(dim, "dim", 1)
    check_module(module, size, dtype, scale)
    if time_limit is not None:
        time_limit = check_between(time_limit, "time_limit", 0, math.inf)
    threads = thread_count(num_threads)
    check_callable(callback, "callback")
    wide = head_to_match(target, "the target", mask)
    if wide is not None:
        target, mask = wide, wide.mask
    head = soft(
        target,
        size,
        mask=mask,
        seed=seed_from(rng),
        threads=threads,
        effort=effort,
        enough=enough,
        time_limit=math.inf if time_limit is None else time_limit,
        init=init,
        callback=callback,
    )
    used = module.scale if module is not None else check_scale(scale, size)
    attention, fields = placed(
        *head.stored(used, dtype), scale=used, dtype=dtype, mask=mask, module=module
    )
    return SoftFit(
        **fields,
        comparison=compare(target, attention, mask=mask, num_threads=threads),
        seconds=time.perf_counter() - start,
        settings={"dim": size, "dtype": dtype, "enough": enough, **head.settings},
    )
