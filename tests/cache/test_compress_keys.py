"""Keys of a layer as latents of a few bits."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf
from headfit import _core
from headfit._base.positions import as_rotary
from headfit._compress.passages import moved_by
from headfit.errors import InputError, NonFiniteError

D, HEADS, KEY_HEADS = 8, 4, 2
WIDTH = D * KEY_HEADS
ROPE = ("rope-half", 100.0)


@lru_cache
def passages(count: int = 8, dtype: str = "float32", size: float = 2.0) -> Any:
    """Passages of different lengths; keys of both heads come from a few numbers of the token."""
    rng = np.random.default_rng(0)
    keys, queries = rng.normal(size=(2, 12, HEADS, D)) * size
    fall = 1.5 ** -np.arange(12)
    found = []
    for i in range(count):
        x = rng.normal(size=(30 + 5 * (i % 3), 12)) * fall
        q, k = (np.einsum("nw,whd->hnd", x, mix) for mix in (queries, keys[:, :KEY_HEADS]))
        found.append((q.astype(dtype), k.astype(dtype)))
    return tuple(found)


def compressed(given: Any = None, options: Any = None, **settings: Any) -> Any:
    """The keys of one layer, of pairs of queries and keys with the options of an `Attention`."""
    pairs = passages() if given is None else given
    logits = {"mask": "causal", "position": ROPE, **(options or {})}
    layer = [hf.Attention(q, k, **logits) for q, k in pairs]
    return hf.compress_keys({"it": layer}, **{"num_threads": 2, "effort": "low", **settings})["it"]


def weights(q: Any, k: Any, allowed: Any) -> Any:
    """The attention of all query heads, in float64."""
    k = np.repeat(np.asarray(k, float), HEADS // KEY_HEADS, axis=0)
    s = np.where(allowed, np.asarray(q, float) @ k.swapaxes(1, 2) / np.sqrt(D), -np.inf)
    s = np.exp(s - s.max(-1, keepdims=True))
    return s / s.sum(-1, keepdims=True)


def turned(k: Any, sign: int) -> Any:
    """Keys turned to their positions, or back: complex numbers times units."""
    z = k[..., : D // 2] + 1j * k[..., D // 2 :]
    angles = np.arange(k.shape[-2])[:, None] * 100.0 ** (-np.arange(0, D, 2) / D)
    z = z * np.exp(sign * 1j * angles)
    return np.concatenate([z.real, z.imag], -1)


def read_by_hand(found: Any, k: Any) -> Any:
    """What is read of rotated keys, by the definition of the format, in float64."""
    flat = turned(np.asarray(k, float), -1).swapaxes(0, 1).reshape(-1, WIDTH)
    z = (flat - found.mean) @ found.encode
    if found.bits is not None:
        counts = 2.0 ** np.array(found.bits)
        steps: Any = 1.0
        if found.step != "latent":
            together = min(99 if found.step == "token" else found.step, len(found.bits))
            groups = -(-len(found.bits) // together)
            of_token = np.ascontiguousarray(found.store(k)[:, -2 * groups :])
            steps = np.repeat(of_token.view(np.float16).astype(float), together, axis=1)
            steps = steps[:, : len(found.bits)]
        z = np.clip(np.round(z / steps - 0.5) + 0.5, -(counts - 1) / 2, (counts - 1) / 2) * steps
    flat = z @ found.decode + found.mean
    return turned(flat.reshape(-1, KEY_HEADS, D).swapaxes(0, 1), 1)


@pytest.mark.parametrize("sizes", [{"bytes": 5}, {"rank": 4, "bits": 4}, {"rank": 6}, {"bits": 3}])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("step", ["token", "latent", 1, 3])
def test_reported_distances_are_those_of_what_is_read(sizes: Any, dtype: str, step: Any) -> None:
    if step != "token" and sizes == {"rank": 6}:
        return  # latents in float16 have no steps
    given = passages(dtype=dtype)
    found = compressed(given, step=step, **sizes)
    tv, kl = [], []
    for i in found.held_out:
        at = hf.Attention(*given[i], position=ROPE).rotated()
        read = found.read(found.store(at.K))
        np.testing.assert_allclose(read, read_by_hand(found, at.K), atol=0.02)
        allowed = np.tri(at.n, dtype=bool)
        a, b = weights(at.Q, at.K, allowed), weights(at.Q, read, allowed)
        tv.append(np.abs(a - b).sum(-1).ravel() / 2)
        ratio = np.log(np.where(a > 0, a, 1) / np.where(b > 0, b, 1))
        kl.append((a * ratio).sum(-1).ravel())
        applied = found.apply(*given[i], position=ROPE, mask="causal")
        np.testing.assert_allclose(applied.matrix(), b, atol=1e-4)
    tv, kl = np.concatenate(tv), np.concatenate(kl)
    for got, expected in (
        (found.tv_mean, tv.mean()),
        (found.tv_95, np.quantile(tv, 0.95)),
        (found.tv_worst, tv.max()),
        (found.kl, kl.mean()),
    ):
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert found.kl_by_position.shape == (8,)
    assert found.kl_by_position.min() <= found.kl <= found.kl_by_position.max()


@pytest.mark.parametrize(
    ("sizes", "bytes_of_token"),
    [
        ({"bytes": 5}, 10),
        ({"bytes": 100}, 2 + 12),  # as many as keys come from
        ({"rank": 4, "bits": 4}, 2 + 2),
        ({"rank": 5, "bits": 3}, 2 + 2),
        ({"rank": 1, "bits": 1}, 1 + 2),
        ({"rank": 3, "bits": 5}, 2 + 2),
        ({"rank": 6}, 12),
        ({"bits": 8}, 2 + WIDTH),
        ({}, 4),
    ],
)
def test_a_token_takes_the_bytes_that_are_reported(sizes: Any, bytes_of_token: int) -> None:
    for step in ("token", "latent", 16, 3) if sizes != {"rank": 6} else ("token",):
        found = compressed(effort=0, step=step, **sizes)
        of_token, is_budget = bytes_of_token, sizes in ({}, {"bytes": 5})
        if step == "latent" and found.bits and not is_budget:
            of_token -= 2  # bits cannot take more; else they do
        elif step == 3 and found.bits and not is_budget:
            of_token += 2 * ((len(found.bits) - 1) // 3)
        stored = found.store(passages()[1][1])
        assert stored.shape == (passages()[1][1].shape[1], of_token)
        assert stored.dtype == np.uint8
        assert found.bytes == of_token / KEY_HEADS
        assert found.whole_bytes == 2 * D
        assert list(found.bits or ()) == sorted(found.bits or (), reverse=True)


def test_more_bytes_and_a_descent_lose_less() -> None:
    # Keys vary most where queries hardly look, which principal components do not know.
    w = np.tile(np.logspace(-1, 1, D // 2), 2)
    given = [(q * w, k / w) for q, k in passages(20)]
    start, low = (compressed(given, rank=4, effort=effort) for effort in (0, "medium"))
    assert low.validation_kl < 0.5 * start.validation_kl
    assert start.validation_kl == start.start_kl
    assert low.kl < 0.5 * start.kl
    assert compressed(bytes=8).kl < 0.5 * compressed(bytes=4).kl


def test_all_latents_lose_nothing() -> None:
    found = compressed(rank=WIDTH, effort=0)
    assert found.kl < 1e-4  # they are stored in float16
    assert compressed(bytes=100).kl < 1e-3


def test_positions_may_have_been_applied_before() -> None:
    given = [hf.Attention(q, k, position=ROPE).rotated() for q, k in passages()]
    pairs = [(a.Q, a.K) for a in given]
    one = compressed(bytes=5)
    other = compressed(pairs, {"position": None}, bytes=5, rotated=ROPE)
    assert one.kl == other.kl
    np.testing.assert_array_equal(one.decode, other.decode)
    # The position of the first key may be any.
    keys = np.asarray(passages()[0][1], np.float32)
    n = keys.shape[1]
    shifted = turned(np.concatenate([0 * keys, keys], axis=1), 1)[:, n:].astype(np.float32)
    stored, at = one.store(shifted, first=n), one.store(given[0].K)
    # Turning back rounds, so that a latent halfway between two multiples may become either.
    assert (stored != at).mean() < 0.02
    back = one.read(stored, first=n)
    assert np.abs(back - shifted).max() < 1.5 * np.abs(one.read(at) - given[0].K).max() + 0.1


def test_without_positions_maps_act_on_keys_as_they_are() -> None:
    found = compressed(options={"position": None}, rank=6)
    _, k = passages()[0]
    assert found.position is None
    flat = np.swapaxes(k, 0, 1).reshape(-1, WIDTH)
    z = ((flat - found.mean) @ found.encode).astype(np.float16).astype(float)
    expected = (z @ found.decode + found.mean).reshape(-1, KEY_HEADS, D)
    np.testing.assert_allclose(found.read(found.store(k)).swapaxes(0, 1), expected, atol=0.02)


def test_maps_after_positions_hold_up_to_the_length() -> None:
    """Fitted to passages at one place they lose more at others; keys are not turned back."""
    position = ("rope-half", (0.3, 0.01, 0.003, 0.001))
    rotary = as_rotary(position, D)
    given = [hf.Attention(*pair, position=position, mask="causal") for pair in passages(12)]
    pairs = [(a.rotated().Q, a.rotated().K) for a in given]
    turned = {"options": {"position": None}, "rotated": position}

    def worst(found: Any) -> float:
        kl = []
        for by in (0, 50, 100, 150):
            moved = [moved_by(by, given[i].rotated(), rotary) for i in found.held_out]
            cores = [a.core for a in moved], [found.apply(a).core for a in moved]
            kl.append(_core.compare_heads(*cores, 1)[0].mean())
        return float(max(kl))

    still, found = (compressed(pairs, rank=10, effort=100, length=n, **turned) for n in (40, 190))
    assert worst(still) > 10 * still.kl
    assert worst(found) < 0.3 * worst(still)
    assert worst(found) < 3 * found.kl
    k = pairs[0][1]
    np.testing.assert_array_equal(found.store(k), found.store(k, first=70))
    flat = k.swapaxes(0, 1).reshape(-1, WIDTH)
    z = ((flat - found.mean) @ found.encode).astype(np.float16).astype(float)
    expected = (z @ found.decode + found.mean).reshape(-1, KEY_HEADS, D).swapaxes(0, 1)
    np.testing.assert_allclose(found.read(found.store(k)), expected, atol=0.02)
    with pytest.raises(InputError, match="weights must not be given: maps act after rotary"):
        found.tensors(np.ones((20, WIDTH)))
    long = np.zeros((KEY_HEADS, 191, D))
    with pytest.warns(UserWarning, match="more than the 190 tokens that the maps are meant for"):
        found.apply(np.zeros((HEADS, 3, D)), long, position=position)


@pytest.mark.parametrize("kind", ["rope", "rope-half"])
@pytest.mark.parametrize("sizes", [{"bytes": 5}, {"rank": 9, "bits": 7}, {"rank": 6}])
def test_the_core_rounds_as_what_is_read(kind: str, sizes: Any) -> None:
    """A single passage chooses and judges: by the core's own rounding, and by bytes."""
    given = [(x[:, :30], y[:, :30]) for x, y in passages(1)]
    found = compressed(given, {"position": (kind, 100.0)}, effort=0, **sizes)
    assert found.start_kl == pytest.approx(found.kl, rel=1e-2)


