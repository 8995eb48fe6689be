"""What a certificate is asked: `Kernel`, where a kernel of attention rounds, and `Tolerances`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from headfit import _core
from headfit._base.arguments import as_choice, as_count, as_flag, as_number, as_positive, shown
from headfit._base.arrays import DIGITS, FLOAT8, HALVES, HEAD_DTYPES, NARROW, check_dtype
from headfit._base.display import named
from headfit.errors import InputError, input_errors

FORMATS = ("float32", *HALVES)
# The distance of the smallest numbers of a format.
LEAST_STEP = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}
_ROUNDED = ("operands", "product", "scale_dtype", "logits", "bias", "weights")


@dataclass(frozen=True)
class Kernel:
    """Where a kernel of attention rounds; what a certificate then speaks about.

    The logits are ``softcap(scale * Q @ K.T) + bias``, and weights are their softmax. The defaults
    describe exact arithmetic. `Kernel.named` has the kernels that people run.

    Parameters
    ----------
    accumulate : "exact" or "float32"
        "float32": all arithmetic between the roundings below is that of float32, in any order of
        summation, with or without fused multiply-adds, subnormal numbers kept or flushed to zero.
    operands : "bfloat16", "float16" or "float32", optional
        The dtype of Q, K and a bias. Stored numbers that it does not hold are rounded to it first.
    product : dtype name, optional
        What q.k is rounded to before the scale is applied.
    scale : "after", "before" or "root"
        Where the scale is multiplied in: into the product; into the queries, which are rounded to
        the dtype of the operands again; or its root into queries and keys, likewise. Where nothing
        is rounded but in float32, the certificate covers all three. A factor log2(e) that is
        multiplied into rounded queries too is not covered.
    scale_dtype : dtype name, optional
        That of a scale which is a tensor, and so rounded. None: a number, at most rounded to
        float32.
    logits : dtype name, optional
        What the logits are rounded to after the scale, and after each step (division, tanh,
        product) of a soft-cap.
    bias : dtype name, optional
        What the logits are rounded to after a bias is added. A mask, additive ones of 0 and -inf
        included, changes no logit that it allows.
    weights : dtype name, optional
        Makes the weights part of the statement: leak and distortion are those of the weights as
        they are computed in float32 and rounded to this dtype, before or after they are divided by
        their sum. None: those of the exact softmax of the logits.
    fused : bool, default False
        Whether the roundings of `product`, `logits` and `bias` may be left out, as by a compiler
        that fuses the operations.
    sum_bits : int from 2 to 24, default 24
        The significant bits that sums of products keep in float32: 24, rounded to nearest, or fewer
        that tensor cores truncate where they add four products or more at a time. 23 covers those
        that keep float32 so; float8 ones of an H100 keep 14 (DeepSeek-AI 2024, *DeepSeek-V3
        technical report*, section 3.3.2).

    Raises
    ------
    InputError
        For a word or a dtype that is not listed, and for options that contradict each other.

    See Also
    --------
    certify : says what is proved, and what no kernel of this kind covers.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.Kernel.named("eager-bfloat16")
    Kernel('eager-bfloat16')
    >>> hf.Kernel(accumulate="float32", logits="float16")
    Kernel(accumulate='float32', logits='float16')
    """

    accumulate: str = "exact"
    operands: str | None = None
    product: str | None = None
    scale: str = "after"
    scale_dtype: str | None = None
    logits: str | None = None
    bias: str | None = None
    weights: str | None = None
    fused: bool = False
    sum_bits: int = 24
    name: str = field(default="", init=False, compare=False)  # of a named kernel

    def __post_init__(self) -> None:
        as_choice(self.accumulate, "accumulate", ("exact", "float32"))
        as_choice(self.scale, "scale", ("after", "before", "root"))
        for option in _ROUNDED:
            if getattr(self, option) is not None:
                as_choice(getattr(self, option), option, FORMATS, "None, ")
        if self.scale != "after" and self.operands is None:
            raise InputError(
                f"operands must be a dtype where scale={self.scale!r}: scaled queries are rounded "
                "to it; got None"
            )
        if self.weights is not None and self.accumulate == "exact":
            raise InputError('weights must be None for accumulate="exact": a softmax is rounded')
        vars(self)["sum_bits"] = as_count(self.sum_bits, "sum_bits", 2, 24)
        if self.sum_bits < 24 and self.accumulate == "exact":
            raise InputError('sum_bits must be 24 for accumulate="exact": sums are not rounded')
        if as_flag(self.fused, "fused") and not (self.product or self.logits or self.bias):
            raise InputError("fused must be False where no product, logits or bias are rounded")

    @classmethod
    def named(cls, name: str, *, weights: bool = False) -> Kernel:
        """Return a kernel that people run, by its name.

        Parameters
        ----------
        name : str
            "exact": exact arithmetic for the stored numbers. "float32": any kernel that works in
            float32. "eager-bfloat16": matrix product, scale, soft-cap and bias as operations of
            their own, each of which rounds. "sdpa-math-bfloat16": PyTorch's math path of
            scaled_dot_product_attention, which widens its inputs to float32. "flash-bfloat16":
            kernels that keep the logits in float32, as PyTorch's flash and memory-efficient paths
            do. "flex-bfloat16": flex_attention as it is compiled, which keeps them so too; not
            compiled, that of PyTorch 2.13 does, and that of 2.6 rounds the product. All of these
            four with "float16" as well.
        weights : bool, default False
            Whether the statement includes the rounding of the weights, in float32 for "float32" and
            the math path, and else to the narrow dtype.

        Examples
        --------
        >>> import headfit as hf
        >>> hf.Kernel.named("flash-float16", weights=True).weights
        'float16'
        """
        as_choice(name, "kernel", NAMES)
        if as_flag(weights, "weights") and name == "exact":
            raise InputError("weights must be False for the kernel 'exact', which rounds nothing")
        path, _, dtype = name.rpartition("-")
        options: dict[str, Any] = {} if name == "exact" else {"accumulate": "float32"}
        if path:
            options["operands"] = dtype
        if path == "eager":
            options |= dict.fromkeys(("product", "logits", "bias"), dtype)
        if weights:
            options["weights"] = "float32" if path in ("", "sdpa-math") else dtype
        kernel = cls(**options)
        vars(kernel)["name"] = name
        return kernel

    @property
    def is_exact(self) -> bool:
        """Whether the statement is about exact arithmetic for the stored numbers."""
        return self == Kernel()

    @property
    def core(self) -> _core.Kernel:
        """What the core is to know; operands, scale and bias are rounded before it reads them."""
        same = named(self, "product", "logits", "bias", "weights", "fused", "sum_bits")
        return _core.Kernel(float32=self.accumulate == "float32", **same)

    def to_dict(self) -> dict[str, Any]:
        """Return the options that are not the defaults, and the name, for JSON.

        What takes a kernel takes this mapping too.
        """
        return {f.name: getattr(self, f.name) for f in fields(self)
                if getattr(self, f.name) != f.default}  # fmt: skip

    def __repr__(self) -> str:
        if not self.name:
            return f"Kernel({', '.join(f'{k}={v!r}' for k, v in self.to_dict().items())})"
        return f"Kernel({self.name!r}{', weights=True' if self.weights else ''})"

    def __str__(self) -> str:
        if self.name:
            return f"{self.name}, its weights included" if self.weights else self.name
        words = ["float32" if self.accumulate == "float32" else "exact arithmetic"]
        words += [f"{option} in {getattr(self, option)}" for option in _ROUNDED
                  if getattr(self, option)]  # fmt: skip
        words += [] if self.scale == "after" else [f"scale {self.scale}"]
        words += [] if self.sum_bits == 24 else [f"sums of {self.sum_bits} bits"]
        return ", ".join(words + ["fused"] * self.fused)

    @property
    def rounds_logits(self) -> bool:
        """Whether a logit is rounded to 16 bits."""
        return self.product in HALVES or self.logits in HALVES

    def of_wide_head(self) -> Kernel:
        """Return what asks the same of a head in float32: all but the rounding of its numbers."""
        rounds = self.rounds_logits or self.sum_bits != 24 or self.weights is not None
        return replace(self, operands=None, scale="after") if rounds else Kernel.named("exact")

    def logit_step(self, limit: float, scale: float | None) -> float:
        """Return by how much rounding moves two logits up to a limit against each other, at most.

        A scale of None is one that is not known yet.
        """
        step = 0.0
        if self.product in HALVES:
            # Where the scale is not known, the product may lie twice as high in its binade.
            unit, more = (1.0, 2) if scale is None else (abs(scale), 1)
            step += more * unit * _spacing_below(limit / unit, self.product)
        is_rounded = self.product == self.logits and math.frexp(scale or 0.3)[0] in (0.5, -0.5)
        if self.logits in HALVES and not is_rounded:  # by a scale that is a power of two
            step += _spacing_below(limit, self.logits)
        return step

    def logit_limit(self, spacing: float, scale: float | None) -> float | None:
        """Return the largest power of two up to which `logit_step` is at most `spacing`.

        None where no logit is rounded to 16 bits.
        """
        if not self.rounds_logits:
            return None
        digits = min(DIGITS[x] for x in (self.product, self.logits) if x is not None)
        limit = 2.0 ** math.floor(math.log2(max(spacing, math.ulp(0))) + digits)
        while self.logit_step(limit, scale) > spacing:
            limit /= 2
        return limit

    @property
    def relative_error(self) -> float:
        """A bound of the relative error that rounding leaves in a logit, subnormal ones aside."""
        units = [2.0 ** -DIGITS[x] for x in (self.product, self.logits, self.bias) if x]
        return math.prod(1 + unit for unit in units) - 1


def _spacing_below(bound: float, name: str) -> float:
    """Return the largest distance between neighbouring numbers of a format up to a bound."""
    return 2.0 ** (math.ceil(math.log2(min(max(bound, math.ulp(0)), 1e308))) - DIGITS[name])


# A `Kernel`, the name of one, or a mapping of its options.
KernelLike: TypeAlias = str | Kernel | Mapping[str, Any]

NAMES = ("exact", "float32", *(f"{path}-{dtype}" for path in ("eager", "sdpa-math", "flash", "flex")
                               for dtype in HALVES))  # fmt: skip


def as_kernel(kernel: Any) -> Kernel:
    """Return the kernel that a caller passed, by its name or a mapping of its options too."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        return Kernel.named(kernel)
    known = [f.name for f in fields(Kernel)]
    if not isinstance(kernel, Mapping) or not set(kernel) <= set(known):
        raise InputError(
            f"kernel must be a Kernel, one of {', '.join(NAMES)}, or a mapping with the keys "
            f"{', '.join(known)}; got {shown(kernel)}"
        )
    options = {key: value for key, value in kernel.items() if key != "name"}
    with input_errors("kernel", InputError):
        made = Kernel(**options)
        if not (name := kernel.get("name")):
            return made
        if made != (named := Kernel.named(name, weights=made.weights is not None)):
            raise InputError(f"name must be that of these options; got {shown(name)}")
        return named


