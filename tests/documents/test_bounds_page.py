"""docs/bounds.md: its Python and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from scipy import sparse

import headfit as hf
from headfit import cli

PAGE = Path(__file__).parents[2] / "docs" / "bounds.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_its_python_runs():
    namespace: dict[str, object] = {}
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), namespace)
    assert isinstance(namespace["bound"], hf.bounds.LowerBound)


def test_its_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sparse.save_npz("A.npz", hf.patterns.random_regular(48, 3, rng=0))
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "headfit"
        assert cli.main([*arguments, "--time-limit", "1"]) == 0
