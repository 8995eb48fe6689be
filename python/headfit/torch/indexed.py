"""`indexed`: a PyTorch model whose layers attend to the keys alone that an index finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headfit._attention.of_rows import as_csr
from headfit._base.arguments import thread_count
from headfit._index.result import Index
from headfit.errors import InputError, input_errors
from headfit.torch.call import Call, key_head
from headfit.torch.capture import Recorder
from headfit.torch.captured import CapturedHeads
from headfit.torch.observed import ObservedCall, by_name, observed_call
from headfit.torch.smaller_heads import ALL, by_layer, count_call, running


@contextmanager
def indexed(
    model: torch.nn.Module, heads: Any, *, keys: int | None = None, num_threads: int | None = None
) -> Iterator[dict[str, int]]:
    """Let a model attend only to the keys that indexes find, as long as the context lasts.

    Parameters
    ----------
    model : torch.nn.Module
        A model that `capture` can read: one of Hugging Face transformers with the attention
        implementation "sdpa" or "eager", or other code that calls
        `torch.nn.functional.scaled_dot_product_attention` itself.
    heads : Indexes or mapping of (layer, key head) or of layer to Index
        What `index` makes of `CapturedHeads.passages`, or of `layer_passages`. A layer is given by
        its name in the model. Key heads without an entry attend to all keys.
    keys : int, optional
        How many keys a row attends to, with those that are kept anyway; that of each index when
        None.
    num_threads : int, optional
        For the selection.

    Returns
    -------
    context manager of dict
        How often each layer with indexes was called.

    Raises
    ------
    InputError
        For indexes that do not fit the heads of their layer: when the layer is called.
    CaptureError
        For a layer that the model lacks or that computes in another way. Leaving the context raises
        one if the model ran and a layer with indexes was never called.

    Notes
    -----
    The model's own mask decides which keys a row sees: causal, padded, or within a sliding window.
    Of these the index selects, and the layer's own function is called with a mask of its choice.
    So the output is that of sparse attention, in prefill and with a cache, but not its speed: a
    mask has an entry for every pair.

    Examples
    --------
    >>> import torch, headfit as hf, headfit.torch
    >>> class Layer(torch.nn.Module):
    ...     def forward(self, x):
    ...         q = x.unflatten(-1, (2, 8)).transpose(1, 2)
    ...         return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> model, generator = Layer(), torch.Generator().manual_seed(0)
    >>> batch = 2 * torch.randn(6, 60, 16, generator=generator)
    >>> with hf.torch.capture(model) as heads:
    ...     whole = model(batch)
    >>> found = hf.index(heads.passages(), dim=4, keys=24, window=8)
    >>> with hf.torch.indexed(model, found) as calls:
    ...     sparse = model(batch)
    >>> calls, bool((sparse - whole).abs().mean() < 0.1)
    ({'model': 1}, True)
    """
    selecting = _Selecting(model, heads, keys, thread_count(num_threads))
    with running(selecting, selecting.calls):
        yield selecting.calls


class _Selecting(Recorder):
    """A model whose attention functions are called with the masks of indexes."""

    def __init__(self, model: Any, heads: Any, keys: int | None, threads: int) -> None:
        super().__init__(model, CapturedHeads(model, 0, None), None, threads, False)
        self.indexes = by_layer(heads, Index, "index", self, whole_layers=True)
        self.keys = keys
        for layer, own in self.indexes.items():
            if ALL in own and len(own) > 1:
                raise InputError(f"heads must not have key heads of {layer} beside all of it")
            for index in own.values():
                index._count(keys)
        self.calls = dict.fromkeys(self.indexes, 0)

    def take(
        self, layer: str, module: Any, function: Any, args: Any, kwargs: Any, kind: str | None
    ) -> Any:
        if layer not in self.indexes:
            return function(*args, **kwargs)
        count_call(self.calls, layer, function, "mask")
        seen = observed_call(layer, module, function, args, kwargs, kind)
        given = by_name(kind, args, kwargs)
        mask = "attn_mask" if kind is None else "attention_mask"
        allowed = self.selected(self.record(seen), seen, given["key"].shape[-2])
        allowed = allowed.reshape(-1, *given["query"].shape[1:-1], allowed.shape[-1])
        before = seen.mask if given.get(mask) is None else given[mask]
        if before is not None and before.dtype == torch.bool:
            allowed &= before
        elif before is not None or kind == "eager":
            zero = torch.zeros((), dtype=seen.query.dtype, device=seen.query.device)
            allowed = (zero if before is None else before).masked_fill(~allowed, -torch.inf)
        tensors = [given.pop(name) for name in ("query", "key", "value")]
        return function(*tensors, **{**given, mask: allowed, "is_causal": False})

    def selected(self, call: Call, seen: ObservedCall, keys: int) -> Any:
        """Return which keys queries attend to: a tensor of shape (batch, heads, n, keys)."""
        batch, heads, n, _ = call.q.shape
        group, own = heads // call.k.shape[1], self.indexes[seen.layer]
        if not max(own) < call.k.shape[1]:
            raise InputError(f"{seen.layer} has {call.k.shape[1]} key heads, not {max(own) + 1}")
        allowed = np.ones((batch, heads, n, keys), bool)
        if seen.causal:
            allowed &= np.tri(n, keys, call.k.shape[2] - n, dtype=bool)
        for b, passage, attention in call.entries():
            for at, index in own.items():
                head = attention if at == ALL else key_head(attention, at)
                with input_errors(seen.layer, InputError):
                    columns = index.select(head, keys=self.keys, num_threads=self.threads)
                chosen = as_csr(columns, columns >= 0, attention.m).toarray()
                chosen[~chosen.any(axis=1)] = True  # the layer's own mask hides all of such a row
                of_index = slice(None) if at == ALL else slice(at * group, (at + 1) * group)
                readers = allowed[b, of_index, :, : call.k.shape[2]]
                readers[:, passage.rows, passage.keys] = chosen
        return torch.from_numpy(allowed).to(seen.query.device)
