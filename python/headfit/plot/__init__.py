"""Pictures of attention, of certificates, and of searches for small heads.

Matrices of any size can be drawn: large ones are max-pooled by blocks of rows, so that no single
large entry is lost and no n x n array is stored. Every function draws on the axes that it is
given, or on a new figure, and returns the Matplotlib objects that it drew. The colours can be
distinguished by colour-blind readers.

Matplotlib comes with the extra ``headfit[plot]`` and is imported when something is drawn.
"""

from headfit.plot import _html  # noqa: F401
from headfit.plot._certificate import certificate
from headfit.plot._compare import compare
from headfit.plot._curve import curve
from headfit.plot._filter import FilterPicture, filter
from headfit.plot._grid import heads_grid
from headfit.plot._growth import GrowthPicture, growth
from headfit.plot._keys import KeysPicture, keys
from headfit.plot._matrix import attention
from headfit.plot._offsets import offsets
from headfit.plot._plan import PlanPicture, plan
from headfit.plot._rope import RopePicture, rope
from headfit.plot._search import SearchPicture, search
from headfit.plot._tiles import tiles

__all__ = [
    "FilterPicture",
    "GrowthPicture",
    "KeysPicture",
    "PlanPicture",
    "RopePicture",
    "SearchPicture",
    "attention",
    "certificate",
    "compare",
    "curve",
    "filter",
    "growth",
    "heads_grid",
    "keys",
    "offsets",
    "plan",
    "rope",
    "search",
    "tiles",
]


def __dir__() -> list[str]:
    return sorted(__all__)
