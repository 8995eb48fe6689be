"""Why a fit ended: words for it, what stood in the way, and what to try, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from headfit._base.arrays import DIGITS, NARROW

if TYPE_CHECKING:
    from headfit._fit.head import Head
    from headfit._lower.lower import LowerBound
    from headfit._target.certificate import Certificate

Ending = Literal["certified", "time limit", "steps", "stalled", "callback", "infeasible"]
Obstacle = Literal["time", "steps", "logits", "format", "bound", "callback", "method"]

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
    head: Head,
    of_method: str | None,
    certificate: Certificate,
    dtype: str,
    proved: LowerBound | None,
    was_cut: bool,
    notes: Sequence[str],
) -> str:
    """Return what the end of a fit means, what was reached, and what to try next.

    `of_method` is what the method itself says about this end, `was_cut` whether the time limit
    ended a search, and `notes` what `heavy_notes` returned.
    """
    if stopped == "certified":
        sentences = ["The certificate holds."]
        if was_cut:
            sentences.append(
                "The time limit ended the search, which proves nothing about smaller sizes: a "
                "larger time_limit may find one."
            )
    else:
        sentences = [_meaning(stopped, head, of_method, certificate, dtype, proved)]
        sentences.append(f"Reached: {certificate.reached}.")
        if stopped != "infeasible":
            sentences += _constraints(certificate, dtype)
    return " ".join([*sentences, *(f"{note[0].upper()}{note[1:]}." for note in notes)])


def _meaning(
    stopped: Ending,
    head: Head,
    of_method: str | None,
    certificate: Certificate,
    dtype: str,
    proved: LowerBound | None,
) -> str:
    """Return what the end of a fit that is not certified means, and what to try next."""
    cut = f"at d = {head.dim}{head.left}, which proves nothing about this size"
    if stopped == "time limit":
        steps = "" if head.steps is None else f" after {head.steps} steps"
        return (
            f"The time limit came{steps} {cut}: try a larger time_limit, or a larger dim, which "
            "takes fewer steps."
        )
    if stopped == "callback":
        return f"The callback ended the fit {cut}."
    if stopped == "infeasible" and proved is not None and proved.dim > head.dim:
        size = "any size" if proved.impossible else f"size {head.dim}"
        more = "" if proved.impossible else f"dim={proved.dim} or more, or for "
        wider = "a wider leak or max_logit" if proved.impossible else "a wider leak or distortion"
        return (
            f"It is proved that no head of {size} meets these tolerances: {proved.reason}. Ask for "
            f"{more}{wider}."
        )
    if of_method is not None:
        return of_method
    if stopped == "infeasible":
        return (
            f"The method proved that it has no head of size {head.dim} within the tolerances: try "
            "a larger dim, a wider leak or distortion, or another method."
        )
    if head.left:
        return (
            f"The method gave up{head.left} at d = {head.dim} and proved nothing about them: try a "
            "larger dim, a wider leak or distortion, or another rng."
        )
    judged = "cannot decide" if certificate.status == "undecided" else "does not hold"
    return (
        "The method ended with no row left, but the certificate of the stored numbers "
        f"{judged}: rounding to the {DIGITS[dtype]} significant bits of {dtype} takes more than "
        f'the tolerances leave. Try dtype="{"float32" if dtype in NARROW else "float64"}", a wider '
        "distortion, or a larger dim."
    )


def _constraints(certificate: Certificate, dtype: str) -> list[str]:
    """Name the formats and the bound on logits that may stand in the way, and how to tell."""
    named = []
    if dtype in NARROW:
        named.append(f'Whether {dtype} stands in the way, a fit with dtype="float32" tells.')
    if certificate.kernel.rounds_logits:
        named.append(
            f'The kernel {certificate.kernel} rounds logits: kernel="float32" tells whether that '
            "stands in the way."
        )
    limit = certificate.tolerances.max_logit
    if limit is not None:
        named.append(
            f"Logits are bounded by max_logit = {limit:.4g}: a fit without it tells whether the "
            "bound stands in the way."
        )
    return named
