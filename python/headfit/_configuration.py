"""The configuration in use: which build of the core, and the versions of what it depends on."""

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import scipy

from headfit import _build, _core
from headfit._base.arguments import thread_count
from headfit._base.machine import cpu_name

OPTIONAL = (
    "distributed", "matplotlib", "networkx", "pandas", "safetensors", "torch", "tqdm",
    "transformers",
)  # fmt: skip


class Config(SimpleNamespace):
    """The configuration in use, as `show_config` returns it; printed one entry to a line."""

    def __repr__(self) -> str:
        texts = {n: ", ".join(x) if isinstance(x, tuple) else x for n, x in vars(self).items()}
        return "\n".join(["headfit", *(f"  {name:<10}  {text}" for name, text in texts.items())])


def show_config() -> Config:
    """Return the configuration in use: the CPU level, threads, compiler and versions.

    The package holds its C++ core once for each CPU level and takes, when it is imported, the
    highest that the CPU supports. The environment variable ``HEADFIT_CPU``, set to one of
    ``built`` before Python starts, takes another; a level that is not built or not supported
    is an ImportError that names those that are.

    Returns
    -------
    SimpleNamespace
        With the attributes ``version``; ``cpu``, the level of the core in use ("v2", "v3" and "v4"
        are those of x86-64: SSE4.2; AVX2 and FMA; AVX-512; "generic" is any CPU of the
        architecture, "native" the machine that the core was built on); ``built`` and
        ``supported``, the levels that this installation holds and that this CPU can run, lowest
        first; ``threads``, the number that ``num_threads=None`` uses; ``compiler`` and ``flags`` of
        the core in use; the versions ``eigen``, ``python``, ``numpy``, ``scipy`` and, as
        ``extras``, those of the optional packages that are installed; ``system``, ``processor``.

    Notes
    -----
    It raises no error. The levels are those of the x86-64 psABI. Results of two levels agree up to
    rounding, not bit for bit: they sum in a different order, and v2 has no fused multiply-add.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.show_config()
    headfit
      version    ...
      cpu        ...
    """
    return Config(
        version=_build.VERSION,
        cpu=_core.build["level"],
        built=_build.built(),
        supported=_build.supported(),
        threads=thread_count(None),
        **{name: _core.build[name] for name in ("compiler", "flags", "eigen")},
        python=platform.python_version(),
        numpy=np.__version__,
        scipy=scipy.__version__,
        extras=tuple(_installed()),
        system=platform.platform(),
        processor=cpu_name(),
    )


def _installed() -> Iterator[str]:
    for name in OPTIONAL:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"
