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
>>> Q, K, scale = hf.torch.from_module(model.module, model.X)
>>> Q.shape, hf.certify(B, Q[0, 1], K[0, 1], scale=scale).holds
((1, 2, 16, 16), True)
"""

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise ImportError("headfit.torch needs PyTorch: pip install 'headfit[torch]'") from missing

from headfit.torch.building import to_multihead_attention
from headfit.torch.capture import capture
from headfit.torch.captured import CapturedHeads, CapturedLayer
from headfit.torch.fitted import FittedAttention
from headfit.torch.keep import Keep
from headfit.torch.reading import Projected, from_module, from_projections
from headfit.torch.smaller_heads import SmallerHeads, smaller_heads

__all__ = [
    "CapturedHeads",
    "CapturedLayer",
    "FittedAttention",
    "Keep",
    "Projected",
    "SmallerHeads",
    "capture",
    "from_module",
    "from_projections",
    "smaller_heads",
    "to_multihead_attention",
]


def __dir__() -> list[str]:
    return sorted(__all__)
