"""`spend`: of results of several sizes, that of each head or layer with which all lose least."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from headfit._base.arguments import as_number, shown
from headfit._shrink.result import ResultByName
from headfit.errors import InputError

Results = TypeVar("Results", bound=ResultByName[Any])


def spend(
    results: Sequence[Results], size: float, *, costs: Mapping[Any, float] | None = None
) -> Results:
    """Choose a size for each head or layer, so that together they lose least within a budget.

    Parameters
    ----------
    results : sequence of CompressedLayers, CompressedLayerValues, CompressedHeads or Indexes
        Of one call for each of several sizes, for the same heads or layers. Indexes may differ in
        dtype and form too, but not in passages, `keys`, `window`, `first`, `held_out` and `rng`.
    size : float
        What one may take, in the mean over all: bytes of a key or value for each head, as in
        `compress_keys`, dimensions of a head, as in `compress`, or bytes of a key in an index.
    costs : mapping of name to float, optional
        What a model loses where one head or layer alone is as in the first result, by any measure;
        below 0 counts as 0. When None, what is said below. That result should lose much.

    Returns
    -------
    CompressedLayers, CompressedLayerValues, CompressedHeads or Indexes
        What one of the results has for each name.

    Raises
    ------
    InputError
        For results that do not belong together, and a size below the least of them.

    Notes
    -----
    What is lost is the sum of KL divergences on the passages that chose the maps, or of squared
    errors of values on those that judge them, or of what the keys of indexes miss of the mass of
    the best keys there, scaled by `costs`. So errors and what indexes find are to be judged on
    passages that no call saw. From the least sizes the step is made next that lowers the sum most
    for each byte or dimension, as long as one fits; any of the results as it is that loses less is
    taken instead. O((names sizes)**2) time.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> rng = np.random.default_rng(0)
    >>> def passages(falls):
    ...     mix = rng.normal(size=(2, 8, 8)) * falls ** -np.arange(8) * 3
    ...     return [rng.normal(size=(30, 8)) @ mix for _ in range(8)]
    >>> heads = {"easy": passages(3.0), "hard": passages(1.2)}
    >>> found = hf.spend([hf.compress(heads, dim=dim) for dim in (1, 2, 4, 6)], 4)
    >>> found.total, found.dims["easy"] < found.dims["hard"]
    (8, True)
    """
    first, *_ = each = _checked(results)
    names, (size_of, loss_of, power) = list(getattr(first, first._field)), first._spent
    sizes, losses = (
        np.array([[getattr(of[name], figure) for of in each] for name in names], np.float64)
        for figure in (size_of, loss_of)
    )
    if not np.isfinite(losses).all():
        at = np.flatnonzero(~np.isfinite(losses).all(axis=1))[0]
        of = "passages that choose, for which it takes three passages and validation above 0"
        of = "held-out rows that see more than `keys` keys" if loss_of == "missed" else of
        raise InputError(f"results must have a finite {loss_of} of {shown(names[at])}, from {of}")
    losses = losses**power
    if costs is not None:
        if not isinstance(costs, Mapping) or set(costs) != set(names):
            wanted = "a mapping with the names of results"
            raise InputError(f"costs must be {wanted}; got {shown(costs)}")
        own = [as_number(costs[n], f"costs[{n!r}]", "be finite", math.isfinite) for n in names]
        whole = np.array(own).clip(0)
        for at in np.flatnonzero((whole > 0) & (losses[:, 0] < 1e-12))[:1]:
            raise InputError(f"costs[{names[at]!r}] must be 0, as is its loss; got {whole[at]:g}")
        losses *= whole[:, np.newaxis] / losses[:, :1].clip(1e-300)
    at, rows = np.lexsort((losses, sizes))[:, 0], np.arange(len(names))
    least = sizes.min(axis=1).mean()
    lies = f"be at least {least:.17g}, the mean of the least, and finite"
    size = as_number(size, "size", lies, lambda x: (1 - 1e-9) * least <= x < np.inf)
    most = (size + 1e-9 * least) * len(names)
    alone = [np.full_like(at, column) for column in np.flatnonzero(sizes.sum(axis=0) <= most)]
    while True:
        more, gain = sizes - sizes[rows, at, np.newaxis], losses[rows, at, np.newaxis] - losses
        fits = (gain > 0) & (more > 0) & (more <= most - sizes[rows, at].sum())
        if not fits.any():
            break
        by = np.divide(gain, more, out=np.full_like(gain, -1), where=fits)
        np.put(at, *np.unravel_index(by.argmax(), by.shape))
    at = min([at, *alone], key=lambda of: losses[rows, of].sum())
    found = {name: each[column][name] for name, column in zip(names, at, strict=True)}
    chosen: Results = replace(first, **{first._field: found}, seconds=sum(x.seconds for x in each))
    return chosen


def _checked(results: Any) -> list[Any]:
    """Return results as a list; raise an InputError unless they are of the same heads or layers."""
    each = list(results) if isinstance(results, Sequence) else []
    if len({type(one) for one in each}) != 1 or not getattr(each[0], "_spent", None):
        raise InputError(f"results must be of one kind that spend takes; got {shown(results)}")
    names = [set(getattr(one, one._field)) for one in each]
    for at, own in enumerate(names):
        if not own or own != names[0]:
            raise InputError(f"results[{at}] must have the names of results[0]; got {shown(own)}")
    for name in each[0] if each[0]._spent[1] == "missed" else ():
        best = [one[name].quality.exact_mass for one in each]  # the same, if of the same rows
        is_one = len({one[name].position for one in each}) == 1
        if not is_one or not np.allclose(best, best[0], 1e-6, equal_nan=True):
            what = "passages, keys, window, first, rotated, held_out and rng"
            raise InputError(f"results must be of the same {what}; those of {shown(name)} are not")
    return each
