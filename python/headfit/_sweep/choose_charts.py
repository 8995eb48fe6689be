"""Which charts a report draws: the measures of its results against the axes that vary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headfit._sweep.chart import Chart, make_chart
from headfit._sweep.rows import Row, distinct, names_of
from headfit._sweep.work import FITS

MOST_LINES = 8
MOST_CHARTS = 12

FIT_MEASURES = (
    "certified",
    "dim_found",
    "seconds",
    "max_norm_found",
    "max_logit_found",
    "leak_found",
    "steps",
)

CERTIFIED_ONLY = frozenset({*FIT_MEASURES} - {"certified", "seconds", "steps"})
"""Measures that are drawn for certified fits alone: of others they say nothing."""

LEAST = "dim_least"
"""The smallest size that certifies, of those that points ask for."""

HOW_MADE = frozenset(
    {"wall_seconds", "when", "threads", "headfit", "cpu_level", "cpu", "key", "work", "version"}
)


def charts(rows: Sequence[Row], axes: Mapping[str, Sequence[Any]], work: str) -> list[Chart]:
    """Return the charts of the rows of one work; `axes` are the keys of points that vary."""
    drawn = {name: values for name, values in axes.items() if not is_seed(name)}
    if not drawn:
        return []
    numeric = [name for name, values in drawn.items() if _is_scale(values)]
    main = "n" if "n" in numeric else _richest(numeric or list(drawn), drawn)
    found = []
    if work == FITS and "dim" in numeric and main != "dim":
        least = least_dims(rows, list(axes))
        found.append(_chart(least, LEAST, main, {n: v for n, v in drawn.items() if n != "dim"}))
    for measure in _measures(rows, axes, work)[:MOST_CHARTS]:
        also = ["dim"] if measure == "certified" and "dim" in numeric and main != "dim" else []
        for x in [main, *also]:
            found.append(_chart(_rows_with(rows, measure, work), measure, x, drawn))
    return [chart for chart in found if chart.lines]


def least_dims(rows: Sequence[Row], axes: Sequence[str]) -> list[Row]:
    """Return rows of the smallest size that certifies, among points that differ in `dim` alone.

    Points of which none certifies have none.
    """
    others = [name for name in axes if name != "dim"]
    found: dict[str, Row] = {}
    for row in rows:
        if row.get("certified") and row.get("dim") is not None:
            place = {name: row.get(name) for name in others}
            known = found.setdefault(str(place), {**place, LEAST: row["dim"]})
            known[LEAST] = min(known[LEAST], row["dim"])
    return list(found.values())


def is_seed(name: str) -> bool:
    """Return whether an axis repeats a point: rows that differ in it alone are pooled."""
    return name.endswith("seed")


def _richest(names: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> str:
    return max(names, key=lambda name: len(axes[name]))


def _measures(rows: Sequence[Row], axes: Mapping[str, Any], work: str) -> list[str]:
    if work == FITS:
        return [name for name in FIT_MEASURES if _is_measure(rows, name)]
    names = [name for name in names_of(rows) if name not in axes and name not in HOW_MADE]
    return [name for name in names if _is_measure(rows, name)]


def _is_measure(rows: Sequence[Row], name: str) -> bool:
    """Return whether a column has numbers or booleans, and more than one value."""
    values = [row[name] for row in rows if row.get(name) is not None]
    plain = all(isinstance(v, bool) or _is_number(v) for v in values)
    return plain and (len(set(values)) > 1 or name == "certified")


def _rows_with(rows: Sequence[Row], measure: str, work: str) -> list[Row]:
    kept = [r for r in rows if not isinstance(r.get(measure), float) or math.isfinite(r[measure])]
    if work == FITS and measure in CERTIFIED_ONLY:
        kept = [row for row in kept if row.get("certified")]
    if work == FITS and measure == "dim_found":
        kept = [row for row in kept if row.get("dim") is None]  # sizes that were searched for
    return kept


def _chart(rows: Sequence[Row], y: str, x: str, axes: Mapping[str, Sequence[Any]]) -> Chart:
    """Let as many axes tell lines apart as keep them few; return the chart of such lines.

    Axes that all points have come first, then words, then those of few values. An axis that tells
    nothing apart beside the others is left out.
    """
    values = {name: distinct(row.get(name) for row in rows) for name in axes if name != x}
    by_rank = sorted(
        values, key=lambda name: (None in values[name], _is_scale(values[name]), len(values[name]))
    )
    split: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    for name in by_rank:
        wider = (*split, name)
        count = _combinations(rows, wider)
        if count == _combinations(rows, split):
            continue
        if count <= MOST_LINES:
            split = wider
        elif _combinations(rows, (*split, x, name)) > _combinations(rows, (*split, x)):
            pooled = (*pooled, name)
    return make_chart(rows, y, x, split, pooled)


def _combinations(rows: Sequence[Row], names: Sequence[str]) -> int:
    return len({str([row.get(name) for name in names]) for row in rows})


def _is_scale(values: Sequence[Any]) -> bool:
    """Return whether the values of an axis are numbers, at least two, where they are given."""
    given = [value for value in values if value is not None]
    return len(given) > 1 and all(map(_is_number, given))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
