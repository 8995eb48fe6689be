"""Keys or values of tokens as bytes, and back: arrays of NumPy, or of PyTorch on any device.

A token takes the bits of its latents, first the lowest bit of each, then the next one of those that
have more than one, and so on, and after them its steps in float16 if it has any of its own. Latents
without bits are float16.
"""

import math
import sys
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from headfit import _core
from headfit._base.arguments import LARGEST, as_choice, as_count, thread_count
from headfit._base.positions import turn

BLOCK = 1024  # tokens that are read at a time where the core does not read, for little memory


def latents_per_step(step: Any) -> int:
    """Return how many latents share a step of their token: 0 where latents have their own."""
    if not isinstance(step, str):
        return as_count(step, "step, where it is not 'token' or 'latent',", 1)
    named = {"token": LARGEST, "latent": 0}
    return named[as_choice(step, "step", tuple(named), "a number of latents, ")]


@dataclass(frozen=True)
class Packing:
    """How keys or values are stored, and the maps that read them; arrays are all of one library."""

    core: _core.TokenStore
    decode: Any
    mean: Any
    frequencies: Any  # of rotary positions, or None
    halves: bool  # whether these turn entries p and p + D / 2 together; else 2 p and 2 p + 1
    bits: tuple[int, ...] | None
    latents_per_step: int
    key_heads: int

    @property
    def xp(self) -> Any:
        """The library of the arrays."""
        return sys.modules[type(self.decode).__module__.split(".")[0]]

    def on(self, array: Any) -> Self:
        """Return the same with arrays of another library, made by `array`."""
        arrays = {name: getattr(self, name) for name in ("decode", "mean", "frequencies")}
        return replace(self, **{n: array(x) for n, x in arrays.items() if x is not None})

    def table(self, positions: Any) -> Any:
        """Return cosines, then sines, of positions (..., n): shape (..., n, D). None for values."""
        if self.frequencies is None:
            return None
        xp, angles = self.xp, positions[..., None] * self.frequencies
        return xp.asarray(xp.concat([xp.cos(angles), xp.sin(angles)], axis=-1), dtype=xp.float32)

    def pack(self, keys: Any, table: Any, threads: int | None = None) -> Any:
        """Return bytes, shape (..., n, bytes), of keys (..., heads, n, D) with positions applied.

        `table` is that of their positions. The CPU does the work.
        """
        return self._by_core(self.core.store, keys, 3, table, threads)

    def unpack(self, stored: Any, table: Any, threads: int | None = None, dtype: Any = None) -> Any:
        """Return the keys, shape (..., heads, n, D), of bytes, shape (..., n, bytes)."""
        if str(stored.device) == "cpu":
            return self._by_core(self.core.read, stored, 2, table, threads, dtype)
        return self.unpack_anywhere(stored, table, dtype)

    def _by_core(
        self, work: Any, given: Any, axes: int, table: Any, threads: Any, dtype: Any = None
    ) -> Any:
        """Return what the core makes of arrays whose last axes are those of a token and its own."""

        def on_cpu(x: Any, *shape: int) -> Any:
            return np.ascontiguousarray(x.detach().cpu() if hasattr(x, "cpu") else x).reshape(shape)

        lead, own = given.shape[:-axes], given.shape[-axes:]
        count = math.prod(lead)
        if table is not None:
            table = self.xp.broadcast_to(table, (*lead, *table.shape[-2:]))
            table = on_cpu(table, count * own[-2], table.shape[-1])
        threads = thread_count(threads or getattr(self.xp, "get_num_threads", lambda: None)())
        made = work(on_cpu(given, count, *own), table, self.halves, threads)
        return self.xp.asarray(
            made.reshape(*lead, *made.shape[1:]), dtype=dtype, device=self.decode.device
        )

    def unpack_anywhere(self, stored: Any, table: Any, dtype: Any = None) -> Any:
        """Return the same as `unpack` by operations that arrays of every device have."""
        blocks = (np.s_[..., i : i + BLOCK, :] for i in range(0, max(stored.shape[-2], 1), BLOCK))
        read = (self._read(stored[x], table if table is None else table[x]) for x in blocks)
        return self.xp.concat([self.xp.asarray(x, dtype=dtype) for x in read], axis=-2)

    def _read(self, stored: Any, table: Any) -> Any:
        xp, device = self.xp, self.decode.device
        if self.bits is None:
            z = xp.asarray(stored.view(xp.float16), dtype=xp.float32)
        else:
            places = xp.asarray(list(range(8)), dtype=xp.uint8, device=device)
            width = -(-sum(self.bits) // 8)  # bytes, before those of steps
            bits = stored[..., :width, None] >> places & 1
            bits = bits.reshape(*stored.shape[:-1], 8 * bits.shape[-2])
            # Codes are counted from the lowest of the 2^bits odd multiples of half a step.
            lowest = [(1 - 2**b) / 2 for b in self.bits]
            z = bits[..., :1] * 0 + xp.asarray(lowest, dtype=xp.float32, device=device)
            at = 0
            for bit in range(self.bits[0]):
                count = sum(b > bit for b in self.bits)
                z[..., :count] += bits[..., at : at + count] * (1 << bit)
                at += count
            if self.latents_per_step:
                steps = (stored[..., width:] + 0).view(xp.float16)  # + 0 makes them contiguous
                z *= steps[..., [i // self.latents_per_step for i in range(len(self.bits))]]
        keys = z @ self.decode + self.mean
        keys = keys.reshape(*keys.shape[:-1], self.key_heads, len(self.mean) // self.key_heads)
        keys = xp.swapaxes(keys, -2, -3)
        if table is None:
            return keys
        half, of_heads = table.shape[-1] // 2, table[..., None, :, :]
        angles = of_heads[..., :half], of_heads[..., half:]
        return turn(keys, *angles, self.halves, xp.empty_like(keys))
