"""A share of the attack: it finds no lies, and every family has rows that hold and rows that fail.

CI runs ten times as many cases by command, in several processes.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.adversarial import generators
from tests.adversarial.attack import LIES, Tally, as_code, attack, reduce

CASES = 1_000
SEED = 14
CELLS = [(d, r) for r in generators.READINGS for d in generators.DTYPES]
FOUND: dict[tuple[str, str], Tally] = {}


def tally(cell: tuple[str, str]) -> Tally:
    if cell not in FOUND:
        FOUND[cell] = attack(*cell, CASES, SEED)
    return FOUND[cell]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, about overflow on purpose
@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_no_certificate_lies(cell):
    found = tally(cell)
    counts = found.cells[cell]
    assert counts["cases"] >= CASES
    code = "\n\n".join(as_code(reduce(lie)) for lie in found.lies[:3])
    assert {kind: counts[kind] for kind in LIES if counts[kind]} == {}, code
    # Both verdicts occur, and rows that lie away from the tolerances are decided.
    assert counts["holds"] > CASES / 20
    assert counts["fails"] > CASES / 20
    assert counts["away"] > CASES / 2
    assert counts["missed"] < 0.01 * counts["away"]
    assert counts["refused"] < 0.25 * counts["cases"]


@pytest.mark.full
def test_every_family_meets_every_verdict():
    together = Tally()
    for cell in CELLS:
        together.merge(tally(cell))
    assert set(together.families) == set(generators.FAMILIES)
    for family, counts in together.families.items():
        assert_both(family, counts)


def assert_both(family: str, counts: Counter) -> None:
    least = counts["cases"] / 100
    assert counts["holds"] > least, (family, counts)
    assert counts["fails"] > least, (family, counts)
    assert counts["undecided"] > 0, (family, counts)
