"""`write_report`: one HTML page about the heads of a model, which needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headfit import plot
from headfit._attention.head_table import ModelTable, cells
from headfit._base.drawing import matplotlib
from headfit._base.files import as_path, replace_file
from headfit.errors import CaptureError, InputError

if TYPE_CHECKING:
    from headfit.torch.captured import CapturedHeads

_NAMED = 5  # heads that a sentence names at most
_DRAWN = 256  # heads that the picture shows at most
_LONGEST = 128  # distances that the picture of profiles shows

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-size: 0.8rem; }}
th, td {{ padding: 0.15rem 0.5rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; }} .table {{ overflow-x: auto; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def write_report(heads: CapturedHeads, path: Any, title: str) -> Path:
    """Write a page with sentences, pictures and the table of captured heads."""
    if not isinstance(title, str):
        raise InputError(f"title must be a str; got {type(title).__name__}")
    target = Path(as_path(path, "path"))
    if target.suffix not in (".html", ".htm"):
        raise InputError(f"path must end in .html; got {target}")
    matplotlib()
    table = heads.table()
    sentences = "".join(f"<p>{html.escape(text)}</p>\n" for text in report_sentences(table))
    pictures = "".join(
        f'<h2>{html.escape(name)}</h2>\n<img alt="{html.escape(name)}" '
        f'src="data:image/png;base64,{base64.b64encode(data).decode()}">\n'
        for name, data in _pictures(heads, table)
    )
    body = f'{sentences}{pictures}<h2>All heads</h2>\n<div class="table">{_rows(table)}</div>'
    page = _PAGE.format(title=html.escape(title), body=body)
    replace_file(target, lambda file: file.write(page.encode()))
    return target


def report_sentences(table: ModelTable) -> Iterator[str]:
    """Yield what a table says about a model, in plain words."""
    numbers = table.numbers
    share = next(name for name in numbers if name.endswith("_mean") and name.startswith("keys"))
    percent = share.removeprefix("keys").removesuffix("_mean")
    keys = numbers[share]
    order = np.argsort(keys, kind="stable")
    order = order[~np.isnan(keys[order])]
    yield (
        f"The model has {len(table)} heads in {len(table.distances)} attention layers. Statistics "
        f"are of up to {int(numbers['rows'].max())} queries of each head, without padding."
    )
    if not order.size:
        return
    fewest, most = order[:_NAMED], order[::-1][:_NAMED]
    yield (
        f"The sparsest heads, by the mean number of keys that hold {percent}% of a query's "
        f"attention: {_named(table, fewest, keys, '{:.3g}')}."
    )
    yield f"The densest heads: {_named(table, most, keys, '{:.3g}')}."
    yield _sentence(table, "sink_mass", 0.3, "give {} or more of their attention to sinks")
    yield _sentence(table, "previous", 0.5, "give {} or more to the previous token")
    yield _sentence(table, "diagonal", 0.5, "give {} or more to the token itself")
    if not np.isnan(numbers["induction"]).all():
        yield _sentence(
            table, "induction", 0.3, "give {} or more to what followed the same token before"
        )
    sparse = int((numbers["sparse"] >= 1).sum())
    yield f"Sparse in the paper's sense in every passage: {sparse} of {len(table)} heads."


def _sentence(table: ModelTable, name: str, least: float, what: str) -> str:
    """Return a sentence that names the heads of which a measure is large."""
    values = np.nan_to_num(table.numbers[name])
    order = np.argsort(-values, kind="stable")
    order = order[values[order] >= least]
    said = what.format(f"{least:.0%}")
    if not order.size:
        return f"No heads {said}."
    more = f", and {order.size - _NAMED} more" if order.size > _NAMED else ""
    return f"Heads that {said}: {_named(table, order[:_NAMED], values, '{:.0%}')}{more}."


def _named(table: ModelTable, heads: Any, values: Any, form: str) -> str:
    layer, head = table.numbers["layer"], table.numbers["head"]
    return ", ".join(f"{layer[at]} head {head[at]} ({form.format(values[at])})" for at in heads)


def _rows(table: ModelTable) -> str:
    """Return the whole table as HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.numbers)
    body = (
        "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        for row in cells(table.numbers, len(table))
    )
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{row}</tr>\n" for row in body) + "</table>"


def _pictures(heads: CapturedHeads, table: ModelTable) -> Iterator[tuple[str, bytes]]:
    """Yield the names of the pictures, and the pictures as PNG."""
    import matplotlib.pyplot as plt

    try:
        first = heads.first_passages()
    except CaptureError:  # nothing was kept: the statistics are drawn all the same
        first = []
    if first and len({len(layer) for layer in first}) == 1:
        layers = max(1, _DRAWN // len(first[0]))
        images = plot.heads_grid(first[:layers])
        shown = f", the first {layers} layers" if layers < len(first) else ""
        yield f"Attention in the first passage{shown}", _png(images.flat[0].figure)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for layer, profile in table.distances.items():
        axes.plot(profile[:, :_LONGEST].mean(axis=0), label=layer, linewidth=1)
    axes.set(xlabel="distance before the query", ylabel="share of attention", yscale="log")
    if len(table.distances) <= 16:
        axes.legend(fontsize=7)
    yield "Attention by distance, the mean over the heads of each layer", _png(figure)


def _png(figure: Any) -> bytes:
    import matplotlib.pyplot as plt

    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    plt.close(figure)
    return file.getvalue()
