"""`Running`: which module of a model is running, and the attentions that it computes."""

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from headfit.errors import CaptureError, InputError


@dataclass
class Frame:
    """A running module, with arguments by name if its padding mask is that of its attentions."""

    module: Any
    arguments: dict[str, Any]
    calls: int = 0


class _Here(threading.local):
    """What runs in a thread: modules, the innermost last, and whether an attention does."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.inside = False


class Running(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Follows a model while it runs, and takes its attentions in the place of their functions.

    Layers of Hugging Face transformers look up their attention function by the name of an
    implementation. While a model is watched, that look-up returns one that hands the call to
    `take`, so that settings, masks and numbers of the model stay as they are. The calls of the
    functions of PyTorch by any other code go there too. `nn.MultiheadAttention` and
    `nn.TransformerEncoder` do not take their fused path then, which would bypass it: they compute
    the same in single steps.

    `ran` says whether a call of the model has ended without an exception. Threads may call a model
    of transformers at once, and call `take` and `end` in turn; other code has the context's alone.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        if not isinstance(model, torch.nn.Module):
            raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
        self.names = {id(module): name or "model" for name, module in model.named_modules()}
        for module in model.modules():
            why = ""
            if isinstance(module, torch.jit.ScriptModule):
                why = "is a ScriptModule; pass the module it was made from"
            elif hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None):
                why = "is compiled; pass the module that it was compiled from"
            elif getattr(module, "reorder_and_upcast_attn", False):
                why = "computes attention itself: reorder_and_upcast_attn=True"
            elif model.training and getattr(module, "gradient_checkpointing", False):
                why = "recomputes its layers in the backward pass: turn gradient checkpointing off"
            if why:
                raise CaptureError(f"{self.names[id(module)]} {why}")
        self.here, self.ran = _Here(), False
        self._model, self._lock = model, threading.RLock()

    def __reduce__(self) -> Any:
        return Running, (torch.nn.Module(),)  # a model that is copied is not watched

    def take(
        self, layer: str, module: Any, function: Any, args: Any, kwargs: Any, kind: str | None
    ) -> Any:
        """Compute an attention, ``function(*args, **kwargs)``, and return what the layer gets.

        `kind` is the implementation of transformers that the function stands for, and None for
        `scaled_dot_product_attention` and `multi_head_attention_forward`.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Do what is to be done when a call of the model has ended."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the model, and take its attentions, while the context lasts."""
        with ExitStack() as stack:
            for module in self._model.modules():
                stack.enter_context(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                stack.enter_context(module.register_forward_hook(self._leave, always_call=True))
            stack.enter_context(replaced_look_up(self))
            stack.enter_context(self)
            yield

    def _enter(self, module: Any, args: Any, kwargs: Any) -> None:
        library, arguments = sys.modules.get("transformers"), {}
        if module is self._model or (library and isinstance(module, library.PreTrainedModel)):
            names = inspect.signature(module.forward).parameters
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        self.here.frames.append(Frame(module, arguments))

    def _leave(self, module: Any, _args: Any, output: Any) -> None:
        frames = self.here.frames
        while frames and frames.pop().module is not module:
            pass
        if not frames:
            self.ran = self.ran or output is not None  # None after an exception
            with self._lock:
                self.end()

    def attend(self, layer: str, *call: Any) -> Any:
        """Take an attention, and no notice of those that it consists of."""
        before, self.here.inside = self.here.inside, True
        try:
            with self._lock:
                return self.take(layer, *call)
        finally:
            self.here.inside = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = func is F.scaled_dot_product_attention or func is F.multi_head_attention_forward
        if not taken or self.here.inside or not self.here.frames:
            return func(*args, **kwargs)
        module = self.here.frames[-1].module
        return self.attend(self.name_of(module) or "model", module, func, args, kwargs, None)

    def name_of(self, module: Any) -> str | None:
        """Return the name of a layer whose module computes an attention.

        A second attention in one call of the module has a number. None for a module of another
        model.
        """
        name = self.names.get(id(module))
        for frame in reversed(self.here.frames if name else ()):
            if frame.module is module:
                frame.calls += 1
                return name if frame.calls == 1 else f"{name}#{frame.calls}"
        return name


# Who takes the calls of the functions that layers of transformers look up, in any thread.
_watching: list[Running] = []
_look_ups: dict[str, Any] = {}


@contextmanager
def replaced_look_up(running: Running) -> Iterator[None]:
    """Hand calls of the functions that layers of transformers look up to a `Running`.

    The look-up is replaced as long as anybody watches, so that contexts may end in any order.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        yield  # nobody has loaded a model of this library
        return
    interface = library.AttentionInterface
    if not hasattr(interface, "get_interface"):
        raise CaptureError("headfit.torch needs transformers 5.1 or newer")
    if not _watching:
        for name in ("get_interface", "__getitem__"):
            _look_ups[name] = getattr(interface, name)
            setattr(interface, name, _watched(_look_ups[name]))
    _watching.append(running)
    try:
        yield
    finally:
        _watching.remove(running)
        if not _watching:
            for name, look_up in _look_ups.items():
                setattr(interface, name, look_up)


def _watched(look_up: Any) -> Any:
    """Return a look-up of the function of an implementation, by way of those who watch."""

    def found(self: Any, implementation: Any, *default: Any) -> Any:
        function = look_up(self, implementation, *default)
        for running in () if getattr(function, "func", None) is _attend else _watching:
            if not running.here.inside:
                # Without an implementation, as in a module of no model, it is the default.
                function = partial(_attend, running, implementation or "eager", function)
        return function

    return found


def _attend(
    running: Running, implementation: Any, function: Any, module: Any, *args: Any, **kwargs: Any
) -> Any:
    """Compute an attention by way of a `Running`, if the module is of its model."""
    # A module may have kept what it looked up: nobody watches any more.
    layer = running.name_of(module) if running in _watching else None
    if layer is None:
        return function(module, *args, **kwargs)
    return running.attend(layer, module, partial(function, module), args, kwargs, implementation)
