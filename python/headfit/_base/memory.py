"""How much memory is available; work that needs more is refused before it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headfit.errors import TooLargeError

CGROUPS = Path("/sys/fs/cgroup")
"""Where the kernel shows the limits of containers and of batch systems."""

SMALL = 2**24
"""Requests of at most this many bytes are not checked: the check would take longer than the use."""


def available_memory() -> int | None:
    """Return how many bytes this process may still take, or None if the system does not tell.

    This is the least of the machine's free memory, what the limits of the process's control
    groups (v1 and v2) leave, and what its limit of address space (``ulimit -v``) leaves.
    """
    found = [x for x in (_of_machine(), _of_addresses(), *_of_groups()) if x is not None]
    return max(0, min(found)) if found else None


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


def _of_machine() -> int | None:
    kilobytes = _fields(Path("/proc/meminfo")).get("MemAvailable:")
    if kilobytes is not None:  # free memory, and caches that the kernel can reclaim
        return 1024 * kilobytes
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_addresses() -> int | None:
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError, IndexError):
        return None
    return None if most == resource.RLIM_INFINITY else most - pages * resource.getpagesize()


def _of_groups() -> Iterator[int]:
    """Yield how many bytes the limit of each control group of this process leaves it."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            files, root = ("memory.max", "memory.current", "inactive_file"), CGROUPS
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = CGROUPS / "memory"
        else:
            continue
        # Inside a container the files of its own group are at the root, whatever the path says.
        for folder in {root, *folders_below(root, path)}:
            left = _left(folder, *files)
            if left is not None:
                yield left


def folders_below(root: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a control group and those of its ancestors, without the root."""
    folder = root / path.strip("/")
    while folder != root and root in folder.parents:
        yield folder
        folder = folder.parent


def _left(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    most, used = _number(folder / limit), _number(folder / usage)
    if most is None or used is None:
        return None
    return most - used + _fields(folder / "memory.stat").get(cache, 0)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))  # "max" means no limit: a ValueError
    except (OSError, ValueError):
        return None


def _fields(file: Path) -> dict[str, int]:
    try:
        lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
        return {words[0]: int(words[1]) for words in lines if len(words) > 1}
    except (OSError, ValueError):
        return {}
