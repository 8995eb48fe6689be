"""Results with maps that are kept in files: of one key head or layer, or of several by name."""

import json
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from headfit._base.files import Arrays, write_head
from headfit._base.positions import as_rotary
from headfit._fit.storage import read_head, record
from headfit._shrink.result import Each, Result, ResultByName
from headfit.errors import InputError

Made = TypeVar("Made")


class Stored(Result):
    """A result whose maps are tensors of a file, beside a text with its other fields."""

    _tensors: ClassVar[tuple[str, ...]]

    @property
    def _about(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name not in self._tensors}

    def _check(self) -> None:
        """Raise a ValueError or an InputError where fields of a file do not fit together."""
        raise NotImplementedError

    @classmethod
    def _of(cls, about: dict[str, Any], arrays: Arrays, prefix: str = "") -> Self:
        maps = {name: arrays[prefix + name] for name in cls._tensors}
        for name, x in maps.items():
            if x.dtype != np.float32 or not np.isfinite(x).all():
                raise ValueError(f"{prefix}{name} must be finite and of float32")
        result = record(cls, {**about, **maps})
        result._check()
        return result

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read what `save` wrote, from a ``.safetensors`` or ``.npz`` file.

        Raises
        ------
        MissingFileError, FileError
            Where there is no such file, or it cannot be opened.
        InputError
            For another suffix or content. Pickled content is never read.
        ImportError
            Without the package safetensors, where the suffix asks for it.
        """
        return _read(cls, path, lambda arrays, about: cls._of(about, arrays))


class StoredByName(ResultByName[Each]):
    """Results that are kept in one file: the tensors of the first as "0.P_k", and so on."""

    seconds: float
    _kind: ClassVar[Any]

    @property
    def bytes(self) -> float:
        """The mean over all of their `bytes`."""
        return self._mean("bytes")

    def save(self, path: Any) -> None:
        """Write all maps to a ``.safetensors`` or ``.npz`` file, from which `load` reads them.

        Raises
        ------
        InputError
            For another suffix, and for names that are no texts, ints, or tuples of these.
        ImportError
            Without the package safetensors, where the suffix asks for it.
        """
        each = getattr(self, self._field)
        tensors = {
            f"{place}.{name}": x
            for place, one in enumerate(each.values())
            for name, x in one.tensors().items()
        }
        for name in each:
            parts = name if isinstance(name, tuple) else (name,)
            if not all(isinstance(part, (str, int)) for part in parts):
                raise InputError(f"names must be texts, ints, or tuples of these; got {name!r}")
        about = [one._about for one in each.values()]
        write(path, self, tensors, {"names": list(each), "each": about, "seconds": self.seconds})

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read what `save` wrote; errors are those of `load` of a single one."""

        def made(arrays: Arrays, about: dict[str, Any]) -> Any:
            names = [tuple(x) if isinstance(x, list) else x for x in about.pop("names")]
            each = [cls._kind._of(x, arrays, f"{at}.") for at, x in enumerate(about.pop("each"))]
            return record(cls, {cls._field: dict(zip(names, each, strict=True)), **about})

        return _read(cls, path, made)


def check_position(position: Any, size: int) -> None:
    """Raise an error unless a file's position is None or rotary, with frequencies that fit."""
    if position is not None and as_rotary(position, size) is None:
        raise ValueError(f"position must be rotary; got {position!r:.80}")


def write(path: Any, result: Result, tensors: Arrays, about: dict[str, Any]) -> None:
    """Write tensors and fields of a result to a file."""
    known = {"is": type(result).__name__, **about}
    text = json.dumps(known, default=lambda x: x.tolist() if isinstance(x, np.ndarray) else vars(x))
    write_head(path, tensors, text, "float32")


def _read(kind: type[Made], path: Any, made: Callable[[Arrays, dict[str, Any]], Made]) -> Made:
    arrays, text = read_head(path, "path", f"saved {kind.__name__}")
    try:
        about = json.loads(str(text))
        if (held := about.pop("is", "something else")) != kind.__name__:
            raise ValueError(f"it holds {held!s:.80}")
        return made(arrays, about)
    except Exception as error:  # changed bytes may raise errors of any class
        reason = "" if isinstance(error, (ValueError, InputError)) else f"{type(error).__name__} "
        raise InputError(f"path: {path} is no saved {kind.__name__}: {reason}{error}") from error
