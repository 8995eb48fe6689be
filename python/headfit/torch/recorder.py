"""`Recorder`: where `capture` takes each attention that a model computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from headfit._attention.logits import check_scale
from headfit._attention.profile import HeadStatistics, Measures
from headfit._base.arrays import as_stored_array
from headfit.errors import CaptureError, InputError
from headfit.torch.call import Call
from headfit.torch.captured import CapturedHeads, CapturedLayer
from headfit.torch.observed import (
    ObservedCall,
    as_heads,
    dot_product_call,
    heads_of_output,
    multi_head_call,
    transformers_call,
)
from headfit.torch.running import Running
from headfit.torch.visibility import MaskReader


class Recorder(Running):
    """Takes statistics of each attention that is reported, and keeps its queries and keys."""

    def __init__(
        self, model: Any, heads: CapturedHeads, measures: Measures | None, threads: Any, check: bool
    ) -> None:
        super().__init__(model)
        self.heads, self.measures, self.threads, self.check = heads, measures, threads, check
        self._masks = MaskReader()

    def end(self) -> None:
        """Forget the masks of a call of the model, which has ended."""
        self._masks.forget()

    def of_transformers(
        self, layer: str, module: Any, implementation: Any, function: Any, args: Any, kwargs: Any
    ) -> Any:
        """Record the attention of a layer of transformers, and return its own result."""
        seen = transformers_call(layer, module, implementation, args, kwargs)
        call = self.record(seen)
        with self.passing():
            result = function(module, *args, **kwargs)
        if self.check:
            self.verify(seen, call, seen.value, result[0].transpose(1, 2))
        return result

    def of_torch(self, layer: str, module: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Record the attention of a function of PyTorch, and return its own result."""
        multi_head = function is F.multi_head_attention_forward
        read = multi_head_call if multi_head else dot_product_call
        seen = read(layer, module, args, kwargs)
        call = self.record(seen)
        with self.passing():
            result = function(*args, **kwargs)
            if self.check and multi_head:
                self.verify(seen, call, *heads_of_output(function, args, kwargs))
            elif self.check:
                self.verify(seen, call, seen.value, as_heads(result, layer))
        return result

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
        masks = self._masks.read(seen, rows, (batch, n, m), own)
        key = key[:, :, : masks.keys]
        layer = self._layer(seen, (query.shape[1], key.shape[1], query.shape[3]))
        call = Call(
            stored(query, "queries"),
            stored(key, "keys"),
            check_scale(seen.scale, query.shape[3]),
            None if seen.softcap is None else float(seen.softcap),
            None if seen.sinks is None else stored(seen.sinks, "sinks", ndim=1),
            masks,
        )
        if self.measures is not None:
            for attention, at, part, _ in call.parts():
                ids = None if tokens is None else tokens[at][..., part]
                layer._statistics.add(attention, tokens=ids, num_threads=self.threads)
        self.heads._take(layer, call)
        return call

    def _layer(self, seen: ObservedCall, shape: tuple[int, int, int]) -> CapturedLayer:
        layers = self.heads._layers
        if seen.layer not in layers:
            statistics = HeadStatistics(shape[0], self.measures or Measures())
            layers[seen.layer] = CapturedLayer(seen.layer, seen.kind, *shape, statistics)
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
        for attention, at, rows, keys in call.parts():
            ours = attention.apply(v[at][..., keys, :], num_threads=self.threads)
            theirs = out[at][..., rows, :].double().numpy()
            worst = max(worst, float(np.abs(ours - theirs).max(initial=0.0)))
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
