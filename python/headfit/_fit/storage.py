"""Reading saved heads: everything in a file is checked, as anybody may have changed it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.module import SelfAttention
from headfit._base.dtypes import HEAD_DTYPES
from headfit._base.kernel import as_kernel
from headfit._base.masks import allowed_places, frozen_mask
from headfit._base.stored_arrays import StoredMatrix
from headfit._base.tolerances import Tolerances
from headfit._fit.ending import Ending
from headfit._fit.file_formats import read_head
from headfit._fit.result import FORMAT, Fit, Search, Trial
from headfit._fit.saved_records import bound_from, check_choice, check_indices, check_place, record
from headfit._target.certificate import VERDICTS, Certificate
from headfit._target.witnesses import FaceWitness, FarkasWitness, Multiplier
from headfit.errors import InputError

__all__ = ["load"]


def _mask_from(about: Any, arrays: dict[str, NDArray[Any]], n: int) -> Any:
    if about == "dense":
        return arrays["mask_dense"]
    if about == "sparse":
        indices = arrays["mask_indices"]
        data = np.ones(indices.size, dtype=bool)
        stored = StoredMatrix("csr", (n, n), data, indices, arrays["mask_indptr"])
        return frozen_mask(allowed_places(stored))
    if isinstance(about, list):  # JSON has no tuples
        kind, width = about
        return (kind, tuple(width) if isinstance(width, list) else width)
    return about


def _witnesses_from(stored: Any) -> tuple[FarkasWitness | FaceWitness, ...] | None:
    if stored is None:
        return None
    witnesses: list[FarkasWitness | FaceWitness] = []
    for item in stored:
        known = dict(item)
        if known.pop("kind") == FarkasWitness.kind:
            known["terms"] = tuple(record(Multiplier, term) for term in known["terms"])
            witnesses.append(record(FarkasWitness, known))
        else:
            for name in ("inside", "with_others"):
                known[name] = tuple((int(j), float(w)) for j, w in known[name])
            witnesses.append(record(FaceWitness, known))
    return tuple(witnesses)


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
    return _fit_from(path, arrays, about, name)


def _tolerances_from(leak: Any, distortion: Any, max_logit: Any) -> Tolerances:
    """Return the tolerances of a file, in which an infinite bound on the logits means no bound."""
    for name, value in {"leak": leak, "distortion": distortion}.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name} must be a number; got {value!r:.80}")
    if max_logit is not None and type(max_logit) not in (int, float):
        raise ValueError(f"max_logit must be a number or nothing; got {max_logit!r:.80}")
    return Tolerances(leak, distortion, None if max_logit == math.inf else max_logit)


def _ending(about: dict[str, Any]) -> Any:
    stopped = about.get("stopped", "certified" if about["status"] == "holds" else None)
    return None if stopped is None else check_choice(stopped, get_args(Ending), "stopped")


def _fit_from(
    path: str | os.PathLike[str],
    arrays: dict[str, NDArray[Any]],
    text: str | None,
    argument: str,
) -> Fit:
    """Return the fit of a file's content, or raise an InputError that names the file."""
    try:
        if text is None:
            raise KeyError("about")
        about = json.loads(text)
        if about["format"] > FORMAT:
            raise InputError(f"it was written by headfit {about['headfit']}, a newer version")
        Q, K = arrays["Q"], arrays["K"]
        if Q.ndim != 2 or Q.shape != K.shape or Q.dtype.kind != "f" or K.dtype != Q.dtype:
            raise ValueError(f"Q and K must be alike; got {Q.shape} and {K.shape}")
        n = Q.shape[0]
        mask = _mask_from(about["mask"], arrays, Q.shape[0])
        if "W_Q" in arrays:
            module = SelfAttention(arrays["W_Q"], arrays["W_K"], about["module_scale"])
        else:
            module = SelfAttention.canonical(Q.shape[1], about["module_scale"], dtype=Q.dtype)
        Attention(Q, K, scale=about["scale"], mask=mask)  # raises an error if they do not fit
        known = dict(about["certificate"])
        check_choice(known["status"], VERDICTS, "status")
        for item in dataclasses.fields(Certificate):
            if f"certificate_{item.name}" in arrays:
                known[item.name] = arrays[f"certificate_{item.name}"]
        known["mask"] = mask
        if "kernel" not in known:  # format 1 had two words in its place
            accumulate, logits = known.pop("accumulate"), known.pop("logits_dtype", None)
            name = "" if logits else accumulate
            known["kernel"] = {"accumulate": accumulate, "logits": logits, "name": name}
        known["kernel"] = as_kernel(known["kernel"])
        known["tolerances"] = _tolerances_from(
            known.pop("leak_tolerance"),
            known.pop("distortion_tolerance"),
            known.pop("max_logit_tolerance", None),
        )
        for name in ("worst_leak", "worst_distortion"):
            known[name] = check_place(known[name], n, name)
        search = about["search"]
        if search is not None:
            trials = tuple(record(Trial, t) for t in search["trials"])
            search = record(Search, {**search, "trials": trials})
        check_indices(arrays.get("failed_rows"), n, "failed_rows")
        X = arrays.get("X")
        if X is not None and X.shape != (n, module.width):
            raise ValueError(f"X must have shape {(n, module.width)}; got {X.shape}")
        values = {
            "Q": Q,
            "K": K,
            "scale": about["scale"],
            "mask": mask,
            "module": module,
            "dim": int(Q.shape[1]),
            "lower_bound": bound_from(about["lower_bound"], known["tolerances"], mask),
            "dtype": check_choice(about.get("dtype", str(Q.dtype)), HEAD_DTYPES, "dtype"),
            "method": about["method"],
            "tolerances": _tolerances_from(
                about["leak"],
                about["distortion"],
                about.get("max_logit", about["settings"].get("max_logit")),
            ),
            "certificate": record(Certificate, known, rows=n),
            "status": check_choice(about["status"], VERDICTS, "status"),
            "failed_rows": arrays.get("failed_rows"),
            "witnesses": _witnesses_from(about["witnesses"]),
            "search": search,
            "seconds": about["seconds"],
            "settings": about["settings"],
            # Files that were written before these two fields existed lack them.
            "stopped": _ending(about),
            "advice": about.get("advice", ""),
            "input_stored": X,
        }
        return record(Fit, values)
    except InputError as error:
        raise InputError(f"{argument}: {path} is no saved fit: {error}") from error
    except Exception as error:  # changed bytes may raise errors of any class
        raise InputError(
            f"{argument}: {path} is no saved fit: {type(error).__name__} {error}"
        ) from error
