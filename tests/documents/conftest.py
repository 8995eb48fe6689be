"""What tests of the pages share: the fenced blocks of a page, run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _blocks(page: str | Path) -> list[tuple[str, str]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def blocks() -> Callable[[str | Path], list[tuple[str, str]]]:
    """Return a function of a page: language and text of every fenced block."""
    return _blocks


@pytest.fixture(scope="session")
def python_of() -> Callable[[str], list[str]]:
    """Return a function of a page: its blocks of Python."""
    return lambda page: [text for language, text in _blocks(page) if language == "python"]


@pytest.fixture(scope="session")
def commands_of() -> Callable[[str], list[list[str]]]:
    """Return a function of a page: the arguments of its `headfit` commands; it has no others."""

    def commands(page: str) -> list[list[str]]:
        lines = [line for language, text in _blocks(page) if language == "sh"
                 for line in text.splitlines()]  # fmt: skip
        words = [shlex.split(line) for line in lines]
        assert {first for first, *_ in words} == {"headfit"}
        return [arguments for _, *arguments in words]

    return commands


@pytest.fixture(scope="session")
def run() -> Callable[[str, Iterable[str]], dict[str, Any]]:
    """Return a function that runs texts of a page in one namespace, and returns that."""

    def run(page: str, texts: Iterable[str]) -> dict[str, Any]:
        namespace: dict[str, Any] = {}
        for text in texts:
            exec(compile(text, page, "exec"), namespace)
        return namespace

    return run
