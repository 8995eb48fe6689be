"""docs/planning.md: its Python and its commands run."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from scipy import sparse

import headfit as hf
from headfit import cli

PAGE = "docs/planning.md"


@pytest.mark.full
def test_its_python_runs(python_of, run):
    namespace = run(PAGE, python_of(PAGE))
    plt.close("all")
    assert isinstance(namespace["plan"], hf.results.Plan)


@pytest.mark.full
def test_its_commands_run(commands_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sparse.save_npz("A.npz", hf.patterns.band(32, 1))
    commands = commands_of(PAGE)
    assert len(commands) == 2
    for arguments in commands:
        assert cli.main([*arguments, "--time-limit", "4"]) == 0
    assert Path("plan.png").is_file()


@pytest.mark.pages
def test_it_names_every_obstacle():
    from typing import get_args

    from headfit._fit.result import Obstacle

    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    for word in (*get_args(Obstacle), "memory"):
        assert f"`{word}`" in text or word == "callback", word
