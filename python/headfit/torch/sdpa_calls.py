"""Attention of any other PyTorch code: its calls of `scaled_dot_product_attention`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from headfit.errors import CaptureError
from headfit.torch.multi_head import heads_of_output, read_multi_head
from headfit.torch.recorder import ObservedCall, Recorder

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class SdpaCalls(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Reports the attention of `F.scaled_dot_product_attention` and `nn.MultiheadAttention`.

    While it is open, `nn.MultiheadAttention` and `nn.TransformerEncoder` do not take their fused
    path, which would bypass it: they compute the same in single steps.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Report a call, and return the function's own result."""
        kwargs = kwargs or {}
        recorder = self._recorder
        if recorder.inside or not recorder.frames:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return _dot_product(recorder, func, args, kwargs)
        if func is F.multi_head_attention_forward:
            return _multi_head(recorder, func, args, kwargs)
        return func(*args, **kwargs)


def _dot_product(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    name = recorder.name_here()
    query, key, value = (_as_heads(given[x], name) for x in _ARGUMENTS[:3])
    causal, n = bool(given.get("is_causal", False)), query.shape[2]
    mask = given.get("attn_mask")
    if causal and key.shape[2] < n:
        # The last queries see all keys: the first query is aligned with the first key.
        mask = torch.ones(n, key.shape[2], dtype=torch.bool, device=key.device).tril()
        causal = False
    elif causal:
        key = key[:, :, :n]  # the first query is aligned with the first key
    if mask is not None and given["query"].dim() != 4:
        mask = _mask_of(mask, given["query"], name)
    kind = recorder.kind_of(recorder.frames[-1].module, name)
    seen = ObservedCall(name, kind, query, key, given.get("scale"), mask, causal)
    call = recorder.record(seen)
    with recorder.passing():
        result = func(*args, **kwargs)
    if recorder.check:
        recorder.verify(seen, call, value, _as_heads(result, name))
    return result


def _as_heads(x: Any, name: str) -> Any:
    """Return a tensor with the axes batch, head, token and dimension.

    Three axes are a batch of single heads; of more than four, all but the last three are batch.
    """
    if x.dim() < 2 or x.is_nested:
        raise CaptureError(f"{name}: queries and keys must be dense, with axes token, dimension")
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.reshape(-1, *((1,) * max(0, 3 - x.dim())), *x.shape[-3:]) if x.dim() != 4 else x


def _mask_of(mask: Any, query: Any, name: str) -> Any:
    """Return a mask with the axes of `_as_heads`, of queries that have other axes."""
    if mask.dim() <= 2:
        return mask
    return _as_heads(mask.expand(*query.shape[:-2], *mask.shape[-2:]), name)


def _multi_head(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    name = recorder.name_here()
    kind = recorder.kind_of(recorder.frames[-1].module, name)
    seen = read_multi_head(name, kind, args, kwargs)
    call = recorder.record(seen)
    with recorder.passing():
        result = func(*args, **kwargs)
        if recorder.check:
            value, output = heads_of_output(func, args, kwargs, seen.query.shape[1])
            recorder.verify(seen, call, value, output)
    return result
