"""What the indexes of several key heads find together, and of several sizes and formats."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import headfit as hf
from headfit.errors import InputError, NonFiniteError

D, HEADS, LAYERS = 8, 2, ("first", "second", "third")
KEYS, WINDOW, FIRST = 12, 4, 2
SETTINGS: dict[str, Any] = {
    "dim": 3, "keys": KEYS, "window": WINDOW, "first": FIRST, "effort": 8, "num_threads": 1
}  # fmt: skip
AGGREGATED = (
    "share_mean", "share_05", "share_01", "share_worst", "gain", "recall", "heaviest", "kl"
)  # fmt: skip


@lru_cache
def passages(count: int = 8, seed: int = 0, **options: Any) -> dict[Any, list[hf.Attention]]:
    """Passages of two key heads in each layer; neighbouring layers attend to similar keys."""
    rng = np.random.default_rng(seed)
    mixes = rng.normal(size=(len(LAYERS), 2, HEADS + 1, D, D)) * 1.4 ** -np.arange(D) * 1.5
    mixes[1] = mixes[0] + 0.2 * mixes[1]
    given: dict[Any, list[hf.Attention]] = {(a, g): [] for a in LAYERS for g in (0, 1)}
    for i in range(count):
        x = rng.normal(size=(36 + 5 * (i % 3), D))
        for (a, g), own in given.items():
            *q, k = np.einsum("nw,hwd->hnd", x, mixes[LAYERS.index(a), g])
            own.append(hf.Attention(np.stack(q), k, **{"mask": "causal", **options}))
    return given


def part(given: dict[Any, list[hf.Attention]], *places: int) -> dict[Any, list[hf.Attention]]:
    return {name: [own[i] for i in places] for name, own in given.items()}


@lru_cache
def found(**settings: Any) -> Any:
    return hf.index(part(passages(), 0, 1, 2, 3, 4), **{**SETTINGS, **settings})


def columns(qualities: Any) -> dict[str, list[Any]]:
    names = [f.name for f in fields(hf.results.IndexQuality)]
    return {name: [getattr(one, name) for one in qualities] for name in names}


def test_all_key_heads_are_judged_at_once() -> None:
    held_out = part(passages(), 5, 6, 7)
    for keys in (None, 20):
        judged = found().judge(held_out, keys=keys)
        assert list(judged.heads) == list(held_out)
        for name, own in held_out.items():
            alone = found()[name].judge(own, keys=keys)
            assert judged[name].to_dict() == alone.to_dict()
        for figure, each in columns(judged.heads.values()).items():
            of = {"rows": np.sum, "share_worst": np.min}.get(figure, np.mean)
            expected = of(each, axis=0)
            np.testing.assert_allclose(getattr(judged, figure), expected, rtol=1e-12)
        assert repr(judged).startswith(
            f"IndexQualities(finds {judged.share_mean:.4f} of the best keys' mass (5% "
            f"{judged.share_05:.3f}, 1% {judged.share_01:.3f}, worst {judged.share_worst:.3f}), "
            f"{judged.gain:.3f} of what is not kept anyway, mass "
        )
    everything = {**held_out, "another": []}
    assert found().judge(everything).to_dict() == found().judge(held_out).to_dict()
    assert json.loads(json.dumps(judged.to_dict()))["gain"] == judged.gain


def test_heads_without_rows_do_not_count() -> None:
    held_out = part(passages(), 5, 6, 7)
    name = ("second", 1)
    q, k = (x[..., :9, :] for x in (held_out[name][0].Q, held_out[name][0].K))
    held_out[name] = [hf.Attention(q, k, mask="causal")]
    judged = found().judge(held_out)
    assert judged[name].rows == 0
    each = [one.gain for at, one in judged.heads.items() if at != name]
    assert judged.gain == pytest.approx(np.mean(each))
    nothing = found().judge(held_out, keys=60)
    assert np.isnan([nothing.gain, nothing.share_worst, *nothing.share_by_position]).all()
    heads = {at: replace(own, quality=judged[at]) for at, own in found().heads.items()}
    assert "(5 of them judged)" in repr(hf.results.Indexes(heads, 0.0))
    assert "of them judged" not in repr(found())


CURVE: dict[str, Any] = {
    "curve_dims": (1, 3, D), "curve_keys": (10, 15), "curve_dtypes": ("int4", "float32")
}  # fmt: skip


def test_a_curve_has_what_single_fits_find() -> None:
    seen: list[Any] = []
    whole = found(**{**CURVE, "callback": lambda name, loss: seen.append(name)})
    assert len(seen) == 6 * (1 + 3 * 2)
    expected = [(d, t, k) for t in CURVE["curve_dtypes"] for d in (1, 3, D) for k in (10, 15)]
    assert list(whole.curve.points) == expected
    for dim, dtype, keys in expected:
        single = hf.index(
            part(passages(), 0, 1, 2, 3, 4), **{**SETTINGS, "dim": dim, "keys": keys}, dtype=dtype
        )
        for name, head in whole.heads.items():
            point = head.curve.points[dim, dtype, keys]
            assert point["finds"].to_dict() == single[name].quality.to_dict()
            closed = {way: of for way, of in single[name].others.items() if way != "quest"}
            for way, of in closed.items():
                assert point[way].to_dict() == of.to_dict()
        of_all = whole.curve.points[dim, dtype, keys]
        each = {name: head.quality.to_dict() for name, head in single.heads.items()}
        assert of_all["finds"].gain == np.mean([one["gain"] for one in each.values()])
        assert {name: one.to_dict() for name, one in of_all["finds"].heads.items()} == each
        assert list(of_all) == ["finds", "kq-svd", "loki"]
        size = {"int4": 2 + dim / 2, "float32": 4 * dim}[dtype]
        for curve, quality in (
            (whole.curve, of_all["finds"]), (whole["third", 1].curve, single["third", 1].quality)
        ):  # fmt: skip
            rows = zip(*curve.to_dict().values(), strict=True)
            (row,) = (row for row in rows if row[:4] == (dtype, dim, keys, "finds"))
            assert row[4:] == (size, *(getattr(quality, figure) for figure in AGGREGATED))
    for name, head in found().heads.items():  # the index itself is that without a curve
        np.testing.assert_array_equal(whole[name].P_k, head.P_k)
        assert whole[name].quality.to_dict() == head.quality.to_dict()
        assert head.curve is None
    assert found().curve is None


def test_a_size_of_the_curve_is_not_fitted_twice() -> None:
    own, seen = passages()["first", 0], list[Any]()
    settings = {**SETTINGS, "callback": lambda *told: seen.append(told)}
    hf.index(own, **settings, curve_dims=[3, 2])
    assert len(seen) == 2
    settings = {**SETTINGS, "dim": None, "effort": 0}
    with_mass = hf.index(own, **settings, mass=0.5, curve_dims=np.array([2]))
    assert isinstance(with_mass, hf.results.Index)
    assert with_mass.curve is not None
    assert list(with_mass.curve.points) == [(2, "float8_e4m3fn", KEYS)]


def test_a_curve_as_text_and_in_files(tmp_path: Path) -> None:
    whole = found(**CURVE)
    _, names, *lines = repr(whole.curve).splitlines()
    assert names.split() == ["dtype", "dim", "keys", "way", "bytes", *AGGREGATED]
    rows = [(at, way, of) for at, ways in whole.curve.points.items() for way, of in ways.items()]
    for ((dim, dtype, keys), way, of), line in zip(rows, lines, strict=True):
        figures = ({"int4": 2 + dim / 2, "float32": 4 * dim}[dtype],
                   *(getattr(of, name) for name in AGGREGATED))  # fmt: skip
        expected = [dtype, f"{dim}", f"{keys}", way, *(f"{x:.4g}" for x in figures)]
        assert line.split() == expected
    assert pickle.loads(pickle.dumps(whole)).curve.to_dict() == whole.curve.to_dict()
    columns = json.loads(json.dumps(whole.curve.to_dict()))
    assert columns["gain"] == [
        way.gain for ways in whole.curve.points.values() for way in ways.values()
    ]
    whole.save(tmp_path / "index.npz")
    read = hf.results.Indexes.load(tmp_path / "index.npz")
    assert read.curve is None
    assert repr(read) == repr(whole)


def test_bad_arguments() -> None:
    own = part(passages(), 5)
    no_numbers = [(a.Q * np.nan, a.K) for a in own["third", 1]]
    for bad in (None, [], own["first", 0], 5):
        with pytest.raises(InputError, match="passages must be a mapping"):
            found().judge(bad)
    with pytest.raises(InputError, match=r"a mapping with those of \('first', 0\)"):
        found().judge({})
    with pytest.raises(InputError, match=r"passages of \('first', 0\): keys must"):
        found().judge(own, keys=6)
    with pytest.raises(NonFiniteError, match=r"passages of \('third', 1\): Q of passage 0"):
        found().judge({**own, ("third", 1): no_numbers})
    for options, message in (
        ({"curve_dims": (D + 1,)}, "passages of 'it': curve_dims must lie in 1 ... 8"),
        ({"curve_dims": "x"}, "curve_dims"),
        ({"curve_dims": (0,)}, "curve_dims must"),
        ({"curve_keys": (WINDOW + FIRST,)}, "curve_keys must be an integer of at least 7"),
        ({"curve_keys": (7.5,)}, "curve_keys must"),
        ({"curve_keys": (10,)}, "curve_dims, curve_keys and curve_dtypes must not be"),
        ({"curve_dims": (2,), "curve_keys": ()}, "curve_dims, curve_keys and curve_dtypes must"),
        ({"curve_dtypes": 3}, "curve_dtypes must be 'float32' or"),
        ({"curve_dtypes": ("int4", "int3")}, "curve_dtypes must be 'float32' or"),
    ):
        with pytest.raises(InputError, match=message):
            hf.index({"it": passages()["first", 0]}, **{**SETTINGS, **options})


# Sharing


def slow_gain(at: Any, name: Any, given: Any, keys: int) -> float:
    """The gain of a key head of layer `name` with the keys that an index of layer `at` selects."""
    gained = best = 0.0
    for own, other in zip(given[name], given[at], strict=True):
        p = hf.attention_matrix(own.Q, own.K, mask=own.mask).mean(axis=0)
        columns = found()[at].select(other, keys=keys)
        for i, row in enumerate(p):
            free = [j for j in np.flatnonzero(row)[FIRST:] if j <= i - WINDOW]
            if len(free) > keys - WINDOW - FIRST:
                gained += sum(row[j] for j in columns[i] if j in free)
                best += np.sort(row[free])[FIRST + WINDOW - keys :].sum()
    return gained / best if best else np.nan


@pytest.mark.parametrize("mask", ["causal", ("window", 20)])
def test_sharing_is_the_gain_with_the_keys_of_an_earlier_layer(mask: Any) -> None:
    given = {**part(passages(), 5, 6)}
    for g in (0, 1):  # in one layer alone
        own = given["second", g]
        given["second", g] = [hf.Attention(a.Q, a.K, mask=mask) for a in own]
    for keys, threads in ((None, 2), (16, 1)):
        shared = found().sharing(given, keys=keys, num_threads=threads)
        assert shared.layers == LAYERS
        for i, layer in enumerate(LAYERS):
            for j, earlier in enumerate(LAYERS):
                gains = [slow_gain((earlier, g), (layer, g), given, keys or KEYS) for g in (0, 1)]
                expected = np.nan if j > i else np.mean(gains)
                assert shared.gain[i, j] == pytest.approx(expected, abs=1e-4, nan_ok=True)
    for i, layer in enumerate(LAYERS):
        own = [found()[layer, g].judge(given[layer, g], keys=16).gain for g in (0, 1)]
        assert shared.gain[i, i] == pytest.approx(np.mean(own), abs=1e-4)


def test_neighbours_that_attend_alike_share_their_keys() -> None:
    shared = found().sharing(part(passages(), 5, 6, 7))
    gain = shared.gain
    assert gain[1, 0] > 0.9 * gain[1, 1]
    assert gain[2, 0] < gain[2, 2] - 0.1
    _, names, *lines = repr(shared).splitlines()
    assert names.split() == ["layer", "0", "1", "2"]
    for i, line in enumerate(lines):
        assert line.split() == [LAYERS[i], f"{i}", *(f"{x:.3f}" for x in gain[i, : i + 1])]
    assert json.loads(json.dumps(shared.to_dict()))["gain"][0] == [gain[0, 0], None, None]
    assert np.isnan(found().sharing(part(passages(), 5), keys=70).gain).all()


def test_layers_may_have_names_alone() -> None:
    heads = {name: index for name, index in found().heads.items() if name[1] == 0}
    given = part({name: passages()[name] for name in heads}, 5, 6)
    whole = replace(found(), heads=heads).sharing(given)
    alone = replace(found(), heads={name[0]: x for name, x in heads.items()})
    shared = alone.sharing({name[0]: own for name, own in given.items()})
    assert shared.layers == LAYERS
    np.testing.assert_array_equal(shared.gain, whole.gain)


def test_what_cannot_be_shared() -> None:
    given = part(passages(), 5, 6)
    fewer = {**given, ("third", 1): given["third", 1][:1]}
    shorter = {**given, ("second", 0): given["second", 0][::-1]}
    for bad in (fewer, shorter):
        with pytest.raises(InputError, match="passages must be of the same tokens"):
            found().sharing(bad)
    with pytest.raises(InputError, match="passages must be a mapping"):
        found().sharing(list(given.values()))
    with pytest.raises(InputError, match="keys must"):
        found().sharing(given, keys=6)
    wider = {name: replace(x, window=9) for name, x in found().heads.items() if name[0] == "third"}
    mixed = hf.results.Indexes({**found().heads, **wider}, 0.0)
    with pytest.raises(InputError, match="keys must be"):
        mixed.sharing(given, keys=WINDOW + FIRST + 1)
    unlike = {name: replace(x, keys=20 + x.window) for name, x in mixed.heads.items()}
    mixed = replace(mixed, heads=unlike)
    with pytest.raises(InputError, match="keys must be given where the indexes have different"):
        mixed.sharing(given)
    assert mixed.sharing(given, keys=40).gain.shape == (3, 3)
    heads = dict(found().heads)
    for names in (
        [1, 2],
        ["a", ("a", None)],
        ["a", ()],
        [("a", 0), ("b", 1)],
        [("a", 0, 1), ("b", 0, 1)],
        [1, ("a", 0)],
    ):
        one = hf.results.Indexes(dict(zip(names, heads.values(), strict=False)), 0.0)
        with pytest.raises(InputError, match=r"sharing needs names \(layer, key head\)"):
            one.sharing(given)


# Pictures


def test_a_picture_by_size() -> None:
    whole = found(**CURVE)
    for result in (whole["second", 0], whole, whole["third", 1].curve):
        curve = getattr(result, "curve", result)
        lines = hf.plot.index(result, ax=Figure().subplots())
        assert len(lines) == 2 * 2 * 3
        names = [f"index, {x}, {keys} keys" for x in ("int4", "float32") for keys in (10, 15)]
        assert [line.get_label() for line in lines[::3]] == names
        legend = lines[0].axes.get_legend().get_texts()
        names += ["KQ-SVD, the same", "Loki, the same"]
        assert [text.get_text() for text in legend] == names
        at = [(dim, "int4", 10) for dim in (1, 3, D)]
        for line, way in zip(lines, ("finds", "kq-svd", "loki"), strict=False):
            assert line.get_xdata().tolist() == [2.5, 3.5, 6]
            assert line.get_ydata().tolist() == [curve.points[x][way].gain for x in at]
        lines[0].figure.canvas.draw()


def test_a_picture_of_something_else() -> None:
    for bad in (None, found(), found()["first", 0], found()["first", 0].quality, 3):
        with pytest.raises(InputError, match="result must be of index, with curve_dims"):
            hf.plot.index(bad)
    with pytest.raises(InputError, match="ax must be"):
        hf.plot.index(found(**CURVE), ax=3)


@pytest.mark.parametrize(("place", "keys"), [(0, 7), (1, 9), (2, KEYS)])
def test_limits_are_about_the_best_free_keys(place: int, keys: int) -> None:
    passage, kept = passages()["first", 0][place], WINDOW + FIRST
    least = found()["first", 0].limits(passage, keys=keys, num_threads=1)
    assert least.certificate.holds
    assert 1 < least.lower_bound.dim <= least.dim < D
    weights, products = passage.matrix().mean(axis=0), least.Q @ least.K.T
    for row in range(kept, passage.n):
        free = range(FIRST, row - WINDOW + 1)
        best = sorted(free, key=lambda j: -weights[row, j])[: keys - kept]
        scored = sorted(free, key=lambda j: -products[row - kept, j - FIRST])
        assert set(scored[: len(best)]) == set(best), row


@pytest.mark.parametrize(
    "options",
    [{"mask": None}, {"mask": ("window", 9)}, {"key_lengths": 20}, {"key_mask": np.arange(36) > 2}],
)
def test_limits_are_of_whole_causal_passages(options: dict[str, Any]) -> None:
    passage = passages()["first", 0][0]
    other = hf.Attention(passage.Q, passage.K, **{"mask": "causal", **options})
    refused = "passage must be causal, with more than 6 queries, as many keys, and no padding"
    with pytest.raises(InputError, match=refused):
        found()["first", 0].limits(other)
    short = hf.Attention(passage.Q[:, :6], passage.K[:6], mask="causal")
    with pytest.raises(InputError, match=refused):
        found()["first", 0].limits(short)
