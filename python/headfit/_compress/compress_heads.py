"""Compressing all heads of a model, with one budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headfit._attention.logits import LogitOptions
from headfit._base.arguments import shown
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_array, as_count, check_between
from headfit._base.frames import data_frame
from headfit._base.plain import plain_dict
from headfit._base.shown import Shown
from headfit._base.types import ArrayLike, MaskLike, PositionLike, Seed
from headfit._compress.arguments import Request
from headfit._compress.budget import TradeOff, shared_out
from headfit._compress.finish import compressed
from headfit._compress.passages import Passages
from headfit._compress.result import Compressed
from headfit._compress.sizes import MapsOfSize
from headfit.errors import InputError

__all__ = ["CompressedHeads", "compress_heads"]


@dataclass(frozen=True, repr=False, eq=False)
class CompressedHeads(Shown):
    """Smaller heads for every input, for all heads of a model.

    Attributes
    ----------
    heads : dict
        A `Compressed` for each head, by the names that were given; 0, 1, ... for a sequence.
    trade_off : TradeOff or None
        Closeness against the number of dimensions, where several sizes of every head were fitted.
    seconds : float
        Of the whole call. Those of a head are what its own fits and its distances took.
    """

    heads: dict[Any, Compressed]
    trade_off: TradeOff | None
    seconds: float

    def __getitem__(self, name: Hashable) -> Compressed:
        return self.heads[name]

    @property
    def dims(self) -> dict[Any, int]:
        """The size of each head."""
        return {name: head.dim for name, head in self.heads.items()}

    @property
    def total(self) -> int:
        """The number of dimensions of all heads: what a token takes in the cache of keys."""
        return sum(self.dims.values())

    @property
    def tv_mean(self) -> float:
        """The mean over heads of their mean total variation on held-out passages."""
        return float(np.mean([head.tv_mean for head in self.heads.values()]))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of all heads as plain Python values, for JSON; without their maps."""
        heads = {name: head.to_dict() for name, head in self.heads.items()}
        names = ("trade_off", "seconds", "total", "tv_mean")
        return plain_dict({"heads": heads, **{name: getattr(self, name) for name in names}})

    def to_pandas(self) -> Any:
        """Return the figures of the heads as a pandas DataFrame with one row per head.

        Columns are attributes of `Compressed`: its sizes, distances, and how the search ended.

        Raises
        ------
        ImportError
            Without pandas.
        """
        names = ("dim", "original_dim", "tv_mean", "tv_95", "tv_worst", "kl", "taken", "reached",
                 "stopped", "seconds")  # fmt: skip
        rows = self.heads.values()
        columns = {"head": [str(name) if isinstance(name, tuple) else name for name in self.heads]}
        columns |= {name: [getattr(head, name) for head in rows] for name in names}
        return data_frame(columns, "").set_index("head")

    def _facts(self) -> dict[str, str]:
        before = sum(head.original_dim for head in self.heads.values())
        worst = max(head.tv_mean for head in self.heads.values())
        return {
            "heads": f"{len(self.heads)} heads: {before} -> {self.total} dimensions",
            "on held-out passages": f"total variation mean {self.tv_mean:.3g}, of the worst head "
            f"{worst:.3g}",
            "time": f"{self.seconds:.3g} s",
        }

    def __repr__(self) -> str:
        f = self._facts()
        held_out = f["on held-out passages"]
        return f"CompressedHeads({f['heads']}; on held-out passages {held_out}; {f['time']})"


