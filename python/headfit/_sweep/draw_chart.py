"""Charts as SVG, whose texts stay texts, so that they can be read out, searched and enlarged."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import Any

from headfit._base.drawing import INK, matplotlib
from headfit._sweep.chart import FLAGS, Chart, Spot
from headfit._sweep.choose_charts import LEAST
from headfit._sweep.legible import for_picture, legible, shortened

# The palette of Okabe and Ito, and a marker for each colour, so that no line needs its colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1b1b1b", "#8a8f94")
MARKERS = "osD^vPX*"
TICKS = 10  # an axis with at most so many values has a tick for each of them
# An axis is logarithmic if its largest value is at least WIDE times its smallest one, and at most
# WIDEST times: beyond that a single extreme value would press all others together.
WIDE, WIDEST = 8.0, 1e12
LARGEST = 1e300  # the size of a number that is drawn, at most

LINEAR = ("dim_found", "dim_least")  # logarithmic in n, as the theorem says

NAMES = {
    "certified": "share certified",
    "dim": "head size",
    "dim_found": "smallest head size found",
    "dim_least": "smallest head size certified",
    "seconds": "seconds of the fit",
    "max_norm_found": "scale \u00b7 max |q| \u00b7 max |k|",
    "max_logit_found": "largest |logit|",
    "leak_found": "leak (certified bound)",
    "steps": "steps",
    "n": "tokens n",
}
"""What columns of fits are called in pictures."""


def title(chart: Chart) -> str:
    """Return what a chart shows, as a heading."""
    heading = f"{label(chart.y)} against {label(chart.x)}"
    return heading[0].upper() + heading[1:]


def caption(chart: Chart) -> str:
    """Return how a chart is to be read."""
    what = "Share of the points" if chart.is_share else "Medians, with bars from least to most"
    text = f"{what} with equal {', '.join([chart.x, *chart.split])}"
    text += f", pooled over {', '.join(chart.pooled)}." if chart.pooled else "."
    if chart.y == LEAST:
        text += " Sizes are those that points ask for; where none certifies, there is no value."
    return text


def description(chart: Chart) -> str:
    """Return a chart in words, for those who cannot see it."""
    parts = []
    for values, spots in chart.lines.items():
        name = line_name(chart, values)
        first, last = spots[0], spots[-1]
        said = f"{_short(first.y)} at {chart.x} = {_short(first.x)}"
        if len(spots) > 1:
            said += f" to {_short(last.y)} at {_short(last.x)}"
        parts.append(f"{name}: {said}" if name else said)
    return f"{title(chart)}. {'; '.join(parts)}."


def label(name: str) -> str:
    """Return what a column is called in pictures."""
    return NAMES.get(name) or shortened(name)


def line_name(chart: Chart, values: Sequence[Any]) -> str:
    """Return what tells a line from the others."""
    pairs = zip(chart.split, values, strict=True)
    return ", ".join(
        _short(value) if is_word(value) else f"{shortened(name)} = {_short(value)}"
        for name, value in pairs
        if value is not None
    )


def is_word(value: Any) -> bool:
    """Return whether a value says enough without the name of its axis."""
    return isinstance(value, str) and value not in FLAGS and value.strip() != ""


def figure_of(chart: Chart) -> Any:
    """Return the figure of a chart."""
    matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    ax = figure.add_subplot()
    places = _places(chart)
    for i, (values, spots) in enumerate(chart.lines.items()):
        x = [places[spot.x] for spot in spots]
        ax.errorbar(
            x, [spot.y for spot in spots], yerr=_bars(chart, spots),
            color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)], markersize=5,
            linewidth=1.4 if _is_number(spots[0].x) else 0, elinewidth=0.9, capsize=2.5,
            label=for_picture(line_name(chart, values) or f"no {', '.join(chart.split)}"),
        )  # fmt: skip
    _scale_x(ax, places, chart.x)
    _scale_y(ax, chart)
    ax.set_xlabel(for_picture(label(chart.x)), color=INK)
    ax.set_ylabel(for_picture(label(chart.y)), color=INK)
    ax.grid(color="#e3e5e8", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if chart.split:
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _bars(chart: Chart, spots: Sequence[Spot]) -> Any:
    if chart.is_share:
        return None
    return [[s.y - s.low for s in spots], [s.high - s.y for s in spots]]


def _places(chart: Chart) -> dict[Any, float]:
    """Return where each value of the axis stands: numbers at themselves, texts in a row."""
    values = list(dict.fromkeys(spot.x for spots in chart.lines.values() for spot in spots))
    if all(map(_is_number, values)):
        return {value: float(value) for value in sorted(values)}
    return {value: float(i) for i, value in enumerate(values)}


def _scale_x(ax: Any, places: dict[Any, float], name: str) -> None:
    numeric = all(map(_is_number, places))
    if numeric and _is_wide(list(places.values()), 1.0 if name == "n" else WIDE):
        ax.set_xscale("log", base=2 if min(places) >= 1 else 10)
    if len(places) <= TICKS or not numeric:
        turn = 0 if numeric else 30
        names = [for_picture(_short(value)) for value in places]
        ax.set_xticks(list(places.values()), names, rotation=turn)
        ax.minorticks_off()


def _scale_y(ax: Any, chart: Chart) -> None:
    if chart.is_share:
        ax.set_ylim(-0.04, 1.04)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        return
    values = [v for spots in chart.lines.values() for s in spots for v in (s.low, s.high)]
    if _is_wide(values) and chart.y not in LINEAR:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(lambda value, _: "")
    elif all(float(v).is_integer() for v in values):
        ax.yaxis.get_major_locator().set_params(integer=True)


def _is_wide(values: Sequence[float], least: float = WIDE) -> bool:
    return min(values) > 0 and least <= max(values) / min(values) <= WIDEST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if not _is_number(value):
        return shortened(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def svg_of(chart: Chart, prefix: str) -> str:
    """Return a chart as an element <svg>, with its description; its ids start with a prefix."""
    text, plain = io.StringIO(), {"svg.fonttype": "none", "svg.hashsalt": prefix}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # Glyphs that a font lacks, and names too long for their place, change no text of an SVG.
    with matplotlib().rc_context(plain), warnings.catch_warnings(action="ignore"):
        figure_of(chart).savefig(text, format="svg", metadata=nothing)
    found = text.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    found = re.sub(
        r"<[^>]*>",
        lambda tag: re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", tag[0]),
        found,
    )
    said = escape(legible(description(chart)))
    return found.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)


def is_drawable(chart: Chart) -> bool:
    """Return whether all numbers of a chart are finite, and their range is a number as well."""
    spots = [spot for line in chart.lines.values() for spot in line]
    numbers = [n for s in spots for n in (s.y, s.low, s.high)] + list(_places(chart).values())
    return all(abs(number) <= LARGEST for number in numbers)  # False for NaN


def picture_of(chart: Chart, prefix: str) -> str:
    """Return a chart as an element of a page: its picture, or a sentence why there is none."""
    if not is_drawable(chart):
        return f"<p>There is no picture: a number is not finite, or beyond {LARGEST:g}.</p>"
    try:
        return svg_of(chart, prefix)
    except Exception as error:  # the report has more to say than one picture
        said = f"{type(error).__name__}: {error}"
        return f"<p>The picture could not be drawn: {escape(legible(said))}</p>"
