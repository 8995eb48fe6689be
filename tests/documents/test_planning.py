"""docs/planning.md: its Python and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
from scipy import sparse

import headfit as hf
from headfit import cli

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_its_python_runs():
    namespace: dict[str, object] = {}
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), namespace)
    plt.close("all")
    assert isinstance(namespace["plan"], hf.Plan)


def test_its_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sparse.save_npz("A.npz", hf.patterns.band(32, 1))
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    assert len(lines) == 2
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "headfit"
        assert cli.main([*arguments, "--time-limit", "4"]) == 0
    assert Path("plan.png").is_file()


def test_it_names_every_obstacle():
    from typing import get_args

    from headfit._fit.ending import Obstacle

    text = PAGE.read_text(encoding="utf-8")
    for word in (*get_args(Obstacle), "memory"):
        assert f"`{word}`" in text or word == "callback", word
