"""The queries, keys and masks of a call of `F.multi_head_attention_forward`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F

from headfit.errors import CaptureError
from headfit.torch.recorder import ObservedCall

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def read_multi_head(name: str, kind: str, args: Any, kwargs: Any) -> ObservedCall:
    """Return the attention of a call of `F.multi_head_attention_forward`.

    Parameters
    ----------
    name, kind : str
        The layer. It is "cross" anyway if the queries are not projected from the same tensor as
        the keys.
    args, kwargs
        Those of the call.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    for option in ("bias_k", "add_zero_attn", "static_k"):
        if given[option] is not None and given[option] is not False:
            raise CaptureError(
                f"{name}: a MultiheadAttention with {option} has keys without a token, which are "
                "not captured"
            )
    own = given["query"] is given["key"]
    query, key = _projected(given)
    padding = given["key_padding_mask"]
    mask = given["attn_mask"]
    causal = given["is_causal"] and padding is None and not given["need_weights"]
    if causal:  # the mask is said to be causal, and is not read
        n, m = query.shape[2], key.shape[2]
        mask = torch.ones(n, m, dtype=torch.bool, device=query.device).tril()
    elif mask is not None:
        mask = _allowed(mask)
        if mask.dim() == 3:
            mask = mask.reshape(query.shape[0], -1, *mask.shape[-2:])
    rows = None
    if padding is not None:
        padding = _allowed(padding)
        padding = padding.reshape(query.shape[0], 1, 1, -1)
        if own:
            there = padding if padding.dtype == torch.bool else padding > _least(padding)
            rows = there[:, 0, 0]
    return ObservedCall(
        name,
        kind if own else "cross",
        query,
        key,
        mask=mask,
        bias=padding,
        rows=rows,
    )


def heads_of_output(func: Any, args: Any, kwargs: Any, heads: int) -> tuple[Any, Any]:
    """Return the values and the attention times values of a call, by heads.

    It is called once more, with an identity as the projection of its output.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    size = given["out_proj_weight"].shape[1]
    given["out_proj_weight"] = torch.eye(size).to(given["out_proj_weight"])
    given["out_proj_bias"] = None
    output, _ = func(*bound.args, **bound.kwargs)
    return _by_heads(_linear(given, 2, "value"), heads), _by_heads(output, heads)


def _projected(given: dict[str, Any]) -> tuple[Any, Any]:
    heads = given["num_heads"]
    return tuple(_by_heads(_linear(given, at, x), heads) for at, x in enumerate(("query", "key")))


def _linear(given: dict[str, Any], at: int, name: str) -> Any:
    """Return the projection of the input with a name, the query, key or value."""
    if given["use_separate_proj_weight"]:
        weight = given[f"{name[0]}_proj_weight"]
    else:
        weight = given["in_proj_weight"].chunk(3)[at]
    bias = given["in_proj_bias"]
    return F.linear(given[name], weight, None if bias is None else bias.chunk(3)[at])


def _by_heads(x: Any, heads: int) -> Any:
    """Return (tokens, batch, E) or (tokens, E) as (batch, heads, tokens, E / heads)."""
    x = x.unsqueeze(1) if x.dim() == 2 else x
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _allowed(mask: Any) -> Any:
    """Return a mask of this function, True where attention is not allowed, the other way round."""
    return ~mask if mask.dtype == torch.bool else mask


def _least(mask: Any) -> float:
    return float(torch.finfo(mask.dtype).min) / 2
