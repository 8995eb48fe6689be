"""The fit of an index: its closed form, what the descent adds, sizes, positions and results."""

from __future__ import annotations

import json
import pickle
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit.errors import InputError, NonFiniteError

D, HEADS = 8, 2
RNG = np.random.default_rng
ROPE = ("rope-half", 100.0)
SMALL: dict[str, Any] = {"dim": 3, "keys": 12, "window": 4, "first": 2, "num_threads": 2}
QUICK: dict[str, Any] = {**SMALL, "effort": 8}


@lru_cache
def pairs(count: int = 8, heads: int | None = HEADS) -> Any:
    """Queries and keys of passages of different lengths, of numbers of falling size."""
    rng = RNG(0)
    mixes = rng.normal(size=((heads or 1) + 1, D, D)) * 1.4 ** -np.arange(D) * 1.5
    found = []
    for i in range(count):
        x = np.einsum("nw,hwd->hnd", rng.normal(size=(36 + 5 * (i % 3), D)), mixes)
        x[-1] += rng.normal(size=D)  # what all keys of a passage have in common
        found.append((x[0] if heads is None else x[:-1], x[-1]))
    return tuple(found)


def of(given: Any = None, **options: Any) -> Any:
    given = pairs() if given is None else given
    return [hf.Attention(q, k, **{"mask": "causal", **options}) for q, k in given]


@lru_cache
def found(**settings: Any) -> Any:
    return hf.index(of(), **{**QUICK, **settings})


def products(index: Any) -> Any:
    return np.stack([p.astype(float) @ index.P_k.astype(float).T for p in index.P_q])


