"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headfit._base import memory

GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
"""Where the kernel names the control groups of this process."""


def available_cores() -> int:
    """Return how many cores this process may use: those it may run on, and their time it may take.

    A container with a quota of two cores' time on a machine with 64 would be stopped for most of
    each period with 64 threads. The quotas of control groups are read once a process (Python's
    ``os.process_cpu_count`` leaves them out).
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return max(1, min(cores, cores_of_quota()))


@cache
def cores_of_quota() -> int:
    """Return the least quota of the control groups above this process, rounded up to cores."""
    return max(1, math.ceil(min(_quotas(), default=2**15)))


def _quotas() -> Iterator[float]:
    """Yield the quota of every control group (v1 and v2) above this process that has one."""
    for line in _lines(GROUPS_OF_PROCESS):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        root = memory.CGROUPS
        if "cpu" in controllers.split(","):
            root = root / "cpu"
        elif controllers:
            continue
        # Inside a container its own group stands at the root, whatever the path says.
        for folder in {root, *memory.folders_below(root, path)}:
            both = " ".join(
                [
                    *_lines(folder / "cpu.max"),  # v2: "quota period" or "max period"
                    *_lines(folder / "cpu.cfs_quota_us"),  # v1: -1 is no quota
                    *_lines(folder / "cpu.cfs_period_us"),
                ]
            ).split()
            if len(both) == 2 and all(word.isdecimal() and int(word) > 0 for word in both):
                yield int(both[0]) / int(both[1])


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
