"""`MaskReader`: masks and biases of PyTorch layers, read once for the layers that share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headfit._base.arrays import as_stored_array
from headfit.errors import CaptureError
from headfit.torch.visibility import Visible

if TYPE_CHECKING:
    from headfit.torch.recorder import ObservedCall


class Read(NamedTuple):
    """What a mask and a bias say.

    Attributes
    ----------
    visible : Visible
    bias : ndarray that broadcasts to (batch, heads, n, keys), or None
        What is added to the logits.
    keys : int
        The number of keys; those after them are empty places of a cache.
    """

    visible: Visible
    bias: NDArray[Any] | None
    keys: int


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
        self,
        seen: ObservedCall,
        rows: NDArray[np.bool_] | None,
        shape: tuple[int, int, int],
        own: bool,
    ) -> Read:
        """Return what the mask and the bias of an attention say; see `Visible.read`."""
        known = None if rows is None else rows.tobytes()
        key = (_identity(seen.mask), _identity(seen.bias), seen.causal, known, shape, own)
        if key not in self._read:
            self._tensors += [seen.mask, seen.bias]
            self._read[key] = _read(seen, rows, shape, own)
        found: Read = self._read[key]
        return found


def _identity(tensor: Any) -> Any:
    if tensor is None:
        return None
    # Tensors made in inference mode do not count their changes.
    return id(tensor), -1 if tensor.is_inference() else tensor._version


def _read(
    seen: ObservedCall, rows: NDArray[np.bool_] | None, shape: tuple[int, int, int], own: bool
) -> Read:
    allowed, bias = _split(_four_axes(seen.mask, "mask", seen, shape))
    batch, n, m = shape
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
        if own and m > n:
            # Keys at the end that nobody sees are the empty places of a cache of fixed size.
            some = np.flatnonzero(allowed.any(axis=(0, 1, 2)))
            m = max(n, int(some[-1]) + 1) if some.size else m
            allowed = allowed[..., :m]
            bias = bias if bias is None or bias.shape[-1] == 1 else bias[..., :m]
    return Read(Visible.read(allowed, rows, (batch, n, m), own), bias, m)


def _four_axes(tensor: Any, name: str, seen: ObservedCall, shape: tuple[int, int, int]) -> Any:
    """Return a mask or bias with four axes, that broadcasts to (batch, heads, n, m)."""
    if tensor is None:
        return None
    batch, n, m = shape
    full = (batch, seen.query.shape[1], n, m)
    given = tuple(tensor.shape)
    fits = len(given) <= 4 and all(
        a in (1, b) for a, b in zip(given[::-1], full[::-1], strict=False)
    )
    if not fits:
        raise CaptureError(
            f"{seen.layer}: the {name} must broadcast to (batch, heads, n, m) = {full}; got shape "
            f"{given}"
        )
    return tensor.detach()[(None,) * (4 - len(given))].cpu()


def _split(mask: Any) -> tuple[Any, NDArray[Any] | None]:
    """Return where a mask allows attention (None: everywhere), and what it adds (None: nothing)."""
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        return (None if bool(mask.all()) else mask.numpy().copy()), None
    # Masked entries are minus infinity, or the least number of the dtype plus some logit.
    closed = mask <= torch.finfo(mask.dtype).min / 2
    added = torch.where(closed, torch.zeros((), dtype=mask.dtype), mask)
    return (
        None if not bool(closed.any()) else ~closed.numpy(),
        None if not bool(added.any()) else as_stored_array(added, "bias"),
    )
