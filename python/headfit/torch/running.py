"""`Running`: which module of a model is running, and the names of its attention layers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Frame:
    """A module of the model that is running."""

    module: Any
    name: str
    arguments: dict[str, Any] | None
    calls: int = field(default=0)


class Running:
    """Follows a model while it runs.

    Attributes
    ----------
    names : dict of int to str
        The names of the model's modules, by their id.
    frames : list of Frame
        The modules that are running, the innermost last.
    inside : bool
        Whether attentions are not to be noticed, since they are parts of a larger one.
    ran : bool
        Whether a call of the model has ended without an exception.
    """

    def __init__(self, model: Any) -> None:
        self.names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
        self.frames: list[Frame] = []
        self.inside = False
        self.ran = False
        self._model = model

    def end(self) -> None:
        """Do what is to be done when a call of the model has ended."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow which module of the model is running, while the context lasts."""
        with ExitStack() as stack:
            for name, module in self._model.named_modules():
                names = self._read_arguments(module)
                before = module.register_forward_pre_hook(
                    self._entering(name, names), with_kwargs=True
                )
                stack.callback(before.remove)
                after = module.register_forward_hook(self._leave, always_call=True)
                stack.callback(after.remove)
            yield

    def _read_arguments(self, module: Any) -> tuple[str, ...] | None:
        """Return the argument names of a module whose padding mask is that of its attentions."""
        library = sys.modules.get("transformers")
        if module is not self._model and not (
            library is not None and isinstance(module, library.PreTrainedModel)
        ):
            return None
        return tuple(inspect.signature(module.forward).parameters)

    def _entering(self, name: str, names: tuple[str, ...] | None) -> Callable[..., None]:
        def enter(module: Any, args: Any, kwargs: Any) -> None:
            arguments = (
                None if names is None else {**dict(zip(names, args, strict=False)), **kwargs}
            )
            self.frames.append(Frame(module, name, arguments))

        return enter

    def _leave(self, module: Any, _args: Any, output: Any) -> None:
        while self.frames and self.frames.pop().module is not module:
            pass
        if not self.frames:
            self.ran = self.ran or output is not None  # None after an exception
            self.end()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Take no notice of attentions while the context lasts: they are parts of a larger one."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before

    def name_here(self) -> str:
        """Return the name of a layer for the attention that the running module computes."""
        frame = self.frames[-1]
        frame.calls += 1
        name = frame.name or "model"
        return name if frame.calls == 1 else f"{name}#{frame.calls}"

    def name_of(self, module: Any) -> str | None:
        """Return the name of a layer whose module computes an attention.

        A second attention in one call of the module has a number. None for a module of another
        model.
        """
        name = self.names.get(id(module))
        if name is None:
            return None
        for frame in reversed(self.frames):
            if frame.module is module:
                frame.calls += 1
                return name if frame.calls == 1 else f"{name}#{frame.calls}"
        return name
