"""Budgets of lines, and public names: each has a docstring, an example and its errors."""

from __future__ import annotations

from tests import house


def test_lines_of_code_are_told_from_docstrings_and_comments() -> None:
    text = '"""Two\nlines."""\n\n# a comment\ndef f():\n    """One."""\n    return (1,\n    2)\n'
    assert house.measure(text) == {"lines": 8, "code": 3, "statements": 4, "files": 1}


def test_public_names_have_a_docstring_an_example_and_errors() -> None:
    assert house.lacks() == []


def test_budgets_of_lines_are_kept() -> None:
    assert house.excesses() == []
