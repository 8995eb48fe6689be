"""docs/bounds.md: its Python and its commands run."""

from __future__ import annotations

from scipy import sparse

import headfit as hf
from headfit import cli

PAGE = "docs/bounds.md"


def test_its_python_runs(python_of, run):
    assert isinstance(run(PAGE, python_of(PAGE))["bound"], hf.bounds.LowerBound)


def test_its_commands_run(commands_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sparse.save_npz("A.npz", hf.patterns.random_regular(48, 3, rng=0))
    for arguments in commands_of(PAGE):
        assert cli.main([*arguments, "--time-limit", "1"]) == 0
