"""docs/rope.md: its code runs, and its tables are as large as what they describe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headfit as hf

PAGE = "docs/rope.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(python_of, run, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    (code,) = python_of(PAGE)
    run(PAGE, [code])
    plt.close("all")
    said = capsys.readouterr().out
    assert said.index("content is not needed") < said.index("content is needed")


@pytest.mark.pages
@pytest.mark.parametrize(("row", "column", "width"), [(0, 3, 4), (0, 4, 8), (3, 3, 4)])
def test_entries_of_the_table_are_what_the_function_says(row, column, width):
    lines = [line for line in TEXT.splitlines() if re.match(r"\| [\d,]+ ", line)]
    base, dim, *norms = (cell.strip().replace(",", "") for cell in lines[row].strip("|").split("|"))
    found = hf.rope.filter(width, n=16384, base=float(base), dim=int(dim), max_norm=1e5)
    assert float(norms[column - 1]) == pytest.approx(found.norm, rel=0.01)
