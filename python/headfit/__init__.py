"""headfit: how small a self-attention head can produce a given sparse attention pattern.

Give it a sparse row-stochastic matrix; it gives the head, the input that makes one fixed
module attend that way, and a certificate that holds for every entry.

>>> import headfit as hf
>>> A = hf.patterns.band(32, 1)
>>> hf.fit(A, 1024, leak=0.3, distortion=2.0).certificate.holds
True
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from headfit import bounds, errors, patterns, plot
from headfit._attention.attention import Attention
from headfit._attention.describe import HeadTable, describe
from headfit._attention.functions import (
    attention_apply,
    attention_logits,
    attention_matrix,
    attention_stats,
    attention_topk,
)
from headfit._attention.module import SelfAttention
from headfit._attention.random_rotation import random_rotation
from headfit._attention.sparsify import Sparsified, sparsify
from headfit._attention.stats import AttentionStats
from headfit._attention.tally_table import TallyTable
from headfit._base.configuration import Config, config
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances
from headfit._base.version import VERSION as __version__
from headfit._compress.budget import TradeOff
from headfit._compress.compress import compress
from headfit._compress.compress_heads import CompressedHeads, compress_heads
from headfit._compress.result import Compressed, CompressedCurve
from headfit._filter.rope import rope_filter, rope_windows
from headfit._filter.rope_result import RopeFilter
from headfit._fit.fit import fit
from headfit._fit.head import Head
from headfit._fit.key_table import KeyTable
from headfit._fit.learned import Learned
from headfit._fit.max_margin import MaxMargin
from headfit._fit.method import Method
from headfit._fit.mixed import Mixed
from headfit._fit.problem import Problem
from headfit._fit.projection import Projection
from headfit._fit.projection import project_attention as project
from headfit._fit.result import Fit, Search, Trial
from headfit._fit.storage import load
from headfit._fit.toeplitz import Toeplitz
from headfit._plan.attempt import PlanAttempt
from headfit._plan.plan import plan
from headfit._plan.result import Plan
from headfit._plan.trend import PlanTrend
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit._shrink.shrink import shrink
from headfit._shrink.shrink_to_pattern import shrink_to_pattern
from headfit._soft.compare import SoftComparison
from headfit._soft.compare import compare as compare_attention
from headfit._soft.descent import svd_head
from headfit._soft.fit_soft import SoftFit, fit_soft
from headfit._sweep.grid import grid
from headfit._sweep.result import Sweep, load_sweep
from headfit._sweep.sweep import sweep
from headfit._target.append_columns import append_columns
from headfit._target.certificate import Certificate
from headfit._target.certify import certify
from headfit._target.target import Target, load_matrix
from headfit._target.witnesses import FaceWitness, FarkasWitness
from headfit.errors import (
    CaptureError,
    CertificateError,
    FileError,
    HeadfitError,
    InputError,
    MissingFileError,
    NonFiniteError,
    TargetError,
    TooLargeError,
)

__all__ = [
    "Attention",
    "AttentionStats",
    "CaptureError",
    "Certificate",
    "CertificateError",
    "Compressed",
    "CompressedCurve",
    "CompressedHeads",
    "Config",
    "FaceWitness",
    "FarkasWitness",
    "FileError",
    "Fit",
    "Head",
    "HeadTable",
    "HeadfitError",
    "InputError",
    "Kernel",
    "KeyTable",
    "Learned",
    "MaxMargin",
    "Method",
    "MissingFileError",
    "Mixed",
    "NonFiniteError",
    "Plan",
    "PlanAttempt",
    "PlanTrend",
    "Problem",
    "Projection",
    "RopeFilter",
    "Search",
    "SelfAttention",
    "ShrinkResult",
    "SoftComparison",
    "SoftFit",
    "Sparsified",
    "Sweep",
    "TallyTable",
    "Target",
    "TargetError",
    "Toeplitz",
    "Tolerances",
    "TooLargeError",
    "TradeOff",
    "Trial",
    "TvCurve",
    "__version__",
    "append_columns",
    "attention_apply",
    "attention_logits",
    "attention_matrix",
    "attention_stats",
    "attention_topk",
    "bounds",
    "certify",
    "compare_attention",
    "compress",
    "compress_heads",
    "config",
    "describe",
    "errors",
    "fit",
    "fit_soft",
    "grid",
    "load",
    "load_matrix",
    "load_sweep",
    "patterns",
    "plan",
    "plot",
    "project",
    "random_rotation",
    "rope_filter",
    "rope_windows",
    "shrink",
    "shrink_to_pattern",
    "sparsify",
    "svd_head",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "torch":  # PyTorch is imported only when it is first used
        return import_module("headfit.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "torch"] if find_spec("torch") else __all__)
