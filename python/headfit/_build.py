"""The version of the package, and the choice of its core: it holds one for each CPU level."""

import os
from importlib.resources import files
from importlib.util import find_spec

from headfit import _cpu

# The version, which has one source: the file VERSION.
VERSION = files("headfit").joinpath("VERSION").read_text(encoding="utf-8").strip()

VARIABLE = "HEADFIT_CPU"

# In the order of the instructions that they require, fewest first. "generic" runs on any CPU of
# the architecture; "native", a build from source, only on CPUs like the one it was built on.
LEVELS = ("generic", "v2", "v3", "v4", "native")


def built() -> tuple[str, ...]:
    """Return the levels that this installation holds."""
    return tuple(level for level in LEVELS if find_spec(f"headfit._core_{level}"))


def supported() -> tuple[str, ...]:
    """Return the levels that this CPU can run, built or not."""
    return "generic", *_cpu.x86_levels()


def choose() -> str:
    """Return the level in HEADFIT_CPU or, without it, the highest that is built and supported.

    Raises
    ------
    ImportError
        If no level is both built and supported; the message lists what is built and supported.
    """
    here, able = built(), supported()
    usable = [level for level in here if level in able or level == "native"]
    facts = f"built are {_listed(here)}; this CPU supports {_listed(able)}"
    forced = os.environ.get(VARIABLE, "")
    if forced and forced not in usable:
        expected = f"one of {_listed(usable)}, or unset"
        raise ImportError(f"{VARIABLE} must be {expected}; got {forced!r} ({facts})")
    if not usable:
        raise ImportError(
            f"no build of headfit's core runs on this CPU ({facts}); a build for any CPU: "
            "pip install -C cmake.define.HEADFIT_CPU_LEVELS=generic, from headfit's sources"
        )
    return forced or usable[-1]


def _listed(levels: tuple[str, ...] | list[str]) -> str:
    return ", ".join(levels) or "none"
