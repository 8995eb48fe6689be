"""Fitting: from a sparse pattern to a head that produces it, with a certificate."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import headfit
from headfit import bounds, projection
from headfit._arrays import FloatArray, check_between, is_sparse, seed_from, thread_count
from headfit._files import available_memory, load_arrays, save_arrays
from headfit._text import mask_text, number
from headfit.attention import Attention, check_scale
from headfit.certificate import Certificate, certify
from headfit.errors import InputError
from headfit.module import SelfAttention
from headfit.targets import Target, as_target

__all__ = ["Fit", "Search", "Trial", "fit", "load_fit"]

METHODS = ("auto", "projection")
DTYPES = ("float32", "float64")
FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One head size that a search tried: its outcome and the seconds it took."""

    dim: int
    holds: bool
    leak: float
    distortion: float
    seconds: float


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
        Why the search ended.
    """

    trials: tuple[Trial, ...]
    dim: int | None
    stopped: str

    def __repr__(self) -> str:
        tried = ", ".join(f"{t.dim}{'' if t.holds else ' no'}" for t in self.trials)
        found = "none certified" if self.dim is None else f"smallest found {self.dim}"
        return f"Search({found}; tried {tried}; {self.stopped})"


@dataclass(frozen=True, repr=False, eq=False)
class Fit:
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
    dtype : str
    method : str
    leak, distortion : float
        The tolerances asked for.
    certificate : Certificate
        What was proved; ``certificate.holds`` tells whether the tolerances are met.
    status : str
        The certificate's: "holds", "fails" or "undecided".
    failed_rows, witnesses, search, lower_bound
        None until a method fills them.
    seconds : float
        Wall time of the fit, the certificate included.
    settings : dict
        The arguments of the fit, and the seed drawn from `rng`.
    """

    Q: FloatArray
    K: FloatArray
    scale: float
    mask: Any
    module: SelfAttention
    dim: int
    dtype: str
    method: str
    leak: float
    distortion: float
    certificate: Certificate
    status: str
    failed_rows: NDArray[np.intp] | None = None
    witnesses: Any = None
    search: Search | None = None
    lower_bound: Any = None
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    input_stored: FloatArray | None = None

    @cached_property
    def X(self) -> FloatArray:
        """The module's input, shape (n, D)."""
        if self.input_stored is not None:
            return self.input_stored
        return self.module.input_for(self.Q, self.K)

    @property
    def attention(self) -> Attention:
        """The attention of this head, evaluated when asked for."""
        if self.input_stored is not None:
            return self.module(self.X, mask=self.mask)
        return Attention(self.Q, self.K, scale=self.scale, mask=self.mask)

    def __repr__(self) -> str:
        c = self.certificate
        verdict = {"holds": "certified", "fails": "NOT certified", "undecided": "UNDECIDED"}
        return (
            f"Fit({self.method}, n={self.Q.shape[0]}, dim={self.dim}, {self.dtype}: "
            f"{verdict[self.status]}, leak <= {number(c.leak)} of {self.leak:.6g}, distortion <= "
            f"{number(c.distortion)} of {self.distortion:.6g}, mask={mask_text(self.mask)}, "
            f"{self.seconds:.3g} s)"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fit to a file of plain arrays and a JSON text, in one step.

        Parameters
        ----------
        path : str or path
            The exact name; an existing file is replaced only when all is written.

        Returns
        -------
        Path
        """
        arrays: dict[str, NDArray[Any]] = {"Q": self.Q, "K": self.K}
        if not self.module.is_canonical:
            arrays["W_Q"], arrays["W_K"] = self.module.W_Q, self.module.W_K
            arrays["X"] = self.X
        if self.failed_rows is not None:
            arrays["failed_rows"] = self.failed_rows
        mask = self.mask
        if is_sparse(mask):
            csr = sp.csr_array(mask)
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
            "headfit": headfit.__version__,
            "numpy": np.__version__,
            "scale": self.scale,
            "module_scale": self.module.scale,
            "mask": mask,
            "method": self.method,
            "leak": self.leak,
            "distortion": self.distortion,
            "status": self.status,
            "search": None if self.search is None else dataclasses.asdict(self.search),
            "seconds": self.seconds,
            "settings": self.settings,
            "certificate": certificate,
        }
        arrays["about"] = np.array(json.dumps(about))
        return save_arrays(path, arrays)


def _mask_from(about: Any, arrays: dict[str, NDArray[Any]], n: int) -> Any:
    if about == "dense":
        return arrays["mask_dense"]
    if about == "sparse":
        indices = arrays["mask_indices"]
        data = np.ones(indices.size, dtype=bool)
        return sp.csr_array((data, indices, arrays["mask_indptr"]), shape=(n, n))
    if isinstance(about, list):  # JSON has no tuples
        kind, width = about
        return (kind, tuple(width) if isinstance(width, list) else width)
    return about


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
    arrays = load_arrays(path, "saved fit")
    try:
        about = json.loads(str(arrays["about"]))
        if about["format"] > FORMAT:
            raise InputError(f"{path} was written by headfit {about['headfit']}, a newer version")
        Q, K = arrays["Q"], arrays["K"]
        mask = _mask_from(about["mask"], arrays, Q.shape[0])
        if "W_Q" in arrays:
            module = SelfAttention(arrays["W_Q"], arrays["W_K"], about["module_scale"])
        else:
            module = SelfAttention.canonical(Q.shape[1], about["module_scale"], dtype=Q.dtype)
        known = dict(about["certificate"], mask=mask)
        for item in dataclasses.fields(Certificate):
            if f"certificate_{item.name}" in arrays:
                known[item.name] = arrays[f"certificate_{item.name}"]
        for name in ("worst_leak", "worst_distortion"):
            known[name] = None if known[name] is None else tuple(known[name])
        search = about["search"]
        if search is not None:
            trials = tuple(Trial(**t) for t in search["trials"])
            search = Search(**{**search, "trials": trials})
        return Fit(
            Q=Q,
            K=K,
            scale=about["scale"],
            mask=mask,
            module=module,
            dim=int(Q.shape[1]),
            dtype=str(Q.dtype),
            method=about["method"],
            leak=about["leak"],
            distortion=about["distortion"],
            certificate=Certificate(**known),
            status=about["status"],
            failed_rows=arrays.get("failed_rows"),
            search=search,
            seconds=about["seconds"],
            settings=about["settings"],
            input_stored=arrays.get("X"),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is no saved fit: {type(error).__name__} {error}") from error


def _check_dim(dim: Any, module: SelfAttention | None) -> int | None:
    if dim is not None and (isinstance(dim, bool) or int(dim) != dim or dim < 1):
        raise InputError(f"dim must be a positive integer or None; got {dim!r}")
    if module is None:
        return None if dim is None else int(dim)
    if not isinstance(module, SelfAttention):
        raise InputError(f"module must be a SelfAttention; got {type(module).__name__}")
    if dim is not None and int(dim) != module.dim:
        raise InputError(f"dim must be the module's, {module.dim}, or not given; got {dim}")
    return module.dim


def _largest_dim(target: Target, leak: float, distortion: float, dtype: str) -> tuple[int, str]:
    """Return where a search ends: the proved bound, or what memory allows."""
    proved = bounds.projection_dim(target.n, target.per_row, target.gamma, leak, distortion)
    free = available_memory()
    # Q and K, and the packed copies of the scan, in half of what is free.
    affordable = 2**20 if free is None else free // (8 * target.n * np.dtype(dtype).itemsize)
    if proved <= affordable:
        return proved, "the size that is proved to suffice"
    return max(1, int(affordable)), "what fits in memory"


def search_dim(attempt: Callable[[int], Trial], first: int, largest: int, limit: str) -> Search:
    """Find a small size that certifies: doubling from `first`, then bisection."""
    trials = [attempt(min(first, largest))]
    while not trials[-1].holds and trials[-1].dim < largest:
        trials.append(attempt(min(2 * trials[-1].dim, largest)))
    if not trials[-1].holds:
        return Search(tuple(trials), None, f"stopped at {largest}, {limit}")
    high = trials[-1].dim
    low = trials[-2].dim if len(trials) > 1 else 0
    while high - low > 1:
        trials.append(attempt((low + high) // 2))
        if trials[-1].holds:
            high = trials[-1].dim
        else:
            low = trials[-1].dim
    return Search(tuple(trials), high, "bisected to neighbouring sizes")


def fit(
    A: Any,
    dim: int | None = None,
    *,
    method: str = "auto",
    module: SelfAttention | None = None,
    dtype: str = "float32",
    factor: str = "identity",
    sketch: str = "gaussian",
    leak: float = 0.05,
    distortion: float = 0.1,
    scale: float | None = None,
    mask: Any = None,
    rng: Any = 0,
    normalize: bool = False,
    strict: bool = False,
    mass: bool = True,
    num_threads: int | None = None,
) -> Fit:
    """Find a head, and the input of a fixed module, that produce a sparse attention pattern.

    Parameters
    ----------
    A : target
        A `Target`, or whatever makes one: a sparse or dense array, or a path.
    dim : int, optional
        The head size d. None: the module's, or else a search for the smallest that certifies,
        by doubling and bisection over sketches of one random stream.
    method : "auto" or "projection"
        "projection" is the algorithm of the paper's proof: it is oblivious, proved, and needs
        a large d. "auto" is "projection" at present.
    module : SelfAttention, optional
        The fixed module whose input is sought; its dim and scale hold. None: the canonical
        module of this size.
    dtype : "float32" or "float64"
        Of Q, K and X.
    factor : "identity" or "svd"
        How the projection factors the target logits. "svd" costs O(n**3) and needs bounded
        columns too; it is there for comparison.
    sketch : "gaussian" or "rademacher"
    leak, distortion : float
        The tolerances, see `Certificate`; 0 < leak < 1 and distortion > 0.
    scale : float, optional
        Of the logits, when there is no module; 1 / sqrt(dim) when None.
    mask : optional
        As in `attention_matrix`; the target's when None.
    rng : seed or Generator, default 0
    normalize : bool, default False
        Scale the target's rows to sum to 1.
    strict : bool, default False
        Raise a CertificateError unless the certificate holds.
    mass : bool, default True
        Whether the certificate computes total variation and stray mass.
    num_threads : int, optional
        None uses every core. The result does not depend on it.

    Returns
    -------
    Fit
        Whether it certifies or not: ``fit.certificate.holds`` tells.

    Raises
    ------
    InputError, TargetError
        For arguments that can never be right, before any work starts.
    CertificateError
        With ``strict=True``, when the certificate does not hold.

    Notes
    -----
    The projection costs O(nonzeros * d), its certificate O(n**2 d) and O(n) memory beside Q
    and K. Deciding whether a pattern fits a given d > 1 is NP-hard, so a search finds a size,
    it does not prove that none is smaller.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.band(32, 1)
    >>> head = hf.fit(A, 1024, leak=0.3, distortion=2.0)
    >>> head.certificate.holds
    True
    >>> head.X.shape, bool(hf.certify(A, head.module(head.X), leak=0.3, distortion=2.0).holds)
    ((32, 2048), True)
    """
    start = time.perf_counter()
    if method not in METHODS:
        raise InputError(f"method must be one of {METHODS}; got {method!r}")
    if str(dtype) not in DTYPES:
        raise InputError(f"dtype must be one of {DTYPES}; got {dtype!r}")
    dtype = str(dtype)
    projection.check_options(factor, sketch)
    leak = check_between(leak, "leak", 0, 1)
    distortion = check_between(distortion, "distortion", 0, float("inf"))
    if module is not None and scale is not None:
        raise InputError("scale must not be given beside a module, whose own scale holds")
    wanted = _check_dim(dim, module)
    threads = thread_count(num_threads)
    target = as_target(A, mask=mask, normalize=normalize)
    seed = seed_from(rng)

    def head(size: int) -> tuple[FloatArray, FloatArray, float]:
        used = module.scale if module is not None else check_scale(scale, size)
        q, k = projection.project(
            target,
            size,
            scale=used,
            dtype=dtype,
            factor=factor,
            sketch=sketch,
            leak=leak,
            distortion=distortion,
            seed=seed,
            threads=threads,
        )
        return q, k, used

    def judge(attention: Attention, mass: bool) -> Certificate:
        return certify(
            target,
            attention,
            leak=leak,
            distortion=distortion,
            mass=mass,
            num_threads=threads,
        )

    def attempt(size: int) -> Trial:
        begin = time.perf_counter()
        q, k, used = head(size)
        c = judge(Attention(q, k, scale=used, mask=target.mask), False)
        return Trial(size, c.holds, c.leak, c.distortion, time.perf_counter() - begin)

    search = None
    if wanted is None:
        largest, limit = _largest_dim(target, leak, distortion, dtype)
        search = search_dim(attempt, 16, largest, limit)
        wanted = search.dim or search.trials[-1].dim
    q, k, used = head(wanted)
    if module is None:
        X = None
        module = SelfAttention.canonical(wanted, used, dtype=dtype)
        attention = Attention(q, k, scale=used, mask=target.mask)
    else:
        X = module.input_for(q, k)
        attention = module(X, mask=target.mask)
    certificate = judge(attention, mass)
    if strict:
        certificate.raise_if_failed()
    return Fit(
        Q=attention.Q,
        K=attention.K,
        scale=attention.scale,
        mask=target.mask,
        module=module,
        dim=wanted,
        dtype=str(attention.Q.dtype),
        method="projection",
        leak=leak,
        distortion=distortion,
        certificate=certificate,
        status=certificate.status,
        search=search,
        seconds=time.perf_counter() - start,
        settings={
            "dim": dim,
            "method": method,
            "dtype": dtype,
            "factor": factor,
            "sketch": sketch,
            "seed": seed,
            "leak": leak,
            "distortion": distortion,
        },
        input_stored=X,
    )
