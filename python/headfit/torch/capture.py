"""`capture`: the heads of a PyTorch model, read while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from headfit._attention.profile import Measures
from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count, thread_count
from headfit.errors import CaptureError
from headfit.torch.call import Keep
from headfit.torch.captured import CapturedHeads
from headfit.torch.recorder import Recorder


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
    Queries and keys are those that the layer's attention sees: after rotary positions and norms,
    with the keys of the cache, and before keys are repeated for the heads that share them; with
    the layer's scale, mask, soft cap, window, sinks and bias. Dropout comes after the softmax: what
    is captured is attention before it.

    The model computes with its own functions, and its output is the same, bit for bit. The
    exception are `MultiheadAttention` and `TransformerEncoder` in evaluation mode, which do not
    take their fused path: their output differs by rounding, and padded rows are not set to zero.

    Layers that compute attention by products and a softmax of their own are not seen: compare
    ``heads.layers`` with the layers that you expect. A module that is called several times in one
    pass of the model, as layers with shared weights are, is one layer with several calls.

    Statistics are taken of one passage after the other, without padding, which is known from the
    two-dimensional ``attention_mask`` of the model's call, or from the `key_padding_mask` of a
    layer. Where there is neither, queries at the places of keys that no query may attend to are
    taken for padding. For each head, memory is O(longest passage), and time that of `describe`
    without the ranks.

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
    """
    measures = Measures(per_row, per_column, share, shares)
    if not isinstance(keep, Keep):
        keep = Keep() if keep is None else Keep(tokens=as_count(keep, "keep", 0))
    heads = CapturedHeads(keep, model)
    threads = None if num_threads is None else thread_count(num_threads)
    wanted = measures if as_flag(statistics, "statistics") else None
    recorder = Recorder(model, heads, wanted, threads, as_flag(check, "check"))
    _refuse(model, check)
    try:
        with recorder.watching():
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
