"""README.md: its Python runs, its commands run, its table is the demo's."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

import headfit as hf
from headfit import cli
from headfit._cli import demo

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_the_two_commands_stand_alone_in_blocks():
    assert "pip install . && headfit demo\n" in blocks("sh")
    assert "pip install '.[test]' && pytest\n" in blocks("sh")


def test_python_blocks_run_in_one_namespace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    assert len(blocks("python")) >= 4
    for text in blocks("python"):
        if "torch" not in text:
            exec(compile(text, str(README), "exec"), namespace)
    assert not os.listdir()


def test_python_blocks_with_torch_run_alone(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    texts = [text for text in blocks("python") if "torch" in text]
    assert texts
    for text in texts:
        exec(compile(text, str(README), "exec"), {})
    assert not os.listdir()


def test_shell_commands_of_headfit_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line for text in blocks("sh") for line in text.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("headfit ")]
    assert {command[0] for command in commands} == {"pattern", "info", "fit", "certify"}
    for command in commands:
        assert cli.main(command) == 0, command


def test_the_table_can_be_true():
    # The result of a search of a few seconds depends on the machine, so only the rest is checked.
    rows = {
        cells[0]: cells[1:]
        for line in README.read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 9
    }
    for name, target, _ in demo._targets(1024, 0, True):
        n, k, d, leak, distortion, needs, _, proved = rows[name]
        assert (int(n), int(k)) == (target.n, target.per_row)
        assert int(needs.removeprefix("d >= ")) <= int(d) <= 16
        assert float(leak) <= 0.05
        assert float(distortion) <= 0.1
        assert int(proved) == hf.bounds.projection_dim(target.n, target.per_row, target.gamma)
