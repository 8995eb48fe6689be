"""Free-threaded Python: the core is not tested without the lock, so it declares to need it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import headfit as hf

FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.mark.skipif(not FREE, reason="this Python always has its lock")
def test_a_free_threaded_python_gets_its_lock_back() -> None:
    code = "import sys, headfit; assert sys._is_gil_enabled(); print(headfit.show_config().cpu)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hf.show_config().cpu
    assert "RuntimeWarning: The global interpreter lock (GIL) has been enabled" in done.stderr


def test_no_module_claims_to_do_without_the_lock() -> None:
    """pybind11 makes the declaration where a module's source asks for it."""
    sources = Path(__file__).parents[2] / "cpp" / "bindings"
    if sources.is_dir():
        for source in sources.iterdir():
            assert "mod_gil_not_used" not in source.read_text(), source
