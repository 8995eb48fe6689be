"""Pictures of commands, each written to a file by what `headfit.plot` draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headfit import plot
from headfit._base.drawing import MISSING
from headfit._base.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def new_figure(**settings: Any) -> Figure:
    """Return a figure that belongs to no pyplot window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING) from error
    return Figure(**settings)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file whose name ends as one of FORMATS does."""
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:]))


def save_drawing(
    name: str,
    *results: Any,
    path: Path,
    panels: tuple[int, int] | None = None,
    size: tuple[float, float] = (8.0, 5.4),
    **settings: Any,
) -> None:
    """Write what a function of `headfit.plot` draws to a file.

    Parameters
    ----------
    name : str
        The function's name.
    *results
        Its arguments.
    path : Path
    panels : tuple of two int, optional
        The rows and columns of axes, for a function that takes several; else it takes one.
    size : tuple of two float
        The width and height in inches.
    **settings
        Its other arguments by name.
    """
    figure = new_figure(dpi=150, figsize=size)
    # More padding than the default, since the layout is approximate before the first drawing.
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    if panels is None:
        settings["ax"] = figure.subplots()
    else:
        settings["axes"] = figure.subplots(*panels, squeeze=False).ravel()
    getattr(plot, name)(*results, **settings)
    save_figure(figure, path)
