"""What a fit asks of a method, a problem, and what every method returns, a head.

A method never judges itself: the certificate does. Narrow formats hold rounded keys, and queries
whose coordinates are rounded so that their errors cancel.

Here, and only here, Q, K, a module's input and the attention of fits, of sparse patterns and of
dense targets, are made out of the numbers of a method or a descent (`placed`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention
from headfit._base.arrays import NARROW, FloatArray, array_dtype, round_to
from headfit._base.display import Pictured
from headfit._base.tolerances import Kernel, Tolerances, with_margin
from headfit._cluster.cluster import Cluster
from headfit._filter.stencil import Parts, Stencil
from headfit._target.append_dims import heavier_by, leak_without, without_columns
from headfit._target.target import Blocks, Target
from headfit.errors import InputError

# Part of each tolerance that is reserved for rounding Q and K to the dtype they are stored in.
ROUNDING_SHARE = 0.02
# The part of the distortion's logarithm that the descent keeps in reserve for rounding.
FIRST_RESERVE = 0.4
# What exact queries keep, in turn: less for rows that have no query otherwise, and more for rows
# whose queries do not bear their rounding.
LESS, MORE = (FIRST_RESERVE, 0.25, 0.1), (0.6, 0.8)
# Part of the distortion's logarithm that the other columns leave to exempt ones in a narrow
# format.
EXEMPT_RESERVE = 0.05

Ending = Literal["certified", "time limit", "steps", "stalled", "callback", "infeasible"]

NO_COLUMNS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Problem:
    """A target, the tolerances of a head for it, and how the head will be stored.

    `fit` makes it from its checked arguments and hands it to the functions of a `Method`.

    Attributes
    ----------
    target : Target
        ``target.matrix`` is the pattern as a csr_array, ``target.mask`` its mask.
    tolerances : Tolerances
    dtype : "float32", "float64", "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2"
        What the head is stored in. Methods return float32 or float64 arrays; `fit` rounds.
    kernel : Kernel
        What the certificate of the stored head is about.
    scale : float or None
        The scale of the logits where there is no module; `scale_for` says which one holds.
    module : SelfAttention or None
    seed, threads : int
    deadline : float
        The value of ``time.perf_counter()`` at which the time limit comes; infinite without one.
    exempt : ndarray of int
        The columns with a coordinate of their own. `Method.head` gets a problem without them;
        `Method.search` gets the whole one.
    ignored : ndarray of int
        Columns, of a problem without exempt ones, whose logits do not matter: the exempt ones.
    watch : callable or None
        Shows progress when called: ``watch(rows_left, name=figure, ...)``.
    proved_dim : int
        No head below this size meets the tolerances; 1 when nothing is proved.
    cluster : Cluster or None
        The workers of the fit's client, to which a method may give its scans of the logits.
    """

    target: Target
    tolerances: Tolerances
    dtype: str = "float32"
    kernel: Kernel = field(default_factory=Kernel)
    scale: float | None = None
    module: SelfAttention | None = None
    seed: int = 0
    threads: int = 1
    deadline: float = math.inf
    exempt: NDArray[np.int64] = field(default_factory=lambda: NO_COLUMNS)
    ignored: NDArray[np.int64] = field(default_factory=lambda: NO_COLUMNS)
    watch: Callable[..., Any] | None = None
    proved_dim: int = 1
    cluster: Cluster | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether Q and K are stored in fewer bits than the methods work with."""
        return self.dtype in NARROW

    @property
    def working_dtype(self) -> Any:
        """The NumPy dtype of the arrays that a head is stored in."""
        return array_dtype(self.dtype)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit, at least 0."""
        return max(0.0, self.deadline - time.perf_counter())

    @property
    def logit_limit(self) -> float | None:
        """The bound on |logit|: that of the tolerances, or less if a narrow format has no room."""
        limit, delta = self.tolerances.max_logit, math.log1p(self.tolerances.distortion)
        needed = self.kernel.logit_limit(delta / 2, self.known_scale)
        if limit is None or needed is None:
            return needed if limit is None else limit
        # A scale that is not known yet may be a power of two, which rounds least.
        step = self.kernel.logit_step(limit, self.known_scale or 0.25)
        return limit if ROUNDING_SHARE * min(1.0, delta) + step < delta else needed

    @property
    def logit_step(self) -> float:
        """By how much rounding the logits may move two of them against each other."""
        limit = self.logit_limit
        return 0.0 if limit is None else self.kernel.logit_step(limit, self.known_scale)

    @property
    def known_scale(self) -> float | None:
        """The scale of the logits where it does not depend on the head size; else None."""
        return self.scale if self.module is None else self.module.scale

    def scale_for(self, dim: int) -> float:
        """Return the scale of the logits at a head size."""
        return self.module.scale if self.module is not None else check_scale(self.scale, dim)

    @property
    def exempt_dims(self) -> int:
        """The coordinates that the exempt columns take: one each, two in a narrow dtype."""
        return int(self.exempt.size) * (2 if self.is_narrow else 1)

    @cached_property
    def other_columns(self) -> Target:
        """The target without the exempt columns: what a method makes a head for."""
        return without_columns(self.target, self.exempt) if self.exempt.size else self.target

    @cached_property
    def stencil(self) -> Stencil:
        """What the pattern wants at each offset, exempt columns left out.

        Raises an InputError where the pattern is not translation-invariant.
        """
        return Stencil.of(self.target, self.exempt if self.exempt.size else self.ignored)

    @cached_property
    def blocks(self) -> Blocks | None:
        """The blocks that the pattern consists of; None if there are none."""
        return Blocks.of(self.target)

    @cached_property
    def parts(self) -> Parts:
        """The offsets that nearly all rows attend to, and what there is beside them.

        Raises an InputError where there are no such offsets.
        """
        return Parts.of(self.target, self.exempt if self.exempt.size else self.ignored)

    @cached_property
    def other_leak(self) -> float:
        """The leak that the other columns need for the whole to keep to its own."""
        leak = self.tolerances.leak
        return leak_without(self.target, self.exempt, leak) if self.exempt.size else leak

    def without_exempt(self, dim: int) -> Self:
        """Return the problem of the other columns, for a head of size `dim` with all columns."""
        delta = math.log1p(self.tolerances.distortion)
        limit = self.logit_limit
        # Exempt logits may lie above the others by this much, and the others leave them room.
        above = heavier_by(self.target, self.exempt) + delta
        spare = EXEMPT_RESERVE * delta if self.is_narrow else 0.0
        tolerances = Tolerances(
            *with_margin(self.other_leak, self.tolerances.distortion, spare),
            None if limit is None else max(limit - above, limit / 2),
        )
        return replace(
            self,
            target=self.other_columns,
            tolerances=tolerances,
            scale=self.scale_for(dim),
            module=None,
            exempt=NO_COLUMNS,
            ignored=self.exempt,
        )


def tightened(leak: float, distortion: float, logit_step: float = 0.0) -> tuple[float, float]:
    """Return tolerances with room for the rounding of Q and K, and of logits to steps."""
    delta = math.log1p(distortion)
    margin = ROUNDING_SHARE * min(1.0, delta) + logit_step
    if margin >= delta:
        raise InputError(
            f"distortion={distortion:.6g} leaves no room for logits that are rounded to steps of "
            f"{logit_step:.3g}: ask for a smaller max_logit or another kernel"
        )
    return with_margin(leak, distortion, margin)


@dataclass(frozen=True, eq=False)
class Head:
    """Queries and keys whose plain products q.k are the logits that a method found.

    Parameters
    ----------
    Q, K : ndarray, shape (n, d)
        float32 or float64. `fit` divides Q by the scale of the logits, rounds both to its dtype,
        and certifies what is then stored.
    failed_rows : ndarray of int, optional
        Rows that the method itself gave up; None when it cannot tell.
    witnesses : tuple, optional
        Proofs for failed rows.
    settings : dict, optional
        What `Fit.settings` adds to the arguments of the fit: plain values that JSON can hold.
    ended : str, default "stalled"
        Why the method stopped, in a word of `Fit.stopped`, should the certificate not hold.
    steps : int, optional
        The steps that an iterative method took.
    restarts : int, default 0
        How often it started over.
    method : str, optional
        What `Fit.method` says; the name of the method when None. For methods that choose among
        others.

    Notes
    -----
    Making one raises no error: `fit` checks what a method returns.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> hf.methods.Head(10 * np.eye(3), np.eye(3)).dim
    3
    """

    Q: FloatArray
    K: FloatArray
    failed_rows: NDArray[np.intp] | None = None
    witnesses: tuple[Any, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    ended: Ending = "stalled"
    steps: int | None = None
    restarts: int = 0
    method: str | None = None

    @property
    def dim(self) -> int:
        """The head size."""
        return int(self.Q.shape[1])

    @property
    def rows_left(self) -> int:
        """How many rows the method itself gave up; 0 when it cannot tell."""
        return 0 if self.failed_rows is None else int(self.failed_rows.size)

    @property
    def left(self) -> str:
        """A text such as " with 3 rows left", empty if no row is left."""
        rows = self.rows_left
        return f" with {rows} row{'' if rows == 1 else 's'} left" if rows else ""

    @classmethod
    def of_zeros(cls, n: int, dim: int, ended: Ending, method: str | None = None) -> Self:
        """Return a head that is nothing: all n rows are given up."""
        zeros = np.zeros((n, dim), np.float32)
        return cls(zeros, zeros, failed_rows=np.arange(n), ended=ended, method=method)

    def padded(self, dim: int) -> Self:
        """Return the same logits with zero columns up to a larger size."""
        if dim == self.dim:
            return self
        zeros = ((0, 0), (0, dim - self.dim))
        settings = {**self.settings, "dim_used": self.settings.get("dim_used", self.dim)}
        return replace(self, Q=np.pad(self.Q, zeros), K=np.pad(self.K, zeros), settings=settings)

    @np.errstate(over="ignore")
    def stored(self, scale: float, dtype: str) -> tuple[FloatArray, FloatArray]:
        """Return Q / scale and K as numbers of a dtype: what is stored, and certified."""
        wide = self.Q if 1e-20 < abs(scale) < 1e20 else self.Q.astype(np.float64)
        return round_to(wide / wide.dtype.type(scale), dtype, "Q"), round_to(self.K, dtype, "K")


def with_narrow_queries(
    problem: Problem, head: Head, target: _core.Target | None = None, max_norm: float | None = None
) -> Head:
    """Round queries to the format of the problem, so that the errors of their coordinates cancel.

    They keep to the tolerances for `target`, that of the problem when None, and to a bound on
    max ||q|| max ||k||.
    """
    tolerances, limit = problem.tolerances, problem.logit_limit
    met = with_margin(tolerances.leak, tolerances.distortion, problem.logit_step)
    queries = _core.round_queries(
        problem.target.core if target is None else target,
        np.ascontiguousarray(head.Q, dtype=np.float32),
        np.ascontiguousarray(head.K, dtype=np.float32),
        _core.Tolerances(*met, math.inf if limit is None else limit),
        _core.Storage(problem.dtype, problem.scale_for(head.dim), max_norm or 0.0),
        problem.threads,
    )
    return replace(head, Q=queries)


def reserved(problem: Problem, share: float = FIRST_RESERVE) -> tuple[float, float]:
    """Return leak and distortion with a part of the distortion's logarithm in reserve."""
    leak, distortion = problem.tolerances.leak, problem.tolerances.distortion
    return with_margin(leak, distortion, share * math.log1p(distortion))


