"""What workers must have in common for their results to be those of one machine, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headfit._base.configuration import show_config
from headfit.errors import InputError

MOST_LISTED = 4
"""How many workers of a kind an error message names."""


class Build(NamedTuple):
    """The version of headfit, and everything about its core that may change the bits of a result.

    Two cores of the level "native" were each compiled for the machine that they were built on, so
    that their machines must support the same levels as well.
    """

    version: str
    cpu: str
    supported: tuple[str, ...]
    compiler: str
    flags: str
    eigen: str

    def __str__(self) -> str:
        level = f"CPU level {self.cpu}"
        if self.supported:
            level += f" on a machine with {', '.join(self.supported)}"
        return f"headfit {self.version}, {level} ({self.compiler})"


def own_build() -> Build:
    """Return the build of this process."""
    here = show_config()
    levels = here.supported if here.cpu == "native" else ()
    return Build(here.version, here.cpu, levels, here.compiler, here.flags, here.eigen)


def builds_of_this_version(found: Mapping[str, Any]) -> dict[Build, list[str]]:
    """Return the addresses of the workers that have each build, given what they answered.

    Raises
    ------
    InputError
        If a worker has no headfit, or another version than this process. The message names the
        workers and what they have.
    """
    by_build: dict[Build, list[str]] = {}
    for worker, build in found.items():
        if not isinstance(build, Build):
            raise InputError(f"client: the worker {worker} could not import headfit: {build!r}")
        by_build.setdefault(build, []).append(worker)
    for build, workers in by_build.items():
        if build.version != own_build().version:
            raise InputError(
                f"client: all workers must have headfit {own_build().version}, as this process "
                f"does; got {build.version} on {_listed(workers)}"
            )
    return by_build


def common_build(found: Mapping[str, Any]) -> Build:
    """Return the build of all workers, given what each of them answered to `own_build`.

    Raises
    ------
    InputError
        As `builds_of_this_version` does, and if the builds of the workers differ.
    """
    by_build = builds_of_this_version(found)
    if len(by_build) > 1:
        kinds = "; ".join(f"{build} on {_listed(workers)}" for build, workers in by_build.items())
        raise InputError(
            "client: all workers must have the same build and CPU level, since levels round "
            f"differently (see headfit.show_config; HEADFIT_CPU sets the level); got {kinds}"
        )
    return next(iter(by_build))


def _listed(workers: list[str]) -> str:
    more = len(workers) - MOST_LISTED
    return ", ".join(workers[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
