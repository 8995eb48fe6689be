"""What the machine lets this process use: memory, processor cores, and the CPU's name.

Work that needs more memory than there is is refused before it starts.
"""

import math
import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headfit.errors import TooLargeError

# Where the kernel shows the limits of containers and of batch systems.
CGROUPS = Path("/sys/fs/cgroup")

# The file in which the kernel lists the control groups of this process.
GROUPS_OF_PROCESS = Path("/proc/self/cgroup")

# Requests of at most this many bytes are not checked: the check would take longer than the use.
SMALL = 2**24


def require_memory(wanted: int, what: str) -> None:
    """Raise a TooLargeError with the size when `wanted` bytes cannot fit in memory."""
    if wanted <= SMALL:
        return
    free = available_memory()
    if free is not None and wanted > free:
        raise TooLargeError(
            f"{what} needs {wanted / 2**30:.1f} GiB of memory; {free / 2**30:.1f} GiB are free"
        )


def available_memory() -> int | None:
    """Return how many bytes this process may still take, or None if the system does not tell.

    This is the least of the machine's free memory and of what the limits of the process's control
    groups leave.
    """
    free = [*memory_of_groups()]
    if whole := _find(r"^MemAvailable: *(\d+) kB", Path("/proc/meminfo")):
        free.append(1024 * int(whole[1]))  # with caches that the kernel can reclaim
    return max(0, min(free)) if free else None


def memory_of_groups() -> Iterator[int]:
    """Yield how many bytes the limit of each control group of this process leaves it."""
    for folder in _groups():
        most, used = (_find(r"^\d+", folder / name) for name in ("memory.max", "memory.current"))
        if most and used:  # the kernel can reclaim what lies in inactive files
            inactive = _find(r"^inactive_file (\d+)", folder / "memory.stat")
            yield int(most[0]) - int(used[0]) + (int(inactive[1]) if inactive else 0)


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
    # Each file has a quota and the period that it is for.
    limits = [_find(r"^([1-9]\d*) ([1-9]\d*)", folder / "cpu.max") for folder in _groups()]
    quotas = (int(found[1]) / int(found[2]) for found in limits if found)
    return math.ceil(min(quotas, default=2**15))


@cache
def cpu_name() -> str:
    """Return the name of this machine's processor."""
    named = _find(r"^model name\s*: *(.+)", Path("/proc/cpuinfo"))
    return named[1] if named else platform.processor() or platform.machine()


def _groups() -> list[Path]:
    """Return the folders of the control groups (version 2) that may limit this process."""
    own = _find(r"^0::/*(.*)", GROUPS_OF_PROCESS)
    # Inside a container the files of its own group are at the root, whatever the path says.
    folder = CGROUPS / own[1] if own else CGROUPS
    return [x for x in (folder, *folder.parents) if x == CGROUPS or CGROUPS in x.parents]


def _find(pattern: str, file: Path) -> re.Match[str] | None:
    """Return where a pattern is first in a file; None also where there is no such file."""
    try:
        return re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return None
