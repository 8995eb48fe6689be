"""The C++ core of headfit. Use the functions of the package headfit instead."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, type_check_only

import numpy as np
from numpy.typing import NDArray

# float32 or float64, one of them in a call. Q, K, V, bias and a matrix that is read may be in 16
# bits, or in float32 beside float64.
_Floats: TypeAlias = NDArray[Any]
_Float64: TypeAlias = NDArray[np.float64]
_Offsets: TypeAlias = NDArray[np.int64]
_Columns: TypeAlias = NDArray[np.int32]
_Bools: TypeAlias = NDArray[np.bool_]

# How this build was made: "level", "compiler", "flags" and "eigen".
build: dict[str, str]

@type_check_only
class _Pybind11Type(type): ...

# A context in which this thread rounds to nearest and keeps subnormal numbers.
class StandardArithmetic(metaclass=_Pybind11Type):
    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...

class Mask(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        left: int | None = None,
        right: int | None = None,
        dense: _Bools | None = None,
        sparse_offsets: _Offsets | None = None,
        sparse_columns: _Columns | None = None,
        key_lengths: NDArray[np.int64] | None = None,
    ) -> None: ...

class Logits(metaclass=_Pybind11Type):
    def __init__(
        self,
        q: _Floats,
        k: _Floats,
        group: int,
        scale: float,
        softcap: float,
        mask: Mask,
        bias: _Floats | None = None,
        rows: NDArray[np.int64] | None = None,
        rotary: _Floats | None = None,
        rotary_halves: bool = False,
    ) -> None: ...

def attention_logits(logits: Logits, out: _Floats, threads: int) -> None: ...
def attention_matrix(logits: Logits, out: _Floats, is_fresh: bool, threads: int) -> None: ...
def attention_topk(
    logits: Logits, columns: _Offsets, values: _Floats, as_logits: bool, threads: int
) -> None: ...
def attention_apply(logits: Logits, v: _Floats, out: _Floats, threads: int) -> None: ...
def attention_stats(
    logits: Logits, shares: _Float64, threads: int
) -> tuple[_Float64, _Float64, _Float64, _Offsets]: ...
def random_regular(n: int, k: int, seed: int) -> _Columns: ...
def validate_target(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    mask: Mask,
    sum_tolerance: float,
    threads: int,
) -> tuple[int, int, float]: ...
def limit_calls(seconds: float | None) -> None: ...
def fill_sketch(g: _Floats, kind: str, seed: int, threads: int) -> None: ...
def target_logits(
    offsets: _Offsets, columns: _Columns, weights: _Float64, leak: float, distortion: float
) -> _Float64: ...
def project_identity(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    leak: float,
    distortion: float,
    kind: str,
    seed: int,
    scale: float,
    q: _Floats,
    k: _Floats,
    threads: int,
) -> None: ...

_Kind: TypeAlias = Literal["ratio upper", "ratio lower", "margin", "outside", "ratio equal"]
_RowStatus: TypeAlias = Literal["optimal", "infeasible", "norm limit", "iteration limit", "stalled"]
_Verdict: TypeAlias = Literal["face", "not a face", "undecided"]
# (row, [(kind, column, multiplier), ...], residual, gap, norm bound)
_Witness: TypeAlias = tuple[int, list[tuple[_Kind, int, float]], float, float, float]
# (verdict, margin, inside, with others, residual, weight of others, norm bound)
_Combination: TypeAlias = list[tuple[int, float]]
_FaceReport: TypeAlias = tuple[_Verdict, float, _Combination, _Combination, float, float, float]

def max_margin_queries(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    keys: _Float64,
    mask: Mask,
    leak: float,
    distortion: float,
    equality: bool,
    max_norm: float,
    threads: int,
) -> tuple[_Float64, list[_RowStatus], _Float64, list[_Witness], int]: ...
def face_reports(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    keys: _Float64,
    mask: Mask,
    rows: NDArray[np.int64],
    threads: int,
) -> list[_FaceReport]: ...
def fit_learned(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    mask: Mask,
    dim: int,
    leak: float,
    distortion: float,
    seed: int,
    first_hold: int,
    max_steps: int,
    time_limit: float,
    max_norm: float,
    max_logit: float,
    format: str,
    query_unit: float,
    init_q: NDArray[np.float32] | None,
    init_k: NDArray[np.float32] | None,
    progress: Callable[[int, int, float], bool] | None,
    threads: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32], dict[str, Any]]: ...
def round_queries(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    mask: Mask,
    q: NDArray[np.float32],
    k: NDArray[np.float32],
    leak: float,
    distortion: float,
    max_logit: float,
    format: str,
    query_unit: float,
    threads: int,
) -> NDArray[np.float32]: ...
def feasibility_loss(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    mask: Mask,
    q: NDArray[np.float32],
    k: NDArray[np.float32],
    leak: float,
    distortion: float,
    max_logit: float,
    threads: int,
) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]: ...

class SoftTarget(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        attention: Logits | None = None,
        matrix: _Floats | None = None,
        mask: Mask | None = None,
    ) -> None: ...

def check_soft_target(target: SoftTarget, threads: int) -> None: ...
def fit_soft(
    target: SoftTarget,
    mask: Mask,
    q: _Floats,
    k: _Floats,
    max_steps: int,
    tolerance: float,
    enough: float,
    time_limit: float,
    progress: Callable[[int, float], bool] | None,
    threads: int,
) -> tuple[_Floats, _Floats, _Float64, dict[str, Any]]: ...
def soft_loss(
    target: SoftTarget, mask: Mask, q: _Floats, k: _Floats, threads: int
) -> tuple[float, _Floats, _Floats]: ...
def compare_soft(
    target: SoftTarget, attention: Logits, threads: int
) -> tuple[_Float64, _Float64, _Bools]: ...
def certify_logits(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    logits: Logits,
    q_error: _Float64,
    k_error: _Float64,
    float32_accumulation: bool,
    logit_format: str,
    leak: float,
    distortion: float,
    max_logit: float,
    mass: bool,
    threads: int,
) -> dict[str, Any]: ...

class SparsifyOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        per_row: int,
        mass: float,
        per_column: int,
        exempt: _Columns,
        exempt_sinks: bool,
        keep_max: bool,
    ) -> None: ...

# (offsets, columns, weights, dropped, exempt)
_SparseRows: TypeAlias = tuple[_Offsets, _Columns, _Float64, _Float64, _Columns]

def sparsify_logits(logits: Logits, options: SparsifyOptions, threads: int) -> _SparseRows: ...
def sparsify_matrix(
    matrix: _Floats, mask: Mask, options: SparsifyOptions, threads: int
) -> _SparseRows: ...
def sparsify_compressed(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    cols: int,
    mask: Mask,
    options: SparsifyOptions,
    threads: int,
) -> _SparseRows: ...
def head_profile(
    logits: Logits, per_row: int, share: float, previous: _Offsets | None, threads: int
) -> dict[str, Any]: ...
def triangular_factors(logits: Logits, threads: int) -> tuple[_Float64, _Float64, _Float64]: ...
def product_errors(x: _Floats, w: _Floats, product: _Floats) -> _Float64: ...
def certify_matrix(
    offsets: _Offsets,
    columns: _Columns,
    weights: _Float64,
    matrix: _Floats,
    mask: Mask,
    leak: float,
    distortion: float,
    threads: int,
) -> dict[str, Any]: ...
