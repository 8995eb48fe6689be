"""How good indexes are: of one key head, of several, and of several sizes and formats of a key."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headfit._base.display import Figures, Pictured, Shown, plain_dict, text_table
from headfit._compress.maps import PARTS, by_eighths

FIGURES = ("share_mean", "share_05", "share_01", "share_worst", "gain", "recall", "heaviest", "kl")
COLUMNS = ("dtype", "dim", "keys", "way", "bytes", *FIGURES)
# The bits of a number that an index stores; with 8 and fewer a key has a scale of 16 bits, or where
# it has none, what the numbers of keys are in the root mean square when a fit starts.
DTYPES = {"float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8, "int4": 4,
          "float8_e4m3fn-unscaled": 8, "int8-unscaled": 8, "int4-unscaled": 4}  # fmt: skip
SPREADS = {"float8_e4m3fn-unscaled": 16.0, "int8-unscaled": 32.0, "int4-unscaled": 3.0}


def key_bytes(dim: int, dtype: str) -> float:
    """Return what is stored of a key, in bytes, its scale included."""
    bits = DTYPES[dtype]
    return bits * dim / 8 + (2 if bits <= 8 and dtype not in SPREADS else 0)


@dataclass(frozen=True, repr=False, eq=False)
class IndexQuality(Figures, Shown):
    """How much of the attention the keys that an index finds have, over all rows of some passages.

    Masses are shares of the mean attention of the query heads. Rows whose keys are all attended to
    are left out.

    Attributes
    ----------
    rows : int
    mass, exact_mass, kept_mass : float
        The mean mass of the keys found; of as many best keys; and of those that are kept anyway.
    share_mean, share_05, share_01, share_worst : float
        The mass found as a share of that of the best keys: mean, 5th and 1st percentile, least.
    gain : float
        The same of the mass beyond what is kept anyway, summed over rows.
    recall : float
        The mean share of the best keys that were found, those that are kept anyway left out.
    heaviest : float
        In how many rows the heaviest of these was found, as a share.
    kl : float
        The mean KL divergence of attention to the keys found from the whole, in nats: -log of the
        mass found, or with sinks of what all keys that are not found leave.
    share_by_position : ndarray, shape (8,)
        The mean share in each eighth of the longest passage; NaN without rows.
    """

    rows: int = 0
    mass: float = math.nan
    exact_mass: float = math.nan
    kept_mass: float = math.nan
    share_mean: float = math.nan
    share_05: float = math.nan
    share_01: float = math.nan
    share_worst: float = math.nan
    gain: float = math.nan
    recall: float = math.nan
    heaviest: float = math.nan
    kl: float = math.nan
    share_by_position: NDArray[np.float64] = field(default_factory=lambda: np.full(PARTS, np.nan))

    @classmethod
    def of(
        cls, judged: Sequence[tuple[NDArray[np.float64], ...]], lengths: Sequence[int], keys: int
    ) -> Self:
        """Summarise what the core measured of the rows of passages that have more free keys."""
        shapes = [(len(rows[0]), m) for rows, m in zip(judged, lengths, strict=True)]
        columns = [np.concatenate(column) for column in zip(*judged, strict=True)]
        chosen = (columns[1] > keys) & (columns[3] > 0)
        if not chosen.any():
            return cls()
        kept, _, found, exact, recall, heaviest, seen = (column[chosen] for column in columns)
        share, beyond = found / exact, (exact - kept).sum()
        low = np.quantile(share, (0.05, 0.01, 0)).tolist()
        with np.errstate(divide="ignore"):
            kl = -np.log(found + np.maximum(1 - seen, 0)).mean()
        figures = {
            "mass": found.mean(), "exact_mass": exact.mean(), "kept_mass": kept.mean(),
            "share_mean": share.mean(), "share_05": low[0], "share_01": low[1],
            "share_worst": low[2], "gain": (found - kept).sum() / beyond if beyond > 0 else 1,
            "recall": recall.mean(), "heaviest": heaviest.mean(), "kl": kl,
        }  # fmt: skip
        return cls(
            rows=share.size,
            **{name: float(value) for name, value in figures.items()},
            share_by_position=by_eighths(share, chosen, shapes),
        )

    @property
    def sentence(self) -> str:
        """The shares and the gain, in words."""
        if not self.rows:
            return "nothing: no row sees more keys than it may attend to"
        return (
            f"{self.share_mean:.4f} of the best keys' mass (5% {self.share_05:.3f}, 1% "
            f"{self.share_01:.3f}, worst {self.share_worst:.3f}), {self.gain:.3f} of what is not "
            "kept anyway"
        )

    def _facts(self) -> dict[str, str]:
        return {
            "finds": self.sentence,
            "mass": f"{self.mass:.4f}, of the best keys {self.exact_mass:.4f}",
            "the heaviest key": f"in {self.heaviest:.1%} of the rows",
        }


@dataclass(frozen=True, repr=False, eq=False)
class IndexQualities(IndexQuality):
    """The same of several key heads: means over those with rows, of all `rows` the `share_worst`.

    Attributes
    ----------
    heads : dict
        An `IndexQuality` for each key head, by its name.
    """

    heads: dict[Any, IndexQuality] = field(default_factory=dict)

    @classmethod
    def over(cls, heads: dict[Any, IndexQuality]) -> Self:
        """Return the quality of all key heads."""
        own = [one for one in heads.values() if one.rows] or [IndexQuality()]
        each = {f.name: [getattr(one, f.name) for one in own] for f in fields(IndexQuality)}
        figures: dict[str, Any] = {name: np.mean(x, axis=0) for name, x in each.items()}
        figures |= {"rows": sum(each["rows"]), "share_worst": min(each["share_worst"])}
        return cls(**figures, heads=heads)

    @classmethod
    def by_way(cls, each: Mapping[Any, Mapping[str, IndexQuality]]) -> dict[str, Self]:
        """Return for each way of finding keys what it finds in all key heads."""
        first, *others = each.values()
        ways = [way for way in first if all(way in own for own in others)]
        return {way: cls.over({name: own[way] for name, own in each.items()}) for way in ways}

    def __getitem__(self, name: Any) -> IndexQuality:
        return self.heads[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.heads)


@dataclass(frozen=True, repr=False, eq=False)
class IndexCurve(Pictured):
    """What indexes of several sizes and formats find, for several numbers of keys.

    Attributes
    ----------
    points : dict
        By size, dtype and number of keys: what was judged on the held-out passages, of the index
        ("finds") and of the closed forms with as many numbers ("kq-svd" and "loki"). Of one key
        head an `IndexQuality` each, of several `IndexQualities`.
    """

    points: Mapping[tuple[int, str, int], Mapping[str, IndexQuality]]

    @property
    def _rows(self) -> list[tuple[Any, ...]]:
        return [
            (dtype, dim, keys, way, key_bytes(dim, dtype), *(getattr(of, name) for name in FIGURES))
            for (dim, dtype, keys), ways in self.points.items()
            for way, of in ways.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return columns with an item for each point and way, for JSON or a DataFrame."""
        return plain_dict(dict(zip(COLUMNS, zip(*self._rows, strict=True), strict=True)))

    def __repr__(self) -> str:
        cells = [[x if isinstance(x, str) else f"{x:.4g}" for x in row] for row in self._rows]
        return text_table("what indexes and closed forms find", COLUMNS, cells)


@dataclass(frozen=True, repr=False, eq=False)
class IndexSharing(Figures):
    """What layers find with the keys that the indexes of earlier layers select.

    Attributes
    ----------
    layers : tuple
    gain : ndarray, shape (layers, layers)
        A row for each layer and a column for the one whose indexes select, itself on the diagonal:
        the mean gain of the key heads. NaN for later layers.
    """

    layers: tuple[Any, ...]
    gain: NDArray[np.float64]

    def __repr__(self) -> str:
        rows = [
            [f"{name}", f"{at}", *("" if np.isnan(x) else f"{x:.3f}" for x in self.gain[at])]
            for at, name in enumerate(self.layers)
        ]
        title = "gain with the keys that an earlier layer selects"
        return text_table(title, ["layer", "", *map(str, range(len(rows)))], rows)
