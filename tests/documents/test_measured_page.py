"""docs/measured.md: its table of the demo can be true."""

from __future__ import annotations

from pathlib import Path

import pytest

import headfit as hf
from headfit._cli import demo

PAGE = Path(__file__).parents[2] / "docs" / "measured.md"


@pytest.mark.pages
def test_the_table_can_be_true():
    # The result of a search of a few seconds depends on the machine, so only the rest is checked.
    rows = {
        cells[0]: cells[1:]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 8
    }
    for name, A, _ in demo._patterns(1024, 0, True):
        target = hf.Target(A)
        n, k, d, leak, distortion, needs, proved = rows[name]
        assert (int(n), int(k)) == (target.n, target.per_row)
        assert int(needs.removeprefix("d >= ")) <= int(d) <= 16
        assert float(leak) <= 0.05
        assert float(distortion) <= 0.1
        assert int(proved) == hf.bounds.projection_dim(target.n, target.per_row, target.gamma)
