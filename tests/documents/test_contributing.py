"""CONTRIBUTING.md: the code of its walks runs as it stands there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from headfit.patterns import _graphs

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = [
    textwrap.dedent(text)
    for text in re.findall(r"^ *```python\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
]


def run(first_words: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run the one block of Python that starts with these words, and return its names."""
    (text,) = (block for block in BLOCKS if block.startswith(first_words))
    exec(compile(text, "CONTRIBUTING.md", "exec"), namespace)
    return namespace


def test_the_new_pattern():
    pattern = run("@pattern\ndef hub(", dict(vars(_graphs)))["hub"](30)
    expected = np.eye(30, dtype=bool)
    expected[:, 0] = True
    np.testing.assert_array_equal(pattern.toarray() > 0, expected)


def test_the_new_method(capsys):
    found = run('"""A method for headfit', {"__name__": "truncated_svd"})["found"]
    assert found.certificate.holds
    assert "truncated-svd" in capsys.readouterr().out
