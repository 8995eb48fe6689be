"""docs/patterns.md: its Python runs, and its table has every pattern."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headfit as hf

PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_python_blocks_run_in_one_namespace(capsys):
    namespace: dict[str, object] = {}
    texts = [text for text in BLOCKS if "torch" not in text]
    assert len(texts) >= 4
    for text in texts:
        exec(compile(text, str(PAGE), "exec"), namespace)


def test_python_blocks_with_torch_run_alone():
    pytest.importorskip("torch")
    texts = [text for text in BLOCKS if "torch" in text]
    assert texts
    for text in texts:
        exec(compile(text, str(PAGE), "exec"), {})


def test_the_table_has_every_pattern():
    table = "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)\(", table)) == set(hf.patterns.__all__)
