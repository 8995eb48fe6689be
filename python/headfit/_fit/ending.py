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
    cut = f"at d = {head.dim}{head.left}, which proves nothing about this size"
    if stopped == "certified":
        meaning = "The certificate holds."
        if was_cut:
            meaning += (
                " The time limit ended the search, which proves nothing about smaller sizes: a "
                "larger time_limit may find one."
            )
    elif stopped == "time limit":
        steps = "" if head.steps is None else f" after {head.steps} steps"
        meaning = (
            f"The time limit came{steps} {cut}: try a larger time_limit, or a larger dim, which "
            "takes fewer steps."
        )
    elif stopped == "callback":
        meaning = f"The callback ended the fit {cut}."
    elif proved is not None and proved.dim > head.dim:
        size, wider = (
            f"size {head.dim}",
            f"dim={proved.dim} or more, or for a wider leak or distortion",
        )
        if proved.impossible:
            size, wider = "any size", "a wider leak or max_logit"
        meaning = (
            f"It is proved that no head of {size} meets these tolerances: {proved.reason}. Ask for "
            f"{wider}."
        )
    elif of_method is not None:
        meaning = of_method
    elif stopped == "infeasible":
        meaning = (
            f"The method proved that it has no head of size {head.dim} within the tolerances: try "
            "a larger dim, a wider leak or distortion, or another method."
        )
    elif head.left:
        meaning = (
            f"The method gave up{head.left} at d = {head.dim} and proved nothing about them: try a "
            "larger dim, a wider leak or distortion, or another rng."
        )
    else:
        wider = "float32" if dtype in NARROW else "float64"
        judged = "cannot decide" if certificate.status == "undecided" else "does not hold"
        meaning = (
            "The method ended with no row left, but the certificate of the stored numbers "
            f"{judged}: rounding to the {DIGITS[dtype]} significant bits of {dtype} takes more "
            f'than the tolerances leave. Try dtype="{wider}", a wider distortion, or a larger dim.'
        )
    sentences = [meaning]
    if stopped != "certified":
        sentences.append(f"Reached: {certificate.reached}.")
    if stopped not in ("certified", "infeasible"):  # what may stand in the way, and how to tell
        if dtype in NARROW:
            sentences.append(
                f'Whether {dtype} stands in the way, a fit with dtype="float32" tells.'
            )
        if certificate.kernel.rounds_logits:
            sentences.append(
                f'The kernel {certificate.kernel} rounds logits: kernel="float32" tells whether '
                "that stands in the way."
            )
        if (limit := certificate.tolerances.max_logit) is not None:
            sentences.append(
                f"Logits are bounded by max_logit = {limit:.4g}: a fit without it tells whether "
                "the bound stands in the way."
            )
    return " ".join([*sentences, *(f"{note[0].upper()}{note[1:]}." for note in notes)])
