"""Pictures of attention, of certificates, and of searches for small heads."""

from headfit.plot._compare import compare, keys
from headfit.plot._curves import curve, index
from headfit.plot._filters import rope, translation
from headfit.plot._fit import certificate, plan, search
from headfit.plot._matrix import attention, heads_grid, offsets
from headfit.plot._tiles import tiles

__all__ = [
    "attention",
    "certificate",
    "compare",
    "curve",
    "heads_grid",
    "index",
    "keys",
    "offsets",
    "plan",
    "rope",
    "search",
    "tiles",
    "translation",
]
