"""`SelfAttention`: a self-attention module with fixed weights, applied to different inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from scipy.linalg import lapack

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.logits import check_scale
from headfit._base import arrays
from headfit._base.arguments import as_count, as_generator
from headfit._base.calls import interruptible, short_blocks, standard_arithmetic
from headfit._base.machine import require_memory
from headfit._base.types import FloatArray, Seed
from headfit.errors import InputError

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SelfAttention:
    """A self-attention module softmax(scale * X W_Q (X W_K)^T) with fixed weights.

    Parameters
    ----------
    W_Q, W_K : array_like, shape (D, d)
        The weights, which are copied.
    scale : float, optional
        1 / sqrt(d) when None.

    Attributes
    ----------
    W_Q, W_K : ndarray, shape (D, d)
        The weights, read-only.
    dim, width : int
        The head size d and the input size D.
    scale : float
        The factor that the products of queries and keys are multiplied by.
    dtype : dtype
        The dtype of the weights: float32 or float64.
    is_canonical : bool
        Whether this module was made by `canonical`.

    Raises
    ------
    InputError
        If the shapes differ, or the scale is not finite and nonzero.
    NonFiniteError
        For NaN or infinity in a weight matrix.

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
    is_canonical: bool

    @standard_arithmetic()
    def __init__(self, W_Q: Any, W_K: Any, scale: float | None = None) -> None:
        weights = _side_by_side({"W_Q": W_Q, "W_K": W_K}, "(D, d)")
        weights.flags.writeable = False
        self._set_fields(weights.shape, weights.dtype, scale)
        vars(self).update(is_canonical=False, weights=weights)

    def _set_fields(self, shape: tuple[int, int], dtype: Any, scale: float | None) -> None:
        dim = shape[1] // 2
        scale = check_scale(scale, dim)
        vars(self).update(width=shape[0], dim=dim, dtype=dtype, scale=scale, is_canonical=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes get what defines the module, and compute the rest."""
        if self.is_canonical:
            return partial(SelfAttention.canonical, dtype=self.dtype), (self.dim, self.scale)
        return SelfAttention, (self.W_Q, self.W_K, self.scale)

    @classmethod
    def canonical(cls, dim: int, scale: float | None = None, *, dtype: Any = np.float32) -> Self:
        """Return the module with D = 2 d, W_Q = [I; 0], W_K = [0; I], so that X = [Q K].

        Its weights are computed when they are first read.

        Parameters
        ----------
        dim : int
            The head size d.
        scale : float, optional
            1 / sqrt(d) when None.
        dtype : dtype, default float32
            The dtype of the weights: float32 or float64.

        Raises
        ------
        InputError
            If an argument is not as described.

        Examples
        --------
        >>> import headfit as hf
        >>> hf.SelfAttention.canonical(1).weights
        array([[1., 0.],
               [0., 1.]], dtype=float32)
        """
        width, dtype = 2 * as_count(dim, "dim", 1), arrays.as_float_dtype(dtype)
        module = object.__new__(cls)
        module._set_fields((width, width), np.dtype(dtype), scale)
        return module

    @classmethod
    @standard_arithmetic()
    def random(cls, dim: int, rng: Seed = 0, *, dtype: Any = np.float32) -> Self:
        """Return a module whose [W_Q W_K] is a random orthogonal matrix: dense, of condition 1.

        Parameters
        ----------
        dim : int
            The head size d; the input size D is 2 d.
        rng : seed or Generator, default 0
            The source of randomness.
        dtype
            As in `canonical`.

        Raises
        ------
        InputError
            If an argument is not as described, or the weights do not fit in memory.

        Notes
        -----
        The matrix is the Q factor of a Gaussian matrix, in O(D**3) time. For D from 1024 on it is
        the product of three cosine transforms with random signs, in O(D**2 log D) time: dense and
        orthogonal as well, but not uniformly distributed over all such matrices.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> W = hf.SelfAttention.random(2, rng=0, dtype=np.float64).weights
        >>> np.allclose(W @ W.T, np.eye(4))
        True
        """
        from scipy.fft import dct

        generator, dtype = as_generator(rng), arrays.as_float_dtype(dtype)
        dim = as_count(dim, "dim", 1)
        side = 2 * dim
        require_memory(5 * 8 * side**2, f"a rotation of dim = {dim}")
        if side < 1024:
            gaussian = generator.standard_normal((side, side))
            weights, _ = interruptible(2.0 * side**3, np.linalg.qr, gaussian)
        else:
            weights = np.eye(side)
            for _ in range(3):
                weights *= generator.choice([-1.0, 1.0], size=side)[:, np.newaxis]
                weights = interruptible(99.0 * side**2, dct, weights, axis=0, norm="ortho")
        weights = weights.astype(dtype, copy=False)
        return cls(weights[:, :dim], weights[:, dim:])

    @cached_property
    def weights(self) -> FloatArray:
        """The matrix [W_Q W_K], shape (D, 2 d), read-only."""
        size = self.width**2 * self.dtype.itemsize
        require_memory(size, f"the weights of a module of dim = {self.dim}")
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
        """Return the attention of an input, computed when asked for.

        Parameters
        ----------
        X : array_like, shape (n, D)
            The input: one row per token.
        mask : optional
            As in `Attention`.

        Returns
        -------
        Attention
            Its Q and K are X W_Q and X W_K, computed in float64 and rounded to the wider dtype
            of X and the weights; those of a canonical module are columns of X. It holds bounds of
            their errors, so that statements of `certify` are about the exact products.

        Raises
        ------
        InputError
            If X does not have D columns.
        NonFiniteError
            For NaN or infinity in X, or if a product is too large for the dtype; the message
            names the entry.

        Notes
        -----
        Takes O(n D d) time, and O(n d) memory for a canonical module, else O((n + D) d).
        """
        x = arrays.as_stored_matrix(X, "X")
        if x.shape[1] != self.width:
            raise InputError(f"X must have {self.width} columns; got shape {x.shape}")
        arrays.check_finite(x, "X")
        d = self.dim
        if self.is_canonical:  # products with zeros and ones are exact: no errors to bound
            return Attention(x[:, :d], x[:, d:], scale=self.scale, mask=mask)
        dtype = np.result_type(arrays.computed_in(x), self.dtype)
        weights = self.weights.astype(np.float64, copy=False)
        q, k = (np.empty((x.shape[0], d), dtype) for _ in range(2))
        with np.errstate(over="ignore", invalid="ignore"):
            for rows, block in arrays.blocks_of_rows(x):
                wide = block.astype(np.float64, copy=False)
                q[rows], k[rows] = np.split(wide @ weights, 2, axis=1)
        arrays.check_finite(q, "X W_Q")
        arrays.check_finite(k, "X W_K")
        errors = tuple(
            _core.product_errors(*(arrays.as_stack(matrix) for matrix in (x, w, product)))
            for w, product in ((self.W_Q, q), (self.W_K, k))
        )
        return Attention._of(q, k, {"scale": self.scale, "mask": mask}, errors)

    @cached_property
    def _lu_factors(self) -> tuple[FloatArray, FloatArray]:
        """The LU factors of [W_Q W_K]^T and their pivots, where the weights are square."""
        require_memory(2 * 8 * self.width**2, f"the factorisation of {self.width} x {self.width}")
        transposed = np.array(self.weights.T, dtype=np.float64, order="F", copy=True)
        norm = float(np.abs(transposed).sum(axis=0).max())
        lu, pivots, _ = interruptible(self.width**3 / 3, lapack.dgetrf, transposed, overwrite_a=1)
        condition, _ = lapack.dgecon(lu, norm)
        if not condition > self.width * EPSILON:
            self._check_rank(int(interruptible(self.width**3, np.linalg.matrix_rank, self.weights)))
            raise InputError(
                "[W_Q W_K] must have a reciprocal condition number above D times the float64 "
                f"epsilon, {self.width * EPSILON:.3g}, for its inputs to be computed; "
                f"it has about {condition:.3g} (in the 1-norm)"
            )
        return lu, pivots

    @cached_property
    def _pseudo_inverse(self) -> FloatArray:
        """The pseudo-inverse of [W_Q W_K], where the weights are not square."""
        count, (rows, columns) = self.weights.size, self.weights.shape
        require_memory(6 * 8 * count, f"the pseudo-inverse of {rows} x {columns} weights")
        weights, operations = self.weights.astype(np.float64), 4.0 * count * columns
        left, size, right = interruptible(operations, np.linalg.svd, weights, full_matrices=False)
        self._check_rank(int(np.count_nonzero(size > self.width * EPSILON * size.max(initial=0))))
        return np.asarray(interruptible(operations, np.matmul, right.T / size, left.T))

    def _check_rank(self, rank: int) -> None:
        """Raise an InputError for weights whose rank is below 2 d."""
        if rank < 2 * self.dim:
            raise InputError(
                f"[W_Q W_K] must have rank 2 d = {2 * self.dim} for every Q and K to have an "
                f"input; it has shape {self.weights.shape} and rank {rank}"
            )

    @standard_arithmetic()
    def input_for(self, Q: Any, K: Any) -> FloatArray:
        """Return X with X W_Q = Q and X W_K = K, up to rounding.

        Parameters
        ----------
        Q, K : array_like, shape (n, d)
            The queries and keys that the module shall compute.

        Returns
        -------
        ndarray, shape (n, D)
            In the widest dtype of Q, K and the weights. If D > 2 d, the X of least norm.

        Raises
        ------
        InputError
            If the shapes of Q and K are not (n, d), if [W_Q W_K] has a rank below 2 d, or is
            square and too close to such a matrix (the message states the rank, or the condition
            number), if there is not enough memory to factor it, or if X exceeds its dtype.
        NonFiniteError
            For NaN or infinity in Q or K.

        Notes
        -----
        If [W_Q W_K] is square, the first call computes its LU factors in O(D**3) time and keeps
        them; the solution takes O(n D**2). Otherwise the pseudo-inverse is computed and kept
        instead: O(D d**2), then O(n D d). Threads may share a module. Ctrl-C during a
        factorisation returns at once, while LAPACK finishes it in a thread of its own.

        Examples
        --------
        >>> import headfit as hf
        >>> module = hf.SelfAttention([[2.0], [0.0]], [[0.0], [4.0]])
        >>> module.input_for([[1.0]], [[1.0]])
        array([[0.5 , 0.25]])
        """
        together = _side_by_side({"Q": Q, "K": K}, f"(n, {self.dim})", self.dim)
        dtype = np.result_type(together, self.dtype)
        if self.is_canonical:
            return together.astype(dtype, copy=False)
        out: FloatArray = np.empty((together.shape[0], self.width), dtype)
        is_square = self.width == 2 * self.dim
        factor, pivots = self._lu_factors if is_square else (self._pseudo_inverse, np.empty(0))
        # SciPy's getrs adds 1 to the pivots in place while it works, so that threads that share
        # this module must each pass a copy.
        pivots = pivots.copy()
        for rows in short_blocks(together.shape[0], self.width * together.shape[1]):
            wide = together[rows].astype(np.float64)
            wide = lapack.dgetrs(factor, pivots, wide.T)[0].T if is_square else wide @ factor
            out[rows] = arrays.round_to(wide, dtype.name, "X")
        return out


def _side_by_side(pair: dict[str, Any], shape: str, columns: int | None = None) -> FloatArray:
    """Return two matrices of one shape as one matrix of their wider dtype, checked to be finite."""
    first, second = (arrays.as_matrix(x, name) for name, x in pair.items())
    width = first.shape[1]
    if first.shape != second.shape or width == 0 or columns not in (None, width):
        names = " and ".join(pair)
        raise InputError(
            f"{names} must have one shape {shape}; got {first.shape} and {second.shape}"
        )
    for name, x in zip(pair, (first, second), strict=True):
        arrays.check_finite(x, name)
    return np.concatenate([first, second], axis=1)
