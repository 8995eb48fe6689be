"""The exceptions that headfit raises."""

__all__ = [
    "CertificateError",
    "HeadfitError",
    "InputError",
    "NonFiniteError",
    "TargetError",
]


class HeadfitError(Exception):
    """Base class of every error that headfit raises on purpose."""


class InputError(HeadfitError, ValueError):
    """An argument that can never be right; the message names it and what was expected."""


class TargetError(InputError):
    """A target that is no valid attention pattern; the message names the row."""


class NonFiniteError(InputError):
    """NaN or infinity in an input, or in a product of finite inputs; names row and column."""


class CertificateError(HeadfitError):
    """A certificate that was required to hold does not."""
