"""Reading saved heads: everything in a file is checked, as anybody may have changed it."""

import dataclasses
import json
import math
import os
from fractions import Fraction
from types import NoneType, UnionType
from typing import IO, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.module import SelfAttention
from headfit._base import files
from headfit._base.arrays import HEAD_DTYPES, NARROW, narrow_dtype
from headfit._base.machine import require_memory
from headfit._base.masks import frozen_mask, mask_from_json
from headfit._base.tolerances import Tolerances, as_kernel
from headfit._fit.result import FORMAT, Fit
from headfit._lower.lower import SAVED, LowerBound
from headfit._target.certificate import Certificate
from headfit._target.witnesses import FaceWitness, FarkasWitness
from headfit.errors import InputError

# The dtypes of safetensors files.
_DTYPES = {
    "BOOL": "?", "I8": "<i1", "I32": "<i4", "I64": "<i8", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip

Record = TypeVar("Record")

# The records whose class stands in the file, since annotations name several or a protocol: as what
# it "is", or as the "kind" of a witness of a row.
_NAMED: dict[str, Any] = {
    **{kind.__name__: kind for kind in (*SAVED, Tolerances)},
    **{kind.kind: kind for kind in (FarkasWitness, FaceWitness)},
}


def _mask_from(about: Any, arrays: files.Arrays, n: int) -> Any:
    if about == "dense":
        return frozen_mask(arrays["mask_dense"])
    if about == "sparse":
        indices = arrays["mask_indices"]
        parts = np.ones(indices.size, dtype=bool), indices, arrays["mask_indptr"]
        return frozen_mask(sp.csr_array(parts, shape=(n, n)))
    return mask_from_json(about)


def load(path: str | os.PathLike[str]) -> Fit:
    """Read a fit that `Fit.save` wrote; the suffix of the name chooses the format.

    Parameters
    ----------
    path : str or path
        A name that ends in ``.npz`` or ``.safetensors``.

    Returns
    -------
    Fit
        The fit with its certificate as it was saved; `certify` judges the arrays anew. Fits in
        narrow dtypes have float32 arrays of the same numbers.

    Raises
    ------
    MissingFileError, FileError
        When there is no such file, or it cannot be opened.
    InputError
        For another suffix, and when the file is no saved fit. Pickled content is never read.
    ImportError
        For ``.safetensors`` without the package safetensors.

    Examples
    --------
    >>> import headfit as hf, os, tempfile
    >>> fit = hf.fit(hf.patterns.permutation(8, rng=0), 64, distortion=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fit.save(os.path.join(folder, "head.npz"))
    ...     hf.load(path).dim
    64
    """
    return read_fit(path, "path")


def read_fit(path: str | os.PathLike[str], name: str) -> Fit:
    """Read a fit from a file that is the argument `name`."""
    arrays, about = read_head(path, name)
    try:
        return _fit_from(arrays, about)
    except Exception as error:  # changed bytes may raise errors of any class
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__} "
        raise InputError(f"{name}: {path} is no saved fit: {kind}{error}") from error


def _certificate_from(
    about: dict[str, Any], arrays: files.Arrays, mask: Any, n: int
) -> Certificate:
    """Return a certificate; an infinite bound on the logits means none."""
    rows = {name: x for name, x in arrays.items() if name.startswith("certificate_")}
    known = about | {name.removeprefix("certificate_"): x for name, x in rows.items()}
    if "kernel" not in known:  # format 1 had two words in its place
        accumulate, logits = known.pop("accumulate"), known.pop("logits_dtype", None)
        name = "" if logits else accumulate
        known["kernel"] = {"accumulate": accumulate, "logits": logits, "name": name}
    limit = known.pop("max_logit_tolerance", None)
    known["tolerances"] = {
        "leak": known.pop("leak_tolerance"),
        "distortion": known.pop("distortion_tolerance"),
        "max_logit": None if limit == math.inf else limit,
    }
    certificate = record(
        Certificate, {**known, "kernel": as_kernel(known["kernel"]), "mask": mask}, n
    )
    for place in (certificate.worst_leak, certificate.worst_distortion):
        if place is not None and not all(0 <= i < n for i in place):
            raise ValueError(f"rows and columns must lie in 0 ... {n - 1}; got {place}")
    return certificate


def _bound_from(saved: Any, tolerances: Tolerances, mask: Any) -> Any:
    """Return a lower bound, which is saved without its mask and its witness.

    The mask is that of the target, and the witness that of the first candidate of this size.
    Old files have its size and reason alone, which hold for the tolerances of the fit.
    """
    if saved is None:
        return None
    kept = {"witness": None, "candidates": (), "tolerances": tolerances, **saved, "mask": mask}
    bound = record(LowerBound, {name: x for name, x in kept.items() if name != "is"})
    proofs = (c.witness for c in bound.candidates if c.dim == bound.dim > 1)
    return dataclasses.replace(bound, witness=next(proofs, None))


