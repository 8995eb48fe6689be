"""Heads of PyTorch models read while they run; fitted heads as PyTorch modules.

This needs PyTorch. A `torch.nn.MultiheadAttention` of H heads has an embedding of size
E = H * head_dim and takes the softmax of q k^T / sqrt(head_dim). Its boolean masks are True where
attention is *not* allowed.

>>> import headfit as hf, headfit.torch
>>> A, B = hf.patterns.band(16, 1), hf.patterns.tree(16)
>>> model = hf.torch.to_multihead_attention([hf.fit(A, 4), hf.fit(B, 5)])
>>> model
FittedAttention(2 heads of sizes (4, 5) in heads of 16, embedding 32, n=16, float32)
>>> [hf.certify(T, matrix=M).holds for T, M in zip((A, B), model.weights())]
[True, True]
>>> with hf.torch.capture(model.module) as heads:
...     _ = model.weights()
>>> hf.certify(B, heads["model", 1]).holds
True
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise ImportError("headfit.torch needs PyTorch: pip install 'headfit[torch]'") from missing

from headfit.torch.capture import capture
from headfit.torch.captured import CapturedHeads, CapturedLayer
from headfit.torch.fitted import FittedAttention, to_multihead_attention
from headfit.torch.indexed import indexed
from headfit.torch.reading import from_projections, rotary_position
from headfit.torch.smaller_heads import SmallerHeads, smaller_heads

if TYPE_CHECKING:
    from headfit.torch.small_cache import SmallCache

__all__ = [
    "CapturedHeads", "CapturedLayer", "FittedAttention", "SmallerHeads", "capture",
    "from_projections", "indexed", "rotary_position", "smaller_heads", "to_multihead_attention",
]  # fmt: skip
__dir__ = __all__.copy
if find_spec("transformers") is not None:
    __all__ += ["SmallCache"]


def __getattr__(name: str) -> Any:
    if name != "SmallCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("transformers") is None:
        raise ImportError("SmallCache needs transformers 5.1 or newer: pip install transformers")
    from headfit.torch.small_cache import SmallCache

    return SmallCache
