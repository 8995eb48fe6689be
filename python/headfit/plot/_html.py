"""Pictures of results in notebooks: SVG in HTML, drawn when a notebook shows a result."""

import base64
import html
import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from headfit._attention.attention import Attention
from headfit._attention.sparsify import Sparsified
from headfit._base.display import drawn
from headfit._compress.result import Compressed
from headfit._filter.rope_result import RopeFilter
from headfit._fit.result import Fit
from headfit._plan.result import Plan
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit._target.certificate import Certificate
from headfit._target.target import Target
from headfit.errors import InputError
from headfit.plot._curves import curve
from headfit.plot._drawing import matplotlib
from headfit.plot._filters import translation
from headfit.plot._fit import certificate, plan
from headfit.plot._matrix import attention

PICTURE_BYTES = 36_000  # the largest SVG that a notebook gets: base64 makes it a third larger
LONG_LINE = 200  # lines of more points are drawn as pixels, which take less room
PICTURE_ENTRIES = 2**20  # so many entries of attention are computed for a notebook at most


def _as_html(draw: Callable[..., Any], alt: str, result: Any) -> str:
    """Return what a function of `headfit.plot` draws of a result, as an HTML image.

    The picture is SVG on white, so that it can be read on light and on dark pages, and belongs to
    no window. The text is empty without Matplotlib, for a result that is not or cannot be drawn,
    and for a picture that is too large for a notebook.
    """
    points = getattr(result, "curve", result)
    # The table has a single point already.
    is_point = isinstance(points, TvCurve) and len(points.dim) < 2
    is_large = isinstance(result, Attention) and result.n * result.m > PICTURE_ENTRIES
    if is_point or is_large or (isinstance(result, Plan) and not result.attempts):
        return ""
    size, options = (5.4, 3.6), {}
    if draw is attention:
        size, options = (4.0, 3.6), {"pixels": 64, "colorbar": True}
    try:
        package = matplotlib()
        figure = package.figure.Figure(figsize=size, facecolor="white", layout="constrained")
        ax = figure.subplots()
        draw(result, ax=ax, **options)
    except (ImportError, InputError):  # such as for a stack of heads, or attention without rows
        return ""
    for line in ax.lines:
        line.set_rasterized(len(line.get_xdata()) > LONG_LINE)
    file = io.BytesIO()
    settings = {
        "svg.fonttype": "none",  # text as text: the page's fonts draw it
        "svg.hashsalt": "headfit",  # the same picture has the same bytes
        "font.sans-serif": ["DejaVu Sans", "sans-serif"],  # written beside every text
    }
    with package.rc_context(settings):
        figure.savefig(file, format="svg", dpi=96, bbox_inches="tight", metadata={"Date": None})
    raw = re.sub(rb">\s+<", b"><", file.getvalue())
    if len(raw) > PICTURE_BYTES:
        return ""
    source = base64.b64encode(raw).decode("ascii")
    return f'<img alt="{html.escape(alt.format(result))}" src="data:image/svg+xml;base64,{source}">'


_ROWS = "How many rows leak and distort how much"
_TV = "Total variation from the original head against head size"
for kind, draw, alt in (
    (Attention, attention, "The attention of {0.n} queries and {0.m} keys"),
    (Target, attention, "The nonzeros of a target of {0.n} tokens"),
    (Sparsified, attention, "The entries that are kept"),
    (Certificate, certificate, _ROWS),
    (Fit, certificate, _ROWS),
    (Plan, plan, "The largest logit of the heads that were tried"),
    (RopeFilter, translation, "Logits against the offset between query and key"),
    (TvCurve, curve, _TV),
    (ShrinkResult, curve, _TV),
    (Compressed, curve, _TV),
):
    drawn.register(kind, partial(_as_html, draw, alt))
