"""What an index stores, scores and finds, and how that is judged, against explicit NumPy."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import headfit as hf
from headfit import _core
from headfit.errors import InputError, NonFiniteError

D, DIM, N, M = 6, 3, 30, 37
KEYS, WINDOW, FIRST = 12, 4, 2
FREE = KEYS - WINDOW - FIRST
FORMS = ["sum", "dot"]
LARGEST = {"float8_e4m3fn": 448, "int8": 127, "int4": 7}
UNSCALED = "-unscaled"
DTYPES = ["float32", "float16", "bfloat16", *LARGEST, *(f"{x}{UNSCALED}" for x in LARGEST)]
RNG = np.random.default_rng

OPEN = RNG(1).random((N, M)) < 0.7
OPEN[11] = False
PADDED = np.arange(M) >= 5
ROW, COLUMN = np.indices((N, M))
AT = ROW + M - N  # the position of a query
MASKS: dict[str, tuple[dict[str, Any], Any]] = {
    "none": ({}, COLUMN >= 0),
    "causal": ({"mask": "causal"}, COLUMN <= AT),
    "window": ({"mask": ("window", (19, 2))}, (COLUMN >= AT - 19) & (COLUMN <= AT + 2)),
    "dense": ({"mask": OPEN}, OPEN),
    "sparse": ({"mask": sp.csr_array(OPEN & (COLUMN <= AT))}, OPEN & (COLUMN <= AT)),
    "padding": ({"mask": "causal", "key_mask": PADDED}, (COLUMN <= AT) & PADDED),
    "lengths": ({"key_lengths": 31}, COLUMN < 31),
}


@lru_cache
def fitted(heads: int) -> Any:
    drawn = RNG(0).normal(size=(2, heads + 1, 40, D))
    pairs = [(x[:-1], x[-1]) for x in drawn]
    return hf.index(pairs, dim=DIM, keys=KEYS, window=WINDOW, first=FIRST, effort=0)


def index(heads: int | None, form: str = "sum", dtype: str = "float32") -> Any:
    """An index with maps of few bits, so that products of small whole numbers are exact."""
    maps = RNG(2).integers(-8, 9, size=((heads or 1) + 1, D, DIM)).astype(np.float32) / 16
    return replace(fitted(heads or 1), P_q=maps[:-1], P_k=maps[-1], form=form, dtype=dtype)


def passage(heads: int | None, seed: int = 3, n: int = N, m: int = M) -> Any:
    """Queries and keys of whole numbers, some keys twice."""
    q = RNG(seed).integers(-3, 4, size=(heads or 1, n, D)).astype(float)
    k = RNG(seed + 1).integers(-3, 4, size=(m, D)).astype(float)
    k[m // 2 : m // 2 + 6] = k[3:9]
    return (q[0] if heads is None else q), k


def rounded(x: Any, dtype: str) -> tuple[Any, Any]:
    """The numbers that a dtype stores of rows, and their scales."""
    x, ones = np.asarray(x, np.float32), np.ones(len(x), np.float32)
    has_scale, dtype = not dtype.endswith(UNSCALED), dtype.removesuffix(UNSCALED)
    if dtype not in LARGEST:
        x = np.clip(x, -65504, 65504) if dtype == "float16" else x
        return x.astype(dtype).astype(np.float32), ones
    most = np.float32(LARGEST[dtype])
    scales = np.maximum(abs(x).max(axis=1) / most, np.finfo(np.float32).tiny)
    scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32) if has_scale else ones
    x = np.clip(x / scales[:, None], -most, most)
    return (np.rint(x) if "int" in dtype else x.astype(dtype).astype(np.float32)), scales


def stored(x: Any, dtype: str) -> Any:
    numbers, scales = rounded(x, dtype)
    return numbers.astype(float) * scales[:, None]


def stored_query(x: Any, dtype: str) -> Any:
    """What a query is rounded to, which always has a scale where its dtype has any."""
    return stored(x, dtype.removesuffix(UNSCALED))


def softmax(s: Any, sinks: Any = -np.inf) -> Any:
    """Of rows, which are zero where all is masked; small numbers."""
    e = np.exp(s)
    whole = e.sum(axis=-1, keepdims=True) + np.exp(np.asarray(sinks)[..., None, None])
    return np.divide(e, whole, out=np.zeros_like(e), where=whole > 0)


def scored(found: Any, q: Any, k: Any, allowed: Any) -> Any:
    """The scores by their definition, in float64."""
    keys, heads = stored(k @ found.P_k, found.dtype), q.reshape(-1, *q.shape[-2:])
    mapped = [x @ p for x, p in zip(heads, found.P_q, strict=True)]
    if found.form == "dot":
        return np.where(allowed, stored_query(sum(mapped), found.dtype) @ keys.T, -np.inf)
    products = np.stack([stored_query(x, found.dtype) @ keys.T for x in mapped])
    with np.errstate(divide="ignore"):
        return np.log(softmax(np.where(allowed, products, -np.inf)).sum(axis=0))


def parts(row: int, allowed: Any) -> tuple[Any, Any]:
    """The columns of a row that are kept anyway, and the others that it sees."""
    seen, position = np.flatnonzero(allowed[row]), row + allowed.shape[1] - len(allowed)
    kept = (seen > position - WINDOW) & (seen <= position)
    kept[:FIRST] = True
    return seen[kept], seen[~kept]


def best(columns: Any, values: Any, count: int) -> Any:
    """The columns with the largest values, the lower of equal ones."""
    return columns[np.argsort(-values[columns], kind="stable")][:count]


def selected(scores: Any, allowed: Any, keys: int = KEYS) -> Any:
    out = np.full((len(allowed), keys), -1)
    for i in range(len(allowed)):
        kept, free = parts(i, allowed)
        chosen = np.sort([*kept, *best(free, scores[i], keys - WINDOW - FIRST)])
        out[i, : len(chosen)] = chosen
    return out


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_scores_and_keys_are_their_definitions(form: str, dtype: str, name: str) -> None:
    options, allowed = MASKS[name]
    for heads, threads in ((None, 1), (None, 2), (1, 1), (3, 1), (3, 2)):
        found, (q, k) = index(heads, form, dtype), passage(heads)
        scores = found.scores(q, k, num_threads=threads, **options)
        assert scores.dtype == np.float32
        expected = scored(found, q, k, allowed)
        np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=2e-5)
        assert (np.isfinite(scores) == allowed).all()
        columns = found.select(q, k, num_threads=threads, **options)
        np.testing.assert_array_equal(columns, selected(scores, allowed))
        fewer = found.select(hf.Attention(q, k, **options), keys=WINDOW + FIRST + 1)
        np.testing.assert_array_equal(fewer, selected(scores, allowed, WINDOW + FIRST + 1))


def test_equal_scores_go_to_lower_columns() -> None:
    found, (q, k) = index(3), passage(3)
    k = np.tile(k[:4], (10, 1))[:M]
    scores = found.scores(q, k)
    np.testing.assert_array_equal(scores[:, :20], scores[:, 4:24])
    columns = found.select(q, k)
    np.testing.assert_array_equal(columns, selected(scores, np.ones((N, M), bool)))
    still = found.select(0 * q, k)  # all scores are equal
    assert (still[:, : FIRST + FREE] == np.arange(FIRST + FREE)).sum() > 0.8 * N * (FIRST + FREE)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("heads", [None, 3])
def test_apply_is_attention_to_the_keys_found(heads: int | None, name: str) -> None:
    options, allowed = MASKS[name]
    found, (q, k) = replace(index(heads), scale=None), passage(heads)
    more = {"scale": 0.3, "softcap": 4.0, "sinks": 0.5 if heads is None else [0.5, -1.0, 0.0]}
    small = found.apply(q, k, num_threads=2, **options, **more)
    chosen = np.zeros((N, M + 1), bool)
    np.put_along_axis(chosen, selected(found.scores(q, k, **options), allowed), True, axis=1)
    s = 4 * np.tanh(0.3 / 4 * (q @ k.T))
    expected = softmax(np.where(chosen[:, :M], s, -np.inf), more["sinks"])
    np.testing.assert_allclose(small.matrix(), expected, atol=1e-5)
    every = found.apply(q, k, keys=M + WINDOW + FIRST, **options, **more)
    whole = hf.Attention(q, k, **options, **more)
    np.testing.assert_allclose(every.matrix(), whole.matrix(), atol=1e-5)


def quality(found: Any, given: Any, keys: int = KEYS) -> dict[str, Any]:
    """All fields of an `IndexQuality` of passages (Q, K, options, allowed)."""
    rows, free = [], keys - WINDOW - FIRST
    for q, k, options, allowed in given:
        scores = found.scores(q, k, **options)
        scale = options.get("scale", D**-0.5)
        s = np.where(allowed, q @ k.T * scale, -np.inf).reshape(-1, *allowed.shape)
        p = softmax(s, options.get("sinks", -np.inf)).mean(axis=0)
        for i in range(len(allowed)):
            kept, others = parts(i, allowed)
            if len(others) <= free:
                continue
            mine, exact = best(others, scores[i], free), best(others, p[i], free)
            rows.append([
                max(0, i + allowed.shape[1] - len(allowed)), p[i, kept].sum(),
                p[i, [*kept, *mine]].sum(), p[i, [*kept, *exact]].sum(),
                np.isin(exact, mine).mean(), exact[0] in mine, 1 - p[i].sum(),
            ])  # fmt: skip
    place, kept, mine, exact, recall, heaviest, sink = np.array(rows).T
    share, last = mine / exact, max(allowed.shape[1] for *_, allowed in given)
    part = place * 8 // last
    return {
        "rows": len(rows), "mass": mine.mean(), "exact_mass": exact.mean(),
        "kept_mass": kept.mean(), "share_mean": share.mean(),
        "share_05": np.percentile(share, 5), "share_01": np.percentile(share, 1),
        "share_worst": share.min(), "gain": (mine - kept).sum() / (exact - kept).sum(),
        "recall": recall.mean(), "heaviest": heaviest.mean(), "kl": -np.log(mine + sink).mean(),
        "share_by_position": [
            share[part == x].mean() if (part == x).any() else np.nan for x in range(8)
        ],
    }  # fmt: skip


def judged(heads: int | None, name: str, form: str, dtype: str) -> Any:
    """An index and two passages, whose attention has no ties."""
    found, (options, allowed) = index(heads, form, dtype), MASKS[name]
    given = []
    for seed, sinks in ((5, {}), (8, {"sinks": 1.0})):
        q, k = passage(heads, seed)
        q, k = (np.float32(x + 0.3 * RNG(9).normal(size=x.shape)).astype(float) for x in (q, k))
        given.append((q, k, {**options, **sinks}, allowed))
    q, k = (RNG(6).normal(size=(*x.shape[:-2], 50, D)).round(3) for x in given[0][:2])
    return found, [*given, (q, k, {"mask": "causal"}, np.tri(50, dtype=bool))]


class Pages:
    """Scores by the largest logits that the least and largest numbers of 16 keys allow."""

    def __init__(self, allowed: Any) -> None:
        self.allowed = allowed

    def scores(
        self, q: Any, k: Any, scale: float = D**-0.5, key_mask: Any = True, key_lengths: int = M,
        **_: Any,
    ) -> Any:  # fmt: skip
        number, exist = np.arange(len(k)), key_mask & (np.arange(len(k)) < key_lengths)
        bounds = np.zeros((*q.shape[:-1], len(k)))
        for j in np.flatnonzero(self.allowed.any(axis=0)):
            page = k[(number // 16 == j // 16) & exist]
            ends = scale * q * page.max(axis=0), scale * q * page.min(axis=0)
            bounds[..., j] = np.maximum(*ends).sum(axis=-1)
        weights = softmax(np.where(self.allowed, bounds, -np.inf).reshape(-1, *self.allowed.shape))
        with np.errstate(divide="ignore"):
            return np.log(weights.sum(axis=0))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("more", [{}, {"sinks": 0.5}, {"scale": 0.7}, {"scale": -0.7}])
def test_pages_of_quest_are_judged_beside(heads: int | None, name: str, more: Any) -> None:
    _, [(q, k, options, allowed), *_] = judged(heads, name, "sum", "float32")
    kept = {"window": WINDOW, "first": FIRST, "dim": 2, "effort": 0}
    given = hf.Attention(q, k, **options, **more)
    found = hf.index([given], keys=KEYS, **kept, num_threads=2)
    expected = quality(Pages(allowed), [(q, k, {**options, **more}, allowed)])
    for field, value in expected.items():
        got = getattr(found.others["quest"], field)
        np.testing.assert_allclose(got, value, rtol=1e-4, err_msg=field)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("form", "dtype"), [("sum", "float8_e4m3fn"), ("dot", "float32")])
@pytest.mark.parametrize("heads", [None, 3])
def test_quality_is_its_definition(heads: int | None, form: str, dtype: str, name: str) -> None:
    found, given = judged(heads, name, form, dtype)
    attentions = [hf.Attention(q, k, **options) for q, k, options, _ in given]
    for keys, threads in ((KEYS, 1), (KEYS, 2), (WINDOW + FIRST + 1, 1), (25, 2)):
        got = found.judge(attentions, keys=keys, num_threads=threads)
        expected = quality(found, given, keys)
        assert {f.name for f in fields(got)} == {*expected}
        for field, value in expected.items():
            np.testing.assert_allclose(getattr(got, field), value, rtol=1e-4, err_msg=field)
        assert got.rows == expected["rows"]
        assert {type(value) for value in vars(got).values()} == {int, float, np.ndarray}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("form", "dtype"), [*(("dot", x) for x in DTYPES), ("sum", "int4")])
@pytest.mark.parametrize("heads", [None, 3])
def test_what_is_certified_is_what_is_selected(
    heads: int | None, form: str, dtype: str, name: str
) -> None:
    found, (q, k), (options, _) = index(heads, form, dtype), passage(heads), MASKS[name]
    c = found.certify(q, k, mass=0.4, columns=True, **options)
    core = hf.Attention(np.float32(q), np.float32(k)).core
    numbers = _core.index_numbers(core, *found._for_core, 1)
    maps = found.P_q if heads else found.P_q[0]
    np.testing.assert_array_equal(numbers[1], (np.multiply(*map(np.transpose, found.store(k)))).T)
    mapped = q @ maps if heads is None else (q @ maps).sum(axis=0)
    if form == "sum":
        mapped = (q @ maps).reshape(-1, DIM)
    np.testing.assert_array_equal(numbers[0], stored_query(mapped, dtype))
    np.testing.assert_array_equal(numbers[1], stored(k @ found.P_k, dtype))
    attention = hf.attention_matrix(q, k, **options).reshape(-1, N, M)
    columns = found.select(q, k, **options)
    assert c.columns is not None
    for i, row in enumerate(columns):
        chosen, sure = row[row >= 0], c.columns[i][c.columns[i] >= 0]
        assert {*sure} <= {*chosen}
        assert (c.sure[i], c.selected[i]) == (len(sure), len(chosen))
        mass = attention[:, i, chosen].sum(axis=1) if len(chosen) else np.ones(len(attention))
        assert (c.row_mass.reshape(-1, N)[:, i] <= mass + 1e-6).all()
        assert (c.row_most.reshape(-1, N)[:, i] >= mass - 1e-6).all()


def test_hardly_any_mass_found_is_no_rounding() -> None:
    """The keys that count lie outside of what is kept, and the index looks away from them."""
    found, (q, k) = index(None, "dot", "float32"), np.zeros((2, M, D))
    q[:, 0], k[FIRST + 2, 0], k[FIRST + 2, 1] = 20.0, 4.0, -1.0
    away = np.eye(D, DIM, -1, dtype=np.float32)
    blind = replace(found, P_q=away[None] * 0 + 1, P_k=away)
    keys = WINDOW + FIRST + 1
    p = softmax(q @ k.T * D**-0.5).astype(np.float64)
    judged = blind.judge([(q, k)], keys=keys)
    rows = blind.select(q, k, keys=keys)
    masses = [p[i, row[row >= 0]].sum() for i, row in enumerate(rows)]
    assert min(masses) < 1e-9
    assert judged.kl == pytest.approx(-np.log(masses).mean(), rel=1e-3)


def test_quality_without_rows_and_of_pairs() -> None:
    found, (q, k) = index(None), passage(None)
    nothing = found.judge([(q, k)], keys=M + 10)
    assert nothing.rows == 0
    assert nothing.sentence == "nothing: no row sees more keys than it may attend to"
    assert np.isnan([nothing.share_mean, *nothing.share_by_position]).all()
    assert nothing.to_dict()["kl"] is None
    pair, attention = (found.judge(x) for x in ([(q, k)], [hf.Attention(q, k)]))
    assert pair.to_dict() == attention.to_dict()
    whole = replace(found, P_q=np.eye(D, dtype=np.float32)[None] * D**-0.5, P_k=np.eye(D))
    exact = replace(whole, P_k=np.eye(D, dtype=np.float32)).judge([(q, k)])
    assert exact.share_worst == pytest.approx(1, abs=1e-6)
    assert exact.gain == pytest.approx(1, abs=1e-6)


FLOATS = st.floats(-(2.0**99), 2.0**99, width=32) | st.floats(-8, 8, width=32)


@pytest.mark.parametrize("dtype", DTYPES)
@given(arrays(np.float32, (5, DIM), elements=FLOATS))
def test_numbers_are_rounded_as_ml_dtypes_does(dtype: str, x: Any) -> None:
    found = replace(index(None, dtype=dtype), P_k=np.eye(DIM, dtype=np.float32))
    numbers, scales = found.store(x)
    expected = rounded(x, dtype)
    np.testing.assert_array_equal(numbers, expected[0])
    np.testing.assert_array_equal(scales, expected[1])
    assert numbers.dtype == scales.dtype == np.float32
    assert abs(numbers).max() <= LARGEST.get(dtype.removesuffix(UNSCALED), np.inf)


def test_every_number_of_eight_bits_is_kept() -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = codes[np.isfinite(codes)]
    x = np.stack([codes, np.full_like(codes, 448)], axis=1)
    found = replace(index(None, dtype="float8_e4m3fn"), P_k=np.eye(2, dtype=np.float32))
    for factor in (1.0, 2.0**-40):
        numbers, scales = found.store(x * factor)
        np.testing.assert_array_equal(numbers, x)
        assert (scales == factor).all()


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 12), ("float16", 6), ("bfloat16", 6), ("float8_e4m3fn", 5), ("int8", 5),
     ("int4", 3.5), ("float8_e4m3fn-unscaled", 3), ("int8-unscaled", 3), ("int4-unscaled", 1.5)],
)  # fmt: skip
def test_bytes_of_a_key(dtype: str, size: float) -> None:
    found = index(None, dtype=dtype)
    assert (found.dim, found.bytes) == (DIM, size)


@given(st.integers(0, 99), st.integers(1, N), st.integers(0, 9), st.sampled_from(FORMS))
def test_a_row_is_answered_for_itself(seed: int, count: int, more: int, form: str) -> None:
    """The last rows are those of the whole, in a cache too; more keys keep those of fewer."""
    found, (q, k) = index(2, form, "int8"), passage(2, seed)
    whole = found.select(q, k, mask="causal")
    last = found.select(q[:, -count:], k, mask="causal")
    np.testing.assert_array_equal(last, whole[-count:])
    wider = found.select(q, k, mask="causal", keys=KEYS + more)
    for few, many in zip(whole, wider, strict=True):
        assert np.isin(few, [*many, -1]).all()
        assert (np.diff(many[many >= 0]) > 0).all()


def test_rotary_positions_are_applied_first() -> None:
    position = ("rope", (1.0, 0.3, 0.01))
    found, (q, k) = replace(index(3), position=position, length=1000), passage(3)
    options: dict[str, Any] = {"mask": "causal", "position": ("rope", np.array(position[1]))}
    turned = hf.Attention(q, k, **options).rotated()
    np.testing.assert_array_equal(found.scores(q, k, **options), found.scores(turned))
    np.testing.assert_array_equal(found.select(q, k, **options), found.select(turned))
    small = found.apply(q, k, **options)
    assert small.position is None
    np.testing.assert_array_equal(small.matrix(), found.apply(turned).matrix())
    judgements = [found.judge([x]).to_dict() for x in (turned, hf.Attention(q, k, **options))]
    assert judgements[0] == judgements[1]


Q3, K3 = passage(3)
TWO = np.stack([K3, K3, K3])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((Q3[:2], K3), {}, "Q must have 3 heads of size 6, and K 1; got 2 heads of size 6"),
        ((Q3[0], K3), {}, "Q must have 3 heads of size 6, and K 1; got 1 heads of size 6"),
        ((Q3[..., :4], K3[:, :4]), {}, "heads of size 6, and K 1; got 3 heads of size 4"),
        ((Q3, TWO), {}, "Q must have 3 heads of size 6, and K 1; got 3 heads of size 6, and K 3"),
        ((Q3[None], K3), {}, "of one layer"),
        ((Q3, K3[:, :4]), {}, "Q and K"),
        ((Q3[:, :0], K3), {}, "not be empty"),
        ((Q3,), {}, "give Q and K"),
        ((hf.Attention(Q3, K3), K3), {}, "K must not be given"),
        ((Q3, K3), {"bias": 1.0}, "bias"),
        ((Q3, K3), {"position": "alibi"}, "alibi"),
        ((Q3, K3), {"position": ("alibi", np.ones(3))}, "alibi"),
        ((Q3, K3), {"mask": "casual"}, "mask must"),
        ((Q3, K3), {"mask": np.stack([OPEN, ~OPEN, OPEN])}, "mask must be one for all query heads"),
        ((Q3, K3), {"key_mask": np.stack([PADDED, ~PADDED, PADDED])}, "key_mask must be one"),
        ((Q3, K3), {"key_lengths": [9, 8, 9]}, "key_lengths must be one"),
        ((Q3 * np.nan, K3), {}, "Q of passage 0"),
        ((Q3 * 1e300, K3), {}, "Q of passage 0, in float32, must be finite"),
        ((Q3, K3), {"position": "rope"}, "position must be that of the result, None; got"),
    ],
)  # fmt: skip
def test_bad_passages(given: Any, options: Any, message: str) -> None:
    for call in (index(3).scores, index(3).select, index(3).apply):
        with pytest.raises(InputError, match=message):
            call(*given, **options)
    if len(given) == 2 and "key_lengths" in options:
        with pytest.raises(InputError, match=message):
            index(3).judge([hf.Attention(*given, **options)])


def test_other_bad_arguments() -> None:
    found = index(3)
    for keys in (WINDOW + FIRST, 0, "x", 2**60, 7.5):
        for call in (found.select, found.apply, lambda *p, keys: found.judge([p], keys=keys)):
            with pytest.raises(InputError, match="keys must"):
                call(Q3, K3, keys=keys)
    with pytest.raises(hf.errors.HeadfitError, match="keys=1099511627776 needs"):
        found.select(Q3, K3, keys=2**40)
    for bad in ([], None, hf.Attention(Q3, K3), [(Q3,)], ["x"]):
        with pytest.raises(InputError, match="passages must"):
            found.judge(bad)
    for bad in (K3[0], K3[:, :4], TWO):
        with pytest.raises(InputError, match="K must have"):
            found.store(bad)
    for bad in (K3 * np.nan, 1e300 * (1 + abs(K3)), np.full((2, D), 3e38)):
        with pytest.raises(NonFiniteError, match="K"):
            replace(found, P_k=abs(found.P_k)).store(bad)
    assert [x.shape for x in found.store(K3[:0])] == [(0, DIM), (0,)]
    for which, (q, k) in {"Q @ P_q": (1e38, 1), "K @ P_k": (1, 1e38)}.items():
        ones = np.ones_like(found.P_q), 4 * np.ones_like(found.P_k)
        large = replace(found, P_q=4 * ones[0], P_k=ones[1])
        with pytest.raises(NonFiniteError, match=f"{which} must be finite; got inf"):
            large.scores(q * np.ones_like(Q3), k * np.ones_like(K3))
    with pytest.raises(InputError, match="num_threads must"):
        found.select(Q3, K3, num_threads=0)
