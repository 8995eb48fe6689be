"""`Attention`: queries, keys and logit options, whose attention is computed when asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, Unpack, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.logits import (
    LogitKeywords,
    LogitOptions,
    Rows,
    core_logits,
    is_same,
    names_logit_options,
    row_numbers,
)
from headfit._attention.of_rows import AttentionStats, as_csr, topk_blocks, topk_rows
from headfit._base import arrays
from headfit._base.arguments import as_choice, as_count, as_flag, shown, thread_count
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Shown, mask_text
from headfit._base.machine import require_memory
from headfit._base.masks import masks_agree
from headfit._base.positions import as_positions, rotate
from headfit._base.types import ArrayLike, FloatArray
from headfit._cluster.cluster import Cluster
from headfit.errors import InputError


@dataclass(frozen=True, init=False, repr=False, eq=False)
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
    scale : float, optional
        The factor that the products are multiplied by; 1 / sqrt(d) when None.
    mask : optional
        Where attention is allowed. None: everywhere. ``"causal"``: query i may attend to the
        keys j <= i + m - n (bottom-right aligned: the last query to every key).
        ``("window", w)``: to the last w of those keys. ``("window", (left, right))``: to the key
        at position i + m - n, `left` keys before and `right` keys after it. A boolean array that
        broadcasts to (..., n, m), or a sparse boolean (n, m) matrix: True where attention is
        allowed (as in ``scaled_dot_product_attention``; in ``MultiheadAttention`` True means the
        opposite). An array of floats is an additive mask, with 0 where attention is allowed and
        -inf (or the lowest finite number of its dtype) where it is not.
    key_lengths : array_like of int, optional
        For padded batches: how many keys exist; the rows of K after those are never read.
        Broadcasts over the leading axes from the left. "causal" and windows stay aligned to m,
        not to these lengths.
    bias : array_like, optional
        Numbers added to the logits; broadcasts to (..., n, m). Minus infinity masks an entry.
    softcap : float, optional
        Logits become softcap * tanh(logits / softcap), before bias and mask.
    position : optional
        A positional encoding that is not yet part of Q and K. Key j is at position j, query i at
        i + m - n. ``"rope"`` or ``("rope", base)``: rotary embeddings (Su et al. 2021) that
        rotate entries 2p and 2p + 1 together, base 10000; ``"rope-half"``: entries p and
        p + d/2 together (Llama). ``("rope", frequencies)``: by frequencies of your own, one for
        each pair, in radians per token. ``("alibi", slope)``, with one slope or one for each
        head: the bias -slope * distance (Press et al. 2022); ``"alibi"``: their slopes
        2**(-8 h / H) for head h = 1 ... H. Only for computing attention: `fit` and `certify` work
        with stored queries and keys and accept no positions.
    key_mask : array_like of bool or of 0 and 1, optional
        Which keys may be attended to (1) and which are padding (0), besides what `mask` says: one
        entry for each key, shape (m,), (batch, m) or (batch, heads, m), so that it broadcasts over
        the leading axes from the left (the ``attention_mask`` of Hugging Face tokenizers). Keys
        are still read, and must be finite. "causal" stays aligned to m, for padding on either
        side; a query that is left without keys gives zeros.
    sinks : array_like, optional
        A logit for each query head that is added to the denominator of the softmax alone (GPT-OSS):
        weights are exp(logit) / (exp(sink) + sum of exp(logits)), and rows sum to less than 1.
        Broadcasts to the leading axes; rounded to the dtype of the logits; -inf for a head without
        a sink.

    Attributes
    ----------
    Q, K : ndarray
        Queries and keys as float32 or float64; 16-bit floats are widened to float32.
    stored : tuple of ndarray
        Queries and keys in the dtype that they came in: float64, float32, or 16 bits.
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
        For shapes, dtypes, masks or other options that are not as described, or do not fit
        together.

    Notes
    -----
    Making one costs a check of the arguments; nothing of size n m is computed before a method asks
    for it. What the methods compute takes O(n m d) time for each head, or O(d) for each entry where
    a sparse mask leaves few.

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
    core: _core.Logits
    errors: tuple[NDArray[np.float64], ...] | None
    scale: float
    mask: Any
    key_lengths: Any
    bias: Any
    softcap: float | None
    position: Any
    key_mask: NDArray[np.bool_] | None
    sinks: NDArray[np.float64] | None
    lead: tuple[int, ...]
    n: int
    m: int
    dim: int
    dtype: np.dtype[Any]

    @names_logit_options()
    @standard_arithmetic()
    def __init__(self, Q: ArrayLike, K: ArrayLike, **options: Unpack[LogitKeywords]) -> None:
        q, k, checked, core = core_logits(Q, K, LogitOptions(**options).frozen())
        vars(self).update(
            vars(checked), stored=(q, k), options=checked, core=core, errors=None,
            lead=q.shape[:-2], n=q.shape[-2], m=k.shape[-2], dim=q.shape[-1],
            dtype=arrays.computed_in(q, k),
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes get what defines the attention."""
        return Attention._of, (*self.stored, vars(self.options), self.errors)

    @classmethod
    def of(cls, Q: Any, K: Any = None, **options: Unpack[LogitKeywords]) -> Attention:
        """Return the attention of a user's arguments: queries and keys, an `Attention` or a fit.

        Options beside an `Attention` must equal its own; see `check_settings`.
        """
        attention = attention_in(Q)
        if attention is None:
            if Q is None or K is None:
                raise InputError("give Q and K, or an Attention")
            return cls(Q, K, **options)
        if K is not None:
            raise InputError("K must not be given beside an Attention, which has its own")
        attention.check_settings(LogitOptions(**options))
        return attention

    @classmethod
    def _of(
        cls, Q: Any, K: Any, options: Mapping[str, Any], errors: tuple[NDArray[Any], ...] | None
    ) -> Attention:
        """Return attention with bounds of the errors of Q and K, if these are rounded products."""
        for array in () if errors is None else (Q, K, *errors):
            array.flags.writeable = False  # the bounds hold for these numbers only
        attention = cls(Q, K, **options)
        vars(attention)["errors"] = errors
        return attention

    @cached_property
    def Q(self) -> FloatArray:
        """The queries, as float32 or float64."""
        return arrays.widened(self.stored[0])

    @cached_property
    def K(self) -> FloatArray:
        """The keys, as float32 or float64."""
        return arrays.widened(self.stored[1])

    def _facts(self) -> dict[str, str]:
        q, k = self.stored
        more = [name for name in self.options.non_default() if name not in ("scale", "mask")]
        facts = {
            "Q": str(q.shape),
            "K": str(k.shape),
            "dtype": str(self.dtype),
            "scale": f"{self.scale:.6g}",
            "mask": mask_text(self.mask),
        }
        return {**facts, "with": ", ".join(more)} if more else facts

    def check_plain(self, caller: str, *also: str) -> None:
        """Raise an InputError unless the logits are scale * q.k under a mask, and no more.

        `also` names further options that the caller takes.
        """
        more = [name for name in self.options.non_default() if name not in ("scale", "mask", *also)]
        if more:
            spoken = " and ".join(["scale * q.k under a mask", *also])
            raise InputError(
                f"{caller} speaks about {spoken}; this attention has {more[0]} too"
                + ("; attention.rotated() applies rotary positions" * (more[0] == "position"))
            )

    def check_settings(self, options: LogitOptions) -> None:
        """Raise an InputError if an option passed beside this attention is not equal to its own."""
        shape = (self.n, self.m), self.lead
        for name in options.non_default():
            both = getattr(options, name), getattr(self.options, name)
            if not (masks_agree(*both, *shape) if name == "mask" else is_same(*both, name)):
                raise InputError(
                    f"{name} must not be given beside an Attention with another: {self!r}"
                )

    @standard_arithmetic()
    def rotated(self) -> Attention:
        """Return the same attention with its rotary positions applied to Q and K.

        The new queries and keys are rounded to the dtype of the attention and have no position
        any more, so that `certify` accepts them. Without rotary positions the attention itself is
        returned.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> Q = np.random.default_rng(0).normal(size=(4, 6))
        >>> head = hf.Attention(Q, Q, position="rope")
        >>> head.rotated().position, bool(np.allclose(head.rotated().matrix(), head.matrix()))
        (None, True)
        """
        positions = as_positions(self.position, self.lead, (self.n, self.m), self.dim, self.dtype)
        if positions.table is None:
            return self
        q, k = (rotate(x.astype(self.dtype, copy=False), positions) for x in (self.Q, self.K))
        return Attention(q, k, **{**vars(self.options), "position": None})

    @overload
    def matrix(
        self, *, rows: Rows = ..., out: NDArray[Any] | None = ..., sparse: Literal[False] = ...,
        num_threads: int | None = ...,
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def matrix(
        self, *, rows: Rows = ..., sparse: Literal[True], num_threads: int | None = ...
    ) -> sp.csr_array: ...
    def matrix(
        self,
        *,
        rows: Rows = None,
        out: NDArray[Any] | None = None,
        sparse: bool = False,
        num_threads: int | None = None,
    ) -> NDArray[Any] | sp.csr_array:
        """Return the attention matrix, or some of its rows.

        Parameters
        ----------
        rows : slice or sequence of int, optional
            The rows to compute; all when None.
        out : ndarray, optional
            The array to write to: C-contiguous, of the result's shape and dtype.
        sparse : bool, default False
            Whether to return only what stands at the entries of a sparse mask, for one head.
        num_threads : int, optional
            None uses every core. The result does not depend on it.

        Returns
        -------
        ndarray, shape (..., rows, m), or csr_array, shape (rows, m)
            Rows sum to 1, or to less with sinks, or are zero where the mask leaves no key. Compared
            with the exact softmax of the logits (as rounded to the arrays' dtype), weights are
            accurate to 4 units in the last place, or 5 on CPU levels without fused multiply-add
            (v2, see `show_config`). A csr_array has the entries of the mask, also those that
            something else masks, which are 0.

        Raises
        ------
        InputError
            For arguments that are not as described.
        NonFiniteError
            For NaN or infinity in Q, K or bias, or if a product overflows; the message names the
            entry.

        Notes
        -----
        Besides the result, takes O(m d) memory for one key head and a block of rows for each
        thread. With few entries in a sparse mask, time is O(d) for each, and not for all n m.
        """
        return self._computed(rows, out, sparse, num_threads, as_logits=False)

    @overload
    def logits(
        self, *, rows: Rows = ..., out: NDArray[Any] | None = ..., sparse: Literal[False] = ...,
        num_threads: int | None = ...,
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def logits(
        self, *, rows: Rows = ..., sparse: Literal[True], num_threads: int | None = ...
    ) -> sp.csr_array: ...
    def logits(
        self,
        *,
        rows: Rows = None,
        out: NDArray[Any] | None = None,
        sparse: bool = False,
        num_threads: int | None = None,
    ) -> NDArray[Any] | sp.csr_array:
        """Return the logits that the softmax is taken of, -inf where they are masked.

        Parameters
        ----------
        rows, out, sparse, num_threads
            As in `matrix`.

        Returns
        -------
        ndarray, shape (..., rows, m), or csr_array, shape (rows, m)
            In the arrays' dtype. Without bias, softcap and position, each logit differs from the
            exact scale * q.k by at most g |scale| ||q|| ||k|| with g = (d + 2) u / (1 - (d + 2) u),
            where u is the unit roundoff (Higham, *Accuracy and Stability of Numerical Algorithms*,
            section 3.1). Sinks belong to the softmax, and are not among the logits of keys. What a
            csr_array does not store is masked.

        Raises
        ------
        InputError, NonFiniteError
            As `matrix` does.

        Notes
        -----
        Takes as much memory as `matrix` does.
        """
        return self._computed(rows, out, sparse, num_threads, as_logits=True)

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
        """Return the k largest attention weights of every row, without the matrix.

        Parameters
        ----------
        k : int
            How many weights to keep in each row, 1 ... m. Ties go to the lower column.
        values : {"weights", "logits"}
            Whether to return the attention weights or the logits of the keys that are kept. Logits
            need no sum over the row, and take a fifth less time.
        renormalize : bool, default False
            Whether to scale the weights that are kept so that they sum to 1 in each row. By default
            they are the weights in the whole row.
        client : dask.distributed.Client, optional
            The workers that compute the logits, split by rows. The result is that of one machine
            with their CPU level, bit for bit. docs/cluster.md says more.
        progress : bool, default False
            Show a tqdm bar of the blocks of rows that a `client` has done (needs tqdm).
        num_threads : int, optional
            None uses every core; with a `client`, one thread for each block of rows. The result
            does not depend on it.

        Returns
        -------
        csr_array, shape (n, m)
            If Q and K are matrices. Rows in which the mask allows fewer than k keys have fewer
            entries.
        indices, values : ndarray, shape (..., n, k)
            If Q has leading axes: columns and their values, largest first. In rows with fewer than
            k keys the remaining indices are -1, with weight 0 or logit -inf.

        Raises
        ------
        InputError
            If k, `values` or another argument is not as described, if `renormalize` comes with
            logits, or if the workers of a client differ in CPU level or version.
        NonFiniteError
            For NaN or infinity in Q, K or bias.

        Notes
        -----
        Takes O((n + m) d + n k) memory, never n m.
        """
        k = as_count(k, "k", 1, self.m)
        as_choice(values, "values", ("weights", "logits"))
        if as_flag(renormalize, "renormalize") and values == "logits":
            raise InputError("renormalize scales weights; got values='logits'")
        threads = thread_count(num_threads)
        cluster = Cluster.of(client, num_threads, progress)
        size = math.prod(self.lead) * self.n * k * (24 if self.lead else 60)
        require_memory(size, f"the {k} largest weights of every row (k)")
        if cluster is None:
            columns, largest = topk_rows((self, k, values == "logits", threads), None)
        else:
            columns, largest = topk_blocks(cluster, self, k, values == "logits")
        if renormalize:
            total = largest.sum(axis=-1, keepdims=True)
            np.divide(largest, total, out=largest, where=total > 0)
        return (columns, largest) if self.lead else as_csr(columns, largest, self.m)

    @standard_arithmetic()
    def apply(
        self, V: ArrayLike, *, rows: Rows = None, num_threads: int | None = None
    ) -> NDArray[Any]:
        """Return attention times values, without the matrix.

        Parameters
        ----------
        V : array_like, shape (..., m, dv)
            Values: one row for each key, with the leading axes of K. Their dtype must not be wider
            than that of Q and K.
        rows, num_threads
            As in `matrix`.

        Returns
        -------
        ndarray, shape (..., rows, dv)
            In the dtype in which attention is computed.

        Raises
        ------
        InputError, NonFiniteError
            As `matrix` does.

        Notes
        -----
        Takes O(n m (d + dv)) time per head and O((n + m) (d + dv)) memory for one key head. Maxima
        and sums are updated while keys are visited (online softmax, Milakov and Gimelshein 2018).
        """
        v = arrays.as_stored_array(V, "V")
        logits, count = self._of_rows(rows)
        expected = self.stored[1].shape[:-1]
        if v.shape[:-1] != expected:
            raise InputError(
                f"V must have the leading axes and rows of K, {expected}; got {v.shape[:-1]}"
            )
        if np.promote_types(arrays.computed_in(v), self.dtype) != self.dtype:
            raise InputError(f"V must not be wider than Q and K, {self.dtype}; got {v.dtype}")
        result = self._output(count, v.shape[-1])
        stacks = arrays.as_stack(v), self._stack(result)
        if 0 not in self.lead:  # values that heads share have no readers then
            _core.attention_apply(logits, *stacks, thread_count(num_threads))
        return result

    @standard_arithmetic()
    def stats(
        self, *, shares: float | Sequence[float] = (0.9,), num_threads: int | None = None
    ) -> AttentionStats:
        """Return the entropy, the largest weight and the effective support of every row.

        Parameters
        ----------
        shares : float or sequence of float in (0, 1], default (0.9,)
            For each share, the fewest keys of a row that hold it are counted. Pass an empty
            sequence to save that work.
        num_threads
            As in `matrix`.

        Returns
        -------
        AttentionStats
            Rows in which the mask allows no key have zeros, and a `log_sum` of -inf.

        Raises
        ------
        InputError, NonFiniteError
            As `matrix` does.

        Notes
        -----
        Takes O((n + m) d) memory and a few rows of logits for each thread.
        """
        wanted = arrays.as_shares(shares, "shares")
        figures = _core.attention_stats(self.core, wanted, thread_count(num_threads))
        shape = (*self.lead, self.n)
        entropy, max_weight, log_sum = (x.reshape(shape) for x in figures[:3])
        return AttentionStats(
            entropy=entropy,
            max_weight=max_weight,
            effective_support=np.where(max_weight > 0, np.exp(entropy), 0.0),
            log_sum=log_sum,
            shares=tuple(float(s) for s in wanted),
            keys_for_share=figures[3].reshape((*shape, wanted.size)),
            key_mass=figures[4].reshape(shape),
        )

    def _of_rows(self, rows: Rows) -> tuple[_core.Logits, int]:
        """Return the core's logits of some rows, as users number them, and how many these are."""
        numbers = row_numbers(rows, self.n)
        return self.core.of_rows(numbers), self.n if numbers is None else numbers.size

    @standard_arithmetic()
    def _computed(
        self, rows: Rows, out: Any, sparse: bool, num_threads: int | None, *, as_logits: bool
    ) -> NDArray[Any] | sp.csr_array:
        """Return weights or logits of some rows, all or those at the entries of a sparse mask."""
        threads = thread_count(num_threads)
        logits, count = self._of_rows(rows)
        if not as_flag(sparse, "sparse"):
            result = self._output(count, self.m, out)
            if as_logits:
                _core.attention_logits(logits, self._stack(result), threads)
            else:
                _core.attention_matrix(logits, self._stack(result), out is None, threads)
            return result
        if self.lead or out is not None or not arrays.is_sparse(self.mask):
            what = "out" if out is not None else f"mask {mask_text(self.mask)}, Q {self.Q.shape}"
            raise InputError(
                f"sparse must be False unless one head has a sparse mask, without out; got {what}"
            )
        require_memory(self.mask.nnz * (self.dtype.itemsize + 4), f"{self.mask.nnz} entries")
        pattern = self.mask if rows is None else self.mask[row_numbers(rows, self.n)]
        values = _core.attention_entries(logits, as_logits, threads)[0]
        parts = values, pattern.indices.copy(), pattern.indptr.copy()
        return sp.csr_array(parts, shape=(count, self.m))

    def _stack(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a contiguous result with its leading axes flattened into one."""
        return array.reshape((math.prod(self.lead), *array.shape[len(self.lead) :]))

    def _output(self, rows: int, columns: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return an array for a result: `out` if it can hold it; None makes a new one."""
        shape = (*self.lead, rows, columns)
        if out is None:
            require_memory(math.prod(shape) * self.dtype.itemsize, f"a result of shape {shape}")
            return np.empty(shape, self.dtype)
        is_array = isinstance(out, np.ndarray)
        if not is_array or (out.shape, out.dtype) != (shape, self.dtype) or not out.flags.carray:
            came = f"shape {out.shape} of {out.dtype}, {out.flags}" if is_array else shown(out)
            raise InputError(
                f"out must be a writable, aligned C-contiguous array of shape {shape} and "
                f"{self.dtype}; got {came}"
            )
        q, k = self.stored
        for name, x in {"Q": q, "K": k, "bias": self.bias, "mask": self.mask}.items():
            fixed = x is None or isinstance(x, (str, tuple)) or arrays.is_sparse(x)
            if not fixed and np.may_share_memory(out, arrays.as_array(x, name)):
                raise InputError(f"out must not share memory with {name}")
        return out


class HasAttention(Protocol):
    """A result with a head, such as a `Fit` or a `ShrinkResult`."""

    @property
    def attention(self) -> Attention:
        """The attention of the head."""


def attention_in(head: Any) -> Attention | None:
    """Return an `Attention`, or that of a result such as a `Fit`; None for anything else."""
    attention = getattr(head, "attention", head)
    return attention if isinstance(attention, Attention) else None


# Heads as functions take them: an `Attention`, a result that has one, or queries beside keys.
HeadLike: TypeAlias = Attention | HasAttention | ArrayLike

# What is one head, not a stack, by its type: a result, or queries known to be a matrix.
OneHead: TypeAlias = HasAttention | np.ndarray[tuple[int, int], np.dtype[Any]]
