"""Fits in safetensors files, which other tools read: narrow heads in their own dtype."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import BFLOAT16, widened
from headfit._base.dtypes import NARROW, round_to
from headfit._base.files import as_output, file_size, opened, replace_file
from headfit._base.memory import require_memory
from headfit._base.stored_arrays import unreadable
from headfit._fit.result import Fit, fit_from_parts
from headfit.errors import InputError

__all__ = ["load_safetensors", "save_safetensors"]

ABOUT = "headfit"
"""The entry of a file's metadata that holds the JSON text."""

_DTYPES = {
    "BOOL": "?",
    "I8": "<i1",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
}


def _package() -> Any:
    try:
        return import_module("safetensors")
    except ImportError as error:
        missing = "safetensors files need a package: pip install 'headfit[safetensors]'"
        raise ImportError(missing) from error


def _narrowed(x: NDArray[Any], name: str, dtype: str) -> NDArray[Any]:
    """Return float32 numbers as float16, or as the bits of bfloat16; they must fit exactly."""
    if not np.array_equal(round_to(x, dtype), x):
        raise InputError(f"{name} must hold numbers of {dtype}, the dtype of the fit")
    if dtype == "float16":
        return x.astype(np.float16)
    return (np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def save_safetensors(fit: Fit, path: str | os.PathLike[str]) -> Path:
    """Write a fit to a safetensors file, in one step.

    Parameters
    ----------
    fit : Fit
    path : str or path
        The exact name, which ends in ``.safetensors``; an existing file is replaced only when
        all is written.

    Returns
    -------
    Path

    Raises
    ------
    InputError
        When Q or K of a fit in float16 or bfloat16 hold other numbers, and for another suffix;
        `Fit.save` writes ``.npz``.
    FileError
        When it cannot be written; an OSError too.
    ImportError
        Without the package safetensors.

    Notes
    -----
    The tensors are Q, K and those of the certificate, the mask and the module, as `Fit.save`
    writes them; its JSON text is the entry "headfit" of the metadata. Q and K of a fit in
    float16 or bfloat16 are tensors of that dtype: half the size, and the same numbers. What a
    killed process leaves behind is as `Fit.save` says.

    Examples
    --------
    >>> import headfit as hf, os, tempfile
    >>> fit = hf.fit(hf.patterns.band(16, 1), 4, dtype="bfloat16")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = hf.save_safetensors(fit, os.path.join(folder, "head.safetensors"))
    ...     kept = hf.load_safetensors(path)
    >>> kept.dtype, bool((kept.Q == fit.Q).all()), kept.certificate.holds
    ('bfloat16', True, True)
    """
    package = _package()
    if not isinstance(fit, Fit):
        raise InputError(f"fit must be a Fit; got {type(fit).__name__}")
    target = as_output(path, "path", ".safetensors", {".npz": "Fit.save writes that"})
    arrays, about = fit.parts()
    stored = {}
    for name, array in arrays.items():
        dtype = array.dtype.name
        if name in ("Q", "K") and fit.dtype in NARROW:
            array, dtype = _narrowed(array, name, fit.dtype), fit.dtype
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        stored[name] = (little, dtype)  # keeps the memory that the specs below point to
    specs = {
        name: package.TensorSpec(
            dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, (array, dtype) in stored.items()
    }
    raw = package.serialize(specs, {ABOUT: about})
    replace_file(target, lambda file: file.write(raw))
    return target


def load_safetensors(path: str | os.PathLike[str]) -> Fit:
    """Read a fit that `save_safetensors` wrote.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Fit
        As `load_fit` returns it: float16 and bfloat16 come as the float32 arrays of the same
        numbers.

    Raises
    ------
    MissingFileError, FileError
        When there is no such file, or it cannot be opened.
    InputError
        When the file is no saved fit.
    ImportError
        Without the package safetensors.

    Examples
    --------
    See `save_safetensors`; a file of anything else is refused:

    >>> import headfit as hf, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "head.npz")
    ...     hf.load_safetensors(hf.fit(hf.patterns.band(16, 1), 4).save(path))
    Traceback (most recent call last):
    headfit.errors.InputError: path: ...head.npz is no saved fit: ...
    """
    package = _package()
    otherwise = "is no saved fit"
    with opened(path, "path", otherwise) as file:
        require_memory(2 * file_size(file), f"path: {path}")
        raw = file.read()
    try:
        tensors = package.deserialize(raw)
        about = _metadata(raw).get(ABOUT)
        arrays = {name: _array(name, tensor) for name, tensor in tensors}
    except Exception as error:  # whatever it is that a damaged or foreign file does
        raise unreadable(path, "path", otherwise, error) from error
    return fit_from_parts(path, arrays, about)


def _metadata(raw: bytes) -> dict[str, str]:
    """Return the texts in the header of a file that has been read without error."""
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return dict(header.get("__metadata__") or {})


def _array(name: str, tensor: dict[str, Any]) -> NDArray[Any]:
    """Return one tensor as an array in the dtype that `Fit` holds it in."""
    stored = np.frombuffer(tensor["data"], dtype=_DTYPES[tensor["dtype"]])
    if tensor["dtype"] == "BF16":
        return widened(stored.astype(np.uint16).view(BFLOAT16)).reshape(tensor["shape"])
    wide = np.dtype(np.float32) if tensor["dtype"] == "F16" else stored.dtype
    return stored.astype(wide.newbyteorder("=")).reshape(tensor["shape"])
