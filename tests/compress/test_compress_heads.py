"""All heads of a model."""

from typing import Any

import numpy as np
import pytest

import headfit as hf

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
    for name, passages in HEADS.items():
        one = hf.compress(passages, dim=3, mask="causal", curve_dims=())
        np.testing.assert_array_equal(found[name].P_q, one.P_q)
        assert found[name].tv_mean == one.tv_mean
    assert "24 -> 9 dimensions" in repr(found)


def test_seconds_of_a_head_are_its_own() -> None:
    for asked in ({"dim": 3}, {"tv": 0.2}):
        found = hf.compress(HEADS, **asked)
        assert 0 < sum(one.seconds for one in found.heads.values()) <= found.seconds


def test_a_callback_gets_the_name_and_ends_the_descent_of_a_head() -> None:
    seen: list[tuple[Any, int]] = []

    def stop(name: Any, step: int, kl: float) -> bool:
        assert kl >= 0
        seen.append((name, step))
        return name != "b"

    found = hf.compress(HEADS, dim=3, effort=2, callback=stop)
    assert list(dict.fromkeys(name for name, _ in seen)) == list(HEADS)
    assert [step for name, step in seen if name == "b"] == [0]
    ends = {name: one.settings["descents"][3]["status"] for name, one in found.heads.items()}
    assert ends == {("a", 0): "step limit", ("a", 1): "step limit", "b": "stopped"}


def test_a_total_variation_for_all() -> None:
    found = hf.compress(dict(enumerate(HEADS.values())), tv=0.1)
    assert list(found.heads) == [0, 1, 2]
    assert all(one.reached for one in found.heads.values())
    assert found[0].dim < found[1].dim
    assert found.tv_mean == pytest.approx(np.mean([h.tv_mean for h in found.heads.values()]))


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "two sizes": (HEADS, {"dim": 2, "tv": 0.1}, "tv must not be given beside dim"),
    "K": (HEADS, {"K": 1}, "K must not be given beside a mapping of heads"),
    "size": (HEADS, {"dim": 9}, r"dim must lie in 1 \.\.\. 8"),
    "empty": ({}, {"dim": 2}, "passages must be a mapping, not empty; got {}"),
    "kind": (3, {"dim": 2}, "passages must be pairs"),
    "a head": (
        {"c": [tuple(x[..., :7, :] for x in HEADS["b"][0])]},
        {"dim": 2},
        "head c: passages must be at least 2",
    ),
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
