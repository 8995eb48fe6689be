"""`CapturedHeads`: what `capture` found in a model, while it runs and afterwards."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headfit._attention.attention import Attention
from headfit._attention.head_table import ModelTable
from headfit._attention.heads import single_heads
from headfit._attention.profile import HeadStatistics
from headfit._base.arguments import as_count, as_flag, check_callable, shown
from headfit._compress.maps import warn_caller
from headfit.errors import CaptureError, InputError
from headfit.torch.call import Call, key_head
from headfit.torch.report import write_report

_NOTHING_KEPT = "no queries and keys were kept: capture(model, keep=...) says how many to keep"
_NOTHING_CAPTURED = "nothing was captured yet: call the model first"


@dataclass(repr=False, eq=False)
class CapturedLayer:
    """An attention layer of a model, and what was captured of it.

    Attributes
    ----------
    name : str
        The path of its module in the model, with "#2", "#3", ... for a second and third attention
        that the module computes in one call.
    kind : str
        "self", or "cross" where the keys belong to other tokens than the queries.
    heads, key_heads, dim : int
        The numbers of query heads and of key heads, and their size.
    calls, kept : int
        How often it was called, and how many of these calls were kept.
    deviation : float or None
        With ``check=True``, the largest difference between the layer's output and what
        `attention_apply` makes of the captured queries and keys, relative to the largest value.

    Examples
    --------
    >>> import torch, headfit as hf, headfit.torch
    >>> model = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True).eval()
    >>> with hf.torch.capture(model) as heads:
    ...     _ = model(*[torch.zeros(3, 6, 8)] * 3)
    >>> heads.layers
    (CapturedLayer('model', self, 2 heads of size 4, 1 call, 1 kept),)
    """

    name: str
    kind: str
    heads: int
    key_heads: int
    dim: int
    _statistics: HeadStatistics
    calls: int = 0
    deviation: float | None = None
    _kept: dict[int, Call] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """How many calls were kept."""
        return len(self._kept)

    def __repr__(self) -> str:
        shared = "" if self.key_heads == self.heads else f" on {self.key_heads} key heads"
        return (
            f"CapturedLayer({self.name!r}, {self.kind}, {self.heads} heads{shared} of size "
            f"{self.dim}, {self.calls} call{'' if self.calls == 1 else 's'}, {self.kept} kept)"
        )


class CapturedHeads:
    """The heads of a model, as `capture` saw them.

    ``heads[layer, head]`` is the `Attention` of a head, with the axis of the batch first, which is
    left out for a batch of one; ``heads[layer]`` that of all heads of the layer. A layer is given
    by its number in the order of the first calls or by its name. A layer that was called several
    times needs the number of the call, too: ``heads[layer, head, call]``. Iteration gives the names
    of the layers.

    Attributes
    ----------
    layers : tuple of CapturedLayer
        In the order of their first calls.

    Notes
    -----
    Rows and keys that are padding are part of these attentions, where padded keys are masked; the
    statistics of `table` leave both out.

    Examples
    --------
    >>> import torch, headfit as hf, headfit.torch
    >>> model = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True).eval()
    >>> with hf.torch.capture(model) as heads:
    ...     heads.run([(torch.randn(1, n, 8),) * 3 for n in (5, 7)])  # query, key and value
    >>> heads["model", 1, 0].matrix().shape, heads["model", :, 1].matrix().shape
    ((5, 5), (2, 7, 7))
    >>> heads.table().numbers["rows"]
    array([12, 12])
    """

    def __init__(self, model: Any, keep: int, layers: frozenset[str | int] | None) -> None:
        self._model, self._keep, self._keep_layers = model, keep, layers
        self._layers: dict[str, CapturedLayer] = {}

    @property
    def layers(self) -> tuple[CapturedLayer, ...]:
        """The layers, in the order of their first calls."""
        return tuple(self._layers.values())

    def _wanted(self) -> list[CapturedLayer]:
        names = self._keep_layers
        return [x for at, x in enumerate(self.layers) if names is None or {at, x.name} & names]

    def __getitem__(self, key: Any) -> Attention:
        parts = key if isinstance(key, tuple) else (key,)
        if not 1 <= len(parts) <= 3:
            raise InputError(f"heads takes [layer, head] or [layer, head, call]; got {shown(key)}")
        which, head, number = parts + (slice(None), None)[len(parts) - 1 :]
        layer = self._layer(which)
        if isinstance(head, slice) and head == slice(None):
            return self._call(layer, number).attention()
        return self._call(layer, number).head(as_count(head, "head", 0, layer.heads - 1))

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def _layer(self, which: Any) -> CapturedLayer:
        if isinstance(which, str):
            if which not in self._layers:
                raise InputError(
                    f"layer must be the name of a captured layer; got {which!r}, and the layers "
                    f"are {shown(list(self._layers))}"
                )
            return self._layers[which]
        if not self._layers:
            raise CaptureError(_NOTHING_CAPTURED)
        return self.layers[as_count(which, "layer", 0, len(self._layers) - 1)]

    def _call(self, layer: CapturedLayer, number: Any) -> Call:
        if number is None and layer.calls > 1:
            raise InputError(
                f"{layer.name} was called {layer.calls} times: ask for heads[layer, head, call], "
                f"with a call in 0 ... {layer.calls - 1}"
            )
        number = as_count(0 if number is None else number, "call", 0, layer.calls - 1)
        if number not in layer._kept:
            raise CaptureError(
                f"call {number} of {layer.name} was not kept: its queries and keys are not within "
                f"keep={self._keep} tokens of the layers to keep. The statistics of table() count "
                "it; for its attention pass capture(model, keep=...) with more tokens"
            )
        return layer._kept[number]

    def passages(self) -> dict[tuple[str, int], list[Attention]]:
        """Return what was kept as passages of each key head, as `compress` takes them.

        Returns
        -------
        dict
            By the name of the layer and the number of the key head: one `Attention` for each
            passage, without padding. Its leading axis is that of the query heads that share the
            key head, if there are several.

        Raises
        ------
        CaptureError
            If nothing was kept. Warnings are those of `layer_passages`.

        Examples
        --------
        >>> import torch, headfit as hf, headfit.torch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval()
        >>> with hf.torch.capture(layer) as heads:
        ...     _ = layer(torch.randn(3, 10, 16))
        >>> {name: len(of_head) for name, of_head in heads.passages().items()}
        {('self_attn', 0): 3, ('self_attn', 1): 3}
        """
        return {
            (name, at): [key_head(passage, at) for passage in whole]
            for name, whole in self.layer_passages().items()
            for at in range(self._layers[name].key_heads)
        }

    def layer_passages(self, *, values: bool = False) -> dict[str, list[Any]]:
        """Return what was kept as passages of each layer, as `compress_keys` takes them.

        Parameters
        ----------
        values : bool, default False
            Whether to return the values too, as `compress_values` takes them.

        Returns
        -------
        dict
            By the name of the layer: one `Attention` for each passage, without padding. Its leading
            axis is heads. With `values` a pair of it and of V, shape (key heads, keys, dv).

        Raises
        ------
        CaptureError
            If nothing was kept, or no values where they are asked for.

        Warns
        -----
        UserWarning
            If calls were not kept, for want of `keep`, or share keys, those of a cache: parts of
            one text are no held-out passages for each other.

        Examples
        --------
        >>> import torch, headfit as hf, headfit.torch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval()
        >>> with hf.torch.capture(layer) as heads:
        ...     _ = layer(torch.randn(3, 10, 16))
        >>> {name: [x.Q.shape for x in of] for name, of in heads.layer_passages().items()}
        {'self_attn': [(2, 10, 8), (2, 10, 8), (2, 10, 8)]}
        """
        wanted, part = self._wanted(), "with_values" if as_flag(values, "values") else "passages"
        if not any(layer.kept for layer in wanted):
            raise CaptureError(_NOTHING_KEPT if self._layers else _NOTHING_CAPTURED)
        calls, of = (sum(getattr(layer, x) for layer in wanted) for x in ("kept", "calls"))
        if calls < of:
            warn_caller(
                f"{of - calls} of {of} calls of the layers were not kept: they are not within "
                f"keep={self._keep} tokens of each. capture(model, keep=...) with more keeps them"
            )
        own = (x for layer in wanted if layer.kind == "self" for x in layer._kept.values())
        if any(call.k.shape[2] > call.q.shape[2] for call in own):
            warn_caller(
                "calls with a cache (generate, a text in parts) are passages that share keys: "
                "those held out of a fit are not unseen. Run each text in one call"
            )
        return {
            layer.name: whole
            for layer in wanted
            if (whole := [one for call in layer._kept.values() for one in getattr(call, part)()])
        }

    def first_passages(self) -> list[list[Attention]]:
        """Return the kept heads of each layer, for the first passage that was kept of it.

        Padding is left out. `heads_grid` draws these.

        Raises
        ------
        CaptureError
            If no queries and keys were kept.
        """
        kept = [next(iter(layer._kept.values())).passages() for layer in self.layers if layer.kept]
        first = [single_heads(attention) for passages in kept for attention in islice(passages, 1)]
        if not first:
            raise CaptureError(_NOTHING_KEPT if self._layers else _NOTHING_CAPTURED)
        return first

    def table(self) -> ModelTable:
        """Return the statistics of all heads, over all passages that the model read so far.

        Returns
        -------
        ModelTable
            One row per layer and head.

        Raises
        ------
        CaptureError
            If nothing was captured yet, or statistics were turned off.
        """
        if not self._layers:
            raise CaptureError(_NOTHING_CAPTURED)
        if not any(layer._statistics.passages for layer in self.layers):
            raise CaptureError("no statistics were taken: capture(model, statistics=True) does")
        return ModelTable.of({x.name: (x.kind, x._statistics) for x in self.layers})

    def report(self, path: Any, *, title: str = "Attention heads") -> Path:
        """Write a page about the heads: sentences in plain words, pictures, and the table.

        The page is one HTML file that needs no other. Matplotlib must be installed.

        Parameters
        ----------
        path : str or path
            A file name that ends in .html.
        title : str
            The title of the page.

        Returns
        -------
        Path

        Raises
        ------
        CaptureError
            If nothing was captured yet, or statistics were turned off.
        FileError
            If the file cannot be written.
        ImportError
            If Matplotlib is not installed.
        """
        first = self.first_passages() if any(layer.kept for layer in self.layers) else []
        return write_report(self.table(), first, path, title)

    def run(self, batches: Iterable[Any], *, call: Callable[..., Any] | None = None) -> None:
        """Run the model on the batches of a loader, without gradients, and capture them.

        Parameters
        ----------
        batches : iterable
            Mappings, whose items become keyword arguments of the model, sequences, whose items
            become positional ones, or single tensors (of one batch alone, a list of it). Tensors
            are moved to the model's device.
        call : callable, optional
            What is called with these arguments; the model itself when None. For example
            ``model.generate``.

        Raises
        ------
        CaptureError
            If the model is not being captured any more.
        InputError
            For arguments of the wrong kind.
        """
        model = self._model
        if model is None:
            raise CaptureError("run works inside the with statement of capture only")
        check_callable(call, "call")
        is_one = hasattr(batches, "keys") or isinstance(batches, torch.Tensor)
        if is_one or not {"__iter__", "__getitem__"} & {*dir(batches)}:
            raise InputError(f"batches must be an iterable of batches; got {shown(batches)}")
        target = call or model
        device = next((p.device for p in model.parameters()), torch.device("cpu"))

        def moved(x: Any) -> Any:
            return x.to(device) if isinstance(x, torch.Tensor) else x

        with torch.no_grad():
            for batch in batches:
                if hasattr(batch, "keys"):
                    target(**{name: moved(batch[name]) for name in batch.keys()})  # noqa: SIM118
                else:
                    target(*map(moved, batch if isinstance(batch, (list, tuple)) else [batch]))

    def __repr__(self) -> str:
        heads = sum(layer.heads for layer in self.layers)
        lines = [f"CapturedHeads({len(self._layers)} layers, {heads} heads)"]
        lines += [f"  {at}: {layer!r}" for at, layer in enumerate(self.layers[:24])]
        left = len(self._layers) - 24
        return "\n".join([*lines, *([f"  ... and {left} layers more"] if left > 0 else [])])
