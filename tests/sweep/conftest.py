"""Fixtures of the tests of sweeps."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FUNCTIONS = Path(__file__).parent / "functions"


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of functions that tests sweep, which worker processes can import as well."""
    monkeypatch.syspath_prepend(str(FUNCTIONS))
    return import_module("swept")


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The name of a file to which functions write what they are called with."""
    return str(tmp_path / "log")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "sweep.jsonl"