def turned(x: Any, positions: Any, frequencies: Any) -> Any:
    """Rows turned to their positions: complex numbers times units."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.outer(positions, frequencies))
    return np.concatenate([z.real, z.imag], axis=-1)


SLOW = 100.0 ** (-np.arange(D // 2) / (D // 2))  # the frequencies of ROPE


def best_products(passages: Any, dim: int, scale: float, moves: Any = (0,)) -> Any:
    """KQ-SVD with keys centred in their passage, by Cholesky factors; moments over moves."""
    of_queries, of_keys = np.zeros((HEADS, D, D)), np.zeros((D, D))
    for q, k in passages:
        for move in moves:
            own, keys = (turned(x, [move], SLOW) for x in (q, k - k.mean(axis=0)))
            of_queries += np.swapaxes(own, 1, 2) @ own / len(k)
            of_keys += keys.T @ keys / len(k)
    left, right = np.linalg.cholesky(of_queries), np.linalg.cholesky(of_keys)
    u, s, vt = np.linalg.svd(np.vstack([scale * x.T @ right for x in left]))
    whole = ((u[:, :dim] * s[:dim]) @ vt[:dim]).reshape(HEADS, D, D)
    return np.linalg.inv(left).swapaxes(1, 2) @ whole @ np.linalg.inv(right)


@pytest.mark.parametrize("form", ["sum", "dot"])
@pytest.mark.parametrize("length", [None, 200])
@pytest.mark.parametrize("dim", [1, 3, D])
def test_without_steps_it_is_the_closed_form(dim: int, length: int | None, form: str) -> None:
    scale = 0.3 if form == "sum" else D**-0.5
    longest = max(len(k) for _, k in pairs())
    for position, moved in ((None, False), (ROPE, True)):
        if length is not None and not moved:
            continue
        given = of(position=position, scale=scale)
        got = hf.index(given, **{**SMALL, "dim": dim}, form=form, length=length, effort=0)
        last = (2 * longest if moved else longest) if length is None else length
        assert got.length == last
        assert got.loss == got.start_loss
        own = [pairs()[i] for i in got.calibration]
        if moved:
            own = [[turned(x, np.arange(x.shape[-2]), SLOW) for x in pair] for pair in own]
        moves = np.round(np.linspace(0, last - longest, 32)) if moved else [0]
        expected = best_products(own, dim, scale / (HEADS if form == "dot" else 1), moves)
        np.testing.assert_allclose(products(got), expected, atol=1e-4 * abs(expected).max())
        assert got.quality.to_dict() == got.others["kq-svd"].to_dict()


def test_loki_is_the_principal_components_of_the_keys() -> None:
    got = found(effort=0)
    keys = sum(k.T @ k / len(k) for k in (pairs()[i][1] for i in got.calibration))
    vectors = np.linalg.svd(keys)[0][:, : got.dim]
    maps = {"P_q": np.stack([D**-0.5 * vectors] * HEADS), "P_k": vectors}
    other = hf.results.Index(**{**vars(got), **{n: np.float32(x) for n, x in maps.items()}})
    judged = other.judge([of()[i] for i in got.held_out])
    assert judged.share_mean == pytest.approx(got.others["loki"].share_mean, abs=2e-3)


def needles(
    count: int, n: int = 200, frequencies: Any = (0.0,) * 4, first: int = 0, seed: int = 0
) -> Any:
    """Queries that look for two keys, in numbers that vary less than others that matter less."""
    rng, given = RNG(seed), []
    for _ in range(count):
        q, k = rng.normal(size=(2, n, D)) * 1.8 * np.array([1, 1, 0.1, 0.1] * 2)
        q[:, 2], k[rng.choice(n // 4, 2, replace=False), 2] = 5.3, 5.3
        given.append([turned(x, first + np.arange(n), frequencies) for x in (q, k)])
    return given


def cross_entropy(index: Any, given: Any) -> float:
    """What is descended, of some rows of passages, by its definition."""
    each = []
    for q, k in given:
        seen = np.tri(len(k), dtype=bool)
        i, j = np.indices(seen.shape)
        free = seen & (j >= index.first) & (j <= i - index.window)
        p = np.exp(np.where(seen, q @ k.T * D**-0.5, -np.inf)).reshape(-1, *seen.shape)
        p = (p / p.sum(axis=-1, keepdims=True)).mean(axis=0)
        s = np.exp(np.where(free, index.scores(q, k, mask="causal").astype(float), -np.inf))
        share = s / np.maximum(s.sum(axis=-1, keepdims=True), 1e-300)
        rows = (2 * np.arange(min(48, len(k))) + 1) * len(k) // (2 * min(48, len(k)))
        free = free & np.isin(i, rows)
        each.append(-(p[free] @ np.log(share[free])) / p[free].sum())
    return float(np.mean(each))


@pytest.mark.parametrize("form", ["sum", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "int4", "int4-unscaled"])
def test_the_loss_is_that_of_what_is_stored(dtype: str, form: str) -> None:
    for given, effort in ((pairs(), 0), (needles(8), 0), (needles(8), "low")):
        got = hf.index(of(given), **{**SMALL, "dim": 2}, effort=effort, dtype=dtype, form=form)
        expected = cross_entropy(got, [given[i] for i in got.validation])
        assert got.loss == pytest.approx(expected, rel=1e-4)
    assert got.loss < got.start_loss


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "int4"])
@pytest.mark.parametrize("fall", [1.1, 1.5])
def test_without_scales_more_numbers_find_no_less(dtype: str, fall: float) -> None:
    """Each number of a key has its own range, and a first key that is kept anyway may be large."""
    rng, given = RNG(1), []
    mix = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    for _ in range(8):
        q, k = rng.normal(size=(2, 150, 16)) * 2
        k = k * fall ** -np.arange(16) @ mix
        k[0] *= 100
        given.append(hf.Attention(q, k, mask="causal"))
    settings = {**SMALL, "keys": 24, "window": 8, "first": 2, "effort": "low", "held_out": 0.4}
    for dim in (4, 16):
        whole, alone = (
            hf.index(given, **{**settings, "dim": dim}, dtype=kind).quality.gain
            for kind in (dtype, f"{dtype}-unscaled")
        )
        assert alone > whole - 0.04


@pytest.mark.parametrize("form", ["sum", "dot"])
def test_a_descent_finds_what_closed_forms_miss(form: str) -> None:
    got = hf.index(of(needles(8)), **{**SMALL, "dim": 2}, form=form, effort="low")
    assert got.loss < 0.8 * got.start_loss
    for other in got.others.values():
        assert got.quality.share_mean > other.share_mean + 0.1
    assert got.quality.heaviest > got.others["kq-svd"].heaviest + 0.1


def test_moves_help_at_positions_beyond_the_passages() -> None:
    frequencies = np.array([1.0, 0.3, 0.001, 0.001])
    given, far = (of(needles(8, 200, frequencies, *more)) for more in ((), (1400, 1)))
    settings = {**SMALL, "dim": 2, "rotated": ("rope-half", frequencies), "effort": "low"}
    near, moved = (hf.index(given, **settings, length=length) for length in (200, 1600))
    assert near.judge(far).share_mean < near.quality.share_mean - 0.1
    assert moved.judge(far).share_mean > near.judge(far).share_mean + 0.1
    assert moved.judge(far).share_mean > moved.quality.share_mean - 0.05


def test_positions_may_have_been_applied_before() -> None:
    own = hf.index(of(position=ROPE), **QUICK)
    before = [a.rotated() for a in of(position=ROPE)]
    other = hf.index([hf.Attention(a.Q, a.K, mask="causal") for a in before], **QUICK, rotated=ROPE)
    np.testing.assert_array_equal(own.P_k, other.P_k)
    assert own.quality.to_dict() == other.quality.to_dict()
    assert own.position == other.position == ("rope-half", tuple(SLOW.tolist()))
    frequencies = hf.index(of(position=("rope-half", SLOW)), **QUICK)
    np.testing.assert_array_equal(own.P_q, frequencies.P_q)
    assert not np.array_equal(own.P_q, hf.index(of(), **QUICK).P_q)


@pytest.mark.parametrize("heads", [None, 1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_maps_and_parts(dtype: str, heads: int | None) -> None:
    given = of([(q.astype(dtype), k.astype(dtype)) for q, k in pairs(8, heads)])
    got = hf.index(given, **QUICK)
    assert got.P_q.shape == (heads or 1, D, 3)
    assert got.P_k.shape == (D, 3)
    assert got.P_q.dtype == got.P_k.dtype == np.float32
    parts = [*got.calibration, *got.validation, *got.held_out]
    assert sorted(parts) == [*range(8)]
    assert (got.held_out.size, got.validation.size) == (2, 2)
    again = got.judge([given[i] for i in got.held_out], num_threads=1)
    assert again.to_dict() == got.quality.to_dict()


def test_the_same_seed_gives_the_same_maps_with_any_number_of_threads() -> None:
    heads = {"a": of(), ("b", 1): of(pairs()[:5]), 3: of(pairs(6, 1))}
    one, two = (hf.index(heads, **{**QUICK, "num_threads": t}) for t in (1, 2))
    for name, given in heads.items():
        alone = hf.index(given, **QUICK)
        for other in (one[name], two[name]):
            np.testing.assert_array_equal(alone.P_q, other.P_q)
            np.testing.assert_array_equal(alone.P_k, other.P_k)
            assert alone.quality.to_dict() == other.quality.to_dict()
            assert alone.loss == other.loss
    drawn, as_drawn = (hf.index(of(), **QUICK, rng=RNG(4)) for _ in range(2))
    np.testing.assert_array_equal(drawn.P_k, as_drawn.P_k)
    assert not np.array_equal(drawn.P_k, found().P_k)


def test_a_mass_takes_the_least_size_that_suffices() -> None:
    sizes = [1, 2, 3, 4, 6, D]
    alone = {dim: found(dim=dim) for dim in sizes}

    def share(index: Any) -> float:
        return index.judge([of()[i] for i in index.validation]).share_mean

    shares = {dim: share(index) for dim, index in alone.items()}
    for dim, smaller in zip(sizes[1:-1], sizes, strict=False):
        if shares[dim] <= max(shares[x] for x in sizes if x < dim):
            continue
        for bound in (shares[dim] - 1e-9, (shares[dim] + shares[smaller]) / 2):
            got = hf.index(of(), **{**QUICK, "dim": None}, mass=bound)
            assert got.dim == dim
            np.testing.assert_array_equal(got.P_k, alone[dim].P_k)
            assert got.quality.to_dict() == alone[dim].quality.to_dict()
    assert shares[4] > shares[2] > shares[1]  # so that some bounds were tried
    seen: list[Any] = []
    got = hf.index(
        {"a": of(), "b": of(needles(4))}, **{**QUICK, "dim": None, "dtype": "float32"},
        mass=1 - 1e-12, callback=lambda name, loss: seen.append(name),
    )  # fmt: skip
    assert got["a"].dim == got["b"].dim == D  # the last size, whatever it finds
    assert sorted(seen) == ["a"] * 6 + ["b"] * 6


@pytest.mark.parametrize("size", [4, 5])
def test_a_mass_with_heads_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if size == 5:  # beyond the sizes that are tried
        monkeypatch.setattr("headfit._index.index.SIZES", (1, 2))
    drawn = [*map(tuple, RNG(0).normal(size=(3, 2, 30, size)))]
    settings = {**QUICK, "dim": None, "effort": 0, "dtype": "int4"}
    with pytest.warns(UserWarning, match=f"mass=0.9+ is not reached: all {size} numbers in int4"):
        assert hf.index(drawn, **settings, mass=1 - 1e-12).dim == size
    assert hf.index(drawn, **settings, mass=0.01).dim == 1
    wider = [*map(tuple, RNG(0).normal(size=(3, 2, 30, size + 2)))]
    with pytest.warns(UserWarning, match="passages of '[ab]': mass=0.9+ is not reached") as told:
        found = hf.index({"a": drawn, "b": wider}, **settings, mass=1 - 1e-12)
    assert len(told) == 2
    assert (found["a"].dim, found["b"].dim) == (size, size + 2)
    assert not found["a"].reached
    assert "NOT the mass asked for" in repr(found["a"])
    with pytest.warns(UserWarning, match="is not reached"):
        assert not hf.index(drawn, **settings, mass=1 - 1e-12, curve_dims=(size,)).reached
    assert hf.index(drawn, **settings, mass=0.01).reached


def test_another_scale_is_refused(tmp_path: Path) -> None:
    own = hf.index([hf.Attention(*pair, mask="causal", scale=0.25) for pair in pairs()], **QUICK)
    own.save(tmp_path / "index.npz")
    given = {"mask": "causal", "scale": 0.3}
    for got in (own, hf.results.Index.load(tmp_path / "index.npz")):
        assert got.scale == 0.25
        whole = hf.Attention(*pairs()[0], mask="causal", scale=0.25)
        np.testing.assert_array_equal(got.select(*pairs()[0], mask="causal"), got.select(whole))
        assert got.apply(*pairs()[0], mask="causal").scale == 0.25
        for call in (got.select, got.scores, got.apply, got.certify):
            call(*pairs()[0], mask="causal", scale=0.25 * (1 + 1e-7))
            with pytest.raises(InputError, match=r"passages, 0\.25, .* got 0\.3 in passage 0"):
                call(*pairs()[0], **given)
        with pytest.raises(InputError, match=r"scale must be that of the passages.* in passage 1"):
            got.judge(
                [hf.Attention(*pairs()[x], **{**given, "scale": 0.25 + 0.05 * x}) for x in (0, 1)]
            )


def test_callbacks_get_names_and_losses() -> None:
    seen: dict[Any, float] = {}
    got = hf.index({"a": of(), 7: of(pairs()[:3])}, **QUICK, callback=seen.__setitem__)
    assert seen == {name: got[name].loss for name in ("a", 7)}
    calls: list[Any] = []
    alone = hf.index(of(), **QUICK, callback=lambda *told: calls.append(told))
    assert calls == [(None, alone.loss)]
    with pytest.raises(ZeroDivisionError):
        hf.index(of(), **QUICK, callback=lambda *_: 1 / 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_passages(count: int) -> None:
    given = of(pairs()[:count])
    got = hf.index(given, **QUICK)
    assert [len(x) for x in (got.calibration, got.validation, got.held_out)] == {
        1: [1, 0, 0], 2: [1, 0, 1], 3: [1, 1, 1]
    }[count]  # fmt: skip
    judging = got.held_out if count > 1 else [0]
    assert got.quality.to_dict() == got.judge([given[i] for i in judging]).to_dict()
    assert hf.index(given, **{**QUICK, "dim": None}, mass=0.5).dim <= 3
    assert hf.index(of(), **QUICK, validation=0).validation.size == 0


MASK = RNG(1).random((200, 200)) < 0.6


@pytest.mark.parametrize(
    "options",
    [{"mask": ("window", 120)}, {"mask": MASK}, {"mask": sp.csr_array(MASK)}, {"mask": None},
     {"key_mask": np.arange(200) > 3}, {"key_lengths": 180}, {"softcap": 50.0, "sinks": [0.5, 3]},
     {"scale": -0.5, "mask": np.tri(200, dtype=bool)}],
)  # fmt: skip
def test_masks_and_other_options(options: Any) -> None:
    given = of([(np.stack([q, 1.1 * q]), k) for q, k in needles(8)], **options)
    got = hf.index(given, **{**SMALL, "dim": 2, "effort": "low"})
    assert got.loss < got.start_loss
    assert got.quality.rows > 0
    places = got.held_out
    assert got.quality.to_dict() == got.judge([given[i] for i in places]).to_dict()
    columns = got.select(given[0])
    allowed = given[0].matrix()[0] > 0
    assert np.take_along_axis(allowed, columns, axis=1)[columns >= 0].all()


@pytest.mark.parametrize(
    ("name", "one"), [("mask", MASK), ("key_mask", np.arange(200) > 3), ("key_lengths", 180)]
)
def test_masks_of_all_query_heads_may_be_equal(name: str, one: Any) -> None:
    pairs = [(np.stack([q, 1.1 * q]), k) for q, k in needles(4)]
    settings = {**QUICK, "dim": 2}
    whole = hf.index(of(pairs, **{name: one}), **settings)
    each = np.broadcast_to(one, (2, *np.shape(one)))
    for given in (each, np.array(each)):  # in the same memory, and in memory of its own
        passages = of(pairs, **{name: given})
        found = hf.index(passages, **settings)
        np.testing.assert_array_equal(found.P_k, whole.P_k)
        assert found.quality.to_dict() == whole.quality.to_dict()
        expected = whole.select(*pairs[0], **{"mask": "causal", name: one})
        np.testing.assert_array_equal(found.select(passages[0]), expected)
        found.apply(passages[0])
    other = np.array(each)
    other.reshape(2, -1)[1, -1] ^= True
    with pytest.raises(InputError, match=f"{name} must be one for all query heads; passage 0 has"):
        hf.index(of(pairs, **{name: other}), **settings)


@pytest.mark.parametrize("size", [1e-8, 1e8, 1e15])
def test_units_of_keys_do_not_matter(size: float) -> None:
    one, other = (
        hf.index(of([(q / x, k * x) for q, k in pairs()]), **{**SMALL, "effort": 30})
        for x in (1, size)
    )
    assert other.quality.share_mean == pytest.approx(one.quality.share_mean, abs=0.02)
    assert other.loss == pytest.approx(one.loss, rel=0.02)


def test_keys_that_do_not_vary() -> None:
    for value in (0.0, 3.0):
        got = hf.index([(q, np.full_like(k, value)) for q, k in pairs()], **QUICK)
        assert got.quality.share_worst == pytest.approx(1, abs=1e-6)
        assert np.isfinite(got.P_q).all()


def test_longer_passages_warn() -> None:
    q, k = RNG(0).normal(size=(2, 70, D))
    with_rotary, without = (
        hf.index([(x[0], y) for x, y in pairs()], **QUICK, rotated=position, length=length)
        for position, length in ((ROPE, 60), (None, None))
    )
    calls = {
        "select": lambda it, x, y: it.select(x, y),
        "scores": lambda it, x, y: it.scores(x, y),
        "apply": lambda it, x, y: it.apply(x, y),
        "judge": lambda it, x, y: it.judge([(x, y)]),
        "all": lambda it, x, y: hf.results.Indexes({0: it}, 0.0).judge({0: [(x, y)]}),
    }
    for call in calls.values():
        with pytest.warns(UserWarning, match="more than the 60 tokens") as seen:
            call(with_rotary, q, k)
        assert [w.filename for w in seen] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(with_rotary, q[:60], k[:60])
            call(without, q, k)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_saved_maps(suffix: str, tmp_path: Any) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
        from safetensors.numpy import load_file as load
    else:
        load = np.load
    found().save(tmp_path / f"index{suffix}")
    tensors = load(tmp_path / f"index{suffix}")
    for name, x in found().tensors().items():
        assert x is getattr(found(), name)
        np.testing.assert_array_equal(tensors[name], x)
    with pytest.raises(InputError, match="path"):
        found().save(tmp_path / "index.txt")


def test_weights_of_an_index(tmp_path: Any) -> None:
    rng = RNG(0)
    w_q, w_k, texts = rng.normal(size=(HEADS, 9, D)), rng.normal(size=(9, D)), RNG(1)
    x = [texts.normal(size=(40, 9)) / 3 for _ in range(6)]
    own = hf.index([hf.Attention(a @ w_q, a @ w_k, mask="causal") for a in x], **QUICK)
    tensors = own.tensors(w_q, w_k)
    np.testing.assert_allclose(
        x[0] @ tensors["W_K_P_k"], x[0] @ w_k @ own.P_k, rtol=1e-5, atol=1e-5
    )
    for h in range(HEADS):
        np.testing.assert_allclose(tensors["W_Q_P_q"][h], w_q[h] @ own.P_q[h], rtol=1e-5, atol=1e-6)
    own.save(tmp_path / "index.npz", W_K=w_k)
    with np.load(tmp_path / "index.npz") as made:
        assert set(made) == {"P_q", "P_k", "W_K_P_k", "about"}
    assert repr(hf.results.Index.load(tmp_path / "index.npz")) == repr(own)
    with pytest.raises(InputError, match="W_Q must have shape"):
        own.tensors(w_q[0])
    rotary = hf.index(of(position=ROPE), **QUICK)
    with pytest.raises(InputError, match="W_K must not be given: maps act after rotary"):
        rotary.tensors(W_K=w_k)


def test_saved_certificates(tmp_path: Any) -> None:
    path = tmp_path / "index.npz"
    passage = hf.Attention(*pairs()[0], mask="causal")
    kept = found().certify(passage, mass=0.3, kernel=hf.Kernel("float32", sum_bits=14))
    found().save(path, kept)
    read = hf.results.Index.load(path)
    assert read.certificate == json.loads(json.dumps(kept.to_dict()))
    assert read.certificate["kernel"] == {"accumulate": "float32", "sum_bits": 14}
    read.save(path)  # keeps what it says
    assert hf.results.Index.load(path).certificate == read.certificate
    for other in (kept.to_dict(), found(form="dot").certify(passage)):
        with pytest.raises(InputError, match="certificate must be of a selection by this index"):
            found().save(path, other)


def test_a_certificate_of_another_index_of_the_same_size_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "index.npz"
    passages = of(position=ROPE)
    own, other = (hf.index(passages, **QUICK, rng=seed) for seed in (0, 1))
    assert own.P_k.shape == other.P_k.shape
    certificate = other.certify(passages[0])
    with pytest.raises(InputError, match="certificate must be of a selection by this index"):
        own.save(path, certificate)
    stored = [np.ones((46, 3), np.float32)] * 2
    plain = hf.certify_selection(passages[2].rotated(), None, *stored, keys=12, window=4, first=2)
    assert plain.index is None
    with pytest.raises(InputError, match="certificate must be of a selection by this index"):
        own.save(path, plain)
    replace(own, certificate=certificate.to_dict()).save(path)
    with pytest.raises(InputError, match="its certificate is of another index"):
        hf.results.Index.load(path)
    own.save(path)
    read = hf.results.Index.load(path)
    read.save(path, own.certify(passages[0]))
    own.save(path, read.certify(passages[0]))
    older = {**own.certify(passages[0]).to_dict()}
    del older["index"]
    replace(own, certificate=older).save(path)
    assert hf.results.Index.load(path).certificate == json.loads(json.dumps(older))


def test_dictionaries_texts_and_pickles() -> None:
    several = hf.index({"a": of(), ("b", 1): of(needles(4))}, **QUICK)
    figures = several.to_dict()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    own = figures["heads"]["a"]
    assert (own["dim"], own["bytes"]) == (3, 5)
    assert own["quality"]["share_mean"] == several["a"].quality.share_mean
    assert {*own["others"]} == {"kq-svd", "loki", "quest"}
    assert "P_q" not in own
    assert several.bytes == 5
    text = str(several)
    assert "2 indexes: 5 bytes per key" in text
    for way in ("kq-svd", "loki", "quest"):
        share = np.mean([several[x].others[way].share_mean for x in ("a", ("b", 1))])
        assert f"{way} {share:.4f} of the best keys' mass" in text
    share = np.mean([several[x].quality.share_mean for x in ("a", ("b", 1))])
    assert f"finds {share:.4f} of the best keys' mass" in repr(several)
    assert "size 8 -> 3, float8_e4m3fn, form 'sum': 5 bytes per key" in repr(several["a"])
    assert "12 a row, the last 4 and the first 2 always" in repr(several["a"])
    assert "the heaviest key in" in repr(several["a"].quality)
    again = pickle.loads(pickle.dumps(several))
    assert repr(again) == repr(several)
    np.testing.assert_array_equal(again["a"].select(of()[0]), several["a"].select(of()[0]))


Q0, K0 = pairs()[0]
STACK = np.stack([MASK, ~MASK])[:, :36, :36]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mass": 0.9}, "dim must not be given beside mass"),
        ({"dim": None, "mass": 0}, "mass must"),
        ({"dim": None, "mass": 1.0}, "mass must"),
        ({"dim": None, "mass": "x"}, "mass must"),
        ({"dim": 0}, "dim must lie in 1 ... 8; got 0"),
        ({"dim": 9}, "dim must lie in 1 ... 8; got 9"),
        ({"keys": 6}, "keys must be an integer of at least 7; got 6"),
        ({"window": 0}, "window must"),
        ({"first": -1}, "first must"),
        ({"dtype": "float64"}, "dtype must"),
        ({"form": "mean"}, "form must"),
        ({"length": 45, "rotated": ROPE}, "length must be an integer of at least 46; got 45"),
        ({"length": 60}, "length must go with rotary positions"),
        ({"mass": 0.9, "dim": None, "keys": 60}, "mass needs rows that see more"),
        ({"length": 2**40, "rotated": ROPE}, "length"),
        ({"rotated": "alibi"}, "rotated must be a rotary position"),
        ({"held_out": 1}, "held_out must"),
        ({"validation": 1}, "validation must"),
        ({"effort": "much"}, "effort must"),
        ({"effort": -1}, "effort must"),
        ({"callback": 3}, "callback must"),
        ({"rng": "x"}, "rng must"),
        ({"num_threads": 0}, "num_threads must"),
    ],
)  # fmt: skip
def test_bad_options(settings: Any, message: str) -> None:
    for given in (of(), {"it": of()}):
        with pytest.raises(hf.errors.HeadfitError, match=message):
            hf.index(given, **{**QUICK, **settings})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "passages must be one at least; got none"),
        (None, "passages must be"),
        ([(Q0, K0), "x"], "passage 1 is 'x'"),
        ([(Q0[None], K0)], "of one layer"),
        ([(Q0[:, :0], K0)], "must not be empty"),
        ([(Q0, K0), (Q0[:1], K0)], "passages must be of one head"),
        ([(Q0, K0), (Q0[..., :6], K0[:, :6])], "passages must be of one head"),
        ([hf.Attention(Q0, K0), hf.Attention(Q0, K0, scale=1.0)], "passage 1 has scale"),
        ([hf.Attention(Q0, K0), hf.Attention(Q0, K0, position=ROPE)], "the same rotary positions"),
        ([(Q0, K0), hf.Attention(Q0, K0, bias=1.0)], "passage 1 has a bias"),
        ([hf.Attention(Q0, K0, position="alibi")], "passage 0 has a bias .* or the position alibi"),
        ([(Q0, K0), hf.Attention(Q0, K0, mask=STACK)], "mask must be one for all query heads"),
        ([hf.Attention(Q0, K0, key_mask=STACK[:, 0])], "key_mask must be one"),
        ([hf.Attention(Q0, K0, key_lengths=[9, 8])], "key_lengths must be one"),
        ([(Q0, K0), (Q0, K0 * np.nan)], "K of passage 1"),
        ([(Q0, 1e300 * (2 + abs(K0)))], "K of passage 0, in float32,"),
    ],
)  # fmt: skip
def test_bad_passages(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hf.index(given, **QUICK)
    with pytest.raises(InputError, match=f"passages of 'it': .*{message}"):
        hf.index({"first": of(), "it": given}, **QUICK)


def test_bad_mappings() -> None:
    with pytest.raises(InputError, match=r"passages must be a mapping, not empty; got \{\}"):
        hf.index({}, **QUICK)
    with pytest.raises(InputError, match="rotated must not be given beside passages with rotary"):
        hf.index(of(position=ROPE), **QUICK, rotated=ROPE)
    with pytest.raises(NonFiniteError, match="passages of 'it': K of passage 0"):
        hf.index({"it": [(Q0, K0 * np.inf)]}, **QUICK)
    with pytest.raises(KeyError):
        hf.index({"it": of()}, **QUICK)["other"]


def test_passages_with_padding_keys_alone_add_nothing() -> None:
    some = of(pairs(6))
    q, k = pairs()[6]
    for seed in range(4):
        padded = [*some[:3], hf.Attention(q, k, key_lengths=0), *some[3:]]
        index = hf.index(padded, **{**QUICK, "effort": 2}, rng=seed)
        assert np.isfinite(index.P_k).all()


def test_passages_without_free_keys_do_not_choose() -> None:
    few, some = [(q[:6], k[:6]) for q, k in pairs()], of(pairs(6))
    settings = {**QUICK, "validation": 0.5, "held_out": 0.2, "window": 5, "first": 1, "keys": 12}
    got = hf.index(some, **settings)
    alone = []
    for place in got.validation:
        short = [of(few)[i] if i == place else x for i, x in enumerate(some)]
        alone.append(hf.index(short, **settings).start_loss)
    assert len(alone) == 2
    assert np.mean(alone) == pytest.approx(got.start_loss, rel=1e-6)
    short = [of(few)[i] if i in got.validation else x for i, x in enumerate(some)]
    for given, named in ((short, "^passages"), ({("l", 2): short}, r"^passages of \('l', 2\)")):
        message = f"{named} that choose have no row that sees a key besides the 1 first and the 5"
        with pytest.raises(InputError, match=message):
            hf.index(given, **settings)


def test_passages_that_are_fitted_need_free_keys() -> None:
    """Otherwise nothing is descended, and the closed form would come as if it were."""
    settings = {**QUICK, "window": 5, "first": 1, "keys": 12}
    some = of(pairs(6))
    fitted = hf.index(some, **{**settings, "effort": 0}).calibration
    short = [of([(q[:, :6], k[:6])])[0] if i in fitted else some[i] for i, (q, k) in
             enumerate(pairs(6))]  # fmt: skip
    for given, named in ((short, "^passages"), ({("l", 2): short}, r"^passages of \('l', 2\)")):
        message = f"{named} that are fitted see no key besides those of `first` and `window`"
        with pytest.raises(InputError, match=message):
            hf.index(given, **settings)
    asked = hf.index(short, **{**settings, "effort": 0})
    assert asked.loss == asked.start_loss
    one = [*short[: fitted[-1]], some[fitted[-1]], *short[fitted[-1] + 1 :]]
    assert hf.index(one, **{**settings, "effort": 100}).loss != asked.loss


def test_heads_of_fewer_than_8_numbers() -> None:
    drawn = [*map(tuple, RNG(0).normal(size=(3, 2, 30, 5)))]
    found = hf.index({"a": drawn, "b": of()}, **{**QUICK, "dim": None})
    assert (found["a"].dim, found["b"].dim) == (5, 8)


def test_huge_keys_leave_the_start() -> None:
    given = [(q * np.float32(1e10), k * np.float32(1e10)) for q, k in pairs()]
    start, after = (hf.index(of(given), **{**SMALL, "effort": effort}) for effort in (0, 20))
    np.testing.assert_array_equal(after.P_k, start.P_k)


def test_sizes_may_be_arrays_without_axes() -> None:
    assert hf.index(of(), **{**QUICK, "effort": 0, "dim": np.array(3)}).dim == 3
