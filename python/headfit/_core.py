"""The C++ core: importing this module gives the build of the core that suits this CPU."""

import sys
from importlib import import_module

from headfit._base import cpu_level

try:
    _level = cpu_level.choose()
except ImportError as error:
    # The command line reports all bad input, also in environment variables, in one line on stderr
    # and with status 2.
    if cpu_level.is_command():
        print(f"headfit: {error}", file=sys.stderr)
        sys.exit(2)
    raise
sys.modules[__name__] = import_module(f"headfit._core_{_level}")
