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
from typing import TYPE_CHECKING, Any

from headfit import errors, patterns, plot, rope
from headfit._attention.attention import Attention
from headfit._attention.describe import describe
from headfit._attention.functions import (
    attention_apply,
    attention_logits,
    attention_matrix,
    attention_stats,
    attention_topk,
)
from headfit._attention.module import SelfAttention
from headfit._attention.sparsify import sparsify
from headfit._base.configuration import show_config
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances
from headfit._base.version import VERSION as __version__
from headfit._compress.compress import compress
from headfit._fit.fit import fit
from headfit._fit.storage import load
from headfit._plan.plan import plan
from headfit._shrink.compare import compare
from headfit._shrink.shrink import shrink
from headfit._target.certify import certify
from headfit._target.target import Target
from headfit.errors import HeadfitError

if TYPE_CHECKING:
    from headfit import bounds, methods, results, sweep

__all__ = [
    "Attention",
    "HeadfitError",
    "Kernel",
    "SelfAttention",
    "Target",
    "Tolerances",
    "__version__",
    "attention_apply",
    "attention_logits",
    "attention_matrix",
    "attention_stats",
    "attention_topk",
    "bounds",
    "certify",
    "compare",
    "compress",
    "describe",
    "errors",
    "fit",
    "load",
    "methods",
    "patterns",
    "plan",
    "plot",
    "results",
    "rope",
    "show_config",
    "shrink",
    "sparsify",
    "sweep",
]

# Imported when they are first used; PyTorch takes long.
_LAZY = ("bounds", "methods", "results", "sweep", "torch")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f"headfit.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "torch"] if find_spec("torch") else __all__)
