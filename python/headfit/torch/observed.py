"""`ObservedCall`: an attention that a model computes, read from the arguments of its function."""

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from headfit.errors import CaptureError

# Arguments of the functions of transformers that do not change logits: dropout is applied to
# attention weights, the window is part of the mask, and the others are for outputs or for
# implementations that are not captured.
_WITHOUT_EFFECT = {
    "dropout", "sliding_window", "position_ids", "cache_position", "position_embeddings",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "use_cache",
    "num_items_in_batch", "deterministic", "logits_to_keep", "training", "cu_seq_lens_q",
    "cu_seq_lens_k", "max_length_q", "max_length_k", "layer_idx", "past_key_values",
    "past_key_value", "inputs_embeds", "labels",
}  # fmt: skip
_PLACES = ("query", "key", "value", "attention_mask")
_PLACES_OF_TORCH = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_OPTIONS = {
    "mask": "attention_mask", "scale": "scaling", "bias": "position_bias", "softcap": "softcap",
    "sinks": "s_aux",
}  # fmt: skip
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|multihead_attn", re.IGNORECASE)
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


@dataclass(frozen=True)
class ObservedCall:
    """An attention that a model computes, in tensors of PyTorch.

    Attributes
    ----------
    layer, kind : str
        The name of the layer, and "self" or "cross".
    query, key : Tensor, shapes (batch, heads, n, d) and (batch, key heads, m, d)
    value : Tensor, shape (batch, key heads, m, dv)
    scale : float or None
        None means 1 / sqrt(d).
    mask : Tensor or None
        Boolean, or added to the logits; broadcasts to (batch, heads, n, m).
    causal : bool
        Whether query i sees the keys up to i - n + m, in addition to the mask.
    bias : Tensor or None
        Added to the logits.
    softcap : float or None
    sinks : Tensor, shape (heads,), or None
    rows : Tensor of bool, shape (batch, n), or None
        Where queries are that are no padding, if that is known.
    """

    layer: str
    kind: str
    query: Any
    key: Any
    value: Any
    scale: float | None = None
    mask: Any = None
    causal: bool = False
    bias: Any = None
    softcap: float | None = None
    sinks: Any = None
    rows: Any = None


def kind_of(module: Any, layer: str) -> str:
    """Return whether a layer is "self" or "cross", from what its module says and its name."""
    last = ".".join(layer.split(".")[-2:])
    cross = getattr(module, "is_cross_attention", False) or _CROSS.search(last)
    return "cross" if cross else "self"


