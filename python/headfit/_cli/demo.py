"""`headfit demo`: one fixed attention module, several patterns, a certificate for each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headfit as hf
from headfit import patterns
from headfit._base.display import number, text_table
from headfit._cli.command import Call, Outcome, command
from headfit._cli.files import PICTURES, write_figure
from headfit._cli.options import flag, option, options_of
from headfit.errors import InputError
from headfit.plot._drawing import matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = Path("headfit-demo.png")
"""The picture of a demo for which no name is given."""

_COLUMNS = {
    "pattern": "{pattern}", "n": "{n}", "k row/col": "{per_row}/{per_column}",
    "gamma": "{gamma:.3g}", "learned d": "{dim}", "leak": "{leak:g}",
    "distortion": "{distortion:g}", "seconds": "{seconds:.1f}", "verdict": "{verdict}",
    "needs": "d >= {lower_bound}", "projection": "{proved_dim}",
}  # fmt: skip
"""The columns of the table, made of the figures of a pattern."""
_HEADING = """\
One fixed module: W_Q and W_K dense and random, {width} x {dim}, {dtype}.
For each pattern only the input X differs, for leak <= 0.05, distortion <= 0.1.
"""
_NOTES = """
learned d: the smallest head found in a few seconds; zeros fill the module's.
leak, distortion: certified upper bounds over all n**2 entries of module(X).
needs: a proved lower bound. projection: the size that the paper's algorithm is proved to need."""


class DemoRow(NamedTuple):
    """One pattern, its fit in the module, and the figures of both.

    The order of tokens shows the structure of the pattern in a picture.
    """

    target: hf.Target
    fit: hf.results.Fit
    order: NDArray[np.intp]
    figures: dict[str, Any]


class Demo(NamedTuple):
    """The patterns of one module, and the figures of all."""

    rows: list[DemoRow]
    figures: dict[str, Any]

    @property
    def weights(self) -> str:
        """What became of the weights."""
        before, after = self.figures["weights"]
        kept = "the same bytes" if before == after else "CHANGED"
        return f"weights: sha256 {before[:16]} before, {after[:16]} after: {kept}"

    def __str__(self) -> str:
        cells = [[form.format(**row.figures) for form in _COLUMNS.values()] for row in self.rows]
        end = (_NOTES, self.weights, f"{self.figures['seconds']:.1f} s in all")
        return text_table(_HEADING.format(**self.figures), list(_COLUMNS), cells, end)

    def draw(self) -> Figure:
        """Return a figure with the target above the attention of each pattern."""
        size = (2.9 * len(self.rows) + 1, 7.2)
        figure: Figure = matplotlib().figure.Figure(size, dpi=200, layout="constrained")
        axes = figure.subplots(2, len(self.rows), squeeze=False)
        for (above, below), row in zip(axes.T, self.rows, strict=True):
            A = row.target.matrix[row.order][:, row.order]
            head = hf.Attention(row.fit.Q[row.order], row.fit.K[row.order], scale=row.fit.scale)
            # Each cell of 200 has several pixels on a projector.
            _, image = hf.plot.compare(A, head, axes=(above, below), pixels=200)
            for ax in (above, below):
                ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
            above.set_title("{pattern}\ntarget, n = {n}, k = {per_row}".format(**row.figures))
            said = "attention, d = {dim}, {verdict}\nleak <= {leak:g}, distortion <= {distortion:g}"
            below.set_title(said.format(**row.figures), fontsize=9)
        figure.colorbar(image, ax=axes, label="weight / largest weight of its row", shrink=0.6)
        title = "One attention module, its weights never changed: only the input differs"
        figure.suptitle(title, fontsize=17, weight="bold")
        figure.supxlabel(self.weights, fontsize=9)
        return figure


def run_demo(
    *,
    n: int = 1024,
    dim: int = 16,
    rng: int = 0,
    digits: bool = True,
    time_limit: float = 5.0,
    num_threads: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Fit several patterns on one fixed module with dense random weights.

    Patterns that are made have n tokens; the digits are the graph of 1797 that comes with the
    package.

    >>> demo = run_demo(n=32, dim=8, digits=False, time_limit=2)
    >>> demo.figures["holds"], demo.figures["untouched"]
    (True, True)
    """
    start = time.perf_counter()
    progress(f"one module with random weights, D = {2 * dim}, d = {dim}")
    module = hf.SelfAttention.random(dim, rng)
    before = _digest(module)
    # The module is factorised here, once, so that the time of no pattern includes it.
    module.input_for(*np.zeros((2, 1, dim), module.dtype))
    common: dict[str, Any] = {"rng": rng, "num_threads": num_threads}
    rows = []
    for name, A, order in _patterns(n, rng, digits):
        progress(f"{name}, n = {len(order)}")
        t = hf.Target(A)
        head = hf.fit(t, method="learned", module=module, time_limit=time_limit, **common)
        judged = head.certificate
        figures = {
            "pattern": name,
            **t.to_dict(),
            # Zeros fill the input of a module that is larger than the smallest head.
            "dim": head.dim if head.search is None else head.search.dim or head.dim,
            "lower_bound": 1 if head.lower_bound is None else head.lower_bound.dim,
            "proved_dim": hf.bounds.projection_dim(t.n, t.per_row, t.gamma),
            "seconds": head.seconds,
            "leak": float(number(judged.leak, 3)),
            "distortion": float(number(judged.distortion, 3)),
            "verdict": "certified" if judged.holds else "NOT certified",
            "certificate": judged.to_dict(),
        }
        rows.append(DemoRow(t, head, order, figures))
    weights = (before, _digest(module))
    figures = {
        "holds": all(row.fit.certificate.holds for row in rows),
        "untouched": weights[0] == weights[1],
        "weights": weights,
        "seconds": time.perf_counter() - start,
        **{name: getattr(module, name) for name in ("width", "dim", "dtype")},
        "patterns": [row.figures for row in rows],
    }
    return Demo(rows, figures)


def _digest(module: hf.SelfAttention) -> str:
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
    option("--out", suffixes=PICTURES, metavar="PNG",
           help=f"where the picture goes; .pdf and .svg too (default: {PICTURE})"),
    flag("--no-picture", "draw nothing"),
    options_of(run_demo, "rng num_threads"),
)  # fmt: skip
def demo(call: Call) -> Outcome:
    """Run the demonstration, and draw it where Matplotlib is there.

    headfit demo
    headfit demo --out demo.pdf
    headfit demo --no-picture --json
    """
    draws = not call.pop("no_picture", False)
    if "out" in call and not draws:
        raise InputError("--out must not be given beside --no-picture")
    picture = call.pop("out", PICTURE if draws else None)
    if picture == PICTURE:
        call.files.check_free(PICTURE, PICTURES)
    results = run_demo(progress=call.say, **call)
    text = str(results)
    if picture is not None:
        call.say("the picture")
        try:
            figure = results.draw()
        except ImportError as error:
            picture, text = None, f"{text}\n\nno picture: {error}"
        else:
            text += write_figure(call, picture, figure)
    return Outcome({**results.figures, "picture": picture}, text, results.figures["holds"])