def narrowed(problem: Problem, head: Head, max_norm: float | None) -> Head:
    """Return a head whose keys and queries / scale the format of the problem holds exactly.

    Keys are rounded to nearest. Rows that these keys no longer suit get exact queries, and all
    queries are rounded so that their errors cancel. `failed_rows` are those that have no query for
    the rounded keys, or none that bears its rounding; if there are any of the first kind, keys and
    queries are returned as they were before rounding. Logits must be free of a bound.
    """

    def met(*shares: float) -> list[_core.Tolerances]:
        return [_core.Tolerances(*tightened(*reserved(problem, share))) for share in shares]

    k, (stored,) = round_to(head.K, problem.dtype), met(0.0)
    options = _core.NarrowOptions(
        stored=stored,
        rounded=_core.Tolerances(*reserved(problem, 0.0)),
        less=met(*LESS),
        more=met(*MORE),
        storage=_core.Storage(problem.dtype, problem.scale_for(head.dim)),
        max_norm=max_norm or 0.0,
    )
    q = np.ascontiguousarray(head.Q, dtype=np.float32)
    q, failed, fit = _core.narrow_queries(problem.target.core, q, k, options, problem.threads)
    return replace(head, Q=q, K=k if fit else head.K, failed_rows=failed)


@dataclass(frozen=True, repr=False, eq=False)
class FittedHead(Pictured):
    """Queries and keys, and the module that computes them from an input; see `Fit`."""

    Q: FloatArray
    K: FloatArray
    scale: float
    mask: Any
    module: SelfAttention
    dim: int
    dtype: str
    # The input X of a module that the user gave: Q and K are then the rounded products X W_Q and
    # X W_K. None for a canonical module, whose input is computed from Q and K.
    input_stored: FloatArray | None = field(default=None, kw_only=True)

    @cached_property
    def X(self) -> FloatArray:
        """The module's input, shape (n, D)."""
        if self.input_stored is not None:
            return self.input_stored
        return self.module.input_for(self.Q, self.K)

    @property
    def attention(self) -> Attention:
        """The attention of this head, computed when asked for."""
        if self.input_stored is not None:
            return self.module(self.X, mask=self.mask)
        return Attention(self.Q, self.K, scale=self.scale, mask=self.mask)


