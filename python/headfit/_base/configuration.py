"""The configuration in use: which build of the core, and the versions of what it depends on."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any

import numpy as np
import scipy

from headfit import _core
from headfit._base import cpu_level
from headfit._base.arrays import thread_count
from headfit._base.processors import cpu_name
from headfit._base.version import VERSION

__all__ = ["Config", "show_config"]

OPTIONAL = (
    "distributed", "matplotlib", "networkx", "pandas", "safetensors", "torch", "tqdm",
    "transformers",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Config:
    """The configuration in use, as `show_config` returns it.

    Attributes
    ----------
    version : str
        The version of headfit.
    cpu : str
        The CPU level of the core in use: "v2", "v3" and "v4" are those of x86-64 (SSE4.2; AVX2
        and FMA; AVX-512), "generic" is any CPU of the architecture, "native" the machine that
        the core was built on.
    built : tuple of str
        The levels that this installation holds, lowest first.
    supported : tuple of str
        The levels that this CPU and operating system can run, whether or not they are built.
    threads : int
        The number of threads that ``num_threads=None`` uses: the cores that this process may use.
    compiler, flags : str
        The compiler of the core in use, and its options for optimisation.
    eigen, python, numpy, scipy : str
        Their versions; that of Eigen is the one that the core was compiled with.
    extras : tuple of str
        Name and version of each optional package that is installed.
    system, processor : str
        The operating system, and the name of the CPU.
    """

    version: str
    cpu: str
    built: tuple[str, ...]
    supported: tuple[str, ...]
    threads: int
    compiler: str
    flags: str
    eigen: str
    python: str
    numpy: str
    scipy: str
    extras: tuple[str, ...]
    system: str
    processor: str

    def __repr__(self) -> str:
        lines = (
            f"  {field.name:<10}  {_text(getattr(self, field.name))}" for field in fields(self)
        )
        return "\n".join(("headfit", *lines))


def show_config() -> Config:
    """Return the configuration in use: the CPU level, threads, compiler and versions.

    The package holds its C++ core once for each CPU level and takes, when it is imported, the
    highest that the CPU supports. The environment variable ``HEADFIT_CPU``, set to one of
    ``built`` before Python starts, takes another; a level that is not built or not supported
    is an ImportError that names those that are.

    Returns
    -------
    Config

    Notes
    -----
    It raises no error. The levels are those of the x86-64 psABI. Results of two levels agree up to
    rounding, not bit for bit: they sum in a different order, and v2 has no fused multiply-add.

    Examples
    --------
    >>> import headfit as hf
    >>> found = hf.show_config()
    >>> found.cpu in found.built
    True
    >>> found
    headfit
      version    ...
      cpu        ...
    """
    return Config(
        version=VERSION,
        cpu=_core.build["level"],
        built=cpu_level.built(),
        supported=cpu_level.supported(),
        threads=thread_count(None),
        compiler=_core.build["compiler"],
        flags=_core.build["flags"],
        eigen=_core.build["eigen"],
        python=platform.python_version(),
        numpy=np.__version__,
        scipy=scipy.__version__,
        extras=tuple(_installed()),
        system=platform.platform(),
        processor=cpu_name(),
    )


def _installed() -> Iterator[str]:
    for name in OPTIONAL:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
