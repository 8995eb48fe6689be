"""The C++ core of headfit. Use the functions of the package headfit instead."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, type_check_only

import numpy as np
from numpy.typing import NDArray

# float32 or float64, the same for all arrays of a call. Arrays that are only read (Q, K, V, bias,
# a matrix) may also be in 16 bits, or in float32 beside others in float64.
_Floats: TypeAlias = NDArray[Any]
_Float64: TypeAlias = NDArray[np.float64]
_Float32: TypeAlias = NDArray[np.float32]
_Offsets: TypeAlias = NDArray[np.int64]
_Columns: TypeAlias = NDArray[np.int32]
_Bools: TypeAlias = NDArray[np.bool_]

# Facts about this build, under the keys "level", "compiler", "flags" and "eigen".
build: dict[str, str]

# Rows that are split at multiples of this number have the same results as all rows together.
row_granule: int
SUM_TOLERANCE: float

@type_check_only
class _Pybind11Type(type): ...

# A context manager: within it, this thread rounds to nearest and keeps subnormal numbers.
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
        keys: _Bools | None = None,
    ) -> None: ...

def masks_agree(a: Mask, b: Mask, heads: int, rows: int, cols: int) -> bool: ...
def allowed_columns(mask: Mask, row: int, n: int) -> _Bools: ...

class LogitOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        group: int = 1,
        scale: float = 1.0,
        softcap: float = 0.0,
        mask: Mask | None = None,
        bias: _Floats | None = None,
        rotary: _Floats | None = None,
        rotary_halves: bool = False,
        sinks: NDArray[np.float64] | None = None,
    ) -> None: ...

# Checked when it is made. Some of its rows, by `of_rows`, share all else.
class Logits(metaclass=_Pybind11Type):
    def __init__(self, q: _Floats, k: _Floats, options: LogitOptions = ...) -> None: ...
    def of_rows(self, rows: NDArray[np.int64] | None) -> Logits: ...

# How far a head may be from its target; the defaults are those of the package.
class Tolerances(metaclass=_Pybind11Type):
    def __init__(
        self, leak: float = 0.05, distortion: float = 0.1, max_logit: float = ...
    ) -> None: ...
    @property
    def leak(self) -> float: ...
    @property
    def distortion(self) -> float: ...
    @property
    def max_logit(self) -> float: ...

# The arrays of a target, which it keeps, and its mask. `validate_target` checks it; every other
# function checks again what it reads, since arrays may be changed.
class Target(metaclass=_Pybind11Type):
    def __init__(
        self, offsets: _Offsets, columns: _Columns, weights: _Float64, mask: Mask | None = None
    ) -> None: ...
    @property
    def offsets(self) -> _Offsets: ...
    @property
    def columns(self) -> _Columns: ...
    @property
    def weights(self) -> _Float64: ...
    @property
    def mask(self) -> Mask: ...

def attention_logits(logits: Logits, out: _Floats, threads: int) -> None: ...
def attention_matrix(logits: Logits, out: _Floats, is_fresh: bool, threads: int) -> None: ...
def attention_entries(logits: Logits, as_logits: bool, threads: int) -> _Floats: ...
def attention_topk(
    logits: Logits, columns: _Offsets, values: _Floats, as_logits: bool, threads: int
) -> None: ...
def attention_apply(logits: Logits, v: _Floats, out: _Floats, threads: int) -> None: ...
def attention_stats(
    logits: Logits, shares: _Float64, threads: int
) -> tuple[_Float64, _Float64, _Float64, _Offsets, _Float64]: ...
def random_regular(n: int, k: int, seed: int) -> _Columns: ...

class TraceSearch(metaclass=_Pybind11Type):
    def __init__(self, target: Target, of_columns: bool, pairs: int) -> None: ...
    @property
    def is_complete(self) -> bool: ...
    def shattered(self, size: int) -> list[int]: ...
    def near(self, set: int) -> list[int]: ...
    def classes_with(self, sets: list[int], more: list[int], free: bool) -> list[int]: ...
    def points(self, sets: list[int], free: bool) -> list[int]: ...

# Searches for lower bounds in tables of ones, given row by row.
def edge_shares(offsets: _Offsets, columns: _Columns, cols: int) -> _Columns: ...
def columns_with_edges(
    offsets: _Offsets, columns: _Columns, cols: int, denominators: _Columns, price: float
) -> _Columns: ...
def order_conflict(
    offsets: _Offsets, columns: _Columns, cols: int
) -> tuple[list[int], list[int]] | None: ...
def columns_apart(target: Target, first: int, stop: int) -> list[int]: ...
def independent_nodes(offsets: _Offsets, columns: _Columns) -> _Columns: ...
def covering_nodes(offsets: _Offsets, columns: _Columns) -> _Columns: ...

# (most nonzeros in a row, most nonzeros in a column, largest ratio within a row)
def validate_target(
    target: Target, sum_tolerance: float, threads: int
) -> tuple[int, int, float]: ...

# The size of the blocks of tokens that a target consists of; 0 if there are none.
def block_size(target: Target, is_causal: bool, threads: int) -> int: ...
def limit_calls(seconds: float | None) -> None: ...
def fill_sketch(g: _Floats, kind: str, seed: int, threads: int) -> None: ...

class ProjectionOptions(metaclass=_Pybind11Type):
    def __init__(
        self, *, sketch: str = "rademacher", seed: int = 0, scale: float = 1.0
    ) -> None: ...

def target_logits(target: Target, tolerances: Tolerances) -> _Float64: ...
def project_identity(
    target: Target,
    tolerances: Tolerances,
    options: ProjectionOptions,
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

class MaxMarginOptions(metaclass=_Pybind11Type):
    def __init__(self, *, equality: bool = False, max_norm: float = ...) -> None: ...

# (queries, status of each row, norm of each row, witnesses, scans), of `rows` where these are given
def max_margin_queries(
    target: Target,
    keys: _Float64,
    tolerances: Tolerances,
    options: MaxMarginOptions,
    threads: int,
    rows: NDArray[np.int64] | None = None,
) -> tuple[_Float64, list[_RowStatus], _Float64, list[_Witness], int]: ...
def face_reports(
    target: Target, keys: _Float64, rows: NDArray[np.int64], threads: int
) -> list[_FaceReport]: ...

# The number format that a head is stored in: it holds Q / query_unit and K.
class Storage(metaclass=_Pybind11Type):
    def __init__(self, format: str, query_unit: float = 1.0, max_norm: float = 0.0) -> None: ...

class LearnedOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        dim: int,
        seed: int = 0,
        first_hold: int = 300,
        max_steps: int = 60000,
        most_reheats: int = 6,
        time_limit: float = ...,
        max_norm: float = 0.0,
        storage: Storage | None = None,
        start: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        warm_steps: int = 500,
        looser: Sequence[Tolerances] = ...,
        stage_steps: int = ...,
        polished_share: float = 0.0,
        many_rows_from: int = 65536,
        scanner: Callable[[tuple[float, float, float], dict[str, Any]], tuple[NDArray[Any], ...]]
        | None = None,
        progress: Callable[[int, int, float], bool] | None = None,
    ) -> None: ...

# A scan that several machines share: `scanner` gets the numbers of Tolerances and these arguments,
# and returns of all rows what scan_rows returns of some: candidate lists of list_cap places each,
# how many of them are in use, hits, deficits, and bounds of the rounding.
class ScanRequest(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        hits: _Offsets,
        seed: int,
        number: int,
        column_step: int,
        list_cap: int,
        reserve: float,
        columns: _Columns,
        listed: _Offsets,
    ) -> None: ...

def scan_rows(
    target: Target,
    tolerances: Tolerances,
    request: ScanRequest,
    first: int,
    end: int,
    threads: int,
) -> tuple[_Columns, _Offsets, _Offsets, NDArray[np.float32], NDArray[np.float32]]: ...
def memory_of_fit(n: float, k: float, dim: float) -> float: ...
def fit_learned(
    target: Target, tolerances: Tolerances, options: LearnedOptions, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], dict[str, Any]]: ...
def round_queries(
    target: Target,
    q: NDArray[np.float32],
    k: NDArray[np.float32],
    tolerances: Tolerances,
    storage: Storage,
    threads: int,
) -> NDArray[np.float32]: ...

class NarrowOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        stored: Tolerances,
        rounded: Tolerances,
        less: Sequence[Tolerances],
        more: Sequence[Tolerances],
        storage: Storage,
        max_norm: float = 0.0,
    ) -> None: ...

# (q, failed rows, whether every row has a query for the keys)
def narrow_queries(
    target: Target,
    q: NDArray[np.float32],
    k: NDArray[np.float32],
    options: NarrowOptions,
    threads: int,
) -> tuple[NDArray[np.float32], _Offsets, bool]: ...

class SoftTarget(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        attention: Logits | None = None,
        matrix: _Floats | None = None,
        mask: Mask | None = None,
    ) -> None: ...

def check_soft_target(target: SoftTarget, threads: int) -> None: ...

class DescentLimits(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        max_steps: int = 1000,
        tolerance: float = 1e-3,
        enough: float = 1e-6,
        time_limit: float = ...,
        progress: Callable[[int, float], bool] | None = None,
        window: int = 10,
    ) -> None: ...

def fit_soft(
    target: SoftTarget, mask: Mask, q: _Floats, k: _Floats, limits: DescentLimits, threads: int
) -> tuple[_Floats, _Floats, _Float64, dict[str, Any]]: ...
def soft_loss(
    target: SoftTarget, mask: Mask, q: _Floats, k: _Floats, threads: int
) -> tuple[float, _Floats, _Floats]: ...
def compare_soft(
    target: SoftTarget, attention: Logits, threads: int
) -> tuple[_Float64, _Float64, _Bools]: ...

# How far maps leave the attention of one head in some passages. Maps are P_q of each query head,
# and below them P_k.
class CompressLoss(metaclass=_Pybind11Type):
    def __init__(self, passages: Sequence[Logits], threads: int) -> None: ...
    def value(self, maps: _Float64, threads: int) -> float: ...
    def evaluate(self, maps: _Float64, threads: int) -> tuple[float, _Float64]: ...
    def moments(self) -> tuple[list[_Float64], _Float64]: ...
    def key_moments(self) -> tuple[_Float64, _Float64]: ...
    def fit(
        self,
        judge: CompressLoss | None,
        start: _Float64,
        limits: DescentLimits,
        threads: int,
    ) -> tuple[_Float64, _Float64, _Float64, dict[str, Any]]: ...

# Three matrices: encode, decode and mean.
_LatentMaps: TypeAlias = tuple[_Float32, _Float32, _Float32]

class LayerPassages(metaclass=_Pybind11Type):
    def __init__(
        self,
        passages: Sequence[Logits],
        table: _Float32 | None,
        halves: bool,
        spectrum: tuple[_Float64, _Float64, _Float64],
        choosing: int,
    ) -> None: ...

class LatentOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        bits: Sequence[int],
        latents_per_step: int,
        rank: int,
        total_bits: int,
        steps: int,
        rows: int,
        seed: int,
    ) -> None: ...

def fit_layers(
    layers: Sequence[LayerPassages],
    options: Sequence[LatentOptions],
    done: Callable[[int, float], Any] | None,
    threads: int,
) -> list[tuple[list[int], _LatentMaps, float, float, float]]: ...
def principal_latents(
    spectrum: tuple[_Float64, _Float64, _Float64], options: LatentOptions
) -> tuple[list[int], _LatentMaps]: ...

class TokenStore(metaclass=_Pybind11Type):
    def __init__(
        self,
        maps: tuple[_Float32, _Float32, _Float32],
        bits: Sequence[int],
        latents_per_step: int,
        heads: int,
    ) -> None: ...
    @property
    def token_bytes(self) -> int: ...
    def store(
        self, numbers: _Float32, table: _Float32 | None, halves: bool, threads: int
    ) -> NDArray[np.uint8]: ...
    def read(
        self, stored: NDArray[np.uint8], table: _Float32 | None, halves: bool, threads: int
    ) -> _Float32: ...

class IndexPassages(metaclass=_Pybind11Type):
    def __init__(
        self,
        passages: Sequence[Logits],
        table: _Float32 | None,
        halves: bool,
        reach: int,
        choosing: int,
        name: str,
    ) -> None: ...

class IndexOptions(metaclass=_Pybind11Type):
    def __init__(self, form: str, dtype: str, first: int, window: int) -> None: ...

class IndexDescent(metaclass=_Pybind11Type):
    def __init__(self, steps: int, rows: int, seed: int) -> None: ...

def fit_indexes(
    groups: Sequence[IndexPassages],
    starts: Sequence[_Float32],
    options: IndexOptions,
    descent: IndexDescent,
    done: Callable[[int, float], Any] | None,
    threads: int,
) -> list[tuple[_Float32, float, float, float]]: ...

# The members of IndexJudgement, in their order.
_Judgement: TypeAlias = tuple[_Float64, _Float64, _Float64, _Float64, _Float64, _Float64, _Float64]

def judge_index(
    passage: Logits, maps: _Float32, options: IndexOptions, keys: int, threads: int
) -> _Judgement: ...
def judge_logits(
    passage: Logits, scored: Logits, options: IndexOptions, keys: int, threads: int
) -> _Judgement: ...
def gained_mass(
    passage: Logits,
    maps: _Float32,
    options: IndexOptions,
    keys: int,
    selections: NDArray[np.int32],
    threads: int,
) -> _Float64: ...
def select_keys(
    passage: Logits, maps: _Float32, options: IndexOptions, keys: int, threads: int
) -> NDArray[np.int32]: ...
def score_keys(
    passage: Logits, maps: _Float32, options: IndexOptions, threads: int
) -> _Float32: ...
def index_numbers(
    passage: Logits, maps: _Float32, options: IndexOptions, threads: int
) -> tuple[_Float32, _Float32]: ...
def map_index_keys(keys: _Float32, maps: _Float32, dtype: str) -> tuple[_Float32, _Float32]: ...
def compare_heads(
    originals: Sequence[Logits], smaller: Sequence[Logits], threads: int
) -> tuple[_Float64, _Float64, _Bools]: ...

class Kernel(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        float32: bool = False,
        product: str | None = None,
        logits: str | None = None,
        bias: str | None = None,
        weights: str | None = None,
        fused: bool = False,
        sum_bits: int = ...,
    ) -> None: ...

class CertifyOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        q_error: _Float64 | None = None,
        k_error: _Float64 | None = None,
        kernel: Kernel = ...,
        mass: bool = False,
        scans: Literal["both", "first", "in double"] = "both",
    ) -> None: ...

def certify_logits(
    target: Target,
    logits: Logits,
    tolerances: Tolerances,
    options: CertifyOptions,
    threads: int,
) -> dict[str, Any]: ...
def certify_matrix(
    target: Target, matrix: _Floats, tolerances: Tolerances, threads: int
) -> dict[str, Any]: ...
def certify_sparse_matrix(
    target: Target, matrix: CompressedRows, tolerances: Tolerances, threads: int
) -> dict[str, Any]: ...

class SelectionOptions(metaclass=_Pybind11Type):
    def __init__(
        self,
        *,
        keys: int,
        first: int,
        window: int,
        mass: float,
        form: str,
        kernel: Kernel,
    ) -> None: ...

def certify_selection(
    logits: Logits,
    q_index: _Floats,
    k_index: _Floats,
    options: SelectionOptions,
    columns: bool,
    threads: int,
) -> dict[str, Any]: ...

# The least and the largest number, in a format, that a kernel may make of each operand.
def operand_bounds(
    x: _Floats, format: str, factor: float, in_float32: bool, product_error: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
def product_errors(x: _Floats, w: _Floats, product: _Floats) -> _Float64: ...

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

class CompressedRows(metaclass=_Pybind11Type):
    def __init__(
        self, offsets: _Offsets, columns: _Columns, weights: _Float64, cols: int
    ) -> None: ...

def sparsify_compressed(
    matrix: CompressedRows, mask: Mask, options: SparsifyOptions, threads: int
) -> _SparseRows: ...

# (offsets, columns, squared distances)
def nearest_points(
    points: _Float64, per_row: int, per_column: int, threads: int
) -> tuple[_Offsets, _Columns, _Float64]: ...
def head_profile(
    logits: Logits,
    per_row: int,
    share: float,
    shares: _Float64,
    tokens: _Offsets | None,
    threads: int,
) -> dict[str, Any]: ...
def squared_mass(logits: Logits, threads: int) -> _Float64: ...
def triangular_factors(
    logits: Logits, first: int, count: int, threads: int
) -> tuple[_Float64, _Float64, _Float64]: ...
