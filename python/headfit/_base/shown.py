"""How results show themselves: as text, and in notebooks as that text with a picture."""

from __future__ import annotations

import html
from collections.abc import Callable, Container, Iterable, Sequence
from functools import singledispatch
from typing import Any

_loads: list[Callable[[], Any]] = []


def before_pictures(load: Callable[[], Any]) -> None:
    """Have a module that registers pictures loaded before the first one is drawn."""
    _loads.append(load)


def picture(result: Any) -> str:
    """Return a picture of a result as HTML, or an empty text where there is none."""
    while _loads:
        _loads.pop()()
    return drawn(result)


@singledispatch
def drawn(result: Any) -> str:
    """Return a picture as HTML: `headfit.plot` registers a function for each kind of result."""
    return ""


class Pictured:
    """A result that notebooks show as its text, perhaps with a picture."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>{picture(self)}"


class Shown(Pictured):
    """A result whose text is made of a few facts."""

    def _facts(self) -> dict[str, str]:
        """Return what there is to say, in words, by name."""
        raise NotImplementedError

    def _headline(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}".rstrip() for name, text in self._facts().items())
        return f"{self._headline()}({facts})"


def text_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], more: Iterable[str] = ()
) -> str:
    """Return a title, a table with names of columns above its cells, and lines below it, as text.

    Cells are aligned to the right.
    """
    return "\n".join([title, *aligned([names, *rows]), *more])


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = ()) -> list[str]:
    """Return rows of cells as lines of text, aligned to the right but for the columns in `left`."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
