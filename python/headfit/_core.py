"""The C++ core: importing this module gives the build of the core that suits this CPU."""

import sys
from importlib import import_module

from headfit._build import choose

sys.modules[__name__] = import_module(f"headfit._core_{choose()}")
