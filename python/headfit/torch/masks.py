"""`MaskReader`: masks and biases of PyTorch layers, read once for the layers that share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from headfit._base.arrays import as_stored_array
from headfit.errors import CaptureError
from headfit.torch.visibility import Visible

if TYPE_CHECKING:
    from headfit.torch.recorder import Seen


class MaskReader:
    """Reads masks, and remembers what they said until `forget` is called."""

    def __init__(self) -> None:
        self._read: dict[Any, Any] = {}
        self._tensors: list[Any] = []  # so that no other tensor takes the place of one in memory

    def forget(self) -> None:
        """Forget all masks: the model was left."""
        self._read.clear()
        self._tensors.clear()

    def read(
        self, seen: Seen, rows: NDArray[np.bool_] | None, shape: tuple[int, int, int], own: bool
    ) -> tuple[Visible, NDArray[Any] | None]:
        """Return which keys are seen, and what is added to the logits, of shape (1, 1, n, m) up."""
        known = None if rows is None else rows.tobytes()
        key = (_identity(seen.mask), _identity(seen.bias), seen.causal, known, shape, own)
        if key not in self._read:
            self._tensors += [seen.mask, seen.bias]
            self._read[key] = _read(seen, rows, shape, own)
        found: tuple[Visible, NDArray[Any] | None] = self._read[key]
        return found


def _identity(tensor: Any) -> Any:
    if tensor is None:
        return None
    # Tensors made in inference mode do not count their changes.
    return id(tensor), -1 if tensor.is_inference() else tensor._version


def _read(
    seen: Seen, rows: NDArray[np.bool_] | None, shape: tuple[int, int, int], own: bool
) -> tuple[Visible, NDArray[Any] | None]:
    allowed, bias = _split(_four_axes(seen.mask, "mask", seen, shape))
    _, n, m = shape
    if seen.causal:
        lower = np.tri(n, m, m - n, dtype=bool)
        allowed = "causal" if allowed is None else allowed & lower
    if seen.bias is not None:
        opened, more = _split(_four_axes(seen.bias, "bias", seen, shape))
        if opened is not None:
            allowed = opened if allowed is None or isinstance(allowed, str) else allowed & opened
            if seen.causal:
                allowed = allowed & lower
        if more is not None:
            bias = more if bias is None else more + bias
    if isinstance(allowed, np.ndarray):
        allowed = np.broadcast_to(allowed, (*allowed.shape[:2], n, m))
    return Visible.read(allowed, rows, shape, own), bias


def _four_axes(tensor: Any, name: str, seen: Seen, shape: tuple[int, int, int]) -> Any:
    """Return a mask or bias with four axes, that broadcasts to (batch, heads, n, m)."""
    if tensor is None:
        return None
    batch, n, m = shape
    full = (batch, seen.query.shape[1], n, m)
    tensor = tensor.detach()[(None,) * max(0, 4 - tensor.dim())]
    if tensor.dim() > 4 or any(a not in (1, b) for a, b in zip(tensor.shape, full, strict=True)):
        raise CaptureError(
            f"{seen.layer}: the {name} must broadcast to (batch, heads, n, m) = {full}; got shape "
            f"{tuple(tensor.shape)}"
        )
    return tensor.cpu()


def _split(mask: Any) -> tuple[Any, NDArray[Any] | None]:
    """Return where a mask allows attention (None: everywhere), and what it adds (None: nothing)."""
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        return (None if bool(mask.all()) else mask.numpy()), None
    # Masked entries are minus infinity, or the least number of the dtype plus some logit.
    closed = mask <= torch.finfo(mask.dtype).min / 2
    added = torch.where(closed, torch.zeros((), dtype=mask.dtype), mask)
    return (
        None if not bool(closed.any()) else ~closed.numpy(),
        None if not bool(added.any()) else as_stored_array(added, "bias"),
    )