@standard_arithmetic()
def compress_heads(
    heads: Mapping[Any, Any] | Sequence[Any],
    *,
    dim: int | None = None,
    tv: float | None = None,
    total: int | None = None,
    dims: Sequence[int] | None = None,
    held_out: float = 0.25,
    validation: float = 0.25,
    scale: float | None = None,
    mask: MaskLike = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    position: PositionLike = None,
    key_mask: ArrayLike | None = None,
    dtype: str = "float32",
    effort: str | int = "medium",
    time_limit: float | None = None,
    callback: Callable[[int, float], Any] | None = None,
    rng: Seed = 0,
    num_threads: int | None = None,
) -> CompressedHeads:
    """Make all heads of a model smaller for every input, with one budget.

    Parameters
    ----------
    heads : mapping or sequence
        For each head its passages, as `compress` takes them: a sequence of pairs (Q, K) or of
        `Attention`. Query heads that share their keys are one entry.
    dim : int, optional
        One size for all heads.
    tv : float in (0, 1), optional
        The mean total variation on the validation passages that every head may have.
    total : int, optional
        The number of dimensions of all heads together. Heads get them where they lower total
        variation most. Exactly one of `dim`, `tv` and `total` must be given.
    dims : sequence of int, optional
        For `total`, the sizes that heads may have: multiples of an eighth of D when None.
    held_out, validation, dtype, effort, rng, num_threads
        As in `compress`. All heads with as many passages hold out the same ones.
    scale, mask, bias, softcap, position, key_mask : optional
        As in `compress`, for all heads. An `Attention` has its own, and may have sinks.
    time_limit : float, optional
        Seconds, for all heads together.
    callback : callable, optional
        As in `compress`, for the descents of all heads.

    Returns
    -------
    CompressedHeads

    Raises
    ------
    InputError, NonFiniteError
        For arguments that do not fit, a `total` of fewer dimensions than the heads must have,
        or an error of one head, which it names.

    See Also
    --------
    compress : one head.

    Notes
    -----
    Heads are fitted one after the other, each by all threads. With `total`, every head is fitted
    at all of `dims`, and dimensions are given out greedily over the convex hulls of the curves.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> def passages(falls):
    ...     mix = rng.normal(size=(2, 8, 8)) * falls ** -np.arange(8) * 3
    ...     return [rng.normal(size=(30, 8)) @ mix for _ in range(8)]
    >>> found = hf.compress_heads({"easy": passages(3.0), "hard": passages(1.2)}, total=8)
    >>> found.total, found.dims["easy"] < found.dims["hard"]
    (8, True)
    """
    begun = time.perf_counter()
    if sum(x is not None for x in (dim, tv, total)) != 1:
        raise InputError("exactly one of dim, tv and total must be given")
    if dims is not None and total is None:
        raise InputError("dims must be given beside total only")
    request = Request.of(
        LogitOptions(scale, mask, None, bias, softcap, position, key_mask),
        held_out=held_out,
        validation=validation,
        commute=False,
        dtype=dtype,
        effort=effort,
        time_limit=time_limit,
        callback=callback,
        rng=rng,
        num_threads=num_threads,
    )
    if tv is not None:
        tv = check_between(tv, "tv", 0, 1)
    named = _checked(heads, request.options)
    asked = {name: _sizes(dim, total, dims, p.dim) for name, p in named.items()}
    if total is not None:
        least = sum(min(sizes) for sizes in asked.values())
        total = as_count(total, "total", least)
    found: dict[Any, dict[int, MapsOfSize]] = {}
    chosen: dict[Any, int] = {}
    stopped: dict[Any, str] = dict.fromkeys(named, "one size" if total is None else "the budget")
    spent: dict[Any, float] = {}
    for name, passages in named.items():
        start = time.perf_counter()
        sizes = request.sizes(passages, request.parts(passages))
        if tv is not None:
            chosen[name], stopped[name] = sizes.smallest(tv)
            sizes.fit(chosen[name])
        for size in asked[name]:
            if not sizes.found or sizes.seconds_left > 0:
                sizes.fit(size)
                chosen.setdefault(name, size)
        found[name] = sizes.found
        spent[name] = time.perf_counter() - start
    trade_off = None
    if total is not None:
        curves = {
            name: {d: size.judged.tv_mean for d, size in head.items()}
            for name, head in found.items()
        }
        chosen, trade_off = shared_out(curves, total)
    return CompressedHeads(
        {
            name: compressed(
                passages,
                request.parts(passages),
                {chosen[name]: found[name][chosen[name]]},
                chosen[name],
                request,
                asked=tv,
                stopped=stopped[name],
                begun=time.perf_counter() - spent[name],
            )
            for name, passages in named.items()
        },
        trade_off,
        time.perf_counter() - begun,
    )


def _checked(heads: Any, options: LogitOptions) -> dict[Any, Passages]:
    """Return the passages of each head, checked; errors name the head."""
    if not isinstance(heads, Mapping):
        if isinstance(heads, str) or not isinstance(heads, Sequence):
            raise InputError(
                f"heads must be a mapping or a sequence of passages; got {shown(heads)}"
            )
        heads = dict(enumerate(heads))
    if not heads:
        raise InputError("heads must not be empty")
    named = {}
    for name, passages in heads.items():
        try:
            named[name] = Passages.of(passages, None, options)
        except InputError as error:
            raise type(error)(f"head {name}: {error}") from error
    return named


def _sizes(dim: Any, total: Any, dims: Any, largest: int) -> list[int]:
    """Return the sizes at which a head is fitted, rising."""
    if dim is not None:
        return [as_count(dim, "dim", 1, largest)]
    if total is None:
        return []
    if dims is None:
        return sorted({max(1, round(largest * part / 8)) for part in range(1, 9)})
    given = np.atleast_1d(as_array(dims, "dims")).tolist()
    if not given:
        raise InputError("dims must not be empty")
    return sorted({as_count(d, "dims", 1, largest) for d in given})
