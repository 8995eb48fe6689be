"""Results with maps that are kept in files: of one key head or layer, or of several by name."""

import json
from typing import Any, ClassVar, Self

import numpy as np

from headfit._base.files import Arrays, write_head
from headfit._base.positions import as_rotary
from headfit._fit.storage import read_head, record
from headfit._shrink.result import Each, Result, ResultByName
from headfit.errors import InputError


class InFile(Result):
    """A result that is kept in a file: tensors, beside a text from which `_of` makes the others."""

    @classmethod
    def _of(cls, about: dict[str, Any], arrays: Arrays) -> Self:
        raise NotImplementedError

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
        arrays, text = read_head(path, "path", f"saved {cls.__name__}")
        try:
            about = json.loads(str(text))
            if (held := about.pop("is", "something else")) != cls.__name__:
                raise ValueError(f"it holds {held!s:.80}")
            return cls._of(about, arrays)
        except Exception as error:  # changed bytes may raise errors of any class
            kind = "" if isinstance(error, (ValueError, InputError)) else f"{type(error).__name__} "
            raise InputError(f"path: {path} is no saved {cls.__name__}: {kind}{error}") from error

    def _write(self, path: Any, tensors: Arrays, about: dict[str, Any]) -> None:
        known = {"is": type(self).__name__, **about}
        text = json.dumps(known, default=lambda x: x.tolist() if hasattr(x, "tolist") else vars(x))
        write_head(path, tensors, text, "float32")


class Stored(InFile):
    """A result whose maps are the tensors of its file."""

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


class StoredByName(ResultByName[Each], InFile):
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
        self._write(path, tensors, {"names": list(each), "each": about, "seconds": self.seconds})

    @classmethod
    def _of(cls, about: dict[str, Any], arrays: Arrays) -> Self:
        names = [tuple(x) if isinstance(x, list) else x for x in about.pop("names")]
        each = [cls._kind._of(x, arrays, f"{at}.") for at, x in enumerate(about.pop("each"))]
        return record(cls, {cls._field: dict(zip(names, each, strict=True)), **about})


def check_position(position: Any, size: int) -> None:
    """Raise an error unless a file's position is None or rotary, with frequencies that fit."""
    if position is not None and as_rotary(position, size) is None:
        raise ValueError(f"position must be rotary; got {position!r:.80}")
