"""docs/sweeps.md: its Python and its commands run, on the file that it shows."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest

import headfit as hf
from headfit import cli
from headfit._sweep.fit_points import DEFAULTS

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_its_blocks_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "growth", raising=False)
    namespace: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for text in blocks("python"):
            exec(compile(text, str(PAGE), "exec"), namespace)
    assert len(hf.load_sweep("results")) == 8

    (toml,) = blocks("toml")
    Path("sweep.toml").write_text(toml)
    lines = [line for text in blocks("sh") for line in text.splitlines()]
    assert len(lines) == 3
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "headfit"
        assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert "12 points, 8 done, 0 failed; 4 to compute" in said
    assert "12 points done, 0 failed" in said
    assert Path("report/index.html").is_file()


def test_it_names_every_key_of_a_point():
    for name in ("pattern", *DEFAULTS):
        assert f"`{name}`" in TEXT, name
