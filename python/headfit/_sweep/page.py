"""The page of a report: HTML that needs no other file."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from headfit._base.version import VERSION
from headfit._sweep.chart import Chart
from headfit._sweep.draw_chart import caption, picture_of, title
from headfit._sweep.legible import legible
from headfit._sweep.pace import duration
from headfit._sweep.record import Record
from headfit._sweep.result import Sweep
from headfit._sweep.rows import Row, as_place, as_text

GENERATOR = '<meta name="generator" content="headfit report">'
MOST_ROWS = 200
"""Failures that the page shows in full; the file beside it has all."""

_MADE = ("work", "version", "headfit", "cpu_level", "cpu", "threads")

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{generator}
<title>{title}</title><style>
body {{ font-family: system-ui, sans-serif; line-height: 1.5; color: #1b1b1b; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
figure {{ margin: 1rem 0; }} svg {{ width: 100%; height: auto; }} figcaption {{ color: #555; }}
table {{ border-collapse: collapse; font-size: 0.9rem; }} .wide {{ overflow-x: auto; }}
th, td {{ padding: 0.25rem 0.75rem 0.25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #ddd; }}
pre {{ white-space: pre-wrap; font-size: 0.8rem; }} summary {{ cursor: pointer; }}
</style></head><body>
{body}
</body></html>
"""


def page(
    found: Sweep, charts: Mapping[str, Chart], left_out: Sequence[tuple[Record, Sweep]] = ()
) -> str:
    """Return the page of a sweep.

    Parameters
    ----------
    found : Sweep
    charts : dict of Chart
        By the names of the CSV files with their numbers.
    left_out : list of (dict, Sweep)
        Results that no chart shows, with one record of them: those of older versions.
    """
    name = f"Sweep {found.store.resolve().name}"
    parts = [f"<h1>{escape(name)}</h1>", *_summary(found), *_axes(found), *_left_out(left_out)]
    for i, (file, chart) in enumerate(charts.items()):
        parts.append(_figure(file, chart, f"chart{i}"))
    parts += [*_failures(found), *_damaged(found), *_machines(found)]
    return _PAGE.format(generator=GENERATOR, title=escape(name), body="\n".join(parts))


def _summary(found: Sweep) -> list[str]:
    took = [record["made"].get("wall_seconds") for record in found.records]
    seconds = sum(t for t in took if isinstance(t, (int, float)) and math.isfinite(t))
    done, failed = len(found.rows), len(found.failures)
    points = "1 point" if done + failed == 1 else f"{done + failed} points"
    text = f"{points}: {done} with a result, {failed} failed. "
    certified = [row["certified"] for row in found.rows if isinstance(row.get("certified"), bool)]
    if certified:
        text += f"{sum(certified)} of {len(certified)} fits are certified. "
    text += f"They took {duration(seconds)} of processes in all. Written by headfit {VERSION}."
    link = 'All results: <a href="results.csv">results.csv</a>.'
    return [f"<p>{escape(text)}</p>", f"<p>{link}</p>"]


def _axes(found: Sweep) -> list[str]:
    rows = [
        {"key": name, "values": ", ".join(as_text(v) for v in values)}
        for name, values in found.axes.items()
    ]
    return ["<h2>What varies</h2>", _table(rows)] if rows else []


def _left_out(parts: Sequence[tuple[Record, Sweep]]) -> list[str]:
    lines = []
    for record, part in parts:
        count = "1 result" if len(part) == 1 else f"{len(part)} results"
        lines.append(f"<li>{escape(count)} of {escape(maker(record))}</li>")
    said = "Pictures show the newest version of what computed the points. They leave out:"
    return [f"<p>{said}</p><ul>{''.join(lines)}</ul>"] if lines else []


def maker(record: Record) -> str:
    """Return what computed a point: the work and its version."""
    version = record["version"]
    return str(record["work"]) + ("" if version is None else f", version {as_text(version)}")


def _figure(file: str, chart: Chart, prefix: str) -> str:
    link = f'Numbers: <a href="{escape(file)}">{escape(file)}</a>.'
    return (
        f"<h2>{escape(title(chart))}</h2>\n<figure>{picture_of(chart, prefix)}"
        f"<figcaption>{escape(caption(chart))} {link}</figcaption></figure>"
    )


def _failures(found: Sweep) -> list[str]:
    if not found.failures:
        return []
    parts = ["<h2>Failures</h2>", '<p>All: <a href="failures.csv">failures.csv</a>.</p>']
    kinds = Counter(row["error"] for row in found.failures)
    parts.append(_table([{"error": kind, "points": count} for kind, count in kinds.most_common()]))
    for row in found.failures[:MOST_ROWS]:
        point = as_place(row, found.axes)
        said = f"{row['error']}: {row['message']}"
        parts.append(
            f"<details><summary>{escape(point or 'the point')}: {escape(said)}</summary>"
            f"<pre>{escape(row['traceback'])}</pre></details>"
        )
    return parts


def _damaged(found: Sweep) -> list[str]:
    if not found.damaged:
        return []
    lines = "".join(f"<li>{escape(line)}</li>" for line in found.damaged)
    return ["<h2>Files that are no records</h2>", f"<ul>{lines}</ul>"]


def _machines(found: Sweep) -> list[str]:
    """Return how many points were computed by what: the work, its version and the CPU."""
    counts = Counter(
        tuple(as_text({**record, **record["made"]}.get(name)) for name in _MADE)
        for record in found.records
    )
    rows = [
        {**dict(zip(_MADE, values, strict=True)), "points": count}
        for values, count in sorted(counts.items())
    ]
    return ["<h2>What computed them</h2>", _table(rows)] if rows else []


def _table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(as_text(row[name]))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def escape(text: str) -> str:
    """Return a text as HTML."""
    return html.escape(legible(text))
