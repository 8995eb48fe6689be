"""Keys or values of tokens as bytes, and back: the same code for arrays of NumPy and of PyTorch.

A token takes the bits of its latents, first the lowest bit of each, then the next one of those that
have more than one, and so on, and after them its step in float16. Latents without bits are float16.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any, Self

from headfit import _core
from headfit._base.positions import turn

STEP_BYTES = 2


@dataclass(frozen=True)
class Packing:
    """Maps of keys or values, and how latents are stored; arrays are all of one library."""

    encode: Any
    decode: Any
    mean: Any
    frequencies: Any  # of rotary positions, or None
    halves: bool  # whether these turn entries p and p + D / 2 together; else 2 p and 2 p + 1
    bits: tuple[int, ...] | None
    key_heads: int

    @property
    def xp(self) -> Any:
        """The library of the arrays."""
        return sys.modules[type(self.decode).__module__.split(".")[0]]

    def on(self, array: Any) -> Self:
        """Return the same with arrays of another library, made by `array`."""
        names = ("encode", "decode", "mean", "frequencies")
        arrays = {name: x for name in names if (x := getattr(self, name)) is not None}
        return replace(self, **{name: array(x) for name, x in arrays.items()})

    @property
    def token_bytes(self) -> int:
        """The bytes of a token."""
        if self.bits is None:
            return 2 * len(self.decode)
        return -(-sum(self.bits) // 8) + STEP_BYTES

    @property
    def _planes(self) -> list[int]:
        """How many latents, which are the first, have a bit 0, a bit 1, ..."""
        bits = self.bits or (0,)
        return [sum(b > bit for b in bits) for bit in range(bits[0])]

    def _array(self, values: Any, dtype: Any) -> Any:
        """Return an array where the maps are."""
        return self.xp.asarray(list(values), dtype=dtype, device=self.decode.device)

    def _of_bits(self, function: Any) -> Any:
        """Return a number for each latent, by its bits."""
        return self._array(map(function, self.bits or ()), self.xp.float32)

    def pack(self, keys: Any, positions: Any) -> Any:
        """Return bytes, shape (..., n, bytes), of keys (..., heads, n, D) with positions applied.

        `positions` has shape (..., n); without frequencies they are not looked at.
        """
        xp = self.xp
        flat = xp.swapaxes(self._turned(keys, positions, -1), -2, -3)
        flat = flat.reshape(*flat.shape[:-2], len(self.mean))
        z = flat @ self.encode - self.mean @ self.encode
        if self.bits is None:
            return xp.asarray(z, dtype=xp.float16).view(xp.uint8)
        reach = self._of_bits(lambda b: (2**b - 1) / 2)
        steps, shares = _core.latent_steps
        usual = z**2 / (self._of_bits(lambda b: steps[b] ** -2)).sum()
        usual = xp.sqrt(usual.sum(axis=-1, keepdims=True))
        weights = (self.decode**2).sum(axis=1)
        least: Any = None
        for share in shares:
            tried = xp.clip(share * usual, 2.0**-24, 65504.0)
            tried = xp.asarray(xp.asarray(tried, dtype=xp.float16), dtype=xp.float32)
            multiples = xp.clip(xp.round(z / tried - 0.5) + 0.5, -reach, reach)
            error = ((multiples * tried - z) ** 2 * weights).sum(axis=-1, keepdims=True)
            if least is None:
                least, step, best = error, tried, multiples
            step = xp.where(error < least, tried, step)
            best = xp.where(error < least, multiples, best)
            least = xp.minimum(error, least)
        codes = xp.asarray(xp.round(best + reach), dtype=xp.uint8)
        planes = [codes[..., :count] >> bit & 1 for bit, count in enumerate(self._planes)]
        rest = codes[..., :1] * self._array([0] * (-sum(self.bits) % 8), xp.uint8)
        bits = xp.concat([*planes, rest], axis=-1).reshape(
            *codes.shape[:-1], -(-sum(self.bits) // 8), 8
        )
        powers = self._array([1 << bit for bit in range(8)], xp.uint8)
        packed = (bits * powers).sum(axis=-1, dtype=xp.uint8)
        return xp.concat([packed, xp.asarray(step, dtype=xp.float16).view(xp.uint8)], axis=-1)

    def unpack(self, stored: Any, positions: Any) -> Any:
        """Return the keys, shape (..., heads, n, D), of bytes, shape (..., n, bytes)."""
        xp = self.xp
        if self.bits is None:
            z = xp.asarray(stored.view(xp.float16), dtype=xp.float32)
        else:
            bits = stored[..., :-STEP_BYTES, None] >> self._array(range(8), xp.uint8) & 1
            bits = bits.reshape(*stored.shape[:-1], 8 * (self.token_bytes - STEP_BYTES))
            # Codes are counted from the lowest of the 2^bits odd multiples of half a step.
            z = bits[..., :1] * 0 + self._of_bits(lambda b: (1 - 2**b) / 2)
            at = 0
            for bit, count in enumerate(self._planes):
                z[..., :count] += bits[..., at : at + count] * (1 << bit)
                at += count
            z *= (stored[..., -STEP_BYTES:] + 0).view(xp.float16)  # + 0 makes them contiguous
        flat = z @ self.decode + self.mean
        keys = flat.reshape(*flat.shape[:-1], self.key_heads, len(self.mean) // self.key_heads)
        return self._turned(xp.swapaxes(keys, -2, -3), positions, 1)

    def _turned(self, keys: Any, positions: Any, sign: int) -> Any:
        """Return keys (..., heads, n, D) turned to their positions, or back from them."""
        xp = self.xp
        if self.frequencies is None:
            return keys
        angles = xp.asarray(positions[..., None, :, None] * self.frequencies)
        cosines = xp.asarray(xp.cos(angles), dtype=xp.float32)
        sines = xp.asarray(sign * xp.sin(angles), dtype=xp.float32)
        return turn(keys, cosines, sines, self.halves, xp.empty_like(keys))
