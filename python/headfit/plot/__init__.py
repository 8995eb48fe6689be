"""Pictures of attention, of certificates, and of searches for small heads.

Matrices of any size can be drawn: large ones are max-pooled by blocks of rows, so that no single
large entry is lost and no n x n array is stored. Every function draws on the axes that it is
given, or on a new figure, and returns the Matplotlib objects that it drew. The colours can be
distinguished by colour-blind readers.

Matplotlib comes with the extra ``headfit[plot]`` and is imported when something is drawn; without
it every function raises an ImportError that says so.
"""

from headfit.plot import _html  # noqa: F401
from headfit.plot._compare import compare, keys
from headfit.plot._curves import curve, growth
from headfit.plot._filters import rope, translation
from headfit.plot._fit import certificate, plan, search
from headfit.plot._matrix import attention, heads_grid, offsets
from headfit.plot._tiles import tiles

__all__ = [
    "attention",
    "certificate",
    "compare",
    "curve",
    "growth",
    "heads_grid",
    "keys",
    "offsets",
    "plan",
    "rope",
    "search",
    "tiles",
    "translation",
]


def __dir__() -> list[str]:
    return sorted(__all__)
