"""`write_report`: one HTML page about the heads of a model, which needs no other file."""

import base64
import html
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headfit import plot
from headfit._attention.head_table import ModelTable, cells
from headfit._base.files import replace_file, with_suffix
from headfit.errors import InputError
from headfit.plot._drawing import matplotlib

_NAMED = 5  # heads that a sentence names at most
_DRAWN = 256  # heads that the picture shows at most
_LONGEST = 128  # distances that the picture of profiles shows

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-size: 0.8rem; }}
th, td {{ padding: 0.15rem 0.5rem; text-align: right; border-bottom: 1px solid #ddd; }}
img {{ max-width: 100%; }} .table {{ overflow-x: auto; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""

# A measure, from which value on it is named, and what it says of a head.
_MEASURES = (
    ("sink_mass", 0.3, "give 30% or more of their attention to sinks"),
    ("previous", 0.5, "give 50% or more to the previous token"),
    ("diagonal", 0.5, "give 50% or more to the token itself"),
    ("induction", 0.3, "give 30% or more to what followed the same token before"),
)


def write_report(table: ModelTable, first: list[list[Any]], path: Any, title: str) -> Path:
    """Write a page with sentences, pictures and the table of captured heads.

    `first` has the heads of each layer for the first passage that was kept.
    """
    if not isinstance(title, str):
        raise InputError(f"title must be a str; got {type(title).__name__}")
    target = with_suffix(path, "path", [".html", ".htm"])
    matplotlib()
    parts = [f"<p>{html.escape(text)}</p>" for text in _sentences(table)]
    for name, figure in _figures(first, table):
        name, file = html.escape(name), io.BytesIO()
        figure.savefig(file, format="png", dpi=110)
        data = base64.b64encode(file.getvalue()).decode()
        parts.append(f'<h2>{name}</h2>\n<img alt="{name}" src="data:image/png;base64,{data}">')
    rows = [list(table.numbers), *cells(table.numbers, len(table))]
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    parts.append(f'<div class="table"><table><tr>{"</tr><tr>".join(lines)}</tr></table></div>')
    page = _PAGE.format(title=html.escape(title), body="\n".join(parts))
    return replace_file(target, lambda file: file.write(page.encode()))


def _sentences(table: ModelTable) -> Iterator[str]:
    numbers = table.numbers
    yield (
        f"The model has {len(table)} heads in {len(table.distances)} attention layers. Statistics "
        f"are of up to {int(numbers['rows'].max())} queries of each head, without padding."
    )
    share = next(name for name in numbers if name.endswith("_mean") and name.startswith("keys"))
    percent = share.removeprefix("keys").removesuffix("_mean")
    keys = numbers[share]
    order = np.argsort(keys, kind="stable")[: np.count_nonzero(~np.isnan(keys))]
    if not order.size:
        return
    yield (
        f"The sparsest heads, by the mean number of keys that hold {percent}% of a query's "
        f"attention: {_named(table, order[:_NAMED], keys, '{:.3g}')}."
    )
    yield f"The densest heads: {_named(table, order[::-1][:_NAMED], keys, '{:.3g}')}."
    for name, least, text in _MEASURES:
        values = np.nan_to_num(numbers[name])
        order = np.argsort(-values, kind="stable")[: np.count_nonzero(values >= least)]
        more = f", and {order.size - _NAMED} more" if order.size > _NAMED else ""
        if order.size:
            yield f"Heads that {text}: {_named(table, order[:_NAMED], values, '{:.0%}')}{more}."
        elif not np.isnan(numbers[name]).all():
            yield f"No heads {text}."
    sparse = int((numbers["sparse"] >= 1).sum())
    yield f"Sparse in the paper's sense in every passage: {sparse} of {len(table)} heads."


def _named(table: ModelTable, heads: Any, values: Any, form: str) -> str:
    layer, head = table.numbers["layer"], table.numbers["head"]
    return ", ".join(f"{layer[at]} head {head[at]} ({form.format(values[at])})" for at in heads)


def _figures(first: list[list[Any]], table: ModelTable) -> Iterator[tuple[str, Any]]:
    import matplotlib.pyplot as pyplot

    if first and len({len(layer) for layer in first}) == 1:
        layers = max(1, _DRAWN // len(first[0]))
        images = plot.heads_grid(first[:layers])
        pyplot.close(images.flat[0].figure)
        more = f", the first {layers} layers" if layers < len(first) else ""
        yield f"Attention in the first passage{more}", images.flat[0].figure
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    pyplot.close(figure)
    for layer, profile in table.distances.items():
        axes.plot(profile[:, :_LONGEST].mean(axis=0), label=layer, linewidth=1)
    axes.set(xlabel="distance before the query", ylabel="share of attention", yscale="log")
    if len(table.distances) <= 16:
        axes.legend(fontsize=7)
    yield "Attention by distance, the mean over the heads of each layer", figure
