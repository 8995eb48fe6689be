"""What users may pass, as types: arrays of any library, sparse matrices, masks, positions, seeds.

These are for editors and type checkers. What is passed is checked when it is read, by the functions
of `_base/arrays.py`, `_base/masks.py` and `_base/positions.py`.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.random import BitGenerator, Generator, SeedSequence
from numpy.typing import NDArray

# Floating-point numbers, as functions return them.
FloatArray: TypeAlias = NDArray[Any]


class SupportsArray(Protocol):
    """An object that NumPy can turn into an array, such as a pandas DataFrame."""

    def __array__(self) -> NDArray[Any]: ...


class SupportsDLPack(Protocol):
    """An array of a library that speaks DLPack, such as PyTorch, JAX or CuPy."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Numbers: TypeAlias = Sequence[float]
AnyArray: TypeAlias = NDArray[Any] | SupportsArray | SupportsDLPack
# An array of any library, or nested sequences of numbers.
ArrayLike: TypeAlias = (
    AnyArray
    | Sequence[AnyArray]
    | Numbers
    | Sequence[Numbers]
    | Sequence[Sequence[Numbers]]
    | Sequence[Sequence[Sequence[Numbers]]]
)

# A SciPy sparse array or matrix of any format.
Sparse: TypeAlias = sp.sparray | sp.spmatrix

PathLike: TypeAlias = str | os.PathLike[str]

# What may be attended to: "causal", a window, or a boolean or additive matrix.
MaskLike: TypeAlias = (
    Literal["causal"] | tuple[Literal["window"], int | tuple[int, int]] | ArrayLike | Sparse | None
)

# Positions of tokens: "rope" and its like, alone or with a base, frequencies or slopes.
PositionLike: TypeAlias = (
    Literal["rope", "rope-half", "alibi"] | tuple[str, float | ArrayLike] | None
)

# Whatever `numpy.random.default_rng` takes (SPEC 7).
Seed: TypeAlias = int | Sequence[int] | Generator | BitGenerator | SeedSequence | None

# Columns by number, or "auto" for those that most rows attend to; None for no column.
Columns: TypeAlias = Literal["auto"] | Sequence[int] | NDArray[np.integer[Any]] | None