def of_layer(given: Any) -> Any:
    return [hf.Attention(q, k, position=ROPE, mask="causal") for q, k in given]


def test_layers_and_threads() -> None:
    seen: dict[Any, float] = {}
    layers = {"a": of_layer(passages()), 7: of_layer(passages(6))}
    options: dict[str, Any] = {"bytes": 5, "effort": 30}
    found = hf.compress_keys(layers, callback=seen.__setitem__, num_threads=2, **options)
    assert seen == {name: found[name].validation_kl for name in layers}
    assert found.bytes == found["a"].bytes == 5
    alone = hf.compress_keys({7: layers[7]}, num_threads=1, **options)[7]
    np.testing.assert_array_equal(alone.encode, found[7].encode)
    assert alone.kl == found[7].kl
    assert found.kl == np.mean([found["a"].kl, found[7].kl])
    assert json.loads(json.dumps(found.to_dict()))["layers"]["a"]["bytes"] == 5
    assert "2 layers: 16 -> 5 bytes" in repr(found)


def test_judging_takes_no_more_threads_than_the_call(monkeypatch: Any) -> None:
    asked: list[Any] = []
    taken = "headfit._cache.packing.thread_count"
    monkeypatch.setattr(taken, lambda count: asked.append(count) or 1)
    given = [(a, a.K) for a in of_layer(passages())]
    hf.compress_keys({0: [a for a, _ in given]}, effort=0, num_threads=1)
    hf.compress_values({0: given}, num_threads=1)
    assert len(asked) >= 4
    assert set(asked) == {1}