def of_head(kernel: Any, dtype: Any, usual: str = "float32") -> tuple[Kernel, str]:
    """Return the checked kernel and dtype of a head, either of which may be None.

    The dtype is then what the kernel reads, or the usual one; the kernel is one in float32 for a
    narrow dtype, and else exact. Raises an InputError where the kernel would round the numbers of
    the head.
    """
    if dtype is not None:
        dtype = check_dtype(dtype, HEAD_DTYPES)
    if kernel is None:
        dtype = dtype or usual
        return Kernel.named("float32" if dtype in NARROW else "exact"), dtype
    kernel = as_kernel(kernel)
    reads = kernel.operands
    dtype = dtype or reads or usual
    if reads in (None, dtype) or dtype in FLOAT8 or (reads == "float32" and dtype in HALVES):
        return kernel, dtype
    raise InputError(f"dtype must be {reads} or of 8 bits, which the kernel reads; got {dtype!r}")


@dataclass(frozen=True)
class Tolerances:
    """How far attention may be from a sparse target; `Certificate` defines each quantity.

    Parameters
    ----------
    leak : float, default 0.05
        The largest weight off the support over the smallest weight on it, in every row:
        0 < leak < 1.
    distortion : float, default 0.1
        By how much the ratio of two weights on the support may differ from the target's:
        ratios may grow by the factor 1 + distortion. At least 0; functions that store a head
        need more than 0, since rounding alone moves ratios.
    max_logit : float, optional
        A bound on the absolute value of every logit that the mask allows. None: no bound.

    Raises
    ------
    InputError
        For a value out of range.

    Examples
    --------
    >>> import headfit as hf
    >>> loose = hf.Tolerances(leak=0.3, distortion=1.0)
    >>> hf.fit(hf.patterns.band(32, 1), 4, tolerances=loose).tolerances == loose
    True
    >>> hf.Tolerances()
    Tolerances(leak=0.05, distortion=0.1, max_logit=None)
    """

    leak: float = 0.05
    distortion: float = 0.1
    max_logit: float | None = None

    def __post_init__(self) -> None:
        checked = {name: as_number(vars(self)[name], name) for name in ("leak", "distortion")}
        _core.Tolerances(**checked)  # which checks their ranges
        vars(self).update(checked, max_logit=as_positive(self.max_logit, "max_logit"))

    @property
    def logit_limit(self) -> float:
        """The bound on every |logit|; infinite when there is none."""
        return math.inf if self.max_logit is None else self.max_logit

    def before_rounding(self, kernel: Kernel, scale: float | None = None) -> Tolerances:
        """Return what exact logits meet if those of a kernel meet these tolerances.

        Proofs about exact logits start from this. Without a bound on the logits only the order of
        rounded ones says something about exact ones; so does that of rounded weights, which may be
        zero. A `scale` that is not known yet is at most 1.
        """
        relative = kernel.relative_error
        if relative == 0 and kernel.weights is None:
            return self
        # The error of subnormal numbers, which a product has before it is scaled.
        lost = abs(scale or 1) * LEAST_STEP.get(kernel.product or "", 0) + LEAST_STEP["float16"]
        # Relative to the exact logit, and with room for this arithmetic.
        moved = 2 * relative * self.logit_limit * (1 + 2 * relative) + 2 * lost + 1e-6
        if kernel.weights is not None:
            moved = math.inf
        leak = self.leak * math.exp(min(moved, 700.0))
        distortion = (1 + self.distortion) * math.exp(min(moved, 600.0)) - 1
        highest = None if self.max_logit is None else self.max_logit * (1 + 2 * relative) + lost
        return Tolerances(min(leak, math.nextafter(1, 0)), min(distortion, 1e300), highest)

    @property
    def core(self) -> _core.Tolerances:
        """The tolerances as the core takes them."""
        return _core.Tolerances(self.leak, self.distortion, self.logit_limit)

    def check_storable(self, dtype: str) -> None:
        """Raise an InputError for a distortion of 0, which no numbers of a dtype can meet."""
        if self.distortion == 0:
            least = 8 * 2.0 ** -DIGITS[dtype]
            raise InputError(
                "distortion must be above 0: no stored number meets a ratio exactly; rounding in "
                f"{dtype} alone moves ratios by about {least:.1g} times the logits, the least "
                "that can be certified"
            )


def log_inverse(leak: float) -> float:
    """Return log(1 / leak), also where the quotient overflows."""
    return math.log(1 / leak) if 1 / leak < math.inf else -math.log(leak)


def with_margin(leak: float, distortion: float, margin: float) -> tuple[float, float]:
    """Return tolerances that leave room for differences of logits to change by a margin."""
    least = math.ulp(0.0)  # a leak must be above 0
    return max(leak * math.exp(-margin), least), math.expm1(math.log1p(distortion) - margin)


def as_tolerances(tolerances: Any = None, **numbers: Any) -> Tolerances:
    """Return the tolerances that a caller passed, as an object or as single numbers, not both."""
    given = {name: value for name, value in numbers.items() if value is not None}
    if tolerances is None:
        return Tolerances(**given)
    if not isinstance(tolerances, Tolerances):
        raise InputError(f"tolerances must be a Tolerances or None; got {shown(tolerances)}")
    if given:
        first = next(iter(given))
        raise InputError(
            f"{first} and tolerances must not both be given; got {first}={shown(given[first])} "
            f"and {tolerances!r}"
        )
    return tolerances