def _fit_from(arrays: files.Arrays, text: str | None) -> Fit:
    if text is None:
        raise InputError(f"it holds {', '.join(arrays) or 'nothing'}")
    about = json.loads(text)
    if "compressed" in about:
        raise InputError(f"it holds {', '.join(arrays)}, the maps of a compressed head")
    if about["format"] > FORMAT:
        raise InputError(f"it was written by headfit {about['headfit']}, a newer version")
    Q, K, X = arrays["Q"], arrays["K"], arrays.get("X")
    if Q.ndim != 2 or Q.shape != K.shape or Q.dtype.kind != "f" or K.dtype != Q.dtype:
        raise ValueError(f"Q and K must be alike; got {Q.shape} and {K.shape}")
    (n, dim), scale = Q.shape, about["module_scale"]
    mask = _mask_from(about["mask"], arrays, n)
    Attention(Q, K, scale=about["scale"], mask=mask)  # raises an error if they do not fit
    if "W_Q" in arrays:
        module = SelfAttention(arrays["W_Q"], arrays["W_K"], scale)
    else:
        # Older files lack the dtype. The products with a wider module are of that, not as stored.
        module = SelfAttention.canonical(dim, scale, dtype=about.get("module_dtype", Q.dtype))
        Q, K = (x.astype(np.result_type(x, module.dtype), copy=False) for x in (Q, K))
    if X is not None and X.shape != (n, module.width):
        raise ValueError(f"X must have shape {(n, module.width)}; got {X.shape}")
    failed = arrays.get("failed_rows")
    if failed is not None and not (
        failed.ndim == 1 and failed.dtype.kind in "iu" and ((failed >= 0) & (failed < n)).all()
    ):
        raise ValueError(f"failed_rows must lie in 0 ... {n - 1}; got {failed!r:.80}")
    certificate = _certificate_from(about["certificate"], arrays, mask, n)
    if about.setdefault("dtype", str(Q.dtype)) not in HEAD_DTYPES:
        raise ValueError(f"dtype must be one of {HEAD_DTYPES}; got {about['dtype']!r:.80}")
    # Files that were written before `stopped` and `advice` existed lack them.
    about.setdefault("stopped", "certified" if about["status"] == "holds" else None)
    return record(
        Fit,
        {
            **{f.name: about[f.name] for f in dataclasses.fields(Fit) if f.name in about},
            "Q": Q,
            "K": K,
            "mask": mask,
            "module": module,
            "dim": dim,
            "input_stored": X,
            "failed_rows": failed,
            "certificate": certificate,
            "lower_bound": _bound_from(about["lower_bound"], certificate.tolerances, mask),
        },
    )


def read_head(path: Any, name: str, what: str = "saved fit") -> tuple[files.Arrays, str | None]:
    """Read arrays and text from a file that is the argument `name`, by its suffix."""
    otherwise = f"is no {what}"
    with files.opened(path, name, otherwise):
        # The file is opened first: the error for a missing file precedes that for a wrong suffix.
        file = files.with_suffix(path, name)
    if file.suffix == ".npz":
        arrays = files.load_arrays(path, what, name)
        about = arrays.pop("about", None)
        return arrays, None if about is None else str(about)
    package = files.safetensors_package()

    def read(file: IO[bytes]) -> tuple[files.Arrays, str | None]:
        require_memory(2 * os.fstat(file.fileno()).st_size, f"{name}: {path}")
        raw = file.read()
        tensors = {key: _array(tensor) for key, tensor in package.deserialize(raw)}
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        return tensors, (header.get("__metadata__") or {}).get(files.METADATA)

    return files.read_file(read, path, name, otherwise)


def _array(tensor: dict[str, Any]) -> NDArray[Any]:
    """Return one tensor as an array in the dtype that a fit holds it in."""
    name = _DTYPES[tensor["dtype"]]
    dtype = narrow_dtype(name) if name in NARROW else np.dtype(name)
    stored = np.frombuffer(tensor["data"], dtype=dtype).reshape(tensor["shape"])
    return stored.astype(np.float32 if name in NARROW else dtype.newbyteorder("="))


def record(kind: type[Record], values: dict[str, Any], rows: int | None = None) -> Record:
    """Return a dataclass of these values from a file, which must be as its annotations say.

    A ValueError names the field that is not. Arrays must have one number for each of `rows`, if
    that is given. Fields that have a default may be missing.
    """
    hints = get_type_hints(kind)
    return kind(**{name: _decoded(hints[name], x, name, rows) for name, x in values.items()})


def _decoded(kind: Any, value: Any, name: str, rows: int | None) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in options:
        return None
    kind = type(value) if type(value) in options else options[0]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is not dict and isinstance(value, dict):
        for word in ("is", "kind"):
            if value.get(word) in _NAMED:
                return record(_NAMED[value.pop(word)], value, rows)
        if dataclasses.is_dataclass(kind):
            return record(kind, value, rows)  # type: ignore[arg-type]
        if kind is Fraction:
            return Fraction(*value["/"])
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(kinds) == len(value):
            return tuple(_decoded(k, x, name, rows) for k, x in zip(kinds, value, strict=True))
    if origin is np.ndarray and isinstance(value, list):
        value = np.array(value, *get_args(parts[1]))
    if origin is dict and isinstance(value, dict) and dataclasses.is_dataclass(parts[1]):
        return {key: _decoded(parts[1], x, name, rows) for key, x in value.items()}
    if not _is(value, kind, rows):
        expected = " or ".join(getattr(each, "__name__", str(each)) for each in options)
        raise ValueError(f"{name} must be {expected}; got {value!r:.80}")
    return value


def _is(value: Any, kind: Any, rows: int | None) -> bool:
    """Whether a value is of an annotated type that needs no conversion."""
    origin = get_origin(kind)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is np.ndarray:
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
        return is_array and (rows is None or value.shape == (rows,))
    if kind is float:
        return type(value) in (int, float)
    if kind in (int, str, bool):
        return type(value) is kind
    kind = origin or kind
    return not isinstance(kind, type) or kind is Any or isinstance(value, kind)
