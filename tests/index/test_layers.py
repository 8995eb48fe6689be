"""One index for all heads of a layer: what one head of all their keys side by side would have."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit.errors import InputError, NonFiniteError

HEADS, KEY_HEADS, D = 6, 2, 4
WIDTH = KEY_HEADS * D
SMALL = {"dim": 3, "keys": 12, "window": 4, "first": 2, "effort": 0}
RNG = np.random.default_rng
PADDED = np.arange(40) >= 5


@lru_cache
def pairs() -> tuple[Any, ...]:
    """Query heads that look for the keys of their own key head; one passage is short."""
    rng, found = RNG(0), []
    mix = rng.normal(size=(KEY_HEADS, D, D))
    for n in (40, 40, 33, 40, 40, 40, 40, 40):
        k = rng.normal(size=(KEY_HEADS, n, D)) * [2.0, 1, 1, 0.5]
        q = np.repeat(k @ mix, HEADS // KEY_HEADS, axis=0) + rng.normal(size=(HEADS, n, D))
        found.append((q, k))
    return tuple(found)


def of(given: Any = None, **options: Any) -> list[hf.Attention]:
    return [hf.Attention(q, k, mask="causal", **options) for q, k in given or pairs()]


def side_by_side(attention: hf.Attention) -> hf.Attention:
    """The same attention with one key head: queries are zero where others' keys are."""
    q, k = attention.stored
    wide = np.zeros((HEADS, q.shape[1], WIDTH), q.dtype)
    for h in range(HEADS):
        first = h // (HEADS // KEY_HEADS) * D
        wide[h, :, first : first + D] = q[h]
    return hf.Attention(wide, np.hstack([*k]), **vars(attention.options))


def widened(index: Any) -> Any:
    """An index of one wide head from that of a layer."""
    p_q = np.zeros((HEADS, WIDTH, index.dim), np.float32)
    for h in range(HEADS):
        first = h // (HEADS // KEY_HEADS) * D
        p_q[h, first : first + D] = index.P_q[h]
    return replace(index, P_q=p_q, P_k=index.P_k.reshape(WIDTH, -1))


