"""The types of Matplotlib in annotations: it is imported when something is drawn, not before."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.collections import PathCollection as PathCollection
    from matplotlib.container import BarContainer as BarContainer
    from matplotlib.image import AxesImage as AxesImage
    from matplotlib.lines import Line2D as Line2D
    from matplotlib.patches import Rectangle as Rectangle
else:
    Axes = PathCollection = BarContainer = AxesImage = Line2D = Rectangle = Any