def test_one_passage_and_one_head() -> None:
    q, k = passages()[0]
    single = compressed([(q, k)], bytes=5, effort=20)
    assert single.held_out.size == single.validation.size == 0
    assert "on the passage itself" in repr(single)
    head = compressed([(q[0], k[0]) for q, k in passages()], bytes=5, effort=20)
    assert head.key_heads == 1
    keys = hf.Attention(q[0], k[0], position=ROPE).rotated().K
    assert head.read(head.store(keys)).shape == (1, len(keys), D)
    assert head.apply(q[0], k[0], position=ROPE).K.shape == (len(keys), D)


@pytest.mark.parametrize("dense", [False, True])
def test_masks_sinks_and_softcaps(dense: bool) -> None:
    given = [(q[:, :30], k[:, :30]) for q, k in passages()]
    allowed = np.tri(30, dtype=bool) & (np.random.default_rng(1).random((30, 30)) < 0.15)
    options: dict[str, Any] = {"softcap": 5.0, "sinks": [0.5, -1, 0, 2]}
    masked = {**options, "mask": allowed if dense else sp.csr_array(allowed)}
    found = compressed(given, masked, bytes=5, effort=20)
    a, b = (
        hf.Attention(*given[found.held_out[0]], mask=allowed, position=ROPE, **options).rotated(),
        found.apply(*given[found.held_out[0]], mask=allowed, position=ROPE, **options),
    )
    tv = np.abs(a.matrix() - b.matrix()).sum(-1) + np.abs((a.matrix() - b.matrix()).sum(-1))
    assert found.tv_worst >= tv.max() / 2 - 1e-6
    if not dense:
        other = compressed(given, {**options, "mask": allowed}, bytes=5, effort=20)
        assert found.kl == pytest.approx(other.kl, rel=1e-3)


