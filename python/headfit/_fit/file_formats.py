"""The two formats of saved heads, .npz and .safetensors: plain arrays and one JSON text each."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import NARROW, narrow_dtype
from headfit._base.files import as_path, load_arrays, opened, read_file, replace_file, save_arrays
from headfit._base.machine import require_memory
from headfit.errors import InputError

METADATA = "headfit"
"""The entry of a safetensors file's metadata that holds the JSON text."""

NARROWED = ("Q", "K", "P_q", "P_k", "W_Q_P_q", "W_K_P_k")
"""The arrays that a safetensors file keeps in the dtype of the fit, or of the maps."""

FORMATS = (".npz", ".safetensors")

Arrays = dict[str, NDArray[Any]]

_DTYPES = {
    "BOOL": "?",
    "I8": "<i1",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F32": "<f4",
    "F64": "<f8",
}


def safetensors_package() -> Any:
    """Return the package, or raise an ImportError that says how to install it."""
    try:
        return import_module("safetensors")
    except ImportError as error:
        missing = "safetensors files need a package: pip install 'headfit[safetensors]'"
        raise ImportError(missing) from error


def _array(tensor: dict[str, Any]) -> NDArray[Any]:
    """Return one tensor as an array in the dtype that a fit holds it in."""
    name = _DTYPES[tensor["dtype"]]
    dtype = narrow_dtype(name) if name in NARROW else np.dtype(name)
    stored = np.frombuffer(tensor["data"], dtype=dtype).reshape(tensor["shape"])
    return stored.astype(np.float32 if name in NARROW else dtype.newbyteorder("="))


def _suffix(path: Any, name: str) -> str:
    suffix = Path(as_path(path, name)).suffix
    if suffix not in FORMATS:
        raise InputError(f"{name} must end in {' or '.join(FORMATS)}; got {os.fspath(path)}")
    return suffix


def write_head(path: Any, arrays: Arrays, about: str, dtype: str) -> Path:
    """Write the arrays and the text of a fit in this dtype, in the format of the suffix."""
    suffix, target = _suffix(path, "path"), Path(path)
    if suffix == ".npz":
        save_arrays(target, {**arrays, "about": np.array(about)})
        return target
    safetensors_package()
    from safetensors.numpy import save

    stored = {}
    for name, array in arrays.items():
        if name in NARROWED and dtype in NARROW:
            narrow = array.astype(narrow_dtype(dtype))
            if not np.array_equal(narrow.astype(np.float32), array):
                raise InputError(f"{name} must hold numbers of {dtype}, the dtype of the fit")
            array = narrow
        stored[name] = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    raw = save(stored, {METADATA: about})
    replace_file(target, lambda file: file.write(raw))
    return target


def read_head(path: Any, name: str) -> tuple[Arrays, str | None]:
    """Read arrays and text from a file that is the argument `name`, by its suffix."""
    otherwise = "is no saved fit"
    with opened(path, name, otherwise):
        # The file is opened first: the error for a missing file precedes that for a wrong suffix.
        suffix = _suffix(path, name)
    if suffix == ".npz":
        arrays = load_arrays(path, "saved fit", name)
        about = arrays.pop("about", None)
        return arrays, None if about is None else str(about)
    package = safetensors_package()

    def read(file: IO[bytes]) -> tuple[Arrays, str | None]:
        require_memory(2 * os.fstat(file.fileno()).st_size, f"{name}: {path}")
        raw = file.read()
        tensors = {key: _array(tensor) for key, tensor in package.deserialize(raw)}
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        return tensors, (header.get("__metadata__") or {}).get(METADATA)

    return read_file(read, path, name, otherwise)
