"""Pictures of results in notebooks: SVG in HTML, drawn when a notebook shows a result."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headfit._attention.attention import Attention
from headfit._attention.sparsify import Sparsified
from headfit._base.drawing import matplotlib
from headfit._base.shown import picture
from headfit._compress.result import CompressedCurve
from headfit._filter.rope_result import RopeFilter
from headfit._fit.result import Fit
from headfit._plan.result import Plan
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit._sweep.result import Sweep
from headfit._sweep.rows import names_of
from headfit._target.certificate import Certificate
from headfit._target.target import Target
from headfit.errors import InputError
from headfit.plot._certificate import certificate
from headfit.plot._curve import curve
from headfit.plot._growth import growth
from headfit.plot._matrix import attention
from headfit.plot._plan import plan
from headfit.plot._translation import translation

PICTURE_BYTES = 36_000
"""The largest picture, as SVG, that a notebook gets: base64 makes it a third larger."""

LONG_LINE = 200
"""How many points of a line a picture states one by one."""

PICTURE_ENTRIES = 2**20
"""How many entries of attention are computed for a picture that nobody asked for."""


def as_html(
    draw: Callable[..., Any],
    result: Any,
    alt: str,
    size: tuple[float, float] = (5.4, 3.6),
    **options: Any,
) -> str:
    """Return what a function of `headfit.plot` draws of a result, as an HTML image.

    The picture is SVG on white, so that it can be read on light and on dark pages, and belongs to
    no window. The text is empty without Matplotlib, for a result that cannot be drawn, and for a
    picture that is too large for a notebook.
    """
    try:
        package = matplotlib()
    except ImportError:
        return ""
    figure = package.figure.Figure(figsize=size, facecolor="white", layout="constrained")
    ax = figure.subplots()
    try:
        draw(result, ax=ax, **options)
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
    with package.rc_context(settings):
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


def _matrix(result: Any, alt: str) -> str:
    return as_html(attention, result, alt, (4.0, 3.6), pixels=64, colorbar=True)


def _curve(result: Any, dim: Any, names: tuple[str, str] = ("fitted", "truncated SVD")) -> str:
    """Return a picture of total variation by size; one point is in the table already."""
    alt = "Total variation from the original head against head size"
    return as_html(curve, result, alt, names=names) if len(dim) > 1 else ""


@picture.register
def _(result: Attention) -> str:
    if result.lead or result.n * result.m > PICTURE_ENTRIES:
        return ""
    return _matrix(result, f"The attention of {result.n} queries and {result.m} keys")


@picture.register
def _(result: Target) -> str:
    return _matrix(result, f"The nonzeros of a target of {result.n} tokens")


@picture.register
def _(result: Sparsified) -> str:
    return _matrix(result, "The entries that are kept")


@picture.register(Certificate)
@picture.register(Fit)
def _(result: Certificate | Fit) -> str:
    return as_html(certificate, result, "How many rows leak and distort how much")


@picture.register
def _(result: Plan) -> str:
    alt = "The largest logit of the heads that were tried"
    return as_html(plan, result, alt) if result.attempts else ""


@picture.register
def _(result: RopeFilter) -> str:
    alt = "Logits against the offset between query and key"
    return as_html(translation, result, alt) if result.filter is not None else ""


@picture.register
def _(result: TvCurve) -> str:
    return _curve(SimpleNamespace(curve=result), result.dim, ("smaller heads", ""))


@picture.register
def _(result: CompressedCurve) -> str:
    means, worst = result.tv_mean["taken"], result.tv_worst["taken"]
    taken = SimpleNamespace(dim=result.dim, tv_mean=means, tv_worst=worst)
    return _curve(SimpleNamespace(curve=taken), result.dim, ("taken", ""))


@picture.register
def _(result: ShrinkResult) -> str:
    return _curve(result, result.curve.dim)


@picture.register
def _(result: Sweep) -> str:
    """Return the head sizes against n, with a series for each value of the other keys."""
    if "n" not in result.axes:
        return ""
    known = names_of(result.rows)  # a key may be one of failures alone
    by = [name for name in result.axes if name in known and name not in ("n", "seed")]
    alt = "The head size against the number of tokens"
    return as_html(growth, result, alt, (7.6, 3.8), by=by)
