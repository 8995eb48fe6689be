"""headfit: how small a self-attention head can produce a given sparse attention pattern.

Give it a sparse row-stochastic matrix; it gives the head, the input that makes one fixed
module attend that way, and a certificate that holds for every entry.

>>> import headfit as hf
>>> A = hf.patterns.band(32, 1)
>>> hf.fit(A, 1024, leak=0.3, distortion=2.0).certificate.holds
True
"""

import ast
import os
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from threading import RLock
from typing import Any

from headfit._base.display import Pictured

# Where each public name stands. Modules are imported when one of their names is first used, as
# SPEC 1 of Scientific Python describes: `import headfit` and the command line start at once.
_HOMES = {
    name.name if name.asname is None else name.asname: (str(node.module), name.name)
    for node in ast.parse(files("headfit").joinpath("__init__.pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
}
# A process that is forked while another thread imports would wait for that import forever.
_importing = RLock()
os.register_at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing.release,
)

# PyTorch is optional: a star import does without it.
__all__ = sorted(_HOMES.keys() - {"torch"})

# Results in a notebook are drawn by `plot`, which registers what it draws.
Pictured._load_pictures = staticmethod(lambda: import_module("headfit.plot"))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _HOMES[name]
    with _importing:
        if module == __name__:
            return import_module(f"headfit.{name}")
        value = globals()[name] = getattr(import_module(module), original)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "torch"] if find_spec("torch") else __all__)
