"""Settings of the whole test suite, and the choice of the tests that a plain ``pytest`` runs."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import combinations

import pytest
from hypothesis import settings

# Set before Matplotlib is imported, so that no test opens a window.
os.environ["MPLBACKEND"] = "Agg"
# Set before Dask is imported. A LocalCluster lets go of a worker whose process takes longer than
# this to begin again, 15 seconds if nothing else is said.
os.environ["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "1 hour"

CASES = 2
"""How many cases of a parametrised test a plain ``pytest`` runs."""

# No deadline, since shared machines are slow at times; a rerun in CI tries the same examples.
settings.register_profile("full", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("short", settings.get_profile("full"), max_examples=20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all tests with all cases")
    parser.addoption(
        "--rest",
        action="store_true",
        help="run what --full adds to a plain run, more examples of hypothesis included",
    )


def of_all(config: pytest.Config) -> bool:
    """Whether the run is of the whole suite: no file, test, ``-k`` or ``-m`` chooses some."""
    option = config.option
    if not hasattr(option, "of_all"):  # processes of pytest-xdist get it with the other options
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        option.of_all = whole and not option.keyword and not option.markexpr
    return bool(option.of_all)


def pytest_configure(config: pytest.Config) -> None:
    is_short = of_all(config) and not (config.getoption("full") or config.getoption("rest"))
    settings.load_profile("short" if is_short else "full")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two processes for the whole suite, and none for some of it."""
    return 2 if of_all(config) else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a run of the whole suite what is about pages, and what its option asks to."""
    if not of_all(config):
        return
    kept = [item for item in items if item.get_closest_marker("pages") is None]
    if not config.getoption("full"):
        short = share([item for item in kept if item.get_closest_marker("full") is None])
        # Hypothesis tries more examples in full.
        done = {x for x in short if not hasattr(getattr(x, "obj", None), "hypothesis")}
        kept = [item for item in kept if item not in done] if config.getoption("rest") else short
    left = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = kept


def share(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests without parameters, and of each with parameters the most telling cases."""
    cases_of: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases_of[item.nodeid.partition("[")[0]].append(item)
    covered: dict[str, set[object]] = defaultdict(set)
    kept = {item for cases in cases_of.values() for item in most_telling(cases, covered)}
    return [item for item in items if item in kept]


def most_telling(cases: list[pytest.Item], covered: dict[str, set[object]]) -> list[pytest.Item]:
    """Return the cases with the most pairs of values that no case chosen before has in this file.

    A value thus meets each value of another parameter in some test of the file, where that has
    tests enough.
    """
    seen = covered[cases[0].path.name]
    kept: list[pytest.Item] = []
    while len(kept) < min(CASES, len(cases)):
        best = max(cases, key=lambda case: (case not in kept, len(pairs(case) - seen)))
        seen |= pairs(best)
        kept.append(best)
    return kept


def pairs(case: pytest.Item) -> set[object]:
    """Return the parameters of a case with their values, alone and by pairs."""
    call = getattr(case, "callspec", None)
    if call is None:
        return set()
    plain = (str, int, float, type(None))
    values = [
        (name, repr(value) if isinstance(value, plain) else call.indices[name])
        for name, value in sorted(call.params.items())
    ]
    return {*values, *combinations(values, 2)}
