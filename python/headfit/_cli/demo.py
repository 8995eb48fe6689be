"""`headfit demo`: one fixed attention module, several patterns, a certificate for each."""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headfit as hf
from headfit._base.display import number, text_table
from headfit._base.files import load_arrays
from headfit._cli.command import Call, Outcome, command, options_of
from headfit._cli.files import PLOT, draw

_HEADING = """\
One fixed module: W_Q and W_K dense and random, {0.width} x {0.dim}, {0.dtype}.
For each pattern only the input X differs, for leak <= 0.05, distortion <= 0.1.
"""
_NOTES = """
learned d: the smallest head found in a few seconds; zeros fill the module's.
leak, distortion: certified upper bounds over all n**2 entries of module(X).
needs: a proved lower bound. projection: the size that the paper's algorithm is proved to need."""


class DemoRow(NamedTuple):
    """One pattern, its fit in the module, and the order of tokens that shows its structure."""

    name: str
    target: hf.Target
    order: NDArray[np.intp]
    fit: hf.results.Fit

    @property
    def cells(self) -> dict[str, str]:
        """What the table says, by column."""
        t, fit, search, bound = self.target, self.fit, self.fit.search, self.fit.lower_bound
        return {
            "pattern": self.name,
            "n": str(t.n),
            "k row/col": f"{t.per_row}/{t.per_column}",
            "gamma": f"{t.gamma:.3g}",
            "learned d": str((search and search.dim) or fit.dim),
            "leak": number(fit.certificate.leak, 3),
            "distortion": number(fit.certificate.distortion, 3),
            "seconds": f"{fit.seconds:.1f}",
            "verdict": "certified" if fit.certificate.holds else "NOT certified",
            "needs": f"d >= {bound.dim if bound else 1}",
            "projection": str(hf.bounds.projection_dim(t.n, t.per_row, t.gamma)),
        }


class Demo(NamedTuple):
    """The patterns of one module, the hashes of its weights before and after, and the seconds."""

    rows: list[DemoRow]
    module: hf.SelfAttention
    hashes: tuple[str, str]
    seconds: float

    @property
    def figures(self) -> dict[str, Any]:
        """All that there is to say, for JSON."""
        rows = [{"pattern": x.name, **x.target.to_dict(), **x.fit.to_dict()} for x in self.rows]
        return {
            "holds": all(row.fit.certificate.holds for row in self.rows),
            "untouched": self.hashes[0] == self.hashes[1],
            "weights": self.hashes,
            "seconds": self.seconds,
            "patterns": rows,
        }

    @property
    def weights(self) -> str:
        """What became of the weights."""
        before, after = self.hashes
        kept = "the same bytes" if before == after else "CHANGED"
        return f"weights: sha256 {before[:16]} before, {after[:16]} after: {kept}"

    def __str__(self) -> str:
        names, cells = list(self.rows[0].cells), [list(row.cells.values()) for row in self.rows]
        end = (_NOTES, self.weights, f"{self.seconds:.1f} s in all")
        return text_table(_HEADING.format(self.module), names, cells, end)

    def draw(self) -> Any:
        """Return a new figure of pyplot, with the target above the attention of each pattern."""
        import matplotlib.pyplot as plt

        size = (2.9 * len(self.rows) + 1, 7.2)
        figure, axes = plt.subplots(2, len(self.rows), figsize=size, layout="constrained")
        for (above, below), row in zip(axes.T, self.rows, strict=True):
            A = row.target.matrix[row.order][:, row.order]
            head = hf.Attention(row.fit.Q[row.order], row.fit.K[row.order], scale=row.fit.scale)
            # Each cell of 200 has several pixels on a projector.
            _, image = hf.plot.compare(A, head, axes=(above, below), pixels=200)
            for ax in (above, below):
                ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
            cells, k = row.cells, row.target.per_row
            above.set_title(f"{row.name}\ntarget, n = {cells['n']}, k = {k}")
            bounds = f"leak <= {cells['leak']}, distortion <= {cells['distortion']}"
            said = f"attention, d = {cells['learned d']}, {cells['verdict']}\n{bounds}"
            below.set_title(said, fontsize=9)
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
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
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
    rows = []
    for name, A, order in _patterns(n, rng, digits):
        progress(f"{name}, n = {len(order)}")
        target = hf.Target(A)
        fit = hf.fit(target, module=module, rng=rng, time_limit=time_limit, **options)
        rows.append(DemoRow(name, target, order, fit))
    return Demo(rows, module, (before, _digest(module)), time.perf_counter() - start)


def _digest(module: hf.SelfAttention) -> str:
    return hashlib.sha256(np.ascontiguousarray(module.weights).data).hexdigest()


def _patterns(n: int, rng: int, digits: bool) -> Iterator[tuple[str, Any, NDArray[np.intp]]]:
    """Yield name, pattern and order of tokens; digits are ordered by what they show."""
    order = np.arange(n)
    yield "band", hf.patterns.band(n, 1), order
    yield "random_regular", hf.patterns.random_regular(n, 4, gamma=2.0, rng=rng), order
    yield "permutation", hf.patterns.permutation(n, rng=rng), order
    yield "tree", hf.patterns.tree(n), order
    if digits:
        file = Path(hf.__file__).with_name("data") / "digits_knn.npz"
        labels = load_arrays(file, "file of arrays")["labels"]
        yield "digits_knn", hf.patterns.digits_knn(), np.argsort(labels, kind="stable")


@command(PLOT, options_of(hf.fit, "rng num_threads"))
def demo(call: Call) -> Outcome:
    """Run the demonstration, and perhaps draw it.

    headfit demo
    headfit demo --plot demo.png
    headfit demo --json
    """
    picture = call.pop("plot", None)
    results = run_demo(progress=call.say, **call)
    text = f"{results}{draw(call, picture, results.draw)}"
    return Outcome(results.figures | {"picture": picture}, text, results.figures["holds"])
