"""Masks of PyTorch that are no dense tensors: sparse tensors, and the block masks of FlexAttention.

PyTorch is not imported here: whoever passes one of its objects has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import BLOCK, as_array
from headfit.errors import InputError
from headfit.patterns._build import Ints, check_entries, row_starts

FLEX_ATTENTION = "torch.nn.attention.flex_attention"


def is_sparse_tensor(mask: Any) -> bool:
    """Return whether an object is a tensor of PyTorch with a sparse layout."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(mask, torch.Tensor) and mask.layout != torch.strided


def is_block_mask(mask: Any) -> bool:
    """Return whether an object is a `BlockMask` of `flex_attention`."""
    flex_attention = sys.modules.get(FLEX_ATTENTION)
    return flex_attention is not None and isinstance(mask, flex_attention.BlockMask)


def as_scipy(mask: Any, entry: tuple[int, ...]) -> Any:
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
        return _assembled(sp.coo_array, (data[chosen], (rows, columns)), shape)
    if layout in ("csr", "csc", "bsr"):
        by_rows = layout != "csc"
        offsets, indices = (
            (mask.crow_indices(), mask.col_indices())
            if by_rows
            else (mask.ccol_indices(), mask.row_indices())
        )
        parts = (as_array(x, "mask")[entry] for x in (mask.values(), indices, offsets))
        kinds = {"csr": sp.csr_array, "csc": sp.csc_array, "bsr": sp.bsr_array}
        return _assembled(kinds[layout], tuple(parts), shape)
    raise InputError(
        "mask must have the layout COO without dense axes, CSR, CSC or BSR where it is a sparse "
        f"tensor; got {mask.layout}, of shape {tuple(mask.shape)}"
    )


def _assembled(kind: Any, parts: Any, shape: tuple[int, ...]) -> Any:
    try:
        return kind(parts, shape=shape)
    except (ValueError, TypeError, IndexError) as error:  # PyTorch leaves the parts unchecked
        raise InputError(f"mask must be a valid sparse tensor: {error}") from error


def of_block_mask(mask: Any, entry: tuple[int, ...], n: int) -> tuple[Ints, Ints]:
    """Return how many keys each row of a block mask allows, and which, row by row."""
    blocks = _Blocks(mask, entry, n)
    counts, columns, total = np.empty(n, np.int64), [], 0
    for rows, keys, full in blocks.parts():
        allowed = np.tile(full, (rows.size, 1))
        allowed[:, ~full] = blocks.evaluate(rows, keys[~full])
        counts[rows] = np.count_nonzero(allowed, axis=1)
        total += int(counts[rows].sum())
        check_entries(total, n)
        columns.append(keys[np.nonzero(allowed)[1]].astype(np.int32))
    return counts, np.concatenate(columns)


class _Blocks:
    """The blocks of one matrix of a block mask, sorted by their rows and columns."""

    def __init__(self, mask: Any, entry: tuple[int, ...], n: int) -> None:
        self.mask, self.n = mask, n
        self.batch, self.head = (0, 0, *entry)[-2:]
        self.height, self.size = (int(size) for size in mask.BLOCK_SIZE)
        partial = _listed(mask.kv_num_blocks[entry], mask.kv_indices[entry], n, self.size)
        full: NDArray[Any] = np.empty((2, 0), np.int64)
        if mask.full_kv_num_blocks is not None:
            full = _listed(
                mask.full_kv_num_blocks[entry], mask.full_kv_indices[entry], n, self.size
            )
        lines = -(-n // self.height)
        listed = np.hstack([partial, full])
        order = np.lexsort(listed[::-1])
        self.row, self.column = listed[:, order]
        self.full = order >= partial.shape[1]
        if len(mask.kv_num_blocks[entry]) < lines:
            raise InputError(
                f"mask must have {lines} rows of blocks of {self.height} for {n} rows; got "
                f"{len(mask.kv_num_blocks[entry])}"
            )
        twice = (np.diff(self.row) == 0) & (np.diff(self.column) == 0)
        if twice.any():
            at = int(twice.argmax())
            raise InputError(
                f"mask must list each block once; got the block in block row {self.row[at]}, block "
                f"column {self.column[at]} twice"
            )
        self.starts = row_starts(np.bincount(self.row, minlength=lines))

    def parts(self) -> Iterator[tuple[Ints, Ints, NDArray[np.bool_]]]:
        """Yield some rows, the keys of their blocks in order, and which keys are in full blocks."""
        for line, (start, end) in enumerate(pairwise(self.starts.tolist())):
            keys = self.column[start:end, np.newaxis] * self.size + np.arange(self.size)
            exists = keys < self.n
            full = np.repeat(self.full[start:end], self.size)[exists.ravel()]
            rows = np.arange(line * self.height, min((line + 1) * self.height, self.n))
            step = max(1, 4 * BLOCK // max(1, full.size))
            for first in range(0, rows.size, step):
                yield rows[first : first + step], keys[exists], full

    def evaluate(self, rows: Ints, keys: Ints) -> NDArray[np.bool_]:
        """Return where `mask_mod` allows attention, shape (rows, keys)."""
        if not keys.size:
            return np.empty((rows.size, 0), np.bool_)
        mask = self.mask
        torch, flex_attention = sys.modules["torch"], sys.modules[FLEX_ATTENTION]
        device = mask.kv_indices.device
        query, key = (torch.as_tensor(x, device=device) for x in (rows, keys))

        def of_pair(zero: Any, _: Any, row: Any, column: Any) -> Any:
            return mask.mask_mod(zero + self.batch, zero + self.head, query[row], key[column])

        try:
            made = flex_attention.create_mask(
                of_pair, 1, 1, rows.size, keys.size, device=str(device)
            )
        except Exception as error:  # whatever the caller's function raises
            raise InputError(
                "mask must have a mask_mod that can be evaluated (a slice of a block mask has "
                f"none: pass the whole with batch= and head=); got {type(error).__name__}: {error}"
            ) from error
        if made.dtype != torch.bool:
            raise InputError(f"mask must have a mask_mod that returns booleans; got {made.dtype}")
        allowed: NDArray[np.bool_] = made[0, 0].cpu().numpy()
        return allowed


def _listed(counts: Any, indices: Any, n: int, size: int) -> NDArray[Any]:
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
