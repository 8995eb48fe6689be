"""Patterns from masks: each token attends to all keys that its mask allows."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.arrays import BFLOAT16, BLOCK, as_array, as_count, is_sparse, widened
from headfit._base.masks import additive_entries
from headfit._base.sparse import checked_csr
from headfit.errors import InputError, TargetError
from headfit.patterns._build import (
    MOST_TOKENS,
    Ints,
    Pattern,
    Style,
    Weighting,
    check_entries,
    csr,
    pattern,
    row_starts,
    weighted,
)
from headfit.patterns._torch_masks import (
    as_scipy,
    is_block_mask,
    is_sparse_tensor,
    of_block_mask,
)

FORMS = (
    "a boolean array, one of integers 0 and 1, an additive one of 0 and -inf, a sparse matrix of "
    "booleans or of integers 0 and 1, or a BlockMask of flex_attention"
)


@pattern
def from_mask(
    mask: Any,
    *,
    batch: int | None = None,
    head: int | None = None,
    **style: Unpack[Weighting],
) -> Pattern:
    """Return the pattern of a mask: each token attends to all keys that the mask allows.

    Leading axes of length 1 are left out. Of a longer axis `batch` and `head` choose one entry. A
    row that allows no key, such as a row of padding, is a `TargetError` that names it.
    Beside the result this needs memory for a few rows, whatever the kind of mask, and the time
    to read the mask once.

    Parameters
    ----------
    mask : array, sparse matrix, torch tensor or BlockMask
        Which keys each token may attend to, in one of these forms:

        - a boolean array of any library that speaks DLPack, True where attention is allowed (the
          other way round than in `torch.nn.MultiheadAttention`: pass ``~mask`` there), or one of
          integers 0 and 1;
        - an additive mask, of floats: 0 allows, while -inf and the lowest number of the dtype
          forbid;
        - a SciPy sparse matrix, or a sparse tensor of PyTorch (COO, CSR, CSC or BSR), of booleans
          or of integers 0 and 1; what is not stored is not allowed;
        - a `BlockMask` of `torch.nn.attention.flex_attention`. Blocks that it calls full are
          allowed as a whole, and its `mask_mod` is evaluated on each entry of the others, as
          `flex_attention` does.

        Its shape is (n, n), (head, n, n) or (batch, head, n, n).
    batch, head : int, optional
        Which entry of the leading axes to take; needed where an axis is longer than 1. A
        `BlockMask` forgets its `mask_mod` when it is sliced, so choose here.

    Examples
    --------
    >>> import numpy as np
    >>> from headfit import patterns
    >>> patterns.from_mask(np.tri(3, dtype=bool)).toarray().round(2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.33, 0.33, 0.33]])
    >>> additive = np.where(np.eye(3, k=1) == 1, -np.inf, 0.0)
    >>> patterns.from_mask(additive[None, None])[[0]].indices
    array([0, 2], dtype=int32)
    """
    if is_sparse_tensor(mask):
        if mask.is_floating_point() or mask.is_complex():
            raise _wrong_sparse_dtype(mask.dtype)
        n, entry = _places(mask.shape, batch, head)
        counts, columns = _of_sparse(as_scipy(mask, entry))
    elif is_block_mask(mask):
        n, entry = _places(mask.shape, batch, head)
        counts, columns = of_block_mask(mask, entry, n)
    elif is_sparse(mask):
        n, _ = _places(mask.shape, batch, head)
        counts, columns = _of_sparse(mask)
    else:
        array = as_array(mask, "mask")
        if array.dtype.kind not in "biuf" and array.dtype != BFLOAT16:
            raise InputError(f"mask must be {FORMS}; got {shown(mask)} of dtype {array.dtype}")
        n, entry = _places(array.shape, batch, head)
        counts, columns = _of_dense(array[entry])
    if not counts.all():
        raise TargetError(
            f"mask must allow at least one key in every row; got none in row {np.argmin(counts)} "
            f"({n - np.count_nonzero(counts)} of {n} rows): leave out rows of padding"
        )
    return weighted(csr(columns, columns, row_starts(counts)), Style.of(**style))


def _places(shape: tuple[int, ...], batch: Any, head: Any) -> tuple[int, tuple[int, ...]]:
    """Return the number of tokens of a mask and the index of one matrix in its leading axes."""
    shape = tuple(shape)
    if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape:
        raise InputError(f"mask must be square, with at least one row; got shape {shape}")
    if shape[-1] > MOST_TOKENS:
        raise InputError(f"mask must have at most {MOST_TOKENS} rows; got shape {shape}")
    lead = shape[:-2]
    index = [0] * len(lead)
    for axis, (name, value) in enumerate((("head", head), ("batch", batch)), start=1):
        if value is not None:
            number = as_count(value, name, 0)
            if axis > len(lead) or number >= lead[-axis]:
                raise InputError(
                    f"{name} must be an index of its axis, or None where there is no such axis; "
                    f"got {number} for a mask of shape {shape}"
                )
            index[-axis] = number
        elif axis <= len(lead) and lead[-axis] > 1:
            raise InputError(
                f"mask must be one matrix; got shape {shape}: choose with {name}=0 ... "
                f"{lead[-axis] - 1}"
            )
    if any(size > 1 for size in lead[:-2]):
        raise InputError(f"mask must have the shape (batch, head, n, n) or less; got {shape}")
    return shape[-1], tuple(index)


def _of_dense(array: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return how many keys each row of a dense mask allows, and which, row by row."""
    n = len(array)
    step = max(1, 4 * BLOCK // n)
    counts, columns, total = np.empty(n, np.int64), [], 0
    for first in range(0, n, step):
        rows = slice(first, first + step)
        allowed = _allowed(array[rows], first)
        counts[rows] = np.count_nonzero(allowed, axis=1)
        total += int(counts[rows].sum())
        check_entries(total, n)
        columns.append(np.nonzero(allowed)[1].astype(np.int32))
    return counts, np.concatenate(columns)


def _allowed(block: NDArray[Any], first: int) -> NDArray[np.bool_]:
    """Return where some rows of a mask allow attention; `first` is the number of the first row."""
    allowed: NDArray[np.bool_]
    if block.dtype == np.bool_:
        return block
    if block.dtype.kind in "iu":
        allowed = block == 1
        other, expected = ~(allowed | (block == 0)), "0 or 1 where it holds integers"
    else:
        allowed, other = additive_entries(block)
        expected = "0 or -inf (or the lowest of its dtype) where it holds floats"
    if other.any():
        row, column = (int(i) for i in np.argwhere(other)[0])
        raise InputError(
            f"mask must be {expected}; got {widened(block)[row, column]} in row {first + row}, "
            f"column {column}"
        )
    return allowed


def _of_sparse(matrix: Any) -> tuple[Ints, Ints]:
    """Return how many keys each row of a sparse mask allows, and which, row by row."""
    if matrix.dtype.kind not in "biu":
        raise _wrong_sparse_dtype(matrix.dtype)
    csr = checked_csr(matrix, "mask", keep_zeros=False)
    other = csr.data != 1
    if other.any():
        at = int(other.argmax())
        raise InputError(
            f"mask must be 0 or 1 where it holds integers; got {csr.data[at]} in row "
            f"{np.searchsorted(csr.indptr, at, 'right') - 1}, column {csr.indices[at]}"
        )
    check_entries(csr.nnz, csr.shape[0])
    return np.diff(csr.indptr), csr.indices.copy()


def _wrong_sparse_dtype(dtype: Any) -> InputError:
    return InputError(
        f"mask must be boolean, or of integers 0 and 1, where it is sparse; got dtype {dtype}: "
        "convert it to booleans if every nonzero allows attention"
    )
