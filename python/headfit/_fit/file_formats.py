"""Writing saved heads: .npz and .safetensors files of plain arrays and one JSON text each."""

import dataclasses
import os
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import NARROW, narrow_dtype
from headfit._base.display import optional
from headfit._base.files import as_path, replace_file, save_arrays
from headfit.errors import InputError

METADATA = "headfit"
"""The entry of a safetensors file's metadata that holds the JSON text."""

NARROWED = ("Q", "K", "P_q", "P_k", "W_Q_P_q", "W_K_P_k")
"""The arrays that a safetensors file keeps in the dtype of the fit, or of the maps."""

FORMATS = (".npz", ".safetensors")

Arrays = dict[str, NDArray[Any]]


def safetensors_package() -> Any:
    """Return the package, or raise an ImportError that says how to install it."""
    missing = "safetensors files need a package: pip install 'headfit[safetensors]'"
    return optional(lambda: import_module("safetensors"), ImportError(missing))


def suffix_of(path: Any, name: str) -> str:
    suffix = Path(as_path(path, name)).suffix
    if suffix not in FORMATS:
        raise InputError(f"{name} must end in {' or '.join(FORMATS)}; got {os.fspath(path)}")
    return suffix


def write_head(path: Any, arrays: Arrays, about: str, dtype: str) -> Path:
    """Write the arrays and the text of a fit in this dtype, in the format of the suffix."""
    suffix, target = suffix_of(path, "path"), Path(path)
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


def coded(value: Any) -> Any:
    """Return a value as JSON holds it: dataclasses become dictionaries with their class."""
    if isinstance(value, tuple):
        return [coded(x) for x in value]
    if isinstance(value, Fraction):
        return {"/": [value.numerator, value.denominator]}
    if not dataclasses.is_dataclass(value):
        return value
    parts = {f.name: coded(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"is": type(value).__name__, **parts}
