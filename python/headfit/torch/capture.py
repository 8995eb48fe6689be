"""`capture`: the heads of a PyTorch model, read while it runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from headfit._attention.logits import check_scale
from headfit._attention.profile import HeadStatistics, Measures
from headfit._base.arguments import as_count, as_flag, shown, thread_count
from headfit._base.arrays import FloatArray
from headfit._compress.maps import warn_caller
from headfit.errors import CaptureError, InputError
from headfit.torch.call import Bools, Call, Read, read_masks
from headfit.torch.captured import CapturedHeads, CapturedLayer
from headfit.torch.observed import ObservedCall, as_heads, heads_of_output, observed_call
from headfit.torch.reading import stored
from headfit.torch.running import Running


@contextmanager
def capture(
    model: torch.nn.Module,
    *,
    keep: int = 4096,
    keep_layers: Sequence[str | int] | None = None,
    statistics: bool = True,
    per_row: int = 8,
    per_column: int | None = None,
    share: float = 0.9,
    shares: float | Sequence[float] = (0.9, 0.95, 0.99),
    check: bool = False,
    values: bool = False,
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
    keep : int, default 4096
        How many tokens of each layer stay in memory: its calls are kept as long as their keys,
        batch times m, add up to at most so many. A call that does not fit is not kept (one larger
        than `keep` warns), while smaller ones after it may be. In float32, 4096 tokens of a layer
        of 768 dimensions take 25 MB; 0 keeps none.
    keep_layers : sequence of str or int, optional
        The layers to keep, by name or by their number in the order of their first calls; all when
        None.
    statistics : bool, default True
        Whether to take the statistics of `CapturedHeads.table`.
    per_row, per_column, share, shares
        What the statistics measure, as in `describe`.
    check : bool, default False
        Whether to compute each layer's output from what was captured and compare it with the
        layer's own. This takes the time of another attention, and a model in evaluation mode.
    values : bool, default False
        Whether to keep the values beside queries and keys, for
        ``heads.layer_passages(values=True)``. They take the memory of the keys again.
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
        ran and no attention was seen, or not the layers that `keep_layers` names.
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
    wanted = Measures(per_row, per_column, share, shares)
    measures = wanted if as_flag(statistics, "statistics") else None
    heads = CapturedHeads(model, as_count(keep, "keep", 0), _named_layers(keep_layers))
    options = thread_count(num_threads), as_flag(check, "check"), as_flag(values, "values")
    recorder = Recorder(model, heads, measures, *options)
    try:
        with recorder.watching():
            yield heads
    finally:
        heads._model = None
    if not recorder.ran:
        return
    if not heads.layers:
        raise CaptureError(
            "the model ran, but computed no attention by scaled_dot_product_attention, "
            "MultiheadAttention or the attention functions of transformers. Some models of "
            "transformers do with attn_implementation='sdpa'"
        )
    names = [layer.name for layer in heads.layers]
    for layer in heads._keep_layers or ():
        if layer not in names and layer not in range(len(names)):
            raise CaptureError(f"keep_layers has {layer!r}, but the layers are {names}")


def _named_layers(layers: Any) -> frozenset[str | int] | None:
    if layers is None:
        return None
    if isinstance(layers, (str, bytes)) or not hasattr(layers, "__iter__"):
        raise InputError(f"keep_layers must be a sequence; got {shown(layers)}")
    names = frozenset(x if isinstance(x, str) else as_count(x, "keep_layers", 0) for x in layers)
    if not names:
        raise InputError(f"keep_layers must name at least one; got {shown(layers)}")
    return names


class Recorder(Running):
    """Takes statistics of each attention that is reported, and keeps its queries and keys."""

    def __init__(
        self, model: Any, heads: CapturedHeads, measures: Measures | None, threads: Any,
        check: bool, values: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(model)
        if check and model.training:
            raise CaptureError("check=True needs a model in evaluation mode: call model.eval()")
        self.heads, self.measures, self.threads = heads, measures, threads
        self.check, self.values = check, values
        # With the tensors, so that no others take their place in memory.
        self._masks: dict[Any, tuple[Read, Any, Any]] = {}

    def end(self) -> None:
        """Forget the masks of a call of the model, which has ended."""
        self._masks.clear()

    def take(
        self, layer: str, module: Any, function: Any, args: Any, kwargs: Any, kind: str | None
    ) -> Any:
        """Record an attention, and return the layer's own result."""
        seen = observed_call(layer, module, function, args, kwargs, kind)
        try:
            call = self.record(seen)
        except InputError as error:
            raise CaptureError(f"{layer}: {error}") from error
        result = function(*args, **kwargs)
        if self.check and function is F.multi_head_attention_forward:
            self.verify(seen, call, heads_of_output(function, args, kwargs))
        elif self.check:
            output = as_heads(result, layer) if kind is None else result[0].transpose(1, 2)
            self.verify(seen, call, output)
        return result

    def record(self, seen: ObservedCall) -> Call:
        """Take an attention into the statistics, and keep it if it is to be kept."""
        query, key = seen.query, seen.key
        if query.dim() != 4 or key.dim() != 4:
            raise CaptureError(
                f"{seen.layer}: queries and keys must have the axes batch, head, token, dimension; "
                f"got shapes {tuple(query.shape)} and {tuple(key.shape)}"
            )
        batch, n, m = max(len(query), len(key)), query.shape[2], key.shape[2]
        # One of them may be the same for the whole batch.
        query, key = (x.expand(batch, *x.shape[1:]) for x in (query, key))
        own = seen.kind == "self" and m >= n
        rows, ids = self._padding(seen, batch, n)
        # Layers have the same masks as long as these exist and do not change. Tensors made in
        # inference mode do not count their changes.
        tensors = [x for x in (seen.mask, seen.bias) if x is not None]
        versions = [-1 if x.is_inference() else x._version for x in tensors]
        padding = None if rows is None else rows.tobytes()
        place = id(seen.mask), id(seen.bias), *versions, seen.causal, padding, batch, n, m, own
        known = self._masks.pop(place, None)
        if known is None:
            known = read_masks(seen, rows, (batch, n, m), own), seen.mask, seen.bias
        self._masks[place] = known  # the last used are the last
        if len(self._masks) > 5:  # of a model that makes a mask for every layer
            self._masks.pop(next(iter(self._masks)))
        masks = known[0]
        call = Call(
            stored(query, "queries"),
            stored(key[:, :, : masks.keys], "keys"),
            {
                "scale": check_scale(seen.scale, query.shape[3]),
                "softcap": None if seen.softcap is None else float(seen.softcap),
                "sinks": None if seen.sinks is None else stored(seen.sinks, "sinks", ndim=1).copy(),
            },
            masks,
            values_of(seen, batch, masks.keys) if self.values else None,
        )
        layers, shape = self.heads._layers, (query.shape[1], key.shape[1], query.shape[3])
        if seen.layer not in layers:
            statistics = HeadStatistics(shape[0], self.measures or Measures())
            layers[seen.layer] = CapturedLayer(seen.layer, seen.kind, *shape, statistics)
        layer = layers[seen.layer]
        if (before := (layer.heads, layer.key_heads, layer.dim)) != shape:
            raise CaptureError(
                f"{seen.layer}: a layer must have the same heads in every call; it had (heads, "
                f"key heads, size) {before} before, and now {shape}"
            )
        for attention, at, part, _ in call.parts() if self.measures is not None else ():
            of_part = ids[at][..., part] if ids is not None and own and masks.keys == n else None
            layer._statistics.add(attention, tokens=of_part, num_threads=self.threads)
        own, *others = (len(x.k) * x.k.shape[2] for x in (call, *layer._kept.values()))
        keep = self.heads._keep if layer in self.heads._wanted() else 0
        if own > keep > 0:
            warn_caller(f"a call of {own} tokens is not kept: keep={keep} of capture is less")
        if own + sum(others) <= keep:
            # A cache may be overwritten later, and a view may keep a larger array alive: copy.
            v = None if call.v is None else np.array(call.v, order="C")
            q, k = (np.array(x, order="C") for x in (call.q, call.k))
            layer._kept[layer.calls] = replace(call, q=q, k=k, v=v)
        layer.calls += 1
        return call

    def _padding(self, seen: ObservedCall, batch: int, n: int) -> tuple[Bools | None, Any]:
        """Return which queries are no padding, and their tokens where a model's arguments say."""
        if seen.rows is not None:
            return seen.rows.detach().cpu().numpy(), None
        frames = [frame for frame in reversed(self.here.frames) if frame.arguments]
        every = (frame.arguments.get("input_ids") for frame in frames)
        fitting = (x for x in every if isinstance(x, torch.Tensor) and x.shape == (batch, n))
        tokens = next((x.detach().cpu().numpy() for x in fitting), None)
        for frame in frames:
            mask = frame.arguments.get("attention_mask")
            if mask is None:
                # A model of transformers without a mask has no padding; other code may say it to
                # its layers in other ways.
                known = frame.module is not self._model or hasattr(frame.module, "config")
                return (np.ones((batch, n), dtype=bool) if known else None), tokens
            if isinstance(mask, torch.Tensor) and mask.dim() == 2:
                # One for other tokens, such as the samples of audio, says nothing of these.
                given = (x for x in frame.arguments.values() if isinstance(x, torch.Tensor))
                cache = frame.arguments.get("cache", frame.arguments.get("past_key_values"))
                # Columns beyond what the cache holds are of tokens that come in later calls.
                count = int(getattr(cache, "get_seq_length", int)()) or mask.shape[1]
                last = mask[:, :count][:, -n:].detach().cpu().numpy() != 0
                fits = last.shape == (batch, n) and last.shape in (x.shape[:2] for x in given)
                return (last if fits else None), tokens
        return None, tokens

    def verify(self, seen: ObservedCall, call: Call, output: Any) -> None:
        """Raise a CaptureError unless attention times values is the output."""
        v, out = values_of(seen, len(call.q), call.k.shape[2]), output.detach().cpu()
        worst, largest = 0.0, float(seen.value.detach().abs().max())
        for attention, at, rows, keys in call.parts():
            ours = attention.apply(v[at][..., keys, :], num_threads=self.threads)
            theirs = out[at][..., rows, :].double().numpy()
            worst = max(worst, float(np.abs(ours - theirs).max(initial=0.0)))
        layer, share = self.heads._layers[seen.layer], worst / max(largest, 1e-30)
        layer.deviation = max(share, layer.deviation or 0.0)
        if not share <= (0.05 if output.dtype in (torch.float16, torch.bfloat16) else 1e-4):
            raise CaptureError(
                f"{seen.layer}: what was captured does not give the layer's output: values differ "
                f"by {share:.2g} of the largest"
            )


def values_of(seen: ObservedCall, batch: int, keys: int) -> FloatArray:
    """Return the values of some first keys of a call, which may be the same for the whole batch."""
    return stored(seen.value.expand(batch, *seen.value.shape[1:])[:, :, :keys], "values")
