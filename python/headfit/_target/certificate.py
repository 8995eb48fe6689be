"""`Certificate`: a statement about every entry of an attention matrix, proved by a scan."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import float_above
from headfit._base.display import Pictured, Tabular, mask_text, named, number, plain_dict
from headfit._base.tolerances import Kernel, Tolerances
from headfit.errors import CertificateError

Status = Literal["holds", "fails", "undecided"]
FloatRows = NDArray[np.float64]
EXACT = Kernel.named("exact")
VERDICTS: tuple[Status, Status, Status] = ("holds", "fails", "undecided")


class Proof(Pictured):
    """A certificate, which says whether what was asked for is proved."""

    status: Status
    row_status: NDArray[np.int8]

    def __bool__(self) -> NoReturn:
        raise TypeError("a certificate has no truth value: ask for .holds or .status")

    @property
    def holds(self) -> bool:
        """Whether what was asked for is proved for every row."""
        return self.status == "holds"

    def raise_if_failed(self) -> Self:
        """Return the certificate if it holds; raise a CertificateError that says why if not."""
        if not self.holds:
            raise CertificateError(repr(self))
        return self

    def _counts(self) -> dict[str, int]:
        return {word: int((self.row_status == i).sum()) for i, word in enumerate(VERDICTS)}

    def _verdict(self, whole: str, more: str = "") -> str:
        """Return for what it holds, `whole`, or in how many rows it does not."""
        counts, rows = self._counts(), self.row_status.size
        undecided = f", {counts['undecided']} undecided" if counts["undecided"] else ""
        return {
            "holds": f"holds for {whole}",
            "fails": f"FAILS in {counts['fails']} of {rows} rows{undecided}{more}",
            "undecided": f"UNDECIDED in {counts['undecided']} of {rows} rows{more}",
        }[self.status]


@dataclass(frozen=True, repr=False, eq=False)
class Certificate(Proof, Tabular):
    """What a scan of all n**2 logits proved about an attention matrix and a target.

    For row i with support S (the nonzeros of the target A) and attention M:

    - leak = max of M off S / min of M on S,
    - distortion = max over j, l in S of (M_ij / M_il) / (A_ij / A_il), minus 1.

    A table of the rows has these as ``leak`` and ``distortion``, ``tv`` and ``stray`` where they
    were computed, and ``status``: "holds", "fails" or "undecided".

    Attributes
    ----------
    status : "holds", "fails" or "undecided"
        "holds" is proved in exact arithmetic for the stored numbers: every row meets both
        tolerances. "fails": some row provably does not. "undecided": no row provably fails,
        but some lie closer to a tolerance than the rounding bound can resolve.
    leak, distortion : float
        Proved upper bounds over all rows.
    tolerances : Tolerances
        What was asked for.
    tv_mean, tv_worst, stray_worst : float
        Total variation between M and A (mean and worst row), and the largest mass that a row
        puts off its support. Computed, not enclosed; NaN when ``certificate_mass=False``.
    row_leak, row_distortion, row_tv, row_stray : ndarray, shape (n,)
        The same for each row; the last two are None when ``certificate_mass=False``.
    row_status : ndarray of int8, shape (n,)
        0 holds, 1 fails, 2 undecided.
    worst_leak : tuple of int or None
        (row, column off the support, column on it) of the largest leak.
    worst_distortion : tuple of int or None
        (row, column too heavy, column too light) of the largest distortion.
    failed_rows, undecided_rows : ndarray of int
    q_norm, k_norm : float
        Upper bounds of the largest Euclidean norms of the rows of Q and K, as the kernel reads
        them.
    max_logit : float
        An upper bound of the largest |logit| where the mask allows.
    rounding_bound : float
        The largest bound used for the error of a logit in the first scan.
    rescanned : int
        Rows that the first scan left undecided and a scan in float64 looked at again.
    basis : "logits", "module" or "matrix"
        What the statement is about: the stored Q and K; the exact products of a module's
        weights and input; or the entries of a given matrix (then no logits are involved).
    n, nonzeros, dtype, scale, mask
        The size of what was certified, the nonzeros of its target, and its dtype, scale and mask.
    kernel : Kernel
        What computes the attention that the statement is about: by default exact arithmetic.
    """

    status: Status
    leak: float
    distortion: float
    tolerances: Tolerances
    tv_mean: float
    tv_worst: float
    stray_worst: float
    row_leak: FloatRows
    row_distortion: FloatRows
    row_tv: FloatRows | None
    row_stray: FloatRows | None
    row_status: NDArray[np.int8]
    worst_leak: tuple[int, int, int] | None
    worst_distortion: tuple[int, int, int] | None
    q_norm: float
    k_norm: float
    max_logit: float
    rounding_bound: float
    rescanned: int
    basis: Literal["logits", "module", "matrix"]
    n: int
    nonzeros: int
    dtype: str
    scale: float
    mask: Any
    kernel: Kernel = EXACT

    @property
    def failed_rows(self) -> NDArray[np.intp]:
        """Rows that provably miss a tolerance."""
        return np.flatnonzero(self.row_status == 1)

    @property
    def undecided_rows(self) -> NDArray[np.intp]:
        """Rows that the rounding bound leaves undecided."""
        return np.flatnonzero(self.row_status == 2)

    @property
    def share_held(self) -> float:
        """The share of the rows that provably meet all tolerances, from 0 to 1."""
        return np.count_nonzero(self.row_status == 0) / max(1, self.row_status.size)

    @property
    def max_norm(self) -> float:
        """An upper bound of |scale| × max ‖q‖ × max ‖k‖, the `max_norm` of the methods.

        NaN for a certificate about the entries of a matrix.
        """
        factors = abs(self.scale), self.q_norm, self.k_norm
        if not np.isfinite(factors).all():
            return math.prod(factors)
        return float_above(math.prod(map(Fraction, factors), start=Fraction(1)))

    @property
    def reached(self) -> str:
        """What was reached, in words: the rows that hold, and both bounds beside the tolerances."""
        held = self._counts()["holds"]
        rows = "no row holds" if held == 0 else f"{held} of {self.n} rows hold"
        return (
            f"{rows}; leak <= {number(self.leak, 3)} (tolerance {self.tolerances.leak:.3g}), "
            f"distortion <= {number(self.distortion, 3)} "
            f"(tolerance {self.tolerances.distortion:.3g})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the scalars as plain Python values, for JSON; `to_pandas` has the rows."""
        values = {"holds": self.holds, **vars(self), **named(self, "share_held", "max_norm")}
        return plain_dict(
            {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}
            | {"mask": None if self.mask is None else mask_text(self.mask)}
            | {"kernel": self.kernel.to_dict(), "rows_failed": self.failed_rows.size}
            | {"rows_undecided": self.undecided_rows.size}
        )

    def _table(self) -> tuple[dict[Any, Any], str]:
        columns: dict[str, Any] = {"leak": self.row_leak, "distortion": self.row_distortion}
        if self.row_tv is not None and self.row_stray is not None:
            columns |= {"tv": self.row_tv, "stray": self.row_stray}
        return {**columns, "status": np.array(VERDICTS)[self.row_status]}, "row"

    def _subject(self) -> str:
        """Return what the statement is about, in words."""
        if self.basis == "matrix":
            return f"the entries of the given {self.dtype} matrix, as stored"
        what = "Q, K" if self.basis == "logits" else "X, W_Q, W_K"
        which, how, error = "exact logits of the stored", "", number(self.rounding_bound, 2)
        if not self.kernel.is_exact:
            which, how = "logits of the stored", f" with the kernel {self.kernel}"
            if self.basis == "module":
                which, what = "logits of the exact products", "X W_Q, X W_K"
        return (
            f"the {which} {what} ({self.dtype}){how}: |logit| up to {number(self.max_logit, 4)}, "
            f"rounding bound {error}, {self.rescanned} rows rescanned in float64"
        )

    def __repr__(self) -> str:
        limits, bounds = self.tolerances, []
        for name, bound, limit, place in (
            ("leak", self.leak, limits.leak, self.worst_leak),
            ("distortion", self.distortion, limits.distortion, self.worst_distortion),
        ):
            at = "" if place is None else " at row {}, columns {} / {}".format(*place)
            bounds.append(f"{name} <= {number(bound)} (tolerance {limit:.6g}){at}")
        entries = f"all {self.n}**2 entries, {self.nonzeros} nonzeros"
        lines = [f"Certificate: {self._verdict(entries, f' ({entries})')}", "; ".join(bounds)]
        if self.row_tv is not None:
            tv = f"total variation mean {self.tv_mean:.3g}, worst {self.tv_worst:.3g}"
            lines.append(f"{tv}; stray mass worst {self.stray_worst:.3g}")
        return "\n  ".join([*lines, f"about {self._subject()}"])
