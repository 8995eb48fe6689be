"""headfit: how small a self-attention head can produce a given sparse attention pattern.

Give it a sparse row-stochastic matrix; it gives the head, the input that makes one fixed
module attend that way, and a certificate that holds for every entry.

>>> import headfit as hf
>>> A = hf.patterns.band(32, 1)
>>> hf.fit(A, 1024, leak=0.3, distortion=2.0).certificate.holds
True
"""

from importlib import import_module
from importlib.util import find_spec

from headfit._base.display import Pictured
from headfit._public import attach

__getattr__, _, _names = attach(__name__, "__init__.pyi")
# PyTorch is optional: a star import does without it.
__all__ = sorted({*_names} - {"torch"})

# Results in a notebook are drawn by a module of `plot`, which registers what it draws.
Pictured._load_pictures = staticmethod(lambda: import_module("headfit.plot._html"))


def __dir__() -> list[str]:
    return _names if find_spec("torch") else __all__
