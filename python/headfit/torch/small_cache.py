"""`SmallCache`: a cache of transformers that stores keys and values as latents of a few bits."""

import threading
import weakref
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from headfit._cache.result import CompressedKeys, CompressedValues, Latents
from headfit._compress.maps import warn_beyond
from headfit.errors import CaptureError, InputError
from headfit.torch.observed import kind_of
from headfit.torch.reading import rotary_modules, rotary_position


class SmallCache(DynamicCache):  # type: ignore[misc,unused-ignore]
    """A cache of transformers that stores keys and values as results say.

    It is a `DynamicCache` in all else, and goes where one goes: to ``model(..., cache=...)`` or
    ``model.generate(..., cache=...)`` (``past_key_values=`` in versions before 5.24). What is not
    found stays as it is. What a layer attends to are always the keys and values that were read from
    what is stored, those of the tokens of this call too.

    Parameters
    ----------
    model : PreTrainedModel
        A model of transformers, for keys with one rotary embedding for all layers or with none.
    found : CompressedLayers or mapping of str to CompressedKeys
        By the names of layers that `headfit.torch.capture` gives, with ``rotated=`` the model's
        `rotary_position` where a layer has positions. Without a layer its keys stay as they are.
    values : CompressedLayerValues or mapping of str to CompressedValues, optional
        The same for values, as `compress_values` finds them.

    Raises
    ------
    CaptureError
        For keys of a model with rotary embeddings that `rotary_position` refuses.
    InputError
        For names that are no layers of the model, other positions than the model's (none are taken
        where other layers have windows), and layers that attend within a sliding window, whose
        caches drop keys: leave them out.

    Notes
    -----
    Keys come to a cache turned to their positions, and are turned back with those that the model's
    rotary embedding was last called with: within an entry of a batch positions must rise by one
    from token to token, but for padding on the left. Those of a result with a `length` stay as they
    come. Cropping, reordering, repeating and selecting entries of the batch work as in a
    `DynamicCache`; it cannot be offloaded.

    A step of decoding reads all that is stored again: O(tokens rank W) for each layer, with W the
    width of all its key heads.

    Examples
    --------
    >>> import torch, transformers, headfit as hf, headfit.torch
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2)
    >>> model = transformers.LlamaForCausalLM(config).eval()
    >>> tokens = torch.arange(40).reshape(2, 20)
    >>> with hf.torch.capture(model, statistics=False, values=True) as heads:
    ...     heads.run([tokens])
    >>> found = hf.compress_keys(
    ...     heads.layer_passages(), rank=8, bits=4, effort=0,
    ...     rotated=hf.torch.rotary_position(model))
    >>> values = hf.compress_values(heads.layer_passages(values=True), bytes=4)
    >>> cache = hf.torch.SmallCache(model, found, values)
    >>> with torch.no_grad():
    ...     _ = model(tokens, cache=cache)
    >>> cache.layers[0].keys.shape, cache.layers[0].read().shape
    (torch.Size([2, 1, 20, 6]), torch.Size([2, 2, 20, 8]))
    >>> cache.layers[0].values.shape, cache.layers[0].read("values").shape
    (torch.Size([2, 1, 20, 8]), torch.Size([2, 2, 20, 8]))
    """

    def __init__(self, model: Any, found: Any, values: Any = None) -> None:
        rotary = rotary_modules(model)
        if getattr(model, "config", None) is None:
            raise InputError("model must be a model of transformers, with a config")
        super().__init__(config=model.config)
        config, noted = model.config.get_text_config(decoder=True), Positions()
        modules, of_layers = dict(model.named_modules()), dict[int, dict[str, Latents]]()
        hybrid = "sliding_attention" in (getattr(config, "layer_types", None) or ())
        both: Any = (found, CompressedKeys), ({} if values is None else values, CompressedValues)
        for part, (given, kind) in zip(("found", "values"), both, strict=True):
            layers = getattr(given, "layers", given)
            if not isinstance(layers, Mapping):
                raise InputError(f"{part} must be a mapping of layers; got {type(given).__name__}")
            if part == "found":
                position = rotary_position(model) if layers and rotary else ("", ())
            for name, own in layers.items():
                number = getattr(modules.get(name), "layer_idx", None)
                encodes = model.config.is_encoder_decoder and ".encoder." in f".{name}"
                if number is None or encodes or kind_of(modules[name], name) == "cross":
                    where = "attention layers of model that cache its own tokens"
                    raise InputError(f"{part} must name {where}; got {name!r}")
                if not isinstance(own, kind):
                    got = f"got {type(own).__name__}"
                    raise InputError(f"{part} must have a {kind.__name__} for {name!r}; {got}")
                if type(self.layers[number]) is not DynamicLayer:
                    raise InputError(
                        f"{part} must not have {name!r}: its cache is a "
                        f"{type(self.layers[number]).__name__}, which drops keys or stores more"
                    )
                heads = getattr(config, "num_key_value_heads", own.key_heads)
                turns = own.position or ("", ())
                # Beside layers of sliding windows others may have no positions, and say nothing.
                turned = getattr(modules[name], "use_rope", own.position or not hybrid)
                of_model = position if turned else ("", ())
                alike = turns[0] == of_model[0] and len(turns[1]) == len(of_model[1])
                if part == "found" and not (alike and np.allclose(turns[1], of_model[1], 1e-6, 0)):
                    raise InputError(
                        "found must have been fitted with rotated=hf.torch.rotary_position(model) "
                        f"where a layer has positions; {name!r} was not, or frequencies changed"
                    )
                if heads != own.key_heads:
                    raise InputError(
                        f"{part} must be of {heads} key heads, as {name!r} has; got {own.key_heads}"
                    )
                of_layers.setdefault(number, {})["keys" if part == "found" else part] = own
        for number, parts in of_layers.items():
            self.layers[number] = _LatentLayer(parts, noted)
        if position[0]:
            hook = rotary[0].register_forward_pre_hook(_Note(noted), with_kwargs=True)
            weakref.finalize(noted, hook.remove)

    @property
    def nbytes(self) -> int:
        """The bytes of everything that is stored, keys and values."""
        stored = [getattr(x, part, None) for x in self.layers for part in ("keys", "values")]
        return sum(x.nbytes for x in stored if x is not None)


