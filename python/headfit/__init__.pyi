"""The public surface: each name and the module that it stands in.

`__init__.py` reads this file and imports a module when one of its names is first used.
"""

from headfit import bounds, errors, methods, patterns, plot, results, rope, sweep, torch
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
from headfit._base.tolerances import Kernel, Tolerances
from headfit._build import VERSION as __version__
from headfit._cache.compress_keys import compress_keys
from headfit._cache.compress_values import compress_values
from headfit._compress.compress import compress
from headfit._compress.spend import spend
from headfit._configuration import show_config
from headfit._fit.fit import fit
from headfit._fit.storage import load
from headfit._index.index import index
from headfit._plan.plan import plan
from headfit._selection.certify_selection import certify_selection
from headfit._shrink.result import compare
from headfit._shrink.shrink import shrink
from headfit._target.certify import certify
from headfit._target.target import Target
from headfit.errors import HeadfitError

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
    "certify_selection",
    "compare",
    "compress",
    "compress_keys",
    "compress_values",
    "describe",
    "errors",
    "fit",
    "index",
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
    "spend",
    "sweep",
    "torch",
]
