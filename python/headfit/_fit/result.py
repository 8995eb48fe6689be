"""What a fit is: the head, its certificate, and the file it is kept in."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.fitted_head import FittedHead
from headfit._attention.module import SelfAttention
from headfit._base.arrays import is_sparse
from headfit._base.dtypes import DTYPES
from headfit._base.files import as_output, save_arrays
from headfit._base.masks import allowed_places
from headfit._base.stored_arrays import StoredMatrix, load_arrays
from headfit._base.text import mask_text, number
from headfit._base.version import VERSION
from headfit._fit.ending import Ending, tried
from headfit._fit.saved_records import check_bound, check_choice, check_indices, check_place, record
from headfit._target.certificate import VERDICTS, Certificate
from headfit._target.witnesses import FaceWitness, FarkasWitness, Multiplier
from headfit.errors import InputError

__all__ = ["Fit", "Search", "Trial", "load_fit"]

FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One head size that a search tried: its outcome and the seconds it took.

    `restarts` counts the quenches and reheats of learned beyond the first. `reason` says why the
    attempt ended, in the words of `Fit.stopped`; None in old files, for a size that did not
    certify.
    """

    dim: int
    holds: bool
    leak: float
    distortion: float
    seconds: float
    restarts: int = 0
    reason: Ending | None = None

    def __post_init__(self) -> None:
        if self.holds and self.reason is None:
            object.__setattr__(self, "reason", "certified")


@dataclass(frozen=True)
class Search:
    """What a search over head sizes tried.

    Attributes
    ----------
    trials : tuple of Trial
        In the order they were made.
    dim : int or None
        The smallest size found that certifies: not a proof that no smaller one would.
    stopped : str
        Why the search ended, in words: "the time limit", "bisected to neighbouring sizes", ...
    """

    trials: tuple[Trial, ...]
    dim: int | None
    stopped: str

    @property
    def was_cut(self) -> bool:
        """Whether the time limit ended it: then sizes that did not certify are not refuted."""
        return self.stopped == "the time limit"

    def __repr__(self) -> str:
        sizes = ", ".join(tried(t.dim, t.holds, t.reason) for t in self.trials)
        found = "none certified" if self.dim is None else f"smallest found {self.dim}"
        return f"Search({found}; tried {sizes}; {self.stopped})"


