"""Calls as users write them. Nothing here runs: mypy reads it in strict mode.

`assert_type` states what an editor knows of a result. A line that a type checker must refuse has a
comment that expects exactly its error, which strict mode reports where there is none.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import headfit as hf


class Tensor:
    """An array of a library that speaks DLPack only."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        raise NotImplementedError


class Table:
    """An object that NumPy can turn into an array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        raise NotImplementedError


def arrays(Q: NDArray[np.float32], tensor: Tensor, table: Table, K: NDArray[np.float64]) -> None:
    assert_type(hf.attention_matrix(Q, K), NDArray[Any])
    assert_type(hf.attention_matrix(Q, K, sparse=True), sp.csr_array)
    hf.attention_matrix(tensor, tensor, mask="causal")
    hf.attention_matrix([[1.0, 2.0]], [[1, 2], [3, 4]])
    hf.attention_matrix(table, [Q, Q], mask=("window", (3, 0)), position=("rope", 500_000.0))
    hf.attention_matrix(Q, K, mask=np.tri(3, dtype=bool), key_mask=np.ones(3, bool))
    hf.attention_matrix("Q", K)  # type: ignore[arg-type]
    hf.attention_matrix(None, K)  # type: ignore[call-overload]
    hf.attention_matrix(Q, K, mask="casual")  # type: ignore[arg-type]
    hf.attention_matrix(Q, K, position="rotary")  # type: ignore[call-overload]
    hf.attention_matrix(Q, K, scael=1.0)  # type: ignore[call-overload]


def targets(A: sp.csr_array, dense: NDArray[np.float64]) -> None:
    assert_type(hf.fit(A, 4), hf.results.Fit)
    assert_type(hf.certify(Path("A.npz"), hf.fit("A.mtx")), hf.results.Certificate)
    assert_type(hf.Target(dense, mask="causal").matrix, sp.csr_array)
    assert_type(hf.plan(hf.patterns.previous_token, n=64), hf.results.Plan)
    hf.fit(hf.Target(A), rng=np.random.default_rng(0), exempt_columns=[0, 3])
    hf.fit(A, rng=np.random.SeedSequence(1), exempt_columns="auto")
    hf.fit(4)  # type: ignore[arg-type]
    hf.fit(A, rng="seed")  # type: ignore[arg-type]
    hf.fit(A, exempt_columns="all")  # type: ignore[arg-type]


def heads(Q: NDArray[Any], A: sp.csr_array) -> None:
    head, fit = hf.Attention(Q, Q, mask="causal"), hf.fit(A, 4)
    assert_type(hf.describe(head), hf.results.HeadTable)
    assert_type(hf.describe(fit), hf.results.HeadTable)
    assert_type(hf.compare(fit, head), hf.results.Comparison)
    assert_type(hf.compare(fit, head).tv_mean, float)
    assert_type(hf.compress([(Q, Q), (Q, Q)], dim=4), hf.results.Compressed)
    assert_type(hf.compress([head, head], dim=4).P_q, NDArray[Any])
    assert_type(hf.compress_keys({"a": [head]})["a"], hf.results.CompressedKeys)
    assert_type(hf.compress_values({"a": [(head, Q)]})["a"], hf.results.CompressedValues)
    assert_type(hf.compress_values({"a": [((Q, Q), Q)]}, bytes=4).error, float)
    found = hf.index([head, (Q, Q)], mass=0.99, dtype="int4", form="dot")
    assert_type(found, hf.results.Index | hf.results.Indexes)
    if isinstance(found, hf.results.Index):
        assert_type(found.select(Q, Q, mask="causal"), NDArray[np.int32])
        assert_type(found.certify(head, mass=0.9), hf.results.SelectionCertificate)
        assert_type(found.quality, hf.results.IndexQuality)
        assert_type(found.apply(head), hf.Attention)
    else:
        assert_type(found["a"].store(Q), tuple[NDArray[np.float32], NDArray[np.float32]])
        assert_type(found.judge({"a": [head]}, keys=80), hf.results.IndexQualities)
        assert_type(found.judge({"a": [head]})["a"].gain, float)
        assert_type(found.sharing({}).gain, NDArray[np.float64])
        assert_type(found.curve, hf.results.IndexCurve | None)
    kept = hf.certify_selection(head, Q_index=Q, K_index=Q, keys=64, columns=True)
    assert_type(kept.raise_if_failed().row_mass, NDArray[np.float64])
    assert_type(hf.certify_selection(Q, Q, Q, Q, mask="causal").holds, bool)
    assert_type(hf.certify_selection(Q, Q, Q, Q, form="sum").form, str)
    hf.certify_selection(Q, Q, Q, Q, kees=64)  # type: ignore[call-arg]
    hf.describe(hf.Tolerances())  # type: ignore[arg-type]


def one_or_several(
    fit: hf.results.Fit, stack: NDArray[Any], head: hf.Attention, A: sp.csr_array
) -> None:
    """A fit and a matrix are one head; of an array whose axes are not known, either may come."""
    assert_type(hf.shrink(fit), hf.results.ShrinkResult)
    assert_type(hf.sparsify(A, per_row=2), hf.results.Sparsified)
    assert_type(hf.shrink(np.ones((8, 4)), np.ones((8, 4)), tv=0.1).dim, int)
    for small in hf.shrink(stack, stack, tv=0.1):  # the results of a stack
        print(small.dim)
    print(hf.shrink(head, tv=0.1).curve.tv_mean)
    hf.shrink(fit, vt=0.1)  # type: ignore[call-overload]
    hf.sparsify(A, per_row="2")  # type: ignore[call-overload]


def tables(fit: hf.results.Fit, table: hf.results.HeadTable) -> None:
    assert_type(fit.to_dict(), dict[str, Any])
    assert_type(table.to_dict(), dict[str, Any])
    table.to_pandas().loc[0]
