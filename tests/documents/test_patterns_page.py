"""docs/patterns.md: its Python runs, and its table has every pattern."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headfit as hf

PAGE = "docs/patterns.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")


@pytest.mark.full
def test_python_blocks_run_in_one_namespace(python_of, run):
    texts = [text for text in python_of(PAGE) if "torch" not in text]
    assert len(texts) >= 4
    run(PAGE, texts)


def test_python_blocks_with_torch_run_alone(python_of, run):
    pytest.importorskip("torch")
    texts = [text for text in python_of(PAGE) if "torch" in text]
    assert texts
    for text in texts:
        run(PAGE, [text])


@pytest.mark.pages
def test_the_table_has_every_pattern():
    table = "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)\(", table)) == set(hf.patterns.__all__)
