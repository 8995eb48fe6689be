"""`smaller_heads`: a PyTorch model that attends with smaller queries and keys."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from headfit._base.arguments import shown
from headfit._compress.maps import check_same_scale, warn_beyond
from headfit._compress.result import Compressed
from headfit.errors import CaptureError, InputError
from headfit.torch.running import Running


@dataclass
class SmallerHeads:
    """A model that runs with smaller heads.

    Attributes
    ----------
    layers : dict of str to int
        How often each of the layers with maps was called.
    """

    maps: "dict[str, _LayerMaps]" = field(repr=False)
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
        For a model that is compiled or scripted, or recomputes its layers in the backward pass,
        and for a layer that the model lacks or that computes in another way. Leaving the context
        raises one if the model ran and a layer with maps was never called.

    Notes
    -----
    The logits become ``(Q @ P_q) @ (K @ P_k).T``, with the layer's own mask, bias, soft cap and
    sinks. Queries and keys are mapped after rotary positions and norms, where a cache would keep
    them; the model's own cache still holds whole keys, since it belongs to the model. So the
    output is that of the smaller heads, and the memory is not. In a layer whose heads have
    different sizes, the smaller ones are padded with zeros. More keys than the `length` of maps
    after rotary positions warn; the places of a static cache count.

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
    mapped = _Mapped(model, heads)
    with running(mapped, mapped.found.layers):
        yield mapped.found


@contextmanager
def running(watching: Running, calls: Mapping[str, int]) -> Iterator[None]:
    """Watch a model; refuse at the end that it never called a layer of `calls`."""
    with watching.watching():
        yield
    missing = [layer for layer, count in calls.items() if not count]
    if watching.ran and missing:
        raise CaptureError(f"the model ran, and never called {', '.join(missing)}")


def count_call(calls: dict[str, int], layer: str, function: Any, what: str) -> None:
    """Count a call of a layer in which something is replaced; refuse what makes it itself."""
    if function is F.multi_head_attention_forward:
        raise CaptureError(
            f"{layer}: MultiheadAttention makes its {what} itself; no others can be put in place"
        )
    calls[layer] += 1


Found = TypeVar("Found")

ALL = -1  # in place of the number of a key head


def by_layer(
    heads: Any, kind: type[Found], maker: str, model: Running, whole_layers: bool = False
) -> dict[str, dict[int, Found]]:
    """Return what a function found for key heads, by the layer of a model and the number in it."""
    heads, what = getattr(heads, "heads", heads), kind.__name__
    if not isinstance(heads, Mapping) or not heads:
        raise InputError(
            f"heads must be what {maker} returns, or a mapping of (layer, key head) to {what}; "
            f"got {shown(heads)}"
        )
    layers: dict[str, dict[int, Found]] = {}
    for name, head in heads.items():
        is_layer = whole_layers and isinstance(name, str)
        parts = (name, ALL) if is_layer else name
        is_name = isinstance(parts, tuple) and [type(part) for part in parts] == [str, int]
        if not is_name or (parts[1] < 0 and not is_layer) or not isinstance(head, kind):
            names = "(name of a layer, number of a key head)" + ", or layers," * whole_layers
            raise InputError(
                f"heads must map {names} to {what}; got {shown(name)}: {type(head).__name__}"
            )
        # A module may compute several attentions: these have names with a number.
        if parts[0].split("#")[0] not in model.names.values():
            raise CaptureError(f"the model has no layer {parts[0]!r}")
        layers.setdefault(parts[0], {})[parts[1]] = head
    return layers


class _Mapped(Running):
    """A model whose attention functions are called with smaller queries and keys."""

    def __init__(self, model: Any, heads: Any) -> None:
        super().__init__(model)
        layers = by_layer(heads, Compressed, "compress", self)
        maps = {layer: _LayerMaps(layer, own) for layer, own in layers.items()}
        self.found = SmallerHeads(maps, dict.fromkeys(maps, 0))

    def take(
        self, layer: str, module: Any, function: Any, args: Any, kwargs: Any, kind: str | None
    ) -> Any:
        maps = self.found.maps.get(layer)
        if maps is not None:
            count_call(self.found.layers, layer, function, "queries and keys")
            scale = "scale" if kind is None else "scaling"
            given = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
            pair = maps.apply(given.pop("query"), given.pop("key"), given.get(scale))
            args, kwargs = (*pair, *args[2:]), {**given, scale: 1.0}
        return function(*args, **kwargs)


@dataclass
class _LayerMaps:
    """The maps of some key heads of a layer, by number, with those of the query heads of each."""

    layer: str
    heads: dict[int, Compressed]
    _tensors: dict[Any, Any] = field(default_factory=dict)

    def apply(self, query: Any, key: Any, scale: float | None) -> tuple[Any, Any]:
        """Return queries (..., heads, n, d) and keys (..., key heads, m, d) that make the logits.

        Three axes are a batch of single heads, as `capture` reads them. The scale of the layer is
        for heads without maps; None means 1 / sqrt(D).
        """
        if query.dim() == key.dim() == 3:
            query, key = self.apply(query[:, None], key[:, None], scale)
            return query[:, 0], key[:, 0]
        if query.dim() < 3 or key.dim() < 3:
            raise CaptureError(f"{self.layer}: queries and keys must have an axis of heads")
        shape = (query.shape[-3], key.shape[-3], query.shape[-1])
        scale = shape[2] ** -0.5 if scale is None else float(scale)
        place = (shape, scale, query.dtype, query.device)
        if place not in self._tensors:
            maps = self._numbers(shape, scale)
            with torch.inference_mode(False):  # a later call may have gradients
                self._tensors[place] = [torch.from_numpy(x).to(query) for x in maps]
        for head in self.heads.values():
            warn_beyond(key.shape[-2], head.length if head.position else None)
        for_queries, for_keys = self._tensors[place]
        return query @ for_queries, key @ for_keys

    def _numbers(self, shape: tuple[int, int, int], scale: float) -> tuple[Any, Any]:
        """Return maps of all query heads and of all key heads, padded with zeros to one size."""
        heads, key_heads, size = shape
        if heads % key_heads:
            raise CaptureError(f"{self.layer}: {key_heads} key heads do not divide {heads} heads")
        group = heads // key_heads
        for at, found in self.heads.items():
            own = math.prod(found.P_q.shape[:-2])
            if not 0 <= at < key_heads or found.original_dim != size or own != group:
                raise InputError(
                    f"the maps of key head {at} of {self.layer} must be for one of its "
                    f"{key_heads} key heads, of size {size}, with {group} query heads each; got "
                    f"maps for size {found.original_dim} and {own} query heads"
                )
            check_same_scale(scale, found.original_scale, f" in key head {at} of {self.layer}")
        dims = [self.heads[at].dim if at in self.heads else size for at in range(key_heads)]
        p_q, p_k = (np.zeros((count, size, max(dims))) for count in (heads, key_heads))
        for at, dim in enumerate(dims):
            readers, head = slice(at * group, (at + 1) * group), self.heads.get(at)
            p_q[readers, :, :dim] = scale * np.eye(size) if head is None else head.P_q
            p_k[at, :, :dim] = np.eye(size) if head is None else head.P_k
        return p_q, p_k
