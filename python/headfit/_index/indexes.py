"""The indexes of several key heads or layers, and what layers find with the keys of others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arguments import thread_count
from headfit._base.calls import standard_arithmetic
from headfit._cache.stored import StoredByName
from headfit._compress.passages import Made, given_alone, of_each
from headfit._index.quality import IndexCurve, IndexQualities, IndexSharing
from headfit._index.result import Index
from headfit.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class Indexes(StoredByName[Index]):
    """The indexes of several key heads or layers.

    Attributes
    ----------
    heads : dict
        An `Index` for each, by the names of the call.
    seconds : float
        Of the whole call.
    """

    heads: dict[Any, Index]
    seconds: float
    _kind, _spent = Index, ("bytes", "missed", 1)

    @property
    def curve(self) -> IndexCurve | None:
        """What all find with each of the sizes, formats and numbers of keys of a curve.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> given = [*map(tuple, np.random.default_rng(0).normal(size=(4, 2, 50, 8)))]
        >>> found = hf.index({"a head": given}, dim=2, window=8, keys=20, effort=0,
        ...                  curve_dims=(2, 4), curve_keys=(20, 30))
        >>> [*found.curve.points]
        [(2, 'float8_e4m3fn', 20), (2, 'float8_e4m3fn', 30), ...]
        """
        own = {name: x.curve.points if x.curve else {} for name, x in self.heads.items()}
        first, *others = own.values() or [{}]
        at_all = [at for at in first if all(at in x for x in others)]
        each = [{name: points[at] for name, points in own.items()} for at in at_all]
        points = dict(zip(at_all, map(IndexQualities.by_way, each), strict=True))
        return IndexCurve(points) if points else None

    def judge(
        self, passages: Any, *, keys: int | None = None, num_threads: int | None = None
    ) -> IndexQualities:
        """Measure how much of their attention all key heads find in other passages.

        Parameters
        ----------
        passages : mapping
            Passages of each key head or layer by its name, as for `index`.
        keys, num_threads : int, optional
            As in `Index.judge`.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit; those of a key head name it.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> x = np.random.default_rng(0).normal(size=(6, 2, 50, 8)) * 2
        >>> heads = {name: [*map(tuple, x * size)] for name, size in (("a", 1.0), ("b", 0.5))}
        >>> found = hf.index({n: x[:4] for n, x in heads.items()}, dim=4, window=8, keys=20)
        >>> judged = found.judge({name: x[4:] for name, x in heads.items()})
        >>> judged["a"].rows, judged.share_worst == min(judged[n].share_worst for n in heads)
        (100, True)
        """
        return IndexQualities.over(
            self._each(passages, lambda x, own: x.judge(own, keys=keys, num_threads=num_threads))
        )

    @standard_arithmetic()
    def sharing(
        self, passages: Any, *, keys: int | None = None, num_threads: int | None = None
    ) -> IndexSharing:
        """Measure what layers find with the keys that the indexes of earlier layers select.

        Each key head attends to the keys that the one of the same number selects in another layer,
        or each layer to those that the index of another selects.

        Parameters
        ----------
        passages, keys, num_threads
            As in `judge`. All passages are of the same tokens.

        Raises
        ------
        InputError, NonFiniteError
            For arguments that do not fit, and for other names than (layer, key head) and layer.

        Examples
        --------
        >>> import numpy as np, headfit as hf
        >>> x = np.random.default_rng(0).normal(size=(6, 2, 50, 8)) * 2
        >>> heads = {(layer, 0): [*map(tuple, x * (1 + layer / 9))] for layer in range(3)}
        >>> found = hf.index(heads, dim=4, window=8, keys=20, effort=0)
        >>> found.sharing(heads).gain.shape
        (3, 3)
        """
        own = {(x, None) if isinstance(x, str) else x: index for x, index in self.heads.items()}
        names = [name for name in own if isinstance(name, tuple) and name]
        layers, heads = (list(dict.fromkeys(name[at] for name in names)) for at in (0, -1))
        if {(x, head) for x in layers for head in heads} ^ own.keys() or len(own) < len(self.heads):
            raise InputError("sharing needs names (layer, key head) of the same heads, or layers")
        count, *others = {index._count(keys) for index in own.values()}
        if others:
            raise InputError("keys must be given where the indexes have different ones")
        threads = thread_count(num_threads)

        def selected(index: Index, given: Any) -> list[tuple[Attention, NDArray[np.int32]]]:
            read = [index._passage(x, None, {}, at) for at, x in enumerate(given_alone(given))]
            return [(x, index._select(x, count, threads).ravel()) for x in read]

        read = dict(zip(own, self._each(passages, selected).values(), strict=True))
        if len({tuple((x.n, x.m) for x, _ in each) for each in read.values()}) > 1:
            raise InputError("passages must be of the same tokens for all names")
        gain = np.full((len(layers), len(layers)), math.nan)
        for at, layer in enumerate(layers):
            each = []
            for head in heads:
                mass = np.zeros(at + 2)
                for *others, last in zip(*(read[x, head] for x in layers[: at + 1]), strict=True):
                    columns = np.concatenate([x for _, x in (*others, last)])
                    for_core = own[layer, head]._for_core
                    mass += _core.gained_mass(last[0].core, *for_core, count, columns, threads)
                each.append(mass[:-1] / (mass[-1] or math.nan))
            gain[at, : at + 1] = np.mean(each, axis=0)
        return IndexSharing(tuple(layers), gain)

    def _each(self, passages: Any, make: Callable[[Index, Any], Made]) -> dict[Any, Made]:
        """Return what is made of each index and the passages that a user gives for it."""
        for name in self.heads:
            if not isinstance(passages, Mapping) or name not in passages:
                raise InputError(f"passages must be a mapping with those of {name!r}")
        own = {name: (head, passages[name]) for name, head in self.heads.items()}
        return of_each(own, "passages of", lambda x: make(*x))

    def _facts(self) -> dict[str, str]:
        each = {name: {"finds": head.quality, **head.others} for name, head in self.heads.items()}
        return {
            "heads": f"{len(self.heads)} indexes: {self.bytes:.3g} bytes per key",
            **{
                way: f"{x.share_mean:.4f} of the best keys' mass, in the worst head "
                f"{min(one.share_mean for one in x.heads.values() if one.rows):.4f}"
                + f" ({judged} of them judged)"
                * (judged < len(x.heads))
                for way, x in IndexQualities.by_way(each).items()
                if (judged := sum(one.rows > 0 for one in x.heads.values()))
            },
            "time": f"{self.seconds:.3g} s",
        }
