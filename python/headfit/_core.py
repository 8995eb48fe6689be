"""The C++ core, in the build that suits this CPU: the module becomes that build."""

import sys
from importlib import import_module

from headfit._base import cpu_level

try:
    _level = cpu_level.choose()
except ImportError as error:
    if cpu_level.is_command():  # whose bad input is one line and status 2, a variable's too
        print(f"headfit: {error}", file=sys.stderr)
        sys.exit(2)
    raise
sys.modules[__name__] = import_module(f"headfit._core_{_level}")
