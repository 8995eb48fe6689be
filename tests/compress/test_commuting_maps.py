"""Maps that commute with rotary positions, against explicit complex arithmetic."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import headfit as hf
from headfit import _core
from headfit._base.positions import as_rotary
from headfit._compress.commuting_maps import CommutingMaps, PairMetric, PairWeights
from headfit._shrink.descent import Running

RNG = np.random.default_rng
D = 8
KINDS = ["rope", "rope-half"]


def passages(count: int = 12, heads: int = 0, seed: int = 0, dim: int = D) -> Any:
    """Passages of different lengths whose pairs matter more or less."""
    rng = RNG(seed)
    mix = rng.normal(size=(2, 12, dim)) * 0.5 * np.tile(rng.uniform(0.2, 1.5, dim // 2), 2)
    found = []
    for i in range(count):
        x = rng.normal(size=(16 + 3 * (i % 3), 12))
        q = x @ mix[0]
        if heads:
            q = np.stack([q * RNG(h).uniform(0.5, 1.5, dim) for h in range(heads)])
        found.append((q, x @ mix[1] + 0.3))
    return found


def compressed(given: Any = None, **options: Any) -> hf.results.Compressed:
    settings = {
        "mask": "causal", "curve_dims": (), "num_threads": 1, "position": "rope-half",
        "commute": True, "dtype": "float64", "effort": "high", **options,
    }  # fmt: skip
    return hf.compress(passages() if given is None else given, **settings)


def as_complex(x: Any, halves: bool) -> Any:
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:] if halves else x[..., ::2] + 1j * x[..., 1::2]


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_complex_weights_and_commute_with_rotations(kind: str) -> None:
    rotary = as_rotary(kind, D)
    assert rotary is not None
    pairs = np.array([0, 2, 3])
    weights = RNG(1).normal(size=(2, 3, 2))
    maps = PairWeights(pairs, weights).maps(rotary)
    p_q, p_k = maps.reshape(3, D, 6)[:2], maps[-D:]
    x = RNG(2).normal(size=(5, D))
    z = as_complex(x, rotary.halves)[:, pairs]
    for h in range(2):
        expected = z * (weights[h, :, 0] + 1j * weights[h, :, 1])
        np.testing.assert_allclose(as_complex(x @ p_q[h], rotary.halves), expected)
    np.testing.assert_allclose(as_complex(x @ p_k, rotary.halves), z)
    small = rotary.of_pairs(pairs).position
    before, after = (
        hf.Attention(*pair, position=position).rotated()
        for pair, position in (((x @ p_q[0], x @ p_k), small), ((x, x), kind))
    )
    np.testing.assert_allclose(before.Q, after.Q @ p_q[0], atol=1e-12)
    np.testing.assert_allclose(before.K, after.K @ p_k, atol=1e-12)
    again = PairWeights.of_maps(maps, rotary)
    np.testing.assert_array_equal(again.pairs, pairs)
    np.testing.assert_array_equal(again.weights, weights)
    # The gradient by the weights is that of any linear function of the maps.
    by_maps = RNG(3).normal(size=maps.shape)
    other = PairWeights(pairs, RNG(4).normal(size=weights.shape))
    slope = (by_maps[: 2 * D] * (other.maps(rotary)[: 2 * D])).sum()
    found = (other.gradient(by_maps, rotary) * other.weights).sum()
    assert found == pytest.approx(slope)


@pytest.mark.parametrize("kind", KINDS)
def test_the_quadratic_model_is_that_of_its_definition(kind: str) -> None:
    rng = RNG(0)
    rotary = as_rotary(kind, D)
    assert rotary is not None
    C_q, C_k = (a @ a.T for a in rng.normal(size=(2, D, D)))
    metric = PairMetric.of([C_q], C_k, rotary, 0.7)

    def loss(change: Any) -> float:
        """Half the mean square of the change of logits, q^T W k, for independent q and k."""
        p_q, p_k = (
            PairWeights(np.arange(D // 2), change.reshape(1, -1, 2)).maps(rotary).reshape(2, D, D)
        )
        W = p_q @ p_k.T
        return float(np.trace(W.T @ C_q @ W @ C_k)) / 2

    hessian = metric.block(metric.pairs, metric.pairs)[0]
    for _ in range(3):
        change = rng.normal(size=D)
        assert change @ hessian @ change / 2 == pytest.approx(loss(change), rel=1e-5)
    whole = np.tile([0.7, 0.0], D // 2)

    def least(pairs: Any) -> float:
        """The least loss with some pairs, by a search over their weights."""
        at = np.concatenate([[2 * p, 2 * p + 1] for p in pairs])

        def of_pairs(x: Any) -> float:
            change = -whole.copy()
            change[at] += x
            return loss(change)

        return float(minimize(of_pairs, whole[at], options={"gtol": 1e-9}).fun)

    pairs = np.array([0, 1, 3])
    best = metric.best(pairs)
    change = -whole.copy()
    change[[0, 1, 2, 3, 6, 7]] += best.weights[0].ravel()
    assert loss(change) == pytest.approx(least(pairs), rel=1e-4)
    for place, cost in enumerate(metric.costs(best)):
        rise = least(np.delete(pairs, place)) - least(pairs)
        assert cost == pytest.approx(rise, rel=1e-3)
    slopes = (hessian @ change)[[4, 5]]
    gain, _ = metric.gains(best, np.array([2]), slopes[np.newaxis, np.newaxis])
    assert gain[0] == pytest.approx(least(pairs), rel=1e-3)  # with all pairs the loss is zero
    alone = [loss(-whole * (np.arange(D) // 2 == p)) for p in range(D // 2)]
    np.testing.assert_allclose(metric.shares(), alone, rtol=1e-5)


def divergence(given: Any, which: Any, pairs: Any, x: Any, halves: bool) -> tuple[float, Any]:
    """Mean KL of weights x, shape (query heads, 2 * pairs), and its gradient.

    By complex numbers of rotated passages.
    """
    total, rows, slope = 0.0, 0, np.zeros_like(x)
    kind = "rope-half" if halves else "rope"
    a = x[:, ::2] + 1j * x[:, 1::2]
    for i in which:
        head = hf.Attention(*given[i], position=kind, mask="causal").rotated()
        q, k = (as_complex(np.atleast_3d(y.T).T, halves)[..., pairs] for y in (head.Q, head.K))
        A = head.matrix().reshape(len(x), head.n, head.m)
        logits = np.einsum("hip,hp,xjp->hij", q, a, k.conj()).real
        logits = np.where(np.tri(head.n, dtype=bool), logits, -np.inf)
        top = logits.max(axis=-1, keepdims=True)
        log_m = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore", divide="ignore"):
            total += float(np.where(A > 0, A * (np.log(A) - log_m), 0).sum())
        by_weight = np.einsum("hij,hip,xjp->hp", np.exp(log_m) - A, q, k.conj())
        slope[:, ::2] += by_weight.real
        slope[:, 1::2] -= by_weight.imag
        rows += A[..., 0].size
    return total / rows, slope / rows


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_pairs_and_weights_do_better(kind: str, heads: int) -> None:
    """All choices of pairs are tried, each with weights that an explicit descent finds."""
    given = passages(3, heads=heads, seed=3)
    result = compressed(given, dim=4, position=kind, validation=0)
    halves = kind == "rope-half"
    shape = (max(1, heads), 4)
    found = {}
    for pairs in itertools.combinations(range(D // 2), 2):

        def loss(x: Any, pairs: Any = pairs) -> tuple[float, Any]:
            at = x.reshape(shape)
            value, slope = divergence(given, result.calibration, list(pairs), at, halves)
            return value, slope.ravel()

        start = np.resize([D**-0.5, 0], shape).ravel()
        found[pairs] = minimize(loss, start, jac=True, options={"gtol": 1e-6}).fun
    ours = result.settings["descents"][4]["kl"][1]
    assert ours <= min(found.values()) * (1 + 1e-3)
    assert ours == pytest.approx(found[tuple(result.pairs)], rel=1e-3)


def test_pairs_are_exchanged_where_that_helps() -> None:
    """A descent that starts from the worst pairs ends with the best ones."""
    rotary = as_rotary("rope", 12)
    assert rotary is not None
    heads = [
        hf.Attention(*p, position="rope", mask="causal").rotated() for p in passages(3, dim=12)
    ]
    loss = _core.CompressLoss([h.core for h in heads], 1)
    family = CommutingMaps(heads[0].scale, loss, rotary, 1)
    running = Running.of(num_threads=1)
    first = family.descend(family.closed(6)["eliminated"], None, running)
    worst = family.metric.best(np.sort(family.order[:3])).maps(rotary)
    found = family.descend(worst, None, running)
    assert found.report["swaps"] > 0
    assert found.last < found.first
    assert found.last == pytest.approx(loss.value(found.maps, 1))
    assert found.last == pytest.approx(first.last, rel=1e-2)


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smaller_heads_have_positions_of_their_own(heads: int, dtype: str) -> None:
    given = passages(heads=heads)
    result = compressed(given, dim=4, position=("rope", 100.0), dtype=dtype)
    assert result.rotary
    whole = 100.0 ** (-np.arange(4) / 4)
    assert result.pairs is not None
    assert result.position == ("rope", tuple(whole[result.pairs]))
    np.testing.assert_array_equal(result.frequencies, whole[result.pairs])
    i = result.held_out[0]
    small = result.apply(*given[i], position=("rope", 100.0), mask="causal")
    assert small.position == result.position
    assert small.dim == 4
    turned = hf.Attention(*given[i], position=("rope", 100.0), mask="causal").rotated()
    later = result.apply(turned)
    assert later.position is None
    atol = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(small.matrix(), later.matrix(), atol=atol)
    np.testing.assert_allclose(
        small.Q, given[i][0] @ result.P_q, rtol=1e-2, atol=atol
    )  # before any rotation
    tv = [
        np.abs(hf.Attention(*given[i], position=("rope", 100.0), mask="causal").matrix()
               - result.apply(hf.Attention(*given[i], position=("rope", 100.0), mask="causal")
                              .rotated()).matrix()).sum(axis=-1).ravel() / 2
        for i in result.held_out
    ]  # fmt: skip
    assert result.tv_mean == pytest.approx(np.concatenate(tv).mean(), rel=1e-4)


def test_passages_that_have_been_rotated() -> None:
    """Captured queries and keys are rotated already: `commute` names their position."""
    given = passages()
    result = compressed(given, dim=4)
    turned = [hf.Attention(*p, position="rope-half", mask="causal").rotated() for p in given]
    other = compressed(turned, dim=4, mask=None, position=None, commute="rope-half")
    np.testing.assert_array_equal(result.P_q, other.P_q)
    assert other.position == result.position
    assert other.tv_mean == result.tv_mean
    own = 10000.0 ** (-np.arange(4) / 4)
    named = compressed(turned, dim=4, mask=None, position=None, commute=("rope-half", own))
    np.testing.assert_array_equal(result.P_q, named.P_q)


def test_curves_of_even_sizes() -> None:
    given = passages(dim=12)
    result = compressed(given, tv=0.2, curve_dims=None, validation=0)
    assert list(result.curve.dim[:2]) == [2, 4]
    assert result.curve.dim[-1] == 12
    assert (result.curve.dim % 2 == 0).all()
    assert set(result.curves) == {"share", "eliminated", "descent", "taken"}
    descents = result.settings["descents"]
    kl = [descents[d]["kl"][1] for d in result.curve.dim if d < 12]
    assert (np.diff(kl) <= 0).all()
    assert result.curve.tv_mean[-1] < 1e-12
    assert result.reached
    assert result.dim % 2 == 0


def test_weights_fold_and_files_have_the_frequencies(tmp_path: Path) -> None:
    rng = RNG(0)
    w_q, w_k = rng.normal(size=(2, 20, D)) * 0.3
    texts = rng.normal(size=(6, 30, 20))
    result = compressed([(x @ w_q, x @ w_k) for x in texts], dim=4, dtype="float16")
    tensors = result.tensors(w_q, w_k)
    assert set(tensors) == {"P_q", "P_k", "pairs", "inv_freq", "W_Q_P_q", "W_K_P_k"}
    np.testing.assert_allclose(tensors["W_K_P_k"], w_k @ result.P_k, rtol=2e-3)
    x = texts[0]
    folded = hf.Attention(
        x @ tensors["W_Q_P_q"], x @ tensors["W_K_P_k"], scale=1, mask="causal",
        position=("rope-half", tensors["inv_freq"]),
    )  # fmt: skip
    small = result.apply(x @ w_q, x @ w_k, position="rope-half", mask="causal")
    np.testing.assert_allclose(folded.matrix(), small.matrix(), atol=2e-2)
    safetensors = pytest.importorskip("safetensors.numpy")
    result.save(tmp_path / "head.safetensors", w_q, w_k)
    stored = safetensors.load_file(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(stored["inv_freq"], result.frequencies)
    np.testing.assert_array_equal(stored["pairs"], result.pairs)
    assert stored["W_K_P_k"].dtype == np.float16


def test_results_do_not_depend_on_threads() -> None:
    results = [compressed(dim=4, num_threads=t) for t in (1, 2)]
    np.testing.assert_array_equal(results[0].P_q, results[1].P_q)


def test_limits_end_the_descent() -> None:
    steps = []

    def stop(step: int, kl: float) -> bool:
        steps.append((step, kl))
        return step < 2

    result = compressed(dim=4, callback=stop)
    assert result.settings["descents"][4]["status"] == "stopped"
    assert [step for step, _ in steps] == [0, 1, 2]
    assert compressed(dim=4, effort=3).settings["descents"][4]["status"] == "step limit"
    short = compressed(dim=4, time_limit=1e-6)
    assert short.settings["descents"][4]["status"] == "time limit"


def test_a_loss_of_sinks_and_soft_caps_goes_through() -> None:
    result = compressed(dim=4, sinks=0.5, softcap=5.0)
    report = result.settings["descents"][4]
    assert report["kl"][1] < report["kl"][0]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no positions": ({"position": None}, "commute=True needs passages of the same rotary"),
    "alibi": ({"position": "alibi"}, "commute=True needs passages of the same rotary"),
    "odd": ({"dim": 3}, "dim must be even for maps that commute with rotations; got 3"),
    "odd curve": ({"curve_dims": [5]}, "curve_dims must be even"),
    "a word": ({"position": None, "commute": "learned"}, "commute must be True, False, or"),
    "two": ({"commute": "rope-half"}, "commute must be True where passages have rotary"),
    "frequencies": (
        {"position": None, "commute": ("rope", [1.0])},
        "the frequencies of rope must be one for each of the 4 pairs",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(hf.errors.InputError, match=message):
        compressed(**{"dim": 4, **options})


def test_bad_input_to_apply() -> None:
    result = compressed(dim=4)
    q, k = passages()[0]
    with pytest.raises(hf.errors.InputError, match="position must be that of the passages"):
        result.apply(q, k, position="rope")
    with pytest.raises(hf.errors.InputError, match="position must be that of the passages"):
        result.apply(q, k, position="alibi")


def test_the_reference_is_the_loss_of_the_core() -> None:
    given = passages(4)
    rotary = as_rotary("rope-half", D)
    assert rotary is not None
    pairs, x = np.array([1, 2]), RNG(0).normal(size=(1, 4))
    heads = [hf.Attention(*p, position="rope-half", mask="causal").rotated() for p in given]
    loss = _core.CompressLoss([h.core for h in heads], 1)
    value, by_maps = loss.evaluate(PairWeights(pairs, x.reshape(1, -1, 2)).maps(rotary), 1)
    expected, slope = divergence(given, range(4), pairs, x, halves=True)
    assert value == pytest.approx(expected, rel=1e-10)
    gradient = PairWeights(pairs, x.reshape(1, -1, 2)).gradient(by_maps, rotary)
    np.testing.assert_allclose(gradient.reshape(1, -1), slope, atol=1e-12)
