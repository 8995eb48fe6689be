"""How results show themselves: as a table in text, and as HTML in notebooks."""

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


class Shown:
    """A result that notebooks show as a small table of facts, perhaps with a picture.

    The text of a result is made of the same facts, so that each is stated once.
    """

    def _facts(self) -> dict[str, str]:
        """Return what there is to say, in words, by name."""
        raise NotImplementedError

    def _headline(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}".rstrip() for name, text in self._facts().items())
        return f"{self._headline()}({facts})"

    def _repr_html_(self) -> str:
        return page(self._headline(), facts=self._facts(), picture=picture(self))


def page(title: str, *, facts: dict[str, str] | None = None, picture: str = "") -> str:
    """Return a title, facts as a table of two columns, and a picture, in HTML.

    Colours are those of the notebook, light or dark.
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(text)}</td></tr>'
        for name, text in (facts or {}).items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return f"<p><b>{html.escape(title)}</b></p>{table}{picture}"


def html_table(
    title: str, names: Sequence[str], rows: Iterable[Sequence[str]], more: Iterable[str] = ()
) -> str:
    """Return a table with names of columns above its cells, and lines below it, in HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    below = "".join(f"<p>{html.escape(line)}</p>" for line in more)
    return f"<p>{html.escape(title)}</p><table><tr>{head}</tr>{body}</table>{below}"


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
