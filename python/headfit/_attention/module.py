"""The fixed self-attention module: weights that never change, inputs that do."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.logits import check_scale
from headfit._base.arguments import as_float_dtype, as_generator
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import (
    FloatArray,
    as_count,
    as_matrix,
    as_stack,
    as_stored_matrix,
    blocks_of_rows,
    check_finite,
    computed_in,
)
from headfit._base.dtypes import NARROW
from headfit._base.interruptible import interruptible, short_blocks
from headfit._base.memory import require_memory
from headfit.errors import InputError

__all__ = ["SelfAttention", "random_rotation"]


class SelfAttention:
    """A self-attention module softmax(scale * X W_Q (X W_K)^T) with fixed weights.

    Parameters
    ----------
    W_Q, W_K : array_like, shape (D, d)
        The weights; copied, and read-only from then on.
    scale : float, optional
        1 / sqrt(d) when None.

    Attributes
    ----------
    W_Q, W_K : ndarray, shape (D, d)
        Read-only.
    dim, width : int
        The head size d and the input size D.
    scale : float
    dtype : dtype

    Raises
    ------
    InputError
        For shapes that differ and values that are not finite.

    Examples
    --------
    One module, two patterns:

    >>> import numpy as np, headfit as hf
    >>> module = hf.SelfAttention.canonical(2)
    >>> for Q in (6 * np.eye(2), 6 * np.eye(2)[::-1]):
    ...     X = module.input_for(Q, np.eye(2))
    ...     print(module(X).matrix().round())
    [[1. 0.]
     [0. 1.]]
    [[0. 1.]
     [1. 0.]]
    """

    dim: int
    width: int
    scale: float
    dtype: np.dtype[Any]

    @standard_arithmetic()
    def __init__(self, W_Q: Any, W_K: Any, scale: float | None = None) -> None:
        q, k = as_matrix(W_Q, "W_Q"), as_matrix(W_K, "W_K")
        if q.shape != k.shape or q.shape[1] == 0:
            raise InputError(f"W_Q and W_K must have one shape (D, d); got {q.shape} and {k.shape}")
        check_finite(q, "W_Q")
        check_finite(k, "W_K")
        dtype = np.result_type(q, k)
        weights = np.concatenate([q, k], axis=1, dtype=dtype)
        weights.flags.writeable = False
        self._settle(weights, q.shape[0], q.shape[1], scale, dtype)

    def _settle(
        self, weights: FloatArray | None, width: int, dim: int, scale: float | None, dtype: Any
    ) -> None:
        values = {
            "_weights": weights,  # [W_Q W_K]; None: canonical
            "width": width,
            "dim": dim,
            "scale": check_scale(scale, dim),
            "dtype": np.dtype(dtype),
        }
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a SelfAttention is immutable; cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a SelfAttention is immutable; cannot delete {name}")

    @classmethod
    def canonical(
        cls, dim: int, scale: float | None = None, *, dtype: Any = np.float32
    ) -> SelfAttention:
        """Return the module with D = 2 d, W_Q = [I; 0], W_K = [0; I], so that X = [Q K].

        Its weights are built only when they are looked at.
        """
        dim, dtype = as_count(dim, "dim", 1), as_float_dtype(dtype)
        module = object.__new__(cls)
        module._settle(None, 2 * dim, dim, scale, dtype)
        return module

    @property
    def is_canonical(self) -> bool:
        """Whether this is the module of `canonical`."""
        return self.__dict__["_weights"] is None

    @cached_property
    def weights(self) -> FloatArray:
        """The matrix [W_Q W_K], shape (D, 2 d), read-only."""
        stored: FloatArray | None = self.__dict__["_weights"]
        if stored is not None:
            return stored
        require_memory(
            self.width**2 * self.dtype.itemsize, f"the weights of a module of dim = {self.dim}"
        )
        identity: FloatArray = np.eye(self.width, dtype=self.dtype)
        identity.flags.writeable = False
        return identity

    @property
    def W_Q(self) -> FloatArray:
        """The query weights, shape (D, d)."""
        return self.weights[:, : self.dim]

    @property
    def W_K(self) -> FloatArray:
        """The key weights, shape (D, d)."""
        return self.weights[:, self.dim :]

    def __repr__(self) -> str:
        kind = "canonical, " if self.is_canonical else ""
        sizes = f"D={self.width}, d={self.dim}"
        return f"SelfAttention({kind}{sizes}, {self.dtype}, scale={self.scale:.6g})"

    @standard_arithmetic()
    def __call__(self, X: Any, *, mask: Any = None) -> Attention:
        """Return the attention of an input, evaluated when asked for.

        Parameters
        ----------
        X : array_like, shape (n, D)
        mask : optional
            As in `attention_matrix`.

        Returns
        -------
        Attention
            Its Q and K are X W_Q and X W_K, computed in float64 and rounded to the dtype of
            X and the weights; it carries bounds of their errors, so that `certify` speaks of
            the exact products.

        Raises
        ------
        NonFiniteError
            Where a product is too large for the dtype; names the place.
        """
        x = as_stored_matrix(X, "X")
        if x.shape[1] != self.width:
            raise InputError(f"X must have {self.width} columns; got shape {x.shape}")
        check_finite(x, "X")
        d = self.dim
        if self.is_canonical:  # products with ones and zeros are exact
            return Attention(x[:, :d], x[:, d:], scale=self.scale, mask=mask)
        dtype = np.result_type(computed_in(x), self.dtype)
        weights = self.weights.astype(np.float64, copy=False)
        q, k = (np.empty((x.shape[0], d), dtype) for _ in range(2))
        with np.errstate(over="ignore", invalid="ignore"):
            for rows, block in blocks_of_rows(x):
                wide = block.astype(np.float64, copy=False)
                q[rows], k[rows] = np.split(wide @ weights, 2, axis=1)
        check_finite(q, "X W_Q")
        check_finite(k, "X W_K")
        inputs = as_stack(x)
        errors = tuple(
            _core.product_errors(inputs, as_stack(w), as_stack(product))
            for w, product in ((self.W_Q, q), (self.W_K, k))
        )
        return Attention._of_products(q, k, self.scale, mask, errors)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, called once however many threads ask for it at a time."""
        locks = self.__dict__.setdefault("_locks", {})
        with locks.setdefault(os.getpid(), threading.Lock()):  # a forked child has one of its own
            if name not in self.__dict__:
                self.__dict__[name] = make()
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        """Return what the module is made of, without what can be computed again."""
        kept = ("_weights", "width", "dim", "scale", "dtype")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take that up, in a copy or in another process."""
        self.__dict__.update(state)
        if state["_weights"] is not None:
            state["_weights"].flags.writeable = False

    def _factored(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The LU factors of [W_Q W_K]^T, for square weights of full rank."""
        require_memory(2 * 8 * self.width**2, f"the factorisation of {self.width} x {self.width}")
        transposed = np.array(self.weights.T, dtype=np.float64, order="F", copy=True)
        norm = float(np.abs(transposed).sum(axis=0).max())
        factor = scipy.linalg.lapack.dgetrf
        lu, pivots, _ = interruptible(self.width**3 / 3, factor, transposed, overwrite_a=True)
        condition, _ = scipy.linalg.lapack.dgecon(lu, norm)
        if not condition > self.width * np.finfo(np.float64).eps:
            weights = self.weights.astype(np.float64)
            self._refuse_rank(int(interruptible(self.width**3, np.linalg.matrix_rank, weights)))
        return lu, pivots

    def _inverted(self) -> NDArray[np.float64]:
        """The pseudo-inverse of [W_Q W_K], of full rank."""
        require_memory(
            6 * 8 * self.width * 2 * self.dim,
            f"the pseudo-inverse of {self.width} x {2 * self.dim} weights",
        )
        weights = self.weights.astype(np.float64)
        operations = 4 * self.width * (2.0 * self.dim) ** 2
        left, size, right = interruptible(operations, np.linalg.svd, weights, full_matrices=False)
        rank = int(np.count_nonzero(size > self.width * np.finfo(np.float64).eps * size[0]))
        if rank < 2 * self.dim:
            self._refuse_rank(rank)
        result: NDArray[np.float64] = interruptible(operations, np.matmul, right.T / size, left.T)
        return result

    def _solve(self, wide: NDArray[np.float64], out: FloatArray) -> None:
        """Write the X with X [W_Q W_K] = `wide` to `out`, a few rows at a time."""
        if self.width != 2 * self.dim:
            inverse = self._once("_pinv", self._inverted)
            for rows in short_blocks(wide.shape[0], inverse.size):
                out[rows] = wide[rows] @ inverse
            return
        lu, pivots = self._once("_lu", self._factored)
        # SciPy's getrs counts the pivots from 1 while it works, in the array that it is given.
        own = pivots.copy()
        for rows in short_blocks(wide.shape[0], self.width**2):
            solved, _ = scipy.linalg.lapack.dgetrs(lu, own, wide[rows].T)
            out[rows] = solved.T

    def _refuse_rank(self, rank: int) -> NoReturn:
        raise InputError(
            f"[W_Q W_K] must have rank 2 d = {2 * self.dim} for every Q and K to have an input; "
            f"it has shape {self.weights.shape} and rank {rank}"
        )

    @standard_arithmetic()
    def input_for(self, Q: Any, K: Any) -> FloatArray:
        """Return X with X W_Q = Q and X W_K = K, up to rounding.

        Parameters
        ----------
        Q, K : array_like, shape (n, d)

        Returns
        -------
        ndarray, shape (n, D)
            In the widest dtype of Q, K and the weights. With D > 2 d, the X of least norm.

        Raises
        ------
        InputError
            When [W_Q W_K] has a rank below 2 d (the error states it), or is too large to be
            factored in memory.

        Notes
        -----
        Square [W_Q W_K]: one LU factorisation, O(D**3), kept for later calls of O(n D**2).
        Otherwise the pseudo-inverse. Threads may share a module. Ctrl-C during a factorisation
        returns at once; what LAPACK has begun it ends in a thread of its own.
        """
        q, k = as_matrix(Q, "Q"), as_matrix(K, "K")
        if q.shape != k.shape or q.shape[1] != self.dim:
            raise InputError(
                f"Q and K must have one shape (n, {self.dim}); got {q.shape} and {k.shape}"
            )
        check_finite(q, "Q")
        check_finite(k, "K")
        dtype = np.result_type(q, k, self.dtype)
        together = np.concatenate([q, k], axis=1)
        if self.is_canonical:
            return together.astype(dtype, copy=False)
        out: FloatArray = np.empty((q.shape[0], self.width), dtype)
        self._solve(together.astype(np.float64, copy=False), out)
        return out


