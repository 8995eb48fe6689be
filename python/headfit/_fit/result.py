"""What a fit is: the head, its certificate, what was tried to find it, and why that ended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import DIGITS, NARROW, is_sparse
from headfit._base.display import Figures, Tabular, columns_of, mask_text, named, number, plain_dict
from headfit._base.files import write_head
from headfit._base.masks import allowed_places
from headfit._base.tolerances import Tolerances
from headfit._build import VERSION
from headfit._fit.head import Ending, FittedHead, Head
from headfit._target.certificate import Certificate, Status
from headfit._target.witnesses import FaceWitness, FarkasWitness
from headfit.errors import InputError

FORMAT = 2

Obstacle = Literal["time", "steps", "logits", "format", "bound", "callback", "method"]

# The attributes of a fit that JSON holds as they are.
_PLAIN = ("scale", "dtype", "method", "status", "stopped", "advice", "seconds", "settings")

# What stood in the way for each word of `Ending`. A fit that stalled is looked at more closely.
_OBSTACLES: dict[str, Obstacle] = {
    "time limit": "time", "steps": "steps", "callback": "callback", "infeasible": "bound",
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One head size that a search tried: its outcome and the seconds it took.

    `leak` and `distortion` are what the certificate proved. `restarts` counts how often the
    method started over. `reason` says why the attempt ended, in the words of `Fit.stopped`; None
    in old files.
    """

    dim: int
    holds: bool
    leak: float
    distortion: float
    seconds: float
    restarts: int = 0
    reason: Ending | None = None


def _outcome(trial: Trial) -> str:
    """Return a size and its outcome in words. An attempt that was cut short did not fail."""
    if trial.holds:
        return str(trial.dim)
    if trial.reason in ("time limit", "callback"):
        return f"{trial.dim} not certified before the {trial.reason}"
    return f"{trial.dim} no" + (f" ({trial.reason})" if trial.reason else "")


