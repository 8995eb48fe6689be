"""README.md: it is short, its two commands stand alone, and its Python runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_it_is_short():
    assert len(TEXT.split()) < 900


def test_the_two_commands_stand_alone_in_blocks():
    assert blocks("sh") == ["pip install . && headfit demo\n", "pip install '.[test]' && pytest\n"]


def test_python_blocks_run_in_one_namespace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    texts = [text for text in blocks("python") if "torch" not in text]
    assert len(texts) == 2
    for text in texts:
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
