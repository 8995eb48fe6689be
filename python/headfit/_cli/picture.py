"""The pictures of commands: targets and attention of the demonstration, and what a plan found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headfit import plot
from headfit._attention.attention import Attention
from headfit._base.drawing import MISSING
from headfit._base.files import replace_file
from headfit._base.text import number
from headfit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from headfit._cli.demo import Demo, DemoRow

FORMATS = (".png", ".pdf", ".svg")
_PAIRS_A_LINE = 3
_CELLS = 200  # cells along each side of a matrix, so that each has several pixels on a projector
_CMAP = "viridis"  # perceptually uniform, and readable for colour-blind people
_INK, _QUIET, _GOOD, _BAD = "#1b1b1b", "#5f6368", "#1a6e3c", "#b3261e"
_NAMES = {
    "band": "Band",
    "random_regular": "Random regular",
    "permutation": "Permutation",
    "tree": "Binary tree",
    "digits_knn": "Digit neighbours",
}


def save(demo: Demo, path: Path) -> Path:
    """Write the picture to a file whose name ends as one of FORMATS does."""
    kind = check_name(path)
    figure = draw(demo)
    replace_file(path, lambda file: figure.savefig(file, format=kind))
    return path


def save_drawing(
    name: str,
    *given: Any,
    path: Path,
    panels: tuple[int, int] | None = None,
    size: tuple[float, float] = (8.0, 5.4),
    **settings: Any,
) -> Path:
    """Write what a function of `headfit.plot` draws to a file whose name ends as FORMATS say.

    Parameters
    ----------
    name : str
        The function's name.
    *given
        Its arguments.
    path : Path
    panels : tuple of two int, optional
        The rows and columns of axes, for a function that takes several; else it takes one.
    size : tuple of two float
        The width and height in inches.
    **settings
        Its other arguments by name.
    """
    kind = check_name(path)
    figure = new_figure(dpi=150, figsize=size)
    # More padding than the default, since the layout is approximate before the first drawing.
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    if panels is None:
        places: dict[str, Any] = {"ax": figure.subplots()}
    else:
        places = {"axes": figure.subplots(*panels, squeeze=False).ravel()}
    getattr(plot, name)(*given, **places, **settings)
    replace_file(path, lambda file: figure.savefig(file, format=kind))
    return path


def new_figure(**settings: Any) -> Figure:
    """Return a figure that belongs to no pyplot window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING) from error
    return Figure(**settings)


def check_name(path: Path) -> str:
    """Return the format that a file's name asks for, or raise an InputError."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"a picture's name must end in {', '.join(FORMATS)}; got {path}")
    return path.suffix[1:].lower()


def draw(demo: Demo) -> Figure:
    """Return the figure of the demonstration."""
    lines = -(-(len(demo.rows) + 1) // _PAIRS_A_LINE)
    size = (13.333, 0.85 + 3.325 * lines)
    figure = new_figure(dpi=200, figsize=size, facecolor="white")
    top = 0.85 / figure.get_figheight()
    title, body = cast("Any", figure.subfigures)(2, 1, height_ratios=[top, 1 - top])
    title.text(
        0.5, 0.42, "One attention module, its weights never changed: only the input differs",
        ha="center", va="center", fontsize=19, color=_INK, weight="bold",
    )  # fmt: skip
    places = body.subfigures(lines, _PAIRS_A_LINE, squeeze=False).ravel()
    image = None
    for place, row in zip(places, demo.rows, strict=False):
        image = _pair(place, row)
    _legend(places[len(demo.rows)], demo, image)
    return figure


def _pair(place: SubFigure, row: DemoRow) -> Any:
    A, attention = row.target.matrix, Attention(row.fit.Q, row.fit.K, scale=row.fit.scale)
    if row.order is not None:
        order = row.order
        A = A[order][:, order]
        attention = Attention(row.fit.Q[order], row.fit.K[order], scale=row.fit.scale)
    left, right = place.subplots(
        1, 2, gridspec_kw={"left": 0.03, "right": 0.97, "bottom": 0.17, "top": 0.80, "wspace": 0.06}
    )
    _, image = plot.compare(A, attention, axes=(left, right), pixels=_CELLS, cmap=_CMAP)
    for ax in (left, right):
        _frame(ax)
    target = row.target
    place.text(0.03, 0.955, _NAMES.get(row.name, row.name), fontsize=14, color=_INK,
               va="center", weight="bold")  # fmt: skip
    note = f"n = {target.n},  k = {target.per_row},  d = {row.dim}"
    place.text(0.97, 0.955, note, fontsize=11, color=_QUIET, va="center", ha="right")
    certificate = row.fit.certificate
    verdict = {"holds": "certified", "fails": "not certified", "undecided": "undecided"}
    place.text(
        0.03, 0.085,
        f"{verdict[certificate.status]}:  leak \u2264 {number(certificate.leak, 3)},  "
        f"distortion \u2264 {number(certificate.distortion, 3)}",
        fontsize=11.5, color=_GOOD if certificate.holds else _BAD, va="center",
    )  # fmt: skip
    return image


def _frame(ax: Axes) -> None:
    ax.title.set(fontsize=10.5, color=_QUIET)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set(xlabel="", ylabel="")
    for spine in ax.spines.values():
        spine.set(color="#9aa0a6", linewidth=0.6)


def _legend(place: SubFigure, demo: Demo, image: Any) -> None:
    module, first = demo.module, demo.rows[0].fit
    changed = "unchanged" if demo.untouched else "CHANGED"
    lines = (
        ("Module", f"head size d = {module.dim}, input width D = {module.width}"),
        ("Weights", "W_Q and W_K are dense and random"),
        ("", f"SHA-256 {demo.weights_before[:12]}\u2026, {changed}"),
        ("Leak", "largest weight off the pattern / smallest on it"),
        ("Distortion", "worst error of the ratios on the pattern"),
        (
            "Asked for",
            f"leak \u2264 {first.tolerances.leak:g}, "
            f"distortion \u2264 {first.tolerances.distortion:g} in every row",
        ),
    )
    for i, (name, text) in enumerate(lines):
        y = 0.955 - 0.087 * i
        place.text(0.03, y, name, fontsize=10, color=_INK, va="center", weight="bold")
        place.text(0.235, y, text, fontsize=10, color=_INK, va="center")
    bar = place.add_axes((0.03, 0.25, 0.94, 0.045))
    place.colorbar(
        image, cax=bar, orientation="horizontal", ticks=[0, 0.01, 0.05, 0.1, 0.3, 0.6, 1]
    )
    bar.tick_params(labelsize=10, color=_QUIET, labelcolor=_QUIET)
    bar.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    place.text(0.03, 0.33, "weight / largest weight of its row", fontsize=10.5, color=_INK)
    stray = max(row.fit.certificate.stray_worst for row in demo.rows)
    place.text(
        0.03, 0.085,
        f"Off the pattern in all: up to {stray:.0%} of a row's mass",
        fontsize=10, color=_QUIET, va="center",
    )  # fmt: skip
