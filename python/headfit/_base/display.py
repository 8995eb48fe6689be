"""How results are displayed and exported: as text, pictures in notebooks, JSON, pandas tables.

`import headfit` imports this module, which therefore imports neither NumPy nor pandas.
"""

import dataclasses
import decimal
import html
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import singledispatch
from importlib import import_module
from typing import Any


@singledispatch
def drawn(result: Any) -> str:
    """Return a picture as HTML: `headfit.plot` registers a function for each kind of result."""
    return ""


class Pictured:
    """A result that notebooks show as its text, perhaps with a picture."""

    # Imports what registers pictures: the package sets it, which is above.
    _load_pictures: Callable[[], Any] = staticmethod(lambda: None)

    def _repr_html_(self) -> str:
        Pictured._load_pictures()
        return f"<pre>{html.escape(str(self))}</pre>{drawn(self)}"


class Figures(Pictured):
    """Results whose attributes are all that there is to tell."""

    def to_dict(self) -> dict[str, Any]:
        """Return all as plain Python values, for JSON: arrays as (nested) lists."""
        return plain_dict(vars(self))


class Tabular:
    """Results with a table of which pandas makes a DataFrame."""

    def _table(self) -> tuple[Mapping[Any, Any], str | list[str]]:
        """Return columns, and which of them are the index, or in a text what its rows number."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return the table that the class describes as a pandas DataFrame.

        Raises
        ------
        ImportError
            Without pandas; it says how to install it.
        """
        columns, index = self._table()
        extra = "to_pandas needs pandas: pip install 'headfit[pandas]', or pip install pandas"
        frame = optional("pandas", ImportError(extra)).DataFrame(dict(columns))
        if isinstance(index, str):
            return frame.rename_axis(index)
        return frame.set_index(index) if index else frame


class Shown(Pictured):
    """A result whose text is made of a few facts."""

    def _facts(self) -> dict[str, str]:
        """Return what there is to say, in words, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}".rstrip() for name, text in self._facts().items())
        return f"{type(self).__name__}({facts})"


def text_table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], more: Iterable[str] = ()
) -> str:
    """Return a title, a table of cells below the names of columns, and lines below it, as text."""
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


def mask_text(mask: Any) -> str:
    """Return a short description of a mask."""
    if mask is None or isinstance(mask, (str, tuple)):
        return repr(mask)
    kind = "sparse" if hasattr(mask, "nnz") else "dense"
    return f"<{kind} {'x'.join(str(s) for s in mask.shape)}>"


def number(x: float, digits: int = 5, rounding: str = decimal.ROUND_CEILING) -> str:
    """Return a bound with a few significant digits, an upper one rounded so that it still holds."""
    if not math.isfinite(x) or x == 0:
        return f"{x:g}"
    context = decimal.Context(prec=digits, rounding=rounding)
    return f"{float(context.create_decimal(x)):.{digits}g}"


def plain(value: Any) -> Any:
    """Return a value in numbers, texts, lists and dictionaries only, as strict JSON takes it.

    NaN becomes None, and an infinity the text "inf" or "-inf". Dataclasses become dictionaries of
    their fields; what JSON has no form for becomes its text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def named(thing: Any, *names: str) -> dict[str, Any]:
    """Return the attributes of these names, by name."""
    return {name: getattr(thing, name) for name in names}


def plain_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dictionary whose values are plain."""
    return {name: plain(value) for name, value in values.items()}


def optional(module: str, missing: Exception) -> Any:
    """Return a module of an optional package, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing from error


def columns_of(kind: Any, records: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of dataclass objects of one kind as columns."""
    return {f.name: [getattr(r, f.name) for r in records] for f in dataclasses.fields(kind)}
