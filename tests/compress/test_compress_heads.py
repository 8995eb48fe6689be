"""All heads of a model, with one budget."""

import itertools
from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit._compress.maps import Closeness, shared_out

D = 8


def head(falls: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(2, D, D)) * falls ** -np.arange(D) * 3
    return [rng.normal(size=(30, D)) @ mix for _ in range(8)]


HEADS = {("a", 0): head(3.0, 0), ("a", 1): head(1.3, 1), "b": head(1.6, 2)}


def test_one_size() -> None:
    found = hf.compress(HEADS, dim=3, mask="causal")
    assert found.dims == dict.fromkeys(HEADS, 3)
    assert found.total == 9
    assert found.curve is None
    for name, passages in HEADS.items():
        one = hf.compress(passages, dim=3, mask="causal", curve_dims=())
        np.testing.assert_array_equal(found[name].P_q, one.P_q)
        assert found[name].tv_mean == one.tv_mean
    assert "24 -> 9 dimensions" in repr(found)


def test_seconds_of_a_head_are_its_own() -> None:
    for budget in ({"dim": 3}, {"total": 9}):
        found = hf.compress(HEADS, **budget)
        assert 0 < sum(one.seconds for one in found.heads.values()) <= found.seconds


def test_a_total_variation_for_all() -> None:
    found = hf.compress(dict(enumerate(HEADS.values())), tv=0.1)
    assert list(found.heads) == [0, 1, 2]
    assert all(one.reached for one in found.heads.values())
    assert found[0].dim < found[1].dim
    assert found.tv_mean == pytest.approx(np.mean([h.tv_mean for h in found.heads.values()]))


def test_a_number_of_dimensions() -> None:
    found = hf.compress(HEADS, total=12, curve_dims=range(1, D + 1))
    assert found.total <= 12
    assert found[("a", 0)].dim < found[("a", 1)].dim
    uniform = hf.compress(HEADS, dim=4)
    assert found.tv_mean < uniform.tv_mean
    assert found.curve is not None
    assert (np.diff(found.curve.dim) > 0).all()
    assert (np.diff(found.curve.tv_mean) < 0).all()
    assert repr(found.curve).startswith("TvCurve(mean total variation by size: 3: ")
    whole = hf.compress(HEADS, total=3 * D)
    assert whole.tv_mean < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_points_of_the_trade_off_are_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curves = {n: dict(zip(range(1, 6), -np.sort(-rng.random(5)), strict=True)) for n in range(3)}
    judged = {n: {d: Closeness(x, x, x, x) for d, x in c.items()} for n, c in curves.items()}
    _, path = shared_out(judged, 15)
    for total, tv in zip(path.dim, path.tv_mean, strict=True):
        best = min(
            np.mean([curves[n][d] for n, d in enumerate(sizes)])
            for sizes in itertools.product(range(1, 6), repeat=3)
            if sum(sizes) <= total
        )
        assert tv == pytest.approx(best)
        chosen, _ = shared_out(judged, total)
        assert sum(chosen.values()) <= total
        assert np.mean([curves[n][d] for n, d in chosen.items()]) == pytest.approx(best)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "two sizes": (HEADS, {"dim": 2, "total": 9}, "total must not be given beside dim"),
    "no dims": (HEADS, {"total": 9, "curve_dims": ()}, "curve_dims must not be empty beside total"),
    "one head": (HEADS["b"], {"total": 2}, "total must be given beside a mapping of heads"),
    "K": (HEADS, {"K": 1}, "K must not be given beside a mapping of heads"),
    "size": (HEADS, {"dim": 9}, r"dim must lie in 1 \.\.\. 8"),
    "total": (HEADS, {"total": 2}, "total must be an integer of at least 3; got 2"),
    "empty": ({}, {"dim": 2}, "passages must not be an empty mapping"),
    "kind": (3, {"dim": 2}, "passages must be pairs"),
    "a head": ({"c": HEADS["b"][:1]}, {"dim": 2}, "head c: passages must be at least 2"),
    "tv": (HEADS, {"tv": 2}, "tv must lie strictly between 0 and 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    heads, options, message = BAD[case]
    with pytest.raises(hf.errors.InputError, match=message):
        hf.compress(heads, **options)


def test_effort_0_takes_closed_forms() -> None:
    small = hf.compress(HEADS["b"], dim=3, effort=0, curve_dims=())
    assert small.tv_mean <= 1.2 * min(small.curves[x].tv_mean[0] for x in small.curves)
    assert small.settings["descents"][3]["steps"] == 0
