"""`headfit demo`: one fixed attention module, several patterns, a certificate for each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headfit import bounds, patterns, plot
from headfit._attention.attention import Attention
from headfit._attention.module import SelfAttention
from headfit._base.shown import text_table
from headfit._base.text import number
from headfit._cli.command import Call, Outcome, command, output
from headfit._cli.options import flag, options_of
from headfit._cli.picture import FORMATS, new_figure, save_figure
from headfit._cli.streams import shown
from headfit._fit.fit import fit
from headfit._fit.result import Fit
from headfit._target.target import Target
from headfit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = Path("headfit-demo.png")
"""The picture of a demo for which no name is given."""

_TITLE = "One attention module, its weights never changed: only the input differs"
_COLUMNS = ("pattern", "n", "k row/col", "gamma", "learned d", "leak", "distortion", "seconds",
            "holds", "needs", "random keys", "projection")  # fmt: skip
_NOTES = """
learned d: the smallest head found in a few seconds; zeros fill the module's.
leak, distortion: certified upper bounds over all n**2 entries of module(X).
needs: a proved lower bound. random keys: the smallest head found by max-margin queries.
projection: the size that the paper's algorithm is proved to need at most."""


@dataclass(frozen=True, eq=False)
class DemoRow:
    """One pattern of the demonstration.

    Attributes
    ----------
    name : str
    target : Target
    fit : Fit
        The fit of the learned method. Its certificate is about the module's exact products.
    random_keys : Fit or None
        The smallest head found for random keys by max-margin queries, without the module.
    seconds : float
        The seconds from the pattern to the certificate of `fit`.
    order : ndarray of int or None
        The order of tokens that shows the structure of the pattern in a picture.
    """

    name: str
    target: Target
    fit: Fit
    random_keys: Fit | None
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
        t = self.target
        return bounds.projection_dim(t.n, t.per_row, t.gamma, tolerances=self.fit.tolerances)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, for JSON."""
        keys = self.random_keys
        return {
            "pattern": self.name,
            **self.target.to_dict(),
            "dim": self.dim,
            "lower_bound": None if self.fit.lower_bound is None else self.fit.lower_bound.dim,
            "random_keys_dim": None if keys is None else keys.dim,
            "random_keys_hold": keys is not None and keys.certificate.holds,
            "proved_dim": self.proved_dim,
            "seconds": self.seconds,
            "certificate": self.fit.certificate.to_dict(),
        }

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        t, c, figures = self.target, self.fit.certificate, self.to_dict()
        needs, keys = figures["lower_bound"], figures["random_keys_dim"]
        return (
            self.name, str(t.n), f"{t.per_row}/{t.per_column}", f"{t.gamma:.3g}", str(self.dim),
            number(c.leak, 3), number(c.distortion, 3), f"{self.seconds:.1f}",
            "yes" if c.holds else "no", "-" if needs is None else f"d >= {needs}",
            "-" if keys is None else str(keys) if figures["random_keys_hold"] else "no",
            str(self.proved_dim),
        )  # fmt: skip


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

    @property
    def _weights(self) -> str:
        kept = "the same bytes" if self.untouched else "CHANGED"
        before, after = self.weights_before[:16], self.weights_after[:16]
        return f"weights: sha256 {before} before, {after} after: {kept}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, for JSON."""
        own = ("holds", "untouched", "weights_before", "weights_after", "setup_seconds", "seconds")
        return {
            **{name: getattr(self, name) for name in own},
            **{name: getattr(self.module, name) for name in ("width", "dim")},
            "dtype": str(self.module.dtype),
            "patterns": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        tolerances, module = self.rows[0].fit.tolerances, self.module
        title = (
            f"One fixed module: W_Q and W_K dense and random, {module.width} x {module.dim}, "
            f"{module.dtype}.\nFor each pattern only the input X differs, for leak <= "
            f"{tolerances.leak:g}, distortion <= {tolerances.distortion:g}.\n"
        )
        end = (
            f"{self._weights}\n{self.setup_seconds:.1f} s for the module, "
            f"{self.seconds:.1f} s in all"
        )
        return text_table(title, _COLUMNS, [row.cells() for row in self.rows], (_NOTES, end))

    def draw(self) -> Figure:
        """Return a figure with the target above the attention of each pattern."""
        count = len(self.rows)
        figure = new_figure(dpi=200, figsize=(2.9 * count + 1, 7.2), layout="constrained")
        axes = figure.subplots(2, count, squeeze=False)
        for pair, row in zip(axes.T, self.rows, strict=True):
            order = np.arange(row.target.n) if row.order is None else row.order
            A = row.target.matrix[order][:, order]
            head = Attention(row.fit.Q[order], row.fit.K[order], scale=row.fit.scale)
            # Each cell of 200 has several pixels on a projector.
            _, image = plot.compare(A, head, axes=tuple(pair), pixels=200)
            for ax in pair:
                ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
            c = row.fit.certificate
            pair[0].set_title(f"{row.name}\ntarget, n = {row.target.n}, k = {row.target.per_row}")
            pair[1].set_title(
                f"attention, d = {row.dim}, {'certified' if c.holds else 'NOT certified'}\n"
                f"leak <= {number(c.leak, 3)}, distortion <= {number(c.distortion, 3)}",
                fontsize=9,
            )
        figure.colorbar(image, ax=axes, label="weight / largest weight of its row", shrink=0.6)
        figure.suptitle(_TITLE, fontsize=17, weight="bold")
        figure.supxlabel(self._weights, fontsize=9)
        return figure


def run_demo(
    *,
    n: int = 1024,
    dim: int = 16,
    rng: int = 0,
    digits: bool = True,
    random_keys: bool = True,
    time_limit: float = 5.0,
    num_threads: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Fit several patterns on one fixed module with dense random weights.

    Parameters
    ----------
    n : int, default 1024
        The tokens of the patterns that are made.
    dim : int, default 16
        The head size of the module, one for all patterns; the input has twice as many columns.
    rng : int, default 0
        The seed of the weights, of the random patterns and of the sketches.
    digits : bool, default True
        Include the nearest-neighbour graph of the digits, n = 1797.
    random_keys : bool, default True
        Also find the smallest head for random keys, by max-margin queries.
    time_limit : float, default 5
        Seconds for the search of each pattern.
    num_threads : int, optional
    progress : callable
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
    start = time.perf_counter()
    progress(f"one module with random weights, D = {2 * dim}, d = {dim}")
    module = SelfAttention.random(dim, rng)
    before = _digest(module)
    # The module is factorised here, once, so that the time of no pattern includes it.
    module.input_for(*np.zeros((2, 1, dim), module.dtype))
    setup = time.perf_counter() - start
    rows = []
    common: dict[str, Any] = {"rng": rng, "num_threads": num_threads}
    for name, target, order in _targets(n, rng, digits):
        progress(f"{name}, n = {target.n}")
        begin = time.perf_counter()
        head = fit(target, method="learned", module=module, time_limit=time_limit, **common)
        seconds = time.perf_counter() - begin
        other = None
        if random_keys:
            other = fit(target, method="max-margin", certificate_mass=False, **common)
        rows.append(DemoRow(name, target, head, other, seconds, order))
    whole = time.perf_counter() - start
    return Demo(module, tuple(rows), before, _digest(module), setup, whole)


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


@command(
    output("--out", suffixes=FORMATS, metavar="PNG",
           help=f"where the picture goes; .pdf and .svg too (default: {PICTURE})"),
    flag("--no-picture", "draw nothing"),
    options_of(run_demo, "rng num_threads"),
    examples="""
        headfit demo
        headfit demo --out demo.pdf
        headfit demo --no-picture --json
    """,
)  # fmt: skip
def demo(call: Call) -> Outcome:
    """Run the demonstration, and draw it where Matplotlib is there."""
    draws = not call.pop("no_picture", False)
    if "out" in call and not draws:
        raise InputError("--out must not be given beside --no-picture")
    picture = call.pop("out", None)
    if draws and picture is None:
        picture = PICTURE
        call.files.check_free(picture)
    results = run_demo(progress=call.say, **call)
    text = str(results)
    if picture is not None:
        call.say("the picture")
        try:
            figure = results.draw()
        except ImportError as error:
            picture, text = None, f"{text}\n\nno picture: {error}"
        else:
            call.files.write(picture, lambda path: save_figure(figure, path))
            text += f"\n\npicture: {shown(picture)}"
    return Outcome({**results.to_dict(), "picture": picture}, text, results.holds)
