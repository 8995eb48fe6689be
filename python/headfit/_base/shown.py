"""How results show themselves: as a table in text, and as HTML in notebooks."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Container, Iterable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from headfit.errors import InputError

PICTURE_BYTES = 36_000
"""The largest picture, as SVG, that a notebook gets: base64 makes it a third larger."""

LONG_LINE = 200
"""How many points of a line a picture states one by one."""

PICTURE_ENTRIES = 2**20
"""How many entries of attention are computed for a picture that nobody asked for."""

CURVE = "Total variation from the original head against head size"
"""What pictures of such curves show, in words."""


class Shown:
    """A result that notebooks show as a small table of facts, perhaps with a picture.

    The text of a result is made of the same facts, so that each is stated once.
    """

    def _facts(self) -> dict[str, str]:
        """Return what there is to say, in words, by name."""
        raise NotImplementedError

    def _headline(self) -> str:
        return type(self).__name__

    def _picture(self) -> str:
        """Return a picture as HTML, or an empty text."""
        return ""

    def _repr_html_(self) -> str:
        return page(self._headline(), facts=self._facts(), picture=self._picture())


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


def picture(
    name: str, result: Any, alt: str, size: tuple[float, float] = (5.4, 3.6), **options: Any
) -> str:
    """Return what a function of `headfit.plot` draws of a result, as an HTML image.

    The picture is SVG on white, so that it can be read on light and on dark pages, and belongs to
    no window. The text is empty without Matplotlib, for a result that cannot be drawn, and for a
    picture that is too large for a notebook.

    Parameters
    ----------
    name : str
        The function. `headfit.plot` imports the results that it draws, so that it is looked up
        here only when a notebook asks for a picture.
    result : object
        Its argument.
    alt : str
        What the picture shows, in words.
    size : tuple of two float
        The width and height in inches.
    **options
        Other arguments of the function.
    """
    try:
        matplotlib = import_module("matplotlib")
        figures = import_module("matplotlib.figure")
    except ImportError:
        return ""
    figure = figures.Figure(figsize=size, facecolor="white", layout="constrained")
    ax = figure.subplots()
    try:
        getattr(import_module("headfit.plot"), name)(result, ax=ax, **options)
    except InputError:  # it cannot be drawn, such as attention without rows
        return ""
    for line in ax.lines:  # as pixels, long lines take less room
        line.set_rasterized(len(line.get_xdata()) > LONG_LINE)
    drawn = io.BytesIO()
    settings = {
        "svg.fonttype": "none",  # text as text: the page's fonts draw it
        "svg.hashsalt": "headfit",  # the same picture has the same bytes
        "font.sans-serif": ["DejaVu Sans", "sans-serif"],  # written beside every text
    }
    with matplotlib.rc_context(settings):
        figure.savefig(
            drawn,
            format="svg",
            dpi=96,
            bbox_inches="tight",
            pad_inches=0.1,
            metadata={"Date": None},
        )
    raw = re.sub(rb">\s+<", b"><", drawn.getvalue())
    if len(raw) > PICTURE_BYTES:
        return ""
    source = base64.b64encode(raw).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{source}">'


def curve_picture(dim: Any, tv_mean: Any, tv_worst: Any, name: str) -> str:
    """Return the picture of one curve of total variation against head size, as HTML.

    A curve of one point is its table already, and has none.
    """
    if len(dim) < 2:
        return ""
    curve = SimpleNamespace(dim=dim, tv_mean=tv_mean, tv_worst=tv_worst)
    return picture("curve", SimpleNamespace(curve=curve), CURVE, names=(name, ""))