def placed(
    Q: FloatArray, K: FloatArray, *, scale: float, dtype: str, mask: Any,
    module: SelfAttention | None,
) -> tuple[Attention, dict[str, Any]]:  # fmt: skip
    """Return the attention of a stored head, and the fields that `FittedHead` keeps of it.

    Q and K are as they are stored in `dtype`. Where the head is to stand in a module, they have its
    size and `scale` is its own; its products for the input that is computed here then take their
    place. None means the canonical module of this size, whose products are Q and K themselves.
    """
    if module is None:
        X, attention = None, Attention(Q, K, scale=scale, mask=mask)
        module = SelfAttention.canonical(Q.shape[1], scale, dtype=array_dtype(dtype))
    else:
        X = module.input_for(Q, K)
        attention = module(X, mask=mask)
    return attention, {
        "Q": attention.Q, "K": attention.K, "scale": attention.scale, "mask": mask,
        "module": module, "dim": attention.dim, "dtype": dtype, "input_stored": X,
    }  # fmt: skip


def check_module(module: Any, dim: int | None, dtype: str, scale: float | None) -> None:
    """Raise an InputError for a module that does not fit the size, dtype and scale of a fit."""
    if module is None:
        return
    if not isinstance(module, SelfAttention):
        raise InputError(f"module must be a SelfAttention; got {type(module).__name__}")
    if dim is not None and dim != module.dim:
        raise InputError(f"dim must be the module's, {module.dim}; got {dim}")
    if scale is not None:
        raise InputError("scale must not be given beside a module, whose own scale holds")
    if dtype in NARROW and not module.is_canonical:
        raise InputError(
            f"dtype={dtype!r} must be used without a module, or with a canonical one: what any "
            "other computes from X is rounded on its way to Q and K"
        )
