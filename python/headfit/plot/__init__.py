"""Pictures of attention, of what is proved about it, and of searches for small heads.

Matrices of any size are drawn: large ones are max-pooled, by blocks of rows, so that no single
entry is lost and nothing n x n is stored. Every function draws on the axes it is given, or on a
new figure, and returns what it drew. Colours are told apart by colour-blind eyes.

Matplotlib comes with the extra ``headfit[plot]`` and is imported when something is drawn.
"""

from headfit.plot._axes import MISSING
from headfit.plot._certificate import certificate
from headfit.plot._compare import compare
from headfit.plot._curve import curve
from headfit.plot._grid import heads_grid
from headfit.plot._keys import KeysPicture, keys
from headfit.plot._matrix import attention
from headfit.plot._offsets import offsets
from headfit.plot._search import SearchPicture, search
from headfit.plot._tiles import tiles

__all__ = [
    "MISSING",
    "KeysPicture",
    "SearchPicture",
    "attention",
    "certificate",
    "compare",
    "curve",
    "heads_grid",
    "keys",
    "offsets",
    "search",
    "tiles",
]


def __dir__() -> list[str]:
    return sorted(__all__)