@dataclass(frozen=True, repr=False, eq=False)
class Fit(FittedHead):
    """A head for a target: queries, keys, the module and its input, and the certificate.

    Attributes
    ----------
    Q, K : ndarray, shape (n, d)
        The logits are ``scale * Q @ K.T``. With a module, these are the products of X and its
        weights, not what the method intended.
    scale : float
    mask : object
    module : SelfAttention
        The one given to `fit`, or the canonical one of this size.
    X : ndarray, shape (n, D)
        The input for which the module attends as asked.
    dim : int
        The head size, the columns of Q and K. ``settings["dim_used"]`` is the size that the
        method worked with; further columns are zeros.
    dtype : str
    method : str
    leak, distortion : float
        The tolerances asked for.
    certificate : Certificate
        What was proved; ``certificate.holds`` tells whether the tolerances are met.
    status : str
        The certificate's: "holds", "fails" or "undecided".
    stopped : str or None
        Why the fit ended: "certified"; "time limit", "steps" (all of its effort), "callback" or
        "stalled" (the method gave up, or rounding took what it had found), which prove nothing;
        or "infeasible": it is proved that no head of this size, or none with the keys given, meets
        the tolerances. None in an old file of a fit that does not certify.
    advice : str
        What that means and what to try, in a sentence or two; and which columns and rows of the
        pattern are far heavier than the rest.
    failed_rows : ndarray of int or None
        Rows that the method itself gave up; None when it cannot tell.
    witnesses : tuple or None
        Proofs for failed rows, from max-margin.
    search : Search or None
        What was tried, when `dim` was searched for.
    lower_bound : LowerBound or None
        What `bounds.lower` proved, when `dim` was searched for by "learned" or a small one was
        not certified; from a saved fit, its dim and reason.
    seconds : float
        Wall time of the fit, the certificate included.
    settings : dict
        The arguments of the fit, and the seed drawn from `rng`.
    """

    method: str
    leak: float
    distortion: float
    certificate: Certificate
    status: str
    failed_rows: NDArray[np.intp] | None = None
    witnesses: tuple[FarkasWitness | FaceWitness, ...] | None = None
    search: Search | None = None
    lower_bound: Any = None
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    stopped: Ending | None = None
    advice: str = ""

    def __repr__(self) -> str:
        c = self.certificate
        words = {"holds": "certified", "fails": "NOT certified", "undecided": "UNDECIDED"}
        why = "" if self.stopped in (None, "certified") else f" ({self.stopped})"
        verdict = f"{words[self.status]}{why}"
        return (
            f"Fit({self.method}, n={self.Q.shape[0]}, dim={self.dim}, {self.dtype}: "
            f"{verdict}, leak <= {number(c.leak)} of {self.leak:.6g}, distortion <= "
            f"{number(c.distortion)} of {self.distortion:.6g}, mask={mask_text(self.mask)}, "
            f"{self.seconds:.3g} s)"
        )

    def parts(self) -> tuple[dict[str, NDArray[Any]], str]:
        """Return what a file keeps of the fit: plain arrays, and all else as a JSON text."""
        arrays: dict[str, NDArray[Any]] = {"Q": self.Q, "K": self.K}
        if not self.module.is_canonical:
            arrays["W_Q"], arrays["W_K"] = self.module.W_Q, self.module.W_K
            arrays["X"] = self.X
        if self.failed_rows is not None:
            arrays["failed_rows"] = self.failed_rows
        mask = self.mask
        if is_sparse(mask):
            csr = allowed_places(mask)
            arrays["mask_indptr"], arrays["mask_indices"] = csr.indptr, csr.indices
            mask = "sparse"
        elif not (mask is None or isinstance(mask, (str, tuple))):
            arrays["mask_dense"] = np.asarray(mask)
            mask = "dense"
        certificate: dict[str, Any] = {}
        for item in dataclasses.fields(Certificate):
            value = getattr(self.certificate, item.name)
            if isinstance(value, np.ndarray):
                arrays[f"certificate_{item.name}"] = value
            elif item.name != "mask":
                certificate[item.name] = value
        about = {
            "format": FORMAT,
            "headfit": VERSION,
            "numpy": np.__version__,
            "scale": self.scale,
            "module_scale": self.module.scale,
            "lower_bound": _bound_text(self.lower_bound),
            "mask": mask,
            "dtype": self.dtype,
            "method": self.method,
            "leak": self.leak,
            "distortion": self.distortion,
            "status": self.status,
            "stopped": self.stopped,
            "advice": self.advice,
            "search": None if self.search is None else dataclasses.asdict(self.search),
            "seconds": self.seconds,
            "settings": self.settings,
            "certificate": certificate,
            "witnesses": None
            if self.witnesses is None
            else [{"kind": w.kind, **dataclasses.asdict(w)} for w in self.witnesses],
        }
        return arrays, json.dumps(about, default=_plain)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fit to a file of plain arrays and a JSON text, in one step.

        Parameters
        ----------
        path : str or path
            The exact name, which ends in ``.npz``; an existing file is replaced only when all
            is written.

        Returns
        -------
        Path

        Raises
        ------
        InputError
            For another suffix; `save_safetensors` writes ``.safetensors``.
        FileError
            When it cannot be written; an OSError too.

        Notes
        -----
        A process that is killed while it writes leaves a file ``.headfit-????????.tmp`` beside
        `path`, and `path` as it was. Such files are removed by the next save to that folder
        once they are a day old.
        """
        target = as_output(
            path, "path", ".npz", {".safetensors": "headfit.save_safetensors writes that"}
        )
        arrays, about = self.parts()
        arrays["about"] = np.array(about)
        return save_arrays(target, arrays)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"settings hold a {type(value).__name__}, which is not saved")


def _bound_text(bound: Any) -> Any:
    if bound is None or isinstance(bound, dict):
        return bound
    return {"dim": bound.dim, "reason": bound.reason}


def _mask_from(about: Any, arrays: dict[str, NDArray[Any]], n: int) -> Any:
    if about == "dense":
        return arrays["mask_dense"]
    if about == "sparse":
        indices = arrays["mask_indices"]
        data = np.ones(indices.size, dtype=bool)
        stored = StoredMatrix("csr", (n, n), data, indices, arrays["mask_indptr"])
        return allowed_places(stored)
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


def load_fit(path: str | os.PathLike[str]) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Fit
        With the certificate as it was; `certify` judges the arrays anew.

    Raises
    ------
    MissingFileError, FileError
        When there is no such file, or it cannot be opened.
    InputError
        When the file is no saved fit. Pickled content is never read.

    Examples
    --------
    >>> import headfit as hf, os, tempfile
    >>> fit = hf.fit(hf.patterns.permutation(8, rng=0), 64, distortion=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fit.save(os.path.join(folder, "head.npz"))
    ...     hf.load_fit(path).dim
    64
    """
    return read_fit(path, "path")


def read_fit(path: str | os.PathLike[str], name: str) -> Fit:
    """Read a fit from a file that is the argument `name`."""
    arrays = load_arrays(path, "saved fit", name)
    about = arrays.pop("about", None)
    return fit_from_parts(path, arrays, None if about is None else str(about), name)


def _ending(about: dict[str, Any]) -> Any:
    stopped = about.get("stopped", "certified" if about["status"] == "holds" else None)
    return None if stopped is None else check_choice(stopped, get_args(Ending), "stopped")


def fit_from_parts(
    path: str | os.PathLike[str],
    arrays: dict[str, NDArray[Any]],
    text: str | None,
    argument: str = "path",
) -> Fit:
    """Return the fit of `Fit.parts`, or raise an InputError that names the file they are from."""
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
        Attention(Q, K, scale=about["scale"], mask=mask)  # they fit, or an error now
        known = dict(about["certificate"])
        check_choice(known["status"], VERDICTS, "status")
        for item in dataclasses.fields(Certificate):
            if f"certificate_{item.name}" in arrays:
                known[item.name] = arrays[f"certificate_{item.name}"]
        known["mask"] = mask
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
            "lower_bound": check_bound(about["lower_bound"]),
            "dtype": check_choice(about.get("dtype", str(Q.dtype)), DTYPES, "dtype"),
            "method": about["method"],
            "leak": about["leak"],
            "distortion": about["distortion"],
            "certificate": record(Certificate, known, rows=n),
            "status": check_choice(about["status"], VERDICTS, "status"),
            "failed_rows": arrays.get("failed_rows"),
            "witnesses": _witnesses_from(about["witnesses"]),
            "search": search,
            "seconds": about["seconds"],
            "settings": about["settings"],
            # Files of before these were kept do not tell.
            "stopped": _ending(about),
            "advice": about.get("advice", ""),
            "input_stored": X,
        }
        return record(Fit, values)
    except InputError as error:
        raise InputError(f"{argument}: {path} is no saved fit: {error}") from error
    except Exception as error:  # whatever it is that changed bytes do
        raise InputError(
            f"{argument}: {path} is no saved fit: {type(error).__name__} {error}"
        ) from error
