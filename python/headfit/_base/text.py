"""Short descriptions of masks and numbers, shared by the reprs."""

from __future__ import annotations

import decimal
import math
from typing import Any

from headfit._base.arrays import is_sparse


def mask_text(mask: Any) -> str:
    """Return a short description of a mask."""
    if mask is None or isinstance(mask, (str, tuple)):
        return repr(mask)
    kind = "sparse" if is_sparse(mask) else "dense"
    return f"<{kind} {'x'.join(str(s) for s in mask.shape)}>"


def number(x: float, digits: int = 5) -> str:
    """Return an upper bound with a few significant digits, rounded up so that it still holds."""
    if not math.isfinite(x) or x == 0:
        return f"{x:g}"
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(x)):.{digits}g}"