@dataclass(frozen=True)
class Search(Figures, Tabular):
    """What a search over head sizes tried.

    A table of the trials has the attributes of `Trial`, in the order they were made.

    Attributes
    ----------
    trials : tuple of Trial
        In the order they were made.
    dim : int or None
        The smallest size found that certifies: not a proof that no smaller one would.
    stopped : str
        Why the search ended, in words: "the time limit", "bisected to neighbouring sizes", ...

    Examples
    --------
    >>> import headfit as hf
    >>> search = hf.fit(hf.patterns.band(32, 1)).search
    >>> search.dim == min(trial.dim for trial in search.trials if trial.holds)
    True
    """

    trials: tuple[Trial, ...]
    dim: int | None
    stopped: str

    @property
    def was_cut(self) -> bool:
        """Whether the time limit ended it: then sizes that did not certify are not refuted."""
        return self.stopped == "the time limit"

    def _table(self) -> tuple[dict[Any, Any], str]:
        return columns_of(Trial, self.trials), "trial"

    def __repr__(self) -> str:
        best = "none certified" if self.dim is None else f"smallest found {self.dim}"
        return f"Search({best}; tried {', '.join(map(_outcome, self.trials))}; {self.stopped})"


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
        That of `fit`, or the canonical one of this size.
    X : ndarray, shape (n, D)
        The input for which the module attends so.
    dim : int
        The head size, the columns of Q and K. ``settings["dim_used"]`` is the size that the
        method worked with; further columns are zeros.
    dtype : str
    method : str
        The method's name.
    tolerances : Tolerances
        Those that the certificate is about.
    certificate : Certificate
        What is proved: ``certificate.leak`` and the like are upper bounds, and
        ``certificate.holds`` tells whether the tolerances are met.
    status : str
        The status of the certificate: "holds", "fails" or "undecided".
    stopped : str or None
        Why the fit ended: "certified"; "time limit", "steps" (all of its effort), "callback" or
        "stalled" (the method gave up, or rounding took what it had found), which prove nothing;
        or "infeasible": it is proved that no head of this size, or none with these keys, meets
        the tolerances. None in an old file of a fit that does not certify.
    advice : str
        What that means, what was reached, and what to try; and which columns and rows of the
        pattern are far heavier than the rest.
    obstacle : str or None
        What stood in the way of a certificate: "time"; "steps", all of which were spent; "logits",
        which exceed their bound; "format", whose rounding took what the method had met; "bound", a
        proof; "callback"; or "method", which gave up. None when the certificate holds.
    failed_rows : ndarray of int or None
        Rows that the method itself gave up; None when it cannot tell.
    witnesses : tuple or None
        Proofs for failed rows, from max-margin.
    search : Search or None
        What was tried, when `dim` was searched for.
    lower_bound : LowerBound or None
        What `bounds.lower` proved, when a method that seeks the smallest sizes searched for
        `dim`, or did not certify a small one.
    seconds : float
        Wall time of the fit, the certificate included.
    settings : dict
        The arguments of the fit, and the seed drawn from `rng`.
    """

    method: str
    certificate: Certificate
    failed_rows: NDArray[np.intp] | None = None
    witnesses: tuple[FarkasWitness | FaceWitness, ...] | None = None
    search: Search | None = None
    lower_bound: Any = None
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    stopped: Ending | None = None
    advice: str = ""

    @property
    def status(self) -> Status:
        """The status of the certificate."""
        return self.certificate.status

    @property
    def tolerances(self) -> Tolerances:
        """What the certificate is about."""
        return self.certificate.tolerances

    @property
    def obstacle(self) -> Obstacle | None:
        """What stood in the way of a certificate, in a word; None when it holds."""
        if self.stopped != "stalled":
            return _OBSTACLES.get(self.stopped or "")
        if self.failed_rows is None or self.failed_rows.size:
            return "method"
        # The method met the tolerances, and storing the head lost what it had met.
        c = self.certificate
        return "logits" if c.max_logit > c.tolerances.logit_limit else "format"

    def __repr__(self) -> str:
        c, limits = self.certificate, self.tolerances
        words = {"holds": "certified", "fails": "NOT certified", "undecided": "UNDECIDED"}
        why = "" if self.stopped in (None, "certified") else f" ({self.stopped})"
        return (
            f"Fit({self.method}, n={len(self.Q)}, dim={self.dim}, {self.dtype}: "
            f"{words[self.status]}{why}, leak <= {number(c.leak)} of {limits.leak:.6g}, "
            f"distortion <= {number(c.distortion)} of {limits.distortion:.6g}, "
            f"mask={mask_text(self.mask)}, {self.seconds:.3g} s)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the head as plain Python values, for JSON; without its arrays."""
        return plain_dict(
            {
                "n": self.Q.shape[0],
                "width": self.module.width,
                "canonical": self.module.is_canonical,
                **named(self, "dim", *_PLAIN, "tolerances", "search"),
                "mask": None if self.mask is None else mask_text(self.mask),
                "lower_bound": self.lower_bound and named(self.lower_bound, "dim", "reason"),
                "certificate": self.certificate.to_dict(),
            }
        )

    def _record(self) -> tuple[dict[str, NDArray[Any]], str]:
        """Return what a file keeps of the fit: plain arrays, and all else as a JSON text."""
        module, mask, certificate = self.module, self.mask, self.certificate
        arrays = {"Q": self.Q, "K": self.K, "X": self.input_stored, "failed_rows": self.failed_rows}
        if not module.is_canonical:
            arrays |= {"W_Q": module.W_Q, "W_K": module.W_K}
        if is_sparse(mask):
            csr = allowed_places(mask)
            arrays |= {"mask_indptr": csr.indptr, "mask_indices": csr.indices}
            mask = "sparse"
        elif not (mask is None or isinstance(mask, (str, tuple))):
            arrays["mask_dense"] = np.asarray(mask)
            mask = "dense"
        limits, bound, proof = self.tolerances, self.lower_bound, vars(certificate)
        of_rows = {name: x for name, x in proof.items() if isinstance(x, np.ndarray)}
        arrays |= {f"certificate_{name}": x for name, x in of_rows.items()}
        apart = ("mask", "tolerances", "kernel", *of_rows)
        judged = {
            "kernel": certificate.kernel.to_dict(),
            "leak_tolerance": limits.leak,
            "distortion_tolerance": limits.distortion,
            "max_logit_tolerance": limits.logit_limit,
            **{name: x for name, x in proof.items() if name not in apart},
        }
        about = {
            "format": FORMAT,
            "headfit": VERSION,
            "numpy": np.__version__,
            **named(self, *_PLAIN),
            **asdict(limits),
            "module_scale": module.scale,
            "module_dtype": str(module.dtype),
            "mask": mask,
            "certificate": judged,
            "lower_bound": _coded(bound and replace(bound, mask=None, witness=None)),
            "search": self.search and asdict(self.search),
            "witnesses": self.witnesses and [{"kind": w.kind, **asdict(w)} for w in self.witnesses],
        }
        kept = {name: array for name, array in arrays.items() if array is not None}
        return kept, json.dumps(about, default=of_numpy)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fit to a file of plain arrays and a JSON text, in one step.

        Parameters
        ----------
        path : str or path
            The exact name, which ends in ``.npz`` or ``.safetensors``: the suffix chooses the
            format. An existing file is replaced only when all is written.

        Returns
        -------
        Path

        Raises
        ------
        InputError
            For another suffix; and for ``.safetensors`` when Q or K of a fit in a narrow dtype
            hold numbers that the dtype cannot.
        FileError
            When it cannot be written. This error is an OSError as well.
        ImportError
            For ``.safetensors`` without the package safetensors.

        Notes
        -----
        `load` reads the file; docs/files.md says what it holds. In a safetensors file, Q and K of
        a fit in a narrow dtype are tensors of that dtype: half the size or a quarter. A process
        that is killed while it writes leaves `path` as it was.

        Examples
        --------
        >>> import headfit as hf, os, tempfile
        >>> fit = hf.fit(hf.patterns.band(16, 1), 4, dtype="bfloat16")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kept = hf.load(fit.save(os.path.join(folder, "head.npz")))
        >>> kept.dtype, bool((kept.Q == fit.Q).all()), kept.certificate.holds
        ('bfloat16', True, True)
        """
        return write_head(path, *self._record(), self.dtype)


def _coded(value: Any) -> Any:
    """Return a value as JSON holds it: dataclasses become dictionaries with their class."""
    if isinstance(value, tuple):
        return [_coded(x) for x in value]
    if isinstance(value, Fraction):
        return {"/": [value.numerator, value.denominator]}
    if not is_dataclass(value):
        return value
    parts = {f.name: _coded(getattr(value, f.name)) for f in fields(value)}
    return {"is": type(value).__name__, **parts}


def of_numpy(value: Any) -> Any:
    """Return a number of NumPy as Python's, for JSON, which holds no other objects."""
    if not isinstance(value, np.generic):
        raise InputError(f"what is of class {type(value).__name__} is not saved")
    return value.item()


