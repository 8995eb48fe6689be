"""`Attention`: queries, keys and logit options, whose attention is computed when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention_inputs import AttentionInputs
from headfit._attention.logits import LogitOptions, Rows
from headfit._attention.stats import AttentionStats
from headfit._attention.topk_blocks import as_csr, topk_blocks, topk_rows
from headfit._base.arguments import as_choice, as_flag
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import (
    FloatArray,
    as_count,
    as_shares,
    as_stack,
    as_stored_array,
    computed_in,
    thread_count,
)
from headfit._base.machine import require_memory
from headfit._base.positions import as_positions, rotate
from headfit._base.types import ArrayLike
from headfit._cluster.cluster import Cluster
from headfit.errors import InputError

__all__ = ["Attention"]


class Attention(AttentionInputs):
    """The attention of queries and keys, with all logit options; computed when asked for.

    The logits are ``softcap(scale * Q @ K.T) + bias``, and attention is their softmax over the
    keys that the mask allows, with one term more in the denominator where there are `sinks`. A
    row without an allowed key gives zeros.

    Parameters
    ----------
    Q : array_like, shape (..., n, d)
        Queries; leading axes are batch and heads. float32 is computed in float32, and so are
        float16 and bfloat16 (of torch, ml_dtypes or JAX), which are widened as their rows are
        read; other real dtypes in float64. The array is kept without a copy if its rows are
        contiguous: do not change it afterwards.
    K : array_like, shape (..., m, d)
        Keys. They may have no leading axes (all heads share them), or the leading axes of Q where
        the number of key heads divides that of query heads: grouped queries, where query head h
        reads key head h // group.
    scale, mask, key_lengths, bias, softcap, position, key_mask, sinks : optional
        As in `attention_matrix`.

    Attributes
    ----------
    Q, K : ndarray
        Queries and keys as float32 or float64; 16-bit floats are widened to float32.
    stored : tuple of ndarray
        Queries and keys in the dtype that they were given in: float64, float32, or 16 bits.
    options : LogitOptions
        The logit options; `scale` is never None here.
    scale : float
    mask, key_lengths, bias, softcap, position, key_mask, sinks : object
    lead : tuple of int
        The leading axes of Q.
    n, m, dim : int
        The numbers of queries and keys of a head, and its size d.
    dtype : dtype
        The dtype in which attention is computed.
    errors : tuple of ndarray, or None
        If Q and K are the rounded products of a module: for each row of Q and of K, a bound of
        its Euclidean distance to the exact product. None: Q and K are exact.

    Raises
    ------
    InputError
        For shapes, dtypes or options that do not fit together.

    Notes
    -----
    Making one costs a check of the arguments; nothing of size n m is computed before a method
    asks for it. What each method returns, and its cost, is described at the function of the
    same name: `attention_matrix`, `attention_logits`, `attention_topk`, `attention_apply` and
    `attention_stats`.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> attention = hf.Attention(np.zeros((2, 3)), np.zeros((2, 3)), mask="causal")
    >>> attention.matrix()
    array([[1. , 0. ],
           [0.5, 0.5]])
    """

    @classmethod
    def of(cls, Q: Any, K: Any = None, options: LogitOptions | None = None) -> Attention:
        """Return the attention of a user's arguments: queries and keys, an `Attention` or a fit.

        Options given beside an `Attention` must equal its own; see `check_settings`.
        """
        options = options or LogitOptions()
        given = attention_in(Q)
        if given is None:
            if Q is None or K is None:
                raise InputError("give Q and K, or an Attention")
            return cls(Q, K, **vars(options))
        if K is not None:
            raise InputError("K must not be given beside an Attention, which has its own")
        given.check_settings(options)
        return given

    @classmethod
    def _of_products(
        cls,
        Q: FloatArray,
        K: FloatArray,
        scale: float,
        mask: Any,
        errors: tuple[NDArray[np.float64], ...],
    ) -> Attention:
        """Return the attention of a module's rounded products, with bounds of their errors."""
        for array in (Q, K, *errors):  # the bounds hold for these numbers only
            array.flags.writeable = False
        attention = cls(Q, K, scale=scale, mask=mask)
        vars(attention)["errors"] = errors
        return attention

    def __repr__(self) -> str:
        f = self._facts()
        more = f", {f['with']}" if "with" in f else ""
        return (
            f"Attention(Q {f['Q']}, K {f['K']}, {f['dtype']}, scale={f['scale']}, "
            f"mask={f['mask']}{more})"
        )

    @standard_arithmetic()
    def turned(self) -> Attention:
        """Return the same attention with its rotary positions applied to Q and K.

        The new queries and keys are rounded to the dtype of the attention and have no position
        any more, so that `certify` accepts them. Without rotary positions the attention itself is
        returned.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> Q = np.random.default_rng(0).normal(size=(4, 6))
        >>> head = hf.Attention(Q, Q, position="rope")
        >>> head.turned().position, bool(np.allclose(head.turned().matrix(), head.matrix()))
        (None, True)
        """
        n, m = self.n, self.m
        positions = as_positions(self.position, self.lead, (n, m), self.dim, self.dtype)
        if positions.table is None:
            return self
        q, k = (rotate(x.astype(self.dtype, copy=False), positions) for x in (self.Q, self.K))
        return Attention(q, k, **{**vars(self.options), "position": None})

    @standard_arithmetic()
    def matrix(
        self,
        *,
        rows: Rows = None,
        out: NDArray[Any] | None = None,
        num_threads: int | None = None,
    ) -> NDArray[Any]:
        """Return the dense attention matrix, or some of its rows; see `attention_matrix`."""
        logits = self._logits_of(rows)
        made = logits.output(out, logits.keys)
        threads = thread_count(num_threads)
        _core.attention_matrix(logits.core, logits.stack(made), out is None, threads)
        return made

    @standard_arithmetic()
    def logits(
        self,
        *,
        rows: Rows = None,
        out: NDArray[Any] | None = None,
        num_threads: int | None = None,
    ) -> NDArray[Any]:
        """Return the logits, -inf where masked; see `attention_logits`."""
        logits = self._logits_of(rows)
        made = logits.output(out, logits.keys)
        _core.attention_logits(logits.core, logits.stack(made), thread_count(num_threads))
        return made

    @standard_arithmetic()
    def topk(
        self,
        k: int,
        *,
        values: Literal["weights", "logits"] = "weights",
        renormalize: bool = False,
        client: Any = None,
        progress: bool = False,
        num_threads: int | None = None,
    ) -> sp.csr_array | tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the k largest weights of every row; see `attention_topk`."""
        logits = self._logits
        k = as_count(k, "k", 1, logits.keys)
        as_choice(values, "values", ("weights", "logits"))
        if as_flag(renormalize, "renormalize") and values == "logits":
            raise InputError("renormalize scales weights; got values='logits'")
        threads = thread_count(num_threads)
        cluster = Cluster.of(client, num_threads, progress)
        kept = math.prod(logits.lead) * logits.rows * k
        require_memory(
            kept * (24 if logits.lead else 60), f"the {k} largest weights of every row (k)"
        )
        if cluster is None:
            columns, found = topk_rows(logits, k, values == "logits", threads)
        else:
            columns, found = topk_blocks(cluster, self, k, values == "logits")
        if renormalize:
            total = found.sum(axis=-1, keepdims=True)
            np.divide(found, total, out=found, where=total > 0)
        return (columns, found) if logits.lead else as_csr(columns, found, logits.keys)

    @standard_arithmetic()
    def apply(
        self, V: ArrayLike, *, rows: Rows = None, num_threads: int | None = None
    ) -> NDArray[Any]:
        """Return attention times values; see `attention_apply`."""
        v = as_stored_array(V, "V")
        logits = self._logits_of(rows)
        if v.shape[:-2] != logits.kv_lead or v.shape[-2] != logits.keys:
            raise InputError(
                "V must have the leading axes and rows of K, "
                f"{(*logits.kv_lead, logits.keys)}; got {v.shape[:-1]}"
            )
        if np.promote_types(computed_in(v), logits.dtype) != logits.dtype:
            raise InputError(f"V must not be wider than Q and K, {logits.dtype}; got {v.dtype}")
        out = logits.output(None, v.shape[-1])
        threads = thread_count(num_threads)
        _core.attention_apply(logits.core, as_stack(v), logits.stack(out), threads)
        return out

    @standard_arithmetic()
    def stats(
        self, *, shares: float | Sequence[float] = (0.9,), num_threads: int | None = None
    ) -> AttentionStats:
        """Return statistics of each row; see `attention_stats`."""
        wanted = as_shares(shares, "shares")
        found = _core.attention_stats(self._logits.core, wanted, thread_count(num_threads))
        shape = (*self._logits.lead, self._logits.rows)
        entropy, max_weight, log_sum = (x.reshape(shape) for x in found[:3])
        return AttentionStats(
            entropy=entropy,
            max_weight=max_weight,
            effective_support=np.where(max_weight > 0, np.exp(entropy), 0.0),
            log_sum=log_sum,
            shares=tuple(float(s) for s in wanted),
            keys_for_share=found[3].reshape((*shape, wanted.size)),
            key_mass=found[4].reshape(shape),
        )


class HasAttention(Protocol):
    """A result with a head, such as a `Fit` or a `ShrinkResult`."""

    @property
    def attention(self) -> Attention:
        """The attention of the head."""
        ...


def attention_in(head: Any) -> Attention | None:
    """Return an `Attention`, or that of a result such as a `Fit`; None for anything else."""
    found = getattr(head, "attention", head)
    return found if isinstance(found, Attention) else None


HeadLike: TypeAlias = Attention | HasAttention | ArrayLike
"""Heads as functions take them: an `Attention`, a result that has one, or queries beside keys."""

OneHead: TypeAlias = HasAttention | np.ndarray[tuple[int, int], np.dtype[Any]]
"""What is one head, not a stack, by its type: a result, or queries known to be a matrix."""
