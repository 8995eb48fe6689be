"""Calls of models of Hugging Face transformers: the functions that their layers look up.

A layer asks the library for its attention function by the name of the implementation. While a
model is captured, that look-up returns a function that reports the call and then calls what the
layer asked for, with the same arguments. The model's settings, its masks and its numbers stay as
they are; and masks arrive as the implementation wants them, with all that they say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headfit.errors import CaptureError
from headfit.torch.recorder import ObservedCall, Recorder

# Arguments that do not change logits: dropout is applied to attention weights, the window is part
# of the mask, and the others are for outputs or for implementations that are not captured.
_WITHOUT_EFFECT = frozenset(
    {
        *("dropout", "sliding_window", "position_ids", "cache_position", "position_embeddings"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("use_cache", "num_items_in_batch", "deterministic", "logits_to_keep", "training"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "layer_idx"),
        *("past_key_values", "past_key_value", "inputs_embeds", "labels"),
    }
)
_READ = frozenset({"scaling", "is_causal", "position_bias", "softcap", "s_aux"})


@contextmanager
def transformers_calls(recorder: Recorder) -> Iterator[None]:
    """Report the attention of all layers that look it up, while the context lasts."""

    def reporting(implementation: Any, function: Any) -> Any:
        return function if recorder.inside else _reporting(recorder, implementation, function)

    with replaced_functions(reporting):
        yield


@contextmanager
def replaced_functions(replacement: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Put functions in the place of those that layers look up, while the context lasts.

    Each is what `replacement` returns for the name of an implementation and its function.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        yield  # nobody has loaded a model of this library
        return
    interface = library.AttentionInterface
    if not hasattr(interface, "get_interface"):
        raise CaptureError("headfit.torch needs transformers 5.0 or newer")
    look_up = _LookUp(interface.get_interface)

    def get_interface(self: Any, name: Any, default: Any) -> Any:
        function = look_up.original(self, name, default)
        return replacement(name, function) if look_up.in_use else function

    get_interface.look_up = look_up  # type: ignore[attr-defined]
    interface.get_interface = get_interface
    try:
        yield
    finally:
        look_up.in_use = False
        # Where another thread has replaced this one too, that one removes both.
        while not getattr(interface.get_interface, "look_up", _OPEN).in_use:
            interface.get_interface = interface.get_interface.look_up.original


@dataclass
class _LookUp:
    """What the look-up was before it was replaced, and whether the replacement is in use."""

    original: Any
    in_use: bool = True


_OPEN = _LookUp(None)


def _reporting(recorder: Recorder, implementation: Any, function: Any) -> Callable[..., Any]:
    """Return a function that reports a call and then calls the layer's own function."""

    def attention(module: Any, *args: Any, **kwargs: Any) -> Any:
        name = recorder.name_of(module)
        if name is None:  # another model
            return function(module, *args, **kwargs)
        seen, value = _seen(recorder, name, module, implementation, args, kwargs)
        call = recorder.record(seen)
        with recorder.passing():
            result = function(module, *args, **kwargs)
        if recorder.check:
            recorder.verify(seen, call, value, result[0].transpose(1, 2))
        return result

    return attention


def _seen(
    recorder: Recorder, name: str, module: Any, implementation: Any, args: Any, kwargs: Any
) -> tuple[ObservedCall, Any]:
    if implementation not in ("eager", "sdpa"):
        raise CaptureError(
            f"{name}: the attention implementation {implementation!r} is not captured; load the "
            "model with attn_implementation='sdpa' or 'eager'"
        )
    places = ("query", "key", "value", "attention_mask")
    if len(args) > len(places):
        raise CaptureError(f"{name}: expected four positional arguments; got {len(args)}")
    given = {**dict(zip(places, args, strict=False)), **kwargs}
    others = given.keys() - set(places) - _READ - _WITHOUT_EFFECT
    unknown = sorted(k for k in others if given[k] is not None and given[k] is not False)
    if unknown:
        raise CaptureError(
            f"{name}: its attention takes {', '.join(unknown)}, whose effect on logits is unknown"
        )
    query, key, value = (given[p] for p in places[:3])
    seen: dict[str, Any] = {
        "mask": given.get("attention_mask"),
        "scale": given.get("scaling"),
        "bias": given.get("position_bias"),
        "softcap": given.get("softcap"),
        "sinks": given.get("s_aux"),
    }
    if implementation == "sdpa":
        key = _as_sdpa(name, module, given, seen, query, key)
    kind = recorder.kind_of(module, name)
    return ObservedCall(name, kind, query, key, **seen), value


def _as_sdpa(
    name: str, module: Any, given: dict[str, Any], seen: dict[str, Any], query: Any, key: Any
) -> Any:
    """Set what only the library's function for sdpa does, and return the keys that it uses.

    Without a mask, it is causal if the layer is; keys after the last query are empty places of a
    cache then.
    """
    for option in ("softcap", "sinks"):
        if seen[option] is not None:
            raise CaptureError(
                f"{name}: the sdpa implementation does not apply its {option}; load the model "
                "with attn_implementation='eager'"
            )
    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    n, m = query.shape[2], key.shape[2]
    if n == 1 or seen["mask"] is not None or not causal:
        return key
    seen["causal"] = True
    if m > n and seen["bias"] is not None:
        seen["bias"] = seen["bias"][..., :n]
    return key[:, :, :n]