@lru_cache
def index(form: str = "sum", dtype: str = "float32") -> Any:
    """An index with maps of few bits, so that products of small whole numbers are exact."""
    maps = RNG(2).integers(-8, 9, size=(HEADS + KEY_HEADS, D, 3)).astype(np.float32) / 16
    found = hf.index(of(), **SMALL, form=form, dtype=dtype)
    return replace(found, P_q=maps[:HEADS], P_k=maps[HEADS:], scale=None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": "causal", "scale": 0.3, "softcap": 4.0},
        {"mask": ("window", (19, 2)), "sinks": np.linspace(-1, 1, HEADS)},
        {"mask": RNG(1).random((40, 40)) < 0.7},
        {"mask": "causal", "key_mask": PADDED},
        {"key_lengths": 31},
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "int4"])
@pytest.mark.parametrize("form", ["sum", "dot"])
def test_it_is_the_index_of_all_keys_side_by_side(form: str, dtype: str, options: Any) -> None:
    q, k = (RNG(3).integers(-3, 4, size=(n, 40, D)).astype(float) for n in (HEADS, KEY_HEADS))
    found, given = index(form, dtype), hf.Attention(q, k, **{"scale": D**-0.5, **options})
    wide, joined = widened(found), side_by_side(given)
    np.testing.assert_array_equal(found.scores(given), wide.scores(joined))
    np.testing.assert_array_equal(found.select(given), wide.select(joined))
    for own, other in zip(found.store(k), wide.store(np.hstack([*k])), strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_allclose(
        found.apply(given).matrix(), wide.apply(joined).matrix(), rtol=1e-5, atol=1e-7
    )
    a, b = (x.judge([y]).to_dict() for x, y in ((found, given), (wide, joined)))
    for name in ("rows", "kept_mass", "exact_mass", "share_mean", "share_01", "gain", "recall"):
        assert a[name] == pytest.approx(b[name], abs=1e-4)
    proofs = [x.certify(y, mass=0.4, columns=True) for x, y in ((found, given), (wide, joined))]
    np.testing.assert_array_equal(proofs[0].columns, proofs[1].columns)
    np.testing.assert_allclose(proofs[0].row_mass, proofs[1].row_mass, atol=1e-5)
    np.testing.assert_allclose(proofs[0].row_most, proofs[1].row_most, atol=1e-5)


@pytest.mark.parametrize("form", ["sum", "dot"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dim", [1, 3, D, WIDTH])
def test_without_steps_it_is_the_closed_form_of_wide_keys(
    dim: int, turned: bool, form: str
) -> None:
    frequencies = [1.0, 0.3]
    own: dict[str, Any] = {"rotated": ("rope", frequencies), "length": 150} if turned else {}
    wide = {**own, "rotated": ("rope", frequencies * KEY_HEADS)} if turned else {}
    settings = {**SMALL, "dim": dim, "form": form, "dtype": "float32"}
    found = hf.index(of(), **settings, **own)
    joined = hf.index([side_by_side(x) for x in of(scale=D**-0.5)], **settings, **wide)
    assert found.P_q.shape == (HEADS, D, dim)
    assert found.P_k.shape == (KEY_HEADS, D, dim)
    assert found.start_loss == pytest.approx(joined.start_loss, rel=1e-4)
    for name in ("kq-svd", "loki", "quest"):
        shares = (x.others[name].share_mean for x in (found, joined))
        assert next(shares) == pytest.approx(next(shares), abs=1e-3)


def needles(n: int = 120) -> list[hf.Attention]:
    """Key heads whose queries look for two keys, in a number that varies less than others do."""
    rng, given = RNG(0), []
    for _ in range(8):
        q = rng.normal(size=(HEADS, n, D)) * [1.8, 1.8, 0.2, 0.2]
        k = rng.normal(size=(KEY_HEADS, n, D)) * [1.8, 1.8, 0.2, 0.2]
        q[..., 2] = 4
        for g in range(KEY_HEADS):
            k[g, rng.choice(n // 4, 2, replace=False), 2] = 4
        given.append((q, k))
    return of(given)


@pytest.mark.parametrize("form", ["sum", "dot"])
def test_a_descent_finds_what_closed_forms_miss(form: str) -> None:
    settings = {**SMALL, "dim": 2, "effort": "low", "form": form}
    found = hf.index({"a": needles(), "b": needles()}, **settings, num_threads=2)
    assert found["a"].loss < 0.9 * found["a"].start_loss
    assert found["a"].quality.share_mean > found["a"].others["kq-svd"].share_mean + 0.05
    np.testing.assert_array_equal(found["a"].P_k, found["b"].P_k)


def test_a_mass_may_need_more_numbers_than_a_head_has() -> None:
    found = hf.index(of(), mass=0.9999, keys=12, window=4, first=2, effort=0, dtype="float32")
    assert D < found.dim <= WIDTH


def test_keys_of_a_layer_that_are_not_finite_are_named() -> None:
    own, keys = hf.index({"layer": of()}, **SMALL)["layer"], np.ones((KEY_HEADS, 5, D))
    keys[1, 2, 3] = np.nan
    with pytest.raises(NonFiniteError, match="K in float32 must be finite; got nan at row 7, col"):
        own.store(keys)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_and_weights(suffix: str, tmp_path: Path) -> None:
    found = hf.index({"layer": of()}, **SMALL)
    own, x = found["layer"], RNG(4).normal(size=(30, 5))
    weights = RNG(5).normal(size=(HEADS, 5, D)), RNG(6).normal(size=(KEY_HEADS, 5, D))
    tensors = own.tensors(*weights)
    assert tensors["W_Q_P_q"].shape == (HEADS, 5, 3)
    np.testing.assert_allclose(
        x @ tensors["W_K_P_k"], np.sum(x @ weights[1] @ own.P_k, axis=0), atol=1e-5
    )
    opposite = replace(own, P_k=np.stack([own.P_k[0], -own.P_k[0]]))  # what is left is not rounded
    close = np.stack([weights[1][0], weights[1][0] * (1 + 1e-6)])
    np.testing.assert_allclose(
        opposite.tensors(None, close)["W_K_P_k"], -1e-6 * weights[1][0] @ own.P_k[0], rtol=1e-4
    )
    found.save(tmp_path / f"all{suffix}")
    read = hf.results.Indexes.load(tmp_path / f"all{suffix}")["layer"]
    np.testing.assert_array_equal(read.P_k, own.P_k)
    assert repr(read) == repr(own)
    assert "size 2 x 4 -> 3" in repr(own)
    own.save(tmp_path / f"one{suffix}")
    np.testing.assert_array_equal(hf.results.Index.load(tmp_path / f"one{suffix}").P_q, own.P_q)
    for bad in (
        {"P_q": own.P_q[:5]}, {"P_k": own.P_k[:, :3]}, {"P_k": own.P_k[:0]},
        {"P_k": own.P_k[0, 0]}, {"P_k": own.P_k[None]},
    ):  # fmt: skip
        replace(own, **bad).save(tmp_path / f"bad{suffix}")
        with pytest.raises(InputError, match="P_q and P_k do not fit"):
            hf.results.Index.load(tmp_path / f"bad{suffix}")


Q0, K0 = pairs()[0]


def test_bad_passages() -> None:
    found = index()
    for given, message in (
        ((Q0, K0[0]), "Q must have 6 heads of size 4, and K 2; got 6 heads of size 4, and K 1"),
        ((Q0, np.vstack([K0, K0[:1]])), "K 2; got 6 heads of size 4, and K 3"),
        ((Q0[:4], K0), "Q must have 6 heads"),
        ((Q0[None], K0[None]), "passages must be of one layer"),
    ):
        with pytest.raises(InputError, match=message):
            found.select(*given)
    with pytest.raises(InputError, match=r"K must have shape \(2, m, 4\); got \(40, 4\)"):
        found.store(K0[0])
    with pytest.raises(InputError, match="as many key heads"):
        hf.index([*of(), hf.Attention(Q0, K0[0], mask="causal")], **SMALL)
    with pytest.raises(InputError, match=r"dim must lie in 1 \.\.\. 8"):
        hf.index(of(), **{**SMALL, "dim": WIDTH + 1})
    with pytest.raises(InputError, match="mask must be one for all query heads"):
        hf.index([*of(), hf.Attention(Q0, K0, mask=RNG(0).random((HEADS, 40, 40)) < 0.5)], **SMALL)
