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
from headfit._base.shown import drawn
from headfit._compress.result import Compressed
from headfit._filter.rope_result import RopeFilter
from headfit._fit.result import Fit
from headfit._plan.result import Plan
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit._target.certificate import Certificate
from headfit._target.target import Target
from headfit.errors import InputError
from headfit.plot._curves import curve
from headfit.plot._filters import translation
from headfit.plot._fit import certificate
from headfit.plot._matrix import attention
from headfit.plot._plan import plan

PICTURE_BYTES = 36_000
"""The largest picture, as SVG, that a notebook gets: base64 makes it a third larger."""

LONG_LINE = 200
"""How many points of a line a picture states one by one."""

PICTURE_ENTRIES = 2**20
"""How many entries of attention are computed for a picture that nobody asked for."""


def _as_html(
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
    file = io.BytesIO()
    settings = {
        "svg.fonttype": "none",  # text as text: the page's fonts draw it
        "svg.hashsalt": "headfit",  # the same picture has the same bytes
        "font.sans-serif": ["DejaVu Sans", "sans-serif"],  # written beside every text
    }
    with package.rc_context(settings):
        more: dict[str, Any] = {"bbox_inches": "tight", "metadata": {"Date": None}}
        figure.savefig(file, format="svg", dpi=96, **more)
    raw = re.sub(rb">\s+<", b"><", file.getvalue())
    if len(raw) > PICTURE_BYTES:
        return ""
    source = base64.b64encode(raw).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{source}">'


def _register(
    kind: type,
    alt: str,
    draw: Callable[..., Any],
    when: Callable[[Any], bool] = lambda result: True,
    part: Callable[[Any], Any] = lambda result: result,
    **options: Any,
) -> None:
    """Let notebooks show what a function draws of `part` of a result, where `when` is true."""

    @drawn.register(kind)
    def _(result: Any) -> str:
        text = alt.format(result)
        return _as_html(draw, part(result), text, **options) if when(result) else ""


_IMAGE: Any = {"draw": attention, "size": (4.0, 3.6), "pixels": 64, "colorbar": True}
_register(
    Attention,
    "The attention of {0.n} queries and {0.m} keys",
    when=lambda result: not result.lead and result.n * result.m <= PICTURE_ENTRIES,
    **_IMAGE,
)
_register(Target, "The nonzeros of a target of {0.n} tokens", **_IMAGE)
_register(Sparsified, "The entries that are kept", **_IMAGE)
_register(Certificate, "How many rows leak and distort how much", certificate)
_register(Fit, "How many rows leak and distort how much", certificate)
_register(
    Plan, "The largest logit of the heads that were tried", plan, lambda result: result.attempts
)
_register(
    RopeFilter,
    "Logits against the offset between query and key",
    translation,
    lambda result: result.filter is not None,
)

# Curves of one point are in the table already.
_TV = "Total variation from the original head against head size"
_register(ShrinkResult, _TV, curve, lambda result: len(result.curve.dim) > 1)
_register(
    TvCurve,
    _TV,
    curve,
    lambda result: len(result.dim) > 1,
    lambda result: SimpleNamespace(curve=result),
    names=("smaller heads", ""),
)
_register(
    Compressed,
    _TV,
    curve,
    lambda result: len(result.curve.dim) > 1,
    names=("taken", "closed form"),
)
