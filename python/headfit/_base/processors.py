"""The processor, and the number of its cores that this process may use."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headfit._base import memory

GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
"""The file in which the kernel lists the control groups of this process."""


def available_cores() -> int:
    """Return how many cores this process may use, by its CPU affinity and its CPU quota.

    A container with a quota of two cores on a machine of 64 that ran 64 threads would be paused
    for most of each period. The quotas of control groups, which Python's
    ``os.process_cpu_count`` does not take into account, are read once per process.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has CPU affinities
        cores = os.cpu_count() or 1
    return max(1, min(cores, cores_of_quota()))


@cache
def cores_of_quota() -> int:
    """Return the least CPU quota of this process's control groups, rounded up to whole cores."""
    return max(1, math.ceil(min(_quotas(), default=2**15)))


@cache
def cpu_name() -> str:
    """Return the name of this machine's processor."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _quotas() -> Iterator[float]:
    """Yield the quotas, in cores, of those control groups (v1 and v2) of this process with one."""
    for line in _lines(GROUPS_OF_PROCESS):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        root = memory.CGROUPS
        if "cpu" in controllers.split(","):
            root = root / "cpu"
        elif controllers:
            continue
        # Inside a container the files of its own group are at the root, whatever the path says.
        for folder in {root, *memory.folders_below(root, path)}:
            both = " ".join(
                [
                    *_lines(folder / "cpu.max"),  # v2: "quota period" or "max period"
                    *_lines(folder / "cpu.cfs_quota_us"),  # v1: -1 means no quota
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
