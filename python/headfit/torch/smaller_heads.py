"""`smaller_heads`: a PyTorch model that attends with smaller queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from headfit._base.arguments import shown
from headfit._compress.result import Compressed
from headfit.errors import CaptureError, InputError
from headfit.torch.layer_maps import LayerMaps
from headfit.torch.running import Running
from headfit.torch.transformers_calls import replaced_functions

__all__ = ["SmallerHeads", "smaller_heads"]


@dataclass
class SmallerHeads:
    """A model that runs with smaller heads.

    Attributes
    ----------
    layers : dict of str to int
        How often each of the layers with maps was called.
    """

    maps: dict[str, LayerMaps] = field(repr=False)
    layers: dict[str, int] = field(default_factory=dict)

    @property
    def key_dims(self) -> tuple[int, int]:
        """Dimensions that a token's keys take in the cache, before and after.

        They are those of the heads with maps, over all layers; times the bytes of a number they
        are the bytes per token.
        """
        sizes = [found for maps in self.maps.values() for found in maps.heads.values()]
        return sum(x.original_dim for x in sizes), sum(x.dim for x in sizes)


@contextmanager
def smaller_heads(model: torch.nn.Module, heads: Any) -> Iterator[SmallerHeads]:
    """Let a model attend with smaller queries and keys, as long as the context lasts.

    Parameters
    ----------
    model : torch.nn.Module
        A model that `capture` can read: one of Hugging Face transformers with the attention
        implementation "sdpa" or "eager", or other code that calls
        `torch.nn.functional.scaled_dot_product_attention` itself.
    heads : CompressedHeads or mapping of (layer, key head) to Compressed
        What `compress` makes of `CapturedHeads.passages`. A layer is given by its name in
        the model. Key heads without an entry keep their queries and keys.

    Returns
    -------
    context manager of SmallerHeads

    Raises
    ------
    InputError
        For maps that do not fit the heads of their layer: when the layer is called.
    CaptureError
        For a ScriptModule, or a layer that the model lacks or that computes in another way. Leaving
        the context raises one if the model ran and a layer with maps was never called.

    Notes
    -----
    The logits become ``(Q @ P_q) @ (K @ P_k).T``, with the layer's own mask, bias, soft cap and
    sinks. Queries and keys are mapped after rotary positions and norms, where a cache would keep
    them; the model's own cache still holds whole keys, since it belongs to the model. So the
    output is that of the smaller heads, and the memory is not. In a layer whose heads have
    different sizes, the smaller ones are padded with zeros.

    Examples
    --------
    >>> import torch, headfit as hf, headfit.torch
    >>> class Layer(torch.nn.Module):
    ...     def forward(self, x):
    ...         q = x.unflatten(-1, (2, 8)).transpose(1, 2)
    ...         return torch.nn.functional.scaled_dot_product_attention(q, q, q)
    >>> model, generator = Layer(), torch.Generator().manual_seed(0)
    >>> batch = torch.randn(6, 20, 16, generator=generator)
    >>> with hf.torch.capture(model) as heads:
    ...     whole = model(batch)
    >>> found = hf.compress(heads.passages(), dim=4)
    >>> with hf.torch.smaller_heads(model, found) as smaller:
    ...     small = model(batch)
    >>> smaller.key_dims, bool((small - whole).abs().mean() < 0.3)
    ((16, 8), True)
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{name or 'model'} is a ScriptModule; pass the one it was made from"
            )
    maps = _by_layer(getattr(heads, "heads", heads))
    running = Running(model)
    names = set(running.names.values())
    for layer in maps:
        # A module may compute several attentions: these have names with a number.
        if layer.split("#")[0] not in names | {"model"}:
            raise CaptureError(f"the model has no layer {layer!r}")
    found = SmallerHeads(maps, dict.fromkeys(maps, 0))
    replacement = _Replacement(running, found)
    with ExitStack() as stack:
        stack.enter_context(running.watching())
        stack.enter_context(replaced_functions(replacement.of_transformers))
        stack.enter_context(_MappedCalls(replacement))
        yield found
    missing = [layer for layer, calls in found.layers.items() if not calls]
    if running.ran and missing:
        raise CaptureError(f"the model ran, and never called {', '.join(missing)}")


def _by_layer(heads: Any) -> dict[str, LayerMaps]:
    if not isinstance(heads, Mapping) or not heads:
        raise InputError(
            "heads must be what compress returns, or a mapping of (layer, key head) to "
            f"Compressed; got {shown(heads)}"
        )
    found: dict[str, dict[int, Compressed]] = {}
    for name, head in heads.items():
        if (
            not isinstance(name, tuple)
            or len(name) != 2
            or not isinstance(name[0], str)
            or not isinstance(name[1], int)
            or not isinstance(head, Compressed)
        ):
            raise InputError(
                "heads must map (name of a layer, number of a key head) to Compressed; "
                f"got {shown(name)}: {type(head).__name__}"
            )
        found.setdefault(name[0], {})[name[1]] = head
    return {layer: LayerMaps(layer, own) for layer, own in found.items()}


class _Replacement:
    """The attention functions of a model, called with smaller queries and keys."""

    def __init__(self, running: Running, found: SmallerHeads) -> None:
        self.running, self._found = running, found

    def _mapped(self, layer: str, query: Any, key: Any, scale: float | None) -> Any:
        """Return smaller queries and keys; None for a layer without maps."""
        maps = self._found.maps.get(layer)
        if maps is None:
            return None
        self._found.layers[layer] += 1
        return maps.apply(query, key, scale)

    def of_transformers(self, _implementation: Any, function: Any) -> Callable[..., Any]:
        """Return a function that maps queries and keys and then calls the layer's own."""

        def attention(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            layer = self.running.name_of(module)
            if layer is None or layer not in self._found.maps:
                with self.running.passing():
                    return function(module, query, key, *args, **kwargs)
            query, key = self._mapped(layer, query, key, kwargs.get("scaling"))
            with self.running.passing():
                return function(module, query, key, *args, **{**kwargs, "scaling": 1.0})

        return attention

    def of_torch(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call `scaled_dot_product_attention` with mapped queries and keys."""
        given = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
        rest = args[2:]
        layer = self.running.name_here()
        query, key = given["query"], given["key"]
        if layer in self._found.maps:
            query, key = self._mapped(layer, query, key, given.get("scale"))
            given["scale"] = 1.0
        del given["query"], given["key"]
        with self.running.passing():
            return function(query, key, *rest, **given)

    def of_multi_head(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Refuse `multi_head_attention_forward` in a layer with maps."""
        layer = self.running.name_here()
        if layer in self._found.maps:
            raise CaptureError(
                f"{layer}: MultiheadAttention makes its queries and keys itself; smaller ones "
                "cannot be put in their place"
            )
        with self.running.passing():
            return function(*args, **kwargs)


class _MappedCalls(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Takes the calls of PyTorch's attention functions, as long as it is open."""

    def __init__(self, replacement: _Replacement) -> None:
        super().__init__()
        self._replacement = replacement

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the arguments of a call, and return its result."""
        kwargs, running = kwargs or {}, self._replacement.running
        if not running.inside and running.frames:
            if func is F.scaled_dot_product_attention:
                return self._replacement.of_torch(func, args, kwargs)
            if func is F.multi_head_attention_forward:
                return self._replacement.of_multi_head(func, args, kwargs)
        return func(*args, **kwargs)
