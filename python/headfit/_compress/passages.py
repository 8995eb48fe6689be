"""The passages of a head: what users pass, checked once, and how they are divided."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.logits import LogitOptions
from headfit._base.arguments import as_count, as_generator, as_number, check_between, shown
from headfit._base.arrays import as_array, as_stored_array, check_finite, is_sparse
from headfit._base.positions import Positions, Rotary, as_positions, as_rotary, turn
from headfit.errors import InputError, input_errors

FORMS = "pairs (Q, K) or Attentions, such as passages() of a capture gives"

MOVES = 4  # of each passage to other positions, where maps act after rotary ones
PIECES = 8  # of one long passage

Made = TypeVar("Made")


def of_each(
    passages: Any, what: str, make: Callable[[Any], Made], named: Callable[[Any], str] = shown
) -> dict[Any, Made]:
    """Return what is made of the passages of each head of a mapping, by its name; errors have it.

    Passages of one head, not of a layer, are those of None.
    """
    several, layers = isinstance(passages, Mapping), what == "layer"
    if not (several or layers):
        return {None: make(passages)}
    if not several or not passages:
        what = "layers" if layers else "passages"
        raise InputError(f"{what} must be a mapping, not empty; got {shown(passages)}")
    made: dict[Any, Made] = {}
    for name, own in passages.items():
        with input_errors(f"{what} {named(name)}", InputError):
            made[name] = make(own)
    return made


@dataclass(frozen=True)
class Parts:
    """Which passages maps are fitted to, chosen by, and judged on; numbers in rising order.

    `validation` is empty if there are too few passages: then the fitted ones decide.
    """

    calibration: NDArray[np.intp]
    validation: NDArray[np.intp]
    held_out: NDArray[np.intp]

    @classmethod
    def of(cls, count: int, held_out: float, validation: float, rng: np.random.Generator) -> Self:
        """Divide passages at random. Every part that is asked for has at least one.

        But of two none validates, and a single one is fitted.
        """
        order = rng.permutation(count)
        if count == 1:
            return cls(order, order[1:], order[1:])
        rest = count - int(np.clip(round(held_out * count), 1, count - 1))
        middle = min(max(round(validation * rest), int(validation > 0)), rest - 1)
        return cls(*(np.sort(part) for part in np.split(order, [rest - middle, rest])))

    @property
    def choosing(self) -> NDArray[np.intp]:
        """Those that choose: of validation, or the fitted ones where there are none."""
        return self.validation if self.validation.size else self.calibration

    @property
    def judging(self) -> NDArray[np.intp]:
        """Those that judge: held out, or the only one."""
        return self.held_out if self.held_out.size else self.calibration


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class FromPassages:
    """What results say of the `Parts` that they come from, and of the time that they took."""

    calibration: NDArray[np.intp]
    validation: NDArray[np.intp]
    held_out: NDArray[np.intp]
    seconds: float


@dataclass(frozen=True)
class Passages:
    """One head in some passages, all computed in one dtype, with rotary positions applied.

    Queries have shape (n, D), or (heads, n, D) if several query heads share the keys, which have
    shape (m, D), or keys with the leading axis heads as well. A passage with rotary positions may
    stand at several, one after the other: its logits are the same there, up to rounding, but not
    those of its mapped queries and keys.
    """

    attentions: tuple[Attention, ...]
    rotary: Rotary | None
    length: int  # of the longest passage for which maps are meant
    moves: int  # how many attentions are one passage
    parts: Parts

    @classmethod
    def of(
        cls, given: list[Attention], rotated: Any, length: Any, shares: tuple[float, float],
        seed: int,
    ) -> Self:  # fmt: skip
        """Check passages, and move each to random positions up to the length."""
        heads = [with_shared_keys(attention, i) for i, attention in enumerate(given)]
        heads = cut(heads[0]) if len(heads) == 1 else heads
        if len(heads) < 2:
            raise InputError(
                "passages must be at least 2, since some are held out to judge the result, or one "
                f'of at least {PIECES} rows with no mask but "causal" and no bias; got {len(given)}'
            )
        check_same_head(heads)
        dtype, rotary = np.result_type(*(a.dtype for a in heads)), common_rotary(given, rotated)
        length = checked_length(length, heads, rotary)
        parts = Parts.of(len(heads), *shares, as_generator(seed))
        whole = tuple(as_dtype(attention.rotated(), dtype) for attention in heads)
        return cls(whole, rotary, length, 1, parts).moved(seed)

    def moved(self, seed: int) -> Self:
        """Return the same with each passage at random positions up to the length."""
        given, length = self.attentions, self.length
        moves = MOVES if self.rotary and length > min(a.m for a in given) else 1
        places = (np.arange(moves) + as_generator(seed).random((len(given), moves))) / moves
        moved = (
            moved_by(int(place * (length - attention.m + 1)), attention, self.rotary)
            for attention, own in zip(given, places, strict=True)
            for place in own
        )
        return replace(self, attentions=tuple(moved), moves=moves)

    @property
    def dim(self) -> int:
        """The head size D."""
        return self.attentions[0].dim

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return math.prod(self.attentions[0].lead)

    @property
    def key_heads(self) -> int:
        """The number of key heads: 1 for a key head alone."""
        return math.prod(self.attentions[0].stored[1].shape[:-2])

    def part(self, places: NDArray[np.intp]) -> list[Attention]:
        """Return some of the passages, wherever they stand."""
        return [self.attentions[i * self.moves + j] for i in places for j in range(self.moves)]

    @classmethod
    def divided(
        cls, given: Sequence[Attention], rotated: Any, length: Any, shares: tuple[float, float],
        seed: int,
    ) -> Self:  # fmt: skip
        """Check passages; `rotated` are positions that have been applied already."""
        check_same_head(given)
        keys, rotary = {a.stored[1].shape[:-2] for a in given}, common_rotary(given, rotated)
        if len(keys) > 1:
            raise InputError(
                f"passages must be of one layer, with as many key heads; got {sorted(keys)}"
            )
        passages = tuple(rotated_float32(attention, i) for i, attention in enumerate(given))
        parts = Parts.of(len(given), *shares, as_generator(seed))
        return cls(passages, rotary, checked_length(length, given, rotary), 1, parts)

    @property
    def position(self) -> tuple[str, tuple[float, ...]] | None:
        """The rotary positions, as an argument."""
        return None if self.rotary is None else self.rotary.position

    def turns(self, count: int) -> Positions:
        """Return by which angles positions below a number are turned."""
        return as_positions(self.position, (), (0, count), self.dim, np.float32)

    @property
    def fitted(self) -> list[Any]:
        """The passages that are fitted, and after them those that choose, for the core."""
        return [a.core for a in self.part(np.append(self.parts.calibration, self.parts.validation))]


def given_alone(passages: Any) -> list[Attention]:
    """Return passages that users give without options as attentions; at least one."""
    given = attentions_of(passages, None, LogitOptions())
    if not given:
        raise InputError("passages must be one at least; got none")
    return given


def attentions_of(passages: Any, K: Any, options: LogitOptions) -> list[Attention]:
    """Return passages as users give them as attentions."""
    if K is not None:
        q, k = as_stored_array(passages, "passages", ndim=3), as_stored_array(K, "K", ndim=3)
        if q.ndim > 4 or len(k) != len(q):
            raise InputError(
                "passages and K must be arrays of as many passages, of shapes (passages, n, D), or "
                f"(passages, heads, n, D), and (passages, m, D); got {q.shape} and {k.shape}"
            )
        passages = list(zip(q, k, strict=True))
    is_sequence = isinstance(passages, Sequence) and not isinstance(passages, (Attention, str))
    if is_sequence and len(passages) == 2 and all(isinstance(x, np.ndarray) for x in passages):
        raise InputError(
            "passages must not be two arrays, which may be Q and K of one passage or two passages: "
            "give [(Q, K)], or [tuple(passage), ...]"
        )
    if not is_sequence:
        raise InputError(f"passages must be {FORMS}; got {shown(passages)}")
    attentions = []
    for i, passage in enumerate(passages):
        is_pair = (
            isinstance(passage, (tuple, list, np.ndarray))
            and len(passage) == 2
            and not isinstance(passage[0], tuple)  # a pair beside its values
        )
        if not is_pair and attention_in(passage) is None:
            raise InputError(f"passages must be {FORMS}; passage {i} is {shown(passage)}")
        pair = passage if is_pair else (passage, None)
        with input_errors(f"passage {i}", InputError):
            attentions.append(Attention.of(*pair, **_of_passage(options, i, len(passages))))
    return attentions


def _of_passage(options: LogitOptions, place: int, count: int) -> dict[str, Any]:
    """Return the options of one passage: arrays with an axis of passages are divided."""
    own = dict(vars(options))
    for name, ndim in {"mask": 3, "bias": 3, "key_lengths": 1, "key_mask": 2}.items():
        if own[name] is None or isinstance(own[name], (str, tuple)) or is_sparse(own[name]):
            continue
        array = as_array(own[name], "mask, bias, key_lengths and key_mask")
        if array.ndim >= ndim and array.shape[0] == count:
            own[name] = array[place]
    return own


def with_shared_keys(attention: Attention, place: int, of_layer: bool = False) -> Attention:
    """Return an attention whose keys are one matrix, checked to be finite, or of a layer."""
    q, k = attention.stored
    if q.ndim > 3 or k.ndim > 3 or (k.ndim == 3 and k.shape[0] != 1 and not of_layer):
        of, more = ("layer", "(key heads, m, D)") if of_layer else ("key head", "(m, D)")
        raise InputError(
            f"passages must be of one {of}, with Q of shape (n, D) or (heads, n, D) and K of shape "
            f"{more}; got {q.shape} and {k.shape} in passage {place}"
        )
    if 0 in (*q.shape, *k.shape):
        raise InputError(
            f"passages must not be empty; got Q and K of shapes {q.shape} and {k.shape} in "
            f"passage {place}"
        )
    for name, x in () if of_layer else (("Q", q), ("K", k)):
        check_finite(x, f"{name} of passage {place}")
    return Attention(q, k[0], **vars(attention.options)) if k.shape[:-2] == (1,) else attention


def cut(passage: Attention) -> list[Attention]:
    """Return some rows of a passage, with the keys up to them if it is causal, and then the next.

    Nothing where it is too short, or has masks of other kinds, or a bias.
    """
    whole, n, m = passage.rotated(), passage.n, passage.m
    is_causal = isinstance(whole.mask, str)
    others = [whole.bias, whole.key_lengths, whole.key_mask]
    others += [] if is_causal else [whole.mask, whole.position]
    if n < PIECES or (is_causal and n > m) or any(x is not None for x in others):
        return []
    edges = np.linspace(0, n, PIECES + 1).astype(int)
    last = edges[1:] + (m - n) if is_causal else np.full(PIECES, m)
    return [
        Attention(whole.Q[..., a:b, :], whole.K[:keys], **vars(whole.options))
        for a, b, keys in zip(edges, edges[1:], last, strict=False)
    ]


def common_rotary(passages: Sequence[Attention], rotated: Any) -> Rotary | None:
    """Return the rotary positions of passages; `rotated` are such as have been applied already."""
    own = {r.position if r else None for r in (as_rotary(a.position, a.dim) for a in passages)}
    if len(own) > 1:
        raise InputError(f"passages must have the same rotary positions; got {shown(list(own))}")
    (position,) = own
    if rotated is not None and position is not None:
        raise InputError("rotated must not be given beside passages with rotary positions")
    with input_errors("rotated, which turns whole heads", InputError):
        rotary = as_rotary(position if rotated is None else rotated, passages[0].dim)
    if rotated is not None and rotary is None:
        raise InputError(f"rotated must be a rotary position; got {shown(rotated)}")
    return rotary


def checked_length(length: Any, passages: Sequence[Attention], rotary: Rotary | None) -> int:
    """Return up to how many tokens passages are moved: twice their longest if nobody says."""
    longest = max(a.m for a in passages)
    if length is None:
        return longest if rotary is None else 2 * longest
    if rotary is None:
        raise InputError("length must go with rotary positions, which are moved up to it")
    return as_count(length, "length", longest)


def moved_by(count: int, attention: Attention, rotary: Rotary | None) -> Attention:
    """Return rotated queries and keys as they are a number of tokens further on."""
    if rotary is None or count == 0:
        return attention
    angles, turned = count * rotary.frequencies, []
    for name, x in (("Q", attention.Q), ("K", attention.K)):
        with np.errstate(over="ignore", invalid="ignore"):
            turn(x, np.cos(angles), np.sin(angles), rotary.halves, out := np.empty_like(x))
        check_finite(out, f"{name}, turned to positions up to the length,")
        turned.append(out)
    return Attention(*turned, **vars(attention.options))


def check_same_head(passages: Sequence[Attention]) -> None:
    """Raise an InputError unless passages have the same head size, heads, scale and so on."""
    first: dict[str, Any] = {}
    for i, attention in enumerate(passages):
        # No sink is one of -inf for each query head.
        sinks = np.asarray(-np.inf if attention.sinks is None else attention.sinks, np.float64)
        own = {
            "head size": attention.dim,
            "query heads": attention.lead,
            "scale": attention.scale,
            "softcap": attention.softcap,
            "sinks": np.broadcast_to(sinks, attention.lead).tolist(),
        }
        first = first or own
        for name, value in own.items():
            if value != first[name]:
                raise InputError(
                    f"passages must be of one head; passage {i} has {name} {value}, "
                    f"passage 0 has {first[name]}"
                )


def as_dtype(attention: Attention, dtype: Any) -> Attention:
    """Return an attention whose queries and keys are stored in the dtype to compute in."""
    if all(x.dtype == dtype for x in attention.stored):
        return attention
    q, k = (x.astype(dtype, copy=False) for x in (attention.Q, attention.K))
    return Attention(q, k, **vars(attention.options))


def checked_shares(held_out: Any, validation: Any) -> tuple[float, float]:
    """Return the shares of passages that judge, and of the others that choose."""
    validation = as_number(validation, "validation", "lie in [0, 1)", lambda share: 0 <= share < 1)
    return check_between(held_out, "held_out", 0, 1), validation


def rotated_float32(attention: Attention, place: int) -> Attention:
    """Return a passage in float32, with positions applied; refuse what is too large for it."""
    with_shared_keys(attention, place, of_layer=True)
    with np.errstate(over="ignore"):
        rotated = as_dtype(attention.rotated(), np.float32)
    for name, x in zip(("Q", "K"), rotated.stored, strict=True):
        check_finite(x, f"{name} of passage {place}, in float32,")
    return rotated