def advice(fit: Fit, head: Head, of_method: str | None, notes: Sequence[str]) -> str:
    """Return what the end of a fit means, what was reached, and what to try next.

    `head` is that of the method, `of_method` what the method itself says about this end, and
    `notes` what `heavy_notes` returned.
    """
    stopped, dtype, proved, certificate = fit.stopped, fit.dtype, fit.lower_bound, fit.certificate
    cut = f"at d = {head.dim}{head.left}, which proves nothing about this size"
    if stopped == "certified":
        meaning = "The certificate holds."
        if fit.search is not None and fit.search.was_cut:
            meaning += (
                " The time limit ended the search, which proves nothing about smaller sizes: a "
                "larger time_limit may find one."
            )
    elif stopped == "time limit":
        steps = "" if head.steps is None else f" after {head.steps} steps"
        meaning = (
            f"The time limit came{steps} {cut}: try a larger time_limit, or a larger dim, which "
            "takes fewer steps."
        )
    elif stopped == "callback":
        meaning = f"The callback ended the fit {cut}."
    elif proved is not None and proved.dim > head.dim:
        size, wider = "any size", "a wider leak or max_logit"
        if not proved.impossible:
            size = f"size {head.dim}"
            wider = f"dim={proved.dim} or more, or for a wider leak or distortion"
        meaning = (
            f"It is proved that no head of {size} meets these tolerances: {proved.reason}. Ask for "
            f"{wider}."
        )
    elif of_method is not None:
        meaning = of_method
    elif stopped == "infeasible":
        meaning = (
            f"The method proved that it has no head of size {head.dim} within the tolerances: try "
            "a larger dim, a wider leak or distortion, or another method."
        )
    elif head.left:
        meaning = (
            f"The method gave up{head.left} at d = {head.dim} and proved nothing about them: try a "
            "larger dim, a wider leak or distortion, or another rng."
        )
    else:
        wider, bits = "float32" if dtype in NARROW else "float64", certificate.kernel.sum_bits
        cause, remedy = (
            (f"rounding to the {DIGITS[dtype]} significant bits of {dtype}", f'dtype="{wider}"')
            if bits == DIGITS["float32"]
            else (f"truncating sums to {bits} bits", "a smaller max_logit")
        )
        judged = "cannot decide" if certificate.status == "undecided" else "does not hold"
        meaning = (
            "The method ended with no row left, but the certificate of the stored numbers "
            f"{judged}: {cause} takes more than the tolerances leave. Try {remedy}, a wider "
            "distortion, or a larger dim."
        )
    sentences = [meaning]
    if stopped != "certified":
        sentences.append(f"Reached: {certificate.reached}.")
    if stopped not in ("certified", "infeasible"):  # what may stand in the way, and how to tell
        if dtype in NARROW:
            sentences.append(
                f'Whether {dtype} stands in the way, a fit with dtype="float32" tells.'
            )
        if certificate.kernel.rounds_logits:
            sentences.append(
                f'The kernel {certificate.kernel} rounds logits: kernel="float32" tells whether '
                "that stands in the way."
            )
        if (limit := certificate.tolerances.max_logit) is not None:
            sentences.append(
                f"Logits are bounded by max_logit = {limit:.4g}: a fit without it tells whether "
                "the bound stands in the way."
            )
    return " ".join([*sentences, *(f"{note[0].upper()}{note[1:]}." for note in notes)])