@pytest.mark.parametrize("padding", ["key_mask", "key_lengths"])
def test_padding_has_no_part_in_what_is_found(padding: str) -> None:
    alone: dict[str, Any] = {"mask": None, "position": None}
    cut = compressed([(q[:, :30], k[:, :30]) for q, k in passages()], alone, bytes=5)
    exists = np.arange(45) < 30
    hidden = {"key_mask": exists} if padding == "key_mask" else {"key_lengths": 30}
    for size in (0.0, 100.0):
        longer = [
            (q[:, :30], np.hstack([k[:, :30], np.full((KEY_HEADS, 15, D), size, k.dtype)]))
            for q, k in passages()
        ]
        found = compressed(longer, {**alone, **hidden}, bytes=5)
        np.testing.assert_array_equal(found.bits, cut.bits)
        np.testing.assert_allclose(found.encode, cut.encode, rtol=1e-3, atol=1e-4)
        assert found.kl == pytest.approx(cut.kl, rel=1e-3)
    nothing = [(q, k) for q, k in passages(3)]
    empty = compressed(nothing, {"key_lengths": 0}, bytes=5, effort=2)
    assert np.isfinite(empty.encode).all()


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("effort", [0, 5])
def test_few_tokens_leave_nothing_to_rounding_errors(count: int, effort: int) -> None:
    rng = np.random.default_rng(0)
    given = [(rng.normal(size=(2, 20, 64)), rng.normal(size=(2, 20, 64))) for _ in range(count)]
    other = rng.normal(size=(2, 50, 64))
    found = hf.compress_keys({"it": given}, bytes=40, effort=effort)["it"]
    assert len(found.bits) < 20 * count
    assert np.abs(found.encode).max() < 100
    assert np.linalg.norm(found.read(found.store(other))) < 1.5 * np.linalg.norm(other)
    layer = [(hf.Attention(q, k), k) for q, k in given]
    values = hf.compress_values({"it": layer}, bytes=40)["it"]
    assert np.linalg.norm(values.read(values.store(other))) < 1.5 * np.linalg.norm(other)


