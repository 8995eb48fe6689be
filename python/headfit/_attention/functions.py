"""The methods of `Attention` as plain functions of queries and keys, for a single call each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.logits import Function, LogitKeywords, Rows, names_logit_options
from headfit._attention.of_rows import AttentionStats
from headfit._base.types import ArrayLike

SHARED = """Parameters
----------
Q, K, scale, mask, key_lengths, bias, softcap, position, key_mask, sinks
    As in `Attention`, which describes each of them.
"""


def function_of(method: Callable[..., Any], *without: str) -> Callable[[Function], Function]:
    """Give a function what the docstring of a method says, and a signature with all options."""

    def decorate(function: Function) -> Function:
        text, title, example = (inspect.getdoc(function) or "").partition("Examples\n")
        of_method = (inspect.getdoc(method) or "").partition("Parameters\n----------\n")[2]
        shared = SHARED
        for name in without:
            shared = shared.replace(f", {name}", "")
        whole = f"{text}{shared}{of_method}\n\n{title}{example}"
        function.__doc__ = whole.replace("`matrix`", "`attention_matrix`")
        return names_logit_options(*without)(function)

    return decorate


@overload
def attention_matrix(
    Q: ArrayLike, K: ArrayLike, *, rows: Rows = ..., out: NDArray[Any] | None = ...,
    sparse: Literal[False] = ..., num_threads: int | None = ..., **options: Unpack[LogitKeywords],
) -> NDArray[Any]: ...  # fmt: skip
@overload
def attention_matrix(
    Q: ArrayLike, K: ArrayLike, *, rows: Rows = ..., sparse: Literal[True],
    num_threads: int | None = ..., **options: Unpack[LogitKeywords],
) -> sp.csr_array: ...  # fmt: skip
@function_of(Attention.matrix)
def attention_matrix(
    Q: ArrayLike,
    K: ArrayLike,
    *,
    rows: Rows = None,
    out: NDArray[Any] | None = None,
    sparse: bool = False,
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> Any:
    """Return the attention matrix softmax(scale * Q @ K.T), or some of its rows.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q = np.array([[0.0], [1.0]])
    >>> hf.attention_matrix(Q, np.array([[0.0], [np.log(3)]]), scale=1.0)
    array([[0.5 , 0.5 ],
           [0.25, 0.75]])
    """
    return Attention(Q, K, **options)._computed(rows, out, sparse, num_threads, as_logits=False)


@overload
def attention_logits(
    Q: ArrayLike, K: ArrayLike, *, rows: Rows = ..., out: NDArray[Any] | None = ...,
    sparse: Literal[False] = ..., num_threads: int | None = ..., **options: Unpack[LogitKeywords],
) -> NDArray[Any]: ...  # fmt: skip
@overload
def attention_logits(
    Q: ArrayLike, K: ArrayLike, *, rows: Rows = ..., sparse: Literal[True],
    num_threads: int | None = ..., **options: Unpack[LogitKeywords],
) -> sp.csr_array: ...  # fmt: skip
@function_of(Attention.logits, "sinks")
def attention_logits(
    Q: ArrayLike,
    K: ArrayLike,
    *,
    rows: Rows = None,
    out: NDArray[Any] | None = None,
    sparse: bool = False,
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> Any:
    """Return the logits that the softmax is taken of, -inf where they are masked.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> hf.attention_logits(np.ones((2, 4)), np.ones((2, 4)), mask="causal")
    array([[  2., -inf],
           [  2.,   2.]])
    """
    return Attention(Q, K, **options)._computed(rows, out, sparse, num_threads, as_logits=True)


@function_of(Attention.topk)
def attention_topk(
    Q: ArrayLike,
    K: ArrayLike,
    k: int,
    *,
    values: Literal["weights", "logits"] = "weights",
    renormalize: bool = False,
    client: Any = None,
    progress: bool = False,
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> sp.csr_array | tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the k largest attention weights of every row, without the matrix.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> X = np.eye(3) * 4
    >>> hf.attention_topk(X, X, 1, scale=1.0).indices
    array([0, 1, 2], dtype=int32)
    """
    more: Any = {"client": client, "progress": progress, "num_threads": num_threads}
    return Attention(Q, K, **options).topk(k, values=values, renormalize=renormalize, **more)


@function_of(Attention.apply)
def attention_apply(
    Q: ArrayLike,
    K: ArrayLike,
    V: ArrayLike,
    *,
    rows: Rows = None,
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> NDArray[Any]:
    """Return attention times values, without the matrix.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> Q = K = np.zeros((2, 1))
    >>> hf.attention_apply(Q, K, np.array([[1.0], [3.0]]))
    array([[2.],
           [2.]])
    """
    return Attention(Q, K, **options).apply(V, rows=rows, num_threads=num_threads)


@function_of(Attention.stats)
def attention_stats(
    Q: ArrayLike,
    K: ArrayLike,
    *,
    shares: float | Sequence[float] = (0.9,),
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> AttentionStats:
    """Return the entropy, the largest weight and the effective support of every row.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> stats = hf.attention_stats(np.zeros((1, 2)), np.zeros((4, 2)), shares=(0.5, 0.9))
    >>> stats.effective_support.round(6), stats.keys_for_share
    (array([4.]), array([[2, 4]]))
    """
    return Attention(Q, K, **options).stats(shares=shares, num_threads=num_threads)
