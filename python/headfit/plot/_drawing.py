"""Matplotlib, imported when something is drawn and not before; its types; and the colours."""

from typing import TYPE_CHECKING, Any

from headfit._base.display import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.collections import PathCollection as PathCollection
    from matplotlib.container import BarContainer as BarContainer
    from matplotlib.image import AxesImage as AxesImage
    from matplotlib.lines import Line2D as Line2D
    from matplotlib.patches import Rectangle as Rectangle
else:
    Axes = PathCollection = BarContainer = AxesImage = Line2D = Rectangle = Any

MISSING = "plots need Matplotlib, which comes with the extra: pip install 'headfit[plot]'"

# From the palette of Okabe and Ito, whose colours colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, INK, GREY = "#0072B2", "#D55E00", "#009E73", "#1b1b1b", "#8a8f94"


def matplotlib() -> Any:
    """Return the package matplotlib, or raise an ImportError that names the extra with it."""
    package = optional("matplotlib", ImportError(MISSING))
    for part in ("axes", "colors", "figure", "scale", "ticker"):
        optional(f"matplotlib.{part}", ImportError(MISSING))
    return package
