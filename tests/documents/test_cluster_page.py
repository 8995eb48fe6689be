"""docs/cluster.md: its Python runs as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headfit as hf

PAGE = "docs/cluster.md"


@pytest.mark.full
def test_its_python_runs(python_of, tmp_path):
    pytest.importorskip("distributed")
    (code,) = python_of(PAGE)
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(hf.__file__).parents[1])}
    command = [sys.executable, "page.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Certificate: holds for all 2000**2 entries"), run.stdout
