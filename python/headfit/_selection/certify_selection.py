"""`certify_selection`: the attention that rows surely keep where an index selects their keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike
from headfit._attention.logits import LogitKeywords, names_logit_options
from headfit._base.arguments import as_choice, as_count, as_flag, check_between, thread_count
from headfit._base.arrays import as_contiguous, as_float_array, as_stack, computed_in
from headfit._base.calls import standard_arithmetic
from headfit._base.display import mask_text, number, plain_dict
from headfit._base.machine import require_memory
from headfit._base.masks import frozen_mask
from headfit._base.tolerances import Kernel, KernelLike, as_kernel
from headfit._base.types import ArrayLike
from headfit._target.certificate import VERDICTS, FloatRows, Proof, Status
from headfit.errors import InputError

FORMS = ("sum", "dot")


@dataclass(frozen=True, repr=False, eq=False)
class SelectionCertificate(Proof):
    """What is proved about the attention that heads keep with the keys an index surely selects.

    Attributes
    ----------
    status : "holds", "fails" or "undecided"
        "holds": in every row of every head any selection that a kernel may make keeps the mass
        asked for, in exact arithmetic for the stored numbers. "fails": in some row none does.
        "undecided": neither is proved.
    asked : float
        The mass asked for.
    mass, mass_mean : float
        The least and the mean of `row_mass`.
    worst : tuple of int or None
        Where `mass` is: the indices of its head, if there are several, and of its row. None
        without rows.
    row_mass, row_most : ndarray, shape (..., n)
        Bounds of the mass that the selected keys have in the row's attention, from below and from
        above, whichever a kernel selects beside the sure ones. 1 where a row sees no key.
    row_status : ndarray of int8, shape (..., n)
        0 holds, 1 fails, 2 undecided.
    sure, selected : ndarray of int, shape (n,)
        How many keys of a row are surely selected, of how many that are selected: both with those
        that are kept always.
    columns : ndarray of int32, shape (n, keys), or None
        The surely selected keys of each row, rising, and -1 behind them, if they were asked for.
    keys, window, first, form : int or str
        As in the call.
    kernel : Kernel
        How scores are computed.
    rescanned : int
        Rows whose logits were computed in float64 too, to decide them.
    dim, dtype, scale, mask
        The size of the index; the dtype of Q and K, the scale and the mask of the heads.
    index : str or None
        Of `Index.certify`, what tells its index from all others: a digest of maps and settings.
    """

    status: Status
    asked: float
    mass: float
    mass_mean: float
    worst: tuple[int, ...] | None
    row_mass: FloatRows
    row_most: FloatRows
    row_status: NDArray[np.int8]
    sure: NDArray[np.int64]
    selected: NDArray[np.int64]
    columns: NDArray[np.int32] | None
    keys: int
    window: int
    first: int
    form: str
    kernel: Kernel
    rescanned: int
    dim: int
    dtype: str
    scale: float
    mask: Any
    index: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the scalars as plain Python values, for JSON."""
        values = {
            "holds": self.holds, **vars(self), "kernel": self.kernel.to_dict(),
            "mask": None if self.mask is None else mask_text(self.mask),
            **{f"rows_{word}": count for word, count in self._counts().items()},
        }  # fmt: skip
        return plain_dict({n: x for n, x in values.items() if not isinstance(x, np.ndarray)})

    def __repr__(self) -> str:
        *head, row = self.worst or [""]
        least, mean = (number(-x)[1:] for x in (self.mass, self.mass_mean))  # rounded down
        return (
            f"SelectionCertificate: {self._verdict(f'all {self.row_status.size} rows')}\n"
            f"  mass kept >= {least} (asked for {self.asked:g}) at head "
            f"{', '.join(map(str, head)) or 0}, row {row}; mean >= {mean}\n"
            f"  surely selected {self.sure.sum()} of {self.selected.sum()} keys, at most "
            f"{self.keys} a row with the last {self.window} and the first {self.first}\n"
            f"  about the exact attention of the stored Q, K ({self.dtype}), with scores of "
            f"{self.dim} stored numbers, form {self.form!r}, by kernels {self.kernel}, whatever "
            f"the order of sums and the rule for ties; {self.rescanned} rows rescanned in float64"
        )


