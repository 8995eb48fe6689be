"""The exceptions that headfit raises."""

from __future__ import annotations

__all__ = [
    "CertificateError",
    "FileError",
    "HeadfitError",
    "InputError",
    "MissingFileError",
    "NonFiniteError",
    "TargetError",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class HeadfitError(Exception):
    """Base class of every error that headfit raises on purpose."""


class InputError(HeadfitError, ValueError):
    """An argument that can never be right; the message names it and what was expected."""


class TargetError(InputError):
    """A target that is no valid attention pattern; the message names the row."""


class NonFiniteError(InputError):
    """NaN or infinity in an input, or in a product of finite inputs; names row and column."""


class FileError(InputError, OSError):
    """A path that cannot be read or written; an `OSError` too, with its errno and filename."""

    def __init__(
        self, message: str, number: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        self.errno, self.filename = number, filename

    def __str__(self) -> str:
        return str(self.args[0])


class MissingFileError(FileError, FileNotFoundError):
    """A path that names nothing, or a folder that is not there."""


class CertificateError(HeadfitError):
    """A certificate that was required to hold does not."""
