"""Why a fit ended: six words for it, and what each means in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headfit._fit.head import Head
    from headfit._lower import LowerBound

Ending = Literal["certified", "time limit", "steps", "stalled", "callback", "infeasible"]

# How a size is described that a search tried and did not certify.
_TRIED = {
    "time limit": "not certified before the time limit",
    "callback": "not certified before the callback ended it",
}


def tried(dim: int, holds: bool, reason: str | None) -> str:
    """Describe the outcome at one size of a search. An attempt that was cut short did not fail."""
    if holds:
        return str(dim)
    if reason is None:  # old files hold no reason
        return f"{dim} no"
    return f"{dim} {_TRIED.get(reason, f'no ({reason})')}"


def advice(
    stopped: Ending,
    *,
    head: Head,
    of_method: str | None,
    status: str,
    proved: LowerBound | None,
    was_cut: bool,
    notes: Sequence[str],
) -> str:
    """Return what the end of a fit means and what to try next.

    Parameters
    ----------
    stopped : str
        The word for the end.
    head : Head
        What the method returned.
    of_method : str or None
        What the method itself says about this end.
    status : str
        The status of the certificate.
    proved : LowerBound or None
    was_cut : bool
        Whether the time limit ended a search.
    notes : sequence of str
        What `heavy_notes` returned.
    """
    rows = 0 if head.failed_rows is None else int(head.failed_rows.size)
    left = f" with {rows} row{'' if rows == 1 else 's'} left" if rows else ""
    if stopped == "certified":
        text = "The certificate holds."
        if was_cut:
            text += (
                " The time limit ended the search, which proves nothing about smaller sizes: a "
                "larger time_limit may find one."
            )
    elif stopped == "time limit":
        steps = "" if head.steps is None else f" after {head.steps} steps"
        text = (
            f"The time limit came{steps} at d = {head.dim}{left}, which proves nothing about this "
            "size: try a larger time_limit, or a larger dim, which takes fewer steps."
        )
    elif stopped == "callback":
        text = (
            f"The callback ended the fit at d = {head.dim}{left}, which proves nothing about "
            "this size."
        )
    elif stopped == "infeasible" and proved is not None and proved.dim > head.dim:
        text = (
            f"It is proved that no head of size {head.dim} meets these tolerances: "
            f"{proved.reason}. Ask for dim={proved.dim} or more, or for a wider leak or "
            "distortion."
        )
    elif of_method is not None:
        text = of_method
    elif stopped == "infeasible":
        text = (
            f"The method proved that it has no head of size {head.dim} within the tolerances: try "
            "a larger dim, a wider leak or distortion, or another method."
        )
    elif left:
        text = (
            f"The method gave up{left} at d = {head.dim} and proved nothing about them: try a "
            "larger dim, a wider leak or distortion, or another rng."
        )
    else:
        judged = "cannot decide" if status == "undecided" else "does not hold"
        text = (
            "The method ended with no row left, but the certificate of the stored numbers "
            f"{judged}: rounding takes more than the tolerances leave. Try "
            'dtype="float64", a wider distortion, or a larger dim.'
        )
    return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in notes)])
