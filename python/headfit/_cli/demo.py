"""The demonstration: one fixed attention module, several patterns, a certificate for each."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import bounds, patterns
from headfit._attention.module import SelfAttention
from headfit._base.tolerances import as_tolerances
from headfit._fit.fit import fit
from headfit._fit.result import Fit
from headfit._target.target import Target

__all__ = ["Demo", "DemoRow", "run_demo"]


@dataclass(frozen=True, eq=False)
class DemoRow:
    """One pattern of the demonstration.

    Attributes
    ----------
    name : str
    target : Target
    fit : Fit
        The fit of the learned method. Its certificate is about the module's exact products.
    given_keys : Fit or None
        The smallest head found for random keys by max-margin queries, without the module.
    seconds : float
        The seconds from the pattern to the certificate of `fit`.
    order : ndarray of int or None
        The order of tokens that shows the structure of the pattern in a picture.
    """

    name: str
    target: Target
    fit: Fit
    given_keys: Fit | None
    seconds: float
    order: NDArray[np.intp] | None = None

    @property
    def dim(self) -> int:
        """The smallest head size that was found; the input has zeros for the further columns."""
        search = self.fit.search
        return self.fit.dim if search is None or search.dim is None else search.dim

    @property
    def proved_dim(self) -> int:
        """The size that `bounds.projection_dim` proves to suffice for the same tolerances."""
        t, asked = self.target, self.fit.tolerances
        return bounds.projection_dim(t.n, t.per_row, t.gamma, tolerances=asked)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON."""
        return {
            "pattern": self.name,
            "n": self.target.n,
            "nonzeros": self.target.nonzeros,
            "per_row": self.target.per_row,
            "per_column": self.target.per_column,
            "gamma": self.target.gamma,
            "dim": self.dim,
            "lower_bound": None if self.fit.lower_bound is None else self.fit.lower_bound.dim,
            "random_keys_dim": None if self.given_keys is None else self.given_keys.dim,
            "random_keys_hold": self.given_keys is not None and self.given_keys.certificate.holds,
            "proved_dim": self.proved_dim,
            "seconds": self.seconds,
            "certificate": self.fit.certificate.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Demo:
    """What `run_demo` found.

    Attributes
    ----------
    module : SelfAttention
        The one module of all rows.
    rows : tuple of DemoRow
    weights_before, weights_after : str
        SHA-256 digests of the bytes of [W_Q W_K], before the first fit and after the last.
    setup_seconds, seconds : float
        The seconds for making and factorising the module, and for everything.
    """

    module: SelfAttention
    rows: tuple[DemoRow, ...]
    weights_before: str
    weights_after: str
    setup_seconds: float
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every pattern is certified."""
        return all(row.fit.certificate.holds for row in self.rows)

    @property
    def untouched(self) -> bool:
        """Whether the bytes of the weights are what they were."""
        return self.weights_before == self.weights_after

    def save_picture(self, path: str | os.PathLike[str]) -> Path:
        """Draw target and attention of each pattern to a .png, .pdf or .svg file.

        Raises
        ------
        InputError
            For a name that ends otherwise.
        ImportError
            Without Matplotlib, the extra ``headfit[plot]``.
        """
        from headfit._cli import picture

        return picture.save(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON."""
        return {
            "holds": self.holds,
            "untouched": self.untouched,
            "weights_before": self.weights_before,
            "weights_after": self.weights_after,
            "width": self.module.width,
            "dim": self.module.dim,
            "dtype": str(self.module.dtype),
            "setup_seconds": self.setup_seconds,
            "seconds": self.seconds,
            "patterns": [row.to_dict() for row in self.rows],
        }


def run_demo(
    *,
    n: int = 1024,
    dim: int = 16,
    leak: float | None = None,
    distortion: float | None = None,
    rng: int = 0,
    digits: bool = True,
    rungs: bool = True,
    time_limit: float = 5.0,
    num_threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Demo:
    """Fit several patterns on one fixed module with dense random weights.

    Parameters
    ----------
    n : int, default 1024
        The tokens of the patterns that are made.
    dim : int, default 16
        The head size of the module, one for all patterns; the input has twice as many columns.
    leak, distortion : float, optional
        The tolerances of the certificates; `Tolerances` has the defaults.
    rng : int, default 0
        The seed of the weights, of the random patterns and of the sketches.
    digits : bool, default True
        Include the nearest-neighbour graph of the digits, n = 1797.
    rungs : bool, default True
        Also find the smallest head for random keys, by max-margin queries.
    time_limit : float, default 5
        Seconds for the search of each pattern.
    num_threads : int, optional
    progress : callable, optional
        Called with a line of text before each step.

    Returns
    -------
    Demo
        The results, certified or not; `Demo.holds` tells.

    Examples
    --------
    >>> demo = run_demo(n=32, dim=8, digits=False, time_limit=2)
    >>> demo.holds, demo.untouched
    (True, True)
    >>> [row.name for row in demo.rows]
    ['band', 'random_regular', 'permutation', 'tree']
    """
    say = progress or (lambda text: None)
    start = time.perf_counter()
    say(f"one module with random weights, D = {2 * dim}, d = {dim}")
    module = SelfAttention.random(dim, rng)
    before = _digest(module)
    # The module is factorised here, once, so that the time of no pattern includes it.
    module.input_for(*np.zeros((2, 1, dim), module.dtype))
    setup = time.perf_counter() - start
    rows = []
    for name, target, order in _targets(n, rng, digits):
        say(f"{name}, n = {target.n}")
        asked: dict[str, Any] = {
            "tolerances": as_tolerances(leak=leak, distortion=distortion),
            "rng": rng,
            "num_threads": num_threads,
        }
        begin = time.perf_counter()
        head = fit(target, method="learned", module=module, time_limit=time_limit, **asked)
        seconds = time.perf_counter() - begin
        given_keys = (
            fit(target, method="max-margin", certificate_mass=False, **asked) if rungs else None
        )
        rows.append(DemoRow(name, target, head, given_keys, seconds, order))
    return Demo(
        module=module,
        rows=tuple(rows),
        weights_before=before,
        weights_after=_digest(module),
        setup_seconds=setup,
        seconds=time.perf_counter() - start,
    )


def _digest(module: SelfAttention) -> str:
    return hashlib.sha256(np.ascontiguousarray(module.weights).data).hexdigest()


def _targets(
    n: int, rng: int, digits: bool
) -> Iterator[tuple[str, Target, NDArray[np.intp] | None]]:
    yield "band", Target(patterns.band(n, 1)), None
    yield "random_regular", Target(patterns.random_regular(n, 4, gamma=2.0, rng=rng)), None
    yield "permutation", Target(patterns.permutation(n, rng=rng)), None
    yield "tree", Target(patterns.tree(n)), None
    if digits:
        file = resources.files("headfit").joinpath("data", "digits_knn.npz")
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
            order = np.argsort(data["labels"], kind="stable")
        yield "digits_knn", Target(patterns.digits_knn()), order
