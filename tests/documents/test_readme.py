"""README.md: it is short, its two commands stand alone, and its Python runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PAGE = "README.md"


@pytest.mark.pages
def test_it_is_short():
    assert len((Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8").split()) < 900


@pytest.mark.pages
def test_the_two_commands_stand_alone_in_blocks(blocks):
    commands = [text for language, text in blocks(PAGE) if language == "sh"]
    assert commands == ["pip install . && headfit demo\n", "pip install '.[test]' && pytest\n"]


def test_python_blocks_run_in_one_namespace(python_of, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [text for text in python_of(PAGE) if "torch" not in text]
    assert len(texts) == 2
    run(PAGE, texts)
    assert not os.listdir()


def test_python_blocks_with_torch_run_alone(python_of, run, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    texts = [text for text in python_of(PAGE) if "torch" in text]
    assert texts
    for text in texts:
        run(PAGE, [text])
    assert not os.listdir()
