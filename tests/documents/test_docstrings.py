"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil
import re

import pytest

import headfit as hf

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(hf.__path__, "headfit.")
    if not m.name.endswith("__main__") and not re.search(r"\._(core|cpu)", m.name)
)
NEEDS = {
    "plot": "matplotlib",
    "torch": "torch",
    "small_cache": "transformers",
    "rotary": "transformers",
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    for part in name.split("."):
        if part in NEEDS:
            pytest.importorskip(NEEDS[part])
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0
