"""`Recorder`: where the readers of `capture` report each attention that a model computes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headfit._attention.logits import default_scale
from headfit._attention.profile import Measures
from headfit._base.arrays import as_stored_array
from headfit.errors import CaptureError, InputError
from headfit.torch.call import Call
from headfit.torch.captured import CapturedHeads, CapturedLayer, keep_call
from headfit.torch.masks import MaskReader
from headfit.torch.running import Running

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|multihead_attn", re.IGNORECASE)


@dataclass(frozen=True)
class ObservedCall:
    """An attention that a model computes, as `capture` sees it; in tensors of PyTorch.

    Attributes
    ----------
    layer, kind : str
    query, key : Tensor, shapes (batch, heads, n, d) and (batch, key heads, m, d)
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
    scale: float | None = None
    mask: Any = None
    causal: bool = False
    bias: Any = None
    softcap: float | None = None
    sinks: Any = None
    rows: Any = None


class Recorder(Running):
    """Takes statistics of each attention that is reported, and keeps its queries and keys."""

    def __init__(
        self,
        model: Any,
        heads: CapturedHeads,
        measures: Measures | None,
        threads: int | None,
        check: bool,
    ) -> None:
        super().__init__(model)
        self.heads, self.measures, self.threads, self.check = heads, measures, threads, check
        self._masks = MaskReader()

    def end(self) -> None:
        """Forget the masks of a call of the model, which has ended."""
        self._masks.forget()

    @staticmethod
    def kind_of(module: Any, name: str) -> str:
        """Return whether a layer is "self" or "cross", from what its module says and its name."""
        last = ".".join(name.split(".")[-2:])
        return (
            "cross"
            if getattr(module, "is_cross_attention", False) or _CROSS.search(last)
            else "self"
        )

    # What it computes.

    def record(self, seen: ObservedCall) -> Call:
        """Take an attention into the statistics, and keep it if it is to be kept."""
        try:
            return self._record(seen)
        except InputError as error:
            raise CaptureError(f"{seen.layer}: {error}") from error

    def _record(self, seen: ObservedCall) -> Call:
        query, key = seen.query, seen.key
        if query.dim() != 4 or key.dim() != 4:
            raise CaptureError(
                f"{seen.layer}: queries and keys must have the axes batch, head, token, dimension; "
                f"got shapes {tuple(query.shape)} and {tuple(key.shape)}"
            )
        if query.shape[0] != key.shape[0]:  # one of them is the same for the whole batch
            batch = max(query.shape[0], key.shape[0])
            query, key = (x.expand(batch, *x.shape[1:]) for x in (query, key))
        batch, n, m = query.shape[0], query.shape[2], key.shape[2]
        own = seen.kind == "self" and m >= n
        rows, tokens = seen.rows, None
        if rows is None:
            rows, tokens = self._padding(batch, n)
        else:
            rows = rows.detach().cpu().numpy()
        if not own or m != n:
            tokens = None
        visible, bias, there = self._masks.read(seen, rows, (batch, n, m), own)
        key = key[:, :, :there]
        layer = self._layer(seen, (query.shape[1], key.shape[1], query.shape[3]))
        call = Call(
            stored(query, "queries"),
            stored(key, "keys"),
            default_scale(query.shape[3]) if seen.scale is None else float(seen.scale),
            None if seen.softcap is None else float(seen.softcap),
            None if seen.sinks is None else stored(seen.sinks, "sinks", ndim=1),
            bias,
            visible,
            tokens,
        )
        if self.measures is not None:
            for attention, ids, _ in call.parts():
                layer._statistics.add(attention, tokens=ids, num_threads=self.threads)
        number = list(self.heads._layers).index(seen.layer)
        # A cache may be overwritten later, and a view may keep a larger array alive: copy.
        keep_call(layer, number, call, self.heads._keep)
        if layer.calls in layer._kept:
            kept = layer._kept[layer.calls]
            q, k = (np.array(x, order="C") for x in (kept.q, kept.k))
            layer._kept[layer.calls] = replace(kept, q=q, k=k, tokens=None)
        layer.calls += 1
        return call

    def _layer(self, seen: ObservedCall, shape: tuple[int, int, int]) -> CapturedLayer:
        layers = self.heads._layers
        if seen.layer not in layers:
            measures = self.measures or Measures()
            layers[seen.layer] = CapturedLayer(seen.layer, seen.kind, shape, measures)
        layer = layers[seen.layer]
        before = (layer.heads, layer.key_heads, layer.dim)
        if before != shape:
            raise CaptureError(
                f"{seen.layer}: a layer must have the same heads in every call; it had (heads, "
                f"key heads, size) {before} before, and now {shape}"
            )
        return layer

    def _padding(self, batch: int, n: int) -> tuple[NDArray[np.bool_] | None, Any]:
        """Return which queries are no padding, and their tokens, from the model's arguments."""
        rows, tokens, known = None, None, False
        for frame in reversed(self.frames):
            if frame.arguments is None:
                continue
            mask, ids = frame.arguments.get("attention_mask"), frame.arguments.get("input_ids")
            if tokens is None and isinstance(ids, torch.Tensor) and ids.shape == (batch, n):
                tokens = ids.detach().cpu().numpy()
            if known:
                continue
            if mask is None:
                # A model of transformers without a mask has no padding; other code may say it to
                # its layers in other ways.
                known = True
                if frame.module is not self._model or hasattr(frame.module, "config"):
                    rows = np.ones((batch, n), dtype=bool)
            elif isinstance(mask, torch.Tensor) and mask.dim() == 2:
                known = True
                if mask.shape[0] == batch and mask.shape[1] >= n:
                    rows = mask[:, -n:].detach().cpu().numpy() != 0
        return rows, tokens

    # Whether what was recorded is what the layer computes.

    def verify(self, seen: ObservedCall, call: Call, value: Any, output: Any) -> None:
        """Raise a CaptureError unless the call's attention times the values is the output.

        Parameters
        ----------
        value, output : Tensor, shapes (batch, key heads, m, dv) and (batch, heads, n, dv)
        """
        if value.shape[0] != len(call.q):
            value = value.expand(len(call.q), *value.shape[1:])
        v, out = stored(value[:, :, : call.k.shape[2]], "values"), output.detach().cpu()
        narrow = value.dtype in (torch.float16, torch.bfloat16)
        worst, largest = 0.0, float(value.detach().abs().max())
        for attention, _, part in call.parts():
            own_v, theirs = v[0] if len(v) == 1 else v, out[0] if len(v) == 1 else out
            if part is not None:
                b, (rows, keys, _mask) = part
                own_v, theirs = v[b][:, keys], out[b][:, rows]
            ours = attention.apply(own_v, num_threads=self.threads)
            worst = max(worst, float(np.abs(ours - theirs.double().numpy()).max(initial=0.0)))
        layer, found = self.heads._layers[seen.layer], worst / max(largest, 1e-30)
        layer.deviation = max(found, layer.deviation or 0.0)
        if not found <= (0.05 if narrow else 1e-4):
            raise CaptureError(
                f"{seen.layer}: what was captured does not give the layer's output: values differ "
                f"by {found:.2g} of the largest"
            )


def stored(tensor: Any, name: str, ndim: int = 2) -> NDArray[Any]:
    """Return a tensor as an array on the CPU, in its own dtype, without a copy if it is there."""
    return as_stored_array(tensor.detach().cpu(), name, ndim=ndim)
