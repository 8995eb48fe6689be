"""Settings of the whole test suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Set before Matplotlib is imported, so that no test opens a window.
os.environ["MPLBACKEND"] = "Agg"
# Set before Dask is imported. A LocalCluster lets go of a worker whose process takes longer than
# this to begin again, 15 seconds if nothing else is said.
os.environ["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "1 hour"

# No deadline, since shared machines are slow at times; a rerun in CI tries the same examples.
settings.register_profile("headfit", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("headfit")
