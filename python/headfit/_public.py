"""Public names that a stub lists, imported when one of them is first used.

SPEC 1 of Scientific Python describes it: `import headfit` and the command line start at once.
"""

import ast
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from threading import RLock
from typing import Any

# A process that is forked while another thread imports would wait for that import forever.
_importing = RLock()
os.register_at_fork(
    before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
)


def attach(
    module: str, stub: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a module whose names a stub imports."""
    homes = {
        name.name if name.asname is None else name.asname: (str(node.module), name.name)
        for node in ast.parse(files("headfit").joinpath(stub).read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, original = homes[name]
        with _importing:
            if home == module:
                return import_module(f"{module}.{name}")
            value = getattr(import_module(home), original)
            setattr(sys.modules[module], name, value)
        return value

    names = sorted(homes)
    return load, lambda: names, names
