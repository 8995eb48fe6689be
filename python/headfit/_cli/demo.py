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
from headfit._base.drawing import matplotlib
from headfit._base.plain import plain_dict
from headfit._base.shown import text_table
from headfit._base.text import number
from headfit._cli.command import Call, Outcome, command, output
from headfit._cli.options import flag, options_of
from headfit._cli.picture import FORMATS, save_figure
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
    """One pattern: the fit in the module, and the smallest head for random keys, without it.

    The order of tokens shows the structure of the pattern in a picture.
    """

    name: str
    target: Target
    fit: Fit
    random_keys: Fit | None
    seconds: float
    order: NDArray[np.intp]

    @property
    def figures(self) -> dict[str, Any]:
        """What there is to say of the pattern, for JSON and for the table."""
        t, fit, keys = self.target, self.fit, self.random_keys
        return {
            "pattern": self.name,
            **t.to_dict(),
            # Zeros fill the input of a module that is larger than the smallest head.
            "dim": fit.dim if fit.search is None or fit.search.dim is None else fit.search.dim,
            "lower_bound": None if fit.lower_bound is None else fit.lower_bound.dim,
            "random_keys_dim": None if keys is None else keys.dim,
            "random_keys_hold": keys is not None and keys.certificate.holds,
            "proved_dim": bounds.projection_dim(t.n, t.per_row, t.gamma, tolerances=fit.tolerances),
            "seconds": self.seconds,
            "certificate": fit.certificate.to_dict(),
        }

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        f, t, c = self.figures, self.target, self.fit.certificate
        return (
            self.name, str(t.n), f"{t.per_row}/{t.per_column}", f"{t.gamma:.3g}", str(f["dim"]),
            number(c.leak, 3), number(c.distortion, 3), f"{self.seconds:.1f}",
            "yes" if c.holds else "no", f"d >= {f['lower_bound'] or 1}",
            str(f["random_keys_dim"]) if f["random_keys_hold"] else "-", str(f["proved_dim"]),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Demo:
    """One module, its patterns, and the digests of its weights before and after the fits."""

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
        module = {name: getattr(self.module, name) for name in ("width", "dim", "dtype")}
        figures = {name: getattr(self, name) for name in own} | module
        return plain_dict({**figures, "patterns": [row.figures for row in self.rows]})

    def __str__(self) -> str:
        tolerances, module = self.rows[0].fit.tolerances, self.module
        title = (
            f"One fixed module: W_Q and W_K dense and random, {module.width} x {module.dim}, "
            f"{module.dtype}.\nFor each pattern only the input X differs, for leak <= "
            f"{tolerances.leak:g}, distortion <= {tolerances.distortion:g}.\n"
        )
        seconds = f"{self.setup_seconds:.1f} s for the module, {self.seconds:.1f} s in all"
        end = (_NOTES, self._weights, seconds)
        return text_table(title, _COLUMNS, [row.cells for row in self.rows], end)

    def draw(self) -> Figure:
        """Return a figure with the target above the attention of each pattern."""
        count = len(self.rows)
        size = (2.9 * count + 1, 7.2)
        figure: Figure = matplotlib().figure.Figure(size, dpi=200, layout="constrained")
        axes = figure.subplots(2, count, squeeze=False)
        for pair, row in zip(axes.T, self.rows, strict=True):
            A = row.target.matrix[row.order][:, row.order]
            head = Attention(row.fit.Q[row.order], row.fit.K[row.order], scale=row.fit.scale)
            # Each cell of 200 has several pixels on a projector.
            _, image = plot.compare(A, head, axes=tuple(pair), pixels=200)
            for ax in pair:
                ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
            c = row.fit.certificate
            verdict = "certified" if c.holds else "NOT certified"
            pair[0].set_title(f"{row.name}\ntarget, n = {row.target.n}, k = {row.target.per_row}")
            pair[1].set_title(
                f"attention, d = {row.figures['dim']}, {verdict}\n"
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

    Patterns that are made have n tokens; the digits are the graph of 1797 that comes with the
    package. `random_keys` says whether to find the smallest head for random keys too.

    >>> demo = run_demo(n=32, dim=8, digits=False, time_limit=2)
    >>> demo.holds, demo.untouched
    (True, True)
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
    for name, A, order in _patterns(n, rng, digits):
        progress(f"{name}, n = {len(order)}")
        target, begin = Target(A), time.perf_counter()
        head = fit(target, method="learned", module=module, time_limit=time_limit, **common)
        seconds, other = time.perf_counter() - begin, None
        if random_keys:
            other = fit(target, method="max-margin", certificate_mass=False, **common)
        rows.append(DemoRow(name, target, head, other, seconds, order))
    whole = time.perf_counter() - start
    return Demo(module, tuple(rows), before, _digest(module), setup, whole)


def _digest(module: SelfAttention) -> str:
    return hashlib.sha256(np.ascontiguousarray(module.weights).data).hexdigest()


def _patterns(n: int, rng: int, digits: bool) -> Iterator[tuple[str, Any, NDArray[np.intp]]]:
    """Yield name, pattern and order of tokens; digits are ordered by what they show."""
    order = np.arange(n)
    yield "band", patterns.band(n, 1), order
    yield "random_regular", patterns.random_regular(n, 4, gamma=2.0, rng=rng), order
    yield "permutation", patterns.permutation(n, rng=rng), order
    yield "tree", patterns.tree(n), order
    if digits:
        file = resources.files("headfit").joinpath("data", "digits_knn.npz")
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
            yield "digits_knn", patterns.digits_knn(), np.argsort(data["labels"], kind="stable")


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
