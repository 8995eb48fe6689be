"""What fits of sparse patterns and of dense targets have in common: a head in a module.

Here, and only here, Q, K, the module's input and the attention are made out of the numbers of a
method or a descent.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headfit._attention.attention import Attention
from headfit._attention.module import SelfAttention
from headfit._base.arrays import NARROW, FloatArray, array_dtype
from headfit.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class FittedHead:
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
