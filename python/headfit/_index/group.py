"""Key heads with their query heads in some passages, and the maps that a fit starts from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.heads import existing_keys
from headfit._base.machine import require_memory
from headfit._base.positions import as_rotary, turn
from headfit._compress.free_maps import ClosedForm, Moment, roots
from headfit._compress.passages import Passages, with_shared_keys
from headfit._index.quality import SPREADS
from headfit.errors import InputError

MOVES = 32  # of the positions of passages, over which second moments are averaged
Maps = NDArray[np.float32]
OF_ONE_HEAD = {"mask": 2, "key_mask": 1, "key_lengths": 0}  # their axes without that of heads


def of_one_group(attention: Attention, place: int) -> Attention:
    """Return an attention of a key head or a layer, with one mask; refuse what no index knows."""
    attention = with_shared_keys(attention, place, of_layer=True)
    position = attention.position
    if attention.bias is not None or (position and not as_rotary(position, attention.dim)):
        raise InputError(f"passage {place} has a bias (as a mask of -1e9 in place of -inf is one) "
                         "or the position alibi, which no index knows")  # fmt: skip
    for name, axes in OF_ONE_HEAD.items():
        value = getattr(attention, name)
        if isinstance(value, np.ndarray) and value.ndim > axes and len(value) > 1:
            if value.strides[0] and any(not np.array_equal(one, value[0]) for one in value[1:]):
                raise InputError(
                    f"{name} must be one for all query heads; passage {place} has one for each"
                )
            attention = Attention(*attention.stored, **{**vars(attention.options), name: value[0]})
    return attention


class Group(Passages):
    """Passages of a key head, or of all of a layer, which an index is fitted to."""

    @property
    def width(self) -> int:
        """The numbers of a key, of all key heads."""
        return self.key_heads * self.dim

    @property
    def reach(self) -> int:
        """By how many tokens passages may be moved."""
        return self.length - max(a.m for a in self.attentions) if self.rotary else 0

    def core(self, name: str) -> Any:
        """Return the passages that are fitted, then those that choose; `name` is for errors."""
        require_memory(16 * self.reach * self.dim, "the angles of positions up to `length`")
        turned = self.turns(self.reach + 1)
        return _core.IndexPassages(
            self.fitted, turned.table, turned.halves, self.reach, self.parts.validation.size, name
        )

    def closed_forms(self, form: str) -> dict[str, Maps]:
        """Return maps of every size: of each these are the first columns.

        KQ-SVD with keys centred within passages, and Loki's components of the keys. Second moments
        are averaged over moves of the positions. For the form "dot" products are the mean of those
        of the query heads.
        """
        queries = np.zeros((self.heads, self.dim, self.dim))
        keys = np.zeros((2, self.width, self.width))
        for passage in self.part(self.parts.calibration):
            q = passage.stored[0].astype(np.float64).reshape(self.heads, -1, self.dim)
            queries += np.swapaxes(q, 1, 2) @ q / q.shape[1]
            k = self._keys(passage)
            count = max(1, len(k))  # a passage may have padding keys alone
            keys[0] += k.T @ k / count
            k -= k.sum(axis=0) / count
            keys[1] += k.T @ k / count
        plain, centred = self._averaged(keys)
        scale = self.attentions[0].scale / (self.heads if form == "dot" else 1)
        # The part of a key that each query head reads.
        of_key_heads = np.eye(self.width).reshape(self.key_heads, self.dim, self.width)
        read = [*np.repeat(scale * of_key_heads, self.heads // self.key_heads, axis=0)]
        components = np.linalg.eigh(plain)[1][:, ::-1]
        loki = np.vstack([x @ components for x in read] + [components])
        of_queries = tuple(map(roots, self._averaged(queries)))
        kq = ClosedForm(of_queries, roots(centred)).maps(read, self.width)
        return {"kq-svd": kq.astype(np.float32), "loki": loki.astype(np.float32)}

    def start(self, maps: Maps, dim: int, dtype: str, first: int) -> Maps:
        """Return maps of a size, whose keys have numbers that suit a dtype without scales.

        The first keys, which are attended to anyway, may be cut off.
        """
        maps, width = maps[:, :dim].copy(), self.width
        if dtype in SPREADS:
            keys = (self._keys(passage)[first:] for passage in self.part(self.parts.calibration))
            numbers = np.vstack([k @ maps[-width:] for k in keys])
            spread = np.sqrt(np.square(numbers).sum(axis=0) / max(1, len(numbers)))
            by = SPREADS[dtype] / np.maximum(spread, 1e-3 * spread.max() + 1e-30)
            maps[:-width], maps[-width:] = maps[:-width] / by, maps[-width:] * by
        return maps

    def _keys(self, passage: Attention) -> NDArray[np.float64]:
        """Return the keys that are no padding, of all key heads side by side."""
        k = passage.stored[1].astype(np.float64).reshape(self.key_heads, -1, self.dim)
        return np.hstack([*k[:, existing_keys(passage)]])

    def _averaged(self, moments: Moment) -> Moment:
        """Return the means of second moments over moves, which turn all key heads alike."""
        if self.rotary is None or not self.reach:
            return moments
        heads, unit = moments.shape[-1] // self.dim, np.eye(self.dim)
        blocks = moments.reshape(-1, heads, self.dim, heads, self.dim).swapaxes(2, 3)
        mean = np.zeros_like(blocks)
        for move in np.linspace(0, self.reach, MOVES).round():
            angles = move * self.rotary.frequencies
            turned = turn(unit, np.cos(angles), np.sin(angles), self.rotary.halves, unit.copy())
            mean += turned.T @ blocks @ turned / MOVES
        return mean.swapaxes(2, 3).reshape(moments.shape)
