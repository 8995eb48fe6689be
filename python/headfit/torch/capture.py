"""`capture`: the heads of a PyTorch model, read while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from headfit._attention.profile import Measures
from headfit._base.arguments import as_flag
from headfit._base.arrays import thread_count
from headfit.errors import CaptureError, InputError
from headfit.torch.captured import CapturedHeads
from headfit.torch.keep import Keep
from headfit.torch.recorder import Recorder
from headfit.torch.sdpa_calls import SdpaCalls
from headfit.torch.transformers_calls import transformers_calls

__all__ = ["capture"]


@contextmanager
def capture(
    model: torch.nn.Module,
    *,
    keep: Keep | int | None = None,
    statistics: bool = True,
    per_row: int = 8,
    per_column: int | None = None,
    share: float = 0.9,
    shares: float | Sequence[float] = (0.9, 0.95, 0.99),
    check: bool = False,
    num_threads: int | None = None,
) -> Iterator[CapturedHeads]:
    """Read the heads of a model while it runs: their queries, keys and statistics.

    Parameters
    ----------
    model : torch.nn.Module
        A model of Hugging Face transformers with the attention implementation "sdpa" or "eager",
        or any other module that computes attention with
        `torch.nn.functional.scaled_dot_product_attention` or `torch.nn.MultiheadAttention`
        (`TransformerEncoder` and others use it). It may be on any device.
    keep : Keep or int, optional
        Which queries and keys stay in memory: a `Keep`, or the number of tokens of each layer.
        All layers and heads up to 4096 tokens when None; 0 keeps none.
    statistics : bool, default True
        Whether to take the statistics of `CapturedHeads.table`.
    per_row, per_column, share, shares
        What the statistics measure, as in `describe`.
    check : bool, default False
        Whether to compute each layer's output from what was captured and compare it with the
        layer's own. This takes the time of another attention, and a model in evaluation mode.
    num_threads : int, optional
        For the statistics. None uses every core. The result does not depend on it.

    Returns
    -------
    context manager of CapturedHeads
        Captures while the context lasts. What it captured can be read inside and afterwards.

    Raises
    ------
    CaptureError
        For a model that cannot be captured: compiled or scripted, or one that recomputes its
        layers in the backward pass. When a layer computes what an `Attention` does not, the
        model's call raises one that names the layer. Leaving the context raises one if the model
        ran and no attention was seen, or not the layers that `keep` names.
    InputError
        For arguments of the wrong kind.

    Notes
    -----
    Queries and keys are those that the layer's attention sees: after rotary positions and norms of
    queries and keys, with the keys of the cache, and before keys are repeated for the heads that
    share them; with the layer's scale, mask, soft cap, window, sinks and bias. Dropout is applied
    to attention weights after the softmax: what is captured is attention before it.

    The model computes with its own functions, and its output is the same, bit for bit. The
    exception are `MultiheadAttention` and `TransformerEncoder` in evaluation mode, which take their
    steps one by one instead of the fused path: their output differs by rounding, and padded rows
    are not set to zero. Settings of the model are not touched.

    Layers that compute attention in another way, by products and a softmax of their own, are not
    seen: compare ``heads.layers`` with the layers that you expect.

    Statistics are taken of one passage after the other, from the batch and the keys of a call.
    Padding is left out. It is known from the two-dimensional ``attention_mask`` of the model's
    call, or from the `key_padding_mask` of a layer. Where there is neither, queries at the places
    of keys that no query may attend to are taken for padding. For each head, memory is
    O(longest passage), and time that of `describe` without the ranks. A module that is called
    several times in one pass of the model, as layers with shared weights are, is one layer with
    several calls.

    Examples
    --------
    >>> import torch, headfit as hf, headfit.torch
    >>> _ = torch.manual_seed(0)
    >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, num_layers=2)
    >>> with hf.torch.capture(model) as heads:
    ...     _ = model(torch.randn(3, 10, 16))
    >>> heads
    CapturedHeads(2 layers, 4 heads)
      0: CapturedLayer('layers.0.self_attn', self, 2 heads of size 8, 1 call, 1 kept)
      1: CapturedLayer('layers.1.self_attn', self, 2 heads of size 8, 1 call, 1 kept)
    >>> heads[1, 0].matrix().shape  # layer 1, head 0, for a batch of 3
    (3, 10, 10)
    >>> heads.table().numbers["entropy"].shape  # one for each layer and head
    (4,)
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    measures = Measures(per_row, per_column, share, shares)
    heads = CapturedHeads(Keep.of(keep), model)
    threads = None if num_threads is None else thread_count(num_threads)
    check = as_flag(check, "check")
    _refuse(model, check)
    wanted = measures if as_flag(statistics, "statistics") else None
    recorder = Recorder(model, heads, wanted, threads, check)
    try:
        with ExitStack() as stack:
            stack.enter_context(recorder.watching())
            stack.enter_context(transformers_calls(recorder))
            stack.enter_context(SdpaCalls(recorder))
            yield heads
    finally:
        heads._model = None
    if recorder.ran:
        _check_found(heads)


def _refuse(model: Any, check: bool) -> None:
    for name, module in model.named_modules():
        name = name or "model"
        if hasattr(module, "_orig_mod"):
            raise CaptureError(f"{name} is compiled; capture the module that it was compiled from")
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(f"{name} is a ScriptModule; capture the module it was made from")
        if getattr(module, "reorder_and_upcast_attn", False):
            raise CaptureError(f"{name} computes attention itself: reorder_and_upcast_attn=True")
        if model.training and getattr(module, "gradient_checkpointing", False):
            raise CaptureError(
                f"{name} recomputes its layers in the backward pass; call "
                "model.gradient_checkpointing_disable() before capture"
            )
    if check and model.training:
        raise CaptureError("check=True needs a model in evaluation mode: call model.eval()")


def _check_found(heads: CapturedHeads) -> None:
    """Raise a CaptureError if a model ran and showed no attention, or not what is to be kept."""
    if not heads.layers:
        raise CaptureError(
            "the model ran, but computed no attention by scaled_dot_product_attention, "
            "MultiheadAttention or the attention functions of transformers. Some models of "
            "transformers do with attn_implementation='sdpa'"
        )
    names = [layer.name for layer in heads.layers]
    for layer in heads._keep.layers or ():
        if layer not in names and layer not in range(len(names)):
            raise CaptureError(f"keep.layers has {layer!r}, but the layers are {names}")
