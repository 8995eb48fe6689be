"""Small pieces of text shared by the representations."""

from __future__ import annotations

from typing import Any

from headfit._arrays import is_sparse


def mask_text(mask: Any) -> str:
    """Return a mask in a few words."""
    if mask is None or isinstance(mask, (str, tuple)):
        return repr(mask)
    kind = "sparse" if is_sparse(mask) else "dense"
    return f"<{kind} {'x'.join(str(s) for s in mask.shape)}>"


def number(x: float) -> str:
    """Return a figure with three digits, rounded up in the last: a bound stays a bound."""
    text = f"{x:.3g}"
    return text if float(text) >= x else f"{x * (1 + 5e-3):.3g}"