@names_logit_options("bias", "position")
@standard_arithmetic()
def certify_selection(
    Q: HeadLike,
    K: ArrayLike | None = None,
    Q_index: ArrayLike | None = None,
    K_index: ArrayLike | None = None,
    *,
    keys: int = 64,
    window: int = 32,
    first: int = 4,
    mass: float = 0.9,
    form: str = "dot",
    kernel: KernelLike = "float32",
    columns: bool = False,
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> SelectionCertificate:
    """Prove which keys an index surely selects, and how much of the attention these surely keep.

    Sparse attention scores all keys with the few numbers of an index, and attends to the best in
    full. Kernels round the scores, and where two are close, which key is selected depends on the
    order of a sum. The certificate counts only keys that every such kernel selects.

    Parameters
    ----------
    Q, K : array_like, shape (..., n, D) and (m, D), or (key heads, m, D)
        Queries of one or several heads and the keys that they read; or Q an `Attention`, which has
        them and the options of the logits.
    Q_index, K_index : array_like, shape (n, d) or (..., n, d), and (m, d)
        What the index stores of each query and each key, rounded already, times its scale where
        its dtype has one: numbers that float32 holds. In the form "sum", queries of each head.
    keys : int, default 64
        How many keys a row attends to, with those that are kept always; more than window + first.
    window, first : int, default 32 and 4
        What every row attends to always: its own position and those before it, `window` in all; and
        the first keys that it sees. As in `index`.
    mass : float in (0, 1), default 0.9
        The share of the attention that every row of every head is to keep.
    form : "dot" or "sum", default "dot"
        What the score of a key is, as in `index`: the product of the two, or the logarithm of the
        sum over heads of the softmax of their products over all visible keys.
    kernel : Kernel, name of one, or mapping of its options, default "float32"
        How scores are computed: with ``accumulate="float32"``, sums of so many bits as `sum_bits`
        says, and in the form "dot" rounded to a dtype, `logits`, after all scales have been
        multiplied in and before scores are compared.
    columns : bool, default False
        Whether to return which keys are surely selected too.
    num_threads : int, optional
        None uses every core. The result does not depend on it.
    **options
        Those of `Attention`, which are one for all heads but for sinks. A bias and positions are
        refused.

    Returns
    -------
    SelectionCertificate

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, numbers of an index that float32 does not hold, and NaN or
        infinity. A certificate that fails is no error.

    See Also
    --------
    index : finds an index for a trained head; its results have a method `certify`.

    Notes
    -----
    Of the free keys of a row, which are not kept always, those with the largest scores are
    selected, b = keys - window - first of them. A score s_j that is computed in float32 lies within
    a radius r_j of the exact product, in any order of summation (Higham, *Accuracy and Stability of
    Numerical Algorithms*, section 3.1), with fused multiply-adds or not, the scales of stored
    numbers multiplied in before or after, subnormal numbers kept or flushed. A free key is surely
    selected if fewer than b others have s_l + r_l >= s_j - r_j: any selection without it has b keys
    with scores as large, whatever its rule for ties. It is surely left out if b others have
    s_l - r_l > s_j + r_j. Two order statistics of a row tell all these. With L the sure keys and
    the lightest of those that may be selected, as many as are left, every selection keeps a mass of
    at least lo(L) / (lo(L) + hi(rest) + hi(sink)), sums of exponentials of exact logits enclosed as
    in `certify`; it is bounded from above in the same way. In the form "sum" the radius also bounds
    what sums of n terms, exponentials and logarithms add, of which 4 units in the last place are
    assumed. docs/certificates.md says what this covers.

    Takes O(n m (d + D heads)) time, with d for each query head of the index, the entries' share of
    it under a sparse mask, and O(m) memory for each of a few rows of every thread, besides copies
    of Q, K and the index.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> X = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> small = np.round(4 * X[:, :6]) / 4  # what an index may store
    >>> hf.certify_selection(3 * X, X, small, small, keys=40, window=8, first=2, mass=0.8)
    SelectionCertificate: ...
    >>> heads = np.stack([small, -small])  # each looks for keys of its own
    >>> kept = hf.certify_selection(3 * X, X, heads, small, form="sum", keys=40, window=8, first=2)
    >>> kept.form
    'sum'
    """
    if Q_index is None or K_index is None:
        raise InputError("certify_selection takes Q_index and K_index, the numbers of the index")
    window, first = as_count(window, "window", 1), as_count(first, "first", 0)
    keys = as_count(keys, "keys", window + first + 1)
    asked, threads = check_between(mass, "mass", 0, 1), thread_count(num_threads)
    as_choice(form, "form", FORMS)
    rounds = as_kernel(kernel)
    of_scores: dict[str, Any] = {"logits": None, "fused": False} if form == "dot" else {}
    if replace(rounds, sum_bits=24, **of_scores) != Kernel("float32"):
        raise InputError(
            'kernel must have accumulate="float32", sum_bits, and in the form "dot" logits and '
            f"fused, but no more; got {rounds!r}"
        )
    given = Attention.of(Q, K, **options)
    given.check_plain("certify_selection", "softcap", "key_lengths", "key_mask", "sinks")
    if as_flag(columns, "columns"):
        require_memory(4 * given.n * keys, f"columns with keys={keys}")
    # Copies, which nobody else can change meanwhile.
    own = {**vars(given.options), "mask": frozen_mask(given.mask)}
    attention = Attention(*(np.array(x) for x in given.stored), **own)
    of_q, of_k = _stored(Q_index, "Q_index", form == "sum"), _stored(K_index, "K_index")[0]
    asks = _core.SelectionOptions(
        keys=keys, first=first, window=window, mass=asked, form=form, kernel=rounds.core
    )
    rows = _core.certify_selection(attention.core, of_q, of_k, asks, columns, threads)
    shape = (*attention.lead, attention.n)
    least, most, status = (rows[name].reshape(shape) for name in ("least", "most", "verdict"))
    return SelectionCertificate(
        status=VERDICTS[1 if (status == 1).any() else status.max(initial=0)], asked=asked,
        mass=float(least.min(initial=1)), mass_mean=float(least.mean()) if least.size else 1.0,
        worst=tuple(map(int, np.unravel_index(np.argmin(least), shape))) if least.size else None,
        row_mass=least, row_most=most, row_status=status,
        **{name: rows[name] for name in ("sure", "selected", "columns", "rescanned")},
        keys=keys, window=window, first=first, form=form, kernel=rounds, dim=of_q.shape[-1],
        dtype=str(computed_in(*attention.stored)), scale=attention.scale, mask=attention.mask,
    )  # fmt: skip


@np.errstate(over="ignore")
def _stored(x: Any, name: str, of_heads: bool = False) -> NDArray[np.float32]:
    """Return a copy of the numbers of an index as a stack, which float32 must hold."""
    given = as_float_array(x, name)
    if given.ndim != 2 and not of_heads:
        raise InputError(f"{name} must be a matrix; got shape {given.shape}")
    single = np.array(given, np.float32)
    if not np.array_equal(single, given, equal_nan=True):
        raise InputError(f"{name} must hold numbers of float32, rounded as the index stores them")
    return as_contiguous(as_stack(single))
