"""The C++ core, in the build that suits this CPU: the module becomes that build."""

import sys
from importlib import import_module

from headfit import _levels

sys.modules[__name__] = import_module(f"headfit._core_{_levels.choose()}")