@standard_arithmetic()
def random_rotation(dim: int, rng: Any = None, *, dtype: Any = np.float32) -> SelfAttention:
    """Return a module whose [W_Q W_K] is a random rotation: dense, perfectly conditioned.

    Parameters
    ----------
    dim : int
        The head size; D = 2 dim.
    rng : seed or Generator, optional
    dtype : dtype, default float32

    Notes
    -----
    The Q factor of a Gaussian matrix, O(D**3); for D a power of two from 1024 on, the
    product of three Hadamard matrices and random signs, O(D**2 log D): orthogonal and dense
    too, though not uniform over all rotations.

    Examples
    --------
    >>> import numpy as np
    >>> W = random_rotation(2, rng=0, dtype=np.float64).weights
    >>> np.allclose(W @ W.T, np.eye(4))
    True
    """
    generator, dtype = as_generator(rng), as_float_dtype(dtype)
    width = 2 * as_count(dim, "dim", 1)
    require_memory(5 * 8 * width**2, f"a rotation of dim = {dim}")
    if width >= 1024 and width & (width - 1) == 0:
        weights = np.eye(width)
        for _ in range(3):
            weights *= generator.choice([-1.0, 1.0], size=width)[:, np.newaxis]
            _hadamard_in_place(weights)
        weights /= width**1.5
    else:
        gaussian = generator.standard_normal((width, width))
        weights, _ = interruptible(2.0 * width**3, np.linalg.qr, gaussian)
    weights = weights.astype(dtype)
    return SelfAttention(weights[:, : width // 2], weights[:, width // 2 :])


def _hadamard_in_place(x: NDArray[np.float64]) -> None:
    """Multiply by the Hadamard matrix from the left (fast Walsh-Hadamard transform)."""
    n = x.shape[0]
    for level in range(int(math.log2(n))):
        half = 1 << level
        pairs = x.reshape(n // (2 * half), 2, half, -1)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference


def check_module(module: Any, dim: int | None, dtype: str, scale: float | None) -> None:
    """Raise an InputError for a module that does not go with size, dtype and scale."""
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
