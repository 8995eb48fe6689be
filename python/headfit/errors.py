"""The exceptions that headfit raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "CaptureError", "CertificateError", "FileError", "HeadfitError", "InputError",
    "MissingFileError", "NonFiniteError", "TargetError", "TooLargeError",
]  # fmt: skip
__dir__ = __all__.copy


class HeadfitError(Exception):
    """Base class of every error that headfit raises on purpose."""


class InputError(HeadfitError, ValueError):
    """An invalid argument; the message names it, what was expected and what came."""


class TargetError(InputError):
    """A target that is not a valid attention pattern; the message names the first bad row."""


class NonFiniteError(InputError):
    """NaN or infinity in an input, or in a product of finite inputs; the message says where."""


class FileError(InputError, OSError):
    """A path that cannot be read or written; also an `OSError`, with its errno and filename."""

    def __init__(
        self, message: str, number: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        self.errno, self.filename = number, filename

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew from its arguments: what OSError would do, and libraries that pickle tracebacks
        # assume of it, does not suit a class with two built-in bases.
        return type(self), (self.args[0], self.errno, self.filename)


class MissingFileError(FileError, FileNotFoundError):
    """A path to a file or folder that does not exist; also a `FileNotFoundError`."""


class TooLargeError(InputError, MemoryError):
    """Work that does not fit in the free memory, refused before it starts; also a `MemoryError`."""


class CertificateError(HeadfitError):
    """A certificate that was required to hold does not."""


class CaptureError(HeadfitError):
    """A model's attention that cannot be captured; the message names the layer and the reason."""


@contextmanager
def input_errors(text: str, *kinds: type[Exception]) -> Iterator[None]:
    """Make errors of some kinds an InputError that says a text before what they say.

    An error that is an InputError already keeps its class.
    """
    try:
        yield
    except kinds as error:
        kind = type(error) if isinstance(error, InputError) else InputError
        raise kind(f"{text}: {error}") from error
