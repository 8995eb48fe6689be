"""Pictures of commands: what `headfit.plot` draws, in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headfit import plot
from headfit._base.drawing import matplotlib
from headfit._base.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file whose name ends as one of FORMATS does."""
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:]))


def save_drawing(name: str, *results: Any, path: Path, **settings: Any) -> None:
    """Write what the function of this name in `headfit.plot` draws to a file."""
    package = matplotlib()
    if "matplotlib.pyplot" not in sys.modules:
        package.use("agg")  # pyplot opens no window
    import matplotlib.pyplot as plt

    with plt.rc_context({"savefig.dpi": 150}):
        getattr(plot, name)(*results, **settings)
        save_figure(plt.gcf(), path)
    plt.close()
