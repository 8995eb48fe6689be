"""Why a fit ended: six words for it, and what each means in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from headfit._lower import LowerBound

Ending = Literal["certified", "time limit", "steps", "stalled", "callback", "infeasible"]

# What stands beside a size that a search tried, and did not certify.
_TRIED = {
    "time limit": "not certified before the time limit",
    "callback": "not certified before the callback ended it",
}


def tried(dim: int, holds: bool, reason: str | None) -> str:
    """Say of one size of a search how it went: what was cut short did not fail."""
    if holds:
        return str(dim)
    if reason is None:  # from a file that does not tell
        return f"{dim} no"
    return f"{dim} {_TRIED.get(reason, f'no ({reason})')}"


def advice(
    stopped: Ending,
    *,
    method: str,
    dim: int,
    status: str,
    report: dict[str, Any],
    rows: int,
    proved: LowerBound | None,
    cut: bool,
    notes: Sequence[str],
) -> str:
    """Return what the end of a fit means and what to try next.

    Parameters
    ----------
    stopped : str
        The word for it.
    method : str
    dim : int
        The head size.
    status : str
        The certificate's.
    report : dict
        The settings that the method added.
    rows : int
        How many rows the method left.
    proved : LowerBound or None
    cut : bool
        Whether the time limit ended a search.
    notes : sequence of str
        Of `heavy_notes`.
    """
    learned = report.get("learned", {})
    left = f" with {rows} row{'' if rows == 1 else 's'} left" if rows else ""
    if stopped == "certified":
        text = "The certificate holds."
        if cut:
            text += (
                " The time limit ended the search, which proves nothing about smaller sizes: a "
                "larger time_limit may find one."
            )
    elif stopped == "time limit":
        steps = f" after {learned['steps']} steps" if learned else ""
        text = (
            f"The time limit came{steps} at d = {dim}{left}, which proves nothing about this "
            "size: try a larger time_limit, or a larger dim, which takes fewer steps."
        )
    elif stopped == "steps":
        text = (
            f"All {learned['steps']} steps of this effort were spent at d = {dim}{left}, which "
            'proves nothing: try a larger dim, a higher effort ("medium", "high") or another rng.'
        )
    elif stopped == "callback":
        text = (
            f"The callback ended the fit at d = {dim}{left}, which proves nothing about this size."
        )
    elif stopped == "infeasible":
        text = _impossible(dim, proved)
    else:
        text = _stalled(method, dim, status, left)
    return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in notes)])


def _impossible(dim: int, proved: LowerBound | None) -> str:
    if proved is not None and proved.dim > dim:
        return (
            f"It is proved that no head of size {dim} meets these tolerances: {proved.reason}. "
            f"Ask for dim={proved.dim} or more, or for a wider leak or distortion."
        )
    return (
        "It is proved for these keys that some rows have no query within the bounds (see "
        "witnesses): try other keys, a larger dim or max_norm, a wider leak or distortion, or "
        'method="learned", which chooses its keys.'
    )


def _stalled(method: str, dim: int, status: str, left: str) -> str:
    if method == "projection":
        return (
            f"This draw of the projection misses the tolerances at d = {dim}, which proves "
            "nothing: try a larger dim (bounds.projection_dim suffices), another rng, or "
            'method="learned", which reaches far smaller heads.'
        )
    if left:
        return (
            f"The method gave up{left} at d = {dim} and proved nothing about them: try a larger "
            "dim, a wider leak or distortion, or another rng."
        )
    judged = "cannot decide" if status == "undecided" else "does not hold"
    return (
        f"The method ended with no row left, but the certificate of the stored numbers {judged}: "
        'rounding takes more than the tolerances leave. Try dtype="float64", a wider distortion, '
        "or a larger dim."
    )