class Positions(threading.local):
    """Positions of a thread's last call of a rotary embedding; layers and copies share them."""

    ids: Any = None
    _last: Any = None, None

    def table(self, packing: Any, starts: Any, count: int, first: int = 0) -> Any:
        """Return cosines and sines of tokens from `first` to `count`, the same for all layers."""
        if packing.frequencies is None:
            return None
        of = count, starts.device, starts.tolist()
        if of != self._last[0]:
            every = torch.arange(count, device=starts.device)
            self._last = of, packing.table(every - starts[:, None])
        return self._last[1][:, first:]

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return Positions, ()


class _Note:
    """The hook of a rotary embedding that notes its positions, as long as a cache wants them."""

    def __init__(self, positions: Positions | None) -> None:
        self.positions: Any = (lambda: None) if positions is None else weakref.ref(positions)

    def __reduce__(self) -> Any:
        return _Note, (None,)  # a model that is copied has no cache

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> None:
        noted = self.positions()
        if noted is not None:
            noted.ids = kwargs.get("position_ids", args[1] if len(args) > 1 else None)


class _LatentLayer(DynamicLayer):  # type: ignore[misc,unused-ignore]
    """The cache of a layer: `keys`, `values` or both hold bytes, (batch, 1, tokens, of a token)."""

    def __init__(self, found: Mapping[str, Latents], positions: Positions) -> None:
        super().__init__()
        self.found, self._noted = found, positions
        self.values: Any
        self.starts: Any = None  # of each entry of the batch: the place of the token of position 0

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        device, self.dtype, self.packings = key_states.device, key_states.dtype, {}
        stores: dict[str, torch.Tensor] = {}
        for part, own in self.found.items():
            batch, heads, _, size = (key_states if part == "keys" else value_states).shape
            if [heads, size] != (fitted := [own.key_heads, len(own.mean) // own.key_heads]):
                raise InputError(f"{part} must have heads and size {fitted}; got {[heads, size]}")
            packing = self.packings[part] = own.packing.on(
                lambda x: torch.as_tensor(x, dtype=torch.float32, device=device)
            )
            size = packing.core.token_bytes
            stores[part] = torch.empty([batch, 1, 0, size], dtype=torch.uint8, device=device)
        super().lazy_initialization(key_states, value_states)
        self.__dict__.update(stores)

    def update(self, key_states: Any, value_states: Any, *_: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Store keys and values, and return all, read from what is stored.

        No gradient goes through what is stored as latents.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        warn_beyond(before + key_states.shape[-2], getattr(self.found.get("keys"), "length", None))
        still = getattr(self.packings.get("keys"), "frequencies", None) is None
        starts = None if still else self._starts_with(before, key_states)
        for part, states in (("keys", key_states), ("values", value_states)):
            if packing := self.packings.get(part):
                with torch.no_grad():
                    table = self._noted.table(packing, starts, before + states.shape[-2], before)
                    states = packing.pack(states.float(), table)[:, None]
            setattr(self, part, torch.cat([getattr(self, part), states], dim=-2))
        self.starts = starts
        return self.read(), self.read("values")

    def _starts_with(self, before: int, keys: Any) -> Any:
        """Return where positions start, by the positions of the last tokens of this call."""
        positions, (batch, _, count, _) = self._noted.ids, keys.shape
        if positions is None or positions.shape[-1] != count or positions.ndim != 2:
            raise CaptureError(
                "the positions of the keys are not known: SmallCache must be used with the model "
                "that it was made for, whose positions must be of shape (batch, tokens)"
            )
        positions = positions.to(self.keys.device).expand(batch, count)
        starts = before + count - 1 - positions[:, -1]
        # Some give padding the position 1.
        starts = starts.masked_fill((positions == 1).all(dim=1) & (count > 1), before + count)
        rising = torch.arange(before, before + count, device=starts.device) - starts[:, None]
        known = self.starts if before else starts
        wrong = ((rising >= 0) & (positions != rising)).any(dim=1)
        # Or padding on the right. A last token of position 0 may prove to be padding on the left.
        wrong |= ((rising < 0)[:, 1:] & (positions.diff() > 0) & (positions[:, 1:] > 0)).any(dim=1)
        if (wrong | (starts != known) & ~((known >= before - 1) & (starts >= before))).any():
            raise InputError("positions must rise by one from token to token within the cache")
        return starts

    def read(self, part: str = "keys") -> Any:
        """Return all keys, turned to their positions, or "values": (batch, heads, tokens, D)."""
        if not self.is_initialized:
            raise InputError("read needs tokens in the cache: call the model with it first")
        stored = getattr(self, part)
        if part not in self.packings:
            return stored
        packing = self.packings[part]
        table = self._noted.table(packing, self.starts, stored.shape[-2])
        return packing.unpack(stored[:, 0], table, dtype=self.dtype)

    def offload(self) -> None:
        """Refuse: maps and positions would stay where they are."""
        raise InputError("SmallCache cannot be offloaded")

    def reset(self) -> None:
        # Older versions of transformers only write zeros.
        self.__dict__.update(keys=None, values=None, starts=None, is_initialized=False)

    def reorder_cache(self, beam_idx: Any) -> None:
        super().reorder_cache(beam_idx)
        self._of_entries(lambda starts: starts.index_select(0, beam_idx.to(starts.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._of_entries(lambda starts: starts.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Any) -> None:
        super().batch_select_indices(indices)
        self._of_entries(lambda starts: starts[indices])

    def _of_entries(self, change: Any) -> None:
        if self.starts is not None:
            self.starts = change(self.starts)
