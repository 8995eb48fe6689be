"""headfit: how small a self-attention head can produce a given sparse attention pattern.

Give it a sparse row-stochastic matrix; it gives the head, the input that makes one fixed
module attend that way, and a certificate that holds for every entry.

>>> import headfit as hf
>>> A = hf.patterns.band(32, 1)
>>> hf.fit(A, 1024, leak=0.3, distortion=2.0).certificate.holds
True
"""

from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = files(__name__).joinpath("VERSION").read_text(encoding="utf-8").strip()

from headfit import bounds, errors, patterns
from headfit.analysis import HeadTable, describe
from headfit.attention import (
    Attention,
    AttentionStats,
    attention_apply,
    attention_logits,
    attention_matrix,
    attention_stats,
    attention_topk,
)
from headfit.certificate import Certificate, certify
from headfit.comparison import SoftComparison
from headfit.comparison import compare as compare_attention
from headfit.configuration import Config, config
from headfit.errors import (
    CertificateError,
    FileError,
    HeadfitError,
    InputError,
    MissingFileError,
    NonFiniteError,
    TargetError,
)
from headfit.exempt_columns import append_columns
from headfit.fit_result import Fit, Search, Trial, load_fit
from headfit.fitting import fit
from headfit.keys import KeyTable
from headfit.module import SelfAttention, random_rotation
from headfit.projection import project_attention as project
from headfit.safetensors_file import load_safetensors, save_safetensors
from headfit.shrink_result import ShrinkResult, TvCurve
from headfit.shrinking import shrink
from headfit.soft import svd_head
from headfit.soft_fit import SoftFit, fit_soft
from headfit.sparsifying import Sparsified, sparsify
from headfit.targets import Target, load_matrix
from headfit.witnesses import FaceWitness, FarkasWitness

if TYPE_CHECKING:
    from headfit import plot

__all__ = [
    "Attention",
    "AttentionStats",
    "Certificate",
    "CertificateError",
    "Config",
    "FaceWitness",
    "FarkasWitness",
    "FileError",
    "Fit",
    "HeadTable",
    "HeadfitError",
    "InputError",
    "KeyTable",
    "MissingFileError",
    "NonFiniteError",
    "Search",
    "SelfAttention",
    "ShrinkResult",
    "SoftComparison",
    "SoftFit",
    "Sparsified",
    "Target",
    "TargetError",
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
    "config",
    "describe",
    "errors",
    "fit",
    "fit_soft",
    "load_fit",
    "load_matrix",
    "load_safetensors",
    "patterns",
    "plot",
    "project",
    "random_rotation",
    "save_safetensors",
    "shrink",
    "sparsify",
    "svd_head",
]


def __getattr__(name: str) -> Any:
    # Matplotlib and PyTorch are imported only when somebody uses them.
    if name in ("plot", "torch"):
        return import_module(f"headfit.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "torch"] if find_spec("torch") else __all__)
