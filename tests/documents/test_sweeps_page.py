"""docs/sweeps.md: its Python and its commands run, on the file that it shows."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

import headfit as hf
from headfit import cli
from headfit._sweep.work import DEFAULTS

PAGE = "docs/sweeps.md"


@pytest.mark.full
def test_its_blocks_run(blocks, python_of, commands_of, run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("distributed")
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "growth", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(PAGE, python_of(PAGE))
    assert len(hf.sweep.load("results.jsonl")) == 8

    (toml,) = [text for language, text in blocks(PAGE) if language == "toml"]
    Path("sweep.toml").write_text(toml)
    commands = commands_of(PAGE)
    assert len(commands) == 2
    for arguments in commands:
        assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert "0 points done, 0 failed, 4 to compute" in said
    assert "4 points done, 0 failed" in said
    assert len(hf.sweep.load("results.jsonl")) == 12


@pytest.mark.pages
def test_it_names_every_key_of_a_point():
    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    for name in ("pattern", *DEFAULTS):
        assert f"`{name}`" in text, name
