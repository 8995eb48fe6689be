"""What all patterns share: the weights of their nonzeros, checks, and making of the matrix."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from headfit._base.arguments import as_choice, as_count, as_generator, as_number
from headfit._base.machine import require_memory
from headfit._base.sparse import csr_of
from headfit.patterns._types import MOST_TOKENS, Boundary, Floats, Ints, Pattern, Seed

Made = TypeVar("Made", bound=Callable[..., Pattern])

# What the docstring of a pattern says of these arguments, where it says nothing itself.
DESCRIBED = {
    "n": "n : int\n    The number of tokens.",
    "neighbors": "neighbors : int\n    The number of neighbours on each side, 0 or more.",
    "boundary": """boundary : {"clip", "wrap"}
    At the ends, leave out columns outside, or take them modulo `n`.""",
}
# What it says before its notes and examples.
SHARED = """weights, gamma, rng
    Equal weights, or random ones with ratios up to `gamma`; see the module.

Returns
-------
csr_array, shape (n, n)

Raises
------
InputError
    For an argument out of range, or a pattern that does not fit in memory.

"""


@dataclass(frozen=True)
class Style:
    """How the nonzeros of a pattern get their weights; `rng` also draws random supports."""

    weights: str
    gamma: float
    rng: np.random.Generator

    @classmethod
    def of(
        cls,
        weights: str | None = None,
        gamma: float = 1.0,
        rng: Seed = 0,
        allowed: Sequence[str] = ("uniform", "random"),
    ) -> Self:
        """Return the checked style of a pattern function's `weights`, `gamma` and `rng`."""
        ratio = as_number(gamma, "gamma", "lie in 1 ... 1e300", lambda g: 1 <= g <= 1e300)
        if weights is None:
            weights = "random" if ratio > 1 else "uniform"
        return cls(as_choice(weights, "weights", allowed), ratio, as_generator(rng))

    @property
    def log_cap(self) -> float:
        """The largest log-ratio of weights: slightly below log(gamma), to allow for rounding."""
        return max(0.0, math.log(self.gamma) - 2.0**-48 * (1.0 + math.log(self.gamma)))


def pattern(function: Made) -> Made:
    """Give a function with ``**style: Unpack[Weighting]`` what all patterns share.

    It checks `n` and `boundary` before the function runs, and gives the support that the function
    returns its weights. The function gets `rng` as a Generator. Its signature shows the
    arguments by name, and its docstring describes those that all share, the result and the errors.
    """
    own, shared = (inspect.signature(f).parameters.values() for f in (function, Style.of))
    named = [p for p in own if p.kind is not p.VAR_KEYWORD]
    added = [p.replace(kind=p.KEYWORD_ONLY) for p in shared if p.name != "allowed"]
    signature = inspect.Signature([*named, *added], return_annotation="Pattern")

    @functools.wraps(function)
    def made(*given: Any, **options: Any) -> Pattern:
        values = signature.bind(*given, **options).arguments
        if "n" in values:
            values["n"] = as_count(values["n"], "n", 1, MOST_TOKENS)
        as_choice(values.get("boundary", "clip"), "boundary", get_args(Boundary))
        style = Style.of(**{p.name: values.pop(p.name) for p in added if p.name in values})
        return weighted(function(**values, rng=style.rng), style)

    text, examples, rest = (inspect.getdoc(function) or "").partition("Examples\n")
    summary, _, listed = text.partition("Parameters\n----------\n")
    parts = [summary.rstrip() + "\n\nParameters\n----------", listed.rstrip(), SHARED]
    unsaid = [p.name for p in named if p.name in DESCRIBED and f"\n{p.name} :" not in f"\n{listed}"]
    for name in unsaid:
        parts.insert(1 if name == "n" else -1, DESCRIBED[name])
    made.__doc__ = "\n".join(part for part in parts if part) + examples + rest
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def check_entries(count: int, n: int) -> None:
    """Refuse a pattern if making its entries, with temporary arrays, would not fit in memory."""
    require_memory(32 * (count + n), f"a pattern of n = {n} tokens with up to {count} entries")


def from_rows(columns: Ints, full: int = 0) -> Pattern:
    """Return the support whose row ``full + i`` has the columns ``columns[i]``, in any order.

    Columns outside ``0 ... n - 1`` are left out and repeated ones merged; a row that would be
    empty attends to itself. The first `full` rows have all columns. `columns` is overwritten.
    """
    n = full + len(columns)
    columns[(columns < 0) | (columns >= n)] = n
    columns.sort(axis=1)
    alone = np.flatnonzero(columns[:, 0] == n)
    columns[alone, 0] = full + alone
    kept = columns < n
    kept[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    counts = np.concatenate([np.full(full, n), np.count_nonzero(kept, axis=1)])
    whole = np.tile(np.arange(n, dtype=columns.dtype), full)
    listed = np.concatenate([whole, columns[kept]]) if full else columns[kept]
    return csr(listed, listed, row_starts(counts))


def from_edges(rows: Ints, columns: Ints, n: int) -> Pattern:
    """Return the support with a nonzero at each row and column, in any order; repeated ones merge.

    A row that would be empty attends to itself.
    """
    alone = np.flatnonzero(np.bincount(rows, minlength=n) == 0)
    places = [np.concatenate([x, alone]).astype(np.int32) for x in (rows, columns)]
    ones = np.ones(len(places[0]), dtype=np.bool_)
    return sparse.coo_array((ones, tuple(places)), shape=(n, n)).tocsr()


def token_numbers(n: int) -> Ints:
    """Return 0 ... n - 1, in int32 where the sum of two of them fits."""
    return np.arange(n, dtype=np.int32 if 2 * n <= MOST_TOKENS else np.int64)


def weighted(support: Any, style: Style, log_weights: Floats | None = None) -> Pattern:
    """Return the pattern with these nonzeros, a canonical csr_array, and rows of sum 1.

    The weights are those of `style`, unless their logarithms are given.
    """
    starts, counts = support.indptr[:-1], np.diff(support.indptr)
    if log_weights is None and style.weights == "random":
        log_weights = style.rng.uniform(0.0, style.log_cap, support.nnz)
    if log_weights is None:
        values = np.repeat(1.0 / counts, counts)
    else:
        values = np.exp(log_weights, out=log_weights)
        values /= np.repeat(np.add.reduceat(values, starts), counts)
    return csr(values, support.indices, support.indptr)


def csr(values: NDArray[Any], columns: Ints, starts: Ints) -> Pattern:
    """Return a canonical matrix; row ``i`` has the columns ``columns[starts[i]:starts[i + 1]]``."""
    matrix: Pattern = csr_of(values, columns, starts, (len(starts) - 1,) * 2)
    matrix.has_canonical_format = True
    return matrix


def row_starts(counts: Ints) -> Ints:
    """Return the offsets of rows with these numbers of entries, as in CSR format."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
