"""Key tables: keys made once, for any number of patterns."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from headfit import _core
from headfit._base.arguments import as_count, as_float_dtype, seed_from, shown
from headfit._base.arrays import FloatArray, as_matrix, check_finite
from headfit._base.calls import standard_arithmetic
from headfit._base.machine import require_memory
from headfit._base.types import Seed
from headfit.errors import InputError


@dataclass(frozen=True, eq=False, repr=False)
class KeyTable:
    """Keys that stay as they are while queries are fitted to one pattern after another.

    Parameters
    ----------
    keys : array_like, shape (n, d)
        Copied, and read-only from then on.
    kind : str, default "given"
        Where the keys come from.

    Attributes
    ----------
    keys : ndarray, shape (n, d)
    kind : str
    n, dim : int

    Raises
    ------
    InputError
        For keys that are no finite matrix with a column, or a kind that is no text.

    Examples
    --------
    >>> import headfit as hf
    >>> table = hf.methods.KeyTable.random(64, 24, rng=0)
    >>> for seed in range(2):
    ...     A = hf.patterns.random_regular(64, 2, rng=seed)
    ...     print(hf.fit(A, method=hf.methods.MaxMargin(keys=table)).certificate.holds)
    True
    True
    """

    keys: FloatArray
    _: KW_ONLY
    kind: str = "given"

    def __post_init__(self) -> None:
        keys = np.array(as_matrix(self.keys, "keys"), order="C")
        check_finite(keys, "keys")
        if not isinstance(self.kind, str):
            raise InputError(f"kind must be a text; got {shown(self.kind)}")
        if keys.shape[1] == 0:
            raise InputError(f"keys must have at least one column; got shape {keys.shape}")
        keys.flags.writeable = False
        object.__setattr__(self, "keys", keys)

    @property
    def n(self) -> int:
        """The number of keys."""
        return int(self.keys.shape[0])

    @property
    def dim(self) -> int:
        """The head size."""
        return int(self.keys.shape[1])

    def __repr__(self) -> str:
        return f"KeyTable({self.kind}, n={self.n}, dim={self.dim}, {self.keys.dtype})"

    @classmethod
    @standard_arithmetic()
    def random(cls, n: int, dim: int, *, rng: Seed = 0, dtype: Any = np.float32) -> KeyTable:
        """Return random keys on the unit sphere.

        Parameters
        ----------
        n, dim : int
        rng : seed or Generator, default 0
        dtype : float32 or float64

        Notes
        -----
        Gaussian keys, normalised: on the sphere more supports are faces than with Gaussian
        lengths. See `bounds.random_keys_dim` for the size at which almost every support is one.
        """
        _check_size(n, dim, dtype)
        g = np.empty((int(n), int(dim)))
        _core.fill_sketch(g, "gaussian", seed_from(rng), 1)
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        return cls(g.astype(dtype), kind="random")

    @classmethod
    @standard_arithmetic()
    def cyclic(cls, n: int, dim: int, *, dtype: Any = np.float64) -> KeyTable:
        """Return points of the trigonometric moment curve, cos and sin of 2 pi f j / n.

        Parameters
        ----------
        n, dim : int
            An even `dim` uses the frequencies 1 ... dim / 2. Odd ones are refused.
        dtype : float32 or float64

        Notes
        -----
        The cyclic polytope with dim = 2 k is neighbourly: every k of its vertices span a
        face, whatever n (Gale 1963), so dim = 2 k serves every pattern in exact arithmetic. Its
        margins shrink like (k / n)**(2 k): the certificate tells whether a dtype suffices.
        """
        _check_size(n, dim, dtype)
        if dim % 2:
            raise InputError(f"cyclic keys need an even dim; got {dim}")
        angles = 2 * math.pi * np.arange(n)[:, np.newaxis] / n
        turns = angles * np.arange(1, dim // 2 + 1)
        keys = np.concatenate([np.cos(turns), np.sin(turns)], axis=1)
        return cls(keys.astype(dtype), kind="cyclic")


def _check_size(n: int, dim: int, dtype: Any) -> None:
    as_count(n, "n", 1, 2**31 - 1)
    as_count(dim, "dim", 1)
    as_float_dtype(dtype)
    require_memory(20 * int(n) * int(dim), f"a table of n = {n} keys of size dim = {dim}")
