"""Patterns from masks: each token attends to all keys that its mask allows.

PyTorch is not imported here: whoever passes one of its objects has imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import scipy.sparse as sp

from headfit._base.arguments import as_count, shown
from headfit._base.arrays import BFLOAT16, BLOCK, as_array, is_sparse, widened
from headfit._base.masks import additive_entries
from headfit._base.sparse import checked_csr
from headfit.errors import InputError, TargetError, input_errors
from headfit.patterns._build import check_entries, csr, pattern, row_starts
from headfit.patterns._types import MOST_TOKENS, Flags, Ints, Pattern, Weighting

FLEX_ATTENTION = "torch.nn.attention.flex_attention"
FORMS = (
    "a boolean array, one of integers 0 and 1, an additive one of 0 and -inf, a sparse matrix of "
    "booleans or of integers 0 and 1, or a BlockMask of flex_attention"
)


@pattern
def from_mask(
    mask: Any, *, batch: int | None = None, head: int | None = None, **style: Unpack[Weighting]
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

        - a boolean array, True where attention is allowed (the other way round than in
          `torch.nn.MultiheadAttention`), or one of integers 0 and 1;
        - an additive mask, of floats: 0 allows, while -inf and the lowest number of the dtype
          forbid;
        - a SciPy sparse matrix, or a sparse tensor of PyTorch (COO, CSR, CSC or BSR), of booleans
          or of integers 0 and 1; what is not stored is not allowed;
        - a `BlockMask` of `torch.nn.attention.flex_attention`. Its `mask_mod` is evaluated where
          it is not full, as `flex_attention` does.

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
    torch, flex_attention = sys.modules.get("torch"), sys.modules.get(FLEX_ATTENTION)
    is_sparse_tensor = (
        torch is not None and isinstance(mask, torch.Tensor) and mask.layout != torch.strided
    )
    if flex_attention is not None and isinstance(mask, flex_attention.BlockMask):
        n, entry = _places(mask.shape, batch, head)
        counts, columns = _collected(_block_parts(mask, entry, n), n)
    elif is_sparse(mask) or is_sparse_tensor:
        if not re.fullmatch(r"(torch\.)?(bool|u?int\d+)", str(mask.dtype)):
            raise InputError(
                "mask must be boolean, or of integers 0 and 1, where it is sparse; got dtype "
                f"{mask.dtype}: convert it to booleans if every nonzero allows attention"
            )
        n, entry = _places(mask.shape, batch, head)
        counts, columns = _of_sparse(_as_scipy(mask, entry) if is_sparse_tensor else mask)
    else:
        array = as_array(mask, "mask")
        if array.dtype.kind not in "biuf" and array.dtype != BFLOAT16:
            raise InputError(f"mask must be {FORMS}; got {shown(mask)} of dtype {array.dtype}")
        n, entry = _places(array.shape, batch, head)
        keys, step = np.arange(n, dtype=np.int32), max(1, 4 * BLOCK // n)
        parts = (slice(first, first + step) for first in range(0, n, step))
        allowed = ((rows, keys, _allowed(array[entry][rows], rows.start)) for rows in parts)
        counts, columns = _collected(allowed, n)
    if not counts.all():
        raise TargetError(
            f"mask must allow at least one key in every row; got none in row {np.argmin(counts)} "
            f"({n - np.count_nonzero(counts)} of {n} rows): leave out rows of padding"
        )
    return csr(columns, columns, row_starts(counts))


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


def _collected(parts: Iterable[tuple[Any, Ints, Any]], n: int) -> tuple[Ints, Ints]:
    """Return how many keys each row allows, and which, row by row.

    A part has some rows, some keys, and where the rows allow the keys.
    """
    counts, columns, total = np.empty(n, np.int64), [], 0
    for rows, keys, allowed in parts:
        counts[rows] = np.count_nonzero(allowed, axis=1)
        total += int(counts[rows].sum())
        check_entries(total, n)
        places = np.flatnonzero(allowed) % max(1, keys.size)  # faster than np.nonzero
        columns.append(keys[places].astype(np.int32, copy=False))
    return counts, np.concatenate(columns)


def _allowed(block: Any, first: int) -> Flags:
    """Return where some rows of a mask allow attention; `first` is the number of the first row."""
    if block.dtype == np.bool_:
        return np.asarray(block)
    if block.dtype.kind in "iu":
        allowed: Flags = block == 1
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
    csr = checked_csr(matrix, "mask", keep_zeros=False)
    other = csr.data != 1
    if other.any():
        at = int(other.argmax())
        raise InputError(
            f"mask must be 0 or 1 where it holds integers; got {csr.data[at]} in row "
            f"{np.searchsorted(csr.indptr, at, 'right') - 1}, column {csr.indices[at]}"
        )
    check_entries(csr.nnz, csr.shape[0])
    return np.diff(csr.indptr), csr.indices


def _as_scipy(mask: Any, entry: tuple[int, ...]) -> Any:
    """Return one matrix of a sparse tensor as a SciPy matrix, whose indices are not yet checked.

    `entry` is its index in the leading axes.
    """
    layout, shape = str(mask.layout).removeprefix("torch.sparse_"), tuple(mask.shape[-2:])
    mask = mask.detach()
    if layout == "coo" and mask.dense_dim() == 0:
        places, data = as_array(mask._indices(), "mask"), as_array(mask._values(), "mask")
        chosen = np.ones(data.shape, np.bool_)
        for axis, index in enumerate(entry):
            chosen &= places[axis] == index
        rows, columns = places[-2:, chosen]
        parts: Any = data[chosen], (rows, columns)
    elif layout in ("csr", "csc", "bsr"):
        names = ("row", "ccol") if layout == "csc" else ("col", "crow")
        given = mask.values(), *(getattr(mask, f"{name}_indices")() for name in names)
        parts = tuple(as_array(x, "mask")[entry] for x in given)
    else:
        raise InputError(
            "mask must have the layout COO without dense axes, CSR, CSC or BSR where it is a "
            f"sparse tensor; got {mask.layout}, of shape {tuple(mask.shape)}"
        )
    # PyTorch leaves the parts unchecked.
    with input_errors("mask must be a valid sparse tensor", ValueError, TypeError, IndexError):
        return getattr(sp, f"{layout}_array")(parts, shape=shape)


def _block_parts(mask: Any, entry: tuple[int, ...], n: int) -> Iterator[tuple[Ints, Ints, Flags]]:
    """Yield rows of a block mask, the keys of their blocks in order, and where they allow them."""
    height, size = (int(x) for x in mask.BLOCK_SIZE)
    blocks = _listed(mask.kv_num_blocks[entry], mask.kv_indices[entry], n, size)
    partial, lines = blocks.shape[1], -(-n // height)
    if mask.full_kv_num_blocks is not None:
        full = _listed(mask.full_kv_num_blocks[entry], mask.full_kv_indices[entry], n, size)
        blocks = np.hstack([blocks, full])
    if len(mask.kv_num_blocks[entry]) < lines:
        raise InputError(
            f"mask must have {lines} rows of blocks of {height} for {n} rows; got "
            f"{len(mask.kv_num_blocks[entry])}"
        )
    order = np.lexsort(blocks[::-1])
    (row, column), is_full = blocks[:, order], order >= partial
    twice = (np.diff(row) == 0) & (np.diff(column) == 0)
    if twice.any():
        at = int(twice.argmax())
        raise InputError(
            f"mask must list each block once; got the block in block row {row[at]}, block "
            f"column {column[at]} twice"
        )
    starts = row_starts(np.bincount(row, minlength=lines)).tolist()
    for line, (start, end) in enumerate(pairwise(starts)):
        keys = (column[start:end, np.newaxis] * size + np.arange(size)).ravel()
        allows = np.repeat(is_full[start:end], size)[keys < n]
        keys = keys[keys < n]
        own = np.arange(line * height, min((line + 1) * height, n))
        step = max(1, 4 * BLOCK // max(1, keys.size))
        for first in range(0, own.size, step):
            rows = own[first : first + step]
            allowed = np.tile(allows, (rows.size, 1))
            allowed[:, ~allows] = _evaluated(mask, entry, rows, keys[~allows])
            yield rows, keys, allowed


def _evaluated(mask: Any, entry: tuple[int, ...], rows: Ints, keys: Ints) -> Flags:
    """Return where the `mask_mod` of a block mask allows attention, shape (rows, keys)."""
    if not keys.size:
        return np.empty((rows.size, 0), np.bool_)
    torch, flex_attention = sys.modules["torch"], sys.modules[FLEX_ATTENTION]
    device, (batch, head) = mask.kv_indices.device, (0, 0, *entry)[-2:]
    query, key = (torch.as_tensor(x, device=device) for x in (rows, keys))

    def of_pair(zero: Any, _: Any, row: Any, column: Any) -> Any:
        return mask.mask_mod(zero + batch, zero + head, query[row], key[column])

    try:
        made = flex_attention.create_mask(of_pair, 1, 1, rows.size, keys.size, device=str(device))
    except Exception as error:  # whatever the caller's function raises
        raise InputError(
            "mask must have a mask_mod that can be evaluated (a slice of a block mask has "
            f"none: pass the whole with batch= and head=); got {type(error).__name__}: {error}"
        ) from error
    if made.dtype != torch.bool:
        raise InputError(f"mask must have a mask_mod that returns booleans; got {made.dtype}")
    return np.asarray(made[0, 0].cpu().numpy())


def _listed(counts: Any, indices: Any, n: int, size: int) -> Ints:
    """Return the block rows and block columns that a block mask lists, shape (2, blocks)."""
    number, columns = counts.cpu().numpy(), indices.cpu().numpy()
    most = columns.shape[1]
    if columns.shape[0] != len(number) or (number < 0).any() or (number > most).any():
        raise InputError(
            f"mask must have block counts of 0 ... {most}, one for each row of block indices; got "
            f"{number} for indices of shape {columns.shape}"
        )
    row, place = np.nonzero(np.arange(most) < number[:, np.newaxis])
    column = columns[row, place].astype(np.int64)
    across = -(-n // size)
    outside = (column < 0) | (column >= across)
    if outside.any():
        at = int(outside.argmax())
        raise InputError(
            f"mask must have block indices of 0 ... {across - 1}; got {column[at]} in block row "
            f"{row[at]}"
        )
    return np.stack([row, column])
