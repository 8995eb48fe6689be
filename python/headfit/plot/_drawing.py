"""Matplotlib, which is imported when something is drawn, and the colours of all pictures."""

from __future__ import annotations

from typing import Any

MISSING = "plots need Matplotlib, which comes with the extra: pip install 'headfit[plot]'"

# From the palette of Okabe and Ito, whose colours colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, INK, GREY = "#0072B2", "#D55E00", "#009E73", "#1b1b1b", "#8a8f94"


def matplotlib() -> Any:
    """Return the package matplotlib, or raise an ImportError that names the extra with it."""
    try:
        import matplotlib
        import matplotlib.axes
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.scale
        import matplotlib.ticker
    except ImportError as error:
        raise ImportError(MISSING) from error
    return matplotlib
