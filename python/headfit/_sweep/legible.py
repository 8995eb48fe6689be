"""Texts of users in pictures and on pages: what neither XML nor HTML nor Matplotlib may see."""

from __future__ import annotations

import unicodedata

LONGEST = 40
"""Characters of a name or a value that a picture shows; its file of numbers has all."""

_KEPT = "\n\t"
_UNPRINTED = ("Cc", "Cs")  # control characters, and halves of pairs that are no characters
_NO_CHARACTERS = "\ufffe\uffff"


def legible(text: str) -> str:
    """Return a text for a page: what is no character in XML and HTML comes as an escape."""
    return "".join(_escaped(c) if _is_no_text(c) else c for c in text)


def for_picture(text: str) -> str:
    """Return a text for Matplotlib, which would set dollars as mathematics.

    It would also leave what begins with "_" out of a legend; a space of no width goes before it.
    """
    said = legible(text).replace("$", r"\$")
    return "\u200b" + said if said.startswith("_") else said


def shortened(text: str) -> str:
    """Return a name or a value on one line, of a length that fits into a picture."""
    line = text.replace("\n", " ").replace("\t", " ")
    if not line.strip():
        return f'"{line}"'
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "\u2026"


def _is_no_text(c: str) -> bool:
    return c not in _KEPT and (unicodedata.category(c) in _UNPRINTED or c in _NO_CHARACTERS)


def _escaped(c: str) -> str:
    return c.encode("ascii", "backslashreplace").decode() if c > "\x7f" else f"\\x{ord(c):02x}"
