"""`Attention`: queries, keys and logit options, whose attention is computed when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.logits import (
    LogitOptions,
    Logits,
    Rows,
    as_sinks,
    check_scale,
    checked_logits,
)
from headfit._attention.stats import AttentionStats
from headfit._attention.topk_blocks import topk_blocks, topk_rows
from headfit._base.arguments import as_choice, as_flag, as_number
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import (
    FloatArray,
    as_array,
    as_count,
    as_shares,
    as_stack,
    as_stored_array,
    computed_in,
    is_sparse,
    thread_count,
    widened,
)
from headfit._base.masks import as_allowed, as_key_mask, frozen_mask, same_mask
from headfit._base.memory import require_memory
from headfit._base.positions import as_positions, rotate
from headfit._base.shown import PICTURE_ENTRIES, Shown, picture
from headfit._base.text import mask_text
from headfit._base.types import ArrayLike, MaskLike, PositionLike
from headfit._cluster.cluster import Cluster
from headfit.errors import InputError

__all__ = ["Attention"]


class Attention(Shown):
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

    stored: tuple[NDArray[Any], NDArray[Any]]
    options: LogitOptions
    errors: tuple[NDArray[np.float64], ...] | None

    @standard_arithmetic()
    def __init__(
        self,
        Q: ArrayLike,
        K: ArrayLike,
        *,
        scale: float | None = None,
        mask: MaskLike = None,
        key_lengths: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        softcap: float | None = None,
        position: PositionLike = None,
        key_mask: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
    ) -> None:
        # The core keeps copies of sparse masks and of small arrays. They are frozen so that the
        # attributes always show what the core computes with.
        if mask is not None and not isinstance(mask, (str, tuple)):
            mask = frozen_mask(mask) if is_sparse(mask) else as_allowed(mask)
        options = LogitOptions(
            scale=scale,
            mask=mask,
            key_lengths=None
            if key_lengths is None
            else np.array(as_array(key_lengths, "key_lengths")),
            bias=bias,
            softcap=softcap,
            position=position,
            key_mask=None if key_mask is None else _frozen(as_key_mask(key_mask)),
            sinks=None if sinks is None else _frozen(as_sinks(sinks)),
        )
        logits = checked_logits(Q, K, options)
        scale = check_scale(scale, logits.stored[0].shape[-1])
        vars(self).update(
            stored=logits.stored,
            options=LogitOptions(**{**vars(options), "scale": scale}),
            errors=None,
            _logits=logits,
        )

    @classmethod
    def of(cls, Q: Any, K: Any = None, options: LogitOptions | None = None) -> Attention:
        """Return the attention of a user's arguments: queries and keys, an `Attention` or a fit.

        Options given beside an `Attention` must equal its own; see `check_settings`.
        """
        options = options or LogitOptions()
        given = getattr(Q, "attention", Q)
        if not isinstance(given, Attention):
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

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an Attention is never changed; {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Attention is never changed; {name!r} cannot be deleted")

    def __getstate__(self) -> dict[str, Any]:
        kept = {"stored", "options", "errors"}  # everything else is derived from these
        return {name: value for name, value in vars(self).items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _facts(self) -> dict[str, str]:
        q, k = self.stored
        more = [name for name in self.options.given() if name not in ("scale", "mask")]
        facts = {
            "Q": str(q.shape),
            "K": str(k.shape),
            "dtype": str(computed_in(q, k)),
            "scale": f"{self.scale:.6g}",
            "mask": mask_text(self.mask),
        }
        return {**facts, "with": ", ".join(more)} if more else facts

    def _picture(self) -> str:
        if self.lead or self.n * self.m > PICTURE_ENTRIES:
            return ""
        alt = f"The attention of {self.n} queries and {self.m} keys"
        return picture("attention", self, alt, (4.0, 3.6), pixels=64, colorbar=True)

    def __repr__(self) -> str:
        f = self._facts()
        more = f", {f['with']}" if "with" in f else ""
        return (
            f"Attention(Q {f['Q']}, K {f['K']}, {f['dtype']}, scale={f['scale']}, "
            f"mask={f['mask']}{more})"
        )

    @cached_property
    def _logits(self) -> Logits:
        return checked_logits(*self.stored, self.options)

    def _logits_of(self, rows: Rows) -> Logits:
        return self._logits if rows is None else self._logits.of_rows(rows)

    @property
    def checked(self) -> Logits:
        """The checked logits: the form of the core, and the shapes."""
        return self._logits

    @property
    def core(self) -> _core.Logits:
        """The logits as the core reads them."""
        return self._logits.core

    @cached_property
    def Q(self) -> FloatArray:
        """The queries, as float32 or float64."""
        return widened(self.stored[0])

    @cached_property
    def K(self) -> FloatArray:
        """The keys, as float32 or float64."""
        return widened(self.stored[1])

    @property
    def dim(self) -> int:
        """The head size d."""
        return int(self.stored[0].shape[-1])

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

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of Q: batch and heads."""
        return self._logits.lead

    @property
    def n(self) -> int:
        """The number of queries of a head."""
        return self._logits.rows

    @property
    def m(self) -> int:
        """The number of keys of a head."""
        return self._logits.keys

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which attention is computed: float32 or float64."""
        return self._logits.dtype

    @property
    def scale(self) -> float:
        """The factor that the products of queries and keys are multiplied by."""
        assert self.options.scale is not None
        return self.options.scale

    @property
    def mask(self) -> Any:
        """The mask, which says where attention is allowed, in the form that it was given in."""
        return self.options.mask

    @property
    def key_lengths(self) -> Any:
        """How many keys exist in each entry of a padded batch; None if all do."""
        return self.options.key_lengths

    @property
    def bias(self) -> Any:
        """The term that is added to the logits, or None."""
        return self.options.bias

    @property
    def softcap(self) -> float | None:
        """The bound c of soft-capped logits c tanh(logits / c), or None."""
        return self.options.softcap

    @property
    def position(self) -> Any:
        """The positional encoding that is not yet part of Q and K, or None."""
        return self.options.position

    @property
    def key_mask(self) -> NDArray[np.bool_] | None:
        """Which keys may be attended to, as booleans; None if all may."""
        found: NDArray[np.bool_] | None = self.options.key_mask
        return found

    @property
    def sinks(self) -> NDArray[np.float64] | None:
        """The logits that heads have in the denominator alone, or None."""
        found: NDArray[np.float64] | None = self.options.sinks
        return found

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
        return (columns, found) if logits.lead else _as_csr(columns, found, logits.keys)

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

    def check_plain(self, caller: str) -> None:
        """Raise an InputError unless the logits are scale * q.k under a mask, and no more."""
        more = [name for name in self.options.given() if name not in ("scale", "mask")]
        if more:
            raise InputError(
                f"{caller} speaks about scale * q.k under a mask; this attention has {more[0]} too"
                + ("; attention.turned() applies rotary positions" if more[0] == "position" else "")
            )

    def check_settings(self, asked: LogitOptions) -> None:
        """Raise an InputError if an option given beside this attention differs from its own."""
        for name in asked.given():
            theirs, mine = getattr(asked, name), getattr(self.options, name)
            if name == "scale":
                same = as_number(theirs, "scale") == mine
            elif name == "mask":
                same = same_mask(theirs, mine)
            elif name in ("key_lengths", "key_mask", "sinks"):
                same = mine is not None and np.array_equal(as_array(theirs, name), mine)
            else:
                same = theirs is mine
            if not same:
                raise InputError(
                    f"{name} must not be given beside an Attention, which has its own: {self!r}"
                )


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _as_csr(columns: NDArray[np.int64], found: NDArray[Any], keys: int) -> sp.csr_array:
    """Return the weights that each row keeps as a sparse matrix.

    `columns` holds the columns of each row, largest weight first, and -1 beyond the last one.
    """
    present = columns >= 0
    order = np.argsort(np.where(present, columns, keys), axis=1)
    present = np.take_along_axis(present, order, axis=1)
    offsets = np.concatenate(([0], np.cumsum(present.sum(axis=1))))
    index_dtype = np.int32 if offsets[-1] < 2**31 else np.int64
    return sp.csr_array(
        (
            np.take_along_axis(found, order, axis=1)[present],
            np.take_along_axis(columns, order, axis=1)[present].astype(index_dtype),
            offsets.astype(index_dtype),
        ),
        shape=(columns.shape[0], keys),
    )


class HasAttention(Protocol):
    """A result with a head, such as a `Fit`, a `SoftFit` or a `ShrinkResult`."""

    @property
    def attention(self) -> Attention:
        """The attention of the head."""
        ...


HeadLike: TypeAlias = Attention | HasAttention | ArrayLike
"""Heads as functions take them: an `Attention`, a result that has one, or queries beside keys."""

OneHead: TypeAlias = HasAttention | np.ndarray[tuple[int, int], np.dtype[Any]]
"""What is one head, not a stack, by its type: a result, or queries known to be a matrix."""
