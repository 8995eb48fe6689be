"""One budget for heads or layers: the choice among results of several sizes."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.compress.test_compress_heads import HEADS, D

import headfit as hf

SIZES = (1, 2, 4, 6, D)


def curves(seed: int, names: int) -> tuple[list[Any], dict[Any, list[float]]]:
    """Results whose losses are given: no maps are fitted to them."""
    rng = np.random.default_rng(seed)
    losses = {name: sorted(rng.random(len(SIZES)), reverse=True) for name in range(names)}
    one = hf.compress(HEADS["b"], dim=1, effort=0, curve_dims=())
    return [
        hf.results.CompressedHeads(
            {name: replace(one, dim=d, validation_kl=x[at]) for name, x in losses.items()}, 1.0
        )
        for at, d in enumerate(SIZES)
    ], losses


@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_choices_are_within_the_budget_and_lose_no_more_than_the_results(
    seed: int, costs: bool
) -> None:
    results, losses = curves(seed, 3)
    weights = np.random.default_rng(seed).random(3) if costs else np.ones(3)
    given = {n: weights[n] * losses[n][0] for n in losses} if costs else None
    totals = set()
    for size in np.linspace(1, D, 40):
        found = hf.spend(results, size, costs=given)
        assert found.total <= size * 3 + 1e-9
        totals.add(found.total)
        for name, one in found.heads.items():
            assert one is results[SIZES.index(one.dim)][name]
        lost = sum(weights[n] * one.validation_kl for n, one in found.heads.items())
        best = min(
            sum(weights[n] * losses[n][at] for n, at in enumerate(choice))
            for choice in itertools.product(range(len(SIZES)), repeat=3)
            if sum(SIZES[at] for at in choice) <= size * 3 + 1e-9
        )
        # Nor does one of the results as it is, where as much is left between two corners.
        assert best - 1e-12 <= lost
        for at, d in enumerate(SIZES):
            if d <= size + 1e-9:
                assert lost <= sum(weights[n] * x[at] for n, x in losses.items()) + 1e-12
    assert len(totals) > 5
    everything = hf.spend(results, D, costs=given)
    assert all(one.validation_kl == losses[n][-1] for n, one in everything.heads.items())


@pytest.mark.parametrize("seed", range(6))
def test_corners_of_the_hull_are_best(seed: int) -> None:
    results, losses = curves(seed, 3)
    slopes = []
    for loss in losses.values():
        at = 0
        while at < len(SIZES) - 1:
            steps = {
                b: (loss[b] - loss[at]) / (SIZES[b] - SIZES[at]) for b in range(at + 1, len(SIZES))
            }
            best = min(steps, key=lambda b: (steps[b], b))
            slopes.append((steps[best], SIZES[best] - SIZES[at], loss[best] - loss[at]))
            at = best
    size, lost = 3 * SIZES[0], sum(loss[0] for loss in losses.values())
    for _, more, change in sorted(slopes):
        size, lost = size + more, lost + change
        found = hf.spend(results, size / 3)
        assert found.total == size
        assert sum(one.validation_kl for one in found.heads.values()) == pytest.approx(lost)


def test_heads_that_lose_more_get_more() -> None:
    results = [hf.compress(HEADS, dim=d, mask="causal") for d in SIZES]
    found = hf.spend(results, 4)
    assert found.total <= 12
    assert found[("a", 0)].dim < found[("a", 1)].dim
    assert found.tv_mean < results[2].tv_mean
    assert found.seconds == pytest.approx(sum(one.seconds for one in results))
    asked = hf.spend(tuple(results), 4, costs={**dict.fromkeys(HEADS, -0.1), "b": 1})
    assert asked["b"].dim == D
    assert asked[("a", 1)].dim == 1


def test_keys_and_values_of_layers() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 8, 2, 30, 8)) * 2.0 ** -np.arange(8)
    flat = rng.normal(size=(8, 2, 30, 8))
    layers = {
        name: [(hf.Attention(q, k, mask="causal"), v) for q, k, v in zip(*x, values, strict=True)]
        for name, values in (("easy", x[0]), ("hard", flat))
    }
    keys = {name: [a for a, _ in of] for name, of in layers.items()}
    of_keys = [hf.compress_keys(keys, bytes=size, effort=0) for size in (2, 3, 5)]
    of_values = [hf.compress_values(layers, bytes=size) for size in (2, 3, 5)]
    found, values = hf.spend(of_keys, 3.5), hf.spend(of_values, 3.5)
    assert found.bytes <= 3.5
    assert values.bytes <= 3.5
    assert values["easy"].bytes < values["hard"].bytes
    assert type(found) is hf.results.CompressedLayers
    assert type(values) is hf.results.CompressedLayerValues


def test_indexes_of_several_formats() -> None:
    x = np.random.default_rng(0).normal(size=(2, 8, 2, 60, 8)) * 2
    x[0] *= 4.0 ** -np.arange(8)
    passages = {name: [*map(tuple, own)] for name, own in zip(("easy", "hard"), x, strict=True)}

    def indexes(dim: int, dtype: str, **options: Any) -> hf.results.Indexes:
        given = {"keys": 16, "window": 4, "effort": 0, **options}
        return hf.index(passages, dim=dim, dtype=dtype, **given)  # type: ignore[no-any-return]

    results = [indexes(1, "float8_e4m3fn-unscaled"), indexes(4, "int4"), indexes(6, "int8")]
    found = hf.spend(results, 4.6)
    assert type(found) is hf.results.Indexes
    assert found["easy"].bytes < found["hard"].bytes

    def missed(of: hf.results.Indexes) -> float:
        return sum(one.quality.exact_mass - one.quality.mass for one in of.heads.values())

    for size in np.linspace(1, 8, 20):
        chosen = hf.spend(results, size)
        assert chosen.bytes <= size + 1e-9
        assert all(one in [of[n] for of in results] for n, one in chosen.heads.items())
        assert missed(chosen) <= min(missed(of) for of in results if of.bytes <= size)
    assert hf.spend([indexes(1, "int4", curve_dims=2), results[2]], 5.5).curve is None
    bad: list[dict[str, Any]] = [
        {"keys": 17}, {"window": 5}, {"first": 3}, {"rng": 1}, {"held_out": 0.5},
        {"rotated": ("rope-half", 1 / 10.0 ** np.arange(4))},
    ]  # fmt: skip
    for options in bad:
        with pytest.raises(hf.errors.InputError, match="results must be of the same passages"):
            hf.spend([results[0], indexes(2, "int4", **options)], 3)
    with pytest.raises(hf.errors.InputError, match=r"finite missed of 'easy', .* `keys` keys"):
        hf.spend([indexes(2, "int4", keys=70)], 3)


def test_one_of_the_results_may_be_best() -> None:
    results, _ = curves(0, 2)
    losses = {0: [100.0, 20.0, 0.0], 1: [100.0, 20.0, 19.0]}
    given = [
        replace(
            results[0],
            heads={
                n: replace(results[0][n], dim=d, validation_kl=x[at]) for n, x in losses.items()
            },
        )
        for at, d in enumerate((1, 6, 7))
    ]
    assert hf.spend(given, 6).dims == {0: 6, 1: 6}
    assert hf.spend(given, 6.5).dims == {0: 7, 1: 6}
    assert hf.spend(given[:1], 1).dims == {0: 1, 1: 1}


def test_bad_input() -> None:
    results, _ = curves(0, 2)
    bad: list[tuple[Any, Any, Any, str]] = [
        ([], 2, None, "results must be of one kind"),
        ([*results, 3], 2, None, "results must be of one kind"),
        (results[0], 2, None, "results must be of one kind"),
        (
            [results[0], curves(0, 3)[0][0]],
            2,
            None,
            r"results\[1\] must have the names of results\[0\]; got",
        ),
        (results, 0.9, None, "size must be at least 1, the mean of the least, and finite; got 0.9"),
        (results, np.inf, None, "size must"),
        (results, 2, {0: 1}, "costs must be a mapping with the names"),
        (results, 2, {0: 1, 1: np.inf}, r"costs\[1\] must be finite; got inf"),
        ([replace(results[0], heads={})], 2, None, r"results\[0\] must have the names of"),
        (results, 2, {0: 1, 1: "x"}, r"costs\[1\] must"),
    ]
    for given, size, costs, message in bad:
        with pytest.raises(hf.errors.InputError, match=message):
            hf.spend(given, size, costs=costs)
    alone = hf.compress({"a": HEADS["b"]}, dim=1, effort=0, validation=0)
    pairs = [tuple(pair) for pair in HEADS["b"][:2]]
    two = hf.compress({"a": pairs}, dim=1, effort=0, validation=0.5)
    for one in (alone, two):
        with pytest.raises(hf.errors.InputError, match=r"finite validation_kl of 'a', .* three"):
            hf.spend([one], 2)
    exact = hf.compress({"a": HEADS["b"]}, dim=D, effort=0)
    assert hf.spend([exact], D, costs={"a": -1}).total == D
    with pytest.raises(
        hf.errors.InputError, match=r"costs\['a'\] must be 0, as is its loss; got 2"
    ):
        hf.spend([exact], D, costs={"a": 2})