def test_rows_that_attend_to_nothing_do_not_count() -> None:
    seen = np.tri(30, dtype=bool) & (np.arange(30) % 3 > 0)[:, None]
    rows = [(q[:, :30], k[:, :30]) for q, k in passages()]
    some = compressed(rows, {"mask": seen, "position": None}, bytes=5, effort=0, held_out=0.1)
    alone = [(q[:, seen.any(axis=1)], k) for q, k in rows]
    mask = seen[seen.any(axis=1)]
    cut = compressed(alone, {"mask": mask, "position": None}, bytes=5, effort=0, held_out=0.1)
    assert some.validation_kl == pytest.approx(cut.validation_kl, rel=1e-5)


def test_keys_that_do_not_vary() -> None:
    q = passages()[0][0]
    for value, step in product((0.0, 3.0), ("token", "latent", 2)):
        given = [(q, np.full((KEY_HEADS, q.shape[1], D), value))] * 3
        found = compressed(given, {"position": None}, step=step)
        assert found.kl < 1e-6
        read = found.read(found.store(np.full((KEY_HEADS, 4, D), value)))
        np.testing.assert_allclose(read, value, atol=1e-4)


@pytest.mark.parametrize("size", [1e-8, 1e8])
@pytest.mark.parametrize("sizes", [{"bytes": 5}, {"rank": 8}])
def test_units_of_keys_do_not_matter(size: float, sizes: Any) -> None:
    given = passages()
    one = compressed(given, effort=20, **sizes)
    other = compressed([(q / size, k * size) for q, k in given], effort=20, **sizes)
    assert other.kl == pytest.approx(one.kl, rel=0.2)


def test_no_tokens() -> None:
    for sizes in ({"bytes": 5}, {"rank": 6}):
        found = compressed(effort=0, **sizes)
        stored = found.store(np.zeros((KEY_HEADS, 0, D)))
        assert stored.shape == (0, found.bytes * KEY_HEADS)
        assert found.read(stored).shape == (KEY_HEADS, 0, D)