def by_name(kind: str | None, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return arguments of a function of transformers by name; without a kind of PyTorch's."""
    names = _PLACES_OF_TORCH if kind is None else _PLACES
    return {**dict(zip(names, args, strict=False)), **kwargs}


def observed_call(
    layer: str, module: Any, function: Any, args: Any, kwargs: Any, kind: str | None
) -> ObservedCall:
    """Return the attention of a call that comes to `Running.take`."""
    if kind is not None:
        return transformers_call(layer, module, kind, args, kwargs)
    read = multi_head_call if function is F.multi_head_attention_forward else dot_product_call
    return read(layer, module, args, kwargs)


def transformers_call(layer: str, module: Any, kind: Any, args: Any, kwargs: Any) -> ObservedCall:
    """Return the attention of a call of one of the functions that layers of transformers use."""
    if kind not in ("eager", "sdpa"):
        raise CaptureError(
            f"{layer}: the attention implementation {kind!r} is not captured; load the "
            "model with attn_implementation='sdpa' or 'eager'"
        )
    if len(args) > len(_PLACES):
        raise CaptureError(f"{layer}: expected four positional arguments; got {len(args)}")
    given = by_name(kind, args, kwargs)
    others = given.keys() - {*_PLACES, *_OPTIONS.values(), "is_causal"} - _WITHOUT_EFFECT
    unknown = sorted(k for k in others if given[k] is not None and given[k] is not False)
    if unknown:
        raise CaptureError(
            f"{layer}: its attention takes {', '.join(unknown)}, whose effect on logits is unknown"
        )
    seen = {name: given[name] for name in _PLACES[:3]}
    seen |= {name: given.get(theirs) for name, theirs in _OPTIONS.items()}
    if kind == "sdpa":  # the library's function for it does less, and more
        for option in ("softcap", "sinks"):
            if seen[option] is not None:
                raise CaptureError(
                    f"{layer}: the sdpa implementation does not apply its {option}; load the model "
                    "with attn_implementation='eager'"
                )
        causal, n = given.get("is_causal"), seen["query"].shape[2]
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if n > 1 and seen["mask"] is None and causal:
            # Without a mask it is causal; keys after the last query are empty places of a cache.
            bias = seen["bias"] if seen["bias"] is None else seen["bias"][..., :n]
            seen.update(causal=True, key=seen["key"][:, :, :n], bias=bias)
    return ObservedCall(layer, kind_of(module, layer), **seen)


def dot_product_call(layer: str, module: Any, args: Any, kwargs: Any) -> ObservedCall:
    """Return the attention of a call of `F.scaled_dot_product_attention`."""
    given = by_name(None, args, kwargs)
    query, key, value = (as_heads(given[x], layer) for x in _PLACES[:3])
    causal, mask = bool(given.get("is_causal", False)), given.get("attn_mask")
    n, m = query.shape[2], key.shape[2]
    if causal and m < n:
        # The last queries see all keys: the first query is aligned with the first key.
        mask, causal = torch.ones(n, m, dtype=torch.bool, device=key.device).tril(), False
    elif causal:
        key = key[:, :, :n]  # the first query is aligned with the first key
    if mask is not None and given["query"].dim() != 4 and mask.dim() > 2:
        mask = as_heads(mask.expand(*given["query"].shape[:-2], *mask.shape[-2:]), layer)
    kind, scale = kind_of(module, layer), given.get("scale")
    return ObservedCall(layer, kind, query, key, value, scale, mask, causal)


def as_heads(x: Any, layer: str) -> Any:
    """Return a tensor with the axes batch, head, token and dimension.

    Three axes are a batch of single heads; of more than four, all but the last three are batch.
    """
    if x.dim() < 2 or x.is_nested:
        raise CaptureError(f"{layer}: queries and keys must be dense, with axes token, dimension")
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.reshape(-1, *((1,) * max(0, 3 - x.dim())), *x.shape[-3:]) if x.dim() != 4 else x


def multi_head_call(layer: str, module: Any, args: Any, kwargs: Any) -> ObservedCall:
    """Return the attention of a call of `F.multi_head_attention_forward`.

    It is "cross" anyway if the queries are not projected from the same tensor as the keys.
    """
    given = _bound(args, kwargs).arguments
    for option in ("bias_k", "add_zero_attn", "static_k"):
        if given[option] is not None and given[option] is not False:
            raise CaptureError(
                f"{layer}: a MultiheadAttention with {option} has keys without a token, which are "
                "not captured"
            )
    own = given["query"] is given["key"]
    query, key, value = (_by_heads(_linear(given, x), given["num_heads"]) for x in _PLACES[:3])
    padding, mask = given["key_padding_mask"], given["attn_mask"]
    if given["is_causal"] and padding is None and not given["need_weights"]:
        # The mask is said to be causal, and is not read.
        shape = query.shape[2], key.shape[2]
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    elif mask is not None:
        mask = _allowed(mask)
        if mask.dim() == 3:
            mask = mask.reshape(query.shape[0], -1, *mask.shape[-2:])
    rows = None
    if padding is not None:
        padding = _allowed(padding).reshape(query.shape[0], 1, 1, -1)
        if own:
            is_mask = padding.dtype == torch.bool
            there = padding if is_mask else padding > torch.finfo(padding.dtype).min / 2
            rows = there[:, 0, 0]
    kind = kind_of(module, layer) if own else "cross"
    return ObservedCall(layer, kind, query, key, value, mask=mask, bias=padding, rows=rows)


def heads_of_output(function: Any, args: Any, kwargs: Any) -> Any:
    """Return the attention times values of such a call, by heads.

    It is called once more, with an identity as the projection of its output.
    """
    bound = _bound(args, kwargs)
    given, weight = bound.arguments, bound.arguments["out_proj_weight"]
    given.update(out_proj_weight=torch.eye(weight.shape[1]).to(weight), out_proj_bias=None)
    return _by_heads(function(*bound.args, **bound.kwargs)[0], given["num_heads"])


def _bound(args: Any, kwargs: Any) -> inspect.BoundArguments:
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def _linear(given: dict[str, Any], name: str) -> Any:
    """Return the projection of the input with a name, the query, key or value."""
    at, weight = _PLACES.index(name), given[f"{name[0]}_proj_weight"]
    if not given["use_separate_proj_weight"]:
        weight = given["in_proj_weight"].chunk(3)[at]
    bias = given["in_proj_bias"]
    return F.linear(given[name], weight, None if bias is None else bias.chunk(3)[at])


def _by_heads(x: Any, heads: int) -> Any:
    """Return (tokens, batch, E) or (tokens, E) as (batch, heads, tokens, E / heads)."""
    return (x.unsqueeze(1) if x.dim() == 2 else x).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _allowed(mask: Any) -> Any:
    """Return a mask of this function, True where attention is not allowed, the other way round."""
    return ~mask if mask.dtype == torch.bool else mask
