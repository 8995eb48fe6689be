"""Every example in a docstring runs, and every public function has one."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import headfit as hf

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(hf.__path__, "headfit.")
    if not m.name.endswith("__main__") and not re.search(r"\._(core|cpu)", m.name)
)
NEEDS = {"plot": "matplotlib", "torch": "torch", "safetensors_file": "safetensors"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    for part in name.split("."):
        if part in NEEDS:
            pytest.importorskip(NEEDS[part])
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0


def public_functions():
    for module in (hf, hf.patterns, hf.bounds):
        for name in module.__all__:
            if name == "plot":
                continue
            item = getattr(module, name)
            if inspect.isfunction(item):
                yield pytest.param(item, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_public_functions_show_an_example(function):
    assert ">>>" in (inspect.getdoc(function) or "")