def test_weights_fold() -> None:
    found = compressed(options={"position": None}, bytes=5)
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(20, 24)), rng.normal(size=(24, WIDTH))
    tensors = found.tensors(w)
    np.testing.assert_allclose(
        x @ tensors["W_latent"] + tensors["b_latent"],
        (x @ w - found.mean) @ found.encode,
        atol=1e-3,
    )
    assert tensors["bits"].tolist() == list(found.bits)
    with pytest.raises(InputError, match=r"weights must have shape \(width, 16\); got \(16, 24\)"):
        found.tensors(w.T)
    for bad in (np.nan, 1e300):
        with pytest.raises(InputError, match="W_latent must fit float32; got numbers up"):
            found.tensors(np.full_like(w, bad))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_saved_tensors(suffix: str, tmp_path: Any) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
        from safetensors.numpy import load_file as load
    else:
        load = np.load
    found = compressed(bytes=5, effort=0)
    found.save(tmp_path / f"keys{suffix}")
    tensors = load(tmp_path / f"keys{suffix}")
    for name, x in found.tensors().items():
        np.testing.assert_array_equal(tensors[name], x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bytes": 1}, "layer 'it': bytes must be at least 1.5 for 2 key heads: 8 bits of "),
        ({"bytes": 0.4, "step": "latent"}, "layer 'it': bytes must be at least 0.5 for 2 key head"),
        ({"step": "head"}, "step must be a number of latents, 'token' or 'latent'; got 'head'"),
        (
            {"step": 0},
            "step, where it is not 'token' or 'latent', must be an integer of at least 1",
        ),
        ({"step": 2.5}, "step, where it is not 'token' .* must be an integer of .*; got 2.5"),
        ({"step": None}, "step, where it is not 'token' .* must be an integer of .*; got None"),
        ({"step": 3, "rank": 4}, "step must not be given with rank alone"),
        ({"bytes": 5, "rank": 4}, "bytes must not be given beside rank or bits"),
        ({"rank": 17}, "rank must"),
        ({"bits": 9}, "bits must"),
        ({"held_out": 1.5}, "held_out must"),
        ({"validation": 1}, "validation must lie in"),
        ({"effort": "much"}, "effort must"),
        ({"callback": 3}, "callback must"),
        ({"length": 39}, "length must be an integer of at least 40; got 39"),
        ({"length": 80, "options": {"position": None}}, "length must go with rotary positions"),
        ({"rotated": ROPE}, "rotated must not be given beside passages with rotary positions"),
    ],
)
def test_bad_options(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compressed(**settings)


@pytest.mark.parametrize("sizes", [[(30, 64), (1, 40), (8, 48)], [(12, 5), (64, 64), (7, 33)]])
def test_divergence_by_position(sizes: Any) -> None:
    """The last query stands at the last key, those before the first key at the first."""
    rng = np.random.default_rng(5)
    layer = [
        hf.Attention(*(rng.normal(size=(h, x, D)) for h, x in ((HEADS, n), (KEY_HEADS, m))))
        for n, m in sizes
    ]
    found = hf.compress_keys({"it": layer}, bytes=3, effort=0, held_out=0.67)["it"]
    eighths: list[list[float]] = [[] for _ in range(8)]
    judged = [layer[i] for i in found.held_out]
    assert len(judged) == 2
    longest = max(a.m for a in judged)
    for a in judged:
        whole, small = a.matrix(), found.apply(a).matrix()
        kl = (whole * np.log(whole / small)).sum(-1)
        for i in range(a.n):
            place = max(i + a.m - a.n, 0)
            eighths[8 * place // longest].extend(kl[:, i].tolist())
    expected = [np.mean(x) if x else np.nan for x in eighths]
    np.testing.assert_allclose(found.kl_by_position, expected, rtol=1e-3)


def test_bad_passages() -> None:
    q, k = passages()[0]
    for given, message in [
        ([], "at least; got none"),
        ([(q, k[:1]), (q, k)], "must be of one layer"),
        ([(q[None], k[None])], "of one layer, with Q of shape"),
        ([(q[:, :0], k)], "not be empty"),
    ]:
        with pytest.raises(InputError, match=message):
            compressed(given, {"mask": None})
    mixed = [hf.Attention(q, k, position=ROPE), hf.Attention(q, k)]
    with pytest.raises(InputError, match="the same rotary positions"):
        hf.compress_keys({"it": mixed})
    with pytest.raises(InputError, match="rotated must be a rotary position"):
        compressed(options={"position": None}, rotated="alibi")
    with pytest.raises(InputError, match=r"rotated, which turns whole heads: .* 4 pairs .* got 2"):
        compressed(options={"position": None}, rotated=("rope", (1.0, 0.1)))
    broken = k.copy()
    broken[1, 2, 3] = np.nan
    with pytest.raises(NonFiniteError, match="K of passage 1"):
        compressed([(q, k), (q, broken)])
    with pytest.raises(InputError, match="layer 'b': bytes must be at least"):
        hf.compress_keys({"b": [(q, k)]}, bytes=0.5)
    for bad in ({}, [(q, k)], None):
        with pytest.raises(InputError, match="layers must be a mapping"):
            hf.compress_keys(bad)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match="layer 'it': K of passage 0, in float32"):
        compressed([(q, 1e300 * k.astype(float))])
    with pytest.raises(ZeroDivisionError):
        compressed(callback=lambda *_: 1 / 0)
    found = compressed(effort=0)
    with pytest.raises(NonFiniteError, match="states in float32"):
        found.store(k * np.nan)
    with pytest.raises(InputError, match=r"states must have shape \(2, n, 8\); got \(1, 30, 8\)"):
        found.store(k[:1])
    with pytest.raises(InputError, match=r"stored must be uint8 of shape \(n, 4\)"):
        found.read(found.store(k)[:, :3])
    with pytest.raises(InputError, match="position must be that of the result, None"):
        compressed(options={"position": None}, effort=0).apply(q, k, position=ROPE)


def test_latents_beyond_float16_are_stored_as_its_largest_numbers() -> None:
    rng = np.random.default_rng(0)
    layer = [(rng.normal(size=(2, 40, 8)), rng.normal(size=(1, 40, 8))) for _ in range(4)]
    found = hf.compress_keys({0: layer}, rank=4, effort=0)[0]
    keys = rng.normal(size=(1, 6, 8))
    alone, keys[:, 3:] = found.read(found.store(keys)), keys[:, 3:] * 1e20
    read = found.read(found.store(keys))
    np.testing.assert_array_equal(read[:, :3], alone[:, :3])
    largest = np.sign((keys[0, 3:] - found.mean) @ found.encode) * 65504.0
    np.testing.assert_allclose(read[0, 3:], largest @ found.decode + found.mean, rtol=1e-4)


def test_what_float32_does_not_hold_is_refused_without_a_warning() -> None:
    rng = np.random.default_rng(0)
    layer = [(rng.normal(size=(2, 40, 8)), rng.normal(size=(1, 40, 8))) for _ in range(4)]
    found = hf.compress_keys({0: layer}, rank=4, effort=0)[0]
    with pytest.raises(NonFiniteError, match="states in float32"):
        found.store(np.full((1, 2, 8), 1e39))


def test_results_by_name_are_iterated_by_name() -> None:
    rng = np.random.default_rng(0)
    layers = {name: [tuple(rng.normal(size=(2, 1, 30, 4))) for _ in range(4)] for name in (0, "b")}
    found = hf.compress_keys(layers, bytes=4, effort=0)
    assert list(found) == [0, "b"]
    assert "b" in found
    assert "c" not in found


@pytest.mark.parametrize("bits", [None, 4])
def test_tiny_keys_and_any_number_of_bytes(bits) -> None:
    rng = np.random.default_rng(0)
    layer = [(rng.normal(size=(2, 40, 8)), rng.normal(size=(2, 40, 8))) for _ in range(4)]
    tiny = [(q, k * 1e-40) for q, k in layer]
    found = hf.compress_keys({0: tiny}, rank=4, bits=bits, effort=0)[0]
    assert found.kl < 1e-6
    assert hf.compress_keys({0: layer}, bytes=1e308, effort=0)[0].kl < 1e-3


@pytest.mark.parametrize("lengths", [[60, 10], [10, 60]])
def test_heads_that_share_keys_and_see_more_or_fewer_of_them(lengths) -> None:
    """With as many latents as numbers the loss of the fit is zero."""
    rng = np.random.default_rng(0)
    passages = [
        hf.Attention(rng.normal(size=(2, 60, 8)), rng.normal(size=(1, 60, 8)), key_lengths=lengths)
        for _ in range(4)
    ]
    found = hf.compress_keys({0: passages}, rank=8, effort=0)[0]
    assert abs(found.start_kl) < 1e-6
    assert abs(found.validation_kl) < 1e-6
    fitted = hf.compress_keys({0: passages}, rank=4, bits=3, effort=40)[0]
    assert fitted.validation_kl == pytest.approx(fitted.kl, rel=0.5)


@pytest.mark.parametrize("lengths", [[4096, 128], [128, 4096]])
def test_few_entries_for_one_head_and_tiles_for_another(lengths) -> None:
    """Of 40 keys in the first tile and one in each of 31 others, one head sees the first alone."""
    n = 4096
    columns = np.r_[np.arange(40), np.arange(1, 32) * 128]
    offsets = np.arange(n + 1) * columns.size
    allowed = np.ones(n * columns.size, bool)
    mask = sp.csr_array((allowed, np.tile(columns, n), offsets), shape=(n, n))
    rng = np.random.default_rng(0)
    passages = [
        hf.Attention(*(rng.normal(size=(heads, n, 8)).astype(np.float32) for heads in (2, 1)),
                     mask=mask, key_lengths=lengths)
        for _ in range(2)
    ]  # fmt: skip
    found = hf.compress_keys({0: passages}, rank=8, effort=0, num_threads=1)[0]
    assert abs(found.start_kl) < 1e-6
