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
    run(PAGE, python_of(PAGE))


@pytest.mark.pages
def test_the_table_has_every_pattern():
    table = "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)\(", table)) == set(hf.patterns.__all__)
