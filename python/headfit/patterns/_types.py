"""The types of patterns: matrices, and what their makers take."""

from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from headfit._base.types import Seed as Seed

Weights: TypeAlias = Literal["uniform", "random"]
Boundary: TypeAlias = Literal["clip", "wrap"]
Pattern: TypeAlias = "sparse.csr_array[np.float64, tuple[int, int]]"
Ints: TypeAlias = "NDArray[np.signedinteger[Any]]"
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

MOST_TOKENS = np.iinfo(np.int32).max


class Weighting(TypedDict, total=False):
    """The keyword arguments that all patterns take, those of `Style.of`."""

    weights: Weights | None
    gamma: float
    rng: Seed
