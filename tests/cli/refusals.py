"""How commands refuse."""

from __future__ import annotations


def bad(outcome: tuple[int, str | bytes, str], *words: str) -> None:
    """Check a refusal: status 2, nothing on stdout, one line on stderr with these words."""
    status, out, err = outcome
    assert (status, len(out)) == (2, 0)
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for word in words:
        assert word in err
