"""Settings of the whole test suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Set before Matplotlib is imported, so that no test opens a window.
os.environ["MPLBACKEND"] = "Agg"

# No deadline, since shared machines are slow at times; a rerun in CI tries the same examples.
settings.register_profile("headfit", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("headfit")
