"""What the machine lets this process use: memory, processor cores, and the CPU's name.

Work that needs more memory than there is is refused before it starts.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headfit.errors import TooLargeError

CGROUPS = Path("/sys/fs/cgroup")
"""Where the kernel shows the limits of containers and of batch systems."""

GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
"""The file in which the kernel lists the control groups of this process."""

SMALL = 2**24
"""Requests of at most this many bytes are not checked: the check would take longer than the use."""


def require_memory(wanted: int, what: str) -> None:
    """Raise a TooLargeError with the size when `wanted` bytes cannot fit in memory."""
    if wanted <= SMALL:
        return
    free = available_memory()
    if free is not None and wanted > free:
        raise TooLargeError(
            f"{what} needs {_gibibytes(wanted)} GiB of memory; {_gibibytes(free)} GiB are free"
        )


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f}" if size < 2**80 else f"{size >> 30:.3e}"


def available_memory() -> int | None:
    """Return how many bytes this process may still take, or None if the system does not tell.

    This is the least of the machine's free memory, what the limits of the process's control
    groups leave, and what its limit of address space (``ulimit -v``) leaves.
    """
    least = min(_free(), default=None)
    return None if least is None else max(0, least)


def _free() -> Iterator[int]:
    """Yield how many bytes each limit leaves this process."""
    try:  # free memory, and caches that the kernel can reclaim
        yield 1024 * _fields(Path("/proc/meminfo"))["MemAvailable:"]
    except KeyError:
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            yield most - pages * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        pass
    yield from memory_of_groups()


def memory_of_groups() -> Iterator[int]:
    """Yield how many bytes the limit of each control group of this process leaves it."""
    for folder in _groups():
        most, used = (_integers(folder / name) for name in ("memory.max", "memory.current"))
        if most and used:  # the kernel can reclaim what lies in inactive files
            yield most[0] - used[0] + _fields(folder / "memory.stat").get("inactive_file", 0)


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
    least = 2.0**15
    for folder in _groups():
        quota_and_period = _integers(folder / "cpu.max")  # none where there is no quota
        if len(quota_and_period) == 2 and min(quota_and_period) > 0:
            least = min(least, quota_and_period[0] / quota_and_period[1])
    return max(1, math.ceil(least))


@cache
def cpu_name() -> str:
    """Return the name of this machine's processor."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _groups() -> Iterator[Path]:
    """Yield the folders of the control groups (version 2) that may limit this process."""
    # Inside a container the files of its own group are at the root, whatever the path says.
    yield CGROUPS
    for line in _lines(GROUPS_OF_PROCESS):
        if line.startswith("0::"):
            folder = CGROUPS / line.removeprefix("0::").strip("/")
            while folder != CGROUPS and CGROUPS in folder.parents:
                yield folder
                folder = folder.parent


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def _integers(file: Path) -> list[int]:
    """Return the integers of a file; none if it holds other words, such as "max" for no limit."""
    try:
        return [int(word) for line in _lines(file) for word in line.split()]
    except ValueError:
        return []


def _fields(file: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    words = [line.split() for line in _lines(file)]
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdecimal()}
